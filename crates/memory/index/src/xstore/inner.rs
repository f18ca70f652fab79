//! The memory node's tree over the leaves of a table, in its own memory (Y2).

use core::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_skiplist::SkipMap;
use farleaf_types::RemoteAddr;

use crate::hint::{Hint, SearchLayer};

/// Hops to the left from a hint that was a client's: to what the tree says, and to the first leaf.
const LEFT_HOP_COUNT: u32 = 2;

/// Where leaves are, by their lower fences. Threads of the node share it.
#[derive(Debug)]
pub struct InnerTree {
    leaves: SkipMap<u64, RemoteAddr>,
    leaf_count: AtomicU64,
    first_leaf: RemoteAddr,
}

impl InnerTree {
    /// With the leaf that all others are linked from.
    pub fn new(first_leaf: RemoteAddr) -> Self {
        let leaves = SkipMap::new();
        leaves.insert(0, first_leaf);
        Self {
            leaves,
            leaf_count: AtomicU64::new(1),
            first_leaf,
        }
    }

    /// Adds a leaf. A lower fence is one leaf's for ever, so who comes second changes nothing.
    /// Whether it was added.
    pub fn insert(&self, low: u64, leaf: RemoteAddr) -> bool {
        if self.leaves.contains_key(&low) {
            return false;
        }
        // Two threads may have met the same leaf: it is counted twice then, and found once.
        self.leaves.insert(low, leaf);
        self.leaf_count.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// The leaf that covers a key, or one to its left.
    #[inline]
    pub fn find(&self, key: u64) -> RemoteAddr {
        let found = self.leaves.upper_bound(core::ops::Bound::Included(&key));
        found.map_or(self.first_leaf, |entry| *entry.value())
    }

    /// The leaves that cover some of the keys `first..=last`, as far as the tree knows, in order:
    /// lower fences and places.
    pub fn overlapping(&self, first: u64, last: u64) -> (Vec<u64>, Vec<RemoteAddr>) {
        let before = self.leaves.upper_bound(core::ops::Bound::Included(&first));
        let from = before.map_or(0, |entry| *entry.key());
        let range = self.leaves.range(from..=last);
        range.map(|entry| (*entry.key(), *entry.value())).unzip()
    }

    /// The lower fences of the leaves on either side of the one that begins at `low`: the first key
    /// that the left one may have had before, and the last that this one has.
    pub fn around(&self, low: u64) -> (u64, u64) {
        let left = self.leaves.upper_bound(core::ops::Bound::Excluded(&low));
        let right = self.leaves.lower_bound(core::ops::Bound::Excluded(&low));
        let first = left.map_or(0, |entry| *entry.key());
        (first, right.map_or(u64::MAX, |entry| *entry.key() - 1))
    }

    /// How many leaves there are.
    pub fn leaf_count(&self) -> u64 {
        self.leaf_count.load(Ordering::SeqCst)
    }
}

/// The search layer of a session of the node.
#[derive(Debug)]
pub struct InnerLayer {
    tree: Arc<InnerTree>,
    /// Where the next key is to be looked for first.
    suggested: Cell<Option<RemoteAddr>>,
    /// Lower fences of leaves that the session has added, until they are asked for.
    added: Vec<u64>,
}

impl InnerLayer {
    /// Over a tree that threads share.
    pub fn new(tree: Arc<InnerTree>) -> Self {
        Self {
            tree,
            suggested: Cell::default(),
            added: Vec::new(),
        }
    }

    /// The tree.
    pub fn tree(&self) -> &Arc<InnerTree> {
        &self.tree
    }

    /// The next key that is located is probably in this leaf, which is one of the table's (Y7).
    pub fn suggest(&self, leaf: RemoteAddr) {
        self.suggested.set(Some(leaf));
    }

    /// The lower fences of leaves that were added since this was asked last.
    pub fn take_added(&mut self) -> Vec<u64> {
        core::mem::take(&mut self.added)
    }
}

impl SearchLayer for InnerLayer {
    fn locate(&self, key: u64) -> Hint {
        let suggested = self.suggested.take();
        Hint {
            addr: suggested.unwrap_or_else(|| self.tree.find(key)),
            parent: LEFT_HOP_COUNT,
        }
    }

    fn left_of(&self, key: u64, failed: Hint) -> Option<Hint> {
        let parent = failed.parent.checked_sub(1)?;
        let addr = self.tree.find(key);
        (addr != failed.addr).then_some(Hint { addr, parent })
    }

    fn learn(&mut self, low: u64, leaf: Hint) {
        if self.tree.insert(low, leaf.addr) {
            self.added.push(low);
        }
    }

    fn metadata_bytes(&self) -> u64 {
        // A key, a value and the links of a node of the skip list, about.
        self.tree.leaf_count() * 64
    }
}
