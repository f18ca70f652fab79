//! What a reader sees, and what must stay because of it (LC1, LC3, LC5).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::manifest::TreeEntry;
use crate::memtable::Memtable;
use crate::place::{LogNumber, SegmentId, TreeId};
use crate::tree::{References, Tree};

/// L0, what is frozen, and the trees of each level. It never changes: who has it has all of it.
#[derive(Clone, Debug)]
pub struct Version {
    /// What is written into.
    pub active: Arc<Memtable>,
    /// What is not flushed yet, newest first.
    pub frozen: Vec<Arc<Memtable>>,
    /// From level 1 on, in each the newest first.
    pub levels: Vec<Vec<Arc<LiveTree>>>,
}

impl Version {
    /// All memtables, newest first.
    pub fn memtables(&self) -> impl Iterator<Item = &Memtable> {
        [&self.active]
            .into_iter()
            .chain(&self.frozen)
            .map(|it| &**it)
    }

    /// All trees, newest first.
    pub fn trees(&self) -> impl Iterator<Item = &Arc<LiveTree>> {
        self.levels.iter().flatten()
    }

    /// The trees of a level, newest first.
    pub fn level(&self, level: usize) -> &[Arc<LiveTree>] {
        self.levels.get(level - 1).map_or(&[], Vec::as_slice)
    }

    /// Entries of all trees of a level.
    pub fn level_entry_count(&self, level: usize) -> u64 {
        let trees = self.level(level).iter();
        trees.map(|it| it.tree().shape().entry_count).sum()
    }

    /// Puts a tree on top of a level.
    pub fn add_tree(&mut self, level: usize, tree: Arc<LiveTree>) {
        if self.levels.len() < level {
            self.levels.resize_with(level, Vec::new);
        }
        self.levels[level - 1].insert(0, tree);
    }

    /// Takes trees out.
    pub fn remove_trees(&mut self, ids: &[TreeId]) {
        for level in &mut self.levels {
            level.retain(|it| !ids.contains(&it.tree().id()));
        }
    }
}

/// A tree that a manifest names, or named when somebody began to read it.
///
/// It keeps what it leads to in the log. When the last who has it lets go of one that is not named
/// any more, its segments are garbage (LC3).
pub struct LiveTree {
    tree: Arc<Tree>,
    entry: TreeEntry,
    references: References,
    garbage: Arc<Garbage>,
    is_removed: AtomicBool,
    /// Let go of after all else.
    _pin: LogPin,
}

impl fmt::Debug for LiveTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tree.fmt(f)
    }
}

impl LiveTree {
    /// Of a tree, what the manifest says of it, and its references.
    pub fn new(
        (tree, entry): (Arc<Tree>, TreeEntry),
        references: References,
        (garbage, pins): (Arc<Garbage>, &Arc<LogPins>),
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

    /// The tree.
    pub const fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// What the manifest says of it.
    pub const fn entry(&self) -> &TreeEntry {
        &self.entry
    }

    /// Which log segments it leads into.
    pub const fn references(&self) -> &References {
        &self.references
    }

    /// The manifest does not name it any more, and that is durable.
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

/// Trees that nobody has any more, and their segments.
#[derive(Debug, Default)]
pub struct Garbage {
    trees: Mutex<Vec<(TreeId, Vec<SegmentId>)>>,
}

impl Garbage {
    fn trees(&self) -> MutexGuard<'_, Vec<(TreeId, Vec<SegmentId>)>> {
        self.trees.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over what is there.
    pub fn take(&self) -> Vec<(TreeId, Vec<SegmentId>)> {
        std::mem::take(&mut *self.trees())
    }
}

/// How many lead into each log segment.
#[derive(Debug, Default)]
pub struct LogPins {
    counts: Mutex<BTreeMap<LogNumber, u64>>,
    /// Some segment may be free that was not.
    has_changed: AtomicBool,
}

impl LogPins {
    fn counts(&self) -> MutexGuard<'_, BTreeMap<LogNumber, u64>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps these segments until the pin is dropped. They must be there: because of another pin,
    /// or since the log has to be read again from there or from before.
    pub fn pin(self: &Arc<Self>, numbers: impl IntoIterator<Item = LogNumber>) -> LogPin {
        let numbers: Vec<LogNumber> = numbers.into_iter().collect();
        let mut counts = self.counts();
        for number in &numbers {
            *counts.entry(*number).or_default() += 1;
        }
        drop(counts);
        LogPin {
            pins: Arc::clone(self),
            numbers,
        }
    }

    /// Of these segments those that nobody keeps.
    pub fn unpinned(&self, numbers: impl Iterator<Item = LogNumber>) -> Vec<LogNumber> {
        let counts = self.counts();
        numbers.filter(|it| !counts.contains_key(it)).collect()
    }

    /// Says that some segment may be free.
    pub fn note_change(&self) {
        self.has_changed.store(true, Ordering::Release);
    }

    /// Whether that was said since the last time.
    pub fn take_change(&self) -> bool {
        self.has_changed.swap(false, Ordering::AcqRel)
    }
}

/// Keeps log segments until it is dropped.
#[derive(Debug)]
pub struct LogPin {
    pins: Arc<LogPins>,
    numbers: Vec<LogNumber>,
}

impl Drop for LogPin {
    fn drop(&mut self) {
        let mut counts = self.pins.counts();
        for number in &self.numbers {
            if let Some(count) = counts.get_mut(number) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(number);
                }
            }
        }
        drop(counts);
        self.pins.note_change();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a segment is free when the last pin of it is gone, and that is told.
    #[test]
    fn pins_keep_segments() {
        let pins = Arc::new(LogPins::default());
        let all = || (0..5).map(LogNumber);
        let one = pins.pin([1, 2, 3].map(LogNumber));
        let other = pins.pin([3, 4].map(LogNumber));
        assert_eq!(pins.unpinned(all()), [LogNumber(0)]);
        assert!(!pins.take_change());
        drop(one);
        assert_eq!(pins.unpinned(all()), [0, 1, 2].map(LogNumber));
        assert!(pins.take_change() && !pins.take_change());
        drop(other);
        assert_eq!(pins.unpinned(all()).len(), 5);
    }
}
