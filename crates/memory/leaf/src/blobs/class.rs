//! Into how many equal pieces a chunk is cut.

use farleaf_region::chunk::CHUNK_LEAF_COUNT_MAX;
use farleaf_region::layout::CHUNK_SIZE_BLOCKS;
use farleaf_types::BLOCK_SIZE_WORDS;

/// How many size classes there are.
pub const CLASS_COUNT: u8 = 23;

/// Pieces of a chunk, by class, from the smallest pieces on. Each class wastes less than a third
/// of a piece, large ones less than a quarter.
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

/// A size of pieces. Its number, 1 to [`CLASS_COUNT`], stands in fat pointers and chunk blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SizeClass(u8);

impl SizeClass {
    /// The class with this number, if there is one.
    pub const fn from_number(number: u8) -> Option<Self> {
        if number == 0 || number > CLASS_COUNT {
            None
        } else {
            Some(Self(number))
        }
    }

    /// Its number.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// All of them, from the smallest pieces on.
    pub fn all() -> impl Iterator<Item = Self> {
        (1..=CLASS_COUNT).map(Self)
    }

    /// Pieces of a chunk.
    pub const fn piece_count(self) -> u64 {
        PIECE_COUNTS[self.0 as usize - 1]
    }

    /// Blocks from one piece to the next, which are all that a piece has.
    pub const fn stride_blocks(self) -> u64 {
        CHUNK_SIZE_BLOCKS / self.piece_count()
    }

    /// Words of a piece.
    pub const fn size_words(self) -> u64 {
        self.stride_blocks() * BLOCK_SIZE_WORDS
    }

    /// The smallest class whose pieces have so many words; `None`: not even a chunk has.
    pub fn fitting(word_count: u64) -> Option<Self> {
        Self::all().find(|class| class.size_words() >= word_count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the sizes of pieces are these, in blocks of 64 bytes, and no chunk is overfull.
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
