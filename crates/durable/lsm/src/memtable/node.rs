//! Nodes of L0's tree: slots that are written once, and an order word that lists the used ones.
//!
//! The parent module describes the protocol under *Publishing* and *Splits*.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use zerocopy::{FromZeros, KnownLayout};

use super::key::Head;

/// Number of slots of a node.
pub(super) const SLOT_COUNT: usize = 15;

/// Used slots of a node by rank: four bits for their number, and four for each slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order(u64);

impl Order {
    pub(super) const fn count(self) -> usize {
        (self.0 & 15) as usize
    }

    /// Returns the slot at a rank.
    pub(super) const fn slot(self, rank: usize) -> usize {
        (self.0 >> (4 + 4 * rank) & 15) as usize
    }

    /// Inserts a slot at a rank, before the slot that had this rank.
    pub(super) const fn with(self, rank: usize, slot: usize) -> Self {
        let low = (1 << (4 + 4 * rank)) - 1;
        let before = self.0 & low;
        // The highest bits are free, since there is no sixteenth slot.
        let behind = (self.0 & !low) << 4;
        Self((before | behind | (slot as u64) << (4 + 4 * rank)) + 1)
    }

    /// Replaces the slot at a rank by another one.
    pub(super) const fn replaced(self, rank: usize, slot: usize) -> Self {
        let cleared = self.0 & !(15 << (4 + 4 * rank));
        Self(cleared | (slot as u64) << (4 + 4 * rank))
    }
}

/// Part of an entry, or of a child's least entry, that is in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotKey {
    pub(super) head: Head,
    /// Number of the entry with the rest.
    pub(super) entry: u32,
}

impl SlotKey {
    /// Placeholder for the key of a child whose key is never read.
    pub(super) const NOTHING: Self = Self {
        head: Head(0, 0),
        entry: 0,
    };
}

/// Keys of a node.
#[derive(Debug, FromZeros, KnownLayout)]
#[repr(C)]
pub(super) struct Keys {
    order: AtomicU64,
    entries: [AtomicU32; SLOT_COUNT],
    /// Number of written slots. Only the writer uses it.
    used: AtomicU32,
    heads: [[AtomicU64; 2]; SLOT_COUNT],
}

impl Keys {
    /// Loads the published order: all slots that it names are written.
    pub(super) fn order(&self) -> Order {
        Order(self.order.load(Ordering::Acquire))
    }

    pub(super) fn used_count(&self) -> usize {
        self.used.load(Ordering::Relaxed) as usize
    }

    /// Returns the key in a slot that an order names.
    pub(super) fn key(&self, slot: usize) -> SlotKey {
        let [first, second] = &self.heads[slot];
        SlotKey {
            head: Head(
                first.load(Ordering::Relaxed),
                second.load(Ordering::Relaxed),
            ),
            entry: self.entries[slot].load(Ordering::Relaxed),
        }
    }

    /// Returns how many keys are before the search position: those before rank `from`, and those
    /// from it on that satisfy `is_before`.
    pub(super) fn rank(
        &self,
        order: Order,
        from: usize,
        is_before: impl Fn(SlotKey) -> bool,
    ) -> usize {
        let (mut low, mut high) = (from, order.count());
        while low < high {
            let middle = low.midpoint(high);
            if is_before(self.key(order.slot(middle))) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Writes the next slot, which no order names yet.
    fn write(&self, key: SlotKey) -> usize {
        let slot = self.used_count();
        assert!(slot < SLOT_COUNT, "no slot is written twice");
        self.heads[slot][0].store(key.head.0, Ordering::Relaxed);
        self.heads[slot][1].store(key.head.1, Ordering::Relaxed);
        self.entries[slot].store(key.entry, Ordering::Relaxed);
        self.used.store(slot as u32 + 1, Ordering::Relaxed);
        slot
    }

    fn publish(&self, order: Order) {
        self.order.store(order.0, Ordering::Release);
    }

    /// Returns the used slots and their keys, in order.
    fn all(&self) -> impl Iterator<Item = (usize, SlotKey)> {
        let order = self.order();
        (0..order.count()).map(move |rank| {
            let slot = order.slot(rank);
            (slot, self.key(slot))
        })
    }
}

/// Node with entries, and a link to the leaf with the next greater ones.
#[derive(Debug, FromZeros, KnownLayout)]
#[repr(C, align(64))]
pub(super) struct LeafNode {
    pub(super) keys: Keys,
    /// Next leaf, as its number plus one.
    next: AtomicU32,
    /// Previous leaf, as its number plus one. Only the writer uses it.
    previous: AtomicU32,
}

const _: () = assert!(size_of::<LeafNode>() == 320);

impl LeafNode {
    pub(super) fn next(&self) -> Option<u32> {
        self.next.load(Ordering::Acquire).checked_sub(1)
    }

    pub(super) fn set_next(&self, next: Option<u32>) {
        let next = next.map_or(0, |number| number + 1);
        self.next.store(next, Ordering::Release);
    }

    pub(super) fn previous(&self) -> Option<u32> {
        self.previous.load(Ordering::Relaxed).checked_sub(1)
    }

    pub(super) fn set_previous(&self, previous: Option<u32>) {
        let previous = previous.map_or(0, |number| number + 1);
        self.previous.store(previous, Ordering::Relaxed);
    }

    /// Returns true if the leaf has a free slot.
    pub(super) fn has_free_slot(&self) -> bool {
        self.keys.used_count() < SLOT_COUNT
    }

    /// Inserts a key at a rank, and publishes it to readers.
    pub(super) fn insert(&self, rank: usize, key: SlotKey) {
        let slot = self.keys.write(key);
        self.keys.publish(self.keys.order().with(rank, slot));
    }

    /// Fills a leaf that is not published yet.
    pub(super) fn fill(&self, keys: &[SlotKey]) {
        let mut order = Order(0);
        for (rank, key) in keys.iter().enumerate() {
            order = order.with(rank, self.keys.write(*key));
        }
        self.keys.publish(order);
    }

    /// Returns the leaf's keys with one more at this rank.
    pub(super) fn keys_with(&self, rank: usize, key: SlotKey) -> [SlotKey; SLOT_COUNT + 1] {
        let mut all = [key; SLOT_COUNT + 1];
        for (index, (_, own)) in self.keys.all().enumerate() {
            all[index + usize::from(index >= rank)] = own;
        }
        all
    }
}

/// Child and its least key; for the leftmost child, any key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Child {
    pub(super) key: SlotKey,
    pub(super) node: u32,
}

/// Node above leaves or other such nodes: children and their least keys.
#[derive(Debug, FromZeros, KnownLayout)]
#[repr(C, align(64))]
pub(super) struct InnerNode {
    keys: Keys,
    children: [AtomicU32; SLOT_COUNT],
}

const _: () = assert!(size_of::<InnerNode>() == 384);

impl InnerNode {
    /// Returns the rank and number of the child for a search: the last one whose least key is
    /// before the search position, or the first one.
    pub(super) fn find(&self, is_before: impl Fn(SlotKey) -> bool) -> (usize, u32) {
        let order = self.keys.order();
        let rank = self.keys.rank(order, 1, is_before) - 1;
        (rank, self.child(order.slot(rank)))
    }

    /// Returns the last child.
    pub(super) fn last(&self) -> u32 {
        let order = self.keys.order();
        self.child(order.slot(order.count() - 1))
    }

    /// Returns the first child.
    pub(super) fn first(&self) -> u32 {
        self.child(self.keys.order().slot(0))
    }

    fn child(&self, slot: usize) -> u32 {
        self.children[slot].load(Ordering::Relaxed)
    }

    fn write(&self, child: Child) -> usize {
        let slot = self.keys.write(child.key);
        self.children[slot].store(child.node, Ordering::Relaxed);
        slot
    }

    /// Replaces the child at a rank, adds one behind it, or both, in one step. Returns false if
    /// there are too few free slots.
    pub(super) fn change(&self, rank: usize, change: &ChildChange) -> bool {
        let wanted = usize::from(change.left.is_some()) + usize::from(change.right.is_some());
        if self.keys.used_count() + wanted > SLOT_COUNT {
            return false;
        }
        let mut order = self.keys.order();
        if let Some(node) = change.left {
            let key = self.keys.key(order.slot(rank));
            order = order.replaced(rank, self.write(Child { key, node }));
        }
        if let Some(right) = change.right {
            order = order.with(rank + 1, self.write(right));
        }
        self.keys.publish(order);
        true
    }

    /// Fills a node that is not published yet.
    pub(super) fn fill(&self, children: &[Child]) {
        let mut order = Order(0);
        for (rank, child) in children.iter().enumerate() {
            order = order.with(rank, self.write(*child));
        }
        self.keys.publish(order);
    }

    /// Returns the children after a change, and their number.
    pub(super) fn children_with(
        &self,
        rank: usize,
        change: &ChildChange,
    ) -> ([Child; SLOT_COUNT + 1], usize) {
        let mut all = [Child {
            key: SlotKey::NOTHING,
            node: 0,
        }; SLOT_COUNT + 1];
        let mut count = 0;
        for (index, (slot, key)) in self.keys.all().enumerate() {
            let node = self.child(slot);
            all[count] = Child { key, node };
            if index == rank {
                all[count].node = change.left.unwrap_or(node);
                if let Some(right) = change.right {
                    count += 1;
                    all[count] = right;
                }
            }
            count += 1;
        }
        (all, count)
    }
}

/// Replacement of a child: a node that replaces it, and one that is added behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChildChange {
    pub(super) left: Option<u32>,
    pub(super) right: Option<Child>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: an order behaves like a list of slots.
    #[test]
    fn orders_are_lists() {
        let mut order = Order(0);
        let mut model = Vec::new();
        for slot in 0..SLOT_COUNT {
            let rank = slot * 7 % (slot + 1);
            order = order.with(rank, slot);
            model.insert(rank, slot);
            if slot % 4 == 3 {
                order = order.replaced(rank / 2, 15 - slot);
                model[rank / 2] = 15 - slot;
            }
            assert_eq!(order.count(), model.len());
            let slots: Vec<_> = (0..order.count()).map(|rank| order.slot(rank)).collect();
            assert_eq!(slots, model);
        }
    }
}
