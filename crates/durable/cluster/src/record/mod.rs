//! What lies in the coordinator: keys, and records as JSON (CP7).
//!
//! | key | record | who writes it |
//! |---|---|---|
//! | `cluster` | [`Cluster`] | whoever founds the cluster, once; `cluster adopt`, once |
//! | `start` | [`Start`](start::Start) | the coordinator's process, when it starts |
//! | `start/N` | the same | the same; some are deleted when there are many |
//! | `forgiven/N` | [`Forgiven`](start::Forgiven) | administrators |
//! | `refusal/S` | [`Refusal`](start::Refusal) | the server, while it refuses the records |
//! | `ids` | [`Ids`] | the master, and whoever makes a table |
//! | `master` | [`MasterRecord`] | who wants to be master; goes with its lease |
//! | `server/S` | [`ServerRecord`] | the server; goes with its lease |
//! | `report/S` | [`ServerReport`] | the server; goes with its lease |
//! | `drain/S` | [`Drain`] | administrators |
//! | `name/NAME` | [`TableName`] | whoever makes a table |
//! | `table/T` | [`TableRecord`] | whoever makes a table, or drops it |
//! | `region/T/R` | [`RegionRecord`] | whoever makes a table, once; then the master alone |
//! | `wish/N` | [`Wish`] | administrators, and the master, which answers |
//!
//! Numbers in keys have 20 digits, so that their order is that of the numbers.
//!
//! | module | what it holds |
//! |---|---|
//! | [`mismatch`] | backups that did not write what their primary wrote |
//! | [`region`] | a region: range, epoch, replicas, what is being done with it |
//! | [`room`] | how much room is low |
//! | [`server`] | servers and what they report |
//! | [`start`] | starts of the coordinator |
//! | [`table`] | tables, names, counters |
//! | [`verification`] | how far a replica's files are verified |
//! | [`wish`] | what administrators want |

pub mod mismatch;
pub mod region;
pub mod room;
pub mod server;
pub mod start;
pub mod table;
pub mod verification;
pub mod wish;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::mismatch::{MismatchReport, PartSum};
pub use self::region::{Backup, Phase, RegionRecord, Replica};
pub use self::room::Room;
pub use self::server::{
    CopyReport, Drain, MasterRecord, Orphan, PrimaryReport, ReplicaReport, ServerRecord,
    ServerReport, UnusableCopy,
};
pub use self::table::{Cluster, Ids, TableName, TableRecord};
pub use self::verification::VerificationReport;
pub use self::wish::{Wish, WishAnswer, WishKind};

use crate::ids::{RegionId, ServerId, TableId};

/// The version of records, but for those that say another one ([`Record::VERSION`]). Records of an
/// unknown version are refused.
pub const FORMAT_VERSION: u32 = 1;

/// Numbers in records are below this: what every reader of JSON can tell exactly.
pub const NUMBER_END: u64 = 1 << 53;

/// The key of [`Cluster`].
pub const CLUSTER_KEY: &str = "cluster";
/// The key of the coordinator's newest [`Start`](start::Start).
pub const START_KEY: &str = "start";
/// What the keys of all its starts begin with.
pub const START_PREFIX: &str = "start/";
/// The key of [`Ids`].
pub const IDS_KEY: &str = "ids";
/// The key of [`MasterRecord`].
pub const MASTER_KEY: &str = "master";
/// What keys of servers begin with.
pub const SERVER_PREFIX: &str = "server/";
/// What keys of all regions begin with.
pub const REGION_PREFIX: &str = "region/";
/// What keys of tables begin with.
pub const TABLE_PREFIX: &str = "table/";
/// What keys of wishes begin with.
pub const WISH_PREFIX: &str = "wish/";

/// The key of a server.
pub fn server_key(server: ServerId) -> String {
    format!("{SERVER_PREFIX}{:020}", server.0)
}

/// The key of what a server reports.
pub fn report_key(server: ServerId) -> String {
    format!("report/{:020}", server.0)
}

/// The key of the wish that a server be drained.
pub fn drain_key(server: ServerId) -> String {
    format!("drain/{:020}", server.0)
}

/// The key of a table's name.
pub fn name_key(name: &str) -> String {
    format!("name/{name}")
}

/// The key of a table.
pub fn table_key(table: TableId) -> String {
    format!("{TABLE_PREFIX}{:020}", table.0)
}

/// What keys of a table's regions begin with.
pub fn table_regions_prefix(table: TableId) -> String {
    format!("{REGION_PREFIX}{:020}/", table.0)
}

/// The key of a region.
pub fn region_key(table: TableId, region: RegionId) -> String {
    format!("{}{:020}", table_regions_prefix(table), region.0)
}

/// The key of a wish.
pub fn wish_key(number: u64) -> String {
    format!("{WISH_PREFIX}{number:020}")
}

/// The number that a key has behind a prefix.
pub fn number_behind(key: &str, prefix: &str) -> Option<u64> {
    let digits = key.strip_prefix(prefix)?;
    let is_whole = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_whole { digits.parse().ok() } else { None }
}

/// A record that is not one, or none that this program knows.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RecordError {
    /// It is not as it was written.
    #[error("the record {key} is damaged: {how}")]
    Damaged {
        /// Under which key it lies.
        key: String,
        /// What is wrong with it.
        how: String,
    },
    /// A later version has written it.
    #[error(
        "the record {key} has format version {version}, and this program knows version \
         {known}: a newer program has written it; use that program here, too"
    )]
    Newer {
        /// Under which key it lies.
        key: String,
        /// Its version.
        version: u32,
        /// The newest one that is known.
        known: u32,
    },
}

/// The version that JSON says, if it is above the one that is known: such a record may have other
/// fields.
fn newer_version(bytes: &[u8], known: u32) -> Option<u32> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let versioned: Versioned = serde_json::from_slice(bytes).ok()?;
    Some(versioned.version).filter(|version| *version > known)
}

/// A record as it lies in the coordinator.
pub trait Record: Serialize + DeserializeOwned {
    /// The newest version of this record.
    const VERSION: u32 = FORMAT_VERSION;

    /// What in it cannot be, beside what its types tell; `key` is where it lies.
    ///
    /// # Errors
    /// What is wrong.
    fn check(&self, key: &str) -> Result<(), String>;

    /// As bytes.
    ///
    /// # Panics
    /// Never: records are plain values with string keys.
    fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("records are plain values with string keys")
    }

    /// From the bytes that lie under a key. Takes no more memory than a few times their size.
    ///
    /// # Errors
    /// [`RecordError`]: no JSON, not this record, or something that cannot be; or a later version
    /// has written it.
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
        "it has format version {version}, and this program knows version {expected} alone"
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

/// Refuses a record that lies under another one's key.
fn check_place(key: &str, expected: &str) -> Result<(), String> {
    if key == expected {
        return Ok(());
    }
    Err(format!("it is the one of {expected}"))
}

/// Refuses text that is too long for a message or an address.
fn check_text(what: &str, text: &str, size_bytes_max: usize) -> Result<(), String> {
    if text.len() <= size_bytes_max {
        return Ok(());
    }
    Err(format!(
        "{what} has {} bytes, and can have {size_bytes_max}",
        text.len()
    ))
}
