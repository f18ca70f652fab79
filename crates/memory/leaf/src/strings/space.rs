//! Which words of a page are used, and how to make room (BP4).

mod moves;

use core::ops::Range;

pub(crate) use moves::{Movable, Move, Place, find_place};

use crate::buffer::size_words_of;
use crate::geometry::{PAGE_SIZE_WORDS_MAX, PageGeometry};
use crate::image::PageImage;
use crate::record::Value;
use crate::words::{FenceWord, OUTSIDE_KEY_SIZE_BYTES, REFERENCE_SIZE_BYTES, SlotWord};

/// How many listed strings claim each word of a page: a fence may lie in a record's key.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    claims: [u8; PAGE_SIZE_WORDS_MAX],
    size_words: usize,
}

/// The words that the record in a slot takes.
pub(crate) fn record_extent(word: SlotWord) -> Range<usize> {
    extent(word.offset_words, word.record_size_bytes())
}

/// The words that a fence takes.
pub(crate) fn fence_extent(word: FenceWord) -> Range<usize> {
    extent(word.offset_words, usize::from(word.size_bytes))
}

fn extent(offset_words: u8, size_bytes: usize) -> Range<usize> {
    let start = usize::from(offset_words);
    start..start + size_words_of(size_bytes)
}

/// Bytes that the suffix of a key or fence takes in a page, wherever it lies.
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

/// Words that a record takes in the heap.
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
    /// The space of a well-formed page: header and slots, all that is listed, and nothing else, are
    /// claimed.
    pub(crate) fn of(image: PageImage<'_>) -> Self {
        let mut space = Self::fixed_of(image);
        space.claim(fence_extent(image.high_word()));
        for slot in image.slots().iter() {
            space.claim(record_extent(image.slot_word(slot)));
        }
        space
    }

    /// What of it can never be moved: header, slots, lower fence and prefix.
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

    /// How many words nobody claims.
    pub(crate) fn free_size_words(&self) -> usize {
        (0..self.size_words)
            .filter(|word| self.claims[*word] == 0)
            .count()
    }

    /// The last extent of so many words that nobody claims; its start. No words are anywhere: 0.
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
