//! First words of a value block, and its locator.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | *holder*: 0 = never used, 1 = settled, else an owner word |
//! | 1 | bytes of string (32) and locator (16), role (5), is a list (1), generation (10) |
//! | 2 | CRC-32C (32) over place, word 1, table, list and locator; table (32) |
//! | 3.. | the string, or the list's words |
//! | .. | the locator, unless it is the string itself (its size is all ones then) |
//!
//! Fields are listed from the lowest bit on. The checksum excludes the string, whose checksum is in
//! the reference. So the sweep, which checks only which page refers to the block, need not read
//! strings of 64 MiB.

use farleaf_base::{RemoteAddr, TableId, crc32c};

use crate::blobs::pointer::Generation;
use crate::blobs::words::{extend_bytes, extend_words, word_count};

/// Index of the holder's word.
pub const HOLDER_WORD: u64 = 0;
/// Index of word 1: sizes, role, generation.
pub const SHAPE_WORD: u64 = 1;
/// Index of the first word of the string or list.
pub const BODY_WORD: u64 = 3;
/// [`BODY_WORD`] as a number of words.
pub(crate) const HEADER_SIZE_WORDS: usize = BODY_WORD as usize;

/// Size of the longest string in bytes.
pub const STRING_SIZE_BYTES_MAX: usize = 64 << 20;
/// Size of the longest locator in bytes: a key of 4,096, and the zero byte that a fence may add.
pub const LOCATOR_SIZE_BYTES_MAX: usize = 4097;
/// Size value of a locator that is the string itself.
const SAME_AS_STRING: u16 = u16::MAX;
const LIST_BIT: u64 = 1 << 53;

const _: () = assert!(LOCATOR_SIZE_BYTES_MAX < SAME_AS_STRING as usize);
const _: () = assert!(STRING_SIZE_BYTES_MAX <= u32::MAX as usize);

/// Holder word of a block that a page refers to and whose last holder is fenced: no session holds
/// it.
pub const SETTLED: u64 = 1;

/// Role of a string in the page that refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// Value of a record.
    Value = 1,
    /// Whole key of a record.
    Key = 2,
    /// Lower fence of the page.
    Low = 3,
    /// Upper fence of the page.
    High = 4,
    /// Prefix of the page.
    Prefix = 5,
    /// Part of the string of a list; the locator is the list's fat pointer.
    Part = 6,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 6] = [
        Self::Value,
        Self::Key,
        Self::Low,
        Self::High,
        Self::Prefix,
        Self::Part,
    ];

    fn from_number(number: u64) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|role| *role as u64 == number)
    }
}

/// Contents of word 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Size in bytes of the string, which may consist of several extents.
    pub(crate) string_size_bytes: usize,
    /// Size of the locator in bytes; `None` if it is the string.
    pub(crate) locator_size_bytes: Option<usize>,
    /// Role of the string.
    pub(crate) role: Role,
    /// Whether the body is a list.
    pub(crate) is_list: bool,
    /// Generation of the block at its place.
    pub(crate) generation: Generation,
}

impl Shape {
    /// Encodes word 1. The sizes must be within their limits.
    pub(crate) fn word(&self) -> u64 {
        let locator = match self.locator_size_bytes {
            Some(size) => size as u64,
            None => SAME_AS_STRING.into(),
        };
        let list = if self.is_list { LIST_BIT } else { 0 };
        let generation = u64::from(self.generation.number());
        self.string_size_bytes as u64
            | locator << 32
            | (self.role as u64) << 48
            | list
            | generation << 54
    }

    /// Decodes word 1; `None` if no block can have it.
    pub(crate) fn decode(word: u64) -> Option<Self> {
        let string_size_bytes = (word & 0xFFFF_FFFF) as usize;
        let locator_size = (word >> 32) as u16;
        let is_list = word & LIST_BIT != 0;
        let is_same = locator_size == SAME_AS_STRING;
        let size = if is_same {
            string_size_bytes
        } else {
            usize::from(locator_size)
        };
        let is_possible = string_size_bytes <= STRING_SIZE_BYTES_MAX
            && size <= LOCATOR_SIZE_BYTES_MAX
            && !(is_same && is_list);
        let role = Role::from_number(word >> 48 & 0x1F)?;
        is_possible.then_some(Self {
            string_size_bytes,
            locator_size_bytes: (!is_same).then_some(size),
            role,
            is_list,
            generation: generation_of(word),
        })
    }

    /// Returns the locator's first word and its size in bytes, for a body of this number of words.
    pub(crate) fn locator_place(&self, body_word_count: usize) -> (u64, usize) {
        match self.locator_size_bytes {
            Some(size) => (BODY_WORD + body_word_count as u64, size),
            None => (BODY_WORD, self.string_size_bytes),
        }
    }
}

/// Returns a word 1 that no block has, but that keeps the generation.
pub(crate) const fn no_shape_word(generation: Generation) -> u64 {
    (generation.number() as u64) << 54
}

/// Returns the generation in any word 1, including invalid ones.
pub(crate) const fn generation_of(shape_word: u64) -> Generation {
    Generation::new((shape_word >> 54) as u16)
}

/// Computes word 2 of the block at a place. `list` has the body's words, if the block is a list.
pub(crate) fn check_word(
    place: RemoteAddr,
    table: TableId,
    shape_word: u64,
    list: &[u64],
    locator: &[u8],
) -> u64 {
    let mut words = Vec::with_capacity(3 + list.len() + word_count(locator.len()));
    words.extend([place.place().word(), shape_word, table.0.into()]);
    words.extend(list);
    extend_words(&mut words, locator);
    u64::from(crc32c(&words)) | u64::from(table.0) << 32
}

/// Returns the locator, if the block's words match their checksum.
pub(crate) fn checked_locator(
    place: RemoteAddr,
    table: TableId,
    [shape_word, check]: [u64; 2],
    list: &[u64],
    locator_words: &[u64],
) -> Option<Vec<u8>> {
    let shape = Shape::decode(shape_word)?;
    let size = shape.locator_place(0).1;
    if locator_words.len() != word_count(size) {
        return None;
    }
    let mut locator = Vec::with_capacity(size + 7);
    extend_bytes(&mut locator, locator_words, size);
    (check == check_word(place, table, shape_word, list, &locator)).then_some(locator)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::NodeId;
    use proptest::prelude::*;

    /// Promise: the bits are these.
    #[test]
    fn words_are_golden() {
        let shape = Shape {
            string_size_bytes: 0x0123_4567,
            locator_size_bytes: Some(0x0ABC),
            role: Role::Prefix,
            is_list: true,
            generation: Generation::new(0x3FF),
        };
        assert_eq!(shape.word(), 0xFFE5_0ABC_0123_4567);
        let same = Shape {
            string_size_bytes: 5,
            locator_size_bytes: None,
            role: Role::Key,
            is_list: false,
            generation: Generation::new(2),
        };
        assert_eq!(same.word(), 0x0082_FFFF_0000_0005);
        let place = RemoteAddr::new(NodeId(1), 2);
        let check = check_word(place, TableId(0xAB), same.word(), &[], b"apple");
        let summed = [place.word(), same.word(), 0xAB, 0x65_6C70_7061];
        assert_eq!(check, 0xAB_0000_0000 | u64::from(crc32c(&summed)));
        let none = no_shape_word(Generation::new(0x3FF));
        assert_eq!((none, Shape::decode(none)), (0xFFC0_0000_0000_0000, None));
        assert_eq!(generation_of(none), Generation::new(0x3FF));
        let roles = Role::ALL.map(|role| role as u8);
        assert_eq!(roles, [1, 2, 3, 4, 5, 6]);
    }

    /// Promise: another place, table, generation, list or locator is detected.
    #[test]
    fn what_is_not_the_block_is_noticed() {
        let place = RemoteAddr::new(NodeId(1), 2);
        let shape = Shape {
            string_size_bytes: 99,
            locator_size_bytes: Some(3),
            role: Role::Value,
            is_list: true,
            generation: Generation::new(2),
        };
        let check = check_word(place, TableId(1), shape.word(), &[4], b"key");
        let key = [u64::from_le_bytes(*b"key\0\0\0\0\0")];
        let read = |place, table, shape: Shape, list: &[u64], locator: &[u64]| {
            checked_locator(place, TableId(table), [shape.word(), check], list, locator)
        };
        assert_eq!(read(place, 1, shape, &[4], &key), Some(b"key".to_vec()));
        let generation = shape.generation.next();
        let next = Shape {
            generation,
            ..shape
        };
        assert_eq!(read(place.offset_blocks(1), 1, shape, &[4], &key), None);
        assert_eq!(read(place, 2, shape, &[4], &key), None);
        assert_eq!(read(place, 1, next, &[4], &key), None);
        assert_eq!(read(place, 1, shape, &[5], &key), None);
        assert_eq!(read(place, 1, shape, &[4], &[7]), None);
        assert_eq!(read(place, 1, shape, &[4], &[]), None);
    }

    proptest! {
        /// Promise: any words decode to a block or to nothing; a decoded block encodes to the same
        /// word, and all sizes are within their limits.
        #[test]
        fn any_words_are_read(
            word: u64,
            flips in 0_u64..1 << 16,
            check: u64,
            list in proptest::collection::vec(any::<u64>(), 0..4),
            locator in proptest::collection::vec(any::<u64>(), 0..4),
        ) {
            let honest = Shape {
                string_size_bytes: 17,
                locator_size_bytes: None,
                role: Role::Key,
                is_list: false,
                generation: Generation::new(9),
            };
            let near = honest.word() ^ flips << 40 ^ (flips & 0xFF);
            for word in [word, near] {
                let words = [word, check];
                let _ = checked_locator(RemoteAddr::NULL, TableId(1), words, &list, &locator);
                let Some(shape) = Shape::decode(word) else { continue };
                prop_assert_eq!(shape.word(), word);
                prop_assert!(shape.string_size_bytes <= STRING_SIZE_BYTES_MAX);
                prop_assert!(shape.locator_place(0).1 <= LOCATOR_SIZE_BYTES_MAX);
            }
        }
    }
}
