//! L0's tree: one writer, and readers that never wait. The parent module describes the protocol.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;

use super::arena::Arena;
use super::key::{Meta, SearchPosition, Words};
use super::node::{Child, ChildChange, InnerNode, LeafNode, Order, SLOT_COUNT, SlotKey};
use crate::place::LogPosition;
use crate::prefetch::Span;

/// Number of children from which a node is split when it is replaced.
const CHILD_COUNT_MAX: usize = 11;

/// Sorted tree of versions.
#[derive(Debug)]
pub(super) struct MemtableTree {
    /// Height above the leaves and number of the root, in one word.
    root: AtomicU64,
    leaves: Arena<LeafNode, 3>,
    inners: Arena<InnerNode, 3>,
    words: Words,
    /// Allocation state of each arena.
    writer: Mutex<AllocatedCounts>,
    size_bytes: AtomicUsize,
    entry_count: AtomicUsize,
    /// Size in the log of all versions' records, in bytes.
    log_size_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct AllocatedCounts {
    leaves: u32,
    inners: u32,
    words: u32,
}

/// Path to a leaf: inner nodes from the root, and the child rank in each.
type Path = SmallVec<[(u32, usize); 12]>;

/// Version in a leaf, as the leaf was when it was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct VersionPosition {
    pub(super) leaf: u32,
    order: Order,
    rank: usize,
    pub(super) key: SlotKey,
}

impl MemtableTree {
    pub(super) fn new() -> Self {
        let tree = Self {
            root: AtomicU64::new(0),
            leaves: Arena::new(),
            inners: Arena::new(),
            words: Words::new(),
            writer: Mutex::default(),
            size_bytes: AtomicUsize::new(0),
            entry_count: AtomicUsize::new(0),
            log_size_bytes: AtomicU64::new(0),
        };
        let mut allocated = AllocatedCounts::default();
        let root = tree.new_leaf(&mut allocated, &[]);
        tree.publish_root(0, root);
        tree.note_size(&allocated, 0);
        *tree.writer.lock().unwrap_or_else(PoisonError::into_inner) = allocated;
        tree
    }

    /// Returns the bytes of all allocated memory, including replaced nodes.
    pub(super) fn size_bytes(&self) -> usize {
        self.size_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn entry_count(&self) -> usize {
        self.entry_count.load(Ordering::Relaxed)
    }

    pub(super) fn log_size_bytes(&self) -> u64 {
        self.log_size_bytes.load(Ordering::Relaxed)
    }

    /// Inserts a version. Concurrent callers wait for each other.
    pub(super) fn insert(&self, key: &[u8], position: LogPosition, meta: Meta) {
        let allocated = &mut *self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let search = SearchPosition::new(key, position);
        let (entry, next) = self.words.write(allocated.words, key, position, meta);
        allocated.words = next;
        let own = SlotKey {
            head: search.head,
            entry,
        };
        let mut path = Path::new();
        let number = self.descend(&search, |inner, rank| path.push((inner, rank)));
        let leaf = self.leaves.get(number);
        let rank = self.rank(leaf, leaf.keys.order(), &search);
        if leaf.has_free_slot() {
            leaf.insert(rank, own);
        } else {
            let change = self.split(allocated, number, rank, own);
            self.change(allocated, path, number, change);
        }
        self.note_size(allocated, self.entry_count() + 1);
        let log_size_bytes = self.log_size_bytes() + meta.record_size_bytes;
        self.log_size_bytes.store(log_size_bytes, Ordering::Relaxed);
    }

    /// Returns the first version that is not before a search position.
    pub(super) fn first_from(&self, search: &SearchPosition<'_>) -> Option<VersionPosition> {
        let mut number = self.descend(search, |_, _| ());
        loop {
            let leaf = self.leaves.get(number);
            let order = leaf.keys.order();
            let rank = self.rank(leaf, order, search);
            if let Some(at) = self.at(number, order, rank) {
                return Some(at);
            }
            // Mostly at most one more search: the parent may not name a leaf yet that already
            // follows this one.
            number = leaf.next()?;
        }
    }

    /// Returns the last version before a search position.
    pub(super) fn last_before(&self, search: &SearchPosition<'_>) -> Option<VersionPosition> {
        let number = self.descend(search, |_, _| ());
        let leaf = self.leaves.get(number);
        let order = leaf.keys.order();
        let rank = self.rank(leaf, order, search);
        // The leaf's least entry is before the position, or this is the first leaf.
        self.at(number, order, rank.checked_sub(1)?)
    }

    pub(super) fn first(&self) -> Option<VersionPosition> {
        let leaf = self.end_leaf(InnerNode::first);
        self.at_or_behind(leaf, self.leaves.get(leaf).keys.order(), 0)
    }

    pub(super) fn last(&self) -> Option<VersionPosition> {
        let leaf = self.end_leaf(InnerNode::last);
        let order = self.leaves.get(leaf).keys.order();
        self.at(leaf, order, order.count().checked_sub(1)?)
    }

    /// Returns the version behind another one.
    pub(super) fn behind(&self, at: &VersionPosition) -> Option<VersionPosition> {
        self.at_or_behind(at.leaf, at.order, at.rank + 1)
    }

    /// Returns the version before another one in the same leaf, if any.
    pub(super) fn before_in_leaf(&self, at: &VersionPosition) -> Option<VersionPosition> {
        self.at(at.leaf, at.order, at.rank.checked_sub(1)?)
    }

    /// Returns the log position and properties of a version.
    pub(super) fn place(&self, at: &VersionPosition) -> (LogPosition, Meta) {
        self.words.place(at.key.entry)
    }

    /// Returns true if a version belongs to the searched key.
    pub(super) fn is_of(&self, at: &VersionPosition, search: &SearchPosition<'_>) -> bool {
        self.words.is_of(at.key, search)
    }

    /// Copies a version's key into a buffer, replacing its contents.
    pub(super) fn read_key(&self, at: &VersionPosition, to: &mut Vec<u8>) {
        let (_, meta) = self.place(at);
        self.words.read_key(at.key, meta.key_size_bytes, to);
    }

    /// Prefetches the separately stored parts of a leaf's entries, and the next leaf: for iteration
    /// over all of them.
    pub(super) fn prefetch_leaf(&self, at: &VersionPosition) {
        let leaf = self.leaves.get(at.leaf);
        if let Some(next) = leaf.next() {
            Span::of(self.leaves.some(next, 1)).prefetch();
        }
        for rank in 0..at.order.count() {
            let entry = leaf.keys.key(at.order.slot(rank)).entry;
            self.words.span(entry).prefetch();
        }
    }

    fn rank(&self, leaf: &LeafNode, order: Order, search: &SearchPosition<'_>) -> usize {
        leaf.keys
            .rank(order, 0, |key| self.words.is_before(key, search))
    }

    fn at(&self, leaf: u32, order: Order, rank: usize) -> Option<VersionPosition> {
        (rank < order.count()).then(|| VersionPosition {
            leaf,
            order,
            rank,
            key: self.leaves.get(leaf).keys.key(order.slot(rank)),
        })
    }

    /// Returns the version at a rank, or the first one of the next leaf. (Only a tree with a single
    /// leaf has an empty one.)
    fn at_or_behind(&self, leaf: u32, order: Order, rank: usize) -> Option<VersionPosition> {
        self.at(leaf, order, rank).or_else(|| {
            let next = self.leaves.get(leaf).next()?;
            self.at(next, self.leaves.get(next).keys.order(), 0)
        })
    }

    fn root(&self) -> (u32, u32) {
        let root = self.root.load(Ordering::Acquire);
        ((root >> 32) as u32, root as u32)
    }

    fn publish_root(&self, height: u32, node: u32) {
        let root = u64::from(height) << 32 | u64::from(node);
        self.root.store(root, Ordering::Release);
    }

    /// Returns the leaf with the versions right before a search position, among all that were
    /// inserted before this call.
    fn descend(&self, search: &SearchPosition<'_>, mut pass: impl FnMut(u32, usize)) -> u32 {
        let (height, mut node) = self.root();
        for _ in 0..height {
            let inner = self.inners.get(node);
            let (rank, child) = inner.find(|key| self.words.is_before(key, search));
            pass(node, rank);
            node = child;
        }
        node
    }

    fn end_leaf(&self, which: impl Fn(&InnerNode) -> u32) -> u32 {
        let (height, root) = self.root();
        (0..height).fold(root, |node, _| which(self.inners.get(node)))
    }

    fn new_leaf(&self, allocated: &mut AllocatedCounts, keys: &[SlotKey]) -> u32 {
        let number = self.leaves.allocate(allocated.leaves, 1);
        allocated.leaves = number + 1;
        self.leaves.get(number).fill(keys);
        number
    }

    fn new_inner(&self, allocated: &mut AllocatedCounts, children: &[Child]) -> u32 {
        let number = self.inners.allocate(allocated.inners, 1);
        allocated.inners = number + 1;
        self.inners.get(number).fill(children);
        number
    }

    /// Splits the keys of a full leaf and one more into two leaves; the full leaf is not changed.
    fn split(
        &self,
        allocated: &mut AllocatedCounts,
        number: u32,
        rank: usize,
        own: SlotKey,
    ) -> ChildChange {
        let leaf = self.leaves.get(number);
        let next = leaf.next();
        let is_next_sparse = next.is_some_and(|next| {
            let keys = &self.leaves.get(next).keys;
            keys.order().count() < SLOT_COUNT / 2
        });
        let (left, right, first) = if rank == SLOT_COUNT && !is_next_sparse {
            // Ascending keys fill one leaf after the other. Descending keys behind a full leaf
            // would each get a leaf of their own.
            (None, self.new_leaf(allocated, &[own]), own)
        } else {
            let all = leaf.keys_with(rank, own);
            let (low, high) = all.split_at(all.len() / 2);
            let left = self.new_leaf(allocated, low);
            (Some(left), self.new_leaf(allocated, high), high[0])
        };
        let behind = self.leaves.get(right);
        behind.set_next(next);
        behind.set_previous(Some(left.unwrap_or(number)));
        if let Some(next) = next {
            self.leaves.get(next).set_previous(Some(right));
        }
        match left {
            None => leaf.set_next(Some(right)),
            Some(left) => {
                let previous = leaf.previous();
                self.leaves.get(left).set_next(Some(right));
                self.leaves.get(left).set_previous(previous);
                if let Some(previous) = previous {
                    self.leaves.get(previous).set_next(Some(left));
                }
            }
        }
        let right = Some(Child {
            key: first,
            node: right,
        });
        ChildChange { left, right }
    }

    /// Updates the parents of a replaced child, from the leaf up.
    fn change(
        &self,
        allocated: &mut AllocatedCounts,
        mut path: Path,
        mut child: u32,
        mut change: ChildChange,
    ) {
        while let Some((number, rank)) = path.pop() {
            let inner = self.inners.get(number);
            if inner.change(rank, &change) {
                return;
            }
            let (all, count) = inner.children_with(rank, &change);
            let all = &all[..count];
            let (low, high) = if count <= CHILD_COUNT_MAX {
                (all, &[][..])
            } else {
                all.split_at(count / 2)
            };
            let left = Some(self.new_inner(allocated, low));
            let right = high.first().map(|first| Child {
                key: first.key,
                node: self.new_inner(allocated, high),
            });
            (child, change) = (number, ChildChange { left, right });
        }
        let (height, _) = self.root();
        let left = change.left.unwrap_or(child);
        let Some(right) = change.right else {
            self.publish_root(height, left);
            return;
        };
        let left = Child {
            key: SlotKey::NOTHING,
            node: left,
        };
        let root = self.new_inner(allocated, &[left, right]);
        self.publish_root(height + 1, root);
    }

    fn note_size(&self, allocated: &AllocatedCounts, entry_count: usize) {
        let size_bytes = allocated.leaves as usize * size_of::<LeafNode>()
            + allocated.inners as usize * size_of::<InnerNode>()
            + allocated.words as usize * size_of::<u64>();
        self.size_bytes.store(size_bytes, Ordering::Relaxed);
        self.entry_count.store(entry_count, Ordering::Relaxed);
    }
}
