//! Nodes of L0's tree (MT2, MT3): slots that are written once, and a word that says which of them
//! count, in which order.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use zerocopy::{FromZeros, KnownLayout};

use super::key::Head;

/// Slots of a node.
pub(super) const SLOT_COUNT: usize = 15;

/// The slots of a node that count, by rank: four bits for how many, and four for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order(u64);

impl Order {
    pub(super) const fn count(self) -> usize {
        (self.0 & 15) as usize
    }

    /// The slot of this rank.
    pub(super) const fn slot(self, rank: usize) -> usize {
        (self.0 >> (4 + 4 * rank) & 15) as usize
    }

    /// With another slot in the place of this rank, before those that had it and the ones behind.
    pub(super) const fn with(self, rank: usize, slot: usize) -> Self {
        let low = (1 << (4 + 4 * rank)) - 1;
        let before = self.0 & low;
        // The sixteenth there cannot be.
        let behind = (self.0 & !low) << 4;
        Self((before | behind | (slot as u64) << (4 + 4 * rank)) + 1)
    }

    /// With this slot in the place of the one that has this rank.
    pub(super) const fn replaced(self, rank: usize, slot: usize) -> Self {
        let cleared = self.0 & !(15 << (4 + 4 * rank));
        Self(cleared | (slot as u64) << (4 + 4 * rank))
    }
}

/// What a slot has of an entry, or of the least one of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) head: Head,
    /// Where the rest is.
    pub(super) entry: u32,
}

impl Key {
    /// Of a child whose key nobody looks at.
    pub(super) const NOTHING: Self = Self {
        head: Head(0, 0),
        entry: 0,
    };
}

/// The keys of a node.
#[derive(Debug, FromZeros, KnownLayout)]
#[repr(C)]
pub(super) struct Keys {
    order: AtomicU64,
    entries: [AtomicU32; SLOT_COUNT],
    /// How many slots are written. One writes, and nobody else asks.
    used: AtomicU32,
    heads: [[AtomicU64; 2]; SLOT_COUNT],
}

impl Keys {
    /// What is published: all slots that it names are written.
    pub(super) fn order(&self) -> Order {
        Order(self.order.load(Ordering::Acquire))
    }

    pub(super) fn used_count(&self) -> usize {
        self.used.load(Ordering::Relaxed) as usize
    }

    /// The key in a slot that an order names.
    pub(super) fn key(&self, slot: usize) -> Key {
        let [first, second] = &self.heads[slot];
        Key {
            head: Head(
                first.load(Ordering::Relaxed),
                second.load(Ordering::Relaxed),
            ),
            entry: self.entries[slot].load(Ordering::Relaxed),
        }
    }

    /// How many keys are before what is looked for, of those from rank `from` on and all before.
    pub(super) fn rank(&self, order: Order, from: usize, is_before: impl Fn(Key) -> bool) -> usize {
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
    fn write(&self, key: Key) -> usize {
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

    /// The keys that count, in order.
    fn all(&self) -> impl Iterator<Item = (usize, Key)> {
        let order = self.order();
        (0..order.count()).map(move |rank| {
            let slot = order.slot(rank);
            (slot, self.key(slot))
        })
    }
}

/// Entries, and which node has the greater ones.
#[derive(Debug, FromZeros, KnownLayout)]
#[repr(C, align(64))]
pub(super) struct Leaf {
    pub(super) keys: Keys,
    /// The node behind, by number plus one.
    next: AtomicU32,
    /// The one before. One writes, and nobody else asks.
    previous: AtomicU32,
}

const _: () = assert!(size_of::<Leaf>() == 320);

impl Leaf {
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

    /// Whether there is room for one more.
    pub(super) fn has_room(&self) -> bool {
        self.keys.used_count() < SLOT_COUNT
    }

    /// Takes in a key at a rank: readers see it from then on.
    pub(super) fn insert(&self, rank: usize, key: Key) {
        let slot = self.keys.write(key);
        self.keys.publish(self.keys.order().with(rank, slot));
    }

    /// Of a leaf that nobody knows yet.
    pub(super) fn fill(&self, keys: &[Key]) {
        let mut order = Order(0);
        for (rank, key) in keys.iter().enumerate() {
            order = order.with(rank, self.keys.write(*key));
        }
        self.keys.publish(order);
    }

    /// Its keys, and one more at this rank.
    pub(super) fn keys_with(&self, rank: usize, key: Key) -> [Key; SLOT_COUNT + 1] {
        let mut all = [key; SLOT_COUNT + 1];
        for (index, (_, own)) in self.keys.all().enumerate() {
            all[index + usize::from(index >= rank)] = own;
        }
        all
    }
}

/// A child and the least key in it, which for the first child of all is any.
#[derive(Clone, Copy, Debug)]
pub(super) struct Child {
    pub(super) key: Key,
    pub(super) node: u32,
}

/// Children.
#[derive(Debug, FromZeros, KnownLayout)]
#[repr(C, align(64))]
pub(super) struct Inner {
    keys: Keys,
    children: [AtomicU32; SLOT_COUNT],
}

const _: () = assert!(size_of::<Inner>() == 384);

impl Inner {
    /// The child that has what is looked for, and its rank: the last one whose least key is before
    /// that, or the first one.
    pub(super) fn find(&self, is_before: impl Fn(Key) -> bool) -> (usize, u32) {
        let order = self.keys.order();
        let rank = self.keys.rank(order, 1, is_before) - 1;
        (rank, self.child(order.slot(rank)))
    }

    /// The last child.
    pub(super) fn last(&self) -> u32 {
        let order = self.keys.order();
        self.child(order.slot(order.count() - 1))
    }

    /// The first child.
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

    /// Has another child in the place of the one of this rank, and one more behind it, at once; or
    /// not, as there are not so many slots left.
    pub(super) fn change(&self, rank: usize, change: &Change) -> bool {
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

    /// Of a node that nobody knows yet.
    pub(super) fn fill(&self, children: &[Child]) {
        let mut order = Order(0);
        for (rank, child) in children.iter().enumerate() {
            order = order.with(rank, self.write(*child));
        }
        self.keys.publish(order);
    }

    /// Its children after a change, and how many.
    pub(super) fn children_with(
        &self,
        rank: usize,
        change: &Change,
    ) -> ([Child; SLOT_COUNT + 1], usize) {
        let mut all = [Child {
            key: Key::NOTHING,
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

/// What becomes of a child: another node in its place, and one more behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) left: Option<u32>,
    pub(super) right: Option<Child>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: an order is a list of slots.
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
