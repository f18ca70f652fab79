//! Used words of a page, and moves of records that free adjacent space.

mod moves;

use core::ops::Range;

pub(crate) use moves::{Movable, Move, RecordPlacement, find_place};

use crate::strings::buffer::size_words_of;
use crate::strings::geometry::{PAGE_SIZE_WORDS_MAX, PageGeometry};
use crate::strings::image::PageImage;
use crate::strings::record::Value;
use crate::strings::words::{FenceWord, OUTSIDE_KEY_SIZE_BYTES, REFERENCE_SIZE_BYTES, SlotWord};

/// Number of listed strings that use each word of a page: a fence may share a record's key bytes.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    claims: [u8; PAGE_SIZE_WORDS_MAX],
    size_words: usize,
}

/// Returns the words of the record in a slot.
pub(crate) fn record_extent(word: SlotWord) -> Range<usize> {
    extent(word.offset_words, word.record_size_bytes())
}

/// Returns the words of a fence.
pub(crate) fn fence_extent(word: FenceWord) -> Range<usize> {
    extent(word.offset_words, usize::from(word.size_bytes))
}

fn extent(offset_words: u8, size_bytes: usize) -> Range<usize> {
    let start = usize::from(offset_words);
    start..start + size_words_of(size_bytes)
}

/// Returns the inline bytes of a key's or fence's suffix, whether it is inline or outside.
pub(crate) const fn suffix_in_page_size_bytes(
    geometry: PageGeometry,
    suffix_size_bytes: usize,
) -> usize {
    if geometry.is_suffix_inline(suffix_size_bytes) {
        suffix_size_bytes
    } else {
        OUTSIDE_KEY_SIZE_BYTES
    }
}

/// Returns the size of a record in the heap in words.
pub(crate) const fn record_size_words(
    geometry: PageGeometry,
    suffix_size_bytes: usize,
    value: Value<'_>,
) -> usize {
    let value_size_bytes = match value {
        Value::Inline(value) => value.len(),
        Value::Outside(_) => REFERENCE_SIZE_BYTES,
    };
    size_words_of(suffix_in_page_size_bytes(geometry, suffix_size_bytes) + value_size_bytes)
}

impl Space {
    /// Returns the space of a well-formed page: header, slots and all listed strings are claimed.
    pub(crate) fn of(image: PageImage<'_>) -> Self {
        let mut space = Self::fixed_of(image);
        space.claim(fence_extent(image.high_word()));
        for slot in image.slots().iter() {
            space.claim(record_extent(image.slot_word(slot)));
        }
        space
    }

    /// Returns the part that can never be moved: header, slots, lower fence and prefix.
    fn fixed_of(image: PageImage<'_>) -> Self {
        let mut space = Self {
            claims: [0; PAGE_SIZE_WORDS_MAX],
            size_words: image.geometry().page_size_words(),
        };
        space.claim(0..image.heap_start_words());
        space.claim(fence_extent(image.low_word()));
        let prefix = image.prefix_word();
        space.claim(extent(prefix.offset_words, prefix.inline_size_bytes()));
        space
    }

    pub(crate) fn claim(&mut self, words: Range<usize>) {
        for claim in &mut self.claims[words] {
            *claim += 1;
        }
    }

    fn release(&mut self, words: Range<usize>) {
        for claim in &mut self.claims[words] {
            *claim -= 1;
        }
    }

    pub(crate) fn is_free(&self, words: Range<usize>) -> bool {
        self.claims[words].iter().all(|claim| *claim == 0)
    }

    /// Returns the number of unclaimed words.
    pub(crate) fn free_size_words(&self) -> usize {
        (0..self.size_words)
            .filter(|word| self.claims[*word] == 0)
            .count()
    }

    /// Returns the start of the last unclaimed extent of this size; 0 for size zero.
    pub(crate) fn last_free(&self, size_words: usize) -> Option<usize> {
        if size_words == 0 {
            return Some(0);
        }
        let mut run = 0;
        for start in (0..self.size_words).rev() {
            run = if self.claims[start] == 0 { run + 1 } else { 0 };
            if run == size_words {
                return Some(start);
            }
        }
        None
    }
}
