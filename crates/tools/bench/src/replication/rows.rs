//! Results: a row for each phase of each kind of replication in each round.

use std::time::Instant;

use serde::Serialize;

use super::clients::ClientTotals;
use super::config::ReplicationConfig;
use super::names::{Promise, ReplicationFabric, ReplicationKind, ReplicationPhase};
use super::processor::{Part, PartTimes, process_time_ns};
use super::shared::{DeviceCounts, ReplicationRunState};
use super::tails::Tail;
use super::traffic::TrafficCounts;
use crate::workload::OperationKind;

/// Values of all counters at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct CounterSnapshot {
    times: PartTimes,
    process_ns: u64,
    log_traffic: TrafficCounts,
    index_traffic: TrafficCounts,
    primaries: DeviceCounts,
    backups: DeviceCounts,
    log_size_bytes: u64,
    index_size_bytes: u64,
}

impl CounterSnapshot {
    pub(super) fn now(
        shared: &ReplicationRunState,
        primaries: DeviceCounts,
        log_size_bytes: u64,
        index_size_bytes: u64,
    ) -> Self {
        Self {
            times: shared.meter.times(),
            process_ns: process_time_ns(),
            log_traffic: shared.log_traffic.counts(),
            index_traffic: shared.index_traffic.counts(),
            primaries,
            backups: shared.backup_work(),
            log_size_bytes,
            index_size_bytes,
        }
    }
}

/// Results of one phase. Processor time, and bytes of devices and of the network, include
/// everything that the phase caused: deferred background work is completed before the next phase
/// begins.
#[derive(Clone, Debug, Serialize)]
pub struct ReplicationRow {
    /// Number of the round, from 0.
    pub round: u32,
    /// Kind of replication.
    pub kind: ReplicationKind,
    /// Phase of the run.
    pub phase: ReplicationPhase,
    /// Sizes of values.
    pub value_size: String,
    /// Fabric between the servers.
    pub fabric: ReplicationFabric,
    /// Durability with which puts return.
    pub promise: Promise,
    /// Size ratio between a level and the one above.
    pub growth_factor: u64,
    /// Operations of all threads.
    pub operation_count: u64,
    /// Bytes of keys and values that were put or found.
    pub user_size_bytes: u64,
    /// Time until the last client was done, in seconds.
    pub time_s: f64,
    /// Time until all background work was done, in seconds.
    pub settled_time_s: f64,
    /// Processor time by part, in the order of [`Part::ALL`].
    pub processor_ns: PartTimes,
    /// Part of the operations' time: verbs that replicate the log, mostly estimated from one batch
    /// in 16.
    pub log_verbs_ns: u64,
    /// Part of the sending time: the WRITEs that transfer trees.
    pub index_verbs_ns: u64,
    /// Time outside all parts: generating requests and checking results.
    pub generator_ns: u64,
    /// Time of all other threads: over `tcp`, those that execute verbs in place of a NIC.
    pub other_ns: u64,
    /// Device work of primaries.
    pub primaries: DeviceCounts,
    /// Device work of backups.
    pub backups: DeviceCounts,
    /// Bytes between the servers by verbs, in both directions.
    pub network_size_bytes: u64,
    /// Part of these bytes: the log.
    pub network_log_size_bytes: u64,
    /// Part of these bytes: trees.
    pub network_index_size_bytes: u64,
    /// Batches that replicated the log: waiting threads share one.
    pub log_batch_count: u64,
    /// Latencies of each kind of operation.
    pub tails: Vec<Tail>,
    /// Number of levels of the region with most of them, without L0.
    pub level_count: usize,
    /// Records that were compared in promoted backups after all phases.
    pub checked_count: u64,
}

impl ReplicationRow {
    /// Creates the row of a phase, of round 0, with no levels and no checked records.
    pub(super) fn new(
        config: &ReplicationConfig,
        kind: ReplicationKind,
        phase: ReplicationPhase,
        done: &ClientTotals,
        settled: Instant,
        before: &CounterSnapshot,
        after: &CounterSnapshot,
    ) -> Self {
        let times = after.times.since(&before.times);
        let log_traffic = after.log_traffic.since(&before.log_traffic);
        let index_traffic = after.index_traffic.since(&before.index_traffic);
        let known_ns = times.total() + done.generator_ns;
        Self {
            round: 0,
            kind,
            phase,
            value_size: config.value_size.to_string(),
            fabric: config.fabric,
            promise: config.promise,
            growth_factor: config.growth_factor,
            operation_count: done.operation_count,
            user_size_bytes: done.put_size_bytes + done.got_size_bytes,
            time_s: (done.ended - done.started).as_secs_f64(),
            settled_time_s: (settled - done.started).as_secs_f64(),
            processor_ns: times,
            log_verbs_ns: log_traffic.processor_ns().min(times.of(Part::Operations)),
            index_verbs_ns: index_traffic.large_ns().min(times.of(Part::Sending)),
            generator_ns: done.generator_ns,
            other_ns: (after.process_ns - before.process_ns).saturating_sub(known_ns),
            primaries: after.primaries.since(&before.primaries),
            backups: after.backups.since(&before.backups),
            network_size_bytes: log_traffic.size_bytes + index_traffic.size_bytes,
            network_log_size_bytes: after.log_size_bytes - before.log_size_bytes,
            network_index_size_bytes: after.index_size_bytes - before.index_size_bytes,
            log_batch_count: log_traffic.batch_count,
            tails: done.tails.report(),
            level_count: 0,
            checked_count: 0,
        }
    }

    /// Returns the operations per second until the last client was done.
    pub fn operations_per_s(&self) -> f64 {
        self.operation_count as f64 / self.time_s.max(1e-9)
    }

    /// Returns the operations per second until all background work was done: the sustainable rate.
    pub fn settled_operations_per_s(&self) -> f64 {
        self.operation_count as f64 / self.settled_time_s.max(1e-9)
    }

    /// Returns the processor time of both servers per operation.
    pub fn processor_ns_per_operation(&self) -> f64 {
        self.per_operation(self.processor_ns.total())
    }

    /// Returns the processor time of one part per operation.
    pub fn part_ns_per_operation(&self, part: Part) -> f64 {
        self.per_operation(self.processor_ns.of(part))
    }

    /// Returns the cost of the backups' trees per operation, at both servers: sending and
    /// receiving, or building.
    pub fn index_ns_per_operation(&self) -> f64 {
        let parts = [Part::Sending, Part::BackupReceived, Part::BackupBuilt];
        self.per_operation(parts.map(|part| self.processor_ns.of(part)).iter().sum())
    }

    /// Returns the same cost without the WRITEs that transfer trees, which a NIC would execute.
    pub fn index_ns_per_operation_but_writes(&self) -> f64 {
        self.index_ns_per_operation() - self.per_operation(self.index_verbs_ns)
    }

    fn per_operation(&self, of: u64) -> f64 {
        of as f64 / self.operation_count.max(1) as f64
    }

    /// Returns the bytes from and to devices per byte of keys and values that were put or found.
    pub fn io_amplification(&self) -> f64 {
        let size_bytes = self.primaries.size_bytes() + self.backups.size_bytes();
        size_bytes as f64 / self.user_size_bytes.max(1) as f64
    }

    /// Returns the bytes between the servers per such byte.
    pub fn network_amplification(&self) -> f64 {
        self.network_size_bytes as f64 / self.user_size_bytes.max(1) as f64
    }

    /// Returns the latencies of a kind of operation, if there were any.
    pub fn tail(&self, operation: OperationKind) -> Option<&Tail> {
        self.tails.iter().find(|it| it.operation == operation)
    }

    /// Returns the latencies of writes: of inserts, or else of updates.
    pub fn write_tail(&self) -> Option<&Tail> {
        let insert = self.tail(OperationKind::Insert);
        insert.or_else(|| self.tail(OperationKind::Update))
    }
}
