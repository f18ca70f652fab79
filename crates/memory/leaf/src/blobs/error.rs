//! What can go wrong with value blocks.

use farleaf_fabric::BatchError;
use farleaf_region::RegionError;
use farleaf_types::{NodeId, TableId};
use thiserror::Error;

use crate::content::ContentError;
use crate::pointer::FatPointer;

/// An operating failure of value blocks.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The fabric failed; the outcome of what was written is unknown (F5).
    #[error(transparent)]
    Fabric(#[from] BatchError),
    /// Chunks could not be claimed or given back, for another reason than that there are none.
    #[error(transparent)]
    Region(Box<RegionError>),
    /// What was to be written is too long.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// There is no room for a string, in however many pieces. All that was claimed for it has been
    /// given back.
    #[error("no room on {node} for a value block of {asked_bytes} bytes: {source}")]
    Full {
        /// Where.
        node: NodeId,
        /// What was asked for: whole chunks, or one for pieces; in bytes.
        asked_bytes: u64,
        /// What the pool says.
        source: Box<RegionError>,
    },
    /// A page that can be trusted refers to where no block of that size can be: it is damaged.
    #[error(
        "a page of {table} refers to a string of {size_bytes} bytes in a value block at {pointer}, \
         where there can be none; the page is damaged: save the records that can still be read, \
         and drop the table"
    )]
    Impossible {
        /// Whose page.
        table: TableId,
        /// What it refers to.
        pointer: FatPointer,
        /// Of what size it says that is.
        size_bytes: u32,
    },
}

impl BlockError {
    /// The node of the pool that is gone for good, if that is why.
    pub fn lost_node(&self) -> Option<NodeId> {
        match self {
            Self::Fabric(error) => error.lost_node(),
            Self::Region(error) => error.lost_node(),
            _ => None,
        }
    }

    /// Whether there is no room on a node; there may be on another.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. })
    }

    /// The same, where what had no room was part of something larger.
    pub(crate) fn asking_for(self, asked_bytes: u64) -> Self {
        match self {
            Self::Full { node, source, .. } => Self::Full {
                node,
                asked_bytes,
                source,
            },
            other => other,
        }
    }

    /// The same, if there was no room, as what another claim was told of the room that there is.
    pub(crate) fn with_figures_of(self, full: RegionError) -> Self {
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

    /// What claiming chunks has ended with, as an answer to who asked for so many bytes.
    pub(crate) fn of_claim(error: RegionError, node: NodeId, asked_bytes: u64) -> Self {
        match error {
            RegionError::Full { .. } => Self::Full {
                node,
                asked_bytes,
                source: Box::new(error),
            },
            other => other.into(),
        }
    }
}

impl From<RegionError> for BlockError {
    fn from(error: RegionError) -> Self {
        match error {
            RegionError::Fabric(error) => Self::Fabric(error),
            other => Self::Region(Box::new(other)),
        }
    }
}
