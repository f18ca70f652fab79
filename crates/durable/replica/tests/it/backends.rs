//! The same over plain `mem`, over `tcp`, and over the data path of `shm`. Over `verbs`:
//! `tests/over_verbs`.

use std::sync::Arc;

use farleaf_fabric::Control;
use farleaf_fabric::mapped::{MappedEndpoint, MappedRegion};
use farleaf_fabric::tcp::{TcpClient, TcpEndpoint};
use farleaf_lsm::follow::IndexKind;
use farleaf_replica::{Epoch, ReplicaError};

use crate::over::node::{Node, connect_options};
use crate::over::replicating::replicate;
use crate::over::{region, region_size_bytes};

const KINDS: [IndexKind; 2] = [IndexKind::Sent, IndexKind::Built];

/// Without anybody who fences, the epoch tells an old primary.
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

/// Promise: all of it works in the memory of one process, trees sent or built.
#[test]
fn it_works_over_memory() {
    for index in KINDS {
        let region = region();
        let endpoint = || MappedEndpoint::new(Arc::clone(&region));
        let late = replicate(index, endpoint(), endpoint, || {});
        assert_told_by_epoch(&late);
    }
}

/// Promise: all of it works over `tcp`, trees sent or built, where batches wait for the network,
/// and sessions are fenced when the node ends them (F6): nothing of an old primary arrives then.
#[test]
fn it_works_over_tcp() {
    for index in KINDS {
        let region = region();
        let node = Node::start(&region, None);
        let client = TcpClient::connect(&node.address, &connect_options()).expect("it listens");
        let way = || -> TcpEndpoint {
            let owner = client.register_session().expect("a session");
            client.endpoint(Some(owner)).expect("a connection")
        };
        let near = MappedEndpoint::new(Arc::clone(&region));
        let late = replicate(index, near, way, || drop(node));
        assert!(matches!(late, ReplicaError::BackupLost { .. }), "{late}");
    }
}

/// Promise: all of it works where two processes map the same memory, trees sent or built: here one
/// that has mapped it twice.
#[test]
fn it_works_over_shared_memory() {
    for index in KINDS {
        let created = MappedRegion::create_shared("replica-test", region_size_bytes());
        let (memory, size_bytes, _) = created.expect("memory");
        let map = || {
            let mapped = MappedRegion::map_shared(&memory, size_bytes).expect("mapped");
            Arc::new(mapped)
        };
        let near = MappedEndpoint::new(map());
        let late = replicate(index, near, || MappedEndpoint::new(map()), || {});
        assert_told_by_epoch(&late);
    }
}
