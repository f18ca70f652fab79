//! What the control plane needs of a coordinator, rules CP1 to CP6: a small map with revisions,
//! transactions, leases and watches. etcd is one (`farleaf-etcd`), [`Embedded`] another, which can
//! be [`served`] to other processes.
//!
//! | module | what it holds |
//! |---|---|
//! | [`store`] | the map, its revisions and leases, as a plain value: what [`Embedded`] keeps |
//! | [`embedded`] | [`Embedded`]: a coordinator within one process |
//! | `shared` | [`SharedCoordinator`]: one of whichever kind |
//! | `started` | [`Started`]: one that records its start before it changes anything |
//! | `bound` | [`Bound`]: one as the members and clients of one cluster use it |
//! | [`journal`] | what [`Embedded`] writes into a directory |
//! | `place` | whether the journal is still the file that its path names |
//! | [`address`] | how a coordinator is named |
//! | [`served`] | a coordinator in another process: who serves it, and who asks |
//! | `conformance` | the suite that every coordinator has to pass (feature `conformance`) |

pub mod address;
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
use std::sync::Arc;
use std::time::Duration;

use farleaf_lsm::storage::is_no_room;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ids::ClusterId;
use crate::record::{CLUSTER_KEY, START_KEY};

pub use self::address::{CoordinatorAddress, CoordinatorAddressError};
pub use self::bound::{Bound, SeenStart};
pub use self::embedded::Embedded;
pub use self::shared::SharedCoordinator;
pub use self::started::Started;

/// A key may have so many bytes.
pub const KEY_SIZE_BYTES_MAX: usize = 512;

/// A value may have so many bytes.
pub const VALUE_SIZE_BYTES_MAX: usize = 1 << 20;

/// A transaction may have so many compares, and so many writes: etcd has 128, of which some are for
/// what an implementation adds.
pub const TRANSACTION_PART_COUNT_MAX: usize = 120;

/// Keys and values that a transaction writes may have so many bytes: etcd takes requests of up to
/// 1.5 MiB.
pub const TRANSACTION_SIZE_BYTES_MAX: usize = VALUE_SIZE_BYTES_MAX + (256 << 10);

/// A moment in the coordinator's one order of changes (CP1). The first change has number 2, as
/// etcd's has; 0 stands for "never".
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Revision(pub u64);

impl Revision {
    /// Of a key that is not there.
    pub const NEVER: Self = Self(0);
}

impl fmt::Display for Revision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "revision {}", self.0)
    }
}

/// A lease. Its number is never given again (CP3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "lease {:x}", self.0)
    }
}

/// A key, what it has, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// When it came into being: since its last deletion it was there without a gap.
    pub create_revision: Revision,
    /// When it was written last.
    pub mod_revision: Revision,
    /// With whose end it goes.
    pub lease: Option<LeaseId>,
}

/// The keys by which a coordinator presents itself.
pub const IDENTITY_KEYS: [&str; 2] = [CLUSTER_KEY, START_KEY];

/// What was there at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// When.
    pub revision: Revision,
    /// In the order of keys.
    pub entries: Vec<Entry>,
    /// What lies under [`IDENTITY_KEYS`] at the same revision, whatever was asked for: which
    /// cluster the coordinator has (ID2), and which start of it this is (ID5).
    pub identity: Vec<Entry>,
}

/// What must hold for a transaction to take effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The key came into being at this revision, or is not there (`Revision::NEVER`).
    Created(String, Revision),
    /// The key was written last at this revision, or is not there (`Revision::NEVER`).
    Modified(String, Revision),
    /// The key is there and has this value.
    Holds(String, Vec<u8>),
}

impl Compare {
    /// Which key it is about.
    pub fn key(&self) -> &str {
        match self {
            Self::Created(key, _) | Self::Modified(key, _) | Self::Holds(key, _) => key,
        }
    }
}

/// What a transaction does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// A key gets a value; it goes with the lease, if one is given.
    Put {
        /// The key.
        key: String,
        /// Its value from then on.
        value: Vec<u8>,
        /// What it goes with.
        lease: Option<LeaseId>,
    },
    /// A key goes; nothing happens if it is not there.
    Delete {
        /// The key.
        key: String,
    },
}

impl Write {
    /// Which key it changes.
    pub fn key(&self) -> &str {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// Compares and writes: all writes take effect at one revision, or none does (CP2). No key may be
/// written twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// What must hold.
    pub compares: Vec<Compare>,
    /// What is done then.
    pub writes: Vec<Write>,
}

impl Transaction {
    /// One that compares and does nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// With another compare.
    #[must_use]
    pub fn when(mut self, compare: Compare) -> Self {
        self.compares.push(compare);
        self
    }

    /// With another put, of a key that stays until somebody deletes it.
    #[must_use]
    pub fn put(mut self, key: impl Into<String>, value: Vec<u8>) -> Self {
        self.writes.push(Write::Put {
            key: key.into(),
            value,
            lease: None,
        });
        self
    }

    /// With another put, of a key that goes with a lease.
    #[must_use]
    pub fn put_leased(mut self, key: impl Into<String>, value: Vec<u8>, lease: LeaseId) -> Self {
        self.writes.push(Write::Put {
            key: key.into(),
            value,
            lease: Some(lease),
        });
        self
    }

    /// With another deletion.
    #[must_use]
    pub fn delete(mut self, key: impl Into<String>) -> Self {
        self.writes.push(Write::Delete { key: key.into() });
        self
    }

    /// Refuses what no coordinator takes: too many parts, keys or values that are too large, a key
    /// that is written twice.
    ///
    /// # Errors
    /// [`CoordinatorError::Invalid`].
    pub fn check(&self) -> Result<(), CoordinatorError> {
        let invalid = |what: String| Err(CoordinatorError::Invalid { what });
        let part_count = self.compares.len().max(self.writes.len());
        if part_count > TRANSACTION_PART_COUNT_MAX {
            return invalid(format!(
                "a transaction has {part_count} parts, and can have {TRANSACTION_PART_COUNT_MAX}"
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
                return invalid(format!("a transaction writes {} twice", write.key()));
            }
            let Write::Put { key, value, .. } = write else {
                continue;
            };
            size_bytes += value.len();
            if value.len() > VALUE_SIZE_BYTES_MAX {
                return invalid(format!(
                    "the value of {key} has {} bytes, and can have {VALUE_SIZE_BYTES_MAX}",
                    value.len()
                ));
            }
        }
        if size_bytes > TRANSACTION_SIZE_BYTES_MAX {
            return invalid(format!(
                "a transaction has {size_bytes} bytes, and can have {TRANSACTION_SIZE_BYTES_MAX}"
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
            "a key is {key:?}, and can have 1 to {KEY_SIZE_BYTES_MAX} visible ASCII characters"
        ),
    })
}

/// What came of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionOutcome {
    /// All of it took effect, at this revision.
    Committed(Revision),
    /// A compare did not hold, so nothing was done.
    Refused,
    /// A lease that a write names is over, so nothing was done.
    LeaseGone,
}

/// What came of keeping a lease alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// It was alive all the time, and is so for this long from when the coordinator was asked
    /// (CP3).
    Alive(Duration),
    /// It is over, and all that it held is gone.
    Gone,
}

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It was written.
    Put(Entry),
    /// It went.
    Delete {
        /// Which.
        key: String,
        /// When.
        revision: Revision,
    },
}

impl Event {
    /// Whose change it is.
    pub fn key(&self) -> &str {
        match self {
            Self::Put(entry) => &entry.key,
            Self::Delete { key, .. } => key,
        }
    }

    /// When it was.
    pub fn revision(&self) -> Revision {
        match self {
            Self::Put(entry) => entry.mod_revision,
            Self::Delete { revision, .. } => *revision,
        }
    }
}

/// Changes from a revision on, in order and without a gap (CP4).
pub trait Watch: Send {
    /// What has changed since the last call; waits for something if there is nothing, for so long
    /// at the most. Empty: nothing was seen in that time, which says nothing about what there is.
    /// Changes of one revision are never in two answers.
    ///
    /// # Errors
    /// [`CoordinatorError::Compacted`]: what was missed is not known any more. Any other: the watch
    /// is broken. In both cases it is of no more use: look at all, and watch from there.
    fn next(&mut self, timeout: Duration) -> Result<Vec<Event>, CoordinatorError>;
}

/// A coordinator. Each call is one round trip, and may wait for as long as the implementation's own
/// time limit.
pub trait Coordinator: Send + Sync {
    /// All keys that begin so, as they are now: no earlier than anything that was committed before
    /// the call (CP1).
    ///
    /// # Errors
    /// [`CoordinatorError::Unavailable`].
    fn range(&self, prefix: &str) -> Result<Snapshot, CoordinatorError>;

    /// Compares, and writes if all compares hold (CP2).
    ///
    /// # Errors
    /// [`CoordinatorError::Unavailable`]: it did not happen. [`CoordinatorError::OutcomeUnknown`]:
    /// it happened, or happens yet, or never (CP5). [`CoordinatorError::Invalid`].
    fn transact(&self, transaction: &Transaction) -> Result<TransactionOutcome, CoordinatorError>;

    /// A new lease, of at least so long; and how long it is.
    ///
    /// # Errors
    /// As of [`transact`](Self::transact); one that was granted and not told ends by itself.
    fn grant_lease(&self, time_to_live: Duration) -> Result<(LeaseId, Duration), CoordinatorError>;

    /// Asks for a lease to go on.
    ///
    /// # Errors
    /// As of [`transact`](Self::transact): it may go on, or not.
    fn keep_alive(&self, lease: LeaseId) -> Result<KeepAlive, CoordinatorError>;

    /// Ends a lease, and all that it holds, at one revision or several. Nothing happens if it is
    /// over already.
    ///
    /// # Errors
    /// As of [`transact`](Self::transact).
    fn revoke_lease(&self, lease: LeaseId) -> Result<(), CoordinatorError>;

    /// All changes behind this revision, of keys that begin so (CP4).
    ///
    /// # Errors
    /// [`CoordinatorError::Unavailable`]. What is not known any more is told by the watch.
    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, CoordinatorError>;

    /// Says which cluster the coordinator is expected to have. Where connections have greetings,
    /// they say so from now on (W16); what else there is to compare, [`Bound`] does.
    fn expect(&self, cluster: ClusterId) {
        let _ = cluster;
    }
}

impl<C: Coordinator + ?Sized> Coordinator for Arc<C> {
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

/// What became of a journal that is not where it was opened (CJ4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Displacement {
    /// Which file.
    pub file: String,
    /// Where it was.
    pub directory: String,
    /// What is there.
    pub how: String,
}

/// An operating failure of a coordinator, or of the way to it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CoordinatorError {
    /// Nothing was done: the coordinator was not reached, or refused to work at the moment.
    #[error("the coordinator {name} cannot be asked: {how}; it is tried again")]
    Unavailable {
        /// Which.
        name: String,
        /// What was met.
        how: String,
    },
    /// No answer came: it was done, or is done yet, or never (CP5).
    #[error("the coordinator {name} gave no answer, so what was asked may be done or not: {how}")]
    OutcomeUnknown {
        /// Which.
        name: String,
        /// What was met.
        how: String,
    },
    /// The coordinator has another cluster than the one that its caller belongs to (ID2).
    #[error(
        "the coordinator has {found}, and {own} was expected: either the directory of the \
         coordinator of {own} was lost or replaced, or this is the address of another one; no file \
         is deleted, and nothing new is served; put that directory back and start its server again, \
         or give the right address"
    )]
    OtherCluster {
        /// The one that was expected.
        own: ClusterId,
        /// What was found, in words.
        found: String,
    },
    /// The coordinator's data are an older copy of what was seen of them (ID5).
    #[error(
        "coordinator of {cluster} was rolled back: {} was seen up to {}, but {how}. This server \
         serves nothing from these records and deletes nothing. Restore the newest copy of the \
         coordinator's directory, or accept the loss: `farleaf cluster adopt --lost-start {:032x}`",
        seen.nonce, seen.revision, seen.nonce.0
    )]
    RolledBack {
        /// Which cluster it has.
        cluster: ClusterId,
        /// What was seen of it.
        seen: Box<SeenStart>,
        /// What its history lacks.
        how: &'static str,
    },
    /// A watch asked for changes that are not kept any more.
    #[error("changes up to {oldest} are not kept any more: look at everything again")]
    Compacted {
        /// The oldest revision whose changes are kept.
        oldest: Revision,
    },
    /// What was asked is nothing that a coordinator does.
    #[error("{what}")]
    Invalid {
        /// What is wrong with it.
        what: String,
    },
    /// The embedded coordinator's directory cannot be read or written.
    #[error("cannot {action} {file} in {directory}: {source}")]
    Storage {
        /// What was tried.
        action: &'static str,
        /// Of which file.
        file: String,
        /// Where.
        directory: String,
        /// What the storage said.
        source: std::io::Error,
    },
    /// The embedded coordinator's directory is not as it was written.
    #[error("{file} in {directory} is damaged: {how}; restore the directory from a copy")]
    Damaged {
        /// Which file.
        file: String,
        /// Where.
        directory: String,
        /// How.
        how: String,
    },
    /// A later version has written the embedded coordinator's directory.
    #[error(
        "{file} in {directory} has format version {version}, and this program knows version \
         {known}: a newer program has written it; use that program here, too"
    )]
    Newer {
        /// Which file.
        file: String,
        /// Where.
        directory: String,
        /// Its version.
        version: u32,
        /// The one that is known.
        known: u32,
    },
    /// Somebody has the directory open.
    #[error("{directory} is open in another coordinator: stop that one first")]
    Locked {
        /// Which.
        directory: String,
    },
    /// The embedded coordinator's journal was removed or replaced while it was open (CJ4).
    #[error(
        "{} in {} was removed or replaced while the coordinator had it open ({}), so what it \
         records would be lost: it records and answers nothing any more. Stop its server, put that \
         directory back, from where it was moved to or else from its newest copy, and start the \
         server again",
        .0.file, .0.directory, .0.how
    )]
    Displaced(Displacement),
    /// An earlier write to the directory failed, and what is there is not known.
    #[error("the coordinator has stopped since {first}; open its directory again")]
    Stopped {
        /// The first failure.
        first: String,
    },
}

impl CoordinatorError {
    /// Whether the disk was full when an embedded one wrote: the change is not done, and another
    /// one can be when there is room. A failed sync is none of these.
    pub fn is_no_room(&self) -> bool {
        let Self::Storage { action, source, .. } = self else {
            return false;
        };
        is_no_room(source) && *action != "sync"
    }
}
