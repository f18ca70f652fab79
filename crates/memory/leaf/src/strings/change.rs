//! Changes of one locked page as batches: each function adds the WRITEs of a change and of the
//! unlock, in the required order (docs/explanation/byte-tables.md, *Changing a page*). Nothing is
//! executed here. After each function, the buffer holds what far memory will hold.

use farleaf_base::{OwnerWord, RemoteAddr, TableId};
use farleaf_fabric::Batch;

use crate::strings::buffer::PageBuffer;
use crate::strings::fence::Fence;
use crate::strings::geometry::PageGeometry;
use crate::strings::image::PageImage;
use crate::strings::record::{Encoded, NewRecord, SlotSet, Value, words_of};
use crate::strings::space::{Movable, Move, RecordPlacement, find_place};
use crate::strings::words::{FenceWord, SlotWord};

/// Locked page whose change is being built.
#[derive(Clone, Copy, Debug)]
pub struct PageChange {
    /// Shape of the table's pages.
    pub geometry: PageGeometry,
    /// Address of the page.
    pub addr: RemoteAddr,
    /// Table of the page.
    pub table: TableId,
    /// Word written to the lock when it is released: 0, or the next owner's word on a hand-over.
    pub next: OwnerWord,
}

/// Whether a record fitted; an outcome, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum FitOutcome {
    /// The record fitted, and the change is in the batch.
    Enough,
    /// The record did not fit; batch and buffer are unchanged. Split the page, or repack it.
    None,
}

impl PageChange {
    /// Replaces the value in a slot. Four WRITEs (record, slot, state, unlock) of the record's
    /// bytes and 24 more, plus two WRITEs for each record that is moved first.
    pub fn update(
        &self,
        batch: &mut Batch,
        page: &mut PageBuffer,
        slot: usize,
        value: Value<'_>,
    ) -> FitOutcome {
        let fit = self.put_value(batch, page, slot, value);
        self.commit_if(batch, page, fit)
    }

    /// Inserts a record into a page that covers its key and does not list it. Five WRITEs (record,
    /// slot, bitmap, state, unlock) of the record's bytes and 32 more, plus two WRITEs for each
    /// record that is moved first.
    ///
    /// # Panics
    ///
    /// If the key is inline but must be outside, or vice versa.
    pub fn insert(
        &self,
        batch: &mut Batch,
        page: &mut PageBuffer,
        record: &NewRecord<'_>,
    ) -> FitOutcome {
        let fit = self.put_record(batch, page, record);
        self.commit_if(batch, page, fit)
    }

    /// Removes the record in a slot. Three WRITEs, 24 bytes.
    pub fn delete(&self, batch: &mut Batch, page: &mut PageBuffer, slot: usize) {
        let slots = page.image().slots();
        assert!(slots.contains(slot), "BP3: the slot is listed");
        self.write_slots(batch, page, slots.without(slot));
        self.commit(batch, page);
    }

    /// Retires a page: its range belongs to `successor` from now on, or to no page (null) if its
    /// table was dropped. Writes link, state, unlock.
    pub fn retire(&self, batch: &mut Batch, page: &mut PageBuffer, successor: RemoteAddr) {
        self.write_link(batch, page, successor.place().retired());
        self.commit(batch, page);
    }

    /// Links a locked page to another right sibling, which begins at the same key: link, state,
    /// unlock. A retired page stays retired.
    pub fn relink(&self, batch: &mut Batch, page: &mut PageBuffer, link: RemoteAddr) {
        if page.image().is_retired() {
            self.retire(batch, page, link);
            return;
        }
        self.write_link(batch, page, link);
        self.commit(batch, page);
    }

    /// Writes a whole new page, which nothing points to and no other session may lock. One WRITE.
    pub fn write_new(&self, batch: &mut Batch, page: &mut PageBuffer) {
        self.write_locked(batch, page, OwnerWord::FREE);
    }

    /// Writes a whole new page, which nothing points to, with its lock held by `holder`. One WRITE.
    pub fn write_locked(&self, batch: &mut Batch, page: &mut PageBuffer, holder: OwnerWord) {
        page.seal(self.addr, self.table);
        let (words, size_words) = page.page_words(holder.word());
        batch.write(self.geometry.lock(self.addr), &words[..size_words]);
    }

    /// Returns the same change, but with the lock handed over to `next` instead of released.
    #[must_use]
    pub fn with_hand_over_to(self, next: OwnerWord) -> Self {
        Self { next, ..self }
    }

    /// Releases the lock, or hands it over, without another change.
    pub fn unlock(&self, batch: &mut Batch) {
        batch.write_word(self.geometry.lock(self.addr), self.next.word());
    }

    /// Writes state, then unlock: the end of every change.
    pub(crate) fn commit(&self, batch: &mut Batch, page: &mut PageBuffer) {
        self.write_state(batch, page);
        self.unlock(batch);
    }

    fn commit_if(&self, batch: &mut Batch, page: &mut PageBuffer, fit: FitOutcome) -> FitOutcome {
        if fit == FitOutcome::Enough {
            self.commit(batch, page);
        }
        fit
    }

    pub(crate) fn write_state(&self, batch: &mut Batch, page: &mut PageBuffer) {
        let state = page.seal(self.addr, self.table);
        batch.write_word(self.geometry.state(self.addr), state);
    }

    pub(crate) fn write_link(&self, batch: &mut Batch, page: &mut PageBuffer, link: RemoteAddr) {
        page.set_link(link);
        batch.write_word(self.geometry.link(self.addr), link.word());
    }

    pub(crate) fn write_high(&self, batch: &mut Batch, page: &mut PageBuffer, high: FenceWord) {
        page.set_high(high);
        batch.write_word(self.geometry.high(self.addr), high.word());
    }

    pub(crate) fn write_slots(&self, batch: &mut Batch, page: &mut PageBuffer, slots: SlotSet) {
        page.set_slots(slots);
        batch.write_word(self.geometry.bitmap(self.addr), slots.0);
    }

    /// Writes record, slot and bitmap of an insert, without the commit.
    pub(crate) fn put_record(
        &self,
        batch: &mut Batch,
        page: &mut PageBuffer,
        record: &NewRecord<'_>,
    ) -> FitOutcome {
        let image = page.image();
        let slots = image.slots();
        let slot = slots.lowest_missing();
        if slot >= self.geometry.slot_count_max() {
            return FitOutcome::None;
        }
        let encoded = Encoded::new(self.geometry, image.prefix_size_bytes(), record);
        let new_slot = (slot >= slots.end()).then_some(slot);
        let Some(place) = find_place(image, encoded.words.len(), new_slot) else {
            return FitOutcome::None;
        };
        self.put(batch, page, slot, &encoded, &place);
        self.write_slots(batch, page, slots.with(slot));
        FitOutcome::Enough
    }

    /// Writes record and slot of an update, without the commit.
    pub(crate) fn put_value(
        &self,
        batch: &mut Batch,
        page: &mut PageBuffer,
        slot: usize,
        value: Value<'_>,
    ) -> FitOutcome {
        let image = page.image();
        assert!(image.slots().contains(slot), "BP3: the slot is listed");
        let word = image.slot_word(slot);
        let key = image.record_bytes(slot);
        let key = &key[..usize::from(word.key_size_bytes).min(key.len())];
        let encoded = Encoded::updated(self.geometry, word, key, value);
        let Some(place) = find_place(image, encoded.words.len(), None) else {
            return FitOutcome::None;
        };
        self.put(batch, page, slot, &encoded, &place);
        FitOutcome::Enough
    }

    /// Writes the moves that free space, the record, and its slot's word.
    fn put(
        &self,
        batch: &mut Batch,
        page: &mut PageBuffer,
        slot: usize,
        encoded: &Encoded,
        place: &RecordPlacement,
    ) {
        for step in &place.moves {
            self.move_one(batch, page, *step);
        }
        self.write_heap(batch, page, place.offset_words, &encoded.words);
        self.write_slot(batch, page, slot, encoded.slot_at(place.offset_words));
    }

    fn move_one(&self, batch: &mut Batch, page: &mut PageBuffer, step: Move) {
        let offset_words = step.to_words as u8;
        match step.what {
            Movable::Record(slot) => {
                let words = words_of(page.image().record_bytes(slot));
                self.write_heap(batch, page, step.to_words, &words);
                let word = page.image().slot_word(slot);
                let word = SlotWord {
                    offset_words,
                    ..word
                };
                self.write_slot(batch, page, slot, word);
            }
            Movable::High => {
                let high = page.image().high_word();
                let words = words_of(page.image().fence_bytes(high));
                self.write_heap(batch, page, step.to_words, &words);
                self.write_high(
                    batch,
                    page,
                    FenceWord {
                        offset_words,
                        ..high
                    },
                );
            }
        }
    }

    fn write_slot(&self, batch: &mut Batch, page: &mut PageBuffer, slot: usize, word: SlotWord) {
        page.set_slot(slot, word.word());
        batch.write_word(self.geometry.slot(self.addr, slot), word.word());
    }

    /// Writes heap words that no listed word refers to.
    fn write_heap(
        &self,
        batch: &mut Batch,
        page: &mut PageBuffer,
        offset_words: usize,
        words: &[u64],
    ) {
        if words.is_empty() {
            return;
        }
        page.set_words(offset_words, words);
        batch.write(self.geometry.word(self.addr, offset_words), words);
    }
}

/// Returns a fence word for a fence whose bytes are already in the page as the beginning of a
/// listed key. Returns `None` if no listed key begins so, or the fence does not begin with the
/// page's prefix.
pub(crate) fn fence_in_page(
    image: PageImage<'_>,
    prefix: &[u8],
    fence: &Fence,
) -> Option<FenceWord> {
    let suffix = fence.string()?.strip_prefix(prefix)?;
    if !image.geometry().is_suffix_inline(suffix.len()) {
        return None;
    }
    let has = |slot: &usize| image.key(*slot).in_page().starts_with(suffix);
    let slot = image.slots().iter().find(has)?;
    Some(FenceWord {
        offset_words: image.slot_word(slot).offset_words,
        size_bytes: suffix.len() as u16,
        adds_zero: matches!(fence, Fence::Behind(_)),
        is_outside: false,
        has_no_end: false,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::strings::buffer::{NewFence, NewPage, NewPrefix};
    use crate::strings::outside::Outside;
    use crate::strings::record::NewKey;
    use farleaf_base::NodeId;

    pub(crate) fn at(block: u64) -> PageChange {
        PageChange {
            geometry: PageGeometry::new(512).expect("allowed"),
            addr: RemoteAddr::new(NodeId(0), block),
            table: TableId(1),
            next: OwnerWord::FREE,
        }
    }

    pub(crate) fn record<'a>(key: &'a [u8], value: &'a [u8]) -> NewRecord<'a> {
        NewRecord {
            key: NewKey::Inline(key),
            value: Value::Inline(value),
        }
    }

    /// Returns a sealed page from before "" to the end.
    pub(crate) fn page(change: &PageChange, records: &[NewRecord<'_>]) -> PageBuffer {
        let (low, high) = (Fence::START, Fence::End);
        let new = NewPage {
            low: NewFence::inline(&low),
            high: NewFence::inline(&high),
            prefix: NewPrefix::inline(&[]),
            link: RemoteAddr::NULL,
        };
        let built = PageBuffer::build(change.geometry, &new, records);
        let mut page = built.expect("the records have room");
        page.seal(change.addr, change.table);
        page
    }

    /// Returns the first word of each WRITE, as an offset in the page, and its number of words;
    /// `None` for WRITEs to other pages.
    pub(crate) fn written(batch: &Batch, page: RemoteAddr) -> Vec<Option<(u64, u32)>> {
        let start = page.word_at(0).index();
        let offset = |index: u64| index.checked_sub(start).filter(|offset| *offset < 64);
        let verbs = batch.verbs().iter();
        verbs
            .map(|verb| Some((offset(verb.addr.index())?, verb.word_count)))
            .collect()
    }

    fn slot_of(page: &PageBuffer, key: &[u8]) -> usize {
        match page.image().find(key, &Outside::new()) {
            crate::strings::Found::Record(slot) => slot,
            other => panic!("{other:?}"),
        }
    }

    /// An insert writes record, slot, bitmap, state, unlock; an update no bitmap; a delete neither
    /// record nor slot.
    #[test]
    fn changes_end_with_state_then_unlock() {
        let (change, mut batch) = (at(100), Batch::new());
        let mut page = page(&change, &[record(b"b", b"one")]);
        let fit = change.insert(&mut batch, &mut page, &record(b"a", &[7; 20]));
        assert_eq!(fit, FitOutcome::Enough);
        let expected = [(60, 3), (8, 1), (5, 1), (1, 1), (0, 1)].map(Some);
        assert_eq!(written(&batch, change.addr), expected);
        batch.clear();
        let slot = slot_of(&page, b"b");
        let fit = change.update(&mut batch, &mut page, slot, Value::Inline(b"two"));
        assert_eq!(fit, FitOutcome::Enough);
        let expected = [(59, 1), (7, 1), (1, 1), (0, 1)].map(Some);
        assert_eq!(written(&batch, change.addr), expected);
        batch.clear();
        let slot = slot_of(&page, b"b");
        assert_eq!(page.image().value(slot), Value::Inline(b"two"));
        change.delete(&mut batch, &mut page, slot);
        let expected = [(5, 1), (1, 1), (0, 1)].map(Some);
        assert_eq!(written(&batch, change.addr), expected);
        assert!(page.image().is_intact(change.addr, change.table));
        assert_eq!(page.image().record_count(), 1);
    }

    /// Records in the way are moved first, by record and slot. If records cannot be moved one by
    /// one, nothing is written.
    #[test]
    fn records_are_moved_to_free_space() {
        let (change, mut batch) = (at(100), Batch::new());
        // 9 words each, at 55, 46, 37, 28 and 19; 12 to 18 are free.
        let keys: [&[u8]; 5] = [b"0", b"1", b"2", b"3", b"4"];
        let mut page = page(&change, &keys.map(|key| record(key, &[9; 71])));
        change.delete(&mut batch, &mut page, 2);
        let fit = change.insert(&mut batch, &mut page, &record(b"2", &[8; 31]));
        assert_eq!(fit, FitOutcome::Enough);
        batch.clear();
        // Now 37 to 41 and 12 to 18 are free, and the latter's first word is the next slot's.
        let before = page.clone();
        let fit = change.insert(&mut batch, &mut page, &record(b"new", &[1; 77]));
        assert_eq!(
            fit,
            FitOutcome::None,
            "ten words: nothing can be moved out of the way"
        );
        assert!(batch.is_empty() && page == before);
        let fit = change.insert(&mut batch, &mut page, &record(b"new", &[1; 69]));
        assert_eq!(fit, FitOutcome::Enough, "nine words: those four are moved");
        let expected = [(15, 4), (9, 1), (37, 9), (12, 1), (5, 1), (1, 1), (0, 1)];
        assert_eq!(written(&batch, change.addr), expected.map(Some));
        for (key, value) in [
            (&b"2"[..], &[8; 31][..]),
            (b"new", &[1; 69]),
            (b"4", &[9; 71]),
        ] {
            let slot = slot_of(&page, key);
            assert_eq!(page.image().value(slot), Value::Inline(value));
        }
    }

    /// Both write link, state, unlock; a retired page that is relinked stays retired.
    #[test]
    fn retiring_and_relinking_change_the_link_alone() {
        let (change, mut batch) = (at(100), Batch::new());
        let mut page = page(&change, &[]);
        change.relink(&mut batch, &mut page, at(300).addr);
        assert_eq!(page.image().link(), at(300).addr);
        change.retire(&mut batch, &mut page, at(400).addr);
        let expected = [(4, 1), (1, 1), (0, 1)].map(Some);
        assert_eq!(written(&batch, change.addr), expected.repeat(2));
        change.relink(&mut batch, &mut page, at(500).addr);
        assert!(page.image().is_retired());
        assert_eq!(page.image().link().place(), at(500).addr);
    }
}
