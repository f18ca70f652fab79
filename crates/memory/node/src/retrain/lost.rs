//! Models whose retraining fails because a node is lost.
//!
//! A retrainer that dies, or loses a node, in the middle of a run may have moved some leaves of a
//! model to the lost node. The model's trained leaves are then retired, their successors are gone,
//! and no retraining can move the model. It stays unchanged until its table is dropped.

use std::collections::BTreeMap;

use farleaf_base::{RemoteAddr, TableId};
use farleaf_index::directory::Model;

/// Number of failures after which a model is given up. If a node is lost in the middle of a
/// retraining, only that one fails; the next one succeeds.
const FAILURE_COUNT_MAX: u32 = 3;

/// Number of failed retrainings of each model that had any.
#[derive(Clone, Debug, Default)]
pub(super) struct LostModels {
    failures: BTreeMap<(TableId, RemoteAddr, u32), u32>,
}

fn key(table: TableId, model: &Model) -> (TableId, RemoteAddr, u32) {
    (table, model.base, model.leaf_count)
}

impl LostModels {
    /// Counts a retraining of these models that failed because a node is lost.
    pub(super) fn note_failure(&mut self, table: TableId, models: &[Model]) {
        for model in models {
            let count = self.failures.entry(key(table, model)).or_default();
            *count += 1;
            if *count == FAILURE_COUNT_MAX {
                tracing::warn!(
                    %table,
                    leaf = %model.base,
                    leaf_count = model.leaf_count,
                    "cannot retrain some leaves because others were moved to a lost node; they \
                     stay in place until the table is dropped"
                );
            }
        }
    }

    /// Clears the failures of models that were retrained.
    pub(super) fn forget(&mut self, table: TableId, models: &[Model]) {
        for model in models {
            self.failures.remove(&key(table, model));
        }
    }

    /// Drops tables that no longer exist.
    pub(super) fn keep(&mut self, is_there: impl Fn(TableId) -> bool) {
        self.failures.retain(|(table, ..), _| is_there(*table));
    }

    /// Returns whether a model is retrained without its neighbors: one of them may have caused the
    /// failure.
    pub(super) fn is_alone(&self, table: TableId, model: &Model) -> bool {
        self.failures.contains_key(&key(table, model))
    }

    /// Returns whether a model is not retrained any more.
    pub(super) fn is_given_up(&self, table: TableId, model: &Model) -> bool {
        let count = self.failures.get(&key(table, model));
        count.is_some_and(|count| *count >= FAILURE_COUNT_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::NodeId;

    fn model(block: u64) -> Model {
        Model {
            first_key: block,
            slope: 0.0,
            intercept: 0.0,
            error_max: 0.0,
            base: RemoteAddr::new(NodeId(1), block),
            leaf_count: 4,
            synonym_table: RemoteAddr::NULL,
            synonym_capacity: 0,
        }
    }

    /// Promise: after a failure of several models each is retried alone, and only those that fail
    /// by themselves are given up.
    #[test]
    fn only_models_that_fail_alone_are_given_up() {
        let (mut lost, table) = (LostModels::default(), TableId(1));
        let (good, bad) = (model(64), model(128));
        assert!(!lost.is_alone(table, &good));
        lost.note_failure(table, &[good, bad]);
        assert!(lost.is_alone(table, &good) && lost.is_alone(table, &bad));
        lost.forget(table, &[good]);
        lost.note_failure(table, &[bad]);
        assert!(
            !lost.is_given_up(table, &bad),
            "a node may have been lost twice"
        );
        lost.note_failure(table, &[bad]);
        assert!(lost.is_given_up(table, &bad) && !lost.is_alone(table, &good));
        assert!(!lost.is_given_up(TableId(2), &bad));
        lost.keep(|_| false);
        assert!(!lost.is_given_up(table, &bad));
    }
}
