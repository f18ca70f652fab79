//! Size classes: numbers of equal pieces in a chunk.

use farleaf_base::BLOCK_SIZE_WORDS;
use farleaf_pool::chunk::{CHUNK_LEAF_COUNT_MAX, ChunkPurpose};
use farleaf_pool::layout::CHUNK_SIZE_BLOCKS;

/// Number of size classes.
pub const CLASS_COUNT: u8 = 23;

/// Pieces of a chunk, by class, the smallest pieces first. Each class wastes less than a third of a
/// piece, large ones less than a quarter.
const PIECE_COUNTS: [u64; CLASS_COUNT as usize] = [
    341, 256, 204, 170, 128, 102, 85, 64, 51, 42, 32, 25, 21, 16, 12, 10, 8, 6, 5, 4, 3, 2, 1,
];

const _: () = assert!(PIECE_COUNTS[0] <= CHUNK_LEAF_COUNT_MAX);
const _: () = {
    let mut index = 1;
    while index < PIECE_COUNTS.len() {
        let (larger, smaller) = (PIECE_COUNTS[index], PIECE_COUNTS[index - 1]);
        assert!(CHUNK_SIZE_BLOCKS / larger > CHUNK_SIZE_BLOCKS / smaller);
        index += 1;
    }
    assert!(PIECE_COUNTS[PIECE_COUNTS.len() - 1] == 1);
};

/// Size of pieces. Fat pointers and chunk blocks contain its number, 1 to [`CLASS_COUNT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SizeClass(u8);

impl SizeClass {
    /// Returns the class with this number, if any.
    pub const fn from_number(number: u8) -> Option<Self> {
        if number == 0 || number > CLASS_COUNT {
            None
        } else {
            Some(Self(number))
        }
    }

    /// Returns the class's number.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Returns the purpose of chunks of this class.
    pub(crate) const fn purpose(self) -> ChunkPurpose {
        ChunkPurpose::Blocks {
            class: self.number(),
        }
    }

    /// Iterates over all classes, the smallest pieces first.
    pub fn all() -> impl Iterator<Item = Self> {
        (1..=CLASS_COUNT).map(Self)
    }

    /// Returns the number of pieces in a chunk.
    pub const fn piece_count(self) -> u64 {
        PIECE_COUNTS[self.0 as usize - 1]
    }

    /// Returns the distance between adjacent pieces in blocks, which is also the size of a piece.
    pub const fn stride_blocks(self) -> u64 {
        CHUNK_SIZE_BLOCKS / self.piece_count()
    }

    /// Returns the size of a piece in words.
    pub const fn size_words(self) -> u64 {
        self.stride_blocks() * BLOCK_SIZE_WORDS
    }

    /// Returns the smallest class whose pieces have at least this many words; `None` if a chunk has
    /// fewer.
    pub fn fitting(word_count: u64) -> Option<Self> {
        Self::all().find(|class| class.size_words() >= word_count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: pieces have these sizes in blocks of 64 bytes, and fit into a chunk.
    #[test]
    fn strides_are_golden() {
        let strides: Vec<u64> = SizeClass::all().map(SizeClass::stride_blocks).collect();
        assert_eq!(
            strides,
            [
                3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 85, 102, 128, 170, 204, 256,
                341, 512, 1024
            ]
        );
        for class in SizeClass::all() {
            assert!(class.piece_count() * class.stride_blocks() <= CHUNK_SIZE_BLOCKS);
            assert_eq!(SizeClass::from_number(class.number()), Some(class));
        }
        assert_eq!(SizeClass::from_number(0), None);
        assert_eq!(SizeClass::from_number(CLASS_COUNT + 1), None);
    }

    /// Promise: each size gets the smallest piece that it fits into.
    #[test]
    fn the_smallest_piece_that_fits_is_chosen() {
        for word_count in 0..=8192 {
            let class = SizeClass::fitting(word_count).expect("a chunk has as many");
            assert!(class.size_words() >= word_count);
            let smaller = SizeClass::from_number(class.number() - 1);
            assert!(smaller.is_none_or(|class| class.size_words() < word_count));
        }
        assert_eq!(SizeClass::fitting(8193), None);
    }
}
