//! Merging the trees of two levels into one, a step at a time; pausing after corruption.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use super::Core;
use super::collect::CollectingEntries;
use super::flush::NewTree;
use super::maintain::WorkDone;
use super::rest::MergePauses;
use crate::error::LsmError;
use crate::follow::Edit;
use crate::place::{LEVEL_COUNT_MAX, SEGMENT_SIZE_BLOCKS, TreeId};
use crate::tree::{Deletes, Merge, TreeEntries};
use crate::version::{LiveTree, Version};

/// Bytes of moved records after which a step of a merge ends, however few entries it has.
const MOVED_SIZE_BYTES_MAX: u64 = 8 << 20;

/// Unfinished merge, if any, and the levels whose last merges hit corruption.
#[derive(Default)]
pub(super) struct Merges {
    pub(super) running: Option<RunningMerge>,
    pub(super) pauses: MergePauses,
}

/// Unfinished merge. Dropping it leaves nothing in force: nothing names its tree, and the records
/// that it moved exist twice in the log.
pub(super) struct RunningMerge {
    /// Level whose trees are merged into the next level.
    level: usize,
    taken: Vec<Arc<LiveTree>>,
    entries: CollectingEntries,
    tree: NewTree,
}

impl Core {
    /// Does a step of the unfinished merge, or starts that of the first level that is due and not
    /// paused. Returns `None` if no level is due. After an error, no merge is unfinished.
    ///
    /// # Errors
    /// Either nothing was changed, or the result is unknown and the engine has stopped.
    pub(super) fn merge(&self, merges: &mut Merges) -> Result<Option<WorkDone>, LsmError> {
        if merges.running.is_none() {
            let version = self.version();
            let now = Instant::now();
            // The last level has no next level.
            let levels = 1..=version.levels.len().min(LEVEL_COUNT_MAX - 1);
            let levels = levels.filter(|level| self.is_due(&version, *level));
            let mut due = levels.filter(|level| !merges.pauses.pauses(*level, now));
            let Some(level) = due.next() else {
                return Ok(None);
            };
            self.begin_merge(merges, &version, level)?;
        }
        self.step_merge(merges).map(Some)
    }

    fn is_due(&self, version: &Version, level: usize) -> bool {
        let exponent = u32::try_from(level).unwrap_or(u32::MAX);
        let growth = self.options.growth_factor.saturating_pow(exponent);
        let capacity = (self.options.l0_entry_count_max as u64).saturating_mul(growth);
        let has_many_trees =
            level == 1 && version.level(1).len() > self.options.level_1_tree_count_max;
        has_many_trees || version.level_entry_count(level) > capacity
    }

    /// Begins to merge all trees of a level and of the next one, even if the level is paused. Trees
    /// that are added on top meanwhile are newer, and stay. The caller holds the lock of merges, so
    /// no other level changes.
    pub(super) fn begin_merge(
        &self,
        merges: &mut Merges,
        version: &Version,
        level: usize,
    ) -> Result<(), LsmError> {
        let moves = !merges.pauses.has_hit_corruption(level);
        let merge = self.new_merge(version, level, moves);
        let merge = merge.inspect_err(|error| self.note_failure(merges, level, error))?;
        merges.running = Some(merge);
        Ok(())
    }

    /// Pauses the merges of a level after corruption.
    fn note_failure(&self, merges: &mut Merges, level: usize, error: &LsmError) {
        if error.is_corruption() {
            let now = Instant::now();
            merges.pauses.note_corruption(level, now, &self.options);
        }
    }

    fn new_merge(
        &self,
        version: &Version,
        level: usize,
        moves: bool,
    ) -> Result<RunningMerge, LsmError> {
        let levels = [version.level(level), version.level(level + 1)];
        let taken: Vec<Arc<LiveTree>> = levels.into_iter().flatten().cloned().collect();
        let mut below = version.levels.iter().skip(level + 1);
        let deletes = if below.any(|trees| !trees.is_empty()) {
            Deletes::Keep
        } else {
            Deletes::Omit
        };
        let mut sources = Vec::new();
        let mut entry_count_max = 0;
        for live in &taken {
            entry_count_max += live.tree().shape().entry_count;
            sources.push(TreeEntries::new(Arc::clone(live.tree()))?);
        }
        let ids: Vec<TreeId> = taken.iter().map(|it| it.entry().id).collect();
        // Deletes that are dropped are passed here, so that a step ends even if there are many.
        let trees = Merge::new(sources, Deletes::Keep, Arc::clone(&self.log))?;
        let dead = if moves {
            self.mostly_dead(version, &ids)
        } else {
            // Moved records would be in the log once more if the merge hit corruption again.
            BTreeSet::new()
        };
        Ok(RunningMerge {
            level,
            taken,
            entries: CollectingEntries::new(self, trees, deletes, dead)?,
            tree: self.begin_tree(entry_count_max),
        })
    }

    /// Continues a merge: adds entries up to the limit of the options or of moved bytes, or writes
    /// a segment of the filter. The last step writes the rest of the tree, syncs, and commits.
    ///
    /// # Errors
    /// Same as [`Self::merge`]. The merge has ended.
    pub(super) fn step_merge(&self, merges: &mut Merges) -> Result<WorkDone, LsmError> {
        let merge = merges.running.take().expect("one was begun");
        let level = merge.level;
        let stepped = self.run_step(merge);
        merges.running = stepped.inspect_err(|error| self.note_failure(merges, level, error))?;
        if merges.running.is_some() {
            return Ok(WorkDone::Merging(level));
        }
        merges.pauses.note_merged(level);
        Ok(WorkDone::Merged(level))
    }

    /// Does one step of a merge; returns `None` after the last one.
    fn run_step(&self, mut merge: RunningMerge) -> Result<Option<RunningMerge>, LsmError> {
        if self.add_entries(&mut merge)? && merge.tree.write_filter(SEGMENT_SIZE_BLOCKS)? {
            self.finish_merge(merge)?;
            return Ok(None);
        }
        Ok(Some(merge))
    }

    /// Adds entries to the tree; returns true if none are left.
    fn add_entries(&self, merge: &mut RunningMerge) -> Result<bool, LsmError> {
        let RunningMerge { entries, tree, .. } = merge;
        if entries.entry().is_none() {
            return Ok(true);
        }
        let moved_before = entries.moved_size_bytes();
        for _ in 0..self.options.merge_step_entry_count.max(1) {
            let Some(entry) = entries.entry() else {
                break;
            };
            if !entries.is_dropped() {
                tree.add(entry, entries.record_size_bytes(), &*self.log)?;
            }
            entries.advance(self)?;
            if entries.moved_size_bytes() - moved_before >= MOVED_SIZE_BYTES_MAX {
                break;
            }
        }
        Ok(false)
    }

    fn finish_merge(&self, merge: RunningMerge) -> Result<(), LsmError> {
        let below = merge.level + 1;
        let ids: Vec<TreeId> = merge.taken.iter().map(|it| it.entry().id).collect();
        let tree = self.finish_tree(merge.tree)?;
        if let Some(end) = merge.entries.end() {
            self.log.sync_to(end)?;
            self.reach(end)?;
        }
        let edit = Edit {
            log_end: merge.entries.end().unwrap_or_default(),
            removed: ids,
            added: tree.map(|tree| (below, tree)),
            ..Edit::default()
        };
        self.work.note_merge(edit.size_bytes());
        self.edit(edit, |_| {
            for live in &merge.taken {
                live.remove();
            }
        })
    }
}
