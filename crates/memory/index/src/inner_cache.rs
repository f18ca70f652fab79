//! Inner nodes of the tree under a byte budget, found by level and key, so that one of the level
//! above the leaves is found without those above it. What was not used lately is evicted by CLOCK,
//! which comes near to LRU and writes nothing on a hit. Each session has a cache of its own.
//!
//! - `sherman` keeps nodes of all levels (Sherman, SIGMOD'22). Its hierarchical locks, by which
//!   writers of a process wait for a leaf among themselves and hand it over, are
//!   [`farleaf_leaf::local_locks`]. Where it departs: a lock that is handed over names its new
//!   owner, so that it can be recovered from whichever of them dies.
//! - `cell` keeps those of all levels but the lowest, which lists the leaves: what XStore's paper
//!   (OSDI'20, section 7) compares itself with as Cell (ATC'16), whose clients cache the upper
//!   four levels of a B-link tree. For the paper's 100 million keys a tree of ours has five;
//!   counted from below, a smaller tree keeps that one READ of an inner node. Where it departs:
//!   clients write by themselves, as in all trees of ours, where Cell's server does.

use farleaf_types::RemoteAddr;

use crate::clock::{Clock, Held};
use crate::hint::{Hint, SearchLayer};
use crate::tree::head::Head;
use crate::tree::node::{Entry, InnerNode};

/// The budget of a session that does not choose one.
pub const CACHE_BYTES_DEFAULT: u64 = 64 << 20;

/// A node as it is cached: its entries by their fences.
#[derive(Debug)]
struct CachedNode {
    level: u16,
    high: u64,
    entries: Box<[Entry]>,
}

impl Held for CachedNode {
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

/// One session's cache of one table's inner nodes.
#[derive(Debug)]
pub struct InnerCacheLayer {
    head: Head,
    cache: Clock<(u16, u64), CachedNode>,
    budget_bytes: u64,
    /// The lowest level of which nodes are kept; 1: that above the leaves.
    level_min: u16,
}

impl InnerCacheLayer {
    /// An empty cache of so many bytes, of the nodes of this level and those above it.
    pub fn new(head: Head, budget_bytes: u64, level_min: u16) -> Self {
        Self {
            head,
            cache: Clock::default(),
            budget_bytes,
            level_min,
        }
    }

    /// The tree's head; its root may have split since.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// There is another root.
    pub fn set_root(&mut self, root: RemoteAddr) {
        self.head.root = root;
    }

    /// The cached node of a level that covers a key.
    fn held(&self, level: u16, key: u64) -> Option<&CachedNode> {
        let node = self.cache.at_or_below((level, key))?;
        (node.level == level && key <= node.high).then_some(node)
    }

    /// The leaf that a key is in, as far as the cache tells.
    #[inline]
    pub fn locate_held(&self, key: u64) -> Option<Hint> {
        let node = self.held(1, key)?;
        let index = node.index_of(key)?;
        Some(Hint {
            addr: node.entries[index].child.place(),
            parent: index as u32,
        })
    }

    /// The node to read first on the way to a key's node of a level: a child of the lowest one that
    /// is cached, with the level of that, or the root.
    pub fn start_for(&self, key: u64, level: u16) -> (RemoteAddr, Option<u16>) {
        let held = (level + 1..=self.head.height()).find_map(|above| {
            let node = self.held(above, key)?;
            let entry = node.entries[node.index_of(key)?];
            Some((entry.child.place(), Some(above)))
        });
        held.unwrap_or((self.head.root.place(), None))
    }

    /// The node that a leaf with this lower fence is to be listed in, as far as the cache tells.
    pub fn node_for(&self, low: u64) -> Option<RemoteAddr> {
        if self.head.height() == 1 {
            return Some(self.head.root.place());
        }
        let above = self.held(2, low)?;
        Some(above.entries[above.index_of(low)?].child.place())
    }

    /// The leaves from a key on that one cached node lists; empty: there is none.
    pub fn leaves_from(&self, key: u64) -> Vec<RemoteAddr> {
        let Some(node) = self.held(1, key) else {
            return Vec::new();
        };
        let from = node.index_of(key).unwrap_or(0);
        let entries = node.entries[from..].iter();
        entries.map(|entry| entry.child.place()).collect()
    }

    /// Keeps a node that was read, if it is of a level that is cached.
    pub fn keep(&mut self, node: &InnerNode) {
        if node.level() < self.level_min {
            return;
        }
        let cached = CachedNode {
            level: node.level(),
            high: node.high(),
            entries: node.sorted_entries().into(),
        };
        self.insert((node.level(), node.low()), cached);
    }

    /// A child is listed now on a level: in the node that is cached, too.
    pub fn learn_listed(&mut self, level: u16, child: Entry) {
        let Some(place) = self.place_of(level, child.low) else {
            return;
        };
        let node = self.cache.get(place).filter(|node| child.low <= node.high);
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
        self.insert(place, renewed);
    }

    fn insert(&mut self, place: (u16, u64), node: CachedNode) {
        self.cache.insert(place, node);
        while self.metadata_bytes() > self.budget_bytes && self.cache.evict() {}
    }

    /// The node of a level that covers a key is out of date.
    pub fn forget(&mut self, level: u16, key: u64) {
        if let Some(place) = self.place_of(level, key) {
            self.cache.remove(place);
        }
    }

    /// The place in the cache of the node of a level that covers a key, or did.
    fn place_of(&self, level: u16, key: u64) -> Option<(u16, u64)> {
        let below = self.cache.key_at_or_below((level, key));
        below.filter(|(of, _)| *of == level)
    }
}

impl SearchLayer for InnerCacheLayer {
    /// Where the cache says, or else the first leaf: far memory has to tell.
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
