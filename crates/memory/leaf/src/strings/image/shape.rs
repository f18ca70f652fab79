//! Checks, besides the checksum, that words are possible in a page, so that nothing in an intact
//! page refers to memory outside it.

use farleaf_base::WORD_SIZE_BYTES;
use farleaf_base::limits::KEY_SIZE_BYTES_MAX;

use super::{BITMAP, HIGH, LOW, PREFIX, PageImage};
use crate::strings::geometry::PREFIX_INLINE_SIZE_BYTES_MAX;
use crate::strings::record::{SlotSet, StoredFence, StoredPrefix};
use crate::strings::words::{
    FenceWord, OUTSIDE_KEY_SIZE_BYTES, PrefixWord, REFERENCE_SIZE_BYTES, Reference, SlotWord,
};

impl PageImage<'_> {
    /// Returns whether the words are possible in a page: slots, fences and prefix refer to bytes of
    /// the heap, with permitted sizes. This also holds for torn pages that contain only some of a
    /// change's WRITEs.
    pub fn is_well_formed(&self) -> bool {
        let words = self.words();
        let (Some(low), Some(high), Some(prefix)) = (
            FenceWord::from_word(words[LOW]),
            FenceWord::from_word(words[HIGH]),
            PrefixWord::from_word(words[PREFIX]),
        ) else {
            return false;
        };
        SlotSet(words[BITMAP]).end() <= self.geometry().slot_count_max()
            && self.is_prefix(prefix)
            && !low.has_no_end
            && self.is_fence(low, self.low())
            && self.is_high(high, prefix)
            && self.slots().iter().all(|slot| self.is_record(slot))
    }

    fn is_prefix(&self, word: PrefixWord) -> bool {
        let size_bytes = usize::from(word.size_bytes);
        size_bytes <= KEY_SIZE_BYTES_MAX
            && word.is_outside == (size_bytes > PREFIX_INLINE_SIZE_BYTES_MAX)
            && self.is_in_heap(word.offset_words, word.inline_size_bytes())
            && match self.prefix() {
                StoredPrefix::Inline(_) => true,
                StoredPrefix::Outside { reference, .. } => {
                    reference.size_bytes == u32::from(word.size_bytes)
                }
            }
    }

    fn is_high(&self, word: FenceWord, prefix: PrefixWord) -> bool {
        if word.has_no_end {
            word == FenceWord::END && prefix.size_bytes == 0
        } else {
            self.is_fence(word, self.high())
        }
    }

    fn is_fence(&self, word: FenceWord, fence: StoredFence<'_>) -> bool {
        self.is_suffix(word.size_bytes, word.is_outside)
            && self.is_in_heap(word.offset_words, usize::from(word.size_bytes))
            && self.is_whole(fence.reference())
    }

    fn is_record(&self, slot: usize) -> bool {
        let word = self.slot_word(slot);
        self.is_suffix(word.key_size_bytes, word.key_is_outside)
            && self.is_value(word)
            && self.is_in_heap(word.offset_words, word.record_size_bytes())
            && self.is_whole(self.key(slot).reference())
    }

    /// Returns whether a key or fence that is outside has a size that must be outside.
    fn is_whole(&self, reference: Option<Reference>) -> bool {
        reference.is_none_or(|reference| {
            let size_bytes = reference.size_bytes as usize;
            size_bytes <= KEY_SIZE_BYTES_MAX
                && size_bytes
                    .checked_sub(self.prefix_size_bytes())
                    .is_some_and(|suffix| !self.geometry().is_suffix_inline(suffix))
        })
    }

    fn is_value(&self, word: SlotWord) -> bool {
        let size_bytes = usize::from(word.value_size_bytes);
        if word.value_is_outside {
            size_bytes == REFERENCE_SIZE_BYTES
        } else {
            size_bytes <= self.geometry().value_size_bytes_max()
        }
    }

    fn is_suffix(&self, size_bytes: u16, is_outside: bool) -> bool {
        let size_bytes = usize::from(size_bytes);
        if is_outside {
            size_bytes == OUTSIDE_KEY_SIZE_BYTES
        } else {
            self.geometry().is_suffix_inline(size_bytes)
        }
    }

    /// Returns whether bytes lie between the listed slots and the page's end; an empty range always
    /// does.
    fn is_in_heap(&self, offset_words: u8, size_bytes: usize) -> bool {
        let start = usize::from(offset_words);
        let size_words = size_bytes.div_ceil(WORD_SIZE_BYTES as usize);
        size_words == 0
            || (start >= self.heap_start_words()
                && start + size_words <= self.geometry().page_size_words())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strings::buffer::{NewFence, NewPage, NewPrefix, PageBuffer};
    use crate::strings::fence::Fence;
    use crate::strings::geometry::PageGeometry;
    use crate::strings::record::{NewKey, NewRecord, Value};
    use farleaf_base::RemoteAddr;

    fn words() -> (PageGeometry, Vec<u64>) {
        let geometry = PageGeometry::new(512).expect("allowed");
        let record = NewRecord {
            key: NewKey::Inline(b"pre-key"),
            value: Value::Inline(b"a value"),
        };
        let (low, high) = (
            Fence::Before(b"pre-a".into()),
            Fence::Behind(b"pre-z".into()),
        );
        let new = NewPage {
            low: NewFence::inline(&low),
            high: NewFence::inline(&high),
            prefix: NewPrefix::inline(b"pre-"),
            link: RemoteAddr::NULL,
        };
        let page = PageBuffer::build(geometry, &new, &[record]).expect("one record has room");
        (geometry, page.image().words().to_vec())
    }

    fn is_well_formed(change: impl Fn(&mut Vec<u64>)) -> bool {
        let (geometry, mut words) = words();
        change(&mut words);
        PageImage::new(geometry, &words).is_well_formed()
    }

    /// Each checked property is violated alone.
    #[test]
    fn what_no_page_can_say_is_seen() {
        assert!(is_well_formed(|_| {}));
        let slot = |change: fn(&mut SlotWord)| {
            is_well_formed(|words| {
                let mut slot = SlotWord::from_word(words[super::super::SLOTS]);
                change(&mut slot);
                words[super::super::SLOTS] = slot.word();
            })
        };
        assert!(slot(|slot| slot.offset_words = 20));
        assert!(!slot(|slot| slot.offset_words = 7), "in the slots");
        assert!(!slot(|slot| slot.offset_words = 63), "over the end");
        assert!(!slot(|slot| slot.value_size_bytes = 2047));
        assert!(
            !slot(|slot| slot.key_size_bytes = 65),
            "longer than an eighth"
        );
        assert!(!slot(|slot| slot.key_is_outside = true));
        assert!(!slot(|slot| slot.value_is_outside = true));
        assert!(
            !is_well_formed(|words| words[BITMAP] = 1 << 57),
            "beyond the page"
        );
        assert!(!is_well_formed(|words| words[LOW] = FenceWord::END.word()));
        assert!(
            !is_well_formed(|words| words[HIGH] = FenceWord::END.word()),
            "has a prefix"
        );
        assert!(!is_well_formed(|words| words[LOW] |= 1 << 24));
        assert!(!is_well_formed(|words| words[HIGH] |= 1 << 22), "outside");
        assert!(!is_well_formed(|words| words[PREFIX] |= 1 << 21), "outside");
        assert!(!is_well_formed(|words| words[PREFIX] |= 1 << 22));
        assert!(
            !is_well_formed(|words| words[PREFIX] |= 33 << 8),
            "must be outside"
        );
    }
}
