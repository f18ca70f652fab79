//! What can go wrong above the leaves.

use farleaf_fabric::{BatchError, BatchErrorKind};
use farleaf_leaf::LeafError;
use farleaf_region::RegionError;
use farleaf_types::{NodeId, RemoteAddr, TableId};
use thiserror::Error;

/// An operating failure of an operation on a table.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The data layer failed.
    #[error(transparent)]
    Leaf(#[from] LeafError),
    /// Chunks or the catalog failed.
    #[error(transparent)]
    Region(Box<RegionError>),
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] BatchError),
    /// A retired leaf was met: there is, or was, a newer root than the one the session searches by.
    /// Nothing has changed; whoever holds the state refreshes it and asks again.
    #[error("the table has been loaded anew since it was opened; open it again")]
    Outdated,
    /// The models do not lead to a key (Y6): the memory node has to be asked. Nothing has changed.
    #[error("the models do not lead to key {key}; the memory node has to be asked")]
    FallBack {
        /// The key.
        key: u64,
    },
    /// The search layer's snapshot is damaged.
    #[error(transparent)]
    SnapshotDamaged(Box<SnapshotDamage>),
}

impl IndexError {
    /// The node of the pool that is gone for good, if that is why.
    pub fn lost_node(&self) -> Option<NodeId> {
        self.fabric_failure()?.lost_node()
    }

    /// Whether there was no room in the pool.
    pub fn is_full(&self) -> bool {
        let Self::Region(error) = self else {
            return false;
        };
        matches!(**error, RegionError::Full { .. })
    }

    /// The fabric's failure behind it, in whichever layer it was met.
    pub fn fabric_failure(&self) -> Option<&BatchError> {
        let region = match self {
            Self::Fabric(failure) | Self::Leaf(LeafError::Fabric(failure)) => {
                return Some(failure);
            }
            Self::Region(region) | Self::Leaf(LeafError::Region(region)) => region,
            _ => return None,
        };
        match &**region {
            RegionError::Fabric(failure) => Some(failure),
            _ => None,
        }
    }
}

/// What is wrong with a search layer's snapshot.
#[derive(Debug, Error)]
#[error("the snapshot at {addr} of {table} is damaged: {what}")]
pub struct SnapshotDamage {
    /// Where it is.
    pub addr: RemoteAddr,
    /// Whose it is.
    pub table: TableId,
    /// What is wrong with it.
    pub what: String,
}

impl From<RegionError> for IndexError {
    fn from(error: RegionError) -> Self {
        Self::Region(Box::new(error))
    }
}

// Results are returned through every layer of every operation; large ones would be copied there.
const _: () = assert!(size_of::<IndexError>() <= 32);

/// Why a bulk load failed. Nothing of it is in the table then, unless the fabric failed: then all
/// or nothing is.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The keys do not ascend.
    #[error(
        "record {index} of the load has key {key}, which is not above the one before it, \
         {previous}; a bulk load takes each key once, in ascending order"
    )]
    NotAscending {
        /// Which record, from 0.
        index: u64,
        /// Its key.
        key: u64,
        /// The key before it.
        previous: u64,
    },
    /// The table has records already, or had some.
    #[error("a bulk load needs a table that has never held a record; this one has")]
    TableNotEmpty,
    /// Something below failed.
    #[error(transparent)]
    Index(#[from] IndexError),
}

impl LoadError {
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

impl From<RegionError> for LoadError {
    fn from(error: RegionError) -> Self {
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

    /// F5: a claim of chunks fails as an error of the region; its outcome is as unknown as that of
    /// a leaf's batch.
    #[test]
    fn an_unknown_outcome_is_seen_through_every_layer() {
        let unknown = || {
            let reason = "the connection broke".to_owned();
            BatchError::new(BatchErrorKind::Unknown { reason }, 0)
        };
        let errors: [LoadError; 4] = [
            unknown().into(),
            LeafError::from(unknown()).into(),
            RegionError::from(unknown()).into(),
            LeafError::from(RegionError::from(unknown())).into(),
        ];
        for error in errors {
            assert!(error.is_outcome_unknown(), "{error:?}");
        }
        assert!(!LoadError::TableNotEmpty.is_outcome_unknown());
        assert!(!LoadError::Index(IndexError::Outdated).is_outcome_unknown());
    }
}
