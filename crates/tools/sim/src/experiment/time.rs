//! Time parts of operations, over a window.

use std::collections::BTreeMap;

use farleaf_bench::workload::OperationKind;
use serde::Serialize;

use crate::fabric::world::Nanos;
use crate::nic::parts::Parts;

/// Mean parts of an operation's time over a window. Their sum is its latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TimeParts {
    /// Client thread's processor, without checksums.
    pub processor_ns: f64,
    /// Processor, for checksums of data that was read.
    pub checksum_ns: f64,
    /// NICs at both ends and their links.
    pub nic_ns: f64,
    /// Wire from NIC to NIC.
    pub wire_ns: f64,
    /// Queues for processor, NICs, links and locking tables.
    pub queue_ns: f64,
    /// Everything else: backing off from locks that others hold.
    pub backoff_ns: f64,
}

impl TimeParts {
    /// Returns each part with its name in files and its name for people.
    pub fn named(&self) -> [(&'static str, &'static str, f64); 6] {
        [
            ("processor_ns_mean", "processor", self.processor_ns),
            ("checksum_ns_mean", "checksums", self.checksum_ns),
            ("nic_ns_mean", "NICs and links", self.nic_ns),
            ("wire_ns_mean", "wire", self.wire_ns),
            ("queue_ns_mean", "waiting in queues", self.queue_ns),
            ("backoff_ns_mean", "backing off from locks", self.backoff_ns),
        ]
    }

    /// Returns the sum: the mean latency.
    pub fn total_ns(&self) -> f64 {
        self.named().iter().map(|(.., nanos)| nanos).sum()
    }
}

/// Adds up the time parts of operations.
#[derive(Clone, Debug, Default)]
pub(super) struct TimeRecorder(BTreeMap<OperationKind, Total>);

#[derive(Clone, Copy, Debug, Default)]
struct Total {
    count: u64,
    latency_ns: Nanos,
    parts: Parts,
}

impl TimeRecorder {
    pub(super) fn record(&mut self, kind: OperationKind, latency_ns: Nanos, parts: Parts) {
        let total = self.0.entry(kind).or_default();
        total.count += 1;
        total.latency_ns += latency_ns;
        total.parts += parts;
    }

    pub(super) fn by_kind(&self) -> BTreeMap<OperationKind, TimeParts> {
        let kinds = self.0.iter().map(|(kind, total)| (*kind, total.mean()));
        kinds.collect()
    }
}

impl Total {
    fn mean(&self) -> TimeParts {
        let count = self.count.max(1) as f64;
        let mean = |picos: u64| picos as f64 / 1000.0 / count;
        let latency_ns = self.latency_ns as f64 / count;
        TimeParts {
            processor_ns: mean(self.parts.processor),
            checksum_ns: mean(self.parts.checksum),
            nic_ns: mean(self.parts.nic),
            wire_ns: mean(self.parts.wire),
            queue_ns: mean(self.parts.queue),
            backoff_ns: latency_ns - mean(self.parts.total()),
        }
    }
}
