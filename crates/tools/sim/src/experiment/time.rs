//! Where the time of operations went, over a window.

use std::collections::BTreeMap;

use farleaf_bench::workload::OperationKind;
use serde::Serialize;

use crate::fabric::world::Nanos;
use crate::nic::parts::Parts;

/// Where the time of one operation went, in the mean over a window. Together they are its latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TimeParts {
    /// The client thread's processor, but for checksums.
    pub processor_ns: f64,
    /// The processor, over the checksums of what was read.
    pub checksum_ns: f64,
    /// NICs at both ends and their links.
    pub nic_ns: f64,
    /// From NIC to NIC.
    pub wire_ns: f64,
    /// Waiting for processor, NICs, links and locking tables.
    pub queue_ns: f64,
    /// Everything else: backing off from locks that others hold.
    pub backoff_ns: f64,
}

impl TimeParts {
    /// Each under its name in files and its name for people.
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

    /// All of it: the mean latency.
    pub fn total_ns(&self) -> f64 {
        self.named().iter().map(|(.., nanos)| nanos).sum()
    }
}

/// Adds up where operations' time went.
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
