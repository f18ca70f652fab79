//! Intervals: what threads record in them, and what is reported of them.

use farleaf::{Cost, HintCounters, RetrainCounters, RetrainingReport};
use serde::Serialize;

use crate::report::KindRecorder;

/// Records of one interval, of one thread or several together.
#[derive(Clone, Debug, Default)]
pub(super) struct IntervalRecorder {
    gets: KindRecorder,
    writes: KindRecorder,
    one_leaf_count: u64,
    hints: HintCounters,
}

/// Sums over gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GetTotals {
    pub(super) count: u64,
    pub(super) round_trips: u64,
    pub(super) bytes_read: u64,
    pub(super) one_leaf_count: u64,
}

/// Returns whether one leaf in one round trip answered an operation.
#[inline]
fn is_one_leaf(cost: Cost) -> bool {
    cost.leaves_read == 1 && cost.round_trips == 1
}

impl IntervalRecorder {
    /// Records a get.
    #[inline]
    pub(super) fn get(&mut self, latency_ns: u64, cost: Cost) {
        self.gets.record(latency_ns, cost);
        self.one_leaf_count += u64::from(is_one_leaf(cost));
    }

    /// Records a put or a delete.
    #[inline]
    pub(super) fn write(&mut self, latency_ns: u64, cost: Cost) {
        self.writes.record(latency_ns, cost);
    }

    /// Records the wrong hints of an interval, from the counters `before` and `after` it.
    pub(super) fn hints(&mut self, before: HintCounters, after: HintCounters) {
        self.hints.synonym_count += after.synonym_count - before.synonym_count;
        self.hints.stale_count += after.stale_count - before.stale_count;
        self.hints.catch_up_count += after.catch_up_count - before.catch_up_count;
        self.hints.refresh_count += after.refresh_count - before.refresh_count;
    }

    /// Adds the records of another thread.
    pub(super) fn merge(&mut self, other: &Self) {
        self.hints(HintCounters::default(), other.hints);
        self.gets.merge(&other.gets);
        self.writes.merge(&other.writes);
        self.one_leaf_count += other.one_leaf_count;
    }
}

impl GetTotals {
    /// Records a get.
    #[inline]
    pub(super) fn add(&mut self, cost: Cost) {
        self.count += 1;
        self.round_trips += cost.round_trips;
        self.bytes_read += cost.bytes_read;
        self.one_leaf_count += u64::from(is_one_leaf(cost));
    }

    /// Adds the sums of another thread.
    pub(super) fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.round_trips += other.round_trips;
        self.bytes_read += other.bytes_read;
        self.one_leaf_count += other.one_leaf_count;
    }

    /// Returns the mean of one of the sums; `None` without gets.
    pub(super) fn mean(&self, sum: u64) -> Option<f64> {
        (self.count > 0).then(|| sum as f64 / self.count as f64)
    }
}

/// Results of one interval. Those of gets are absent if there were none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// End of the interval, in seconds from the beginning.
    pub end_s: f64,
    /// Gets, puts and deletes per second.
    pub operations_per_s: f64,
    /// Gets per second.
    pub reads_per_s: f64,
    /// Puts and deletes per second.
    pub writes_per_s: f64,
    /// Mean round trips per get.
    pub round_trips_per_get: Option<f64>,
    /// Share of gets that one leaf answered in one round trip.
    pub one_leaf_fraction: Option<f64>,
    /// Mean bytes read per get.
    pub bytes_per_get: Option<f64>,
    /// 99th percentile of the latency of gets.
    pub get_latency_ns_p99: Option<u64>,
    /// 99th percentile of the latency of puts and deletes.
    pub write_latency_ns_p99: Option<u64>,
    /// Links followed to leaves that splits had created.
    pub synonyms_followed: u64,
    /// Hints that led to leaves that a retraining had moved.
    pub stale_hints: u64,
    /// Reads of announcements by other sessions.
    pub catch_ups: u64,
    /// Newer trainings that sessions adopted.
    pub refreshes: u64,
    /// Bytes of the pool in use at the end of the interval.
    pub pool_used_bytes: u64,
    /// Retrainings that were committed in the interval.
    pub retrainings: u64,
    /// Leaves that they moved.
    pub leaves_moved: u64,
    /// Models that they trained.
    pub models_trained: u64,
    /// Duration of the retrainings, in nanoseconds of one thread.
    pub retraining_ns: u64,
    /// Bytes that became free again.
    pub reclaimed_bytes: u64,
    /// Models that clients had requested at the end of the interval, and that the node had not
    /// examined.
    pub queue_length: u64,
}

/// State of the pool at the end of an interval.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    pub(super) used_bytes: u64,
    pub(super) retraining: RetrainingReport,
}

impl Interval {
    /// Creates the results of interval `number`, counted from 0, from its `recorder`, and from the
    /// pool's state `before` and `after` it.
    pub(super) fn new(
        number: u64,
        interval_ns: u64,
        recorder: &IntervalRecorder,
        before: &RetrainCounters,
        after: &Sample,
    ) -> Self {
        let seconds = interval_ns as f64 / 1e9;
        let (gets, writes) = (recorder.gets.report(), recorder.writes.report());
        let tally = &after.retraining.tally;
        let of_gets = |value: f64| (gets.count > 0).then_some(value);
        let one_leaf_fraction = recorder.one_leaf_count as f64 / gets.count.max(1) as f64;
        Self {
            end_s: ((number + 1) * interval_ns) as f64 / 1e9,
            operations_per_s: (gets.count + writes.count) as f64 / seconds,
            reads_per_s: gets.count as f64 / seconds,
            writes_per_s: writes.count as f64 / seconds,
            round_trips_per_get: gets.far.map(|far| far.round_trips_mean),
            one_leaf_fraction: of_gets(one_leaf_fraction),
            bytes_per_get: gets.far.map(|far| far.bytes_read_mean),
            get_latency_ns_p99: (gets.count > 0).then_some(gets.latency_ns.p99),
            write_latency_ns_p99: (writes.count > 0).then_some(writes.latency_ns.p99),
            synonyms_followed: recorder.hints.synonym_count,
            stale_hints: recorder.hints.stale_count,
            catch_ups: recorder.hints.catch_up_count,
            refreshes: recorder.hints.refresh_count,
            pool_used_bytes: after.used_bytes,
            retrainings: tally.retraining_count - before.retraining_count,
            leaves_moved: tally.moved_count - before.moved_count,
            models_trained: tally.model_count - before.model_count,
            retraining_ns: tally.time_ns - before.time_ns,
            reclaimed_bytes: tally.reclaimed_bytes - before.reclaimed_bytes,
            queue_length: after.retraining.queue_length,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn cost(round_trips: u64, leaves_read: u64) -> Cost {
        Cost {
            round_trips,
            leaves_read,
            bytes_read: 160 * leaves_read,
            ..Cost::default()
        }
    }

    /// Promise: rates are over the interval, means over the gets. One leaf counts only with one
    /// round trip. Merged threads report the same as one would have. Retraining counts only within
    /// the interval.
    #[test]
    fn rates_and_means() {
        let mut recorders = [IntervalRecorder::default(), IntervalRecorder::default()];
        let mut totals = GetTotals::default();
        for (at, cost) in [cost(1, 1), cost(1, 1), cost(2, 1), cost(2, 3)]
            .into_iter()
            .enumerate()
        {
            recorders[at % 2].get(1_000, cost);
            totals.add(cost);
        }
        recorders[0].write(9_000, cost(2, 1));
        let hints = |synonym_count, stale_count| HintCounters {
            synonym_count,
            stale_count,
            ..HintCounters::default()
        };
        recorders[0].hints(hints(1, 0), hints(3, 0));
        recorders[1].hints(hints(0, 5), hints(4, 6));
        let [mut all, other] = recorders;
        all.merge(&other);
        let tally = |retraining_count, moved_count| RetrainCounters {
            retraining_count,
            moved_count,
            ..RetrainCounters::default()
        };
        let after = Sample {
            used_bytes: 77,
            retraining: RetrainingReport {
                tally: tally(5, 900),
                queue_length: 3,
            },
        };
        let interval = Interval::new(3, 500_000_000, &all, &tally(4, 200), &after);
        let close = |got: f64, want: f64| assert!((got - want).abs() < 1e-9, "{got} for {want}");
        close(interval.end_s, 2.0);
        close(interval.operations_per_s, 10.0);
        close(interval.reads_per_s, 8.0);
        close(interval.writes_per_s, 2.0);
        close(interval.round_trips_per_get.expect("gets"), 1.5);
        close(interval.one_leaf_fraction.expect("gets"), 0.5);
        close(interval.bytes_per_get.expect("gets"), 240.0);
        assert!((8_990..=9_010).contains(&interval.write_latency_ns_p99.expect("a write")));
        assert_eq!((interval.pool_used_bytes, interval.queue_length), (77, 3));
        assert_eq!((interval.synonyms_followed, interval.stale_hints), (6, 1));
        assert_eq!((interval.retrainings, interval.leaves_moved), (1, 700));
        close(totals.mean(totals.one_leaf_count).expect("gets"), 0.5);
    }

    /// Promise: without gets their means are absent, not 0.
    #[test]
    fn no_gets_say_nothing() {
        let interval = Interval::new(
            0,
            1_000_000_000,
            &IntervalRecorder::default(),
            &RetrainCounters::default(),
            &Sample::default(),
        );
        assert_eq!(interval.round_trips_per_get, None);
        assert_eq!(interval.one_leaf_fraction, None);
        assert_eq!(interval.get_latency_ns_p99, None);
        assert_eq!(GetTotals::default().mean(0), None);
    }
}
