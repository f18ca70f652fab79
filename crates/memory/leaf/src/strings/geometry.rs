//! Number of words of a page, their places, and size limits of its strings.

use farleaf_base::{BLOCK_SIZE_WORDS, RemoteAddr, WORD_SIZE_BYTES, WordAddr};
use thiserror::Error;

/// Words before the slots: lock, state, low, high, link, bitmap, prefix.
pub const HEADER_SIZE_WORDS: usize = 7;
/// Largest number of slots of a page of any size.
pub const SLOT_COUNT_MAX: usize = 64;
/// Words of the largest page.
pub const PAGE_SIZE_WORDS_MAX: usize = 256;
/// Words of the largest image, which is a page without its lock.
pub const IMAGE_SIZE_WORDS_MAX: usize = PAGE_SIZE_WORDS_MAX - 1;
/// Inline bytes of the suffix of an outside key or fence.
pub const KEY_HEAD_SIZE_BYTES: usize = 32;
/// Size of the longest inline prefix in bytes.
pub const PREFIX_INLINE_SIZE_BYTES_MAX: usize = 32;

/// Words of the longest inline prefix, and of an outside one.
const PREFIX_SIZE_WORDS_MAX: usize = PREFIX_INLINE_SIZE_BYTES_MAX / WORD_SIZE_BYTES as usize;
/// Divisor of the page size: suffixes of up to this share of the page are inline.
const SUFFIX_SHARE: usize = 8;

const LOCK_WORD: u64 = 0;
const STATE_WORD: u64 = 1;
const LOW_WORD: u64 = 2;
pub(crate) const HIGH_WORD: u64 = 3;
const LINK_WORD: u64 = 4;
pub(crate) const BITMAP_WORD: u64 = 5;
const PREFIX_WORD: u64 = 6;
const _: () = assert!(PREFIX_WORD as usize + 1 == HEADER_SIZE_WORDS);

/// Shape of all pages of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageGeometry {
    size_words: u16,
}

/// Error: pages cannot have this size.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a page has 512, 1024 or 2048 bytes, not {0}")]
pub struct GeometryError(pub u64);

impl PageGeometry {
    /// Returns the geometry of pages of 512, 1,024 or 2,048 bytes.
    ///
    /// # Errors
    /// [`GeometryError`] for any other size.
    pub fn new(size_bytes: u64) -> Result<Self, GeometryError> {
        match size_bytes {
            512 | 1024 | 2048 => Ok(Self {
                size_words: (size_bytes / WORD_SIZE_BYTES) as u16,
            }),
            _ => Err(GeometryError(size_bytes)),
        }
    }

    /// Returns the size of a page in words.
    #[inline]
    pub const fn page_size_words(self) -> usize {
        self.size_words as usize
    }

    /// Returns the size of a page in bytes.
    #[inline]
    pub const fn page_size_bytes(self) -> usize {
        self.size_words as usize * WORD_SIZE_BYTES as usize
    }

    /// Returns the size in words of an image, which is a page without its lock.
    #[inline]
    pub const fn image_size_words(self) -> usize {
        self.page_size_words() - 1
    }

    /// Returns the distance between adjacent pages in blocks.
    #[inline]
    pub const fn stride_blocks(self) -> u64 {
        self.size_words as u64 / BLOCK_SIZE_WORDS
    }

    /// Returns the largest number of records in a page: 64, or as many as there are words for
    /// slots.
    #[inline]
    pub const fn slot_count_max(self) -> usize {
        let body_size_words = self.page_size_words() - HEADER_SIZE_WORDS;
        if body_size_words < SLOT_COUNT_MAX {
            body_size_words
        } else {
            SLOT_COUNT_MAX
        }
    }

    /// Returns the size in bytes of the longest inline suffix of a key or fence: an eighth of the
    /// page.
    #[inline]
    pub const fn suffix_size_bytes_max(self) -> usize {
        self.page_size_bytes() / SUFFIX_SHARE
    }

    /// Returns the size in bytes of the longest value that fits into a page by itself, for any
    /// prefix, fences and key.
    pub const fn value_size_bytes_max(self) -> usize {
        let suffix_size_words = self.suffix_size_bytes_max() / WORD_SIZE_BYTES as usize;
        let taken = HEADER_SIZE_WORDS + 1 + PREFIX_SIZE_WORDS_MAX + 3 * suffix_size_words;
        (self.page_size_words() - taken) * WORD_SIZE_BYTES as usize
    }

    /// Returns whether a suffix of this size is inline; otherwise it is outside.
    #[inline]
    pub const fn is_suffix_inline(self, suffix_size_bytes: usize) -> bool {
        suffix_size_bytes <= self.suffix_size_bytes_max()
    }

    /// Returns whether a value of this size is inline in a table with this inline value size;
    /// otherwise it is outside.
    #[inline]
    pub const fn is_value_inline(
        self,
        value_size_bytes: usize,
        inline_value_size_bytes: usize,
    ) -> bool {
        value_size_bytes <= inline_value_size_bytes
            && value_size_bytes <= self.value_size_bytes_max()
    }

    /// Returns the address of the word at this offset in a page.
    #[inline]
    pub const fn word(self, page: RemoteAddr, offset_words: usize) -> WordAddr {
        page.word_at(offset_words as u64)
    }

    /// Returns the address of a page's lock.
    #[inline]
    pub const fn lock(self, page: RemoteAddr) -> WordAddr {
        page.word_at(LOCK_WORD)
    }

    /// Returns the address of a page's state, where its image starts.
    #[inline]
    pub const fn state(self, page: RemoteAddr) -> WordAddr {
        page.word_at(STATE_WORD)
    }

    /// Returns the address of a page's lower fence.
    #[inline]
    pub const fn low(self, page: RemoteAddr) -> WordAddr {
        page.word_at(LOW_WORD)
    }

    /// Returns the address of a page's upper fence.
    #[inline]
    pub const fn high(self, page: RemoteAddr) -> WordAddr {
        page.word_at(HIGH_WORD)
    }

    /// Returns the address of a page's link.
    #[inline]
    pub const fn link(self, page: RemoteAddr) -> WordAddr {
        page.word_at(LINK_WORD)
    }

    /// Returns the address of a page's bitmap.
    #[inline]
    pub const fn bitmap(self, page: RemoteAddr) -> WordAddr {
        page.word_at(BITMAP_WORD)
    }

    /// Returns the address of a page's prefix.
    #[inline]
    pub const fn prefix(self, page: RemoteAddr) -> WordAddr {
        page.word_at(PREFIX_WORD)
    }

    /// Returns the address of a slot's word.
    #[inline]
    pub const fn slot(self, page: RemoteAddr, slot: usize) -> WordAddr {
        page.word_at((HEADER_SIZE_WORDS + slot) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::NodeId;

    /// Checks sizes in bytes, slots, and longest inline suffix and value of all three geometries.
    #[test]
    fn sizes_are_those_of_the_documentation() {
        let sizes = [512, 1024, 2048].map(|size_bytes| {
            let geometry = PageGeometry::new(size_bytes).expect("allowed");
            assert_eq!(geometry.page_size_bytes() as u64, size_bytes);
            assert_eq!(geometry.stride_blocks() * 64, size_bytes);
            assert_eq!(geometry.image_size_words() + 1, geometry.page_size_words());
            (
                geometry.slot_count_max(),
                geometry.suffix_size_bytes_max(),
                geometry.value_size_bytes_max(),
            )
        });
        assert_eq!(sizes, [(57, 64, 224), (64, 128, 544), (64, 256, 1184)]);
    }

    /// Other sizes are rejected.
    #[test]
    fn other_sizes_are_refused() {
        for size_bytes in [0, 8, 256, 511, 1536, 4096, u64::MAX] {
            assert_eq!(
                PageGeometry::new(size_bytes),
                Err(GeometryError(size_bytes))
            );
        }
    }

    /// Checks the documentation's table word by word.
    #[test]
    fn words_are_where_the_documentation_says() {
        let geometry = PageGeometry::new(512).expect("allowed");
        let page = RemoteAddr::new(NodeId(2), 8);
        let header = [
            geometry.lock(page),
            geometry.state(page),
            geometry.low(page),
            geometry.high(page),
            geometry.link(page),
            geometry.bitmap(page),
            geometry.prefix(page),
            geometry.slot(page, 0),
        ];
        for (offset_words, addr) in header.into_iter().enumerate() {
            assert_eq!(addr, geometry.word(page, offset_words));
            assert_eq!(addr.index(), 64 + offset_words as u64);
        }
        assert_eq!(geometry.slot(page, 9), page.word_at(16));
    }

    /// The smaller of the table's and the page's limit applies.
    #[test]
    fn values_are_inline_up_to_both_limits() {
        let geometry = PageGeometry::new(512).expect("allowed");
        assert!(geometry.is_value_inline(224, 1000) && !geometry.is_value_inline(225, 1000));
        assert!(geometry.is_value_inline(16, 16) && !geometry.is_value_inline(17, 16));
        assert!(geometry.is_suffix_inline(64) && !geometry.is_suffix_inline(65));
    }
}
