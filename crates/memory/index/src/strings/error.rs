//! Errors of operations and bulk loads on tables of byte strings.

use crate::{IndexError, LoadError};
use farleaf_base::NodeId;
use farleaf_fabric::{BatchError, BatchErrorKind};
use farleaf_leaf::blobs::BlockError;
use farleaf_leaf::words::LeafError;
use farleaf_pool::PoolError;
use thiserror::Error;

/// Error of an operation on a table of byte strings.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ByteIndexError {
    /// Failure of pages, chunks, the snapshot or the fabric.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// Failure of value blocks.
    #[error(transparent)]
    Block(Box<BlockError>),
    /// The key exceeds the maximum key size.
    #[error("the key has {size_bytes} bytes; a key can have at most 4096 bytes")]
    KeyTooLong {
        /// Size of the key in bytes.
        size_bytes: usize,
    },
    /// The value exceeds the maximum value size.
    #[error("the value has {size_bytes} bytes; a value can have at most 67108864 bytes (64 MiB)")]
    ValueTooLong {
        /// Size of the value in bytes.
        size_bytes: usize,
    },
}

impl ByteIndexError {
    /// Returns whether the session must take a newer root before it retries the operation, which
    /// has done nothing ([`IndexError::Outdated`]).
    pub const fn is_outdated(&self) -> bool {
        matches!(self, Self::Index(IndexError::Outdated))
    }

    /// Returns the memory node whose permanent loss caused the error, if any.
    pub fn lost_node(&self) -> Option<NodeId> {
        match self {
            Self::Index(error) => error.lost_node(),
            Self::Block(error) => error.lost_node(),
            Self::KeyTooLong { .. } | Self::ValueTooLong { .. } => None,
        }
    }

    /// Returns whether the pool had too little free space.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Index(error) => error.is_full(),
            Self::Block(error) => error.is_full(),
            Self::KeyTooLong { .. } | Self::ValueTooLong { .. } => false,
        }
    }

    /// Returns the fabric failure that caused the error, in whichever layer it occurred.
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

impl From<PoolError> for ByteIndexError {
    fn from(error: PoolError) -> Self {
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

/// Error of a bulk load. The table then contains nothing of the load. If the fabric failed, it
/// contains all or nothing.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ByteLoadError {
    /// The keys are not in ascending order.
    #[error(
        "record {index} of the load has key '{}', which is not greater than the previous key, \
         '{}'; a bulk load takes each key once, in ascending order", .key.escape_ascii(),
         .previous.escape_ascii()
    )]
    NotAscending {
        /// Index of the record, from 0.
        index: u64,
        /// Key of the record.
        key: Box<[u8]>,
        /// Key of the previous record.
        previous: Box<[u8]>,
    },
    /// The record is invalid for every table.
    #[error("record {index} of the load cannot be stored: {source}")]
    BadRecord {
        /// Index of the record, from 0.
        index: u64,
        /// Reason why the record is invalid.
        source: Box<ByteIndexError>,
    },
    /// The table contains records, or did earlier.
    #[error("a bulk load needs a table that has never held a record; this one has")]
    TableNotEmpty,
    /// Adding the load's pages to the listing failed.
    #[error("the pages of the load cannot be listed: {0}")]
    Listing(Box<dyn core::error::Error + Send + Sync>),
    /// Failure of a lower layer.
    #[error(transparent)]
    Index(#[from] ByteIndexError),
}

impl ByteLoadError {
    /// Returns whether the outcome is unknown (FABRIC-5). The load may or may not be in the table,
    /// and the session may own chunks that it does not know of.
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

through_index!(IndexError, LeafError, BatchError, PoolError, BlockError);
