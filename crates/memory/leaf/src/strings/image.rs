//! Page codec: the only code that knows how strings lie in a page and what its checksum covers.
//!
//! An *image* is a private copy of a page's words without its lock: state, low, high, link, bitmap,
//! prefix, slots, heap. Images are read from far memory, so no word is trusted before
//! [`PageImage::is_intact`] returns true (LEAF-4). Before that, every function returns without a
//! panic, but its result is meaningless.

mod search;
mod shape;
#[cfg(test)]
mod tests;

use farleaf_base::{RemoteAddr, TableId, WORD_SIZE_BYTES, crc32c};
use zerocopy::IntoBytes;

pub(crate) use search::digest_of;
pub use search::{Found, KeyPlacement, SlotOrder};

use crate::strings::fence::Fence;
use crate::strings::geometry::{
    HEADER_SIZE_WORDS, IMAGE_SIZE_WORDS_MAX, KEY_HEAD_SIZE_BYTES, PageGeometry,
};
use crate::strings::outside::{Outside, Unread};
use crate::strings::record::{SlotSet, Stored, StoredFence, StoredPrefix, Value};
use crate::strings::space::Space;
use crate::strings::words::{
    DIGEST_SIZE_BYTES, FenceWord, OUTSIDE_KEY_SIZE_BYTES, OUTSIDE_PREFIX_SIZE_BYTES, PrefixWord,
    REFERENCE_SIZE_BYTES, Reference, SlotWord,
};

pub(crate) const STATE: usize = 0;
pub(crate) const LOW: usize = 1;
pub(crate) const HIGH: usize = 2;
pub(crate) const LINK: usize = 3;
pub(crate) const BITMAP: usize = 4;
pub(crate) const PREFIX: usize = 5;
pub(crate) const SLOTS: usize = 6;
/// Words of the checksum's input before the image's own: address, table with version.
const CHECKED_HEADER: usize = 2;

/// Private copy of a page's words.
#[derive(Clone, Copy, Debug)]
pub struct PageImage<'a> {
    geometry: PageGeometry,
    words: &'a [u64],
}

impl<'a> PageImage<'a> {
    /// Interprets `words` as an image.
    ///
    /// # Panics
    ///
    /// If there are fewer words than the geometry's image has.
    #[inline]
    pub fn new(geometry: PageGeometry, words: &'a [u64]) -> Self {
        Self {
            geometry,
            words: &words[..geometry.image_size_words()],
        }
    }

    /// Returns whether the checksum matches that of a page of this table at this address, and the
    /// words are possible in a page ([`is_well_formed`](Self::is_well_formed)). Otherwise no other
    /// content is meaningful.
    pub fn is_intact(&self, addr: RemoteAddr, table: TableId) -> bool {
        let state = self.words[STATE];
        state as u32 == self.checksum(addr, table, state >> 32) && self.is_well_formed()
    }

    /// Returns whether no state was ever committed here. A committed state has a version and a
    /// checksum.
    #[inline]
    pub fn was_never_written(&self) -> bool {
        self.words[STATE] == 0
    }

    /// Computes the checksum. The lower half of `version` has version (16 bits) and zero (16 bits).
    pub(crate) fn checksum(&self, addr: RemoteAddr, table: TableId, version: u64) -> u32 {
        let mut input = [0; CHECKED_HEADER + IMAGE_SIZE_WORDS_MAX - LOW];
        input[0] = addr.place().word();
        input[1] = u64::from(table.0) << 32 | version;
        let checked = &self.words[LOW..];
        let size_words = CHECKED_HEADER + checked.len();
        input[CHECKED_HEADER..size_words].copy_from_slice(checked);
        crc32c(&input[..size_words])
    }

    /// Returns the shape of the page.
    #[inline]
    pub const fn geometry(&self) -> PageGeometry {
        self.geometry
    }

    /// Returns the words of the image.
    #[inline]
    pub const fn words(&self) -> &'a [u64] {
        self.words
    }

    /// Returns the version, which increases with every change and wraps.
    pub fn version(&self) -> u16 {
        (self.words[STATE] >> 48) as u16
    }

    /// Returns the right sibling, or, with the *retired* flag, the page that took over.
    #[inline]
    pub fn link(&self) -> RemoteAddr {
        RemoteAddr::from_word(self.words[LINK])
    }

    /// Returns whether the page that the link names has taken over this page's range.
    #[inline]
    pub fn is_retired(&self) -> bool {
        self.link().is_retired()
    }

    /// Returns the slots that hold records, in no order of keys.
    #[inline]
    pub fn slots(&self) -> SlotSet {
        SlotSet(self.words[BITMAP])
    }

    /// Returns the number of records.
    pub fn record_count(&self) -> usize {
        self.slots().slot_count()
    }

    /// Returns the bytes used by header, slots and listed strings of a well-formed page.
    pub fn used_size_bytes(&self) -> usize {
        let free = Space::of(*self).free_size_words();
        (self.geometry.page_size_words() - free) * WORD_SIZE_BYTES as usize
    }

    /// Returns the number of words before the heap: the header, and slots up to the highest listed
    /// one.
    pub(crate) fn heap_start_words(&self) -> usize {
        HEADER_SIZE_WORDS + self.slots().end()
    }

    /// Returns a slot's word; zero beyond the page.
    #[inline]
    pub(crate) fn slot_word(&self, slot: usize) -> SlotWord {
        let word = self.words.get(SLOTS + slot);
        SlotWord::from_word(word.copied().unwrap_or_default())
    }

    /// Returns the bytes at an offset from the page's start; none if they are not all in the page.
    #[inline]
    fn bytes(&self, offset_words: u8, size_bytes: usize) -> &'a [u8] {
        let start = (usize::from(offset_words) * WORD_SIZE_BYTES as usize)
            .wrapping_sub(WORD_SIZE_BYTES as usize);
        let end = start.wrapping_add(size_bytes);
        self.words.as_bytes().get(start..end).unwrap_or_default()
    }

    /// Decodes the inline bytes of a key or fence.
    #[inline]
    fn stored(&self, offset_words: u8, size_bytes: u16, is_outside: bool) -> Stored<'a> {
        let bytes = self.bytes(offset_words, usize::from(size_bytes));
        if is_outside {
            let (head, reference) = bytes.split_at(KEY_HEAD_SIZE_BYTES.min(bytes.len()));
            Stored::Outside {
                head,
                reference: reference_in(reference),
            }
        } else {
            Stored::Inline(bytes)
        }
    }

    /// Returns the suffix of the key in a slot, as stored; meaningful only if the slot is listed.
    #[inline]
    pub fn key(&self, slot: usize) -> Stored<'a> {
        let word = self.slot_word(slot);
        self.stored(word.offset_words, word.key_size_bytes, word.key_is_outside)
    }

    /// Returns the value in a slot, as stored; meaningful only if the slot is listed.
    #[inline]
    pub fn value(&self, slot: usize) -> Value<'a> {
        let bytes = self.record_bytes(slot);
        let word = self.slot_word(slot);
        let start = usize::from(word.key_size_bytes).min(bytes.len());
        let value = &bytes[start..];
        if word.value_is_outside {
            Value::Outside(reference_in(value))
        } else {
            Value::Inline(value)
        }
    }

    /// Returns all inline bytes of the record in a slot: the key's, then the value's.
    pub(crate) fn record_bytes(&self, slot: usize) -> &'a [u8] {
        let word = self.slot_word(slot);
        self.bytes(word.offset_words, word.record_size_bytes())
    }

    /// Returns the decoded word of the lower fence.
    pub(crate) fn low_word(&self) -> FenceWord {
        FenceWord::from_word(self.words[LOW]).unwrap_or(FenceWord::END)
    }

    /// Returns the decoded word of the upper fence.
    pub(crate) fn high_word(&self) -> FenceWord {
        FenceWord::from_word(self.words[HIGH]).unwrap_or(FenceWord::END)
    }

    /// Returns the decoded word of the prefix.
    pub(crate) fn prefix_word(&self) -> PrefixWord {
        PrefixWord::from_word(self.words[PREFIX]).unwrap_or(PrefixWord {
            offset_words: 0,
            size_bytes: 0,
            is_outside: false,
        })
    }

    /// Returns the inclusive lower fence, as stored: never [`StoredFence::End`] in an intact page.
    pub fn low(&self) -> StoredFence<'a> {
        self.fence_of(self.low_word())
    }

    /// Returns the exclusive upper fence, as stored.
    pub fn high(&self) -> StoredFence<'a> {
        self.fence_of(self.high_word())
    }

    fn fence_of(&self, word: FenceWord) -> StoredFence<'a> {
        let stored = self.stored(word.offset_words, word.size_bytes, word.is_outside);
        match (word.has_no_end, word.adds_zero) {
            (true, _) => StoredFence::End,
            (false, true) => StoredFence::Behind(stored),
            (false, false) => StoredFence::Before(stored),
        }
    }

    /// Returns the bytes in the page that a fence's word refers to.
    pub(crate) fn fence_bytes(&self, word: FenceWord) -> &'a [u8] {
        self.bytes(word.offset_words, usize::from(word.size_bytes))
    }

    /// Returns the size of the prefix in bytes, inline or outside.
    #[inline]
    pub fn prefix_size_bytes(&self) -> usize {
        usize::from(self.prefix_word().size_bytes)
    }

    /// Returns the prefix, as stored.
    pub fn prefix(&self) -> StoredPrefix<'a> {
        let word = self.prefix_word();
        let bytes = self.bytes(word.offset_words, word.inline_size_bytes());
        if !word.is_outside {
            return StoredPrefix::Inline(bytes);
        }
        let (reference, digest) = bytes.split_at(REFERENCE_SIZE_BYTES.min(bytes.len()));
        StoredPrefix::Outside {
            reference: reference_in(reference),
            digest: digest
                .first_chunk::<DIGEST_SIZE_BYTES>()
                .copied()
                .unwrap_or_default(),
        }
    }

    /// Returns the bytes of the prefix.
    ///
    /// # Errors
    /// [`Unread`], if the prefix is outside and was not read.
    pub fn prefix_bytes<'b>(&self, outside: &'b Outside) -> Result<&'b [u8], Unread>
    where
        'a: 'b,
    {
        match self.prefix() {
            StoredPrefix::Inline(bytes) => Ok(bytes),
            StoredPrefix::Outside { reference, .. } => outside.get(reference),
        }
    }

    /// Returns whether prefix and fences are inline, so that the page may be split in place.
    pub fn is_self_contained(&self) -> bool {
        !self.prefix_word().is_outside
            && !self.low_word().is_outside
            && !self.high_word().is_outside
    }

    /// Returns the lower fence if it and the prefix are inline: what recovery of the page to the
    /// left needs (LEAF-8). Both never change, so the result is correct even during a concurrent
    /// change.
    pub fn low_in_page(&self) -> Option<Fence> {
        let is_in_page = !self.prefix_word().is_outside && !self.low_word().is_outside;
        is_in_page.then(|| self.whole_fence(self.low(), &Outside::new()).ok())?
    }

    /// Returns the whole string and kind of a fence of this page.
    ///
    /// # Errors
    /// [`Unread`], if the fence or the prefix is outside and was not read.
    pub fn whole_fence(&self, fence: StoredFence<'a>, outside: &Outside) -> Result<Fence, Unread> {
        let whole = |stored: Stored<'_>| self.whole(stored, outside);
        Ok(match fence {
            StoredFence::Before(stored) => Fence::Before(whole(stored)?),
            StoredFence::Behind(stored) => Fence::Behind(whole(stored)?),
            StoredFence::End => Fence::End,
        })
    }

    /// Returns the whole key in a slot.
    ///
    /// # Errors
    /// [`Unread`], if the key or the prefix is outside and was not read.
    pub fn whole_key(&self, slot: usize, outside: &Outside) -> Result<Vec<u8>, Unread> {
        self.whole(self.key(slot), outside)
    }

    fn whole(&self, stored: Stored<'_>, outside: &Outside) -> Result<Vec<u8>, Unread> {
        match stored {
            Stored::Inline(suffix) => Ok([self.prefix_bytes(outside)?, suffix].concat()),
            Stored::Outside { reference, .. } => Ok(outside.get(reference)?.to_vec()),
        }
    }

    /// Returns the references of all outside keys, fences and prefixes, which a cut or merge may
    /// have to read.
    pub fn outside_strings(&self) -> Vec<Reference> {
        let mut references = Vec::new();
        if let StoredPrefix::Outside { reference, .. } = self.prefix() {
            references.push(reference);
        }
        references.extend(
            [self.low(), self.high()]
                .iter()
                .filter_map(StoredFence::reference),
        );
        for slot in self.slots().iter() {
            references.extend(self.key(slot).reference());
        }
        references
    }

    /// Returns all references in the page, including values.
    pub fn references(&self) -> Vec<Reference> {
        let mut references = self.outside_strings();
        let slots = self.slots();
        references.extend(slots.iter().filter_map(|slot| self.value(slot).reference()));
        references
    }
}

/// Reads a reference; returns a null one if the bytes are not all in the page.
fn reference_in(bytes: &[u8]) -> Reference {
    let bytes = bytes.first_chunk::<REFERENCE_SIZE_BYTES>();
    Reference::from_bytes(bytes.copied().unwrap_or_default())
}

const _: () = assert!(OUTSIDE_KEY_SIZE_BYTES == KEY_HEAD_SIZE_BYTES + REFERENCE_SIZE_BYTES);
const _: () = assert!(OUTSIDE_PREFIX_SIZE_BYTES == REFERENCE_SIZE_BYTES + DIGEST_SIZE_BYTES);
