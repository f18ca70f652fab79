//! Latencies, up to the 99.99th percentile.

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::workload::OperationKind;

/// Recorded latencies end here; longer ones count as this.
const LATENCY_NS_MAX: u64 = 1_000_000_000_000;
/// Kinds of operations of workloads A to D.
const KINDS: [OperationKind; 3] = [
    OperationKind::Read,
    OperationKind::Update,
    OperationKind::Insert,
];

/// Tail of the latencies of one kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Tail {
    /// Kind of the operation.
    pub operation: OperationKind,
    /// Number of operations.
    pub count: u64,
    /// Median latency in nanoseconds.
    pub p50_ns: u64,
    /// Latency exceeded by one in 10 operations, in nanoseconds.
    pub p90_ns: u64,
    /// Latency exceeded by one in 100 operations, in nanoseconds.
    pub p99_ns: u64,
    /// Latency exceeded by one in 1,000 operations, in nanoseconds.
    pub p999_ns: u64,
    /// Latency exceeded by one in 10,000 operations, in nanoseconds.
    pub p9999_ns: u64,
}

/// Histograms of one thread, or of all.
#[derive(Clone, Debug)]
pub(super) struct Tails([Histogram<u64>; KINDS.len()]);

impl Tails {
    pub(super) fn new() -> Self {
        let histogram = || {
            Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)
                .expect("the bounds are constants that the histogram accepts")
        };
        Self(std::array::from_fn(|_| histogram()))
    }

    pub(super) fn note(&mut self, kind: OperationKind, latency_ns: u64) {
        let place = KINDS.iter().position(|it| *it == kind);
        let place = place.expect("workloads A to D have no others");
        self.0[place].saturating_record(latency_ns);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            own.add(other).expect("all have the same bounds");
        }
    }

    /// Returns the tails of the kinds that occurred.
    pub(super) fn report(&self) -> Vec<Tail> {
        let all = KINDS.into_iter().zip(&self.0);
        let there = all.filter(|(_, histogram)| !histogram.is_empty());
        there
            .map(|(operation, histogram)| {
                let of = |share| histogram.value_at_quantile(share);
                Tail {
                    operation,
                    count: histogram.len(),
                    p50_ns: of(0.5),
                    p90_ns: of(0.9),
                    p99_ns: of(0.99),
                    p999_ns: of(0.999),
                    p9999_ns: of(0.9999),
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: each kind has its own latencies, and kinds that did not occur are left out.
    #[test]
    fn kinds_are_apart() {
        let (mut all, mut other) = (Tails::new(), Tails::new());
        for latency_ns in 1..=100 {
            all.note(OperationKind::Read, latency_ns);
            other.note(OperationKind::Insert, latency_ns * 1000);
        }
        all.merge(&other);
        let report = all.report();
        let summaries: Vec<_> = report
            .iter()
            .map(|it| (it.operation, it.count, it.p50_ns))
            .collect();
        assert_eq!(summaries[0], (OperationKind::Read, 100, 50));
        assert_eq!(
            (summaries[1].0, summaries.len()),
            (OperationKind::Insert, 2)
        );
        assert!(
            report
                .iter()
                .all(|it| it.p50_ns <= it.p99_ns && it.p99_ns <= it.p9999_ns)
        );
    }
}
