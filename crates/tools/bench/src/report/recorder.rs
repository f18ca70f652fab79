//! Recorder of a thread's operations.

use std::collections::BTreeMap;

use farleaf::Cost;
use hdrhistogram::Histogram;

use super::{FarCosts, KindReport, LatencySummary};
use crate::workload::OperationKind;

/// Significant digits of recorded latencies.
const SIGNIFICANT_DIGITS: u8 = 3;

/// Greatest recorded latency: those above 1,000 s are recorded as 1,000 s (the maximum stays
/// exact).
const LATENCY_NS_MAX: u64 = 1_000_000_000_000;

/// Recorder of one kind of operation. About 250 kB, mostly the histogram.
#[derive(Clone, Debug)]
pub struct KindRecorder {
    latencies_ns: Histogram<u64>,
    latency_ns_max: u64,
    /// Total cost; `None` if no cost was recorded.
    total: Option<Cost>,
    one_leaf_count: u64,
}

impl KindRecorder {
    /// Creates a recorder without operations.
    pub fn new() -> Self {
        let latencies_ns = Histogram::new_with_bounds(1, LATENCY_NS_MAX, SIGNIFICANT_DIGITS)
            .expect("the bounds are constants that the histogram accepts");
        Self {
            latencies_ns,
            latency_ns_max: 0,
            total: None,
            one_leaf_count: 0,
        }
    }

    /// Records one operation. Costs about 5 ns.
    #[inline]
    pub fn record(&mut self, latency_ns: u64, cost: Cost) {
        self.record_time(latency_ns);
        *self.total.get_or_insert_default() += cost;
        self.one_leaf_count += u64::from(cost.leaves_read == 1);
    }

    /// Records one operation without its cost; either no operation or every one has its cost
    /// recorded.
    #[inline]
    pub fn record_time(&mut self, latency_ns: u64) {
        self.latencies_ns.saturating_record(latency_ns);
        self.latency_ns_max = self.latency_ns_max.max(latency_ns);
    }

    /// Returns the number of recorded operations.
    pub fn count(&self) -> u64 {
        self.latencies_ns.len()
    }

    /// Adds the operations of another recorder.
    pub fn merge(&mut self, other: &Self) {
        self.latencies_ns
            .add(&other.latencies_ns)
            .expect("all recorders have the same bounds");
        self.latency_ns_max = self.latency_ns_max.max(other.latency_ns_max);
        if let Some(total) = other.total {
            *self.total.get_or_insert_default() += total;
        }
        self.one_leaf_count += other.one_leaf_count;
    }

    /// Returns the summary for the report; means over no operations are 0.
    pub fn report(&self) -> KindReport {
        let count = self.count();
        let mean = |sum: u64| {
            if count == 0 {
                0.0
            } else {
                sum as f64 / count as f64
            }
        };
        // The histogram returns the upper end of a bucket, which may exceed the maximum.
        let quantile = |share| {
            self.latencies_ns
                .value_at_quantile(share)
                .min(self.latency_ns_max)
        };
        KindReport {
            count,
            latency_ns: LatencySummary {
                p50: quantile(0.5),
                p99: quantile(0.99),
                p999: quantile(0.999),
                max: self.latency_ns_max,
            },
            far: self.total.map(|total| FarCosts {
                round_trips_mean: mean(total.round_trips),
                bytes_read_mean: mean(total.bytes_read),
                bytes_written_mean: mean(total.bytes_written),
                leaves_read_mean: mean(total.leaves_read),
                one_leaf_fraction: mean(self.one_leaf_count),
                atomics_mean: mean(total.atomics),
                retries_mean: mean(total.retries),
                links_mean: mean(total.links),
            }),
        }
    }
}

impl Default for KindRecorder {
    fn default() -> Self {
        Self::new()
    }
}

/// Recorder of a thread's run: one recorder for each kind of operation that occurs.
#[derive(Clone, Debug, Default)]
pub struct RunRecorder {
    by_kind: [Option<Box<KindRecorder>>; OperationKind::ALL.len()],
    /// Operations that failed or returned a wrong answer.
    pub errors: u64,
    /// Operations that did not find an existing record.
    pub missing: u64,
}

impl RunRecorder {
    /// Creates a recorder without operations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records one operation that finished, right or wrong. The first one of a kind allocates.
    #[inline]
    pub fn record(&mut self, kind: OperationKind, latency_ns: u64, cost: Cost) {
        self.by_kind[kind as usize]
            .get_or_insert_default()
            .record(latency_ns, cost);
    }

    /// Records one operation without its cost.
    #[inline]
    pub fn record_time(&mut self, kind: OperationKind, latency_ns: u64) {
        self.by_kind[kind as usize]
            .get_or_insert_default()
            .record_time(latency_ns);
    }

    /// Adds the operations of another thread.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.by_kind.iter_mut().zip(&other.by_kind) {
            if let Some(theirs) = theirs {
                mine.get_or_insert_default().merge(theirs);
            }
        }
        self.errors += other.errors;
        self.missing += other.missing;
    }

    /// Returns the number of recorded operations.
    pub fn operation_count(&self) -> u64 {
        self.by_kind
            .iter()
            .flatten()
            .map(|recorder| recorder.count())
            .sum()
    }

    /// Returns the summaries of the kinds that occurred.
    pub fn operations_by_kind(&self) -> BTreeMap<OperationKind, KindReport> {
        let recorders = OperationKind::ALL.into_iter().zip(&self.by_kind);
        let recorded =
            recorders.filter_map(|(kind, recorder)| Some((kind, recorder.as_ref()?.report())));
        recorded.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(round_trips: u64, leaves_read: u64) -> Cost {
        Cost {
            round_trips,
            bytes_read: 100 * leaves_read,
            bytes_written: 8,
            leaves_read,
            atomics: 1,
            retries: leaves_read / 3,
            links: leaves_read - leaves_read.min(1),
            ..Cost::default()
        }
    }

    /// Promise: percentiles have three significant digits; the maximum is exact, even above the
    /// histogram's range.
    #[test]
    fn percentiles_have_three_digits_and_the_maximum_is_exact() {
        let mut recorder = KindRecorder::new();
        for latency_ns in 1..=100_000 {
            recorder.record(latency_ns, cost(1, 1));
        }
        let latency = recorder.report().latency_ns;
        for (got, want) in [
            (latency.p50, 50_000),
            (latency.p99, 99_000),
            (latency.p999, 99_900),
        ] {
            assert!(got.abs_diff(want) * 1_000 <= want, "{got} for {want}");
        }
        assert_eq!(latency.max, 100_000);
        recorder.record(u64::MAX, cost(1, 1));
        assert_eq!(recorder.report().latency_ns.max, u64::MAX);
        assert_eq!(recorder.count(), 100_001);
    }

    /// Promise: means and the one-leaf fraction are over all operations of the kind.
    #[test]
    fn means_are_over_all_operations_of_the_kind() {
        let mut recorder = KindRecorder::new();
        for leaves_read in [1, 1, 1, 3] {
            recorder.record(1_000, cost(2, leaves_read));
        }
        let report = recorder.report().far.expect("costs were noted");
        let means: [f64; 8] = [
            report.round_trips_mean,
            report.bytes_read_mean,
            report.bytes_written_mean,
            report.leaves_read_mean,
            report.one_leaf_fraction,
            report.atomics_mean,
            report.retries_mean,
            report.links_mean,
        ];
        let want = [2.0, 150.0, 8.0, 1.5, 0.75, 1.0, 0.25, 0.5];
        assert!(
            means
                .iter()
                .zip(want)
                .all(|(got, want)| (got - want).abs() < 1e-12),
            "{means:?}"
        );
    }

    /// Promise: merged threads report the same as one thread would have.
    #[test]
    fn merged_threads_report_what_one_would_have() {
        let mut whole = RunRecorder::new();
        let mut threads = vec![RunRecorder::new(); 3];
        for turn in 0..3_000_u64 {
            let kind = OperationKind::ALL[(turn % 4) as usize];
            let (latency_ns, cost) = (turn * turn, cost(turn % 3, turn % 2));
            whole.record(kind, latency_ns, cost);
            threads[(turn % 3) as usize].record(kind, latency_ns, cost);
        }
        (whole.errors, whole.missing) = (3, 6);
        let mut merged = RunRecorder::new();
        for thread in &mut threads {
            (thread.errors, thread.missing) = (1, 2);
            merged.merge(thread);
        }
        assert_eq!(merged.operations_by_kind(), whole.operations_by_kind());
        assert_eq!(
            merged.operations_by_kind().len(),
            4,
            "one kind never occurred"
        );
        assert_eq!(merged.operation_count(), 3_000);
        assert_eq!((merged.errors, merged.missing), (3, 6));
    }

    /// Promise: without recorded costs the report has none, also after a merge.
    #[test]
    fn costs_that_are_not_known_are_none() {
        let mut recorder = KindRecorder::new();
        recorder.record_time(7);
        recorder.merge(&recorder.clone());
        let report = recorder.report();
        assert_eq!(
            (report.count, report.latency_ns.max, report.far),
            (2, 7, None)
        );
    }

    /// Promise: without operations the report has zeros, not NaN, which JSON does not have.
    #[test]
    fn no_operations_make_zeros() {
        let report = KindRecorder::new().report();
        assert_eq!(report, KindReport::default());
    }
}
