use super::*;
use proptest::prelude::*;

/// Reply that owns its strings, and how many bytes of a value are missing.
#[derive(Clone, Debug)]
enum OwnedReply {
    Values(Vec<Option<Vec<u8>>>, u32),
    Changed(bool, bool, Option<Vec<u8>>, u32),
    Records(Vec<(Vec<u8>, Vec<u8>)>, u32, bool),
    Count(u64),
    Part(Vec<u8>),
    Failed(usize),
}

fn found(here: &[u8], missing: u32) -> FoundValue<'_> {
    FoundValue {
        here,
        whole_size_bytes: here.len() as u32 + missing,
    }
}

impl OwnedReply {
    fn reply(&self) -> ByteReply<'_> {
        match self {
            Self::Values(values, missing) => {
                let last = values.len() - 1;
                let missing = |index: usize| if index == last { *missing } else { 0 };
                let values = values.iter().enumerate();
                let values = values
                    .map(|(index, value)| value.as_deref().map(|it| found(it, missing(index))));
                ByteReply::Values(values.collect())
            }
            Self::Changed(is_done, was_present, previous, missing) => ByteReply::Changed {
                is_done: *is_done,
                was_present: *was_present,
                previous: previous.as_deref().map(|it| found(it, *missing)),
            },
            Self::Records(records, missing, is_end) => {
                let last = records.len().saturating_sub(1);
                let missing = |index: usize| if index == last { *missing } else { 0 };
                let records = records.iter().enumerate();
                let records = records
                    .map(|(index, (key, value))| (key.as_slice(), found(value, missing(index))));
                ByteReply::Records {
                    records: records.collect(),
                    is_end: *is_end,
                }
            }
            Self::Count(count) => ByteReply::Count(*count),
            Self::Part(part) => ByteReply::Part(part),
            Self::Failed(index) => ByteReply::Failed(Failure::ALL[*index]),
        }
    }
}

fn replies() -> impl Strategy<Value = OwnedReply> {
    let string = || proptest::collection::vec(any::<u8>(), 0..40);
    let missing = || prop_oneof![Just(0), 0..1_u32 << 25];
    let maybe = || proptest::option::of(string());
    prop_oneof![
        (proptest::collection::vec(maybe(), 1..9), missing())
            .prop_map(|(values, missing)| OwnedReply::Values(values, missing)),
        (any::<bool>(), any::<bool>(), maybe(), missing()).prop_map(
            |(is_done, was, previous, missing)| OwnedReply::Changed(
                is_done, was, previous, missing
            )
        ),
        (
            proptest::collection::vec((string(), string()), 0..9),
            missing(),
            any::<bool>()
        )
            .prop_map(|(records, missing, is_end)| OwnedReply::Records(records, missing, is_end)),
        any::<u64>().prop_map(OwnedReply::Count),
        proptest::collection::vec(any::<u8>(), 1..40).prop_map(OwnedReply::Part),
        (0..Failure::ALL.len()).prop_map(OwnedReply::Failed),
    ]
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Format: a later version that changes it must have another number.
#[test]
fn bytes_are_golden() {
    let mut bytes = Vec::new();
    let records = vec![
        (&b"a"[..], FoundValue::whole(b"")),
        (b"b", found(b"12345678", 100)),
    ];
    let is_end = true;
    ByteReply::Records { records, is_end }.encode(&mut bytes);
    let words = [
        0x0000_0002_0012_0100,
        1,
        0x61,
        1 << 63,
        1,
        0x62,
        0x8000_0008_0000_006C,
        0x3837_3635_3433_3231,
    ];
    assert_eq!(bytes, bytes_of(&words));
    ByteReply::Failed(Failure::OfOtherKind).encode(&mut bytes);
    assert_eq!(bytes, bytes_of(&[8]));
}

/// Checks that values are rejected if they are too long, not as long as they say, or partial and
/// not the last one.
#[test]
fn what_is_no_reply_is_refused() {
    let of = |shape: u64, count: u64| shape << 16 | count << 32;
    let cut = IS_THERE | 9;
    for words in [
        &[][..],
        &[7],
        &[of(VALUES, 0)],
        &[of(VALUES, 1)],
        &[of(VALUES, 1), 1],
        &[of(VALUES, 1), IS_THERE | (64 << 20) | 1],
        &[of(VALUES, 1), IS_THERE | 2 << 32 | 1, 0],
        &[of(VALUES, 1), IS_THERE | 1 << 32 | 1, 0x100],
        &[of(VALUES, 2), cut, 0],
        &[of(VALUES, 1) | 1 << 8, 0],
        &[of(CHANGED, 2), 0],
        &[of(CHANGED, 1) | 1 << 10, 0],
        &[of(RECORDS, u64::from(u32::MAX))],
        &[of(RECORDS, 1), 4097, 0, 0],
        &[of(RECORDS, 1), 0, 0],
        &[of(RECORDS, 2), 0, cut, 0, IS_THERE],
        &[of(COUNT, 1)],
        &[of(PART, 0)],
        &[of(PART, 9), 1],
        &[of(21, 1), 0],
    ] {
        let bytes = bytes_of(words);
        let read = ByteReply::decode(&bytes);
        assert!(read.is_err(), "{words:?}: {read:?}");
    }
}

proptest! {
    /// Checks that every reply is decoded as encoded, and that truncated or longer ones are
    /// rejected.
    #[test]
    fn replies_come_back(own in replies()) {
        let reply = own.reply();
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        prop_assert_eq!(ByteReply::decode(&bytes), Ok(reply));
        prop_assert!(ByteReply::decode(&bytes[..bytes.len() - 8]).is_err());
        bytes.extend([0; 8]);
        prop_assert!(ByteReply::decode(&bytes).is_err());
    }

    /// Checks that decoding any bytes returns a reply or an error, and that a decoded reply is
    /// encoded to the same bytes.
    #[test]
    fn any_bytes_can_be_read(
        head in prop_oneof![Just(0), 0..10_u64],
        flags in 0..4_u64,
        shape in 15..22_u64,
        count in 0..4_u64,
        rest in proptest::collection::vec(
            prop_oneof![
                0..9_u64,
                Just(IS_THERE | 2 << 32 | 2),
                Just(IS_THERE | 3),
                any::<u64>(),
            ],
            0..12,
        ),
    ) {
        let first = head | flags << 8 | shape << 16 | count << 32;
        let words: Vec<u64> = core::iter::once(first).chain(rest).collect();
        let bytes = bytes_of(&words);
        if let Ok(reply) = ByteReply::decode(&bytes) {
            let mut written = Vec::new();
            reply.encode(&mut written);
            prop_assert_eq!(written, bytes);
        }
    }
}
