//! Changes of one locked leaf as batches: each function adds the WRITEs of a change and of the
//! unlock, in the order that LEAF-2 and LEAF-3 require. Nothing is executed here.

use farleaf_base::{OwnerWord, RemoteAddr, TableId, WordAddr};
use farleaf_fabric::{AtomicSlot, Batch};

use crate::words::geometry::LeafGeometry;
use crate::words::image::{LeafBuffer, LeafImage};

/// Divisor of the record count: a record counts as near an end within the outer fourth. Several
/// sessions that insert ascending keys do so only in nearly ascending order.
const NEAR_END_SHARE: usize = 4;

/// Returns the number of sorted records before the widest of the three middle gaps; the middle one
/// of equally wide gaps.
fn widest_middle_gap(records: &[(u64, u64)]) -> usize {
    let middle = records.len().div_ceil(2);
    let gap = |count: usize| records[count].0 - records[count - 1].0;
    let wider = |best, count| if gap(count) > gap(best) { count } else { best };
    [middle - 1, middle + 1].into_iter().fold(middle, wider)
}

/// Returns how many records, including the new one at `place`, stay when a full leaf is split, and
/// the sibling's lower fence. After an append the sibling begins right above the last record that
/// stays: slightly late keys of other sessions then belong to the sibling, which has free slots.
fn cut(image: LeafImage<'_>, records: &[(u64, u64)], place: usize) -> (usize, u64) {
    let count = records.len();
    if image.high() == u64::MAX && place >= count - count / NEAR_END_SHARE {
        return (place, records[place - 1].0 + 1);
    }
    let is_prepend = image.low() == 0 && place < count / NEAR_END_SHARE;
    let left_count = if is_prepend {
        place + 1
    } else {
        widest_middle_gap(records)
    };
    (left_count, records[left_count].0)
}

/// Records of a full leaf including the new one, and the place of the split.
struct Halves {
    records: Vec<(u64, u64)>,
    left_count: usize,
    sibling_low: u64,
}

impl Halves {
    fn of(leaf: &LeafBuffer, geometry: LeafGeometry, request: &SplitRequest) -> Self {
        let image = leaf.image();
        let mut records = Vec::with_capacity(geometry.slot_count() + 1);
        image.append_sorted(0, &mut records);
        let place = records.partition_point(|(key, _)| *key < request.key);
        records.insert(place, (request.key, request.value));
        let (left_count, sibling_low) = cut(image, &records, place);
        Self {
            records,
            left_count,
            sibling_low,
        }
    }

    fn left(&self) -> &[(u64, u64)] {
        &self.records[..self.left_count]
    }

    fn right(&self) -> &[(u64, u64)] {
        &self.records[self.left_count..]
    }
}

/// Locked leaf whose change is being built.
#[derive(Clone, Copy, Debug)]
pub struct LeafChange {
    /// Shape of the table's leaves.
    pub geometry: LeafGeometry,
    /// Address of the leaf.
    pub addr: RemoteAddr,
    /// Table of the leaf.
    pub table: TableId,
    /// Word written to the lock when it is released: 0, or the next owner's word on a hand-over.
    pub next: OwnerWord,
}

/// Inputs of a split besides the leaf.
#[derive(Clone, Copy, Debug)]
pub struct SplitRequest {
    /// Key of the record whose insertion found the leaf full.
    pub key: u64,
    /// Value of that record.
    pub value: u64,
    /// Address of a leased leaf that nothing points to.
    pub sibling: RemoteAddr,
    /// Counter of synonym leaves to increment with the split, if any.
    pub counter: Option<WordAddr>,
}

/// Result of a split.
#[derive(Clone, Copy, Debug)]
pub struct Split {
    /// Lower fence of the sibling.
    pub sibling_low: u64,
    /// Batch slot that returns the counter's value before the split.
    pub counter: Option<AtomicSlot>,
}

impl LeafChange {
    /// Replaces the value in a slot (LEAF-2). Three WRITEs, 24 bytes.
    pub fn update(&self, batch: &mut Batch, leaf: &mut LeafBuffer, slot: usize, value: u64) {
        leaf.set_value(slot, value);
        batch.write_word(self.geometry.value(self.addr, slot), value);
        self.commit(batch, leaf);
    }

    /// Writes a record to a slot that the leaf does not list (LEAF-2). Four WRITEs, 32 bytes.
    pub fn insert(
        &self,
        batch: &mut Batch,
        leaf: &mut LeafBuffer,
        slot: usize,
        key: u64,
        value: u64,
    ) {
        assert!(
            leaf.image().bitmap() >> slot & 1 == 0,
            "LEAF-2: the slot is not listed"
        );
        self.write_record(batch, leaf, slot, key, value);
        self.commit(batch, leaf);
    }

    /// Removes the record in a slot (LEAF-2). Two WRITEs, 16 bytes.
    pub fn delete(&self, batch: &mut Batch, leaf: &mut LeafBuffer, slot: usize) {
        leaf.set_bitmap(leaf.image().bitmap() & !(1 << slot));
        self.commit(batch, leaf);
    }

    /// Splits a full leaf and inserts the record into the proper half, in one batch (LEAF-3).
    ///
    /// The halves are about equal. The fence goes into the widest of the three middle gaps, so that
    /// predictions seldom fall on its wrong side. A record near the end of the table's last leaf
    /// starts the right leaf. A record near the beginning of the first leaf ends the left leaf.
    /// Ascending and descending inserts thus fill leaves.
    ///
    /// If the sibling is on another node, the caller writes it in an earlier, awaited batch
    /// ([`write_sibling_of`](Self::write_sibling_of)), because verbs to different nodes are
    /// unordered (FABRIC-2).
    pub fn split(&self, batch: &mut Batch, leaf: &mut LeafBuffer, request: &SplitRequest) -> Split {
        let halves = Halves::of(leaf, self.geometry, request);
        let (left, sibling_low) = (halves.left(), halves.sibling_low);
        if request.sibling.node() == self.addr.node() {
            self.write_sibling(batch, leaf, request.sibling, &halves);
        }

        leaf.set_link(request.sibling);
        batch.write_word(self.geometry.link(self.addr), request.sibling.word());
        leaf.set_high(sibling_low - 1);
        batch.write_word(self.geometry.high(self.addr), sibling_low - 1);
        let image = leaf.image();
        let left_slots = image
            .live_slots()
            .filter(|slot| image.key(*slot) < sibling_low);
        let left_slots = left_slots.fold(0, |left_slots, slot| left_slots | 1 << slot);
        leaf.set_bitmap(left_slots);
        self.write_state(batch, leaf);
        // LEAF-3: an insert into the left half is a second change, after the split's state.
        if left.iter().any(|(key, _)| *key == request.key) {
            let slot = leaf.image().free_slot();
            let slot = slot.expect("the split moved at least one record away");
            self.write_record(batch, leaf, slot, request.key, request.value);
            self.write_state(batch, leaf);
        }
        self.unlock(batch);
        let counter = request.counter.map(|counter| batch.fetch_add(counter, 1));
        Split {
            sibling_low,
            counter,
        }
    }

    /// Writes the complete sibling of a later split (LEAF-3). If the sibling is on another node,
    /// this batch must complete before the split is posted.
    pub fn write_sibling_of(&self, batch: &mut Batch, leaf: &LeafBuffer, request: &SplitRequest) {
        let halves = Halves::of(leaf, self.geometry, request);
        self.write_sibling(batch, leaf, request.sibling, &halves);
    }

    /// Retires a leaf: its range belongs to `successor` from now on, or to no leaf (null) if its
    /// table was dropped. Writes link, state, unlock.
    pub fn retire(&self, batch: &mut Batch, leaf: &mut LeafBuffer, successor: RemoteAddr) {
        let link = successor.place().retired();
        leaf.set_link(link);
        batch.write_word(self.geometry.link(self.addr), link.word());
        self.commit(batch, leaf);
    }

    /// Writes a whole new leaf, which nothing points to and no other session may lock.
    pub fn write_new(&self, batch: &mut Batch, leaf: &mut LeafBuffer) {
        leaf.seal(self.addr, self.table);
        let (words, size) = leaf.leaf_words();
        batch.write(self.geometry.lock(self.addr), &words[..size]);
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

    /// Writes state, then unlock: the end of every LEAF-2 change.
    pub(crate) fn commit(&self, batch: &mut Batch, leaf: &mut LeafBuffer) {
        self.write_state(batch, leaf);
        self.unlock(batch);
    }

    fn write_state(&self, batch: &mut Batch, leaf: &mut LeafBuffer) {
        let state = leaf.seal(self.addr, self.table);
        batch.write_word(self.geometry.state(self.addr), state);
    }

    fn write_record(
        &self,
        batch: &mut Batch,
        leaf: &mut LeafBuffer,
        slot: usize,
        key: u64,
        value: u64,
    ) {
        leaf.set_record(slot, key, value);
        batch.write_word(self.geometry.key(self.addr, slot), key);
        batch.write_word(self.geometry.value(self.addr, slot), value);
    }

    fn write_sibling(
        &self,
        batch: &mut Batch,
        leaf: &LeafBuffer,
        addr: RemoteAddr,
        halves: &Halves,
    ) {
        let (image, records) = (leaf.image(), halves.right());
        let low = halves.sibling_low;
        let mut right = LeafBuffer::new(self.geometry, low, image.high(), image.link());
        for (slot, (key, value)) in records.iter().enumerate() {
            right.set_record(slot, *key, *value);
        }
        Self { addr, ..*self }.write_new(batch, &mut right);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::NodeId;
    use farleaf_fabric::VerbKind;

    fn change(slots: u64) -> LeafChange {
        let geometry = LeafGeometry::new(slots).expect("allowed");
        LeafChange {
            geometry,
            addr: RemoteAddr::new(NodeId(0), 100),
            table: TableId(1),
            next: OwnerWord::FREE,
        }
    }

    fn full(change: &LeafChange, high: u64) -> LeafBuffer {
        let mut leaf = LeafBuffer::new(change.geometry, 0, high, RemoteAddr::NULL);
        for slot in 0..change.geometry.slot_count() {
            leaf.set_record(slot, (slot as u64 + 1) * 10, slot as u64);
        }
        leaf.seal(change.addr, change.table);
        leaf
    }

    /// Returns the word offsets in the leaf at `addr` that a batch writes, in posting order; `None`
    /// for whole leaves elsewhere.
    fn written(batch: &Batch, addr: RemoteAddr) -> Vec<Option<u64>> {
        let start = addr.word_at(0).index();
        let offset = |index: u64| index.checked_sub(start).filter(|offset| *offset < 40);
        let writes = batch
            .verbs()
            .iter()
            .filter(|verb| verb.kind == VerbKind::Write);
        writes.map(|verb| offset(verb.addr.index())).collect()
    }

    fn request(key: u64) -> SplitRequest {
        let sibling = RemoteAddr::new(NodeId(0), 500);
        SplitRequest {
            key,
            value: 7,
            sibling,
            counter: None,
        }
    }

    #[test]
    fn leaf_2_changes_end_with_state_then_unlock() {
        let change = change(8);
        let mut leaf = full(&change, u64::MAX);
        let mut batch = Batch::new();
        change.update(&mut batch, &mut leaf, 3, 99);
        assert_eq!(
            written(&batch, change.addr),
            [Some(5 + 8 + 3), Some(1), Some(0)]
        );
        batch.clear();
        change.delete(&mut batch, &mut leaf, 3);
        assert_eq!(written(&batch, change.addr), [Some(1), Some(0)]);
        batch.clear();
        change.insert(&mut batch, &mut leaf, 3, 45, 1);
        assert_eq!(
            written(&batch, change.addr),
            [Some(8), Some(16), Some(1), Some(0)]
        );
        assert!(leaf.image().is_intact(change.addr, change.table));
        assert_eq!(leaf.image().get(45), Some(1));
    }

    #[test]
    fn leaf_3_a_split_to_the_right_writes_sibling_link_high_state_unlock() {
        let change = change(8);
        let mut leaf = full(&change, 1000);
        let mut batch = Batch::new();
        let split = change.split(&mut batch, &mut leaf, &request(75));
        assert_eq!(split.sibling_low, 60);
        assert_eq!(
            written(&batch, change.addr),
            [None, Some(4), Some(3), Some(1), Some(0)]
        );
        assert_eq!((leaf.image().high(), leaf.image().record_count()), (59, 5));
    }

    #[test]
    fn leaf_3_an_insert_to_the_left_is_a_second_change_after_the_splits_state() {
        let change = change(8);
        let mut leaf = full(&change, 1000);
        let mut batch = Batch::new();
        let split = change.split(&mut batch, &mut leaf, &request(25));
        assert_eq!(split.sibling_low, 50);
        let expected = [
            None,
            Some(4),
            Some(3),
            Some(1),
            Some(9),
            Some(17),
            Some(1),
            Some(0),
        ];
        assert_eq!(
            written(&batch, change.addr),
            expected,
            "the freed slot 4 is used after state"
        );
        assert_eq!(leaf.image().get(25), Some(7));
    }

    /// The sibling begins right above the left leaf, so that slightly late keys find free slots
    /// there.
    #[test]
    fn an_append_leaves_the_left_leaf_full() {
        let change = change(12);
        let mut leaf = full(&change, u64::MAX);
        let split = change.split(&mut Batch::new(), &mut leaf, &request(500));
        assert_eq!((split.sibling_low, leaf.image().record_count()), (121, 12));
        let mut leaf = full(&change, u64::MAX);
        let split = change.split(&mut Batch::new(), &mut leaf, &request(115));
        assert_eq!((split.sibling_low, leaf.image().record_count()), (111, 11));
        let mut leaf = full(&change, u64::MAX);
        let split = change.split(&mut Batch::new(), &mut leaf, &request(85));
        assert_eq!(
            split.sibling_low, 80,
            "only a key near the end is an append"
        );
    }

    #[test]
    fn inserts_near_the_beginning_leave_the_right_leaf_full() {
        let change = change(12);
        for (key, sibling_low, left_count) in [(5, 10, 1), (15, 20, 2), (55, 70, 7)] {
            let mut leaf = full(&change, 1000);
            let split = change.split(&mut Batch::new(), &mut leaf, &request(key));
            assert_eq!(split.sibling_low, sibling_low);
            assert_eq!(leaf.image().record_count(), left_count);
            assert!(leaf.image().get(key).is_some());
        }
    }

    /// The fence goes where predictions have the most room for error.
    #[test]
    fn the_widest_of_three_gaps_is_split() {
        let keys = |keys: &[u64]| keys.iter().map(|key| (*key, 0)).collect::<Vec<_>>();
        let nine = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(widest_middle_gap(&keys(&nine)), 5);
        let wide = [1, 2, 3, 4, 15, 16, 18, 119, 120];
        assert_eq!(widest_middle_gap(&keys(&wide)), 4);
        let wide = [1, 2, 3, 4, 5, 6, 18, 119, 120];
        assert_eq!(widest_middle_gap(&keys(&wide)), 6);
    }

    #[test]
    fn no_record_is_lost_or_doubled_by_any_split() {
        for slots in [8, 12, 16] {
            let change = change(slots);
            for key in (1..=slots * 10 + 9)
                .filter(|key| key % 10 != 0)
                .chain([u64::MAX])
            {
                let mut leaf = full(&change, u64::MAX);
                let mut batch = Batch::new();
                let split = change.split(&mut batch, &mut leaf, &request(key));
                let (verbs, words, _) = batch.parts_mut();
                let start = verbs[0].start as usize + 1;
                let sibling = crate::words::LeafImage::new(change.geometry, &words[start..]);
                assert!(sibling.is_intact(request(key).sibling, change.table));
                assert_eq!(
                    (sibling.low(), sibling.high()),
                    (split.sibling_low, u64::MAX)
                );
                let mut all = Vec::new();
                leaf.image().append_sorted(0, &mut all);
                assert!(all.iter().all(|(key, _)| *key <= leaf.image().high()));
                sibling.append_sorted(0, &mut all);
                let mut expected: Vec<_> = (0..slots).map(|slot| ((slot + 1) * 10, slot)).collect();
                expected.push((key, 7));
                expected.sort_unstable();
                assert_eq!(all, expected, "{slots} slots, key {key}");
            }
        }
    }
}
