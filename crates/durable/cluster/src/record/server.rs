//! Servers: that they are there, and what they report.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::mismatch::{MISMATCH_COUNT_MAX, MismatchReport};
use super::region::{REPLICA_COUNT_MAX, RegionRecord, is_false};
use super::{
    MASTER_KEY, Record, Room, VerificationReport, check_numbers, check_place, check_text,
    drain_key, number_behind, report_key, server_key,
};
use crate::ids::{Epoch, Life, RegionId, ReplicaNumber, ServerId, TableId, TableIncarnation};
use crate::lease::LEASE_TIME_MAX;

/// An address may have so many bytes.
pub const ADDRESS_SIZE_BYTES_MAX: usize = 256;

/// What a server says about a failure may have so many bytes; more is cut off.
pub const FAILURE_SIZE_BYTES_MAX: usize = 512;

/// Text of so many bytes at the most.
pub fn cut(mut text: String, size_bytes_max: usize) -> String {
    let mut size_bytes = text.len().min(size_bytes_max);
    while !text.is_char_boundary(size_bytes) {
        size_bytes -= 1;
    }
    text.truncate(size_bytes);
    text
}

/// The master: whose key it is, is master. Which election it was is when the key came into being.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MasterRecord {
    /// [`FORMAT_VERSION`](super::FORMAT_VERSION).
    pub version: u32,
    /// Where it can be asked, in words for people.
    pub address: String,
}

impl Record for MasterRecord {
    fn check(&self, key: &str) -> Result<(), String> {
        check_numbers(self.version, &[])?;
        check_place(key, MASTER_KEY)?;
        check_text("an address", &self.address, ADDRESS_SIZE_BYTES_MAX)
    }
}

/// A server that is there. Its life is when its key came into being (CP8).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerRecord {
    /// [`FORMAT_VERSION`](super::FORMAT_VERSION).
    pub version: u32,
    /// Which one.
    pub server: ServerId,
    /// Where clients and other servers reach it.
    pub address: String,
    /// How long its lease is, in milliseconds, for who waits for its end; none: as long as one's
    /// own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
}

impl Record for ServerRecord {
    fn check(&self, key: &str) -> Result<(), String> {
        check_numbers(self.version, &[self.server.0])?;
        check_place(key, &server_key(self.server))?;
        let lease = self.lease_ms.map(Duration::from_millis);
        if lease.is_some_and(|it| it > LEASE_TIME_MAX) {
            return Err("no lease is longer than a day".to_owned());
        }
        check_text("an address", &self.address, ADDRESS_SIZE_BYTES_MAX)
    }
}

/// The wish that a server have no replicas: it gets none, and what it has moves away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// [`FORMAT_VERSION`](super::FORMAT_VERSION).
    pub version: u32,
}

impl Record for Drain {
    fn check(&self, key: &str) -> Result<(), String> {
        check_numbers(self.version, &[])?;
        let server = number_behind(key, "drain/").ok_or("its key has no number of a server")?;
        check_place(key, &drain_key(ServerId(server)))
    }
}

/// What a server says of a region that it is primary of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrimaryReport {
    /// Backups without which it acknowledges nothing any more (CP14).
    pub in_sync: Vec<ReplicaNumber>,
    /// Backups that it cannot reach, or that do not do what they must.
    pub failed: Vec<ReplicaNumber>,
    /// It has acknowledged its last operation at this epoch (CP15).
    pub stopped: bool,
    /// The region that it has prepared to split off, and the backups that have, too.
    pub prepared: Option<(RegionId, Vec<ReplicaNumber>)>,
    /// Backups that did not write what it wrote, and that have not been repaired yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mismatches: Vec<MismatchReport>,
    /// Number of mismatches that it has found since it was opened, repaired ones included.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mismatch_count: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// What a server says of a replica that was ordered from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaReport {
    /// Of which table.
    pub table: TableId,
    /// Of which region.
    pub region: RegionId,
    /// Which one.
    pub replica: ReplicaNumber,
    /// The epoch that it is open at.
    pub epoch: Epoch,
    /// If it is primary, what it says as such.
    pub primary: Option<PrimaryReport>,
    /// Why it is not any more what was ordered: it does nothing more for this region (CP16).
    pub broken: Option<String>,
    /// Whether that was for want of room: then its copy, when there is room for it, is among
    /// [`copies`](ServerReport::copies), and can go on (CP16). Of one that is not broken: it is not
    /// yet what was ordered, and will be when there is room.
    #[serde(default, skip_serializing_if = "is_false")]
    pub lacked_room: bool,
    /// Whether that was for damage of what it has, while it could go on: then its copy, too, is
    /// among [`copies`](ServerReport::copies), and goes on if no other replica does (CP16).
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_damaged: bool,
    /// What is wrong with what it has, while it goes on: damage that no other replica is without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// How far its files are verified; none: it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<VerificationReport>,
    /// How much it has, in bytes.
    pub size_bytes: u64,
    /// How many operations it executes in a second.
    pub operations_per_second: u64,
    /// Up to where its log goes, in bytes.
    pub position_bytes: u64,
}

/// A copy of a region on a server's disk that is not open: from an earlier life, or of a replica
/// that broke for want of room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyReport {
    /// Of which table.
    pub table: TableId,
    /// Of which region.
    pub region: RegionId,
    /// Which replica it was.
    pub replica: ReplicaNumber,
    /// The epoch of the last record in its log.
    pub epoch: Epoch,
    /// Up to where its log goes, in bytes.
    pub position_bytes: u64,
    /// The incarnation of its table (ID4); none: an older version has written it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<TableIncarnation>,
}

impl CopyReport {
    /// Whether it is of the region of a record, and not of a region of another table that had the
    /// same number.
    pub fn is_of(&self, record: &RegionRecord) -> bool {
        let is_same = TableIncarnation::may_be_same(self.incarnation, record.incarnation);
        self.region == record.region && is_same
    }
}

/// What a server's disk has of a copy that cannot be used, or that a replica has left which broke,
/// and is none any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnusableCopy {
    /// Of which region.
    pub region: RegionId,
    /// Which replica it was.
    pub replica: ReplicaNumber,
    /// Whether what is there is not what was written, so that no other try reads it (CP18); else
    /// the system did not give it, or a newer program has made it.
    pub is_damaged: bool,
    /// What is wrong.
    pub how: String,
}

/// What a server has found on its disk and cannot prove to be garbage (ID3): it is kept aside until
/// an operator removes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Orphan {
    /// Where it is.
    pub path: String,
    /// Why it is no replica.
    pub how: String,
}

/// What a server reports. A server's newest report of a life says all that is so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerReport {
    /// [`FORMAT_VERSION`](super::FORMAT_VERSION).
    pub version: u32,
    /// Of which server.
    pub server: ServerId,
    /// In which life.
    pub life: Life,
    /// What it has of what was ordered, in the order of regions.
    pub replicas: Vec<ReplicaReport>,
    /// What it has found on its disk, and nobody has ordered since; and the copies of replicas that
    /// broke for want of room, from when there is some until they are opened again.
    pub copies: Vec<CopyReport>,
    /// What of that cannot be used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unusable: Vec<UnusableCopy>,
    /// What it keeps aside: the first ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orphans: Vec<Orphan>,
    /// How much its disk can hold, in bytes; 0: it does not say.
    pub capacity_bytes: u64,
    /// How much of that is free, in bytes; none: it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
}

impl ServerReport {
    /// How much room its disk has.
    pub fn room(&self) -> Room {
        Room::of(self.capacity_bytes, self.free_bytes)
    }

    /// What it says of a replica.
    pub fn replica(&self, region: RegionId, replica: ReplicaNumber) -> Option<&ReplicaReport> {
        let place = self.replicas.binary_search_by_key(&region, |it| it.region);
        let found = place.ok().map(|place| &self.replicas[place]);
        found.filter(|it| it.replica == replica)
    }

    /// What it says of the copy of a replica of a region that is not open.
    pub fn copy(&self, record: &RegionRecord, replica: ReplicaNumber) -> Option<CopyReport> {
        let mut copies = self.copies.iter();
        let found = copies.find(|it| it.is_of(record) && it.replica == replica);
        found.copied()
    }
}

impl Record for ServerReport {
    fn check(&self, key: &str) -> Result<(), String> {
        check_numbers(self.version, &[self.server.0, self.life.0.0])?;
        check_place(key, &report_key(self.server))?;
        if !self.replicas.is_sorted_by(|a, b| a.region < b.region) {
            return Err("its replicas are not in the order of regions".to_owned());
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
