//! The report of a run.

use farleaf::{RetrainTally, TableStats};
use serde::Serialize;

use super::crew::CrewResult;
use super::{FreshSession, Interval, TimelineConfig};

/// What a run was, and what it measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimelineReport {
    /// All intervals, from the first on.
    #[serde(skip)]
    pub intervals: Vec<Interval>,
    /// All together.
    #[serde(flatten)]
    pub total: TimelineTotal,
}

/// What a run was, and what it measured in all; one JSON object with these field names.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimelineTotal {
    /// The name of the pattern.
    pub pattern: &'static str,
    /// The search layer.
    pub index: &'static str,
    /// The fabric.
    pub fabric: &'static str,
    /// Keys that were loaded.
    pub loaded: u64,
    /// Keys that were to be put.
    pub puts: u64,
    /// Keys that were to be deleted.
    pub deletes: u64,
    /// Threads.
    pub threads: u64,
    /// Threads of the pool's node that retrained.
    pub retrain_threads: u32,
    /// The share of gets while there was something to write, in percent.
    pub reads_percent: u8,
    /// Slots of a leaf.
    pub slots: u64,
    /// How full loading makes leaves, in percent.
    pub fill_percent: u8,
    /// The error bound of the models, in keys.
    pub epsilon: f64,
    /// The seed of keys and operations.
    pub seed: u64,
    /// The commit of the code that ran.
    pub commit: String,
    /// How long an interval was.
    pub interval_s: f64,
    /// When the last write was done.
    pub written_s: f64,
    /// Mean round trips of the gets that ended before it.
    pub round_trips_per_get: Option<f64>,
    /// Share of these gets that one leaf answered in one round trip.
    pub one_leaf_fraction: Option<f64>,
    /// The same share, of the gets of the last interval.
    pub one_leaf_fraction_last: Option<f64>,
    /// What a session sees that was opened afterwards.
    pub fresh: FreshSession,
    /// What it holds to find leaves, for each key.
    pub metadata_bytes_per_key: f64,
    /// Records at the end.
    pub records: u64,
    /// Leaves at the end.
    pub leaves: u64,
    /// Models at the end.
    pub models: u64,
    /// Share of slots that hold records at the end.
    pub fill: f64,
    /// Bytes of the table's memory before the first write.
    pub memory_bytes_begin: u64,
    /// Bytes of the table's memory at the end.
    pub memory_bytes: u64,
    /// Most bytes of the pool that were in use before the first write or at the end of an interval.
    pub pool_used_bytes_max: u64,
    /// Links that threads followed to leaves that splits had made.
    pub synonyms_followed: u64,
    /// Hints of threads that led to leaves that a retraining had moved.
    pub stale_hints: u64,
    /// What retraining did.
    pub retraining: RetrainingTotal,
    /// Share of the time until the last write, to the end of its interval, in which the node's
    /// thread retrained: of one core, if it had that for itself.
    pub retraining_share: f64,
    /// Operations that failed or yielded something wrong, puts not counted.
    pub errors: u64,
    /// Operations, or keys of the final check, that did not find what must be there.
    pub missing: u64,
    /// Puts that the store refused.
    pub refused: u64,
}

/// What retraining did, from the load to the check at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RetrainingTotal {
    /// Retrainings that were committed.
    pub count: u64,
    /// Leaves that they moved.
    pub leaves_moved: u64,
    /// Leaves that these became.
    pub leaves_made: u64,
    /// Records of all leaves that were retrained.
    pub records: u64,
    /// Models that they trained.
    pub models_trained: u64,
    /// What they took together, in nanoseconds.
    pub time_ns: u64,
    /// What the longest took, in nanoseconds.
    pub time_ns_max: u64,
    /// Round trips for which the longest step held its locks.
    pub step_round_trips_max: u64,
    /// Bytes that became free again.
    pub reclaimed_bytes: u64,
    /// Models that a client had asked for.
    pub queued: u64,
    /// Models that the node had found by itself.
    pub found: u64,
}

fn sum(intervals: &[Interval], of: impl Fn(&Interval) -> u64) -> u64 {
    intervals.iter().map(of).sum()
}

/// How much of the time of the intervals in which something was written retraining took.
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

impl From<&RetrainTally> for RetrainingTotal {
    fn from(tally: &RetrainTally) -> Self {
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
    /// Whether every answer was right and nothing was refused.
    pub fn is_right(&self) -> bool {
        let total = &self.total;
        (total.errors, total.missing, total.refused) == (0, 0, 0)
    }

    pub(super) fn with_retraining(mut self, tally: &RetrainTally) -> Self {
        self.total.retraining = tally.into();
        self
    }

    pub(super) fn new(
        config: &TimelineConfig,
        crew: CrewResult,
        fresh: FreshSession,
        table: &TableStats,
        memory_bytes_begin: u64,
    ) -> Self {
        let (gets, change) = (crew.gets, config.change);
        let used = crew.intervals.iter().map(|it| it.pool_used_bytes);
        let last = crew.intervals.last();
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
            written_s: crew.written_s,
            round_trips_per_get: gets.mean(gets.round_trips),
            one_leaf_fraction: gets.mean(gets.one_leaf_count),
            one_leaf_fraction_last: last.and_then(|it| it.one_leaf_fraction),
            fresh,
            // An empty table has lost all its records, which `missing` says.
            metadata_bytes_per_key: fresh.metadata_bytes as f64 / table.records.max(1) as f64,
            records: table.records,
            leaves: table.leaves,
            models: table.models,
            fill: table.fill,
            memory_bytes_begin,
            memory_bytes: table.memory_bytes,
            pool_used_bytes_max: used.fold(memory_bytes_begin, u64::max),
            synonyms_followed: sum(&crew.intervals, |it| it.synonyms_followed),
            stale_hints: sum(&crew.intervals, |it| it.stale_hints),
            retraining: RetrainingTotal::default(),
            retraining_share: retraining_share(&crew.intervals, crew.written_s),
            errors: crew.faults.errors(),
            missing: crew.faults.missing(),
            refused: crew.faults.refused,
        };
        Self {
            intervals: crew.intervals,
            total,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::interval::IntervalRecorder;
    use super::super::interval::Sample;
    use super::*;

    /// Promise: the intervals count up to that of the last write, and no further.
    #[test]
    fn the_share_of_retraining_ends_with_the_writes() {
        let mut tally = RetrainTally::default();
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
