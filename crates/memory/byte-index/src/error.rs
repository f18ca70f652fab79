//! What can go wrong above the pages.

use farleaf_block::BlockError;
use farleaf_fabric::{BatchError, BatchErrorKind};
use farleaf_index::{IndexError, LoadError};
use farleaf_leaf::LeafError;
use farleaf_region::RegionError;
use farleaf_types::NodeId;
use thiserror::Error;

/// An operating failure of an operation on a table of byte strings.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ByteIndexError {
    /// Pages, chunks, the snapshot or the fabric failed.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// Value blocks failed.
    #[error(transparent)]
    Block(Box<BlockError>),
    /// A key is longer than keys can be.
    #[error("the key has {size_bytes} bytes, and a key can have 4096 at the most")]
    KeyTooLong {
        /// How long it is.
        size_bytes: usize,
    },
    /// A value is longer than values can be.
    #[error("the value has {size_bytes} bytes, and a value can have 67108864 (64 MiB) at the most")]
    ValueTooLong {
        /// How long it is.
        size_bytes: usize,
    },
}

impl ByteIndexError {
    /// Whether a newer root has to be taken before the operation is begun again, which has done
    /// nothing ([`IndexError::Outdated`]).
    pub const fn is_outdated(&self) -> bool {
        matches!(self, Self::Index(IndexError::Outdated))
    }

    /// The node of the pool that is gone for good, if that is why.
    pub fn lost_node(&self) -> Option<NodeId> {
        match self {
            Self::Index(error) => error.lost_node(),
            Self::Block(error) => error.lost_node(),
            Self::KeyTooLong { .. } | Self::ValueTooLong { .. } => None,
        }
    }

    /// Whether there was no room in the pool.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Index(error) => error.is_full(),
            Self::Block(error) => error.is_full(),
            Self::KeyTooLong { .. } | Self::ValueTooLong { .. } => false,
        }
    }

    /// The fabric's failure behind it, in whichever layer it was met.
    pub fn fabric_failure(&self) -> Option<&BatchError> {
        match self {
            Self::Index(error) => error.fabric_failure(),
            Self::Block(error) => match &**error {
                BlockError::Fabric(error) => Some(error),
                _ => None,
            },
            Self::KeyTooLong { .. } | Self::ValueTooLong { .. } => None,
        }
    }
}

impl From<LeafError> for ByteIndexError {
    fn from(error: LeafError) -> Self {
        Self::Index(error.into())
    }
}

impl From<BatchError> for ByteIndexError {
    fn from(error: BatchError) -> Self {
        Self::Index(error.into())
    }
}

impl From<RegionError> for ByteIndexError {
    fn from(error: RegionError) -> Self {
        Self::Index(error.into())
    }
}

impl From<BlockError> for ByteIndexError {
    fn from(error: BlockError) -> Self {
        match error {
            BlockError::Fabric(error) => error.into(),
            other => Self::Block(Box::new(other)),
        }
    }
}

/// Why a bulk load failed. Nothing of it is in the table then, unless the fabric failed: then all
/// or nothing is.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ByteLoadError {
    /// The keys do not ascend.
    #[error(
        "record {index} of the load has key '{}', which is not above the one before it, '{}'; a \
         bulk load takes each key once, in ascending order", .key.escape_ascii(),
         .previous.escape_ascii()
    )]
    NotAscending {
        /// Which record, from 0.
        index: u64,
        /// Its key.
        key: Box<[u8]>,
        /// The key before it.
        previous: Box<[u8]>,
    },
    /// A record is one that no table can have.
    #[error("record {index} of the load cannot be stored: {source}")]
    BadRecord {
        /// Which record, from 0.
        index: u64,
        /// What is wrong with it.
        source: Box<ByteIndexError>,
    },
    /// The table has records already, or had some.
    #[error("a bulk load needs a table that has never held a record; this one has")]
    TableNotEmpty,
    /// The pages of the load cannot be listed (BT2).
    #[error("the pages of the load cannot be listed: {0}")]
    Listing(Box<dyn core::error::Error + Send + Sync>),
    /// Something below failed.
    #[error(transparent)]
    Index(#[from] ByteIndexError),
}

impl ByteLoadError {
    /// F5: the load may or may not be in the table, and the session may own chunks, known to it or
    /// not.
    pub fn is_outcome_unknown(&self) -> bool {
        let Self::Index(error) = self else {
            return false;
        };
        let failure = error.fabric_failure();
        failure.is_some_and(|failure| matches!(failure.kind(), BatchErrorKind::Unknown { .. }))
    }
}

impl From<LoadError> for ByteLoadError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::TableNotEmpty => Self::TableNotEmpty,
            LoadError::Index(error) => Self::Index(error.into()),
            other => unreachable!("loads of words end so: {other}"),
        }
    }
}

macro_rules! through_index {
    ($($error:ty),*) => {
        $(impl From<$error> for ByteLoadError {
            fn from(error: $error) -> Self {
                Self::Index(error.into())
            }
        })*
    };
}

through_index!(IndexError, LeafError, BatchError, RegionError, BlockError);
