//! What can go wrong with a region.

use farleaf_fabric::{BatchError, ControlError};
use farleaf_types::NodeId;
use thiserror::Error;

use crate::layout::SuperblockError;

/// An operating failure of the region's protocols.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] BatchError),
    /// The control plane failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The region is none, or none that this program can use.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// No room for so many chunks in one piece.
    #[error(
        "the pool is full: {wanted_bytes} bytes in one piece were wanted, and {free_bytes} of \
         {size_bytes} bytes are free{}; drop a table, or serve a larger pool",
        kept(*.reserve_bytes)
    )]
    Full {
        /// What was wanted, in bytes.
        wanted_bytes: u64,
        /// What is free in all, in bytes.
        free_bytes: u64,
        /// What there is, in bytes.
        size_bytes: u64,
        /// Of what is free, what is kept for retraining, in bytes.
        reserve_bytes: u64,
    },
    /// The catalog holds as many tables as it can.
    #[error("the pool's catalog is full ({table_count_max} tables); {}", room(*.dropped_count))]
    CatalogFull {
        /// How many tables fit.
        table_count_max: u64,
        /// Places of dropped tables among them, which are not free yet (C3).
        dropped_count: u64,
    },
    /// A catalog entry does not match its checksum.
    #[error("catalog entry {index} is damaged: its checksum does not match")]
    CatalogDamaged {
        /// Which entry.
        index: u64,
    },
}

impl RegionError {
    /// The node of the pool that is gone for good, if that is why.
    pub fn lost_node(&self) -> Option<NodeId> {
        match self {
            Self::Fabric(error) => error.lost_node(),
            _ => None,
        }
    }
}

fn room(dropped_count: u64) -> String {
    match dropped_count {
        0 => "drop one; of byte strings with search layer rf-tree one takes two places".to_owned(),
        count => format!(
            "{count} of them are dropped, and free when every session has ended what it had begun \
             before: continue or end those that stand still, and try again"
        ),
    }
}

fn kept(reserve_bytes: u64) -> String {
    match reserve_bytes {
        0 => String::new(),
        kept => format!(", of which {kept} are kept for retraining"),
    }
}
