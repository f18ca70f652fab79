//! What can go wrong, for users.

use std::io;

use farleaf_fabric::{BatchError, ControlError};
use farleaf_index::{IndexError, LoadError};
use farleaf_leaf::LeafError;
use farleaf_node::NodeError;
use farleaf_region::{RegionError, SuperblockError};
use thiserror::Error;

/// An operating failure. Whether a key was there is never an error.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The address of a pool is none.
    #[error("'{address}' is no pool address: take 'shm:NAME' or 'mem:' ({why})")]
    BadAddress {
        /// What was given.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// The memory node cannot be reached, or said no.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A memory node inside this process cannot start.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The pool's memory cannot be mapped.
    #[error("cannot map the memory of {pool}: {source}")]
    Map {
        /// Which pool.
        pool: String,
        /// Why not.
        source: io::Error,
    },
    /// What was mapped is no region that this program can use.
    #[error("{pool} cannot be used: {source}")]
    Superblock {
        /// Which pool.
        pool: String,
        /// Why not.
        source: SuperblockError,
    },
    /// The pool has no such table.
    #[error("there is no table '{name}' in {pool}; `farleaf table list` shows what there is")]
    TableNotFound {
        /// The name.
        name: String,
        /// The pool.
        pool: String,
    },
    /// The pool has a table of this name already.
    #[error("there is a table '{name}' already ({difference})")]
    TableExists {
        /// The name.
        name: String,
        /// How it differs from what was asked for, or that it does not.
        difference: String,
    },
    /// The table was dropped, by this program or another.
    #[error("the table '{name}' was dropped")]
    TableDropped {
        /// The name.
        name: String,
    },
    /// A table in the catalog needs something that this version does not have.
    #[error("the table '{name}' has {what}, which this version of farleaf does not know")]
    TableUnknown {
        /// The name.
        name: String,
        /// What is not known.
        what: String,
    },
    /// An option is out of range.
    #[error("{option} is {given}; {allowed}")]
    BadOption {
        /// Which one.
        option: &'static str,
        /// What was given.
        given: String,
        /// What may be given.
        allowed: String,
    },
    /// A write of this session was cut off in the middle, so the session was stopped.
    #[error(
        "the session is closed: a write on it was cancelled or failed half way, and may hold a \
         lock; open another session, others recover what this one held"
    )]
    SessionBroken,
    /// The pool has no room.
    #[error(transparent)]
    Full(RegionError),
    /// A bulk load failed; the table is as it was.
    #[error(transparent)]
    Load(LoadError),
    /// The region's protocols failed.
    #[error(transparent)]
    Region(RegionError),
    /// An operation failed.
    #[error(transparent)]
    Index(IndexError),
    /// The fabric failed; the outcome of a write is unknown.
    #[error(transparent)]
    Fabric(#[from] BatchError),
    /// A thread could not be started.
    #[error("cannot start the thread that keeps this process's sessions: {0}")]
    Thread(io::Error),
}

impl From<RegionError> for Error {
    fn from(error: RegionError) -> Self {
        match error {
            RegionError::Full { .. } | RegionError::CatalogFull { .. } => Self::Full(error),
            RegionError::Fabric(error) => Self::Fabric(error),
            RegionError::Control(error) => Self::Control(error),
            other => Self::Region(other),
        }
    }
}

impl From<IndexError> for Error {
    fn from(error: IndexError) -> Self {
        match error {
            IndexError::Region(error) | IndexError::Leaf(LeafError::Region(error)) => error.into(),
            IndexError::Fabric(error) | IndexError::Leaf(LeafError::Fabric(error)) => error.into(),
            other => Self::Index(other),
        }
    }
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Index(error) => error.into(),
            other => Self::Load(other),
        }
    }
}

impl Error {
    /// The same error, with the table named if it says that a table was dropped.
    pub(crate) fn of_table(self, name: &str) -> Self {
        match self {
            Self::Index(IndexError::Leaf(LeafError::TableDropped { .. })) => Self::TableDropped {
                name: name.to_owned(),
            },
            other => other,
        }
    }
}
