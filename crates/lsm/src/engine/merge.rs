//! Trees of two levels become one (LC2).

use std::sync::Arc;

use super::Core;
use super::collect::Collect;
use crate::error::LsmError;
use crate::manifest::Change;
use crate::place::{LEVEL_COUNT_MAX, TreeId};
use crate::tree::{Deletes, EntrySource, Merge, TreeEntries};
use crate::version::{LiveTree, Version};

impl Core {
    /// Merges the first level that is due into the one below; which one it was.
    ///
    /// # Errors
    /// Nothing was changed, or nobody knows and the engine has stopped.
    pub(super) fn merge(&self) -> Result<Option<usize>, LsmError> {
        let version = self.version();
        // Nothing is below the last one.
        let levels = 1..=version.levels.len().min(LEVEL_COUNT_MAX - 1);
        let mut due = levels.filter(|level| self.is_due(&version, *level));
        let Some(level) = due.next() else {
            return Ok(None);
        };
        self.merge_level(&version, level)?;
        Ok(Some(level))
    }

    fn is_due(&self, version: &Version, level: usize) -> bool {
        let exponent = u32::try_from(level).unwrap_or(u32::MAX);
        let growth = self.options.growth_factor.saturating_pow(exponent);
        let capacity = (self.options.l0_entry_count_max as u64).saturating_mul(growth);
        let has_many_trees =
            level == 1 && version.level(1).len() > self.options.level_1_tree_count_max;
        has_many_trees || version.level_entry_count(level) > capacity
    }

    /// Merges all trees that a level has, and all of the one below. Others may come on top
    /// meanwhile: they are newer, and stay.
    pub(super) fn merge_level(&self, version: &Version, level: usize) -> Result<(), LsmError> {
        let levels = [version.level(level), version.level(level + 1)];
        let taken: Vec<&Arc<LiveTree>> = levels.into_iter().flatten().collect();
        let mut below = version.levels.iter().skip(level + 1);
        let deletes = if below.any(|trees| !trees.is_empty()) {
            Deletes::Stay
        } else {
            Deletes::Go
        };
        let mut sources: Vec<Box<dyn EntrySource>> = Vec::new();
        let mut entry_count_max = 0;
        for live in &taken {
            entry_count_max += live.tree().shape().entry_count;
            sources.push(Box::new(TreeEntries::new(Arc::clone(live.tree()))?));
        }
        let ids: Vec<TreeId> = taken.iter().map(|it| it.entry().id).collect();
        let merge = Merge::new(sources, deletes, &self.log)?;
        let mut entries = Collect::new(self, merge, self.mostly_dead(version, &ids))?;
        let tree = self.write_tree(&mut entries, entry_count_max)?;
        if let Some(end) = entries.end() {
            self.log.sync_to(end)?;
        }
        let mut changes = vec![Change::RemoveTrees { ids: ids.clone() }];
        changes.extend(tree.iter().map(|tree| Change::AddTree {
            level: level + 1,
            tree: tree.entry().clone(),
        }));
        self.commit(&changes)?;
        for live in taken {
            live.remove();
        }
        self.change_version(|version| {
            version.remove_trees(&ids);
            if let Some(tree) = tree {
                version.add_tree(level + 1, tree);
            }
        });
        Ok(())
    }
}
