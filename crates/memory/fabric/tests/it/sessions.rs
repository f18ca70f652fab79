//! Tests of FABRIC-6: a session is fenced when it was closed or its process is dead, and not
//! before.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use farleaf_base::{Incarnation, OwnerWord, SessionId};
use farleaf_fabric::mapped::MappedMemory;
use farleaf_fabric::shm::ShmClient;
use farleaf_fabric::{Control, ControlError, SessionLife};

use crate::children::{ADD_COUNT, Part, Peer, scene};
use crate::node::{Node, Sessions, pool};

/// Time limit of waits: enough for any working host, and short enough for a test that fails.
const SOON: Duration = Duration::from_secs(20);

fn connect(name: &str) -> ShmClient {
    ShmClient::connect(&pool(name)).expect("it is served").0
}

fn life(client: &ShmClient, owner: OwnerWord) -> SessionLife {
    client.session_life(owner).expect("the node answers")
}

/// Waits until the session is fenced. Panics after the time limit, so that a failing test does not
/// hang.
fn wait_until_fenced(client: &ShmClient, owner: OwnerWord) {
    let start = Instant::now();
    while life(client, owner) != SessionLife::Fenced {
        assert!(start.elapsed() < SOON, "{owner} is still alive");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Promise: a fence never times out. It waits while the process lives, reports what it waits for,
/// and returns when the process is dead.
#[test]
fn fence_waits_for_the_death_of_the_process() {
    scene("sessions::fence_waits_for_the_death_of_the_process", |_| {
        let _node = Node::start(&pool("a"), Sessions::default()).expect("the name is free");
        let mut peer = Peer::start(Part::Session, "a");
        let owner = peer.hear_session();
        let client = connect("a");
        let (fenced, told_pid) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut unresponsive = |life| match life {
                    SessionLife::Alive { pid } => told_pid.store(pid, Ordering::SeqCst),
                    SessionLife::Fenced => panic!("a fenced session is not waited for"),
                };
                client
                    .fence_session(owner, &mut unresponsive)
                    .expect("the node answers");
                fenced.store(true, Ordering::SeqCst);
            });
            let start = Instant::now();
            while told_pid.load(Ordering::SeqCst) == 0 && start.elapsed() < SOON {
                assert!(
                    !fenced.load(Ordering::SeqCst),
                    "fenced a session of a living process"
                );
                std::thread::sleep(Duration::from_millis(5));
            }
            let alive = !fenced.load(Ordering::SeqCst);
            peer.kill();
            assert!(alive, "fenced a session of a living process");
            assert_eq!(
                told_pid.load(Ordering::SeqCst),
                peer.pid(),
                "who is waited for"
            );
            let killed = Instant::now();
            while !fenced.load(Ordering::SeqCst) {
                assert!(
                    killed.elapsed() < SOON,
                    "the process is dead, its session still alive"
                );
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        assert_eq!(life(&client, owner), SessionLife::Fenced);
    });
}

#[test]
fn a_closed_session_is_fenced_while_its_process_lives() {
    scene(
        "sessions::a_closed_session_is_fenced_while_its_process_lives",
        |_| {
            let _node = Node::start(&pool("a"), Sessions::default()).expect("the name is free");
            let mut peer = Peer::start(Part::Session, "a");
            let owner = peer.hear_session();
            let client = connect("a");
            assert_eq!(life(&client, owner), SessionLife::Alive { pid: peer.pid() });
            peer.tell("close");
            assert_eq!(life(&client, owner), SessionLife::Fenced);
            client
                .fence_session(owner, &mut |_| panic!("nothing to wait for"))
                .expect("fenced");
            assert!(peer.end().success());
        },
    );
}

/// Promise: a closed connection does not fence sessions, because the process may still post verbs;
/// the end of the process does.
#[test]
fn a_hang_up_does_not_fence_but_the_end_of_the_process_does() {
    scene(
        "sessions::a_hang_up_does_not_fence_but_the_end_of_the_process_does",
        |_| {
            let _node = Node::start(&pool("a"), Sessions::default()).expect("the name is free");
            let mut peer = Peer::start(Part::Session, "a");
            let owner = peer.hear_session();
            let client = connect("a");
            peer.tell("hang up");
            for _ in 0..50 {
                assert_eq!(life(&client, owner), SessionLife::Alive { pid: peer.pid() });
                std::thread::sleep(Duration::from_millis(2));
            }
            assert!(
                peer.end().success(),
                "an orderly end counts as well as a kill"
            );
            wait_until_fenced(&client, owner);
        },
    );
}

/// Promise: only sessions of the dead process are fenced, not those of others at the same node.
#[test]
fn only_sessions_of_the_dead_process_are_fenced() {
    scene(
        "sessions::only_sessions_of_the_dead_process_are_fenced",
        |_| {
            let _node = Node::start(&pool("a"), Sessions::default()).expect("the name is free");
            let mut peers: Vec<_> = (0..4).map(|_| Peer::start(Part::Session, "a")).collect();
            let owners: Vec<_> = peers.iter_mut().map(Peer::hear_session).collect();
            let client = connect("a");
            let own = client.register_session().expect("a session");
            peers[1].kill();
            wait_until_fenced(&client, owners[1]);
            for index in [0, 2, 3] {
                let pid = peers[index].pid();
                assert_eq!(life(&client, owners[index]), SessionLife::Alive { pid });
            }
            assert_eq!(
                life(&client, own),
                SessionLife::Alive {
                    pid: std::process::id()
                }
            );
        },
    );
}

#[test]
fn nobody_closes_the_session_of_another() {
    scene("sessions::nobody_closes_the_session_of_another", |_| {
        let _node = Node::start(&pool("a"), Sessions::default()).expect("the name is free");
        let mut peer = Peer::start(Part::Session, "a");
        let owner = peer.hear_session();
        let client = connect("a");
        let own = client.register_session().expect("a session");
        let refused = client.close_session(owner).expect_err("not ours");
        assert!(
            matches!(refused, ControlError::Refused { .. }),
            "{refused:?}"
        );
        assert!(
            refused.to_string().contains(&owner.to_string()),
            "{refused}"
        );
        assert_eq!(life(&client, owner), SessionLife::Alive { pid: peer.pid() });
        client.close_session(own).expect("ours");
        client
            .close_session(own)
            .expect_err("no session of anybody any more");
    });
}

#[test]
fn a_session_that_never_was_counts_as_fenced() {
    scene(
        "sessions::a_session_that_never_was_counts_as_fenced",
        |_| {
            let _node = Node::start(&pool("a"), Sessions::default()).expect("the name is free");
            let client = connect("a");
            let session = SessionId::new(4711).expect("not 0");
            let never = OwnerWord::new(session, Incarnation::new(1));
            assert_eq!(life(&client, never), SessionLife::Fenced);
            assert_eq!(life(&client, OwnerWord::FREE), SessionLife::Fenced);
        },
    );
}

#[test]
fn a_refusal_of_the_service_reaches_the_client() {
    scene(
        "sessions::a_refusal_of_the_service_reaches_the_client",
        |_| {
            let _node = Node::start(&pool("a"), Sessions::at_most(1)).expect("the name is free");
            let client = connect("a");
            client.register_session().expect("the first");
            let refused = client.register_session().expect_err("the second");
            assert!(
                refused.to_string().contains("no session is left"),
                "{refused}"
            );
            assert!(
                matches!(refused, ControlError::Refused { .. }),
                "{refused:?}"
            );
        },
    );
}

/// Promise: FABRIC-4 and FABRIC-8 hold between processes, and between sessions that come and go.
#[test]
fn processes_share_words() {
    scene("sessions::processes_share_words", |_| {
        let _node = Node::start(&pool("a"), Sessions::default()).expect("the name is free");
        let (client, memory, size_bytes) = ShmClient::connect(&pool("a")).expect("it is served");
        let memory = MappedMemory::map_shared(memory, size_bytes).expect("a mapping");
        let mut peers: Vec<_> = (0..3).map(|_| Peer::start(Part::Adder, "a")).collect();
        let owners: Vec<_> = peers.iter_mut().map(Peer::hear_session).collect();
        assert_eq!(memory.words()[8].load(Ordering::SeqCst), 3 * ADD_COUNT);
        let last = OwnerWord::from_word(memory.words()[16].load(Ordering::SeqCst));
        assert!(owners.contains(&last), "{last} is none of {owners:?}");
        for owner in owners {
            assert_eq!(life(&client, owner), SessionLife::Fenced);
        }
    });
}
