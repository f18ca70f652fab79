//! Replication over plain `mem`, `tcp`, and the data path of `shm`. Tests over `verbs` are in
//! `tests/over_verbs`.

use std::sync::Arc;

use farleaf_fabric::Control;
use farleaf_fabric::mapped::{MappedEndpoint, MappedMemory};
use farleaf_fabric::tcp::{TcpClient, TcpEndpoint};
use farleaf_lsm::follow::IndexKind;
use farleaf_replica::{Epoch, ReplicaError};

use crate::over::node::{Node, connect_options};
use crate::over::replicating::replicate;
use crate::over::{memory, memory_size_bytes};

const KINDS: [IndexKind; 2] = [IndexKind::Sent, IndexKind::Built];

/// Checks that an old primary that is not fenced finds the later epoch.
fn assert_told_by_epoch(late: &ReplicaError) {
    let is_told = matches!(
        late,
        ReplicaError::Deposed {
            own: Epoch(1),
            found: Epoch(2),
        }
    );
    assert!(is_told, "{late}");
}

/// Replication works in the memory of one process, with trees sent or built.
#[test]
fn it_works_over_memory() {
    for index in KINDS {
        let memory = memory();
        let endpoint = || MappedEndpoint::new(Arc::clone(&memory));
        let late = replicate(index, endpoint(), endpoint, || {});
        assert_told_by_epoch(&late);
    }
}

/// Replication works over `tcp`, with trees sent or built. Batches wait for the network, and the
/// node fences sessions by ending them (FABRIC-6): nothing of an old primary arrives after that.
#[test]
fn it_works_over_tcp() {
    for index in KINDS {
        let memory = memory();
        let node = Node::start(&memory, None);
        let client = TcpClient::connect(&node.address, &connect_options()).expect("it listens");
        let endpoint = || -> TcpEndpoint {
            let owner = client.register_session().expect("a session");
            client.endpoint(Some(owner)).expect("a connection")
        };
        let near = MappedEndpoint::new(Arc::clone(&memory));
        let late = replicate(index, near, endpoint, || drop(node));
        assert!(matches!(late, ReplicaError::BackupLost { .. }), "{late}");
    }
}

/// Replication works between two mappings of the same memory, with trees sent or built, as between
/// two processes.
#[test]
fn it_works_over_shared_memory() {
    for index in KINDS {
        let created = MappedMemory::create_shared("replica-test", memory_size_bytes());
        let (memory, size_bytes, _) = created.expect("memory");
        let map = || {
            let mapped = MappedMemory::map_shared(&memory, size_bytes).expect("mapped");
            Arc::new(mapped)
        };
        let near = MappedEndpoint::new(map());
        let late = replicate(index, near, || MappedEndpoint::new(map()), || {});
        assert_told_by_epoch(&late);
    }
}
