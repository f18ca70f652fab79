//! Decides which models are due for retraining.

use std::collections::BTreeMap;
use std::ops::Range;

use farleaf_base::{RemoteAddr, TableId};
use farleaf_index::directory::Model;
use farleaf_index::hint::{DUE_SPLIT_COUNT_MIN, LEAVES_PER_DUE_SPLIT};
use farleaf_pool::catalog::CatalogEntry;

use super::look::table_of;

/// A neighbor counts as changed when it has a quarter of the changes that make it due. When the
/// first of many equally growing models is due, most have changed: if 16 splits make a model due,
/// they have about seven.
const STARTED_SHARE: u64 = 4;

/// Policy that decides when models are retrained, and how many leaves at once.
#[derive(Clone, Copy, Debug)]
pub struct RetrainPolicy {
    /// A model is due when it has one synonym leaf, or one underfull leaf, for so many of its own
    /// leaves.
    pub leaves_per_split: u64,
    /// Minimum number of splits or underfull leaves that make a model due.
    pub split_count_min: u64,
    /// A model without recent splits is due when it has one synonym leaf for so many of its own
    /// leaves, once the table is idle.
    pub quiet_leaves_per_split: u64,
    /// A table is idle if between the node's last two checks fewer leaves were added or became
    /// underfull than one for so many of its leaves, or none.
    pub rest_leaves_per_change: u64,
    /// Maximum number of leaves of models that are retrained together, unless the table is large.
    /// Until they are published, each session finds each moved leaf by a link once.
    pub leaf_count_max: u64,
    /// Divisor of a large table's leaves that may be retrained together: each retraining writes the
    /// whole snapshot, and all sessions read it.
    pub table_share: u64,
    /// Number of leaves up to which even unchanged neighbors join a retraining: a run takes whole
    /// chunks, and each retraining writes the whole snapshot.
    pub joined_leaf_count: u64,
    /// Interval between two ticks when nothing is due, in nanoseconds. If ticks come without a
    /// pause, one is counted per interval.
    pub tick_ns: u64,
    /// Number of ticks between reads of all counters.
    pub look_tick_count: u32,
    /// Number of ticks after which a session that delays the reuse of memory is asked to publish a
    /// number.
    pub asking_tick_count: u32,
}

impl RetrainPolicy {
    /// Default policy: one split for eight leaves, at least four; or one for 512 if the model had
    /// none between two checks, and the table less than one for 16,384. 8,192 leaves at once, or
    /// one in 64; joined up to 2,048. All counters are read every 50 ticks; silent sessions are
    /// asked after 100.
    pub const DEFAULT: Self = Self {
        leaves_per_split: LEAVES_PER_DUE_SPLIT,
        split_count_min: DUE_SPLIT_COUNT_MIN,
        quiet_leaves_per_split: 512,
        rest_leaves_per_change: 1 << 14,
        leaf_count_max: 1 << 13,
        table_share: 64,
        joined_leaf_count: 2048,
        tick_ns: 20_000_000,
        look_tick_count: 50,
        asking_tick_count: 100,
    };
}

impl Default for RetrainPolicy {
    /// Returns [`Self::DEFAULT`].
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Counters of a model since it was trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ModelChanges {
    /// Number of leaves that splits have added.
    pub(super) splits: u64,
    /// Number of leaves that deletes have made underfull.
    pub(super) underfull: u64,
}

impl RetrainPolicy {
    /// Returns the models to be retrained together. `is_quiet` says for each whether nothing has
    /// changed in it for a while.
    pub(super) fn due(
        &self,
        models: &[Model],
        counted: &[ModelChanges],
        is_quiet: &[bool],
        is_open: &[bool],
    ) -> Option<Range<usize>> {
        let leaves = |model: usize| u64::from(models[model].leaf_count);
        let changes = |model: usize| counted[model].splits + counted[model].underfull;
        let is_due = |model: usize| {
            is_open[model] && self.is_due(leaves(model), counted[model], is_quiet[model])
        };
        let fullest = (0..models.len())
            .filter(|model| is_due(*model))
            .max_by_key(|model| changes(*model) * 1000 / leaves(*model))?;
        let all: u64 = (0..models.len()).map(leaves).sum();
        let leaf_count_max = self.leaf_count_max.max(all / self.table_share);
        let (mut from, mut to) = (fullest, fullest + 1);
        let mut leaf_count = leaves(fullest) + counted[fullest].splits;
        // Extend to both sides alternately, as long as the limit permits and the next model has
        // changed at all.
        let mut has_grown = true;
        while has_grown {
            has_grown = false;
            for next in [from.checked_sub(1), (to < models.len()).then_some(to)] {
                let Some(next) = next else { continue };
                let count = leaves(next) + counted[next].splits;
                let is_wanted = leaf_count < self.joined_leaf_count;
                let has_changed =
                    changes(next) * self.leaves_per_split * STARTED_SHARE > leaves(next);
                let is_worth_it = has_changed || is_wanted || is_due(next);
                if is_worth_it && is_open[next] && leaf_count + count <= leaf_count_max {
                    leaf_count += count;
                    (from, to) = (from.min(next), to.max(next + 1));
                    has_grown = true;
                }
            }
        }
        Some(from..to)
    }

    /// Returns the models to be retrained together when there is no free space for others:
    /// neighbors with half of their leaves underfull or in pairs that could be merged, of which a
    /// retraining counts one leaf. While deletes continue in a model, it waits for three quarters:
    /// early merges take space, and have to be repeated.
    pub(super) fn due_for_space(
        &self,
        models: &[Model],
        counted: &[ModelChanges],
        is_still: &[bool],
    ) -> Option<Range<usize>> {
        let leaves = |model: usize| u64::from(models[model].leaf_count) + counted[model].splits;
        let quarters = |model: usize| if is_still[model] { 2 } else { 3 };
        let wanted = |model: usize| (leaves(model) * quarters(model) / 4).max(1);
        let shrinks = |model: usize| counted[model].underfull >= wanted(model);
        let emptiest = (0..models.len())
            .filter(|model| models[*model].leaf_count > 1 && shrinks(*model))
            .max_by_key(|model| counted[*model].underfull * 1000 / leaves(*model))?;
        let (mut from, mut to) = (emptiest, emptiest + 1);
        let mut leaf_count = leaves(emptiest);
        while from > 0 && shrinks(from - 1) && leaf_count < self.joined_leaf_count {
            from -= 1;
            leaf_count += leaves(from);
        }
        while to < models.len() && shrinks(to) && leaf_count < self.joined_leaf_count {
            leaf_count += leaves(to);
            to += 1;
        }
        Some(from..to)
    }

    pub(super) fn is_due(&self, leaf_count: u64, counted: ModelChanges, is_quiet: bool) -> bool {
        let wanted = (leaf_count / self.leaves_per_split).max(self.split_count_min);
        let wanted_quiet = (leaf_count / self.quiet_leaves_per_split).max(1);
        counted.splits >= wanted
            || (leaf_count > 1 && counted.underfull >= wanted)
            || (is_quiet && counted.splits >= wanted_quiet)
    }
}

/// Properties of a model that matter for counting.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModelShape {
    /// Synonym leaf table of the model, which identifies it.
    pub(super) name: RemoteAddr,
    pub(super) leaf_count: u64,
}

impl ModelShape {
    pub(super) fn of(model: &Model) -> Self {
        Self {
            name: table_of(model),
            leaf_count: model.leaf_count.into(),
        }
    }
}

/// Counters at the node's last own look.
#[derive(Debug, Default)]
pub(super) struct LastCounters {
    tables: BTreeMap<TableId, LastTableCounters>,
}

/// Counters of a table. Models are identified by their synonym leaf tables.
#[derive(Debug, Default)]
struct LastTableCounters {
    models: BTreeMap<RemoteAddr, LastModelCounters>,
    /// Number of changes since the previous look.
    change_count: u64,
}

/// Counters of a model.
#[derive(Clone, Copy, Debug)]
struct LastModelCounters {
    counted: ModelChanges,
    /// Whether the previous look found the same counters.
    is_quiet: bool,
}

impl LastCounters {
    /// Drops tables that no longer exist.
    pub(super) fn keep(&mut self, live: &[CatalogEntry]) {
        self.tables
            .retain(|table, _| live.iter().any(|entry| entry.record.id == *table));
    }

    /// Returns for each model whether the node's last two own checks and this one found the same
    /// counters, while the table was idle.
    pub(super) fn quiet(
        &mut self,
        table: TableId,
        models: &[ModelShape],
        counted: &[ModelChanges],
        is_own_look: bool,
        policy: &RetrainPolicy,
    ) -> Vec<bool> {
        let seen = self.tables.entry(table).or_default();
        let both = || models.iter().map(|model| model.name).zip(counted);
        if is_own_look {
            *seen = seen.updated(both());
        }
        let leaf_count: u64 = models.iter().map(|model| model.leaf_count).sum();
        let is_at_rest = seen.change_count <= leaf_count / policy.rest_leaves_per_change;
        let is_quiet = |(model, counted): (RemoteAddr, &ModelChanges)| {
            let seen = seen.models.get(&model);
            is_at_rest && seen.is_some_and(|seen| seen.is_quiet && seen.counted == *counted)
        };
        both().map(is_quiet).collect()
    }

    /// Returns for each model whether its counters have not changed since the node's last own look.
    pub(super) fn still(
        &self,
        table: TableId,
        models: &[Model],
        counted: &[ModelChanges],
    ) -> Vec<bool> {
        let seen = self.tables.get(&table);
        let is_still = |(model, counted): (&Model, &ModelChanges)| {
            let seen = seen.and_then(|seen| seen.models.get(&table_of(model)));
            seen.is_some_and(|seen| seen.counted == *counted)
        };
        models.iter().zip(counted).map(is_still).collect()
    }
}

impl LastTableCounters {
    /// Returns the state after another look.
    fn updated<'a>(&self, counted: impl Iterator<Item = (RemoteAddr, &'a ModelChanges)>) -> Self {
        let mut change_count = 0;
        let models = counted.map(|(model, counted)| {
            let before = self.models.get(&model).map(|before| before.counted);
            let known = before.unwrap_or_default();
            change_count += counted.splits.saturating_sub(known.splits);
            change_count += counted.underfull.saturating_sub(known.underfull);
            let is_quiet = before == Some(*counted);
            let counted = *counted;
            (model, LastModelCounters { counted, is_quiet })
        });
        let models = models.collect();
        Self {
            models,
            change_count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(leaf_count: u32) -> Model {
        Model {
            first_key: 0,
            slope: 0.0,
            intercept: 0.0,
            error_max: 0.0,
            base: RemoteAddr::NULL,
            leaf_count,
            synonym_table: RemoteAddr::NULL,
            synonym_capacity: 0,
        }
    }

    fn due(leaf_counts: &[u32], counted: &[(u64, u64)], quiet: bool) -> Option<Range<usize>> {
        let models: Vec<Model> = leaf_counts.iter().map(|count| model(*count)).collect();
        let counted: Vec<ModelChanges> = counted
            .iter()
            .map(|(splits, underfull)| ModelChanges {
                splits: *splits,
                underfull: *underfull,
            })
            .collect();
        let policy = RetrainPolicy {
            leaf_count_max: 5000,
            joined_leaf_count: 256,
            ..RetrainPolicy::default()
        };
        policy.due(
            &models,
            &counted,
            &vec![quiet; models.len()],
            &vec![true; models.len()],
        )
    }

    /// Promise: one split for eight leaves, at least four, or as many underfull leaves, make a
    /// model due.
    #[test]
    fn enough_changes_make_a_model_due() {
        assert_eq!(due(&[800], &[(99, 0)], false), None);
        assert_eq!(due(&[800], &[(100, 0)], false), Some(0..1));
        assert_eq!(due(&[800], &[(0, 100)], false), Some(0..1));
        assert_eq!(due(&[1], &[(3, 0)], false), None);
        assert_eq!(due(&[1], &[(4, 0)], false), Some(0..1));
        assert_eq!(
            due(&[1], &[(0, 9)], false),
            None,
            "there is nothing to merge"
        );
    }

    /// Promise: without new splits, one for 512 leaves is enough.
    #[test]
    fn fewer_splits_do_when_nothing_changes_any_more() {
        assert_eq!(due(&[1600], &[(3, 0)], false), None);
        assert_eq!(due(&[1600], &[(3, 0)], true), Some(0..1));
        assert_eq!(due(&[1600], &[(2, 99)], true), None);
        assert_eq!(due(&[1], &[(1, 0)], true), Some(0..1));
    }

    /// Promise: the fullest model comes first; changed neighbors join it, and any neighbors while
    /// there are few leaves; the others stay.
    #[test]
    fn neighbours_come_along_when_it_is_worth_it() {
        let fullest = due(&[800, 800, 800], &[(100, 0), (0, 0), (200, 0)], false);
        assert_eq!(fullest, Some(2..3));
        let changed = due(&[800, 800, 800], &[(30, 0), (100, 0), (20, 0)], false);
        assert_eq!(changed, Some(0..2));
        let few = due(&[90, 90, 90, 90], &[(0, 0), (0, 0), (20, 0), (0, 0)], false);
        assert_eq!(few, Some(1..4), "until there are 256");
        let full = due(&[4900, 800], &[(4900, 0), (700, 0)], false);
        assert_eq!(full, Some(0..1), "there is no room for more");
    }

    /// Promise: without free space, only half-empty models are retrained.
    #[test]
    fn what_shrinks_is_retrained_without_space() {
        let due = |leaf_counts: &[u32], counted: &[(u64, u64)]| {
            let models: Vec<Model> = leaf_counts.iter().map(|count| model(*count)).collect();
            let counted = counted.iter().map(|(splits, underfull)| ModelChanges {
                splits: *splits,
                underfull: *underfull,
            });
            let is_still = vec![true; models.len()];
            RetrainPolicy::DEFAULT.due_for_space(&models, &counted.collect::<Vec<_>>(), &is_still)
        };
        assert_eq!(due(&[800], &[(800, 799)]), None, "it may grow");
        assert_eq!(due(&[800], &[(0, 400)]), Some(0..1));
        assert_eq!(due(&[9], &[(0, 4)]), Some(0..1), "all pairs");
        assert_eq!(due(&[9], &[(2, 4)]), None);
        assert_eq!(due(&[9, 1], &[(0, 9), (50, 2)]), Some(0..1));
        let changing = |underfull| {
            let counted = ModelChanges {
                splits: 0,
                underfull,
            };
            RetrainPolicy::DEFAULT.due_for_space(&[model(800)], &[counted], &[false])
        };
        assert_eq!((changing(599), changing(600)), (None, Some(0..1)));
        assert_eq!(due(&[1], &[(0, 1)]), None, "there is nothing to merge");
        let neighbours = [(0, 0), (9, 99), (0, 100), (0, 60), (0, 20)];
        assert_eq!(due(&[100; 5], &neighbours), Some(1..4));
        let joined = [(0, 99), (0, 100), (0, 60), (0, 20), (0, 0)];
        assert_eq!(due(&[100; 5], &joined), Some(0..3));
        assert_eq!(
            due(&[2000; 3], &[(0, 2000); 3]),
            Some(1..3),
            "enough is enough"
        );
    }

    /// Promise: a model is quiet when two of the node's own checks have found the same counters,
    /// and until the counters change, however often other code reads them in between.
    #[test]
    fn two_own_looks_tell_what_is_quiet() {
        let mut seen = LastCounters::default();
        let mut look = |splits, is_own| {
            let counted = ModelChanges {
                splits,
                underfull: 0,
            };
            let policy = RetrainPolicy::default();
            let shape = ModelShape::of(&model(8));
            seen.quiet(TableId(1), &[shape], &[counted], is_own, &policy)[0]
        };
        assert!(!look(1, true));
        assert!(!look(1, false), "not by itself");
        assert!(look(1, true) && look(1, false));
        assert!(!look(2, false) && !look(2, true));
        assert!(look(2, true));
    }

    /// Promise: while a table grows, no model is quiet. Most would be for a second, and would be
    /// moved as a whole for every few splits (with 5 % inserts that took two thirds of a core).
    #[test]
    fn nothing_is_quiet_in_a_table_that_grows() {
        let mut seen = LastCounters::default();
        let named = |number: u64| Model {
            synonym_table: RemoteAddr::new(farleaf_base::NodeId(0), number),
            ..model(1 << 13)
        };
        let models = [named(1), named(2), named(3)];
        let mut look = |splits: [u64; 3]| {
            let counted = splits.map(|splits| ModelChanges {
                splits,
                underfull: 0,
            });
            let policy = RetrainPolicy::default();
            let shapes = models.each_ref().map(ModelShape::of);
            seen.quiet(TableId(1), &shapes, &counted, true, &policy)
        };
        look([5, 5, 5]);
        assert_eq!(look([5, 5, 7]), [false, false, false]);
        assert_eq!(
            look([5, 5, 8]),
            [true, true, false],
            "one in 16,384 is rest"
        );
        assert_eq!(look([5, 5, 8]), [true, true, true]);
    }
}
