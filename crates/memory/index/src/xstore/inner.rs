//! Tree over the leaves of a table in the memory node's own memory.

use core::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_skiplist::SkipMap;
use farleaf_base::RemoteAddr;

use crate::hint::{Hint, SearchLayer};

/// Number of hops to the left from a client's hint: to the leaf in the tree, then to the first
/// leaf.
const LEFT_HOP_COUNT: u32 = 2;

/// Addresses of leaves by their lower fences, shared by threads of the node.
#[derive(Debug)]
pub struct InnerTree {
    leaves: SkipMap<u64, RemoteAddr>,
    leaf_count: AtomicU64,
    first_leaf: RemoteAddr,
}

impl InnerTree {
    /// Creates a tree with the leaf from which links lead to all others.
    pub fn new(first_leaf: RemoteAddr) -> Self {
        let leaves = SkipMap::new();
        leaves.insert(0, first_leaf);
        Self {
            leaves,
            leaf_count: AtomicU64::new(1),
            first_leaf,
        }
    }

    /// Adds a leaf, and returns whether it was added. A lower fence always belongs to the same
    /// leaf, so a second insertion changes nothing.
    pub fn insert(&self, low: u64, leaf: RemoteAddr) -> bool {
        if self.leaves.contains_key(&low) {
            return false;
        }
        // Two threads may have met the same leaf: it is then counted twice, but listed once.
        self.leaves.insert(low, leaf);
        self.leaf_count.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Returns the leaf that covers a key, or one to its left.
    #[inline]
    pub fn find(&self, key: u64) -> RemoteAddr {
        let found = self.leaves.upper_bound(core::ops::Bound::Included(&key));
        found.map_or(self.first_leaf, |entry| *entry.value())
    }

    /// Returns the known leaves that cover some of the keys `first..=last`, in order: lower fences
    /// and addresses.
    pub fn overlapping(&self, first: u64, last: u64) -> (Vec<u64>, Vec<RemoteAddr>) {
        let before = self.leaves.upper_bound(core::ops::Bound::Included(&first));
        let from = before.map_or(0, |entry| *entry.key());
        let range = self.leaves.range(from..=last);
        range.map(|entry| (*entry.key(), *entry.value())).unzip()
    }

    /// Returns the range of keys affected by the split that created the leaf at `low`: from the
    /// left leaf's lower fence to this leaf's last key.
    pub fn around(&self, low: u64) -> (u64, u64) {
        let left = self.leaves.upper_bound(core::ops::Bound::Excluded(&low));
        let right = self.leaves.lower_bound(core::ops::Bound::Excluded(&low));
        let first = left.map_or(0, |entry| *entry.key());
        (first, right.map_or(u64::MAX, |entry| *entry.key() - 1))
    }

    /// Returns the number of leaves.
    pub fn leaf_count(&self) -> u64 {
        self.leaf_count.load(Ordering::SeqCst)
    }
}

/// Search layer of one of the node's sessions.
#[derive(Debug)]
pub struct InnerLayer {
    tree: Arc<InnerTree>,
    /// Leaf where the next search starts.
    suggested: Cell<Option<RemoteAddr>>,
    /// Lower fences of leaves that the session has added and not returned yet.
    added: Vec<u64>,
}

impl InnerLayer {
    /// Creates a layer over a tree that threads share.
    pub fn new(tree: Arc<InnerTree>) -> Self {
        Self {
            tree,
            suggested: Cell::default(),
            added: Vec::new(),
        }
    }

    /// Returns the tree.
    pub fn tree(&self) -> &Arc<InnerTree> {
        &self.tree
    }

    /// Makes the next search start at this leaf, which must be one of the table's.
    pub fn suggest(&self, leaf: RemoteAddr) {
        self.suggested.set(Some(leaf));
    }

    /// Returns the lower fences of leaves that were added since the last call.
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
        // Approximate size of a key, a value and the links of a node of the skip list.
        self.tree.leaf_count() * 64
    }
}
