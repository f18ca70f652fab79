//! Number of words of a leaf, and their places.

use farleaf_base::{BLOCK_SIZE_WORDS, RemoteAddr, WordAddr};
use farleaf_pool::layout::CHUNK_SIZE_BLOCKS;
use thiserror::Error;

/// Words before the keys: lock, state, low, high, link.
pub(crate) const HEADER_SIZE_WORDS: usize = 5;
/// Largest number of slots of a leaf.
pub const SLOT_COUNT_MAX: usize = 16;
/// Words of the largest image, which is a leaf without its lock.
pub const IMAGE_SIZE_WORDS_MAX: usize = HEADER_SIZE_WORDS - 1 + 2 * SLOT_COUNT_MAX;

pub(crate) const LOCK_WORD: u64 = 0;
pub(crate) const STATE_WORD: u64 = 1;
pub(crate) const HIGH_WORD: u64 = 3;
pub(crate) const LINK_WORD: u64 = 4;
const KEYS_WORD: u64 = HEADER_SIZE_WORDS as u64;

/// Shape of all leaves of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafGeometry {
    slots: u8,
}

/// Error: leaves cannot have this number of slots.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a leaf has 8, 12 or 16 slots, not {0}")]
pub struct GeometryError(pub u64);

impl LeafGeometry {
    /// Returns the geometry of leaves of 8, 12 or 16 slots.
    ///
    /// # Errors
    /// [`GeometryError`] for any other number.
    pub fn new(slots: u64) -> Result<Self, GeometryError> {
        match slots {
            8 | 12 | 16 => Ok(Self { slots: slots as u8 }),
            _ => Err(GeometryError(slots)),
        }
    }

    /// Returns the number of records that a leaf can hold.
    #[inline]
    pub const fn slot_count(self) -> usize {
        self.slots as usize
    }

    /// Returns the number of slots in the form that the catalog stores.
    pub const fn slots(self) -> u8 {
        self.slots
    }

    /// Returns the size of a leaf in words.
    #[inline]
    pub const fn leaf_size_words(self) -> usize {
        HEADER_SIZE_WORDS + 2 * self.slots as usize
    }

    /// Returns the size in words of an image, which is a leaf without its lock.
    #[inline]
    pub const fn image_size_words(self) -> usize {
        self.leaf_size_words() - 1
    }

    /// Returns the distance between adjacent leaves in blocks.
    #[inline]
    pub const fn stride_blocks(self) -> u64 {
        (self.leaf_size_words() as u64).div_ceil(BLOCK_SIZE_WORDS)
    }

    /// Returns the distance between adjacent leaves in words.
    #[inline]
    pub const fn stride_words(self) -> usize {
        (self.stride_blocks() * BLOCK_SIZE_WORDS) as usize
    }

    /// Returns the number of leaves for splits in one chunk.
    pub const fn chunk_leaf_count(self) -> u64 {
        CHUNK_SIZE_BLOCKS / self.stride_blocks()
    }

    /// Returns the address of a leaf's lock.
    #[inline]
    pub const fn lock(self, leaf: RemoteAddr) -> WordAddr {
        leaf.word_at(LOCK_WORD)
    }

    /// Returns the address of a leaf's state, where its image starts.
    #[inline]
    pub const fn state(self, leaf: RemoteAddr) -> WordAddr {
        leaf.word_at(STATE_WORD)
    }

    /// Returns the address of a leaf's upper fence.
    #[inline]
    pub const fn high(self, leaf: RemoteAddr) -> WordAddr {
        leaf.word_at(HIGH_WORD)
    }

    /// Returns the address of a leaf's link.
    #[inline]
    pub const fn link(self, leaf: RemoteAddr) -> WordAddr {
        leaf.word_at(LINK_WORD)
    }

    /// Returns the address of the key in a slot.
    #[inline]
    pub const fn key(self, leaf: RemoteAddr, slot: usize) -> WordAddr {
        leaf.word_at(KEYS_WORD + slot as u64)
    }

    /// Returns the address of the value in a slot.
    #[inline]
    pub const fn value(self, leaf: RemoteAddr, slot: usize) -> WordAddr {
        leaf.word_at(KEYS_WORD + self.slots as u64 + slot as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_pool::chunk::CHUNK_LEAF_COUNT_MAX;

    #[test]
    fn sizes_are_those_of_the_documentation() {
        let sizes = [8, 12, 16].map(|slots| {
            let geometry = LeafGeometry::new(slots).expect("allowed");
            assert!(geometry.chunk_leaf_count() <= CHUNK_LEAF_COUNT_MAX);
            (
                geometry.leaf_size_words() * 8,
                geometry.image_size_words() * 8,
                geometry.stride_words() * 8,
            )
        });
        assert_eq!(sizes, [(168, 160, 192), (232, 224, 256), (296, 288, 320)]);
    }

    #[test]
    fn other_slots_are_refused() {
        for slots in [0, 1, 7, 9, 17, u64::MAX] {
            assert_eq!(LeafGeometry::new(slots), Err(GeometryError(slots)));
        }
    }
}
