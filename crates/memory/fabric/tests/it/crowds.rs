//! More clients than a node can have: excess clients get an error, the others are served.

use farleaf_fabric::shm::ShmClient;
use farleaf_fabric::{Control, ControlError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::children::{Part, Peer, scene};
use crate::node::{Node, Sessions, pool};

/// The listener's limit of connections.
const CONNECTION_COUNT_MAX: usize = 1024;

fn limit_descriptors(count: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: Some(count),
        maximum,
    };
    setrlimit(Resource::Nofile, limit).expect("no more than the maximum");
}

/// Connects until that fails. Closes each client's memory descriptor at once.
fn fill(limit: usize) -> (Vec<ShmClient>, ControlError) {
    let mut clients = Vec::new();
    while clients.len() <= limit {
        match ShmClient::connect(&pool("a")) {
            Ok((client, ..)) => clients.push(client),
            Err(error) => return (clients, error),
        }
    }
    panic!("there is no end of connections");
}

/// Connects as soon as the node has noticed that a connection is free.
fn connect_when_there_is_capacity() -> ShmClient {
    for _ in 0..1000 {
        match ShmClient::connect(&pool("a")) {
            Ok((client, ..)) => return client,
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(2)),
        }
    }
    panic!("clients have left, but there is no room");
}

#[test]
fn connections_beyond_the_limit_are_refused() {
    scene("crowds::connections_beyond_the_limit_are_refused", |_| {
        // Node and clients are one process here, with three descriptors for each connection.
        let wanted = 4 * CONNECTION_COUNT_MAX as u64;
        let maximum = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        assert!(
            maximum >= wanted,
            "this test needs `ulimit -Hn` of at least {wanted}"
        );
        limit_descriptors(wanted);
        let _node = Node::start(&pool("a"), Sessions::default()).expect("the name is free");
        let (mut clients, error) = fill(CONNECTION_COUNT_MAX);
        assert_eq!(clients.len(), CONNECTION_COUNT_MAX);
        assert!(matches!(error, ControlError::Refused { .. }), "{error:?}");
        assert!(
            error
                .to_string()
                .contains("the limit on clients of the memory node"),
            "{error}"
        );
        let owner = clients[0]
            .register_session()
            .expect("the others are served");
        clients.truncate(1);
        connect_when_there_is_capacity()
            .register_session()
            .expect("a session");
        clients[0].close_session(owner).expect("ours");
    });
}

/// Promise: if the node's limit of descriptors is the smaller one, the client still gets an error
/// at once, whichever call meets the limit first.
#[test]
fn a_node_without_descriptors_refuses_and_recovers() {
    scene(
        "crowds::a_node_without_descriptors_refuses_and_recovers",
        |_| {
            let mut server = Peer::start(Part::Server, "a");
            assert_eq!(server.hear(), "serving");
            let pid = i32::try_from(server.pid())
                .ok()
                .and_then(rustix::process::Pid::from_raw);
            for count in [40, 41] {
                let limit = Rlimit {
                    current: Some(count),
                    maximum: Some(count.max(41)),
                };
                rustix::process::prlimit(pid, Resource::Nofile, limit).expect("a child of ours");
                let (mut clients, error) = fill(CONNECTION_COUNT_MAX);
                assert!(clients.len() > 5, "{error}");
                assert!(matches!(error, ControlError::Refused { .. }), "{error:?}");
                let again = ShmClient::connect(&pool("a")).err();
                assert!(
                    matches!(again, Some(ControlError::Refused { .. })),
                    "{again:?}"
                );
                clients[0]
                    .register_session()
                    .expect("the others are served");
                clients.truncate(1);
                connect_when_there_is_capacity()
                    .register_session()
                    .expect("a session");
            }
        },
    );
}
