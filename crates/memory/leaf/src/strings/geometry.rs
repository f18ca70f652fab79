//! How many words a page has, where they are, and how long the strings in it may be.

use farleaf_types::{BLOCK_SIZE_WORDS, RemoteAddr, WORD_SIZE_BYTES, WordAddr};
use thiserror::Error;

/// Words before the slots: lock, state, low, high, link, bitmap, prefix.
pub const HEADER_SIZE_WORDS: usize = 7;
/// Most slots that a page can have, of any size.
pub const SLOT_COUNT_MAX: usize = 64;
/// Words of the largest page.
pub const PAGE_SIZE_WORDS_MAX: usize = 256;
/// Words of the largest image, which is a page without its lock.
pub const IMAGE_SIZE_WORDS_MAX: usize = PAGE_SIZE_WORDS_MAX - 1;
/// Longest key, in bytes.
pub const KEY_SIZE_BYTES_MAX: usize = 4096;
/// Longest value, in bytes.
pub const VALUE_SIZE_BYTES_MAX: usize = 64 << 20;
/// How many bytes of its suffix a key or fence that is outside has in the page.
pub const KEY_HEAD_SIZE_BYTES: usize = 32;
/// Longest prefix that lies in the page, in bytes.
pub const PREFIX_INLINE_SIZE_BYTES_MAX: usize = 32;

/// What the longest prefix takes, and one that is outside.
const PREFIX_SIZE_WORDS_MAX: usize = PREFIX_INLINE_SIZE_BYTES_MAX / WORD_SIZE_BYTES as usize;
/// A suffix of up to this share of the page is inline.
const SUFFIX_SHARE: usize = 8;

const LOCK_WORD: u64 = 0;
const STATE_WORD: u64 = 1;
const LOW_WORD: u64 = 2;
pub(crate) const HIGH_WORD: u64 = 3;
const LINK_WORD: u64 = 4;
pub(crate) const BITMAP_WORD: u64 = 5;
const PREFIX_WORD: u64 = 6;
const _: () = assert!(PREFIX_WORD as usize + 1 == HEADER_SIZE_WORDS);

/// The shape of all pages of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageGeometry {
    size_words: u16,
}

/// A size that pages cannot have.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a page has 512, 1024 or 2048 bytes, not {0}")]
pub struct GeometryError(pub u64);

impl PageGeometry {
    /// Pages of 512, 1,024 or 2,048 bytes.
    ///
    /// # Errors
    /// Any other size.
    pub fn new(size_bytes: u64) -> Result<Self, GeometryError> {
        match size_bytes {
            512 | 1024 | 2048 => Ok(Self {
                size_words: (size_bytes / WORD_SIZE_BYTES) as u16,
            }),
            _ => Err(GeometryError(size_bytes)),
        }
    }

    /// Words of a page.
    #[inline]
    pub const fn page_size_words(self) -> usize {
        self.size_words as usize
    }

    /// Bytes of a page.
    #[inline]
    pub const fn page_size_bytes(self) -> usize {
        self.size_words as usize * WORD_SIZE_BYTES as usize
    }

    /// Words of an image: a page without its lock.
    #[inline]
    pub const fn image_size_words(self) -> usize {
        self.page_size_words() - 1
    }

    /// Blocks from a page to the one beside it.
    #[inline]
    pub const fn stride_blocks(self) -> u64 {
        self.size_words as u64 / BLOCK_SIZE_WORDS
    }

    /// Most records that a page can list: 64, or as many as there are words for slots.
    #[inline]
    pub const fn slot_count_max(self) -> usize {
        let room = self.page_size_words() - HEADER_SIZE_WORDS;
        if room < SLOT_COUNT_MAX {
            room
        } else {
            SLOT_COUNT_MAX
        }
    }

    /// The longest suffix of a key or fence that lies in the page: an eighth of it.
    #[inline]
    pub const fn suffix_size_bytes_max(self) -> usize {
        self.page_size_bytes() / SUFFIX_SHARE
    }

    /// The longest value that has room in a page by itself, whatever the page's prefix and fences
    /// and the record's key are.
    pub const fn value_size_bytes_max(self) -> usize {
        let suffix_size_words = self.suffix_size_bytes_max() / WORD_SIZE_BYTES as usize;
        let taken = HEADER_SIZE_WORDS + 1 + PREFIX_SIZE_WORDS_MAX + 3 * suffix_size_words;
        (self.page_size_words() - taken) * WORD_SIZE_BYTES as usize
    }

    /// Whether a key or fence with a suffix of so many bytes lies in the page; else it is outside.
    #[inline]
    pub const fn is_suffix_inline(self, suffix_size_bytes: usize) -> bool {
        suffix_size_bytes <= self.suffix_size_bytes_max()
    }

    /// Whether a value of so many bytes lies in the page, in a table with this inline value size;
    /// else it is outside.
    #[inline]
    pub const fn is_value_inline(
        self,
        value_size_bytes: usize,
        inline_value_size_bytes: usize,
    ) -> bool {
        value_size_bytes <= inline_value_size_bytes
            && value_size_bytes <= self.value_size_bytes_max()
    }

    /// Word number `offset_words` of a page.
    #[inline]
    pub const fn word(self, page: RemoteAddr, offset_words: usize) -> WordAddr {
        page.word_at(offset_words as u64)
    }

    /// The lock of a page.
    #[inline]
    pub const fn lock(self, page: RemoteAddr) -> WordAddr {
        page.word_at(LOCK_WORD)
    }

    /// The state of a page, where its image starts.
    #[inline]
    pub const fn state(self, page: RemoteAddr) -> WordAddr {
        page.word_at(STATE_WORD)
    }

    /// The lower fence of a page.
    #[inline]
    pub const fn low(self, page: RemoteAddr) -> WordAddr {
        page.word_at(LOW_WORD)
    }

    /// The upper fence of a page.
    #[inline]
    pub const fn high(self, page: RemoteAddr) -> WordAddr {
        page.word_at(HIGH_WORD)
    }

    /// The link of a page.
    #[inline]
    pub const fn link(self, page: RemoteAddr) -> WordAddr {
        page.word_at(LINK_WORD)
    }

    /// The bitmap of a page.
    #[inline]
    pub const fn bitmap(self, page: RemoteAddr) -> WordAddr {
        page.word_at(BITMAP_WORD)
    }

    /// The prefix of a page.
    #[inline]
    pub const fn prefix(self, page: RemoteAddr) -> WordAddr {
        page.word_at(PREFIX_WORD)
    }

    /// The word of a slot.
    #[inline]
    pub const fn slot(self, page: RemoteAddr, slot: usize) -> WordAddr {
        page.word_at((HEADER_SIZE_WORDS + slot) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_types::NodeId;

    /// Sizes in bytes, most slots, longest inline suffix and value, of all three.
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

    /// Nothing else is a page.
    #[test]
    fn other_sizes_are_refused() {
        for size_bytes in [0, 8, 256, 511, 1536, 4096, u64::MAX] {
            assert_eq!(
                PageGeometry::new(size_bytes),
                Err(GeometryError(size_bytes))
            );
        }
    }

    /// The table of the documentation, word by word.
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

    /// The longer of the table's limit and the page's does not count.
    #[test]
    fn values_are_inline_up_to_both_limits() {
        let geometry = PageGeometry::new(512).expect("allowed");
        assert!(geometry.is_value_inline(224, 1000) && !geometry.is_value_inline(225, 1000));
        assert!(geometry.is_value_inline(16, 16) && !geometry.is_value_inline(17, 16));
        assert!(geometry.is_suffix_inline(64) && !geometry.is_suffix_inline(65));
    }
}
