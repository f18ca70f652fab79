//! The trait of coordinators (CONTROL-1 to CONTROL-6): a small map with revisions, transactions,
//! leases and watches. etcd is one (`farleaf-etcd`), [`Embedded`] another, which can be [`served`]
//! to other processes.
//!
//! | module | contents |
//! |---|---|
//! | [`store`] | the map of [`Embedded`], with revisions and leases, as a plain value |
//! | [`embedded`] | [`Embedded`]: a coordinator within one process |
//! | `shared` | [`SharedCoordinator`]: a coordinator of any kind |
//! | `started` | [`Started`]: records its start before it changes anything |
//! | `bound` | [`Bound`]: checks the coordinator's identity; for members and clients of a cluster |
//! | [`journal`] | the journal of [`Embedded`] |
//! | `place` | check that the journal is still the file that its path names |
//! | [`address`] | addresses of coordinators |
//! | `base64_text` | values in JSON |
//! | [`served`] | a coordinator in another process: server and client |
//! | `conformance` | the suite that every coordinator has to pass (feature `conformance`) |

pub mod address;
mod base64_text;
mod bound;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod embedded;
pub mod journal;
mod place;
pub mod served;
mod shared;
mod started;
pub mod store;

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use farleaf_lsm::storage::is_out_of_space;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::ids::ClusterId;
use crate::record::{CLUSTER_KEY, START_KEY};

pub use self::address::{CoordinatorAddress, CoordinatorAddressError};
pub use self::bound::{Bound, SeenStart};
pub use self::embedded::Embedded;
pub use self::shared::SharedCoordinator;
pub use self::started::Started;

/// Largest size of a key.
pub const KEY_SIZE_BYTES_MAX: usize = 512;

/// Largest size of a value.
pub const VALUE_SIZE_BYTES_MAX: usize = 1 << 20;

/// Largest number of comparisons, and of writes, of a transaction. etcd allows 128; implementations
/// add some of their own.
pub const TRANSACTION_PART_COUNT_MAX: usize = 120;

/// Largest size of the keys and values that a transaction writes. etcd takes requests of up to 1.5
/// MiB.
pub const TRANSACTION_SIZE_BYTES_MAX: usize = VALUE_SIZE_BYTES_MAX + (256 << 10);

/// Position in the coordinator's one order of changes (CONTROL-1). The first change has number 2,
/// as in etcd; 0 means "never".
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Revision(pub u64);

impl Revision {
    /// Revision of a missing key.
    pub const NEVER: Self = Self(0);
}

impl fmt::Display for Revision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "revision {}", self.0)
    }
}

/// Identifier of a lease, never reused (CONTROL-3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "lease {:x}", self.0)
    }
}

/// A key with its value and revisions. In JSON it is a list of these fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Value of the key.
    pub value: Vec<u8>,
    /// Revision of the key's creation, after its last deletion.
    pub create_revision: Revision,
    /// Revision of the last write.
    pub mod_revision: Revision,
    /// Lease with whose end the key is deleted.
    pub lease: Option<LeaseId>,
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'e>(
            &'e str,
            #[serde(with = "base64_text")] &'e [u8],
            Revision,
            Revision,
            Option<LeaseId>,
        );

        let (created, modified) = (self.create_revision, self.mod_revision);
        Fields(&self.key, &self.value, created, modified, self.lease).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Value(#[serde(with = "base64_text")] Vec<u8>);

        let (key, Value(value), create_revision, mod_revision, lease) =
            Deserialize::deserialize(deserializer)?;
        Ok(Self {
            key,
            value,
            create_revision,
            mod_revision,
            lease,
        })
    }
}

/// Keys of the records by which a coordinator presents its identity.
pub const IDENTITY_KEYS: [&str; 2] = [CLUSTER_KEY, START_KEY];

/// Keys and values at a revision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// Revision of the snapshot.
    pub revision: Revision,
    /// Entries in the order of their keys.
    pub entries: Vec<Entry>,
    /// Records under [`IDENTITY_KEYS`] at the same revision, whatever the prefix: the coordinator's
    /// cluster, and its start.
    pub identity: Vec<Entry>,
}

/// Condition for a transaction to take effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compare {
    /// The key was created at this revision, or is missing (`Revision::NEVER`).
    Created(String, Revision),
    /// The key was last written at this revision, or is missing (`Revision::NEVER`).
    Modified(String, Revision),
    /// The key exists and has this value.
    Holds(String, #[serde(with = "base64_text")] Vec<u8>),
}

impl Compare {
    /// Returns the key that is compared.
    pub fn key(&self) -> &str {
        match self {
            Self::Created(key, _) | Self::Modified(key, _) | Self::Holds(key, _) => key,
        }
    }
}

/// A write of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Write {
    /// Sets a key's value. If a lease is given, the key is deleted with its end.
    Put(
        String,
        #[serde(with = "base64_text")] Vec<u8>,
        Option<LeaseId>,
    ),
    /// Deletes a key; does nothing if it is missing.
    Delete(String),
}

impl Write {
    /// Returns the key that is written.
    pub fn key(&self) -> &str {
        match self {
            Self::Put(key, ..) | Self::Delete(key) => key,
        }
    }
}

/// Comparisons and writes: all writes take effect at one revision, or none does (CONTROL-2). No key
/// may be written twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transaction {
    /// Conditions that must all hold.
    pub compares: Vec<Compare>,
    /// Writes that then take effect.
    pub writes: Vec<Write>,
}

impl Transaction {
    /// Creates a transaction without comparisons and writes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a comparison.
    #[must_use]
    pub fn when(mut self, compare: Compare) -> Self {
        self.compares.push(compare);
        self
    }

    /// Adds a put of a key that stays until it is deleted.
    #[must_use]
    pub fn put(mut self, key: impl Into<String>, value: Vec<u8>) -> Self {
        self.writes.push(Write::Put(key.into(), value, None));
        self
    }

    /// Adds a put of a key that is deleted with the end of a lease.
    #[must_use]
    pub fn put_leased(mut self, key: impl Into<String>, value: Vec<u8>, lease: LeaseId) -> Self {
        self.writes.push(Write::Put(key.into(), value, Some(lease)));
        self
    }

    /// Adds a deletion.
    #[must_use]
    pub fn delete(mut self, key: impl Into<String>) -> Self {
        self.writes.push(Write::Delete(key.into()));
        self
    }

    /// Checks the limits of all coordinators: number of parts, sizes of keys and values, and no key
    /// written twice.
    ///
    /// # Errors
    /// [`CoordinatorError::Invalid`].
    pub fn check(&self) -> Result<(), CoordinatorError> {
        let invalid = |what: String| Err(CoordinatorError::Invalid { what });
        let part_count = self.compares.len().max(self.writes.len());
        if part_count > TRANSACTION_PART_COUNT_MAX {
            return invalid(format!(
                "transaction has {part_count} parts; the limit is {TRANSACTION_PART_COUNT_MAX}"
            ));
        }
        let mut written = std::collections::BTreeSet::new();
        for key in self.compares.iter().map(Compare::key) {
            check_key(key)?;
        }
        let mut size_bytes = 0;
        for write in &self.writes {
            check_key(write.key())?;
            size_bytes += write.key().len();
            if !written.insert(write.key()) {
                return invalid(format!("transaction writes key '{}' twice", write.key()));
            }
            let Write::Put(key, value, _) = write else {
                continue;
            };
            size_bytes += value.len();
            if value.len() > VALUE_SIZE_BYTES_MAX {
                return invalid(format!(
                    "value of key '{key}' has {} bytes; the limit is {VALUE_SIZE_BYTES_MAX}",
                    value.len()
                ));
            }
        }
        if size_bytes > TRANSACTION_SIZE_BYTES_MAX {
            return invalid(format!(
                "transaction has {size_bytes} bytes; the limit is {TRANSACTION_SIZE_BYTES_MAX}"
            ));
        }
        Ok(())
    }
}

fn check_key(key: &str) -> Result<(), CoordinatorError> {
    let is_plain = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
    if is_plain && key.len() <= KEY_SIZE_BYTES_MAX {
        return Ok(());
    }
    Err(CoordinatorError::Invalid {
        what: format!(
            "invalid key {key:?}: expected 1 to {KEY_SIZE_BYTES_MAX} visible ASCII characters"
        ),
    })
}

/// Outcome of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionOutcome {
    /// All writes took effect, at this revision.
    Committed(Revision),
    /// A comparison did not hold, so nothing was done.
    Refused,
    /// A lease in a write is over, so nothing was done.
    LeaseGone,
}

/// Outcome of keeping a lease alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// The lease was alive all the time, and lives for this duration, counted from the request
    /// (CONTROL-3).
    Alive(Duration),
    /// The lease is over, and its keys are deleted.
    Gone,
}

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The key was written.
    Put(Entry),
    /// The key was deleted, at this revision.
    Delete(String, Revision),
}

impl Event {
    /// Returns the changed key.
    pub fn key(&self) -> &str {
        match self {
            Self::Put(entry) => &entry.key,
            Self::Delete(key, _) => key,
        }
    }

    /// Returns the revision of the change.
    pub fn revision(&self) -> Revision {
        match self {
            Self::Put(entry) => entry.mod_revision,
            Self::Delete(_, revision) => *revision,
        }
    }
}

/// Changes after a revision, in order and without a gap (CONTROL-4).
pub trait Watch: Send {
    /// Returns the changes since the last call. If there are none, waits for some, at most for
    /// `timeout`. An empty result means that nothing was seen in that time; there may still be
    /// changes. Changes of one revision are always returned together.
    ///
    /// # Errors
    /// - [`CoordinatorError::Compacted`]: missed changes are no longer kept.
    /// - Any other: the watch is broken.
    ///
    /// In both cases the watch cannot be used any more. Read everything, and watch from there.
    fn next(&mut self, timeout: Duration) -> Result<Vec<Event>, CoordinatorError>;
}

/// A coordinator. Each call is one round trip, and may wait for as long as the implementation's own
/// time limit.
pub trait Coordinator: Send + Sync {
    /// Reads all keys with a prefix. The result is no older than any change that was committed
    /// before the call (CONTROL-1).
    ///
    /// # Errors
    /// [`CoordinatorError::Unavailable`].
    fn range(&self, prefix: &str) -> Result<Snapshot, CoordinatorError>;

    /// Writes if all comparisons hold (CONTROL-2).
    ///
    /// # Errors
    /// - [`CoordinatorError::Unavailable`]: nothing was done.
    /// - [`CoordinatorError::OutcomeUnknown`]: it was done, will be done, or never (CONTROL-5).
    /// - [`CoordinatorError::Invalid`].
    fn transact(&self, transaction: &Transaction) -> Result<TransactionOutcome, CoordinatorError>;

    /// Grants a new lease that lives at least `time_to_live`. Returns it with its actual time to
    /// live.
    ///
    /// # Errors
    /// The errors of [`transact`](Self::transact). A lease that was granted without a reply ends by
    /// itself.
    fn grant_lease(&self, time_to_live: Duration) -> Result<(LeaseId, Duration), CoordinatorError>;

    /// Requests that a lease continues.
    ///
    /// # Errors
    /// The errors of [`transact`](Self::transact): the lease may continue, or not.
    fn keep_alive(&self, lease: LeaseId) -> Result<KeepAlive, CoordinatorError>;

    /// Ends a lease and deletes its keys, at one revision or several. Does nothing if the lease is
    /// already over.
    ///
    /// # Errors
    /// The errors of [`transact`](Self::transact).
    fn revoke_lease(&self, lease: LeaseId) -> Result<(), CoordinatorError>;

    /// Opens a watch of all changes after a revision, of keys with a prefix (CONTROL-4).
    ///
    /// # Errors
    /// [`CoordinatorError::Unavailable`]. The watch itself reports changes that are no longer kept.
    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, CoordinatorError>;

    /// Sets the cluster that the coordinator is expected to have. Connections with greetings name
    /// it from now on; [`Bound`] does the other comparisons.
    fn expect(&self, cluster: ClusterId) {
        let _ = cluster;
    }
}

impl<P> Coordinator for P
where
    P: Deref<Target: Coordinator> + Send + Sync,
{
    fn range(&self, prefix: &str) -> Result<Snapshot, CoordinatorError> {
        (**self).range(prefix)
    }

    fn transact(&self, transaction: &Transaction) -> Result<TransactionOutcome, CoordinatorError> {
        (**self).transact(transaction)
    }

    fn grant_lease(&self, time_to_live: Duration) -> Result<(LeaseId, Duration), CoordinatorError> {
        (**self).grant_lease(time_to_live)
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<KeepAlive, CoordinatorError> {
        (**self).keep_alive(lease)
    }

    fn revoke_lease(&self, lease: LeaseId) -> Result<(), CoordinatorError> {
        (**self).revoke_lease(lease)
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, CoordinatorError> {
        (**self).watch(prefix, after)
    }

    fn expect(&self, cluster: ClusterId) {
        (**self).expect(cluster);
    }
}

/// Description of a journal that is no longer where it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Displacement {
    /// Name of the file.
    pub file: String,
    /// Directory in which it was opened.
    pub directory: String,
    /// State of the path now.
    pub how: String,
}

/// Error of a coordinator, or of the connection to it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CoordinatorError {
    /// Nothing was done: the coordinator could not be reached, or is temporarily unable to work.
    #[error("the coordinator {name} is unavailable: {how}; retrying")]
    Unavailable {
        /// The coordinator.
        name: String,
        /// Description of the failure.
        how: String,
    },
    /// No reply arrived: the change was done, will be done, or never (CONTROL-5).
    #[error("no reply from the coordinator {name}: the change may or may not be done: {how}")]
    OutcomeUnknown {
        /// The coordinator.
        name: String,
        /// Description of the failure.
        how: String,
    },
    /// The coordinator has another cluster than its caller.
    #[error(
        "expected {own}, but the coordinator has {found}: the directory of the expected cluster's \
         coordinator was lost or replaced, or this is the address of another coordinator; no file \
         is deleted, and nothing new is served; restore that directory and restart its server, or \
         correct the address"
    )]
    OtherCluster {
        /// The expected cluster.
        own: ClusterId,
        /// Description of the cluster that was found.
        found: String,
    },
    /// The coordinator's data are older than what was already seen of them.
    #[error(
        "coordinator of {cluster} was rolled back: {} was seen up to {}, but {how}. This server \
         serves nothing from these records and deletes nothing. Restore the newest copy of the \
         coordinator's directory, or accept the loss: `farleaf cluster adopt --lost-start {:032x}`",
        seen.nonce, seen.revision, seen.nonce.0
    )]
    RolledBack {
        /// Cluster of the coordinator.
        cluster: ClusterId,
        /// The newest state seen.
        seen: Box<SeenStart>,
        /// Missing part of the coordinator's history.
        how: &'static str,
    },
    /// A watch needs changes that are no longer kept.
    #[error("changes up to {oldest} are no longer kept; read all keys again")]
    Compacted {
        /// Oldest revision whose changes are kept.
        oldest: Revision,
    },
    /// The request is not valid for any coordinator.
    #[error("{what}")]
    Invalid {
        /// Reason why the request is invalid.
        what: String,
    },
    /// The embedded coordinator's directory cannot be read or written.
    #[error("cannot {action} {file} in {directory}: {source}")]
    Storage {
        /// The failed action.
        action: &'static str,
        /// Name of the file.
        file: String,
        /// The directory.
        directory: String,
        /// Error of the storage.
        source: std::io::Error,
    },
    /// The embedded coordinator's directory is corrupted.
    #[error("{file} in {directory} is corrupted: {how}; restore the directory from a copy")]
    Damaged {
        /// Name of the file.
        file: String,
        /// The directory.
        directory: String,
        /// Description of the corruption.
        how: String,
    },
    /// A later version has written the embedded coordinator's directory.
    #[error(
        "{file} in {directory} has format version {version}, but this version of Farleaf supports \
         up to {known}: a newer version has written it; use that version here, too"
    )]
    Newer {
        /// Name of the file.
        file: String,
        /// The directory.
        directory: String,
        /// Format version of the file.
        version: u32,
        /// Format version that this version knows.
        known: u32,
    },
    /// Another process has the directory open.
    #[error("{directory} is in use by another coordinator; stop that one first")]
    Locked {
        /// The directory.
        directory: String,
    },
    /// The embedded coordinator's journal was removed or replaced while it was open.
    #[error(
        "{} in {} was removed or replaced while the coordinator had it open ({}), so later changes \
         would be lost; the coordinator rejects all requests; stop its server, move that directory \
         back or restore its newest copy, and restart the server",
        .0.file, .0.directory, .0.how
    )]
    Displaced(Displacement),
    /// An earlier write to the directory failed, and the content of the directory is unknown.
    #[error("the coordinator has stopped after an earlier failure ({first}); reopen its directory")]
    Stopped {
        /// The first failure.
        first: String,
    },
}

impl CoordinatorError {
    /// Returns whether an embedded coordinator's write found the disk full: the change is not done,
    /// and later changes can succeed when there is space. A failed sync is not such an error.
    pub fn is_out_of_space(&self) -> bool {
        let Self::Storage { action, source, .. } = self else {
            return false;
        };
        is_out_of_space(source) && *action != "sync"
    }
}
