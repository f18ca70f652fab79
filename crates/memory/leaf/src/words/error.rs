//! Errors of leaves.

use core::fmt;

use farleaf_base::{NodeId, RemoteAddr, TableId};
use farleaf_fabric::BatchError;
use farleaf_pool::PoolError;
use thiserror::Error;

/// Operating failure of the data layer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LeafError {
    /// The fabric failed; the outcome of a write is unknown (FABRIC-5).
    #[error(transparent)]
    Fabric(#[from] BatchError),
    /// Chunks could not be leased.
    #[error(transparent)]
    Pool(Box<PoolError>),
    /// The leaf is not locked, but its checksum does not match (LEAF-4).
    #[error(
        "the leaf at {addr} of {table} is corrupted: it is not locked, and its checksum does not \
         match"
    )]
    Damaged {
        /// Address of the leaf.
        addr: RemoteAddr,
        /// Table of the leaf.
        table: TableId,
    },
    /// Two leaves of the table contradict each other (LEAF-3, LEAF-6): the table is corrupted.
    #[error(
        "the leaf at {addr} of {table} contradicts another leaf: {what}; the table is corrupted; \
         save the records that can still be read, and drop it"
    )]
    Contradiction {
        /// Leaf at which the contradiction was found.
        addr: RemoteAddr,
        /// Table of the leaf.
        table: TableId,
        /// Kind of contradiction.
        what: Contradiction,
    },
    /// Another operation of the session was interrupted or failed halfway. Operations that wait for
    /// a lock stop waiting, because that operation may hold it. Nothing was changed.
    #[error("the session is closed: an operation on it was cancelled or failed midway")]
    SessionBroken,
    /// The leaf was retired without a successor.
    #[error("{table} was dropped")]
    TableDropped {
        /// Table that was dropped.
        table: TableId,
    },
}

/// Kind of contradiction between leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Contradiction {
    /// A link to the right leads to a leaf that does not begin further right.
    LinkToTheLeft,
    /// A link leads to an address that cannot hold a leaf.
    LinkToInvalidAddress,
    /// Links to the right, or of retired leaves, passed the key.
    KeyPassed,
    /// The key should be further left, but no leaf further left is known.
    NothingFurtherLeft,
    /// Retired leaves link to each other in a cycle.
    RetiredInCycle,
    /// A trained leaf is retired, but the table is not retrained.
    RetiredWithoutRetraining,
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LinkToTheLeft => {
                "its right link leads to a leaf that does not begin further right"
            }
            Self::LinkToInvalidAddress => "its link leads to an address that cannot hold a leaf",
            Self::KeyPassed => {
                "links that must not pass the key led to it, but it lies after the key"
            }
            Self::NothingFurtherLeft => {
                "the key should be further left, but no leaf further left is known"
            }
            Self::RetiredInCycle => "it is retired, and so are all leaves that its links lead to",
            Self::RetiredWithoutRetraining => {
                "it is a trained leaf and is retired, but the table is not retrained"
            }
        })
    }
}

impl LeafError {
    /// Returns the permanently lost node that caused the error, if any.
    pub fn lost_node(&self) -> Option<NodeId> {
        match self {
            Self::Fabric(error) => error.lost_node(),
            Self::Pool(error) => error.lost_node(),
            _ => None,
        }
    }
}

impl From<PoolError> for LeafError {
    fn from(error: PoolError) -> Self {
        Self::Pool(Box::new(error))
    }
}

// Every layer of every operation returns such results, so large ones would cost copies.
const _: () = assert!(size_of::<LeafError>() <= 24);
