//! Trees of two levels become one (LC2), a step at a time (LC6); after damage it rests (LC7).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use super::Core;
use super::collect::Collect;
use super::flush::NewTree;
use super::maintain::Worked;
use super::rest::Rests;
use crate::error::LsmError;
use crate::follow::Edit;
use crate::place::{LEVEL_COUNT_MAX, SEGMENT_SIZE_BLOCKS, TreeId};
use crate::tree::{Deletes, Merge, TreeEntries};
use crate::version::{LiveTree, Version};

/// A step is over when it has moved so many bytes of records, whatever its entries are.
const MOVED_SIZE_BYTES_MAX: u64 = 8 << 20;

/// The merge that was begun, if one was; and which levels' merges have met damage.
#[derive(Default)]
pub(super) struct Merges {
    pub(super) running: Option<RunningMerge>,
    pub(super) rests: Rests,
}

/// A merge that is not done yet. Dropped, it leaves nothing: its tree is not named, and what it has
/// moved is there twice.
pub(super) struct RunningMerge {
    /// Whose trees go into the one below.
    level: usize,
    taken: Vec<Arc<LiveTree>>,
    entries: Collect,
    tree: NewTree,
}

impl Core {
    /// Does a step of the merge that was begun, or of that of the first level that is due and does
    /// not rest (LC7). `None`: none is. After an error there is none that was begun.
    ///
    /// # Errors
    /// Nothing was changed, or nobody knows and the engine has stopped.
    pub(super) fn merge(&self, merges: &mut Merges) -> Result<Option<Worked>, LsmError> {
        if merges.running.is_none() {
            let version = self.version();
            let now = Instant::now();
            // Nothing is below the last one.
            let levels = 1..=version.levels.len().min(LEVEL_COUNT_MAX - 1);
            let levels = levels.filter(|level| self.is_due(&version, *level));
            let mut due = levels.filter(|level| !merges.rests.rests(*level, now));
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

    /// Begins to merge all trees that a level has, and all of the one below, whether it rests or
    /// not. Others may come on top meanwhile: they are newer, and stay. Who has the lock of merges
    /// sees to it that no other level changes.
    pub(super) fn begin_merge(
        &self,
        merges: &mut Merges,
        version: &Version,
        level: usize,
    ) -> Result<(), LsmError> {
        let moves = !merges.rests.has_met_damage(level);
        let begun = self.new_merge(version, level, moves);
        let begun = begun.inspect_err(|error| self.note_failure(merges, level, error))?;
        merges.running = Some(begun);
        Ok(())
    }

    /// LC7: what met damage is not tried again at once.
    fn note_failure(&self, merges: &mut Merges, level: usize, error: &LsmError) {
        if error.is_damage() {
            let now = Instant::now();
            merges.rests.note_damage(level, now, &self.options);
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
            Deletes::Stay
        } else {
            Deletes::Go
        };
        let mut sources = Vec::new();
        let mut entry_count_max = 0;
        for live in &taken {
            entry_count_max += live.tree().shape().entry_count;
            sources.push(TreeEntries::new(Arc::clone(live.tree()))?);
        }
        let ids: Vec<TreeId> = taken.iter().map(|it| it.entry().id).collect();
        // Deletes that go are passed here, so that a step has an end where there are many.
        let trees = Merge::new(sources, Deletes::Stay, Arc::clone(&self.log))?;
        let dead = if moves {
            self.mostly_dead(version, &ids)
        } else {
            // LC7: what it moved would be there once more if it met damage again.
            BTreeSet::new()
        };
        Ok(RunningMerge {
            level,
            taken,
            entries: Collect::new(self, (trees, deletes), dead)?,
            tree: self.begin_tree(entry_count_max),
        })
    }

    /// Goes on with a merge for a while: takes in so many entries as the options say or moves so
    /// many bytes, or writes a segment of the filter; the last step writes what is left of the
    /// tree, syncs, and commits.
    ///
    /// # Errors
    /// As those of [`Self::merge`]: the merge has ended.
    pub(super) fn step_merge(&self, merges: &mut Merges) -> Result<Worked, LsmError> {
        let merge = merges.running.take().expect("one was begun");
        let level = merge.level;
        let stepped = self.go_on(merge);
        merges.running = stepped.inspect_err(|error| self.note_failure(merges, level, error))?;
        if merges.running.is_some() {
            return Ok(Worked::Merging(level));
        }
        merges.rests.note_merged(level);
        Ok(Worked::Merged(level))
    }

    /// A step of a merge; `None`: that was the last one.
    fn go_on(&self, mut merge: RunningMerge) -> Result<Option<RunningMerge>, LsmError> {
        if self.take_in(&mut merge)? && merge.tree.write_filter(SEGMENT_SIZE_BLOCKS)? {
            self.finish_merge(merge)?;
            return Ok(None);
        }
        Ok(Some(merge))
    }

    /// Takes in entries; true: there were none any more.
    fn take_in(&self, merge: &mut RunningMerge) -> Result<bool, LsmError> {
        let RunningMerge { entries, tree, .. } = merge;
        if entries.entry().is_none() {
            return Ok(true);
        }
        let moved_before = entries.moved_size_bytes();
        for _ in 0..self.options.merge_step_entry_count.max(1) {
            let Some(entry) = entries.entry() else {
                break;
            };
            if !entries.goes() {
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
