//! Pages that are being made or changed, before they are written to far memory.

use farleaf_types::{RemoteAddr, TableId, WORD_SIZE_BYTES};

use crate::fence::Fence;
use crate::geometry::{
    HEADER_SIZE_WORDS, IMAGE_SIZE_WORDS_MAX, PREFIX_INLINE_SIZE_BYTES_MAX, PageGeometry,
};
use crate::image::{self, PageImage};
use crate::record::{Encoded, NewRecord, SlotSet, put_suffix, words_of};
use crate::words::{FenceWord, PrefixWord, Reference};

/// An image that is being made or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageBuffer {
    geometry: PageGeometry,
    words: Vec<u64>,
}

/// A fence of a new page.
#[derive(Clone, Copy, Debug)]
pub struct NewFence<'a> {
    /// Which.
    pub fence: &'a Fence,
    /// Where its whole string lies outside, if its suffix is longer than an eighth of the page.
    pub block: Option<Reference>,
}

impl<'a> NewFence<'a> {
    /// One that lies in the page.
    pub const fn inline(fence: &'a Fence) -> Self {
        Self { fence, block: None }
    }
}

/// The prefix of a new page.
#[derive(Clone, Copy, Debug)]
pub struct NewPrefix<'a> {
    /// What all keys that the page can cover begin with, and its fences.
    pub bytes: &'a [u8],
    /// Where it lies outside, if it is longer than 32 bytes.
    pub block: Option<Reference>,
}

impl<'a> NewPrefix<'a> {
    /// One that lies in the page.
    pub const fn inline(bytes: &'a [u8]) -> Self {
        Self { bytes, block: None }
    }
}

/// All of a new page but its records.
#[derive(Clone, Copy, Debug)]
pub struct NewPage<'a> {
    /// Lower fence, inclusive.
    pub low: NewFence<'a>,
    /// Upper fence, exclusive.
    pub high: NewFence<'a>,
    /// Prefix.
    pub prefix: NewPrefix<'a>,
    /// The right sibling.
    pub link: RemoteAddr,
}

impl PageBuffer {
    /// A page with these records, in the order of their slots. It has no checksum before
    /// [`seal`](Self::seal). `None` if there is no room for all of them; for none of them, and for
    /// one, there always is.
    ///
    /// Panics when a fence or a key does not begin with the prefix, or something is outside that
    /// must not be, or is not and must be.
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

    /// A copy of an image.
    pub fn copy_of(image: PageImage<'_>) -> Self {
        Self {
            geometry: image.geometry(),
            words: image.words().to_vec(),
        }
    }

    /// Becomes a copy of an image of the same geometry.
    pub fn assign(&mut self, image: PageImage<'_>) {
        self.words.copy_from_slice(image.words());
    }

    /// Looks at it as an image.
    #[inline]
    pub fn image(&self) -> PageImage<'_> {
        PageImage::new(self.geometry, &self.words)
    }

    /// The shape of the page.
    pub const fn geometry(&self) -> PageGeometry {
        self.geometry
    }

    /// Changes the link.
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

    /// Changes words of the heap, from an offset from the page's start on.
    pub(crate) fn set_words(&mut self, offset_words: usize, words: &[u64]) {
        self.words[offset_words - 1..][..words.len()].copy_from_slice(words);
    }

    /// Gives it the next version and the checksum that makes it intact at `addr`; returns the state
    /// word, whose WRITE commits the change (D1).
    pub fn seal(&mut self, addr: RemoteAddr, table: TableId) -> u64 {
        let image = self.image();
        let version = u64::from(image.version().wrapping_add(1)) << 16;
        let checksum = image.checksum(addr, table, version);
        self.words[image::STATE] = version << 32 | u64::from(checksum);
        self.words[image::STATE]
    }

    /// The words of the whole page, with this lock before the image, and how many they are.
    pub fn page_words(&self, lock: u64) -> ([u64; IMAGE_SIZE_WORDS_MAX + 1], usize) {
        let mut words = [0; IMAGE_SIZE_WORDS_MAX + 1];
        words[0] = lock;
        words[1..=self.words.len()].copy_from_slice(&self.words);
        (words, self.words.len() + 1)
    }
}

/// A page that is filled from its end on.
struct Building {
    end_words: usize,
    page: PageBuffer,
}

impl Building {
    /// Puts words before those that are there; returns where.
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

/// Words that so many bytes take in the heap.
pub(crate) const fn size_words_of(size_bytes: usize) -> usize {
    size_bytes.div_ceil(WORD_SIZE_BYTES as usize)
}
