//! Keys of the coordinator, and records as JSON (CONTROL-7).
//!
//! | key | record | writer |
//! |---|---|---|
//! | `cluster` | [`Cluster`] | the creator of the cluster, once; `cluster adopt`, once |
//! | `start` | [`Start`](start::Start) | the coordinator's process, when it starts |
//! | `start/N` | [`Start`](start::Start) | the coordinator's process; the oldest are deleted |
//! | `forgiven/N` | [`AcceptedLoss`](start::AcceptedLoss) | administrators |
//! | `refusal/S` | [`Refusal`](start::Refusal) | the server, while it refuses the records |
//! | `ids` | [`Ids`] | the master, and the creator of a table |
//! | `master` | [`MasterRecord`] | the elected master; ends with its lease |
//! | `server/S` | [`ServerRecord`] | the server; ends with its lease |
//! | `report/S` | [`ServerReport`] | the server; ends with its lease |
//! | `drain/S` | [`Drain`] | administrators |
//! | `name/NAME` | [`TableName`] | the creator of a table |
//! | `table/T` | [`TableRecord`] | administrators who create or drop a table |
//! | `region/T/R` | [`RegionRecord`] | the creator of a table, once; then the master alone |
//! | `wish/N` | [`AdminRequest`] | administrators, and the master, which replies |
//!
//! Numbers in keys have 20 digits, so that keys sort by number.
//!
//! | module | contents |
//! |---|---|
//! | [`mismatch`] | backups that did not write what their primary wrote |
//! | [`region`] | a region: range, epoch, replicas, phase |
//! | [`space`] | limits of free space |
//! | [`server`] | servers and their reports |
//! | [`start`] | starts of the coordinator |
//! | [`table`] | tables, names, counters |
//! | [`verification`] | progress of the verification of a replica's files |
//! | [`admin_request`] | requests of administrators |

pub mod admin_request;
pub mod mismatch;
pub mod region;
pub mod server;
pub mod space;
pub mod start;
pub mod table;
pub mod verification;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::admin_request::{AdminReply, AdminRequest, AdminRequestKind};
pub use self::mismatch::{MismatchReport, PartSum};
pub use self::region::{Backup, Phase, RegionRecord, Replica};
pub use self::server::{
    CopyReport, Drain, MasterRecord, Orphan, PrimaryReport, ReplicaReport, ServerRecord,
    ServerReport, UnusableCopy,
};
pub use self::space::SpaceState;
pub use self::table::{Cluster, Ids, TableName, TableRecord};
pub use self::verification::VerificationReport;

use crate::ids::{RegionId, ServerId, TableId};

/// Version of records, except for those that define another one ([`Record::VERSION`]). Records of
/// an unknown version are refused.
pub const FORMAT_VERSION: u32 = 1;

/// Upper bound of numbers in records: every JSON reader represents smaller ones exactly.
pub const NUMBER_END: u64 = 1 << 53;

/// Key of [`Cluster`].
pub const CLUSTER_KEY: &str = "cluster";
/// Key of the coordinator's newest [`Start`](start::Start).
pub const START_KEY: &str = "start";
/// Prefix of the keys of all starts.
pub const START_PREFIX: &str = "start/";
/// Key of [`Ids`].
pub const IDS_KEY: &str = "ids";
/// Key of [`MasterRecord`].
pub const MASTER_KEY: &str = "master";
/// Prefix of the keys of servers.
pub const SERVER_PREFIX: &str = "server/";
/// Prefix of the keys of regions.
pub const REGION_PREFIX: &str = "region/";
/// Prefix of the keys of tables.
pub const TABLE_PREFIX: &str = "table/";
/// Prefix of the keys of requests.
pub const ADMIN_REQUEST_PREFIX: &str = "wish/";

/// Returns the key of a server.
pub fn server_key(server: ServerId) -> String {
    format!("{SERVER_PREFIX}{:020}", server.0)
}

/// Returns the key of a server's report.
pub fn report_key(server: ServerId) -> String {
    format!("report/{:020}", server.0)
}

/// Returns the key of the request to drain a server.
pub fn drain_key(server: ServerId) -> String {
    format!("drain/{:020}", server.0)
}

/// Returns the key of a table's name.
pub fn name_key(name: &str) -> String {
    format!("name/{name}")
}

/// Returns the key of a table.
pub fn table_key(table: TableId) -> String {
    format!("{TABLE_PREFIX}{:020}", table.0)
}

/// Returns the prefix of the keys of a table's regions.
pub fn table_regions_prefix(table: TableId) -> String {
    format!("{REGION_PREFIX}{:020}/", table.0)
}

/// Returns the key of a region.
pub fn region_key(table: TableId, region: RegionId) -> String {
    format!("{}{:020}", table_regions_prefix(table), region.0)
}

/// Returns the key of a request.
pub fn admin_request_key(number: u64) -> String {
    format!("{ADMIN_REQUEST_PREFIX}{number:020}")
}

/// Returns the number in a key after a prefix.
pub fn number_behind(key: &str, prefix: &str) -> Option<u64> {
    let digits = key.strip_prefix(prefix)?;
    let is_whole = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_whole { digits.parse().ok() } else { None }
}

/// Error of decoding a record.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RecordError {
    /// The record is corrupted.
    #[error("the record '{key}' is corrupted: {how}")]
    Damaged {
        /// Key of the record.
        key: String,
        /// Description of the corruption.
        how: String,
    },
    /// A later version has written the record.
    #[error(
        "the record '{key}' has format version {version}, but this version of Farleaf supports \
         up to {known}: a newer version has written it; use that version here, too"
    )]
    Newer {
        /// Key of the record.
        key: String,
        /// Version of the record.
        version: u32,
        /// Newest known version.
        known: u32,
    },
}

/// Returns the version of JSON if it is above `known`: such a record may have other fields.
fn newer_version(bytes: &[u8], known: u32) -> Option<u32> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let versioned: Versioned = serde_json::from_slice(bytes).ok()?;
    Some(versioned.version).filter(|version| *version > known)
}

/// A record in the coordinator.
pub trait Record: Serialize + DeserializeOwned {
    /// Newest version of this record.
    const VERSION: u32 = FORMAT_VERSION;

    /// Checks what the types do not; `key` is the record's key.
    ///
    /// # Errors
    /// A description of what is wrong.
    fn check(&self, key: &str) -> Result<(), String>;

    /// Encodes the record.
    ///
    /// # Panics
    /// Never: records are plain values with string keys.
    fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("records are plain values with string keys")
    }

    /// Decodes the bytes under a key. Takes no more memory than a few times their size.
    ///
    /// # Errors
    /// [`RecordError`]: the bytes are not JSON, not this record, or have impossible content; or a
    /// later version has written them.
    fn decode(key: &str, bytes: &[u8]) -> Result<Self, RecordError> {
        let damaged = |how| {
            let key = key.to_owned();
            let known = Self::VERSION;
            match newer_version(bytes, known) {
                Some(version) => RecordError::Newer {
                    key,
                    version,
                    known,
                },
                None => RecordError::Damaged { key, how },
            }
        };
        let record: Self =
            serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        record.check(key).map_err(damaged)?;
        Ok(record)
    }
}

/// Refuses another format version.
fn check_version(version: u32, expected: u32) -> Result<(), String> {
    if version == expected {
        return Ok(());
    }
    Err(format!(
        "unsupported format version {version}: expected {expected}"
    ))
}

/// Refuses another format version, and numbers that are too large.
fn check_numbers(version: u32, numbers: &[u64]) -> Result<(), String> {
    check_version(version, FORMAT_VERSION)?;
    check_sizes(numbers)
}

/// Refuses numbers that are too large.
fn check_sizes(numbers: &[u64]) -> Result<(), String> {
    match numbers.iter().find(|number| **number >= NUMBER_END) {
        Some(number) => Err(format!("the number {number} is 2^53 or more")),
        None => Ok(()),
    }
}

/// Refuses a record under another record's key.
fn check_record_key(key: &str, expected: &str) -> Result<(), String> {
    if key == expected {
        return Ok(());
    }
    Err(format!("it is the record of '{expected}'"))
}

/// Refuses text that is too long for a message or an address.
fn check_text(what: &str, text: &str, size_bytes_max: usize) -> Result<(), String> {
    if text.len() <= size_bytes_max {
        return Ok(());
    }
    Err(format!(
        "{what} has {} bytes; the limit is {size_bytes_max}",
        text.len()
    ))
}
