//! What who follows needs of the engine (FO1 to FO4, FO10), and how an edit is made.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use super::{Core, Engine};
use crate::device::DeviceBytes;
use crate::error::LsmError;
use crate::follow::{Edit, Follow, FreshBlocks, FreshRoom, SharedTree};
use crate::log::ValueLog;
use crate::log::record::EngineId;
use crate::manifest::Change;
use crate::place::{BLOCK_SIZE_BYTES, LogNumber, LogPosition, TreeId};
use crate::version::{LiveTree, Version};

/// What an engine has at a moment, but for the log from a segment on (FO3).
#[derive(Debug)]
pub struct Base {
    /// Whose it is.
    pub engine: EngineId,
    /// The log segments that trees lead into, or that are read again: number, and where the log
    /// ended there once.
    pub log: Vec<(LogNumber, Option<u32>)>,
    /// All that is needed of the log and is not in `log` is in this segment and behind.
    pub next_log: LogNumber,
    /// The log is read again from there.
    pub read_from: LogPosition,
    /// The first number that no tree has ever had.
    pub next_tree: TreeId,
    /// Edits of its manifest.
    pub edit_count: u64,
    /// Level and tree, in the order in which they are added.
    pub trees: Vec<(usize, SharedTree)>,
}

/// What background work an engine has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkCounts {
    /// L0s that became trees.
    pub flush_count: u64,
    /// Bytes of those trees.
    pub flush_size_bytes: u64,
    /// Merges that are done.
    pub merge_count: u64,
    /// Bytes of their trees.
    pub merge_size_bytes: u64,
    /// The device of the log.
    pub log: DeviceBytes,
    /// The device of trees.
    pub trees: DeviceBytes,
}

#[derive(Debug, Default)]
pub(super) struct WorkCounters {
    flush_count: AtomicU64,
    flush_size_bytes: AtomicU64,
    merge_count: AtomicU64,
    merge_size_bytes: AtomicU64,
}

impl WorkCounters {
    pub(super) fn note_flush(&self, size_bytes: u64) {
        self.flush_count.fetch_add(1, Ordering::Relaxed);
        self.flush_size_bytes
            .fetch_add(size_bytes, Ordering::Relaxed);
    }

    pub(super) fn note_merge(&self, size_bytes: u64) {
        self.merge_count.fetch_add(1, Ordering::Relaxed);
        self.merge_size_bytes
            .fetch_add(size_bytes, Ordering::Relaxed);
    }
}

impl Engine {
    /// FO1: from now on somebody follows, as long as the engine is open.
    ///
    /// # Panics
    /// Somebody does already.
    pub fn set_follow(&self, follow: Arc<dyn Follow>) {
        let is_first = self.core.follow.set(follow).is_ok();
        assert!(is_first, "one at a time follows an engine");
    }

    /// The log, for who follows: it does not keep the engine open.
    pub fn log(&self) -> &Arc<ValueLog> {
        &self.core.log
    }

    /// Whose directory it is.
    pub fn id(&self) -> EngineId {
        self.core.log.segments().engine
    }

    /// What it has done in the background.
    pub fn work(&self) -> WorkCounts {
        let (core, work) = (&self.core, &self.core.work);
        WorkCounts {
            flush_count: work.flush_count.load(Ordering::Relaxed),
            flush_size_bytes: work.flush_size_bytes.load(Ordering::Relaxed),
            merge_count: work.merge_count.load(Ordering::Relaxed),
            merge_size_bytes: work.merge_size_bytes.load(Ordering::Relaxed),
            log: core.log.segments().device.bytes(),
            trees: core.trees.bytes(),
        }
    }

    /// FO3: what there is now. The log goes on in a segment that is begun then, so all of what
    /// there is lies before that. `register` is called with it before the next edit is made:
    /// whoever is told of all edits from then on misses none, and sees that nothing of the log is
    /// freed.
    ///
    /// # Errors
    /// The log cannot be written: there is no room, or the engine has stopped.
    pub fn base(&self, register: impl FnOnce(&Base)) -> Result<Base, LsmError> {
        let core = &self.core;
        let editing = core.editing.lock();
        let editing = editing.unwrap_or_else(PoisonError::into_inner);
        let state = core.manifest.state();
        let (version, next_log) = core.log.end_segment_now(|| core.version())?;
        let mut needed: BTreeSet<LogNumber> = BTreeSet::new();
        for live in version.trees() {
            needed.extend(live.references().needed());
        }
        let is_needed = |number: &LogNumber| {
            *number < next_log && (*number >= state.read_from.number() || needed.contains(number))
        };
        let log = state.log.iter().filter(|(number, _)| is_needed(number));
        let mut trees = Vec::new();
        for (level, live) in (1..).zip(&version.levels) {
            let oldest_first = live.iter().rev();
            trees.extend(
                oldest_first.map(|live| (level, core.shared(Arc::clone(live), Vec::new()))),
            );
        }
        let base = Base {
            engine: state.engine,
            log: log.map(|(number, entry)| (*number, entry.end)).collect(),
            next_log,
            read_from: state.read_from,
            next_tree: state.next_tree,
            edit_count: state.edit_count,
            trees,
        };
        register(&base);
        drop(editing);
        Ok(base)
    }

    /// FO7: takes in what is followed, a record that ends at a place; L0 is frozen there if it is
    /// full then. Nobody else writes into it.
    pub(crate) fn follow_record(
        &self,
        (key, is_delete): (&[u8], bool),
        place: (LogPosition, u64),
        end: LogPosition,
    ) {
        let active = Arc::clone(&self.core.version().active);
        active.insert(key, place, is_delete);
        if self.core.is_full(&active) {
            self.core.replace_active(active, end);
        }
    }
}

impl Core {
    /// FO2: returns when all who follow have the log up to a place.
    pub(super) fn reach(&self, end: LogPosition) -> Result<(), LsmError> {
        self.follow.get().map_or(Ok(()), |it| it.reach(end))
    }

    /// A tree, and what is kept of its blocks (FO10).
    pub(super) fn shared(
        &self,
        live: Arc<LiveTree>,
        fresh: Vec<Option<FreshBlocks>>,
    ) -> SharedTree {
        SharedTree::new((live, Arc::clone(&self.trees)), fresh)
    }

    /// FO10: where the blocks of a new tree are kept, if somebody will read them.
    pub(super) fn fresh_room(&self) -> Option<Arc<FreshRoom>> {
        let follow = self.follow.get()?;
        follow.takes_trees().then(|| Arc::clone(&self.fresh_room))
    }

    /// Makes an edit of the manifest and one of the version, which readers see when it is in force,
    /// and tells who follows (FO3).
    ///
    /// # Errors
    /// The manifest cannot be written: nothing was changed as there is no room, or the engine has
    /// stopped.
    pub(super) fn edit(
        &self,
        edit: Edit,
        change: impl FnOnce(&mut Version),
    ) -> Result<(), LsmError> {
        let editing = self.editing.lock();
        let editing = editing.unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = self.commit(&changes_of(&edit)) {
            // There was no room: it is not in force, so nothing names the tree.
            if let (Ok(()), Some((_, tree))) = (self.check(), &edit.added) {
                tree.live().remove();
            }
            return Err(error);
        }
        if edit.changes_trees() || edit.read_from.is_some() {
            self.change_version(|version| {
                change(version);
                version.remove_trees(&edit.removed);
                if let Some((level, tree)) = &edit.added {
                    version.add_tree(*level, Arc::clone(tree.live()));
                }
            });
        }
        if let Some(follow) = self.follow.get() {
            follow.edited(edit);
        }
        drop(editing);
        Ok(())
    }
}

fn changes_of(edit: &Edit) -> Vec<Change> {
    let mut changes = Vec::new();
    changes.extend(edit.read_from.map(Change::ReadFrom));
    if !edit.removed.is_empty() {
        let ids = edit.removed.clone();
        changes.push(Change::RemoveTrees { ids });
    }
    changes.extend(edit.added.as_ref().map(|(level, tree)| Change::AddTree {
        level: *level,
        tree: tree.live().entry().clone(),
    }));
    if !edit.freed.is_empty() {
        let numbers = edit.freed.clone();
        changes.push(Change::FreeLog { numbers });
    }
    changes
}

/// Bytes of a tree of so many blocks.
pub(crate) const fn tree_size_bytes(block_count: u32) -> u64 {
    block_count as u64 * BLOCK_SIZE_BYTES as u64
}
