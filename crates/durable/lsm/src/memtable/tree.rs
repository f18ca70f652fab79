//! L0's tree (MT1 to MT5): one writes, and readers wait for nobody.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;

use super::arena::Arena;
use super::key::{Meta, Sought, Words};
use super::node::{Change, Child, Inner, Key, Leaf, Order, SLOT_COUNT};
use crate::place::LogPosition;
use crate::prefetch::Span;

/// A node with more children is split when it is made anew.
const CHILD_COUNT_MAX: usize = 11;

/// Versions of keys, in order.
#[derive(Debug)]
pub(super) struct Tree {
    /// Levels above the leaves, and the node on top: both in one word.
    root: AtomicU64,
    leaves: Arena<Leaf, 3>,
    inners: Arena<Inner, 3>,
    words: Words,
    /// What is given out of each.
    writer: Mutex<Given>,
    size_bytes: AtomicUsize,
    entry_count: AtomicUsize,
    /// What the records of all versions take in the log.
    log_size_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct Given {
    leaves: u32,
    inners: u32,
    words: u32,
}

/// The way to a leaf: inner nodes from the top, and the rank of the child in each.
type Path = SmallVec<[(u32, usize); 12]>;

/// A version, in a leaf as it was when it was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) leaf: u32,
    order: Order,
    rank: usize,
    pub(super) key: Key,
}

impl Tree {
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
        let mut given = Given::default();
        let root = tree.new_leaf(&mut given, &[]);
        tree.publish_root(0, root);
        tree.note_size(&given, 0);
        *tree.writer.lock().unwrap_or_else(PoisonError::into_inner) = given;
        tree
    }

    /// Bytes of all that was given out, what nobody needs any more included.
    pub(super) fn size_bytes(&self) -> usize {
        self.size_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn entry_count(&self) -> usize {
        self.entry_count.load(Ordering::Relaxed)
    }

    pub(super) fn log_size_bytes(&self) -> u64 {
        self.log_size_bytes.load(Ordering::Relaxed)
    }

    /// Takes a version in. One at a time; who inserts while another one does waits.
    pub(super) fn insert(&self, key: &[u8], position: LogPosition, meta: Meta) {
        let given = &mut *self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let sought = Sought::new(key, position);
        let (entry, next) = self.words.write(given.words, key, (position, meta));
        given.words = next;
        let own = Key {
            head: sought.head,
            entry,
        };
        let mut path = Path::new();
        let number = self.descend(&sought, |inner, rank| path.push((inner, rank)));
        let leaf = self.leaves.get(number);
        let rank = self.rank(leaf, leaf.keys.order(), &sought);
        if leaf.has_room() {
            leaf.insert(rank, own);
        } else {
            let change = self.split(given, number, (rank, own));
            self.change(given, path, (number, change));
        }
        self.note_size(given, self.entry_count() + 1);
        let log_size_bytes = self.log_size_bytes() + meta.record_size_bytes;
        self.log_size_bytes.store(log_size_bytes, Ordering::Relaxed);
    }

    /// The first version that is not before a place.
    pub(super) fn first_from(&self, sought: &Sought<'_>) -> Option<At> {
        let mut number = self.descend(sought, |_, _| ());
        loop {
            let leaf = self.leaves.get(number);
            let order = leaf.keys.order();
            let rank = self.rank(leaf, order, sought);
            if let Some(at) = self.at(number, order, rank) {
                return Some(at);
            }
            // Mostly there is one search more at the most: the node above may not have named a leaf
            // yet that is behind this one already.
            number = leaf.next()?;
        }
    }

    /// The last version that is before a place.
    pub(super) fn last_before(&self, sought: &Sought<'_>) -> Option<At> {
        let number = self.descend(sought, |_, _| ());
        let leaf = self.leaves.get(number);
        let order = leaf.keys.order();
        let rank = self.rank(leaf, order, sought);
        // The least one of a leaf is before it, or this is the first leaf (MT4).
        self.at(number, order, rank.checked_sub(1)?)
    }

    pub(super) fn first(&self) -> Option<At> {
        let leaf = self.end_leaf(Inner::first);
        self.at_or_behind(leaf, self.leaves.get(leaf).keys.order(), 0)
    }

    pub(super) fn last(&self) -> Option<At> {
        let leaf = self.end_leaf(Inner::last);
        let order = self.leaves.get(leaf).keys.order();
        self.at(leaf, order, order.count().checked_sub(1)?)
    }

    /// The version behind another one.
    pub(super) fn behind(&self, at: &At) -> Option<At> {
        self.at_or_behind(at.leaf, at.order, at.rank + 1)
    }

    /// The version before another one in the same leaf, if there is one.
    pub(super) fn before_in_leaf(&self, at: &At) -> Option<At> {
        self.at(at.leaf, at.order, at.rank.checked_sub(1)?)
    }

    /// Where the record of a version is, and what is said of it.
    pub(super) fn place(&self, at: &At) -> (LogPosition, Meta) {
        self.words.place(at.key.entry)
    }

    /// Whether a version is of this key.
    pub(super) fn is_of(&self, at: &At, sought: &Sought<'_>) -> bool {
        self.words.is_of(at.key, sought)
    }

    /// Puts a version's key into a buffer, in the place of what that had.
    pub(super) fn read_key(&self, at: &At, to: &mut Vec<u8>) {
        let (_, meta) = self.place(at);
        self.words.read_key(at.key, meta.key_size_bytes, to);
    }

    /// Asks the processor for what is elsewhere of the entries of a version's leaf, and for the
    /// leaf behind: for who goes through them all.
    pub(super) fn prefetch_leaf(&self, at: &At) {
        let leaf = self.leaves.get(at.leaf);
        if let Some(next) = leaf.next() {
            Span::of(self.leaves.some(next, 1)).prefetch();
        }
        for rank in 0..at.order.count() {
            let entry = leaf.keys.key(at.order.slot(rank)).entry;
            self.words.span(entry).prefetch();
        }
    }

    fn rank(&self, leaf: &Leaf, order: Order, sought: &Sought<'_>) -> usize {
        leaf.keys
            .rank(order, 0, |key| self.words.is_before(key, sought))
    }

    fn at(&self, leaf: u32, order: Order, rank: usize) -> Option<At> {
        (rank < order.count()).then(|| At {
            leaf,
            order,
            rank,
            key: self.leaves.get(leaf).keys.key(order.slot(rank)),
        })
    }

    /// The version of a rank, or the first one of the next leaf. (None but the only leaf is empty.)
    fn at_or_behind(&self, leaf: u32, order: Order, rank: usize) -> Option<At> {
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

    /// The leaf that has what is before a place and nearest to it, of all that was inserted when
    /// this began.
    fn descend(&self, sought: &Sought<'_>, mut pass: impl FnMut(u32, usize)) -> u32 {
        let (height, mut node) = self.root();
        for _ in 0..height {
            let inner = self.inners.get(node);
            let (rank, child) = inner.find(|key| self.words.is_before(key, sought));
            pass(node, rank);
            node = child;
        }
        node
    }

    fn end_leaf(&self, which: impl Fn(&Inner) -> u32) -> u32 {
        let (height, root) = self.root();
        (0..height).fold(root, |node, _| which(self.inners.get(node)))
    }

    fn new_leaf(&self, given: &mut Given, keys: &[Key]) -> u32 {
        let number = self.leaves.make_room(given.leaves, 1);
        given.leaves = number + 1;
        self.leaves.get(number).fill(keys);
        number
    }

    fn new_inner(&self, given: &mut Given, children: &[Child]) -> u32 {
        let number = self.inners.make_room(given.inners, 1);
        given.inners = number + 1;
        self.inners.get(number).fill(children);
        number
    }

    /// MT3: the keys of a full leaf and one more, in two leaves; the full one stays as it is.
    fn split(&self, given: &mut Given, number: u32, (rank, own): (usize, Key)) -> Change {
        let leaf = self.leaves.get(number);
        let next = leaf.next();
        let is_next_sparse = next.is_some_and(|next| {
            let keys = &self.leaves.get(next).keys;
            keys.order().count() < SLOT_COUNT / 2
        });
        let (left, right, first) = if rank == SLOT_COUNT && !is_next_sparse {
            // Keys that come in order fill one leaf after the other. Those that come in the other
            // order behind a full leaf would each have one of their own.
            (None, self.new_leaf(given, &[own]), own)
        } else {
            let all = leaf.keys_with(rank, own);
            let (low, high) = all.split_at(all.len() / 2);
            let left = self.new_leaf(given, low);
            (Some(left), self.new_leaf(given, high), high[0])
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
        Change { left, right }
    }

    /// MT3: has the nodes on the way name what has come in the place of a child, from below.
    fn change(&self, given: &mut Given, mut path: Path, (mut child, mut change): (u32, Change)) {
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
            let left = Some(self.new_inner(given, low));
            let right = high.first().map(|first| Child {
                key: first.key,
                node: self.new_inner(given, high),
            });
            (child, change) = (number, Change { left, right });
        }
        let (height, _) = self.root();
        let left = change.left.unwrap_or(child);
        let Some(right) = change.right else {
            self.publish_root(height, left);
            return;
        };
        let left = Child {
            key: Key::NOTHING,
            node: left,
        };
        let root = self.new_inner(given, &[left, right]);
        self.publish_root(height + 1, root);
    }

    fn note_size(&self, given: &Given, entry_count: usize) {
        let size_bytes = given.leaves as usize * size_of::<Leaf>()
            + given.inners as usize * size_of::<Inner>()
            + given.words as usize * size_of::<u64>();
        self.size_bytes.store(size_bytes, Ordering::Relaxed);
        self.entry_count.store(entry_count, Ordering::Relaxed);
    }
}
