//! Layers `sherman` and `cell`: a cache of inner nodes under a byte budget. Nodes are found by
//! level and key, so a cached node above the leaves is found without the nodes above it. CLOCK
//! evicts nodes: it approximates LRU and writes nothing on a hit. Each session has its own cache.
//!
//! - `sherman` caches nodes of all levels (Sherman, SIGMOD'22). Its hierarchical locks queue the
//!   writers of a process for a leaf and hand the leaf over; see
//!   [`farleaf_leaf::words::local_locks`]. Unlike in the paper, a lock that is handed over names
//!   its new owner, so it can be recovered whichever of the two dies.
//! - `cell` caches nodes of all levels but the lowest, which lists the leaves. It models Cell
//!   (ATC'16) as XStore's paper (OSDI'20, section 7) compares with it: clients cache the upper four
//!   levels of a B-link tree. For the paper's 100 million keys Farleaf's tree has five levels.
//!   Because levels are counted from below, a smaller tree also needs that one READ of an inner
//!   node. Unlike in Cell, where the server writes, clients write by themselves.

use farleaf_base::RemoteAddr;

use crate::clock::{CachedValue, Clock};
use crate::hint::{Hint, SearchLayer};
use crate::tree::head::Head;
use crate::tree::node::{ChildEntry, InnerNode};

/// Budget of a session that does not choose one, in bytes.
pub const CACHE_BYTES_DEFAULT: u64 = 64 << 20;

/// Cached inner node: its entries by their fences.
#[derive(Debug)]
struct CachedNode {
    level: u16,
    high: u64,
    entries: Box<[ChildEntry]>,
}

impl CachedValue for CachedNode {
    fn content_bytes(&self) -> u64 {
        size_of_val(&*self.entries) as u64
    }
}

impl CachedNode {
    fn index_of(&self, key: u64) -> Option<usize> {
        let after = self.entries.partition_point(|entry| entry.low <= key);
        after.checked_sub(1)
    }
}

/// Cache of one session for the inner nodes of one table.
#[derive(Debug)]
pub struct InnerCacheLayer {
    head: Head,
    cache: Clock<(u16, u64), CachedNode>,
    budget_bytes: u64,
    /// Lowest level whose nodes are cached; 1 is the level above the leaves.
    level_min: u16,
}

impl InnerCacheLayer {
    /// Creates an empty cache of `budget_bytes` for nodes of `level_min` and the levels above.
    pub fn new(head: Head, budget_bytes: u64, level_min: u16) -> Self {
        Self {
            head,
            cache: Clock::default(),
            budget_bytes,
            level_min,
        }
    }

    /// Returns the tree's head. Its root may have split since it was read.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Replaces the address of the root.
    pub fn set_root(&mut self, root: RemoteAddr) {
        self.head.root = root;
    }

    /// Returns the cached node of a level that covers a key.
    fn held(&self, level: u16, key: u64) -> Option<&CachedNode> {
        let node = self.cache.at_or_below((level, key))?;
        (node.level == level && key <= node.high).then_some(node)
    }

    /// Returns the leaf of a key, if a cached node lists it.
    #[inline]
    pub fn locate_held(&self, key: u64) -> Option<Hint> {
        let node = self.held(1, key)?;
        let index = node.index_of(key)?;
        Some(Hint {
            addr: node.entries[index].child.place(),
            parent: index as u32,
        })
    }

    /// Returns the node to read first when searching the node of `level` for a key: a child of the
    /// lowest cached node, with that node's level, or the root.
    pub fn start_for(&self, key: u64, level: u16) -> (RemoteAddr, Option<u16>) {
        let held = (level + 1..=self.head.height()).find_map(|above| {
            let node = self.held(above, key)?;
            let entry = node.entries[node.index_of(key)?];
            Some((entry.child.place(), Some(above)))
        });
        held.unwrap_or((self.head.root.place(), None))
    }

    /// Returns the node in which a leaf with this lower fence is to be listed, if it is known.
    pub fn node_for(&self, low: u64) -> Option<RemoteAddr> {
        if self.head.height() == 1 {
            return Some(self.head.root.place());
        }
        let above = self.held(2, low)?;
        Some(above.entries[above.index_of(low)?].child.place())
    }

    /// Returns the leaves from a key on that one cached node lists; empty if no such node is
    /// cached.
    pub fn leaves_from(&self, key: u64) -> Vec<RemoteAddr> {
        let Some(node) = self.held(1, key) else {
            return Vec::new();
        };
        let from = node.index_of(key).unwrap_or(0);
        let entries = node.entries[from..].iter();
        entries.map(|entry| entry.child.place()).collect()
    }

    /// Caches a node that was read, if its level is cached.
    pub fn keep(&mut self, node: &InnerNode) {
        if node.level() < self.level_min {
            return;
        }
        let cached = CachedNode {
            level: node.level(),
            high: node.high(),
            entries: node.sorted_entries().into(),
        };
        self.insert(node.level(), node.low(), cached);
    }

    /// Adds a child that is now listed on a level to the cached node.
    pub fn learn_listed(&mut self, level: u16, child: ChildEntry) {
        let Some((level, low)) = self.place_of(level, child.low) else {
            return;
        };
        let node = self
            .cache
            .get((level, low))
            .filter(|node| child.low <= node.high);
        let Some(CachedNode { high, entries, .. }) = node else {
            return;
        };
        let after = entries.partition_point(|entry| entry.low < child.low);
        if entries
            .get(after)
            .is_some_and(|entry| entry.low == child.low)
        {
            return;
        }
        let (left, right) = entries.split_at(after);
        let renewed = CachedNode {
            level,
            high: *high,
            entries: [left, &[child], right].concat().into(),
        };
        self.insert(level, low, renewed);
    }

    fn insert(&mut self, level: u16, low: u64, node: CachedNode) {
        self.cache.insert((level, low), node);
        while self.metadata_bytes() > self.budget_bytes && self.cache.evict() {}
    }

    /// Removes the outdated node of a level that covers a key.
    pub fn forget(&mut self, level: u16, key: u64) {
        if let Some(place) = self.place_of(level, key) {
            self.cache.remove(place);
        }
    }

    /// Returns the cache key of the node of a level that covers, or covered, a key.
    fn place_of(&self, level: u16, key: u64) -> Option<(u16, u64)> {
        let below = self.cache.key_at_or_below((level, key));
        below.filter(|(of, _)| *of == level)
    }
}

impl SearchLayer for InnerCacheLayer {
    /// Returns the cached leaf, or else the first leaf: then far memory must be searched.
    fn locate(&self, key: u64) -> Hint {
        self.locate_held(key).unwrap_or(Hint {
            addr: self.head.first_leaf,
            parent: 0,
        })
    }

    fn left_of(&self, key: u64, failed: Hint) -> Option<Hint> {
        let node = self.held(1, key)?;
        let parent = failed.parent.checked_sub(1)?;
        let addr = node.entries.get(parent as usize)?.child.place();
        Some(Hint { addr, parent })
    }

    fn metadata_bytes(&self) -> u64 {
        size_of::<Self>() as u64 + self.cache.bytes()
    }
}
