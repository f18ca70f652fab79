//! Versions: what a reader sees, and the trees and log segments that must stay because of it.
//!
//! `docs/explanation/lsm.md` describes them under *Versions and snapshots* and *Commits and free
//! space*.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::log::{LogPin, LogPins};
use crate::manifest::TreeEntry;
use crate::memtable::Memtable;
use crate::place::{SegmentId, TreeId};
use crate::tree::{References, Tree};

/// L0, the frozen L0s, and the trees of each level. A version never changes, and its holder keeps
/// all of it.
#[derive(Clone, Debug)]
pub struct Version {
    /// L0, which receives new writes.
    pub active: Arc<Memtable>,
    /// Frozen L0s that are not flushed yet, newest first.
    pub frozen: Vec<Arc<Memtable>>,
    /// Trees of each level from level 1, each level newest first.
    pub levels: Vec<Vec<Arc<LiveTree>>>,
}

impl Version {
    /// Returns all memtables, newest first.
    pub fn memtables(&self) -> impl Iterator<Item = &Memtable> {
        [&self.active]
            .into_iter()
            .chain(&self.frozen)
            .map(|it| &**it)
    }

    /// Returns all trees, newest first.
    pub fn trees(&self) -> impl Iterator<Item = &Arc<LiveTree>> {
        self.levels.iter().flatten()
    }

    /// Returns the trees of a level, newest first.
    pub fn level(&self, level: usize) -> &[Arc<LiveTree>] {
        self.levels.get(level - 1).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of entries in all trees of a level.
    pub fn level_entry_count(&self, level: usize) -> u64 {
        let trees = self.level(level).iter();
        trees.map(|it| it.tree().shape().entry_count).sum()
    }

    /// Adds a tree as the newest one of a level.
    pub fn add_tree(&mut self, level: usize, tree: Arc<LiveTree>) {
        if self.levels.len() < level {
            self.levels.resize_with(level, Vec::new);
        }
        self.levels[level - 1].insert(0, tree);
    }

    /// Removes trees from all levels.
    pub fn remove_trees(&mut self, ids: &[TreeId]) {
        for level in &mut self.levels {
            level.retain(|it| !ids.contains(&it.tree().id()));
        }
    }
}

/// Tree that the manifest names, or named when a reader began to use it.
///
/// A live tree keeps the log segments to which its entries point. When its last holder drops it and
/// the manifest no longer names it, its segments become garbage.
pub struct LiveTree {
    tree: Arc<Tree>,
    entry: TreeEntry,
    references: References,
    garbage: Arc<Garbage>,
    is_removed: AtomicBool,
    /// Declared last, so that it is dropped after everything else.
    _pin: LogPin,
}

impl fmt::Debug for LiveTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tree.fmt(f)
    }
}

impl LiveTree {
    /// Creates a live tree from the tree, its manifest entry, and its references.
    pub fn new(
        tree: Arc<Tree>,
        entry: TreeEntry,
        references: References,
        garbage: Arc<Garbage>,
        pins: &Arc<LogPins>,
    ) -> Self {
        let pin = pins.pin(references.needed());
        Self {
            tree,
            entry,
            references,
            garbage,
            is_removed: AtomicBool::new(false),
            _pin: pin,
        }
    }

    /// Returns the tree.
    pub const fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// Returns the tree's entry in the manifest.
    pub const fn entry(&self) -> &TreeEntry {
        &self.entry
    }

    /// Returns the log segments to which the tree's entries point.
    pub const fn references(&self) -> &References {
        &self.references
    }

    /// Marks the tree as removed: a durable edit of the manifest has removed it.
    pub fn remove(&self) {
        self.is_removed.store(true, Ordering::Release);
    }
}

impl Drop for LiveTree {
    fn drop(&mut self) {
        if self.is_removed.load(Ordering::Acquire) {
            let segments = std::mem::take(&mut self.entry.segments);
            self.garbage.trees().push((self.entry.id, segments));
        }
    }
}

/// Trees without holders, and their segments.
#[derive(Debug, Default)]
pub struct Garbage {
    trees: Mutex<Vec<(TreeId, Vec<SegmentId>)>>,
}

impl Garbage {
    fn trees(&self) -> MutexGuard<'_, Vec<(TreeId, Vec<SegmentId>)>> {
        self.trees.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all trees that were collected since the last call.
    pub fn take(&self) -> Vec<(TreeId, Vec<SegmentId>)> {
        std::mem::take(&mut *self.trees())
    }
}
