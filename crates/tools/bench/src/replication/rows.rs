//! What was measured: a row for each phase of each kind of replication in each round.

use std::time::Instant;

use serde::Serialize;

use super::clients::ClientsDone;
use super::config::ReplicationConfig;
use super::names::{Promise, ReplicationFabric, ReplicationKind, ReplicationPhase};
use super::processor::{Part, PartTimes, process_time_ns};
use super::shared::{DeviceCounts, Shared};
use super::tails::Tail;
use super::traffic::TrafficCounts;
use crate::workload::OperationKind;

/// All counters at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    times: PartTimes,
    process_ns: u64,
    log_traffic: TrafficCounts,
    index_traffic: TrafficCounts,
    primaries: DeviceCounts,
    backups: DeviceCounts,
    log_size_bytes: u64,
    index_size_bytes: u64,
}

impl Moment {
    pub(super) fn now(
        shared: &Shared,
        primaries: DeviceCounts,
        (log_size_bytes, index_size_bytes): (u64, u64),
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

/// One phase. Processor time, and bytes of devices and of the network, are of all that the phase
/// has caused: background work that was put off is done before the next one begins (R2).
#[derive(Clone, Debug, Serialize)]
pub struct ReplicationRow {
    /// From 0 on.
    pub round: u32,
    /// Of which kind of replication.
    pub kind: ReplicationKind,
    /// Which phase.
    pub phase: ReplicationPhase,
    /// Sizes of values.
    pub value_size: String,
    /// Between the servers.
    pub fabric: ReplicationFabric,
    /// When puts return.
    pub promise: Promise,
    /// How much larger a level is than the one above.
    pub growth_factor: u64,
    /// Operations, all threads together.
    pub operation_count: u64,
    /// Keys and values that were put or found, in bytes.
    pub user_size_bytes: u64,
    /// Until the last client was done.
    pub time_s: f64,
    /// And until all background work was.
    pub settled_time_s: f64,
    /// Processor time by part, in the order of [`Part::ALL`].
    pub processor_ns: PartTimes,
    /// Of that of operations: the verbs that bring the log to backups, most of them as one batch of
    /// 16 tells.
    pub log_verbs_ns: u64,
    /// Of that of sending: the WRITEs that bring trees.
    pub index_verbs_ns: u64,
    /// Beside all parts: making requests and checking what was found.
    pub generator_ns: u64,
    /// And all other threads: over `tcp`, those that execute verbs in a NIC's place.
    pub other_ns: u64,
    /// What primaries have done with their devices.
    pub primaries: DeviceCounts,
    /// What backups have.
    pub backups: DeviceCounts,
    /// Bytes that went between the servers, both directions, by verbs.
    pub network_size_bytes: u64,
    /// Of those: bytes of the log,
    pub network_log_size_bytes: u64,
    /// and of trees.
    pub network_index_size_bytes: u64,
    /// Batches that brought the log: those who wait share one.
    pub log_batch_count: u64,
    /// Latencies of each kind of operation.
    pub tails: Vec<Tail>,
    /// Levels of the region that has most of them, beside L0.
    pub level_count: usize,
    /// Records that were compared in promoted backups when all phases were over.
    pub checked_count: u64,
}

impl ReplicationRow {
    pub(super) fn new(
        (config, kind, phase): (&ReplicationConfig, ReplicationKind, ReplicationPhase),
        (done, settled): (&ClientsDone, Instant),
        (before, after): (&Moment, &Moment),
        level_count: usize,
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
            level_count,
            checked_count: 0,
        }
    }

    /// Operations in a second, until the last client was done.
    pub fn operations_per_s(&self) -> f64 {
        self.operation_count as f64 / self.time_s.max(1e-9)
    }

    /// The same until all background work was done: what can go on for ever.
    pub fn settled_operations_per_s(&self) -> f64 {
        self.operation_count as f64 / self.settled_time_s.max(1e-9)
    }

    /// Processor time of both servers for an operation.
    pub fn processor_ns_per_operation(&self) -> f64 {
        self.per_operation(self.processor_ns.total())
    }

    /// That of one part.
    pub fn part_ns_per_operation(&self, part: Part) -> f64 {
        self.per_operation(self.processor_ns.of(part))
    }

    /// What the backups' trees cost, wherever: sending and taking in, or building.
    pub fn index_ns_per_operation(&self) -> f64 {
        let parts = [Part::Sending, Part::BackupReceived, Part::BackupBuilt];
        self.per_operation(parts.map(|part| self.processor_ns.of(part)).iter().sum())
    }

    /// The same without the WRITEs that bring trees, which a NIC would do.
    pub fn index_ns_per_operation_but_writes(&self) -> f64 {
        self.index_ns_per_operation() - self.per_operation(self.index_verbs_ns)
    }

    fn per_operation(&self, of: u64) -> f64 {
        of as f64 / self.operation_count.max(1) as f64
    }

    /// Bytes from and to devices, for each byte of keys and values that was put or found.
    pub fn io_amplification(&self) -> f64 {
        let size_bytes = self.primaries.size_bytes() + self.backups.size_bytes();
        size_bytes as f64 / self.user_size_bytes.max(1) as f64
    }

    /// Bytes between the servers, for each such byte.
    pub fn network_amplification(&self) -> f64 {
        self.network_size_bytes as f64 / self.user_size_bytes.max(1) as f64
    }

    /// The latencies of a kind of operation, if there were any.
    pub fn tail(&self, operation: OperationKind) -> Option<&Tail> {
        self.tails.iter().find(|it| it.operation == operation)
    }

    /// The latencies of what writes: of inserts, or else of updates.
    pub fn write_tail(&self) -> Option<&Tail> {
        let insert = self.tail(OperationKind::Insert);
        insert.or_else(|| self.tail(OperationKind::Update))
    }
}
