//! Keys that are often close to each other: few bytes, at the limits.

use proptest::prelude::*;
use proptest::sample::select;

/// Bytes with a meaning in the encodings, and others.
pub(crate) fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![
        4 => select(vec![0, 1, 2, b'a', b'b', 0x7f, 0x80, 0xc3, 0xa9, 0xfe, 0xff]),
        1 => any::<u8>(),
    ]
}

/// Short strings over few bytes.
pub(crate) fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(byte(), 0..6)
}

/// Few characters, of every length in UTF-8.
pub(crate) fn character() -> impl Strategy<Value = char> {
    let near = vec![
        '\0',
        '\u{1}',
        'a',
        'b',
        '\u{7f}',
        '\u{80}',
        '\u{7ff}',
        '\u{800}',
        '\u{d7ff}',
        '\u{e000}',
        '\u{ffff}',
        '\u{10000}',
        '\u{10ffff}',
    ];
    prop_oneof![4 => select(near), 1 => any::<char>()]
}

/// Short strings over few characters.
pub(crate) fn string() -> impl Strategy<Value = String> {
    prop::collection::vec(character(), 0..5).prop_map(|it| it.into_iter().collect())
}

/// Numbers with bytes from [`byte`].
pub(crate) fn array<const N: usize>() -> impl Strategy<Value = [u8; N]> {
    prop_oneof![
        [(); N].map(|()| byte().boxed()),
        byte().prop_map(|it| [it; N]),
        (byte(), byte()).prop_map(|(first, others)| {
            let mut array = [others; N];
            array[..1].fill(first);
            array
        }),
    ]
}

macro_rules! numbers {
    ($($number:ident $size:literal),+) => {$(
        pub(crate) fn $number() -> impl Strategy<Value = $number> {
            array::<$size>().prop_map($number::from_le_bytes)
        }
    )+};
}

numbers!(u8 1, u16 2, u32 4, u64 8, u128 16, i8 1, i16 2, i32 4, i64 8, i128 16);

/// Floats of all kinds: every class and sign, NaNs with any payload, and ordinary numbers.
pub(crate) fn f32() -> impl Strategy<Value = f32> {
    let edges = vec![
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::MIN_POSITIVE,
        -f32::MIN_POSITIVE,
        f32::from_bits(1),
        f32::MAX,
        f32::MIN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        -f32::NAN,
        f32::from_bits(0x7f80_0001),
        f32::from_bits(0xffff_ffff),
    ];
    prop_oneof![
        select(edges),
        any::<u32>().prop_map(f32::from_bits),
        any::<f32>()
    ]
}

/// Floats as in [`f32`].
pub(crate) fn f64() -> impl Strategy<Value = f64> {
    let edges = vec![
        0.0,
        -0.0,
        1.0,
        -1.0,
        f64::MIN_POSITIVE,
        -f64::MIN_POSITIVE,
        f64::from_bits(1),
        f64::MAX,
        f64::MIN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        -f64::NAN,
        f64::from_bits(0x7ff0_0000_0000_0001),
        f64::from_bits(u64::MAX),
    ];
    prop_oneof![
        select(edges),
        any::<u64>().prop_map(f64::from_bits),
        any::<f64>()
    ]
}

/// Options that are often `None`.
pub(crate) fn option<T: std::fmt::Debug>(
    some: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<T>> {
    prop::option::weighted(0.7, some)
}

/// Change of encoded bytes: of one byte, of their number, or of all.
#[derive(Clone, Debug)]
pub(crate) enum Damage {
    Replace {
        place: prop::sample::Index,
        byte: u8,
    },
    Insert {
        place: prop::sample::Index,
        byte: u8,
    },
    Cut {
        place: prop::sample::Index,
    },
    Append {
        bytes: Vec<u8>,
    },
    Other {
        bytes: Vec<u8>,
    },
}

pub(crate) fn damage() -> impl Strategy<Value = Damage> {
    let place = any::<prop::sample::Index>;
    prop_oneof![
        (place(), byte()).prop_map(|(place, byte)| Damage::Replace { place, byte }),
        (place(), byte()).prop_map(|(place, byte)| Damage::Insert { place, byte }),
        place().prop_map(|place| Damage::Cut { place }),
        bytes().prop_map(|bytes| Damage::Append { bytes }),
        prop::collection::vec(byte(), 0..24).prop_map(|bytes| Damage::Other { bytes }),
    ]
}

impl Damage {
    /// Applies the change to the bytes.
    pub(crate) fn apply(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        match self {
            Self::Replace { place, byte } => {
                if !bytes.is_empty() {
                    let place = place.index(bytes.len());
                    bytes[place] = *byte;
                }
            }
            Self::Insert { place, byte } => bytes.insert(place.index(bytes.len() + 1), *byte),
            Self::Cut { place } => bytes.truncate(place.index(bytes.len() + 1)),
            Self::Append { bytes: more } => bytes.extend_from_slice(more),
            Self::Other { bytes: others } => bytes.clone_from(others),
        }
        bytes
    }
}
