//! What threads note in an interval, and what is told of it.

use farleaf::{Cost, HintCounters, RetrainTally, RetrainingReport};
use serde::Serialize;

use crate::report::{KindRecorder, OperationCost};

/// What one thread notes of one interval, or several threads together.
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

/// Whether an operation was answered by one leaf in one round trip.
#[inline]
fn is_one_leaf(cost: Cost) -> bool {
    cost.leaves_read == 1 && cost.round_trips == 1
}

impl IntervalRecorder {
    /// Notes a get.
    #[inline]
    pub(super) fn get(&mut self, latency_ns: u64, cost: Cost) {
        self.gets.record(latency_ns, OperationCost::from(cost));
        self.one_leaf_count += u64::from(is_one_leaf(cost));
    }

    /// Notes a put or a delete.
    #[inline]
    pub(super) fn write(&mut self, latency_ns: u64, cost: Cost) {
        self.writes.record(latency_ns, OperationCost::from(cost));
    }

    /// Notes how often hints were not right, `before` the interval and `after` it.
    pub(super) fn hints(&mut self, before: HintCounters, after: HintCounters) {
        self.hints.synonym_count += after.synonym_count - before.synonym_count;
        self.hints.stale_count += after.stale_count - before.stale_count;
        self.hints.catch_up_count += after.catch_up_count - before.catch_up_count;
        self.hints.refresh_count += after.refresh_count - before.refresh_count;
    }

    /// Adds what another thread noted.
    pub(super) fn merge(&mut self, other: &Self) {
        self.hints(HintCounters::default(), other.hints);
        self.gets.merge(&other.gets);
        self.writes.merge(&other.writes);
        self.one_leaf_count += other.one_leaf_count;
    }
}

impl GetTotals {
    /// Notes a get.
    #[inline]
    pub(super) fn add(&mut self, cost: Cost) {
        self.count += 1;
        self.round_trips += cost.round_trips;
        self.bytes_read += cost.bytes_read;
        self.one_leaf_count += u64::from(is_one_leaf(cost));
    }

    /// Adds what another thread noted.
    pub(super) fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.round_trips += other.round_trips;
        self.bytes_read += other.bytes_read;
        self.one_leaf_count += other.one_leaf_count;
    }

    /// The mean of one of the sums; none of no gets.
    pub(super) fn mean(&self, sum: u64) -> Option<f64> {
        (self.count > 0).then(|| sum as f64 / self.count as f64)
    }
}

/// One interval. What gets say is absent where there were none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Its end, in seconds from the beginning.
    pub end_s: f64,
    /// Gets, puts and deletes.
    pub operations_per_s: f64,
    /// Gets.
    pub reads_per_s: f64,
    /// Puts and deletes.
    pub writes_per_s: f64,
    /// Mean round trips of a get.
    pub round_trips_per_get: Option<f64>,
    /// Share of gets that one leaf answered in one round trip.
    pub one_leaf_fraction: Option<f64>,
    /// Mean bytes that a get read.
    pub bytes_per_get: Option<f64>,
    /// 99 of 100 gets took no longer.
    pub get_latency_ns_p99: Option<u64>,
    /// 99 of 100 puts and deletes took no longer.
    pub write_latency_ns_p99: Option<u64>,
    /// Links that were followed to leaves that splits had made.
    pub synonyms_followed: u64,
    /// Hints that led to leaves that a retraining had moved.
    pub stale_hints: u64,
    /// Reads of what other sessions had announced.
    pub catch_ups: u64,
    /// Newer trainings that sessions took over.
    pub refreshes: u64,
    /// Bytes of the pool in use at its end.
    pub pool_used_bytes: u64,
    /// Retrainings that were committed in it.
    pub retrainings: u64,
    /// Leaves that they moved.
    pub leaves_moved: u64,
    /// Models that they trained.
    pub models_trained: u64,
    /// What they took, in nanoseconds of one thread.
    pub retraining_ns: u64,
    /// Bytes that became free again.
    pub reclaimed_bytes: u64,
    /// Models that clients had asked for at its end, and that the node had not looked at.
    pub queue_length: u64,
}

/// What the pool said at the end of an interval.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    pub(super) used_bytes: u64,
    pub(super) retraining: RetrainingReport,
}

impl Interval {
    /// What `recorder` says of the interval that is the `number`th, from 0; `before` is what the
    /// pool said at its beginning, `after` at its end.
    pub(super) fn new(
        number: u64,
        interval_ns: u64,
        recorder: &IntervalRecorder,
        before: &RetrainTally,
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

    /// Promise: rates are over the interval, means over the gets; one leaf counts only with one
    /// round trip; what two threads noted is what one would have; what retraining did is told
    /// of the interval alone.
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
        let tally = |retraining_count, moved_count| RetrainTally {
            retraining_count,
            moved_count,
            ..RetrainTally::default()
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

    /// Promise: what no get says is absent, not 0.
    #[test]
    fn no_gets_say_nothing() {
        let interval = Interval::new(
            0,
            1_000_000_000,
            &IntervalRecorder::default(),
            &RetrainTally::default(),
            &Sample::default(),
        );
        assert_eq!(interval.round_trips_per_get, None);
        assert_eq!(interval.one_leaf_fraction, None);
        assert_eq!(interval.get_latency_ns_p99, None);
        assert_eq!(GetTotals::default().mean(0), None);
    }
}
