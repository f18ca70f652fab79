//! What can go wrong with a replica.

use core::fmt;

use farleaf_lsm::LsmError;
use thiserror::Error;

use crate::mismatch::Mismatch;

/// A backup, as its primary calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackupId(pub u64);

impl fmt::Display for BackupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backup {}", self.0)
    }
}

/// Which primary it is: one that comes later has a higher number (RP8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}", self.0)
    }
}

/// An operating failure of a primary or a backup.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplicaError {
    /// The engine's.
    #[error(transparent)]
    Engine(#[from] LsmError),
    /// RP8: another primary has taken over. Nothing is acknowledged here any more.
    #[error(
        "this primary is of {own}, and one of {found} has taken over: what was not acknowledged \
         may be there or not; ask who is primary now"
    )]
    Deposed {
        /// Whose this one is.
        own: Epoch,
        /// Whose the other one is.
        found: Epoch,
    },
    /// RP6: a backup does not have what it must have. Writes are not acknowledged until it is
    /// removed.
    #[error(
        "{backup} is lost: {how}; writes wait for it to be removed, and what was not acknowledged \
         may be there or not"
    )]
    BackupLost {
        /// Which.
        backup: BackupId,
        /// How.
        how: String,
    },
    /// RP13: this primary was stopped.
    #[error(
        "this primary has stopped: nothing is acknowledged here before it goes on at a later epoch, \
         and what was not acknowledged may be there or not; ask who is primary now"
    )]
    Stopped,
    /// RP12: epochs rise.
    #[error("it is of {own}, and {given} is not later; nothing was changed")]
    NotLater {
        /// Whose it is.
        own: Epoch,
        /// What it was to be.
        given: Epoch,
    },
    /// A backup could not be filled. The primary goes on without it.
    #[error("{backup} was not filled: {how}; the primary goes on without it")]
    NotFilled {
        /// Which.
        backup: BackupId,
        /// Why.
        how: String,
    },
    /// RP15: a backup that is being filled did not write what its primary sent. The primary goes
    /// on without it.
    #[error("{backup} was not filled: {found}; the primary goes on without it")]
    Mismatch {
        /// Which.
        backup: BackupId,
        /// What differs.
        found: Mismatch,
    },
    /// There is one of this number already, or there is none.
    #[error("{backup} {is}")]
    WrongBackup {
        /// Which.
        backup: BackupId,
        /// What it is.
        is: &'static str,
    },
    /// A backup cannot go on: its disk, its memory, or what its primary sends. It can be filled
    /// anew.
    #[error("this backup cannot follow any more: {how}; have it filled anew")]
    Failed {
        /// Why.
        how: String,
        /// Whether its disk, or a quota of it, is full.
        is_no_room: bool,
    },
    /// RP7: a backup that never had everything cannot be promoted, nor one to a lower epoch.
    #[error("this backup cannot be promoted: {how}; nothing was changed")]
    NotPromotable {
        /// Why.
        how: String,
    },
}

impl ReplicaError {
    /// Whether the disk, or a quota of it, is full.
    pub fn is_no_room(&self) -> bool {
        match self {
            Self::Engine(error) => error.is_no_room(),
            Self::Failed { is_no_room, .. } => *is_no_room,
            _ => false,
        }
    }
}

/// Why writes are not acknowledged: the same for all who wait.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    Deposed { own: Epoch, found: Epoch },
    Lost { backup: BackupId, how: String },
}

impl From<Failure> for ReplicaError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Deposed { own, found } => Self::Deposed { own, found },
            Failure::Lost { backup, how } => Self::BackupLost { backup, how },
        }
    }
}
