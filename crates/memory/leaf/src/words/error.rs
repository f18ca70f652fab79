//! What can go wrong with a leaf.

use core::fmt;

use farleaf_fabric::BatchError;
use farleaf_region::RegionError;
use farleaf_types::{NodeId, RemoteAddr, TableId};
use thiserror::Error;

/// An operating failure of the data layer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LeafError {
    /// The fabric failed; the outcome of a write is unknown (F5).
    #[error(transparent)]
    Fabric(#[from] BatchError),
    /// Chunks could not be leased.
    #[error(transparent)]
    Region(Box<RegionError>),
    /// D4: nobody holds the leaf, and still its checksum does not match.
    #[error(
        "the leaf at {addr} of {table} is damaged: nobody holds its lock and its checksum does not \
         match"
    )]
    Damaged {
        /// Where.
        addr: RemoteAddr,
        /// Whose.
        table: TableId,
    },
    /// Two leaves of the table cannot both be as they are (D3, D6): the table is damaged.
    #[error(
        "the leaf at {addr} of {table} contradicts another leaf: {what}; the table is damaged: \
         save the records that can still be read, and drop it"
    )]
    Contradiction {
        /// The leaf at which it was seen.
        addr: RemoteAddr,
        /// Whose.
        table: TableId,
        /// What contradicts.
        what: Contradiction,
    },
    /// Another operation of the session was cut off, or failed half way: whatever waits for a lock
    /// stops waiting, for it may be that operation's. Nothing has changed.
    #[error("the session is closed: an operation on it was cancelled or failed half way")]
    SessionBroken,
    /// The leaf was retired without a successor.
    #[error("{table} was dropped")]
    TableDropped {
        /// Which.
        table: TableId,
    },
}

/// How leaves contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Contradiction {
    /// A link to the right leads to a leaf that does not begin further right.
    LinkToTheLeft,
    /// A link leads to where no leaf can be.
    LinkToNowhere,
    /// Links to the right, or of retired leaves, passed the key.
    KeyPassed,
    /// No leaf further left is known, and still the key is said to be there.
    NothingFurtherLeft,
    /// Retired leaves name one another.
    RetiredInCircles,
    /// A leaf that training knows is retired, and nobody retrains.
    RetiredByNobody,
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LinkToTheLeft => "its link to the right does not lead further right",
            Self::LinkToNowhere => "its link leads to where no leaf can be",
            Self::KeyPassed => {
                "links led to it that must not pass the key, and it lies behind the key"
            }
            Self::NothingFurtherLeft => "it says that the key is further left, where no leaf is",
            Self::RetiredInCircles => "it is retired, and so are all leaves that it leads to",
            Self::RetiredByNobody => "training knows it, and it is retired, though nobody retrains",
        })
    }
}

impl LeafError {
    /// The node of the pool that is gone for good, if that is why.
    pub fn lost_node(&self) -> Option<NodeId> {
        match self {
            Self::Fabric(error) => error.lost_node(),
            Self::Region(error) => error.lost_node(),
            _ => None,
        }
    }
}

impl From<RegionError> for LeafError {
    fn from(error: RegionError) -> Self {
        Self::Region(Box::new(error))
    }
}

// Results are returned through every layer of every operation; large ones would be copied there.
const _: () = assert!(size_of::<LeafError>() <= 24);
