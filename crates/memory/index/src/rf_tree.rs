//! RF-tree: the compute node caches everything that lists leaves, and its sessions share the cache
//! (the paper's search layer cache, SLC).
//!
//! The cache is the level above the leaves, as read at one time: adjacent fences, searched by
//! models over them, and the addresses of the leaves. It is never changed, only replaced. A session
//! whose lookup followed more links than it allows reads a new one, and the others continue with
//! the old one. Leaves that splits made since are found by links, and each session remembers those
//! it met.

use std::collections::BTreeMap;
use std::sync::Arc;

use farleaf_base::RemoteAddr;
use farleaf_model::UpperModels;

use crate::hint::{Hint, SearchLayer};
use crate::synonyms::Synonyms;
use crate::tree::head::Head;
use crate::tree::level::Level;
use crate::tree::node::ChildEntry;

/// Smallest number of leaves met beside the cache at which a session wants a newer one. They must
/// also be an eighth of the leaves that the cache lists.
const MET_COUNT_MIN: usize = 1024;
const LEAVES_PER_MET: usize = 8;

/// Level above the leaves, as a process holds it: immutable, and replaced as a whole.
#[derive(Debug)]
pub struct SearchLayerCache {
    head: Head,
    /// Lower fences of all leaves that are listed.
    fences: UpperModels,
    leaves: Vec<RemoteAddr>,
    /// Nodes that list the leaves, by lower fence.
    nodes: Vec<ChildEntry>,
}

impl SearchLayerCache {
    /// Creates a cache from a head and a level that were read.
    pub fn new(head: Head, level: Level) -> Self {
        let Level { mut entries, nodes } = level;
        if entries.first().is_none_or(|first| first.low > 0) {
            // Nodes may be torn or lost. The first leaf leads to all others.
            let child = head.first_leaf;
            entries.insert(0, ChildEntry { low: 0, child });
        }
        Self {
            head,
            leaves: entries.iter().map(|entry| entry.child.place()).collect(),
            fences: UpperModels::build(entries.into_iter().map(|entry| entry.low).collect()),
            nodes,
        }
    }

    /// Returns the head of the tree that the cache was read from.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Returns the number of leaves that the cache lists.
    pub fn leaf_count(&self) -> u32 {
        self.leaves.len() as u32
    }

    /// Returns the leaf with this number.
    #[inline]
    pub fn leaf(&self, number: u32) -> Option<Hint> {
        let addr = *self.leaves.get(number as usize)?;
        Some(Hint {
            addr,
            parent: number,
        })
    }

    #[inline]
    fn find(&self, key: u64) -> Hint {
        let number = self.fences.find(key);
        Hint {
            addr: self.leaves[number],
            parent: number as u32,
        }
    }

    /// Returns the node in which a leaf with this lower fence is to be listed.
    fn node_for(&self, low: u64) -> Option<ChildEntry> {
        let after = self.nodes.partition_point(|node| node.low <= low);
        self.nodes.get(after.checked_sub(1)?).copied()
    }

    /// Returns whether the cache lists a leaf.
    fn lists(&self, low: u64, leaf: RemoteAddr) -> bool {
        let number = self.fences.find(low);
        self.fences.first_keys()[number] == low && self.leaves[number] == leaf
    }

    fn size_bytes(&self) -> u64 {
        let leaves = size_of_val(&*self.leaves) + size_of_val(&*self.nodes);
        (self.fences.size_bytes() + leaves) as u64
    }
}

/// RF-tree layer of one session on one table.
#[derive(Debug)]
pub struct RfTreeLayer {
    cache: Arc<SearchLayerCache>,
    met: Synonyms,
    /// Nodes that this session made and the cache lacks, by lower fence.
    made: BTreeMap<u64, RemoteAddr>,
}

impl RfTreeLayer {
    /// Creates a layer over a cache that the process shares.
    pub fn new(cache: Arc<SearchLayerCache>) -> Self {
        Self {
            cache,
            met: Synonyms::default(),
            made: BTreeMap::new(),
        }
    }

    /// Returns the cache that the layer uses.
    pub fn cache(&self) -> &Arc<SearchLayerCache> {
        &self.cache
    }

    /// Returns the node in which a leaf with this lower fence is to be listed, if known.
    pub fn node_for(&self, low: u64) -> Option<RemoteAddr> {
        let made = self.made.range(..=low).next_back();
        let made = made.map(|(low, child)| (*low, *child));
        let read = self.cache.node_for(low).map(|node| (node.low, node.child));
        made.max(read).map(|(_, child)| child)
    }

    /// Records a new node that this session made by a split and linked.
    pub fn learn_node(&mut self, node: ChildEntry) {
        self.made.insert(node.low, node.child);
    }

    /// Replaces the cache by a newer one. Returns the leaves that the session met and the cache
    /// does not list: another session is about to list them, or died before it could.
    pub fn renew(&mut self, cache: Arc<SearchLayerCache>) -> Vec<ChildEntry> {
        let met = std::mem::take(&mut self.met);
        self.cache = cache;
        let read = |low, child| self.cache.node_for(low) == Some(ChildEntry { low, child });
        self.made.retain(|low, child| !read(*low, *child));
        let mut unlisted = Vec::new();
        for (low, child, _) in met.iter() {
            if !self.cache.lists(low, child) {
                let parent = self.cache.find(low).parent;
                let hint = Hint {
                    addr: child,
                    parent,
                };
                self.learn(low, hint);
                unlisted.push(ChildEntry { low, child });
            }
        }
        unlisted
    }

    /// Returns whether the session met so many leaves beside the cache that a newer one is worth
    /// reading.
    pub fn is_outgrown(&self) -> bool {
        let met = self.met.len();
        met >= MET_COUNT_MIN && met * LEAVES_PER_MET >= self.cache.leaves.len()
    }

    /// Returns the leaf with this number, and how many leaves are adjacent from it on.
    pub fn run_from(&self, number: u32, count_max: u32, stride_blocks: u64) -> Option<(Hint, u32)> {
        let first = self.cache.leaf(number)?;
        let rest = &self.cache.leaves[number as usize..];
        let rest = &rest[..rest.len().min(count_max.max(1) as usize)];
        let beside = rest.windows(2);
        let beside = beside.take_while(|pair| pair[0].offset_blocks(stride_blocks) == pair[1]);
        Some((first, 1 + beside.count() as u32))
    }
}

impl SearchLayer for RfTreeLayer {
    #[inline]
    fn locate(&self, key: u64) -> Hint {
        let listed = self.cache.find(key);
        self.met.find(listed, key).unwrap_or(listed)
    }

    fn left_of(&self, key: u64, failed: Hint) -> Option<Hint> {
        let listed = self.cache.leaf(failed.parent.checked_sub(1)?)?;
        Some(self.met.find(listed, key).unwrap_or(listed))
    }

    #[inline]
    fn next_trained(&self, parent: u32) -> Option<Hint> {
        self.cache.leaf(parent + 1)
    }

    fn learn(&mut self, low: u64, leaf: Hint) {
        if let Some(listed) = self.cache.leaf(leaf.parent) {
            let leaf_count = self.cache.leaf_count();
            self.met.insert(low, leaf.addr, listed, leaf_count);
        }
    }

    fn synonyms_above(&self, parent: u32, from: u64, limit: usize, found: &mut Vec<RemoteAddr>) {
        if self.met.knows(parent)
            && let Some(listed) = self.cache.leaf(parent)
        {
            self.met.above(listed, from, limit, found);
        }
    }

    fn metadata_bytes(&self) -> u64 {
        let made = size_of::<(u64, RemoteAddr)>() * self.made.len();
        self.cache.size_bytes() + self.met.size_bytes() + made as u64
    }
}
