//! Pages that are created or changed before they are written to far memory.

use farleaf_base::{RemoteAddr, TableId, WORD_SIZE_BYTES};

use crate::strings::fence::Fence;
use crate::strings::geometry::{
    HEADER_SIZE_WORDS, IMAGE_SIZE_WORDS_MAX, PREFIX_INLINE_SIZE_BYTES_MAX, PageGeometry,
};
use crate::strings::image::{self, PageImage};
use crate::strings::record::{Encoded, NewRecord, SlotSet, put_suffix, words_of};
use crate::strings::words::{FenceWord, PrefixWord, Reference};

/// Modifiable image of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageBuffer {
    geometry: PageGeometry,
    words: Vec<u64>,
}

/// Fence of a new page.
#[derive(Clone, Copy, Debug)]
pub struct NewFence<'a> {
    /// Place of the fence.
    pub fence: &'a Fence,
    /// Reference of the fence's whole string, if the suffix is longer than an eighth of the page.
    pub block: Option<Reference>,
}

impl<'a> NewFence<'a> {
    /// Creates an inline fence.
    pub const fn inline(fence: &'a Fence) -> Self {
        Self { fence, block: None }
    }
}

/// Prefix of a new page.
#[derive(Clone, Copy, Debug)]
pub struct NewPrefix<'a> {
    /// Bytes with which both fences and all keys that the page can cover begin.
    pub bytes: &'a [u8],
    /// Reference of the prefix, if it is longer than 32 bytes.
    pub block: Option<Reference>,
}

impl<'a> NewPrefix<'a> {
    /// Creates an inline prefix.
    pub const fn inline(bytes: &'a [u8]) -> Self {
        Self { bytes, block: None }
    }
}

/// Contents of a new page, except its records.
#[derive(Clone, Copy, Debug)]
pub struct NewPage<'a> {
    /// Inclusive lower fence.
    pub low: NewFence<'a>,
    /// Exclusive upper fence.
    pub high: NewFence<'a>,
    /// Prefix of the page.
    pub prefix: NewPrefix<'a>,
    /// Right sibling.
    pub link: RemoteAddr,
}

impl PageBuffer {
    /// Builds a page with these records, in slot order. It has no checksum before
    /// [`seal`](Self::seal). Returns `None` if the records do not fit; no record or a single one
    /// always fits.
    ///
    /// # Panics
    ///
    /// If a fence or a key does not begin with the prefix, or if a string is outside but must be
    /// inline, or vice versa.
    pub fn build(
        geometry: PageGeometry,
        page: &NewPage<'_>,
        records: &[NewRecord<'_>],
    ) -> Option<Self> {
        let mut building = Building {
            end_words: geometry.page_size_words(),
            page: Self {
                geometry,
                words: vec![0; geometry.image_size_words()],
            },
        };
        building.put_prefix(&page.prefix);
        let prefix = page.prefix.bytes;
        building.put_fence(image::LOW, prefix, &page.low);
        building.put_fence(image::HIGH, prefix, &page.high);
        building.page.set_link(page.link);
        if records.len() > geometry.slot_count_max() {
            return None;
        }
        for (slot, record) in records.iter().enumerate() {
            assert!(
                page.prefix.block.is_some() || record.key.whole().starts_with(prefix),
                "the keys of a page begin with its prefix"
            );
            let encoded = Encoded::new(geometry, prefix.len(), record);
            let offset_words = building.end_words.checked_sub(encoded.words.len())?;
            if offset_words < HEADER_SIZE_WORDS + records.len() {
                return None;
            }
            building.put(&encoded.words);
            building
                .page
                .set_slot(slot, encoded.slot_at(offset_words).word());
        }
        let listed = (0..records.len()).fold(SlotSet::default(), SlotSet::with);
        building.page.set_slots(listed);
        Some(building.page)
    }

    /// Copies an image.
    pub fn copy_of(image: PageImage<'_>) -> Self {
        Self {
            geometry: image.geometry(),
            words: image.words().to_vec(),
        }
    }

    /// Overwrites the buffer with an image of the same geometry.
    pub fn assign(&mut self, image: PageImage<'_>) {
        self.words.copy_from_slice(image.words());
    }

    /// Returns the buffer as an image.
    #[inline]
    pub fn image(&self) -> PageImage<'_> {
        PageImage::new(self.geometry, &self.words)
    }

    /// Returns the shape of the page.
    pub const fn geometry(&self) -> PageGeometry {
        self.geometry
    }

    /// Sets the link.
    pub fn set_link(&mut self, link: RemoteAddr) {
        self.words[image::LINK] = link.word();
    }

    pub(crate) fn set_slots(&mut self, slots: SlotSet) {
        self.words[image::BITMAP] = slots.0;
    }

    pub(crate) fn set_high(&mut self, high: FenceWord) {
        self.words[image::HIGH] = high.word();
    }

    pub(crate) fn set_slot(&mut self, slot: usize, word: u64) {
        self.words[image::SLOTS + slot] = word;
    }

    /// Writes words of the heap, starting at an offset from the page's start.
    pub(crate) fn set_words(&mut self, offset_words: usize, words: &[u64]) {
        self.words[offset_words - 1..][..words.len()].copy_from_slice(words);
    }

    /// Sets the next version, and the checksum that makes the page intact at `addr`. Returns the
    /// state word, whose WRITE commits the change (LEAF-1).
    pub fn seal(&mut self, addr: RemoteAddr, table: TableId) -> u64 {
        let image = self.image();
        let version = u64::from(image.version().wrapping_add(1)) << 16;
        let checksum = image.checksum(addr, table, version);
        self.words[image::STATE] = version << 32 | u64::from(checksum);
        self.words[image::STATE]
    }

    /// Returns the words of the whole page, with this lock before the image, and their number.
    pub fn page_words(&self, lock: u64) -> ([u64; IMAGE_SIZE_WORDS_MAX + 1], usize) {
        let mut words = [0; IMAGE_SIZE_WORDS_MAX + 1];
        words[0] = lock;
        words[1..=self.words.len()].copy_from_slice(&self.words);
        (words, self.words.len() + 1)
    }
}

/// Page that is filled from its end.
struct Building {
    end_words: usize,
    page: PageBuffer,
}

impl Building {
    /// Puts words before the existing ones; returns their offset.
    fn put(&mut self, words: &[u64]) -> u8 {
        if words.is_empty() {
            return 0;
        }
        self.end_words -= words.len();
        self.page.set_words(self.end_words, words);
        self.end_words as u8
    }

    fn put_prefix(&mut self, prefix: &NewPrefix<'_>) {
        let size_bytes = prefix.bytes.len();
        assert!(
            (size_bytes > PREFIX_INLINE_SIZE_BYTES_MAX) == prefix.block.is_some(),
            "a prefix is outside if, and only if, it is longer than 32 bytes"
        );
        let offset_words = match prefix.block {
            None => self.put(&words_of(prefix.bytes)),
            Some(reference) => {
                let digest = image::digest_of(prefix.bytes);
                self.put(&words_of(&[reference.to_bytes(), digest].concat()))
            }
        };
        let word = PrefixWord {
            offset_words,
            size_bytes: size_bytes as u16,
            is_outside: prefix.block.is_some(),
        };
        self.page.words[image::PREFIX] = word.word();
    }

    fn put_fence(&mut self, at: usize, prefix: &[u8], fence: &NewFence<'_>) {
        let word = match fence.fence.string() {
            None => {
                assert!(prefix.is_empty(), "a page without an end has no prefix");
                FenceWord::END
            }
            Some(string) => {
                let suffix = string.strip_prefix(prefix);
                let suffix = suffix.expect("the fences of a page begin with its prefix");
                let mut bytes = Vec::new();
                put_suffix(self.page.geometry, &mut bytes, suffix, fence.block);
                FenceWord {
                    offset_words: self.put(&words_of(&bytes)),
                    size_bytes: bytes.len() as u16,
                    adds_zero: matches!(fence.fence, Fence::Behind(_)),
                    is_outside: fence.block.is_some(),
                    has_no_end: false,
                }
            }
        };
        self.page.words[at] = word.word();
    }
}

/// Returns the number of heap words for this number of bytes.
pub(crate) const fn size_words_of(size_bytes: usize) -> usize {
    size_bytes.div_ceil(WORD_SIZE_BYTES as usize)
}
