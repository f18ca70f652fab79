//! Servers: their registrations and reports.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::mismatch::{MISMATCH_COUNT_MAX, MismatchReport};
use super::region::{REPLICA_COUNT_MAX, RegionRecord, is_false};
use super::{
    MASTER_KEY, Record, SpaceState, VerificationReport, check_numbers, check_record_key,
    check_text, drain_key, number_behind, report_key, server_key,
};
use crate::ids::{Epoch, Life, RegionId, ReplicaNumber, ServerId, TableId, TableIncarnation};
use crate::lease::LEASE_TIME_MAX;

/// Largest size of an address.
pub const ADDRESS_SIZE_BYTES_MAX: usize = 256;

/// Largest size of a server's description of a failure; longer ones are truncated.
pub const FAILURE_SIZE_BYTES_MAX: usize = 512;

/// Truncates a text to a size.
pub fn cut(mut text: String, size_bytes_max: usize) -> String {
    let mut size_bytes = text.len().min(size_bytes_max);
    while !text.is_char_boundary(size_bytes) {
        size_bytes -= 1;
    }
    text.truncate(size_bytes);
    text
}

/// The master. The holder of the key is master; the key's creation revision identifies the
/// election.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MasterRecord {
    /// Version of the record: [`FORMAT_VERSION`](super::FORMAT_VERSION).
    pub version: u32,
    /// Address of the master, for people.
    pub address: String,
}

impl Record for MasterRecord {
    fn check(&self, key: &str) -> Result<(), String> {
        check_numbers(self.version, &[])?;
        check_record_key(key, MASTER_KEY)?;
        check_text("an address", &self.address, ADDRESS_SIZE_BYTES_MAX)
    }
}

/// A registered server. Its life is the key's creation revision (CONTROL-8).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerRecord {
    /// Version of the record: [`FORMAT_VERSION`](super::FORMAT_VERSION).
    pub version: u32,
    /// Number of the server.
    pub server: ServerId,
    /// Address for clients and other servers.
    pub address: String,
    /// Length of the server's lease, in milliseconds, for processes that wait for its end; `None`:
    /// as long as the reader's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
}

impl Record for ServerRecord {
    fn check(&self, key: &str) -> Result<(), String> {
        check_numbers(self.version, &[self.server.0])?;
        check_record_key(key, &server_key(self.server))?;
        let lease = self.lease_ms.map(Duration::from_millis);
        if lease.is_some_and(|it| it > LEASE_TIME_MAX) {
            return Err("its lease is longer than one day".to_owned());
        }
        check_text("an address", &self.address, ADDRESS_SIZE_BYTES_MAX)
    }
}

/// Request to drain a server: it gets no replicas, and those that it has move away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// Version of the record: [`FORMAT_VERSION`](super::FORMAT_VERSION).
    pub version: u32,
}

impl Record for Drain {
    fn check(&self, key: &str) -> Result<(), String> {
        check_numbers(self.version, &[])?;
        let server = number_behind(key, "drain/").ok_or("its key has no server number")?;
        check_record_key(key, &drain_key(ServerId(server)))
    }
}

/// A server's report about a region whose primary it has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrimaryReport {
    /// Backups without which the primary acknowledges nothing any more (CONTROL-14).
    pub in_sync: Vec<ReplicaNumber>,
    /// Backups that cannot be reached, or make no progress.
    pub failed: Vec<ReplicaNumber>,
    /// Whether the primary has acknowledged its last operation at this epoch (CONTROL-15).
    pub stopped: bool,
    /// The region prepared for a split, and the backups that are prepared, too.
    pub prepared: Option<(RegionId, Vec<ReplicaNumber>)>,
    /// Backups that wrote something else than the primary, and were not repaired yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mismatches: Vec<MismatchReport>,
    /// Number of mismatches found since the primary was opened, including repaired ones.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mismatch_count: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A server's report about a replica that was ordered from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaReport {
    /// The table.
    pub table: TableId,
    /// The region.
    pub region: RegionId,
    /// Number of the replica.
    pub replica: ReplicaNumber,
    /// Epoch at which the replica is open.
    pub epoch: Epoch,
    /// The report as primary, if it is one.
    pub primary: Option<PrimaryReport>,
    /// Reason why the replica is broken, if it is: it does nothing more for this region
    /// (CONTROL-16).
    pub broken: Option<String>,
    /// Whether the replica broke because of a full disk. Then its copy, once there is space, is
    /// among [`copies`](ServerReport::copies) and can continue (CONTROL-16). For a replica that is
    /// not broken: it cannot carry out its order yet, and will when there is space.
    #[serde(default, rename = "lacked_room", skip_serializing_if = "is_false")]
    pub lacked_space: bool,
    /// Whether the replica broke because of damage in its data while it was open. Then its copy,
    /// too, is among [`copies`](ServerReport::copies), and continues if no other replica does
    /// (CONTROL-16).
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_damaged: bool,
    /// Description of damage despite which the replica continues: no other replica is without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Progress of the verification of the replica's files; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<VerificationReport>,
    /// Size of the replica, in bytes.
    pub size_bytes: u64,
    /// Executed operations per second.
    pub operations_per_second: u64,
    /// End of the replica's log, in bytes.
    pub position_bytes: u64,
}

/// A copy of a region on a server's disk that is not open: from an earlier life, or of a replica
/// that broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyReport {
    /// The table.
    pub table: TableId,
    /// The region.
    pub region: RegionId,
    /// Number of the replica.
    pub replica: ReplicaNumber,
    /// Epoch of the last record in its log.
    pub epoch: Epoch,
    /// End of the copy's log, in bytes.
    pub position_bytes: u64,
    /// Incarnation of the copy's table; `None` if an older version has written it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<TableIncarnation>,
}

impl CopyReport {
    /// Returns whether the copy belongs to the record's region, and not to one of another table
    /// that had the same number.
    pub fn is_of(&self, record: &RegionRecord) -> bool {
        let is_same = TableIncarnation::may_be_same(self.incarnation, record.incarnation);
        self.region == record.region && is_same
    }
}

/// A copy on a server's disk that cannot be used, or that a broken replica left which is no longer
/// in the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnusableCopy {
    /// The region.
    pub region: RegionId,
    /// Number of the replica.
    pub replica: ReplicaNumber,
    /// Whether the content is corrupted, so that no retry can read it (CONTROL-18). Otherwise the
    /// system could not read it, or a newer version has written it.
    pub is_damaged: bool,
    /// Description of the problem.
    pub how: String,
}

/// Files on a server's disk that nothing proves to be garbage: they are kept aside until an
/// operator removes them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Orphan {
    /// Path of the files.
    pub path: String,
    /// Reason why the files were moved aside.
    pub how: String,
}

/// Report of a server. The newest one of a life is complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerReport {
    /// Version of the record: [`FORMAT_VERSION`](super::FORMAT_VERSION).
    pub version: u32,
    /// The server.
    pub server: ServerId,
    /// Life of the server.
    pub life: Life,
    /// Ordered replicas, in the order of regions.
    pub replicas: Vec<ReplicaReport>,
    /// Copies that were found on the disk and not ordered since, and those of replicas that broke,
    /// from when they can continue until they are opened again.
    pub copies: Vec<CopyReport>,
    /// Copies that cannot be used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unusable: Vec<UnusableCopy>,
    /// The first files that were moved aside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orphans: Vec<Orphan>,
    /// Capacity of the disk, in bytes; 0 if unknown.
    pub capacity_bytes: u64,
    /// Free space of the disk, in bytes; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
}

impl ServerReport {
    /// Returns the state of the disk's free space.
    pub fn space_state(&self) -> SpaceState {
        SpaceState::of(self.capacity_bytes, self.free_bytes)
    }

    /// Returns the report about a replica.
    pub fn replica(&self, region: RegionId, replica: ReplicaNumber) -> Option<&ReplicaReport> {
        let place = self.replicas.binary_search_by_key(&region, |it| it.region);
        let report = place.ok().map(|place| &self.replicas[place]);
        report.filter(|it| it.replica == replica)
    }

    /// Returns the report about a replica's copy that is not open.
    pub fn copy(&self, record: &RegionRecord, replica: ReplicaNumber) -> Option<CopyReport> {
        let mut copies = self.copies.iter();
        let copy = copies.find(|it| it.is_of(record) && it.replica == replica);
        copy.copied()
    }
}

impl Record for ServerReport {
    fn check(&self, key: &str) -> Result<(), String> {
        check_numbers(self.version, &[self.server.0, self.life.0.0])?;
        check_record_key(key, &report_key(self.server))?;
        if !self.replicas.is_sorted_by(|a, b| a.region < b.region) {
            return Err("its replicas are not sorted by region".to_owned());
        }
        for replica in &self.replicas {
            let numbers = [
                replica.table.0,
                replica.region.0,
                replica.replica.0,
                replica.epoch.0,
            ];
            check_numbers(self.version, &numbers)?;
            for failure in [&replica.broken, &replica.fault].into_iter().flatten() {
                check_text("a failure", failure, FAILURE_SIZE_BYTES_MAX)?;
            }
            if let Some(verification) = &replica.verification {
                verification.check()?;
            }
            let Some(primary) = &replica.primary else {
                continue;
            };
            let prepared = primary.prepared.as_ref().map_or(0, |(_, on)| on.len());
            let count_max = primary.in_sync.len().max(primary.failed.len());
            if count_max.max(prepared) > REPLICA_COUNT_MAX {
                return Err(format!("{} has too many backups", replica.region));
            }
            if primary.mismatches.len() > MISMATCH_COUNT_MAX {
                return Err(format!("{} has too many mismatches", replica.region));
            }
            for mismatch in &primary.mismatches {
                check_numbers(self.version, &[mismatch.replica.0, mismatch.server.0])?;
                mismatch.check()?;
            }
        }
        for copy in &self.copies {
            let numbers = [copy.table.0, copy.region.0, copy.replica.0, copy.epoch.0];
            check_numbers(self.version, &numbers)?;
        }
        for copy in &self.unusable {
            check_numbers(self.version, &[copy.region.0, copy.replica.0])?;
            check_text("a failure", &copy.how, FAILURE_SIZE_BYTES_MAX)?;
        }
        for orphan in &self.orphans {
            check_text("a path", &orphan.path, FAILURE_SIZE_BYTES_MAX)?;
            check_text("a failure", &orphan.how, FAILURE_SIZE_BYTES_MAX)?;
        }
        Ok(())
    }
}
