//! All of replication over queue pairs, until the backup is promoted.

use farleaf_lsm::follow::IndexKind;
use farleaf_replica::{Epoch, ReplicaError};

use crate::memory::Memory;
use crate::over::replicating::replicate;

/// Replication works over `verbs`, with trees sent or built. When the node has ended the queue
/// pairs of an old primary (FABRIC-6), nothing of it arrives.
pub(crate) fn it_works_over_verbs() {
    for index in [IndexKind::Sent, IndexKind::Built] {
        let (node, memory) = Memory::served();
        let late = replicate(index, memory.near(), || memory.connection(), || drop(node));
        assert!(matches!(late, ReplicaError::BackupLost { .. }), "{late}");
    }
}

/// An old primary whose queue pairs still exist finds the epoch that the backup's device has
/// changed (REPLICATION-8).
pub(crate) fn an_old_primary_is_told_by_the_epoch() {
    let (_node, memory) = Memory::served();
    let late = replicate(
        IndexKind::Sent,
        memory.near(),
        || memory.connection(),
        || {},
    );
    let is_told = matches!(
        late,
        ReplicaError::Deposed {
            own: Epoch(1),
            found: Epoch(2),
        }
    );
    assert!(is_told, "{late}");
}
