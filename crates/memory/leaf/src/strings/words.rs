//! Words of a page that describe its other words. Any word can be decoded as any of these types;
//! the image checks whether the result is possible.

use core::fmt;

use farleaf_base::limits::KEY_SIZE_BYTES_MAX;
use farleaf_base::{RemoteAddr, crc32c_bytes};

use crate::strings::geometry::{KEY_HEAD_SIZE_BYTES, PREFIX_INLINE_SIZE_BYTES_MAX};

/// Size of a reference in bytes.
pub const REFERENCE_SIZE_BYTES: usize = 16;
/// Inline bytes of an outside key or fence: its head, then a reference.
pub(crate) const OUTSIDE_KEY_SIZE_BYTES: usize = KEY_HEAD_SIZE_BYTES + REFERENCE_SIZE_BYTES;
/// Size in bytes of the part of a prefix's SHA-256 that a page has.
pub const DIGEST_SIZE_BYTES: usize = 16;
/// Inline bytes of an outside prefix: a reference, then a digest.
pub(crate) const OUTSIDE_PREFIX_SIZE_BYTES: usize = REFERENCE_SIZE_BYTES + DIGEST_SIZE_BYTES;
const _: () = assert!(OUTSIDE_PREFIX_SIZE_BYTES <= PREFIX_INLINE_SIZE_BYTES_MAX);

const OFFSET_BITS: u32 = 8;
const KEY_SIZE_BITS: u32 = 13;
const VALUE_SIZE_BITS: u32 = 11;
const FINGERPRINT_BITS: u32 = 30;
const SLOT_VALUE_SIZE_SHIFT: u32 = OFFSET_BITS + KEY_SIZE_BITS;
const SLOT_KEY_OUTSIDE_SHIFT: u32 = SLOT_VALUE_SIZE_SHIFT + VALUE_SIZE_BITS;
const SLOT_VALUE_OUTSIDE_SHIFT: u32 = SLOT_KEY_OUTSIDE_SHIFT + 1;
const SLOT_FINGERPRINT_SHIFT: u32 = SLOT_VALUE_OUTSIDE_SHIFT + 1;
const FLAGS_SHIFT: u32 = OFFSET_BITS + KEY_SIZE_BITS;
const _: () = assert!(SLOT_FINGERPRINT_SHIFT + FINGERPRINT_BITS == 64);
const _: () = assert!(KEY_SIZE_BYTES_MAX < 1 << KEY_SIZE_BITS);

const fn bits(word: u64, shift: u32, bit_count: u32) -> u64 {
    word >> shift & ((1 << bit_count) - 1)
}

/// Reference of a string in a value block: 16 bytes.
///
/// ```text
/// word 0: fat pointer, whose spare bits belong to value blocks
/// word 1: bits 63..32 CRC-32C of the string, bits 31..0 its size in bytes
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// Pointer to the value block.
    pub pointer: RemoteAddr,
    /// Size of the string in bytes.
    pub size_bytes: u32,
    /// CRC-32C of the string.
    pub checksum: u32,
}

impl Reference {
    /// Creates a reference to a string that lies, or will lie, where `pointer` says.
    ///
    /// # Panics
    ///
    /// If the string has 4 GiB or more.
    pub fn of(pointer: RemoteAddr, string: &[u8]) -> Self {
        Self {
            pointer,
            size_bytes: u32::try_from(string.len()).expect("a string of less than 4 GiB"),
            checksum: crc32c_bytes(string),
        }
    }

    /// Returns whether the string has the size and checksum of this reference.
    pub fn names(&self, string: &[u8]) -> bool {
        string.len() as u64 == u64::from(self.size_bytes) && crc32c_bytes(string) == self.checksum
    }

    /// Encodes the reference.
    pub fn to_bytes(self) -> [u8; REFERENCE_SIZE_BYTES] {
        let second = u64::from(self.checksum) << 32 | u64::from(self.size_bytes);
        let mut bytes = [0; REFERENCE_SIZE_BYTES];
        bytes[..8].copy_from_slice(&self.pointer.word().to_le_bytes());
        bytes[8..].copy_from_slice(&second.to_le_bytes());
        bytes
    }

    /// Decodes a reference. Any bytes are accepted; the caller must check the result.
    pub fn from_bytes(bytes: [u8; REFERENCE_SIZE_BYTES]) -> Self {
        let word =
            |start: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[start + index]));
        Self {
            pointer: RemoteAddr::from_word(word(0)),
            size_bytes: word(8) as u32,
            checksum: (word(8) >> 32) as u32,
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {}", self.size_bytes, self.pointer)
    }
}

/// Lowest 30 bits of a whole key's CRC-32C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u32);

impl Fingerprint {
    /// Computes the fingerprint of a whole key.
    #[inline]
    pub fn of(key: &[u8]) -> Self {
        Self(crc32c_bytes(key) & ((1 << FINGERPRINT_BITS) - 1))
    }
}

/// Contents of a slot: place and sizes of its record.
///
/// ```text
/// bit 63         34   33     32   31      21 20    8 7      0
///     [fingerprint][value][key][value size][key size][offset]     value, key: is outside
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotWord {
    /// Offset of the record in words from the page's start.
    pub offset_words: u8,
    /// Size of the key's inline bytes.
    pub key_size_bytes: u16,
    /// Size of the value's inline bytes, which follow the key's.
    pub value_size_bytes: u16,
    /// Whether the key's inline bytes are its suffix's head and a reference.
    pub key_is_outside: bool,
    /// Whether the value's inline bytes are a reference.
    pub value_is_outside: bool,
    /// Fingerprint of the whole key.
    pub fingerprint: Fingerprint,
}

impl SlotWord {
    /// Decodes a slot word.
    #[inline]
    pub const fn from_word(word: u64) -> Self {
        Self {
            offset_words: word as u8,
            key_size_bytes: bits(word, OFFSET_BITS, KEY_SIZE_BITS) as u16,
            value_size_bytes: bits(word, SLOT_VALUE_SIZE_SHIFT, VALUE_SIZE_BITS) as u16,
            key_is_outside: bits(word, SLOT_KEY_OUTSIDE_SHIFT, 1) != 0,
            value_is_outside: bits(word, SLOT_VALUE_OUTSIDE_SHIFT, 1) != 0,
            fingerprint: Fingerprint((word >> SLOT_FINGERPRINT_SHIFT) as u32),
        }
    }

    /// Encodes the slot word.
    ///
    /// # Panics
    ///
    /// If a size exceeds its field.
    pub const fn word(self) -> u64 {
        assert!(self.key_size_bytes < 1 << KEY_SIZE_BITS);
        assert!(self.value_size_bytes < 1 << VALUE_SIZE_BITS);
        self.offset_words as u64
            | (self.key_size_bytes as u64) << OFFSET_BITS
            | (self.value_size_bytes as u64) << SLOT_VALUE_SIZE_SHIFT
            | (self.key_is_outside as u64) << SLOT_KEY_OUTSIDE_SHIFT
            | (self.value_is_outside as u64) << SLOT_VALUE_OUTSIDE_SHIFT
            | (self.fingerprint.0 as u64) << SLOT_FINGERPRINT_SHIFT
    }

    /// Returns the size in bytes of the record in the page.
    #[inline]
    pub const fn record_size_bytes(self) -> usize {
        self.key_size_bytes as usize + self.value_size_bytes as usize
    }
}

/// Description of one of a page's fences.
///
/// ```text
/// bit 63   24     23         22              21        20    8 7      0
///     [ zero ][has no end][is outside][adds a zero byte][ size ][offset]
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FenceWord {
    /// Offset of the inline bytes in words from the page's start.
    pub offset_words: u8,
    /// Size of the inline bytes.
    pub size_bytes: u16,
    /// Whether the fence is directly behind its string, not directly before it.
    pub adds_zero: bool,
    /// Whether the inline bytes are the suffix's head and a reference.
    pub is_outside: bool,
    /// Whether the fence is behind all keys.
    pub has_no_end: bool,
}

impl FenceWord {
    /// Upper fence of a table's last page.
    pub const END: Self = Self {
        offset_words: 0,
        size_bytes: 0,
        adds_zero: false,
        is_outside: false,
        has_no_end: true,
    };

    /// Decodes a fence word; `None` if undefined bits are set.
    #[inline]
    pub const fn from_word(word: u64) -> Option<Self> {
        if word >> (FLAGS_SHIFT + 3) != 0 {
            return None;
        }
        Some(Self {
            offset_words: word as u8,
            size_bytes: bits(word, OFFSET_BITS, KEY_SIZE_BITS) as u16,
            adds_zero: bits(word, FLAGS_SHIFT, 1) != 0,
            is_outside: bits(word, FLAGS_SHIFT + 1, 1) != 0,
            has_no_end: bits(word, FLAGS_SHIFT + 2, 1) != 0,
        })
    }

    /// Encodes the fence word.
    ///
    /// # Panics
    ///
    /// If the size needs more than 13 bits.
    pub const fn word(self) -> u64 {
        assert!(self.size_bytes < 1 << KEY_SIZE_BITS);
        self.offset_words as u64
            | (self.size_bytes as u64) << OFFSET_BITS
            | (self.adds_zero as u64) << FLAGS_SHIFT
            | (self.is_outside as u64) << (FLAGS_SHIFT + 1)
            | (self.has_no_end as u64) << (FLAGS_SHIFT + 2)
    }
}

/// Description of a page's prefix.
///
/// ```text
/// bit 63   22     21     20    8 7      0
///     [ zero ][is outside][ size ][offset]
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixWord {
    /// Offset of the prefix, or of its reference and digest, in words from the page's start.
    pub offset_words: u8,
    /// Size of the whole prefix in bytes.
    pub size_bytes: u16,
    /// Whether the page has a reference and a digest instead of the prefix.
    pub is_outside: bool,
}

impl PrefixWord {
    /// Decodes a prefix word; `None` if undefined bits are set.
    #[inline]
    pub const fn from_word(word: u64) -> Option<Self> {
        if word >> (FLAGS_SHIFT + 1) != 0 {
            return None;
        }
        Some(Self {
            offset_words: word as u8,
            size_bytes: bits(word, OFFSET_BITS, KEY_SIZE_BITS) as u16,
            is_outside: bits(word, FLAGS_SHIFT, 1) != 0,
        })
    }

    /// Encodes the prefix word.
    ///
    /// # Panics
    ///
    /// If the size needs more than 13 bits.
    pub const fn word(self) -> u64 {
        assert!(self.size_bytes < 1 << KEY_SIZE_BITS);
        self.offset_words as u64
            | (self.size_bytes as u64) << OFFSET_BITS
            | (self.is_outside as u64) << FLAGS_SHIFT
    }

    /// Returns the number of bytes in the page.
    #[inline]
    pub const fn inline_size_bytes(self) -> usize {
        if self.is_outside {
            OUTSIDE_PREFIX_SIZE_BYTES
        } else {
            self.size_bytes as usize
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::NodeId;
    use proptest::prelude::*;

    /// Every field of a slot word is where the documentation says.
    #[test]
    fn slot_words_are_golden() {
        let slot = SlotWord {
            offset_words: 0xAB,
            key_size_bytes: 0x1001,
            value_size_bytes: 0x402,
            key_is_outside: false,
            value_is_outside: true,
            fingerprint: Fingerprint(0x2000_0001),
        };
        let expected = 0xAB | 0x1001 << 8 | 0x402 << 21 | 1_u64 << 33 | 0x2000_0001_u64 << 34;
        assert_eq!(slot.word(), expected);
        assert_eq!(slot.word(), 0x8000_0006_8050_01AB);
        assert_eq!(slot.record_size_bytes(), 0x1403);
    }

    /// Every field of the words of fences and prefixes is where the documentation says.
    #[test]
    fn fence_and_prefix_words_are_golden() {
        let fence = FenceWord {
            offset_words: 0x3F,
            size_bytes: 0x30,
            adds_zero: true,
            is_outside: true,
            has_no_end: false,
        };
        assert_eq!(fence.word(), 0x0060_303F);
        assert_eq!(FenceWord::END.word(), 0x0080_0000);
        let prefix = PrefixWord {
            offset_words: 0x3C,
            size_bytes: 0x1000,
            is_outside: true,
        };
        assert_eq!(prefix.word(), 0x0030_003C);
        assert_eq!(prefix.inline_size_bytes(), 32);
    }

    /// Checks a reference's 16 bytes, and the fingerprint of the CRC catalogue's string.
    #[test]
    fn references_and_fingerprints_are_golden() {
        let pointer = RemoteAddr::new(NodeId(0x12), 0x34_5678_9ABC).with_spare(0xDEF0);
        let reference = Reference::of(pointer, b"123456789");
        assert_eq!(
            reference.to_bytes(),
            [
                0xBC, 0x9A, 0x78, 0x56, 0x34, 0xF0, 0xDE, 0x12, 9, 0, 0, 0, 0x83, 0x92, 0x06, 0xE3
            ]
        );
        assert!(reference.names(b"123456789"));
        assert!(!reference.names(b"12345678") && !reference.names(b"123456780"));
        assert_eq!(Fingerprint::of(b"123456789"), Fingerprint(0x2306_9283));
    }

    proptest! {
        /// Any word can be decoded, and encodes to the same word.
        #[test]
        fn words_come_back_as_they_were(word: u64, bytes: [u8; 16]) {
            prop_assert_eq!(SlotWord::from_word(word).word(), word);
            let fence = word & 0xFF_FFFF;
            prop_assert_eq!(FenceWord::from_word(fence).map(FenceWord::word), Some(fence));
            let prefix = word & 0x3F_FFFF;
            prop_assert_eq!(PrefixWord::from_word(prefix).map(PrefixWord::word), Some(prefix));
            prop_assert_eq!(FenceWord::from_word(word).is_some(), word >> 24 == 0);
            prop_assert_eq!(PrefixWord::from_word(word).is_some(), word >> 22 == 0);
            prop_assert_eq!(Reference::from_bytes(bytes).to_bytes(), bytes);
        }
    }
}
