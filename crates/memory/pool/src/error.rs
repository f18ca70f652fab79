//! Errors of a node's memory.

use farleaf_base::NodeId;
use farleaf_base::size_text::size_in_bytes;
use farleaf_fabric::{BatchError, ControlError};
use thiserror::Error;

use crate::layout::SuperblockError;

/// Operating failure of the memory's protocols.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] BatchError),
    /// The control plane failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The memory is not a node's memory, or not one that this program can use.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// There are not enough adjacent free chunks.
    #[error(
        "the pool is full: {} contiguous were requested, and {} of {} are free{}; drop a table, or \
         serve a larger pool",
        size_in_bytes(*.wanted_bytes),
        size_in_bytes(*.free_bytes),
        size_in_bytes(*.size_bytes),
        reserved_text(*.reserve_bytes)
    )]
    Full {
        /// Requested size in bytes.
        wanted_bytes: u64,
        /// Total free space in bytes.
        free_bytes: u64,
        /// Size of the pool in bytes.
        size_bytes: u64,
        /// Part of the free space that is reserved for retraining, in bytes.
        reserve_bytes: u64,
    },
    /// The catalog has no free entry.
    #[error("the pool's catalog is full ({table_count_max} tables); {}", dropped_text(*.dropped_count))]
    CatalogFull {
        /// Number of entries in the catalog.
        table_count_max: u64,
        /// Entries of dropped tables that are not free yet.
        dropped_count: u64,
    },
    /// A catalog entry does not match its checksum.
    #[error("catalog entry {index} is corrupted: checksum mismatch")]
    CatalogDamaged {
        /// Index of the entry.
        index: u64,
    },
}

impl PoolError {
    /// Returns the permanently lost node that caused the error, if any.
    pub fn lost_node(&self) -> Option<NodeId> {
        match self {
            Self::Fabric(error) => error.lost_node(),
            _ => None,
        }
    }
}

fn dropped_text(dropped_count: u64) -> String {
    match dropped_count {
        0 => "drop one; a table of byte strings with search layer rf-tree counts twice".to_owned(),
        count => format!(
            "{count} of them are dropped and become free when every session has finished its \
             earlier operations; continue or end stalled sessions, then retry"
        ),
    }
}

fn reserved_text(reserve_bytes: u64) -> String {
    match reserve_bytes {
        0 => String::new(),
        reserve_bytes => {
            let size = size_in_bytes(reserve_bytes);
            format!(", of which {size} are reserved for retraining")
        }
    }
}
