//! Report of a run.

use farleaf::{RetrainCounters, TableStats};
use serde::Serialize;

use super::client_threads::ChangeResults;
use super::{FreshSession, Interval, TimelineConfig};

/// Settings and results of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimelineReport {
    /// Results of all intervals, in their order.
    #[serde(skip)]
    pub intervals: Vec<Interval>,
    /// Total results.
    #[serde(flatten)]
    pub total: TimelineTotal,
}

/// Settings and total results of a run; one JSON object with these field names.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimelineTotal {
    /// Name of the pattern.
    pub pattern: &'static str,
    /// Search layer of the table.
    pub index: &'static str,
    /// Fabric of the pool.
    pub fabric: &'static str,
    /// Number of loaded keys.
    pub loaded: u64,
    /// Number of keys to put.
    pub puts: u64,
    /// Number of keys to delete.
    pub deletes: u64,
    /// Number of client threads.
    pub threads: u64,
    /// Threads of the pool's node that retrained.
    pub retrain_threads: u32,
    /// Percentage of gets while writes were left.
    pub reads_percent: u8,
    /// Slots of a leaf.
    pub slots: u64,
    /// Percentage of a leaf's slots that the load fills.
    pub fill_percent: u8,
    /// Error bound of the models, in keys.
    pub epsilon: f64,
    /// Seed of keys and operations.
    pub seed: u64,
    /// Commit of the code that ran.
    pub commit: String,
    /// Length of an interval, in seconds.
    pub interval_s: f64,
    /// Time of the last write, in seconds.
    pub written_s: f64,
    /// Mean round trips per get, of those that ended before the last write.
    pub round_trips_per_get: Option<f64>,
    /// Share of those gets before the last write that one leaf answered in one round trip.
    pub one_leaf_fraction: Option<f64>,
    /// Same share for the gets of the last interval.
    pub one_leaf_fraction_last: Option<f64>,
    /// Costs in a session that was opened afterwards.
    pub fresh: FreshSession,
    /// Bytes per key that this session holds to find leaves.
    pub metadata_bytes_per_key: f64,
    /// Number of records at the end.
    pub records: u64,
    /// Number of leaves at the end.
    pub leaves: u64,
    /// Number of models at the end.
    pub models: u64,
    /// Share of slots that contain records at the end.
    pub fill: f64,
    /// Bytes of the table's memory before the first write.
    pub memory_bytes_begin: u64,
    /// Bytes of the table's memory at the end.
    pub memory_bytes: u64,
    /// Maximum of the bytes of the pool in use, before the first write and at the ends of
    /// intervals.
    pub pool_used_bytes_max: u64,
    /// Links that threads followed to leaves that splits had created.
    pub synonyms_followed: u64,
    /// Hints of threads that led to leaves that a retraining had moved.
    pub stale_hints: u64,
    /// Totals of retraining.
    pub retraining: RetrainingTotal,
    /// Share of the time until the end of the last write's interval in which the node's thread
    /// retrained: of one core, if it had one to itself.
    pub retraining_share: f64,
    /// Operations that failed or returned a wrong answer, except puts.
    pub errors: u64,
    /// Operations, or keys of the final check, that did not find an existing record.
    pub missing: u64,
    /// Puts that the store refused.
    pub refused: u64,
}

/// Totals of retraining, from the load to the final check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RetrainingTotal {
    /// Retrainings that were committed.
    pub count: u64,
    /// Leaves that they moved.
    pub leaves_moved: u64,
    /// Leaves into which records were moved.
    pub leaves_made: u64,
    /// Records of all retrained leaves.
    pub records: u64,
    /// Models that they trained.
    pub models_trained: u64,
    /// Total duration in nanoseconds.
    pub time_ns: u64,
    /// Longest duration in nanoseconds.
    pub time_ns_max: u64,
    /// Round trips for which the longest step held its locks.
    pub step_round_trips_max: u64,
    /// Bytes that became free again.
    pub reclaimed_bytes: u64,
    /// Models that a client had requested.
    pub queued: u64,
    /// Models that the node had found by itself.
    pub found: u64,
}

fn sum(intervals: &[Interval], of: impl Fn(&Interval) -> u64) -> u64 {
    intervals.iter().map(of).sum()
}

/// Returns the share of retraining in the time of the intervals with writes.
fn retraining_share(intervals: &[Interval], written_s: f64) -> f64 {
    let mut begin_s = 0.0;
    let (mut time_ns, mut end_s) = (0, 0.0);
    for interval in intervals {
        if begin_s < written_s {
            time_ns += interval.retraining_ns;
            end_s = interval.end_s;
        }
        begin_s = interval.end_s;
    }
    if end_s > 0.0 {
        time_ns as f64 / 1e9 / end_s
    } else {
        0.0
    }
}

impl From<&RetrainCounters> for RetrainingTotal {
    fn from(tally: &RetrainCounters) -> Self {
        Self {
            count: tally.retraining_count,
            leaves_moved: tally.moved_count,
            leaves_made: tally.made_count,
            records: tally.record_count,
            models_trained: tally.model_count,
            time_ns: tally.time_ns,
            time_ns_max: tally.time_ns_max,
            step_round_trips_max: tally.step_round_trips_max,
            reclaimed_bytes: tally.reclaimed_bytes,
            queued: tally.queued_count,
            found: tally.found_count,
        }
    }
}

impl TimelineReport {
    /// Returns whether every answer was correct and nothing was refused.
    pub fn is_right(&self) -> bool {
        let total = &self.total;
        (total.errors, total.missing, total.refused) == (0, 0, 0)
    }

    pub(super) fn new(
        config: &TimelineConfig,
        client_threads: ChangeResults,
        fresh: FreshSession,
        table: &TableStats,
        retraining: &RetrainCounters,
        memory_bytes_begin: u64,
    ) -> Self {
        let (gets, change) = (client_threads.gets, config.change);
        let used = client_threads.intervals.iter().map(|it| it.pool_used_bytes);
        let last = client_threads.intervals.last();
        let total = TimelineTotal {
            pattern: change.name(),
            index: config.layer.name(),
            fabric: config.fabric.name(),
            loaded: change.load_count(),
            puts: change.put_count(),
            deletes: change.delete_count(),
            threads: config.threads as u64,
            retrain_threads: config.retrain_threads,
            reads_percent: config.reads_percent,
            slots: config.slots,
            fill_percent: config.fill_percent,
            epsilon: config.epsilon_keys,
            seed: config.seed,
            commit: config.commit.clone(),
            interval_s: config.interval.as_secs_f64(),
            written_s: client_threads.written_s,
            round_trips_per_get: gets.mean(gets.round_trips),
            one_leaf_fraction: gets.mean(gets.one_leaf_count),
            one_leaf_fraction_last: last.and_then(|it| it.one_leaf_fraction),
            fresh,
            // An empty table has lost all its records, which `missing` reports.
            metadata_bytes_per_key: fresh.metadata_bytes as f64 / table.records.max(1) as f64,
            records: table.records,
            leaves: table.leaves,
            models: table.models,
            fill: table.fill,
            memory_bytes_begin,
            memory_bytes: table.memory_bytes,
            pool_used_bytes_max: used.fold(memory_bytes_begin, u64::max),
            synonyms_followed: sum(&client_threads.intervals, |it| it.synonyms_followed),
            stale_hints: sum(&client_threads.intervals, |it| it.stale_hints),
            retraining: retraining.into(),
            retraining_share: retraining_share(&client_threads.intervals, client_threads.written_s),
            errors: client_threads.faults.errors,
            missing: client_threads.faults.missing,
            refused: client_threads.faults.refused,
        };
        Self {
            intervals: client_threads.intervals,
            total,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::interval::IntervalRecorder;
    use super::super::interval::Sample;
    use super::*;

    /// Promise: only the intervals up to that of the last write count.
    #[test]
    fn the_share_of_retraining_ends_with_the_writes() {
        let mut tally = RetrainCounters::default();
        let intervals: Vec<Interval> = [100, 300, 900]
            .into_iter()
            .enumerate()
            .map(|(number, time_ms)| {
                let before = tally;
                tally.time_ns += time_ms * 1_000_000;
                let sample = Sample {
                    used_bytes: 0,
                    retraining: farleaf::RetrainingReport {
                        tally,
                        queue_length: 0,
                    },
                };
                let none = IntervalRecorder::default();
                Interval::new(number as u64, 1_000_000_000, &none, &before, &sample)
            })
            .collect();
        for (written_s, share) in [(0.5, 0.1), (1.5, 0.2), (2.0, 0.2), (2.1, 1.3 / 3.0)] {
            let found = retraining_share(&intervals, written_s);
            assert!((found - share).abs() < 1e-9, "{found} for {share}");
        }
        assert!(retraining_share(&[], 1.0).abs() < f64::EPSILON);
    }
}
