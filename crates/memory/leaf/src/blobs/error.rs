//! Errors of value blocks.

use farleaf_base::{NodeId, TableId};
use farleaf_fabric::BatchError;
use farleaf_pool::PoolError;
use thiserror::Error;

use crate::blobs::content::ContentError;
use crate::blobs::pointer::FatPointer;

/// Operating failure of value blocks.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The fabric failed; the outcome of what was written is unknown (FABRIC-5).
    #[error(transparent)]
    Fabric(#[from] BatchError),
    /// Claiming or returning chunks failed, but not for lack of space.
    #[error(transparent)]
    Pool(Box<PoolError>),
    /// The string or locator is too long.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// No space for a string, even in several parts. All chunks claimed for it were given back.
    #[error("out of space on {node} for a value block of {asked_bytes} bytes: {source}")]
    Full {
        /// Node that is full.
        node: NodeId,
        /// Requested bytes: whole chunks, or one chunk for pieces.
        asked_bytes: u64,
        /// Error of the pool.
        source: Box<PoolError>,
    },
    /// A trusted page refers to a place that cannot hold a block of that size: the page is
    /// corrupted.
    #[error(
        "a page of {table} refers to a string of {size_bytes} bytes in a value block at {pointer}, \
         which is not a valid place for one; the page is corrupted; save the records that can \
         still be read, and drop the table"
    )]
    Impossible {
        /// Table of the page.
        table: TableId,
        /// Pointer in the page.
        pointer: FatPointer,
        /// Size of the string in bytes, according to the page.
        size_bytes: u32,
    },
}

impl BlockError {
    /// Returns the permanently lost node that caused the error, if any.
    pub fn lost_node(&self) -> Option<NodeId> {
        match self {
            Self::Fabric(error) => error.lost_node(),
            Self::Pool(error) => error.lost_node(),
            _ => None,
        }
    }

    /// Returns whether the node is full; another one may have space.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. })
    }

    /// Returns the error with the size of the whole request, of which the failed one was a part.
    pub(crate) fn for_request_of(self, asked_bytes: u64) -> Self {
        match self {
            Self::Full { node, source, .. } => Self::Full {
                node,
                asked_bytes,
                source,
            },
            other => other,
        }
    }

    /// Returns the error, if it is for lack of space, with another claim's figures of free space.
    pub(crate) fn with_free_space_of(self, full: PoolError) -> Self {
        match self {
            Self::Full {
                node, asked_bytes, ..
            } => Self::Full {
                node,
                asked_bytes,
                source: Box::new(full),
            },
            other => other,
        }
    }

    /// Converts an error of claiming chunks for a request of this many bytes.
    pub(crate) fn of_claim(error: PoolError, node: NodeId, asked_bytes: u64) -> Self {
        match error {
            PoolError::Full { .. } => Self::Full {
                node,
                asked_bytes,
                source: Box::new(error),
            },
            other => other.into(),
        }
    }
}

impl From<PoolError> for BlockError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Fabric(error) => Self::Fabric(error),
            other => Self::Pool(Box::new(other)),
        }
    }
}
