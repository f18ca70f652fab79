//! One node per name, and access to its socket.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use farleaf_fabric::mapped::MappedMemory;
use farleaf_fabric::shm::{ListenError, ShmClient};
use farleaf_fabric::{Control, ControlError};

use crate::children::{Part, Peer, scene};
use crate::node::{Node, Sessions, pool};

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path)
        .expect("it exists")
        .permissions()
        .mode()
        & 0o777
}

/// Promise: only the user can access the memory.
#[test]
fn directory_and_socket_are_the_users_alone() {
    scene(
        "names::directory_and_socket_are_the_users_alone",
        |directory| {
            let _node = Node::start(&pool("a"), Sessions::default()).expect("the name is free");
            assert_eq!(mode(directory), 0o700);
            assert_eq!(mode(&directory.join("a.sock")), 0o600);
            assert_eq!(mode(&directory.join("a.lock")), 0o600);
        },
    );
}

#[test]
fn a_directory_that_others_can_write_to_is_refused() {
    scene(
        "names::a_directory_that_others_can_write_to_is_refused",
        |directory| {
            std::fs::create_dir(directory).expect("create");
            std::fs::set_permissions(directory, PermissionsExt::from_mode(0o770)).expect("chmod");
            match Node::start(&pool("a"), Sessions::default()).err() {
                Some(ListenError::Socket { source, .. }) => {
                    assert_eq!(source.kind(), io::ErrorKind::PermissionDenied, "{source}");
                }
                other => panic!("must be refused: {other:?}"),
            }
        },
    );
}

/// Promise: a name is served once; two nodes of one name would serve two memories under it.
#[test]
fn a_name_is_served_once() {
    scene("names::a_name_is_served_once", |_| {
        let name = pool("a");
        let node = Node::start(&name, Sessions::default()).expect("the name is free");
        let again = Node::start(&name, Sessions::default()).err();
        assert!(matches!(again, Some(ListenError::AlreadyServed(taken)) if taken == name));
        let mut other_process = Peer::start(Part::Server, "a");
        let said = other_process.hear();
        assert!(
            said.contains("shm:a is already served by another process"),
            "{said}"
        );
        let _other_name = Node::start(&pool("b"), Sessions::default()).expect("another name");
        ShmClient::connect(&name).expect("the first node still serves");
        drop(node);
        Node::start(&name, Sessions::default()).expect("the name is free again");
    });
}

/// Promise: a node that stopped leaves no socket behind.
#[test]
fn a_stopped_node_is_unreachable() {
    scene("names::a_stopped_node_is_unreachable", |directory| {
        let name = pool("a");
        let node = Node::start(&name, Sessions::default()).expect("the name is free");
        let (client, ..) = ShmClient::connect(&name).expect("it is served");
        drop(node);
        assert!(!directory.join("a.sock").exists());
        let registered = client.register_session();
        assert!(
            matches!(registered, Err(ControlError::Unreachable { .. })),
            "{registered:?}"
        );
        let connected = ShmClient::connect(&name).err();
        assert!(
            matches!(connected, Some(ControlError::Unreachable { .. })),
            "{connected:?}"
        );
    });
}

/// Promise: the kernel frees the name however a node ends.
#[test]
fn the_name_of_a_killed_node_is_free() {
    scene("names::the_name_of_a_killed_node_is_free", |directory| {
        let mut server = Peer::start(Part::Server, "a");
        assert_eq!(server.hear(), "serving");
        let name = pool("a");
        let (client, ..) = ShmClient::connect(&name).expect("it is served");
        server.kill();
        let registered = client.register_session();
        assert!(
            matches!(registered, Err(ControlError::Unreachable { .. })),
            "{registered:?}"
        );
        drop(server);
        assert!(
            directory.join("a.sock").exists(),
            "a killed node cannot remove its socket"
        );
        let connected = ShmClient::connect(&name).err();
        assert!(
            matches!(connected, Some(ControlError::Unreachable { .. })),
            "{connected:?}"
        );
        let _node = Node::start(&name, Sessions::default()).expect("the name is free");
        ShmClient::connect(&name).expect("it is served");
    });
}

#[test]
fn a_pool_that_nobody_serves_is_unreachable_and_named() {
    scene(
        "names::a_pool_that_nobody_serves_is_unreachable_and_named",
        |_| {
            let error = ShmClient::connect(&pool("nobody")).expect_err("nobody serves it");
            assert!(
                matches!(error, ControlError::Unreachable { .. }),
                "{error:?}"
            );
            let text = error.to_string();
            assert!(
                text.contains("shm:nobody") && text.contains("`farleaf serve`"),
                "{text}"
            );
        },
    );
}

/// Promise: every client maps the same memory, of the size that the node announces.
#[test]
fn clients_of_a_node_share_its_memory() {
    scene("names::clients_of_a_node_share_its_memory", |_| {
        let name = pool("a");
        let _node = Node::start(&name, Sessions::default()).expect("the name is free");
        let map = || {
            let (_client, memory, size_bytes) = ShmClient::connect(&name).expect("it is served");
            assert_eq!(size_bytes, Node::REGION_SIZE_BYTES);
            MappedMemory::map_shared(memory, size_bytes).expect("a mapping")
        };
        let (one, other) = (map(), map());
        one.words()[77].store(5, std::sync::atomic::Ordering::SeqCst);
        assert_eq!(
            other.words()[77].load(std::sync::atomic::Ordering::SeqCst),
            5
        );
    });
}
