//! All of replication over queue pairs, until the backup is promoted.

use farleaf_lsm::follow::IndexKind;
use farleaf_replica::{Epoch, ReplicaError};

use crate::memory::Memory;
use crate::over::replicating::replicate;

/// Promise: all of it works over `verbs`, trees sent or built; when the node has ended the queue
/// pairs of an old primary (F6), nothing of it arrives.
pub(crate) fn it_works_over_verbs() {
    for index in [IndexKind::Sent, IndexKind::Built] {
        let (node, memory) = Memory::served();
        let late = replicate(index, memory.near(), || memory.way(), || drop(node));
        assert!(matches!(late, ReplicaError::BackupLost { .. }), "{late}");
    }
}

/// Promise (RP8): an old primary whose queue pairs are there still is told by the epoch, which the
/// backup's device has changed.
pub(crate) fn an_old_primary_is_told_by_the_epoch() {
    let (_node, memory) = Memory::served();
    let late = replicate(IndexKind::Sent, memory.near(), || memory.way(), || {});
    let is_told = matches!(
        late,
        ReplicaError::Deposed {
            own: Epoch(1),
            found: Epoch(2),
        }
    );
    assert!(is_told, "{late}");
}
