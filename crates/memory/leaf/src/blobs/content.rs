//! Contents of a value block, and the space that they need.

use farleaf_base::{TableId, WordAddr};
use thiserror::Error;

use crate::blobs::class::SizeClass;
use crate::blobs::header::{
    HEADER_SIZE_WORDS, LOCATOR_SIZE_BYTES_MAX, Role, SHAPE_WORD, STRING_SIZE_BYTES_MAX, Shape,
    check_word,
};
use crate::blobs::list::CHUNK_SIZE_WORDS;
use crate::blobs::pointer::{FatPointer, Generation};
use crate::blobs::words::{extend_words, word_count};

/// String of a value block, and its locator, by which the page that refers to it is found.
#[derive(Clone, Copy, Debug)]
pub struct Content<'a> {
    role: Role,
    locator: &'a [u8],
    string: &'a [u8],
}

/// Reason why a string cannot be written.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ContentError {
    /// The string is too long.
    #[error(
        "a string of {size_bytes} bytes is too long for a value block, which holds at most \
         {STRING_SIZE_BYTES_MAX} bytes; split it into several records"
    )]
    StringTooLong {
        /// Size of the string in bytes.
        size_bytes: usize,
    },
    /// The locator is too long.
    #[error(
        "a key of {size_bytes} bytes is too long; a value block names its page by a key of at most \
         {LOCATOR_SIZE_BYTES_MAX} bytes"
    )]
    LocatorTooLong {
        /// Size of the locator in bytes.
        size_bytes: usize,
    },
}

/// Space that a block needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceNeed {
    /// A piece of this size.
    Piece(SizeClass),
    /// This number of adjacent chunks.
    Chunks(u64),
}

impl<'a> Content<'a> {
    /// Creates contents. `locator` is a key covered by the page that refers to the string: the
    /// record's whole key; for a fence or a prefix, the smallest key that the page covers.
    ///
    /// # Errors
    /// The string or the locator is too long.
    pub fn new(role: Role, locator: &'a [u8], string: &'a [u8]) -> Result<Self, ContentError> {
        if string.len() > STRING_SIZE_BYTES_MAX {
            let size_bytes = string.len();
            return Err(ContentError::StringTooLong { size_bytes });
        }
        if locator.len() > LOCATOR_SIZE_BYTES_MAX {
            let size_bytes = locator.len();
            return Err(ContentError::LocatorTooLong { size_bytes });
        }
        Ok(Self {
            role,
            locator,
            string,
        })
    }

    /// Returns the string.
    pub const fn string(&self) -> &'a [u8] {
        self.string
    }

    pub(crate) const fn locator(&self) -> &'a [u8] {
        self.locator
    }

    fn is_locator_the_string(&self) -> bool {
        // Holders of lists look for a part by its locator.
        self.locator == self.string && self.role != Role::Part
    }

    /// Returns the size in words of a block that contains the string itself.
    pub fn block_word_count(&self) -> u64 {
        let locator_word_count = if self.is_locator_the_string() {
            0
        } else {
            word_count(self.locator.len())
        };
        (HEADER_SIZE_WORDS + word_count(self.string.len()) + locator_word_count) as u64
    }

    /// Returns the space that the block needs.
    pub fn space_need(&self) -> SpaceNeed {
        let words = self.block_word_count();
        match SizeClass::fitting(words) {
            Some(class) => SpaceNeed::Piece(class),
            None => SpaceNeed::Chunks(words.div_ceil(CHUNK_SIZE_WORDS)),
        }
    }

    /// Returns word 1 of the block.
    pub(crate) fn shape(&self, is_list: bool, generation: Generation) -> Shape {
        // A list contains no string that could be the locator.
        let is_same = self.is_locator_the_string() && !is_list;
        Shape {
            string_size_bytes: self.string.len(),
            locator_size_bytes: (!is_same).then_some(self.locator.len()),
            role: self.role,
            is_list,
            generation,
        }
    }

    /// Returns the words of a block from word 1 on, and the index of the first: the holder is
    /// already written. `list` is the body of a list, if the block is one.
    pub(crate) fn encode(
        &self,
        pointer: FatPointer,
        table: TableId,
        list: Option<&[u64]>,
    ) -> (WordAddr, Vec<u64>) {
        let mut words = self.header(pointer, table, list).to_vec();
        match list {
            Some(list) => words.extend(list),
            None => extend_words(&mut words, self.string),
        }
        if list.is_some() || !self.is_locator_the_string() {
            extend_words(&mut words, self.locator);
        }
        (pointer.place().word_at(SHAPE_WORD), words)
    }

    /// Returns words 1 and 2.
    pub(crate) fn header(
        &self,
        pointer: FatPointer,
        table: TableId,
        list: Option<&[u64]>,
    ) -> [u64; 2] {
        let shape = self.shape(list.is_some(), pointer.generation()).word();
        let list = list.unwrap_or_default();
        let check = check_word(pointer.place(), table, shape, list, self.locator);
        [shape, check]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blobs::pointer::Form;
    use farleaf_base::{NodeId, RemoteAddr};

    /// Promise: the words of blocks are these.
    #[test]
    fn blocks_are_golden() {
        let place = RemoteAddr::new(NodeId(0), 0x800);
        let class = SizeClass::from_number(1).expect("a class");
        let pointer = FatPointer::new(place, Form::Piece(class), Generation::new(3));
        let table = TableId(7);
        let value = Content::new(Role::Value, b"key", b"123456789").expect("short");
        let (at, words) = value.encode(pointer, table, None);
        assert_eq!((at, words.len()), (place.word_at(1), 5));
        let (string, key) = ([0x3837_3635_3433_3231, 0x39], 0x79_656B);
        assert_eq!(
            (words[0], &words[2..4], words[4]),
            (0x00C1_0003_0000_0009, &string[..], key)
        );
        assert_eq!(words[1] >> 32, 7);
        let own_key = Content::new(Role::Key, b"key", b"key").expect("short");
        let (_, words) = own_key.encode(pointer, table, None);
        assert_eq!(
            (words[0], &words[2..]),
            (0x00C2_FFFF_0000_0003, &[key][..]),
            "once"
        );
        let (_, words) = own_key.encode(pointer, table, Some(&[1, 2]));
        assert_eq!(
            (words[0], &words[2..]),
            (0x00E2_0003_0000_0003, &[1, 2, key][..])
        );
    }

    /// Promise: the space includes header, string and locator; strings that are too long are
    /// rejected.
    #[test]
    fn space_is_computed_and_limits_are_checked() {
        let space_need = |locator: usize, string: usize| {
            let (locator, string) = (vec![1; locator], vec![2; string]);
            Content::new(Role::Value, &locator, &string).map(|content| content.space_need())
        };
        let class = |number| {
            Ok(SpaceNeed::Piece(
                SizeClass::from_number(number).expect("a class"),
            ))
        };
        assert_eq!(space_need(0, 0), class(1));
        assert_eq!(space_need(8, 160), class(1));
        assert_eq!(space_need(8, 161), class(2));
        assert_eq!(space_need(8, 65536 - 32), class(23));
        assert_eq!(space_need(8, 65536 - 31), Ok(SpaceNeed::Chunks(2)));
        assert_eq!(space_need(4097, 64 << 20), Ok(SpaceNeed::Chunks(1025)));
        let long = space_need(0, (64 << 20) + 1);
        assert!(matches!(long, Err(ContentError::StringTooLong { .. })));
        let long = space_need(4098, 0);
        assert!(matches!(
            long,
            Err(ContentError::LocatorTooLong { size_bytes: 4098 })
        ));
    }
}
