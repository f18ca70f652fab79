//! Errors of operations and bulk loads on a table.

use farleaf_base::{NodeId, RemoteAddr, TableId};
use farleaf_fabric::{BatchError, BatchErrorKind};
use farleaf_leaf::words::LeafError;
use farleaf_pool::PoolError;
use thiserror::Error;

/// Failure of an operation on a table.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The data layer failed.
    #[error(transparent)]
    Leaf(#[from] LeafError),
    /// Chunks or the catalog failed.
    #[error(transparent)]
    Pool(Box<PoolError>),
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] BatchError),
    /// The operation met a retired leaf: the table has, or had, a newer root than the session's.
    /// Nothing has changed; the caller refreshes its state and retries.
    #[error("the table has been reloaded since it was opened; open it again")]
    Outdated,
    /// The models do not lead to a key, so the memory node must execute the operation. Nothing has
    /// changed.
    #[error("the models do not lead to key {key}; the memory node must execute the operation")]
    FallBack {
        /// Key of the operation.
        key: u64,
    },
    /// The search layer's snapshot is corrupted.
    #[error(transparent)]
    SnapshotDamaged(Box<SnapshotDamage>),
}

impl IndexError {
    /// Returns the lost node of the pool, if that is the cause.
    pub fn lost_node(&self) -> Option<NodeId> {
        self.fabric_failure()?.lost_node()
    }

    /// Returns whether the pool was full.
    pub fn is_full(&self) -> bool {
        let Self::Pool(error) = self else {
            return false;
        };
        matches!(**error, PoolError::Full { .. })
    }

    /// Returns the fabric's failure that caused the error, whichever layer met it.
    pub fn fabric_failure(&self) -> Option<&BatchError> {
        let memory = match self {
            Self::Fabric(failure) | Self::Leaf(LeafError::Fabric(failure)) => {
                return Some(failure);
            }
            Self::Pool(memory) | Self::Leaf(LeafError::Pool(memory)) => memory,
            _ => return None,
        };
        match &**memory {
            PoolError::Fabric(failure) => Some(failure),
            _ => None,
        }
    }
}

/// Corruption of a search layer's snapshot.
#[derive(Debug, Error)]
#[error("the snapshot at {addr} of {table} is corrupted: {what}")]
pub struct SnapshotDamage {
    /// Address of the snapshot.
    pub addr: RemoteAddr,
    /// Table that the snapshot belongs to.
    pub table: TableId,
    /// Description of the corruption.
    pub what: String,
}

impl From<PoolError> for IndexError {
    fn from(error: PoolError) -> Self {
        Self::Pool(Box::new(error))
    }
}

// Results pass through every layer of every operation, which would copy large ones.
const _: () = assert!(size_of::<IndexError>() <= 32);

/// Failure of a bulk load. The table then has none of its records, unless the fabric failed: then
/// it has all or none.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The keys do not ascend.
    #[error(
        "record {index} of the load has key {key}, which is not greater than the previous key, \
         {previous}; a bulk load takes each key once, in ascending order"
    )]
    NotAscending {
        /// Number of the record, from 0.
        index: u64,
        /// Key of the record.
        key: u64,
        /// Key of the previous record.
        previous: u64,
    },
    /// The table has or had records.
    #[error("a bulk load needs a table that has never held a record; this one has")]
    TableNotEmpty,
    /// An operation of the load failed.
    #[error(transparent)]
    Index(#[from] IndexError),
}

impl LoadError {
    /// Returns whether the outcome is unknown (FABRIC-5): the load may or may not be in the table,
    /// and the session may own chunks that it does not know of.
    pub fn is_outcome_unknown(&self) -> bool {
        let Self::Index(error) = self else {
            return false;
        };
        let failure = error.fabric_failure();
        failure.is_some_and(|failure| matches!(failure.kind(), BatchErrorKind::Unknown { .. }))
    }
}

impl From<PoolError> for LoadError {
    fn from(error: PoolError) -> Self {
        Self::Index(error.into())
    }
}

impl From<LeafError> for LoadError {
    fn from(error: LeafError) -> Self {
        Self::Index(error.into())
    }
}

impl From<BatchError> for LoadError {
    fn from(error: BatchError) -> Self {
        Self::Index(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A failed claim of chunks is an error of the pool; its outcome is as unknown as that of a
    /// leaf's batch (FABRIC-5).
    #[test]
    fn an_unknown_outcome_is_seen_through_every_layer() {
        let unknown = || {
            let reason = "the connection broke".to_owned();
            BatchError::new(BatchErrorKind::Unknown { reason }, 0)
        };
        let errors: [LoadError; 4] = [
            unknown().into(),
            LeafError::from(unknown()).into(),
            PoolError::from(unknown()).into(),
            LeafError::from(PoolError::from(unknown())).into(),
        ];
        for error in errors {
            assert!(error.is_outcome_unknown(), "{error:?}");
        }
        assert!(!LoadError::TableNotEmpty.is_outcome_unknown());
        assert!(!LoadError::Index(IndexError::Outdated).is_outcome_unknown());
    }
}
