//! Peers that are not Farleaf, or have another version: typed errors, and no disturbance of others.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use farleaf_base::{Incarnation, OwnerWord, SessionId};
use farleaf_fabric::shm::{CONTROL_VERSION, ShmClient};
use farleaf_fabric::{Control, ControlError, SessionLife};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

use crate::children::scene;
use crate::node::{Node, Sessions, pool};

/// Magic: "FLCTRL" and the version, as the layout of the messages defines.
const MAGIC: u64 = 0x464C_4354_524C_0000 | CONTROL_VERSION;
const FRAME_SIZE_BYTES: usize = 256;

fn frame(words: &[u64]) -> Vec<u8> {
    let mut frame: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    frame.resize(FRAME_SIZE_BYTES, 0);
    frame
}

fn new_socket(kind: SocketType) -> OwnedFd {
    rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("socket")
}

/// Opens a socket at the path of the node of pool "a".
fn listen(directory: &Path, kind: SocketType) -> OwnedFd {
    std::fs::create_dir_all(directory).expect("create");
    let path = directory.join("a.sock");
    let _ = std::fs::remove_file(&path);
    let socket = new_socket(kind);
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).expect("short")).expect("bind");
    rustix::net::listen(&socket, 4).expect("listen");
    socket
}

fn accept(listening: &OwnedFd) -> OwnedFd {
    rustix::net::accept_with(listening, SocketFlags::CLOEXEC).expect("accept")
}

fn receive(socket: &OwnedFd) -> Vec<u8> {
    let mut buffer = vec![0; 2 * FRAME_SIZE_BYTES];
    let (size, _) = rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty()).expect("recv");
    buffer.truncate(size);
    buffer
}

fn send(socket: &OwnedFd, bytes: &[u8]) {
    rustix::net::send(socket, bytes, SendFlags::NOSIGNAL).expect("send");
}

fn send_descriptor(socket: &OwnedFd, bytes: &[u8], descriptor: impl AsFd) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let bytes = [io::IoSlice::new(bytes)];
    rustix::net::sendmsg(socket, &bytes, &mut ancillary, SendFlags::NOSIGNAL).expect("send");
}

/// Returns the client's error after a node's given reply to its hello.
fn greeted_with(directory: &Path, answer: &[u8]) -> ControlError {
    let listening = listen(directory, SocketType::SEQPACKET);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| ShmClient::connect(&pool("a")).err());
        let socket = accept(&listening);
        assert_eq!(receive(&socket), frame(&[MAGIC, 1]), "the greeting");
        send(&socket, answer);
        client.join().expect("no panic").expect("must be an error")
    })
}

/// Promise: an invalid reply never becomes a mapping or a session.
#[test]
fn answers_that_are_none_are_malformed() {
    scene(
        "strangers::answers_that_are_none_are_malformed",
        |directory| {
            let cases: [(Vec<u8>, &str); 7] = [
                (frame(&[MAGIC + 1, 1, 4096]), "version 2"),
                (frame(&[0, 1, 4096]), "not in Farleaf's protocol"),
                (b"HTTP/1.1 400 Bad Request".to_vec(), "24 bytes"),
                (frame(&[MAGIC, 1, 4096])[..255].to_vec(), "255 bytes"),
                (frame(&[MAGIC, 9]), "reply number 9"),
                (frame(&[MAGIC, 3]), "unexpected reply"),
                (frame(&[MAGIC, 1, 4096]), "without the memory's descriptor"),
            ];
            for (answer, expected) in cases {
                let error = greeted_with(directory, &answer);
                assert!(matches!(error, ControlError::Malformed { .. }), "{error:?}");
                let text = error.to_string();
                assert!(text.contains(expected) && text.contains("shm:a"), "{text}");
            }
        },
    );
}

#[test]
fn a_node_that_hangs_up_or_is_no_node_is_unreachable() {
    scene(
        "strangers::a_node_that_hangs_up_or_is_no_node_is_unreachable",
        |directory| {
            let listening = listen(directory, SocketType::SEQPACKET);
            std::thread::scope(|scope| {
                let client = scope.spawn(|| ShmClient::connect(&pool("a")).err());
                drop(accept(&listening));
                let error = client.join().expect("no panic");
                assert!(
                    matches!(error, Some(ControlError::Unreachable { .. })),
                    "{error:?}"
                );
            });
            let _stream = listen(directory, SocketType::STREAM);
            let error = ShmClient::connect(&pool("a")).err();
            assert!(
                matches!(error, Some(ControlError::Unreachable { .. })),
                "{error:?}"
            );
            std::fs::remove_file(directory.join("a.sock")).expect("remove");
            std::fs::write(directory.join("a.sock"), "no socket").expect("write");
            let error = ShmClient::connect(&pool("a")).err();
            assert!(
                matches!(error, Some(ControlError::Unreachable { .. })),
                "{error:?}"
            );
        },
    );
}

#[test]
fn a_node_that_never_answers_is_silent_after_the_limit() {
    scene(
        "strangers::a_node_that_never_answers_is_silent_after_the_limit",
        |directory| {
            let _listening = listen(directory, SocketType::SEQPACKET);
            let limit = Duration::from_millis(100);
            let start = Instant::now();
            let error = ShmClient::connect_within(&pool("a"), limit).err();
            assert!(
                matches!(error, Some(ControlError::Silent { .. })),
                "{error:?}"
            );
            assert!(start.elapsed() >= limit);
        },
    );
}

/// Promise (FABRIC-6): a late reply about one session is not taken for a reply about another, which
/// may be alive.
#[test]
fn a_late_answer_is_never_taken_for_the_next_one() {
    scene(
        "strangers::a_late_answer_is_never_taken_for_the_next_one",
        |directory| {
            let listening = listen(directory, SocketType::SEQPACKET);
            let memory = std::fs::File::open("/dev/null").expect("open");
            let owner =
                |number| OwnerWord::new(SessionId::new(number).expect("1"), Incarnation::new(1));
            std::thread::scope(|scope| {
                let node = scope.spawn(|| {
                    let socket = accept(&listening);
                    receive(&socket);
                    send_descriptor(&socket, &frame(&[MAGIC, 1, 4096]), &memory);
                    assert_eq!(receive(&socket), frame(&[MAGIC, 4, owner(1).word()]));
                    socket
                });
                let limit = Duration::from_millis(100);
                let (client, ..) = ShmClient::connect_within(&pool("a"), limit).expect("greeted");
                let late = client.session_life(owner(1));
                assert!(matches!(late, Err(ControlError::Silent { .. })), "{late:?}");
                let socket = node.join().expect("no panic");
                // "Fenced", for session 1; the client may have disconnected by now.
                let _ = rustix::net::send(&socket, &frame(&[MAGIC, 4]), SendFlags::NOSIGNAL);
                let other = client.session_life(owner(2));
                assert!(
                    matches!(other, Err(ControlError::Silent { .. })),
                    "{other:?}"
                );
            });
        },
    );
}

/// Promise: whatever a connection sends, the node replies or disconnects, and serves the others.
#[test]
fn a_client_that_sends_garbage_disturbs_nobody() {
    scene(
        "strangers::a_client_that_sends_garbage_disturbs_nobody",
        |directory| {
            let _node = Node::start(&pool("a"), Sessions::default()).expect("the name is free");
            let (good, ..) = ShmClient::connect(&pool("a")).expect("it is served");
            let owner = good.register_session().expect("a session");
            let address = SocketAddrUnix::new(directory.join("a.sock")).expect("short");
            let messages = [
                vec![1],
                vec![0xFF; FRAME_SIZE_BYTES],
                vec![0; 4 * FRAME_SIZE_BYTES],
                frame(&[MAGIC + 1, 1]),
                frame(&[MAGIC, u64::MAX, u64::MAX, u64::MAX, u64::MAX]),
            ];
            for message in messages {
                let socket = new_socket(SocketType::SEQPACKET);
                rustix::net::connect(&socket, &address).expect("connect");
                send(&socket, &message);
                let answer = receive(&socket);
                assert_eq!(answer[..16], frame(&[MAGIC, 0])[..16], "a refusal");
                assert!(answer[40] != 0, "that says why");
                // A peer that leaves without reading the reply to its request.
                send(&socket, &frame(&[MAGIC, 1]));
            }
            let pid = std::process::id();
            assert_eq!(
                good.session_life(owner).expect("served"),
                SessionLife::Alive { pid }
            );
        },
    );
}

/// Promise: a client that sends requests and never reads replies cannot stop the node.
#[test]
fn a_client_that_does_not_listen_disturbs_nobody() {
    scene(
        "strangers::a_client_that_does_not_listen_disturbs_nobody",
        |directory| {
            let _node = Node::start(&pool("a"), Sessions::default()).expect("the name is free");
            let socket = new_socket(SocketType::SEQPACKET);
            let address = SocketAddrUnix::new(directory.join("a.sock")).expect("short");
            rustix::net::connect(&socket, &address).expect("connect");
            // Until the node disconnects because its replies fill the socket.
            let question = frame(&[MAGIC, 4]);
            let asked = (0..1_000_000)
                .take_while(|_| rustix::net::send(&socket, &question, SendFlags::NOSIGNAL).is_ok());
            assert!(
                asked.count() < 1_000_000,
                "the node takes questions without end"
            );
            let (good, ..) = ShmClient::connect(&pool("a")).expect("it is served");
            good.register_session().expect("a session");
        },
    );
}
