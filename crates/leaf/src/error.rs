//! What can go wrong with a leaf.

use farleaf_fabric::BatchError;
use farleaf_region::RegionError;
use farleaf_types::{RemoteAddr, TableId};
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
    /// The leaf was retired without a successor.
    #[error("{table} was dropped")]
    TableDropped {
        /// Which.
        table: TableId,
    },
}

impl From<RegionError> for LeafError {
    fn from(error: RegionError) -> Self {
        Self::Region(Box::new(error))
    }
}

// Results are returned through every layer of every operation; large ones would be copied there.
const _: () = assert!(size_of::<LeafError>() <= 24);
