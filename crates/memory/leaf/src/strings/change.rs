//! Changes of one locked page as batches: each function adds the WRITEs of a change and of the
//! unlock, in the order that BP1 to BP4 demand. Nothing is executed here. The buffer follows: after
//! each function it is what far memory will hold.

use farleaf_fabric::Batch;
use farleaf_types::{OwnerWord, RemoteAddr, TableId};

use crate::buffer::PageBuffer;
use crate::fence::Fence;
use crate::geometry::PageGeometry;
use crate::image::PageImage;
use crate::record::{Encoded, NewRecord, SlotSet, Value, words_of};
use crate::space::{Movable, Move, Place, find_place};
use crate::words::{FenceWord, SlotWord};

/// A locked page whose change is being written down.
#[derive(Clone, Copy, Debug)]
pub struct PageChange {
    /// Shape of the table's pages.
    pub geometry: PageGeometry,
    /// The page.
    pub addr: RemoteAddr,
    /// Its table.
    pub table: TableId,
    /// What is written into the lock word when the lock is given back (H2).
    pub next: OwnerWord,
}

/// Whether a record found room: an outcome, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Room {
    /// It did, and the change is in the batch.
    Enough,
    /// It did not: batch and buffer are as they were. Split the page, or repack it.
    None,
}

impl PageChange {
    /// BP3, BP4: replaces the value in a slot. Four WRITEs (record, slot, state, unlock), the
    /// record's bytes and 24 more, and two for each record that is moved before.
    pub fn update(
        &self,
        batch: &mut Batch,
        page: &mut PageBuffer,
        slot: usize,
        value: Value<'_>,
    ) -> Room {
        let room = self.put_value(batch, page, slot, value);
        self.commit_if(batch, page, room)
    }

    /// BP3, BP4: puts a record into a page that covers its key and does not list it. Five WRITEs
    /// (record, slot, bitmap, state, unlock), the record's bytes and 32 more, and two for each
    /// record that is moved before.
    ///
    /// Panics when the key is inline and must be outside, or the other way round.
    pub fn insert(&self, batch: &mut Batch, page: &mut PageBuffer, record: &NewRecord<'_>) -> Room {
        let room = self.put_record(batch, page, record);
        self.commit_if(batch, page, room)
    }

    /// BP3: removes the record in a slot. Three WRITEs, 24 bytes.
    pub fn delete(&self, batch: &mut Batch, page: &mut PageBuffer, slot: usize) {
        let slots = page.image().slots();
        assert!(slots.contains(slot), "BP3: the slot is listed");
        self.write_slots(batch, page, slots.without(slot));
        self.commit(batch, page);
    }

    /// Retires a page: its range belongs to `successor` from now on, or to nobody if its table was
    /// dropped (null). Link, then state, then unlock.
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

    /// Writes a whole page that nothing points to yet, and that nobody may lock. One WRITE.
    pub fn write_new(&self, batch: &mut Batch, page: &mut PageBuffer) {
        self.write_locked(batch, page, OwnerWord::FREE);
    }

    /// Writes a whole page that nothing points to yet, with its lock held by `holder`. One WRITE.
    pub fn write_locked(&self, batch: &mut Batch, page: &mut PageBuffer, holder: OwnerWord) {
        page.seal(self.addr, self.table);
        let (words, size_words) = page.page_words(holder.word());
        batch.write(self.geometry.lock(self.addr), &words[..size_words]);
    }

    /// H2: the same page, whose lock goes to somebody else instead of being free.
    #[must_use]
    pub fn handing_to(self, next: OwnerWord) -> Self {
        Self { next, ..self }
    }

    /// Gives the lock back, or to whom the change hands it, and changes nothing else.
    pub fn unlock(&self, batch: &mut Batch) {
        batch.write_word(self.geometry.lock(self.addr), self.next.word());
    }

    /// State, then unlock: the end of every change (BP2).
    pub(crate) fn commit(&self, batch: &mut Batch, page: &mut PageBuffer) {
        self.write_state(batch, page);
        self.unlock(batch);
    }

    fn commit_if(&self, batch: &mut Batch, page: &mut PageBuffer, room: Room) -> Room {
        if room == Room::Enough {
            self.commit(batch, page);
        }
        room
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

    /// BP3's record, slot and bitmap, without the commit.
    pub(crate) fn put_record(
        &self,
        batch: &mut Batch,
        page: &mut PageBuffer,
        record: &NewRecord<'_>,
    ) -> Room {
        let image = page.image();
        let slots = image.slots();
        let slot = slots.lowest_missing();
        if slot >= self.geometry.slot_count_max() {
            return Room::None;
        }
        let encoded = Encoded::new(self.geometry, image.prefix_size_bytes(), record);
        let new_slot = (slot >= slots.end()).then_some(slot);
        let Some(place) = find_place(image, encoded.words.len(), new_slot) else {
            return Room::None;
        };
        self.put(batch, page, slot, &encoded, &place);
        self.write_slots(batch, page, slots.with(slot));
        Room::Enough
    }

    /// BP3's record and slot, without the commit.
    pub(crate) fn put_value(
        &self,
        batch: &mut Batch,
        page: &mut PageBuffer,
        slot: usize,
        value: Value<'_>,
    ) -> Room {
        let image = page.image();
        assert!(image.slots().contains(slot), "BP3: the slot is listed");
        let word = image.slot_word(slot);
        let key = image.record_bytes(slot);
        let key = &key[..usize::from(word.key_size_bytes).min(key.len())];
        let encoded = Encoded::updated(self.geometry, word, key, value);
        let Some(place) = find_place(image, encoded.words.len(), None) else {
            return Room::None;
        };
        self.put(batch, page, slot, &encoded, &place);
        Room::Enough
    }

    /// BP4: the moves, the record, its slot's word.
    fn put(
        &self,
        batch: &mut Batch,
        page: &mut PageBuffer,
        slot: usize,
        encoded: &Encoded,
        place: &Place,
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

    /// Words that nothing listed names (BP1).
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

/// The word of a fence whose string's bytes are in the page already: the first ones of what a
/// listed key has there (BP5). `None` if there is no such key, or the fence does not begin with the
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
    use crate::buffer::{NewFence, NewPage, NewPrefix};
    use crate::outside::Outside;
    use crate::record::NewKey;
    use farleaf_types::NodeId;

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

    /// A page from before "" to the end, sealed.
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

    /// The first word, as an offset in the page, and the number of words of each WRITE; WRITEs of
    /// other pages as `None`.
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
            crate::Found::Record(slot) => slot,
            other => panic!("{other:?}"),
        }
    }

    /// BP3: record, slot, bitmap, state, unlock; without the bitmap for an update; without record
    /// and slot for a delete.
    #[test]
    fn bp3_changes_end_with_state_then_unlock() {
        let (change, mut batch) = (at(100), Batch::new());
        let mut page = page(&change, &[record(b"b", b"one")]);
        let room = change.insert(&mut batch, &mut page, &record(b"a", &[7; 20]));
        assert_eq!(room, Room::Enough);
        let expected = [(60, 3), (8, 1), (5, 1), (1, 1), (0, 1)].map(Some);
        assert_eq!(written(&batch, change.addr), expected);
        batch.clear();
        let slot = slot_of(&page, b"b");
        let room = change.update(&mut batch, &mut page, slot, Value::Inline(b"two"));
        assert_eq!(room, Room::Enough);
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

    /// BP4: what is in the way is moved first, by record and slot; nothing, where records cannot be
    /// moved one by one.
    #[test]
    fn bp4_records_are_moved_to_make_room() {
        let (change, mut batch) = (at(100), Batch::new());
        // 9 words each, at 55, 46, 37, 28 and 19; 12 to 18 are free.
        let keys: [&[u8]; 5] = [b"0", b"1", b"2", b"3", b"4"];
        let mut page = page(&change, &keys.map(|key| record(key, &[9; 71])));
        change.delete(&mut batch, &mut page, 2);
        let room = change.insert(&mut batch, &mut page, &record(b"2", &[8; 31]));
        assert_eq!(room, Room::Enough);
        batch.clear();
        // Now 37 to 41 and 12 to 18 are free, and the latter's first word is the next slot's.
        let before = page.clone();
        let room = change.insert(&mut batch, &mut page, &record(b"new", &[1; 77]));
        assert_eq!(
            room,
            Room::None,
            "ten words: nothing can be moved out of the way"
        );
        assert!(batch.is_empty() && page == before);
        let room = change.insert(&mut batch, &mut page, &record(b"new", &[1; 69]));
        assert_eq!(room, Room::Enough, "nine words: those four are moved");
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

    /// Link, state, unlock; a retired page that is relinked stays retired.
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
