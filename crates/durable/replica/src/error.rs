//! Errors of replicas.

use core::fmt;

use farleaf_lsm::LsmError;
use thiserror::Error;

use crate::mismatch::Mismatch;

/// Number of a backup, as its primary knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackupId(pub u64);

impl fmt::Display for BackupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backup {}", self.0)
    }
}

/// Epoch of a primary; later primaries have higher epochs (REPLICATION-8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}", self.0)
    }
}

/// Error of a primary or a backup.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplicaError {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] LsmError),
    /// Another primary has taken over; nothing is acknowledged here any more (REPLICATION-8).
    #[error(
        "this primary has {own}, and a primary of {found} has taken over; unacknowledged writes \
         may or may not have taken effect; retry on the new primary"
    )]
    Deposed {
        /// Epoch of this primary.
        own: Epoch,
        /// Epoch that was found.
        found: Epoch,
    },
    /// A backup lacks data that it must have. Writes are not acknowledged until it is removed
    /// (REPLICATION-6).
    #[error(
        "{backup} is lost: {how}; writes wait until it is removed, and unacknowledged writes may \
         or may not have taken effect"
    )]
    BackupLost {
        /// The lost backup.
        backup: BackupId,
        /// Reason of the loss.
        how: String,
    },
    /// The primary was stopped (REPLICATION-13).
    #[error(
        "this primary has stopped and acknowledges nothing until it continues at a later epoch; \
         unacknowledged writes may or may not have taken effect; retry on the current primary"
    )]
    Stopped,
    /// The requested epoch is not later than the current one; epochs only rise (REPLICATION-12).
    #[error("{given} is not later than the current {own}; nothing was changed")]
    NotLater {
        /// Current epoch.
        own: Epoch,
        /// Requested epoch.
        given: Epoch,
    },
    /// A backup could not be filled. The primary continues without it.
    #[error("{backup} could not catch up: {how}; the primary continues without it")]
    NotFilled {
        /// The backup.
        backup: BackupId,
        /// Reason of the failure.
        how: String,
    },
    /// A backup being filled did not write what its primary sent. The primary continues without it
    /// (REPLICATION-15).
    #[error("{backup} could not catch up: {found}; the primary continues without it")]
    Mismatch {
        /// The backup.
        backup: BackupId,
        /// The difference.
        found: Mismatch,
    },
    /// A backup with this number already exists, or none exists.
    #[error("{backup} {is}")]
    WrongBackup {
        /// The backup number.
        backup: BackupId,
        /// Whether it exists already or not at all.
        is: &'static str,
    },
    /// A backup has failed: its disk, its memory, or the primary's input is at fault. It can be
    /// filled from scratch.
    #[error("this backup has failed: {how}; replace its data with a full copy from the primary")]
    Failed {
        /// Reason of the failure.
        how: String,
        /// Whether the disk, or a quota of it, is full.
        is_out_of_space: bool,
    },
    /// The backup was never filled, or the requested epoch is lower; it cannot be promoted
    /// (REPLICATION-7).
    #[error("this backup cannot be promoted: {how}; nothing was changed")]
    NotPromotable {
        /// Reason of the refusal.
        how: String,
    },
}

impl ReplicaError {
    /// Returns whether the cause is a full disk or an exhausted quota.
    pub fn is_out_of_space(&self) -> bool {
        match self {
            Self::Engine(error) => error.is_out_of_space(),
            Self::Failed {
                is_out_of_space, ..
            } => *is_out_of_space,
            _ => false,
        }
    }
}

/// Reason why writes are not acknowledged, shared by all waiting threads.
#[derive(Clone, Debug)]
pub(crate) enum WriteFailure {
    Deposed { own: Epoch, found: Epoch },
    Lost { backup: BackupId, how: String },
}

impl From<WriteFailure> for ReplicaError {
    fn from(failure: WriteFailure) -> Self {
        match failure {
            WriteFailure::Deposed { own, found } => Self::Deposed { own, found },
            WriteFailure::Lost { backup, how } => Self::BackupLost { backup, how },
        }
    }
}
