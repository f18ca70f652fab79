//! The engine's side of replication: followers, bases, and how an edit is made.
//!
//! `docs/explanation/lsm.md` describes it under *The engine's side*.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use super::{Core, Engine};
use crate::device::DeviceBytes;
use crate::error::LsmError;
use crate::follow::{Edit, Follow, FreshBlockBudget, FreshBlocks, SharedTree};
use crate::log::ValueLog;
use crate::log::record::EngineId;
use crate::manifest::Change;
use crate::place::{BLOCK_SIZE_BYTES, LogNumber, LogPosition, TreeId};
use crate::version::{LiveTree, Version};

/// State of an engine between two edits, except the log from a segment on.
#[derive(Debug)]
pub struct EngineBase {
    /// Id of the engine.
    pub engine: EngineId,
    /// Log segments before `next_log` that recovery or trees need: number, and the offset at which
    /// an earlier recovery ended the log there, if any.
    pub log: Vec<(LogNumber, Option<u32>)>,
    /// First log segment that is not in `log`; all needed log data that is not in `log` is in it or
    /// later ones.
    pub next_log: LogNumber,
    /// Log position at which recovery starts.
    pub read_from: LogPosition,
    /// First tree id that was never used.
    pub next_tree: TreeId,
    /// Number of edits of the manifest.
    pub edit_count: u64,
    /// Level and tree, in the order in which a follower adds them.
    pub trees: Vec<(usize, SharedTree)>,
}

/// Background work of an engine since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkCounts {
    /// Number of L0s that were flushed to trees.
    pub flush_count: u64,
    /// Bytes of the flushed trees.
    pub flush_size_bytes: u64,
    /// Number of finished merges.
    pub merge_count: u64,
    /// Bytes of the merged trees.
    pub merge_size_bytes: u64,
    /// Bytes read from and written to the log's device.
    pub log: DeviceBytes,
    /// Bytes read from and written to the trees' device.
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
    /// Sets the engine's follower, for as long as the engine is open.
    ///
    /// # Panics
    /// Panics if the engine already has a follower.
    pub fn set_follow(&self, follow: Arc<dyn Follow>) {
        let is_first = self.core.follow.set(follow).is_ok();
        assert!(is_first, "one at a time follows an engine");
    }

    /// Returns the log, for a follower. The log does not keep the engine open.
    pub fn log(&self) -> &Arc<ValueLog> {
        &self.core.log
    }

    /// Returns the id of the engine.
    pub fn id(&self) -> EngineId {
        self.core.log.segments().engine
    }

    /// Returns counters of the engine's background work.
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

    /// Returns the state between two edits, from which a follower starts.
    ///
    /// The engine ends the open log segment, so the base refers only to earlier segments. It calls
    /// `register` with the base before it makes the next edit. So a follower registered there
    /// misses no later edit, and keeps the log from being freed from then on.
    ///
    /// # Errors
    /// The log cannot be written: the disk is full, or the engine has stopped.
    pub fn base(&self, register: impl FnOnce(&EngineBase)) -> Result<EngineBase, LsmError> {
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
        let base = EngineBase {
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

    /// Inserts a followed record that ends at a log position into L0, and freezes L0 there if it is
    /// full. Only for followers that build their own trees: nothing else writes into that L0.
    pub(crate) fn follow_record(
        &self,
        key: &[u8],
        is_delete: bool,
        position: LogPosition,
        record_size_bytes: u64,
        end: LogPosition,
    ) {
        let active = Arc::clone(&self.core.version().active);
        active.insert(key, position, record_size_bytes, is_delete);
        if self.core.is_full(&active) {
            self.core.replace_active(active, end);
        }
    }
}

impl Core {
    /// Waits until the follower, if any, has the log up to a position.
    pub(super) fn reach(&self, end: LogPosition) -> Result<(), LsmError> {
        self.follow.get().map_or(Ok(()), |it| it.reach(end))
    }

    /// Combines a tree with those of its blocks that are kept in memory for the follower.
    pub(super) fn shared(
        &self,
        live: Arc<LiveTree>,
        fresh: Vec<Option<FreshBlocks>>,
    ) -> SharedTree {
        SharedTree::new(live, Arc::clone(&self.trees), fresh)
    }

    /// Returns the memory for blocks of a new tree, if a follower will read them.
    pub(super) fn fresh_block_budget(&self) -> Option<Arc<FreshBlockBudget>> {
        let follow = self.follow.get()?;
        follow
            .takes_trees()
            .then(|| Arc::clone(&self.fresh_block_budget))
    }

    /// Makes an edit of the manifest, applies it to the version once it is in force, and announces
    /// it to the follower.
    ///
    /// # Errors
    /// The manifest cannot be written. Either the disk is full and nothing was changed, or the
    /// engine has stopped.
    pub(super) fn edit(
        &self,
        edit: Edit,
        change: impl FnOnce(&mut Version),
    ) -> Result<(), LsmError> {
        let editing = self.editing.lock();
        let editing = editing.unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = self.commit(&changes_of(&edit)) {
            // The disk was full, so the edit is not in force, and nothing names the tree.
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

/// Returns the size in bytes of a tree with this number of blocks.
pub(crate) const fn tree_size_bytes(block_count: u32) -> u64 {
    block_count as u64 * BLOCK_SIZE_BYTES as u64
}
