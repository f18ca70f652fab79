//! Invalid frames, incomplete frames, and replies that are never fetched.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use farleaf_base::OwnerWord;
use farleaf_fabric::{Control, SessionLife};

use super::Honest;
use super::raw::{
    ADMIN, DONE, FRAME_SIZE_WORDS_MAX, MALFORMED, OUT_OF_REGION, Raw, SKIPPED, bytes, compare_swap,
    fetch_add, frame, read, write,
};
use crate::children::{Part, Peer};
use crate::network::NetworkNode;

fn open(node: &NetworkNode) -> (Raw, Raw, OwnerWord) {
    let (mut control, ticket) = Raw::log_in(&node.address, ADMIN);
    let owner = control.register();
    let data = Raw::open_data(&node.address, ADMIN, ticket, owner);
    (control, data, OwnerWord::from_word(owner))
}

/// Promise: the wire format matches its documentation, so an independent client is served.
#[test]
fn frames_by_hand_are_executed() {
    let node = NetworkNode::start();
    let (_control, mut data, _) = open(&node);
    let verbs = [
        write(100, &[5, 6]),
        compare_swap(100, 5, 8),
        compare_swap(101, 5, 8),
        fetch_add(101, 10),
        read(100, 3),
        read(100, 0),
    ];
    data.send(&frame(0xABCD, false, &verbs));
    let reply = data.receive_frame().expect("an answer");
    assert_eq!((reply.tag, reply.status), (0xABCD, DONE));
    assert_eq!(reply.executed_verb_count, 6);
    assert_eq!(reply.words, [5, 6, 6, 8, 16, 0]);
}

/// Promise: a frame of an impossible size ends the connection, and nothing is allocated for it.
#[test]
fn frames_of_impossible_sizes_end_the_connection() {
    let node = NetworkNode::start();
    let honest = Honest::of(node.client());
    for size in [0, 1, FRAME_SIZE_WORDS_MAX + 1, u64::from(u32::MAX)] {
        let (mut control, mut data, owner) = open(&node);
        data.send(&frame(1, false, &[write(200, &[size])]));
        data.send(&bytes(&[size | 1 << 32, 2]));
        let first = data.receive_frame();
        // The reply to the valid frame may be lost when the connection ends.
        assert!(first.is_none_or(|reply| (reply.tag, reply.status) == (1, DONE)));
        data.wait_for_end();
        assert_eq!(node.word(200), size, "what came before was executed");
        assert!(matches!(
            honest.client.session_life(owner).expect("served"),
            SessionLife::Alive { .. }
        ));
        control.register();
        honest.works(0);
    }
}

/// Promise: a frame that contradicts itself is answered as malformed, after the verbs before the
/// contradiction, and ends the connection.
#[test]
fn malformed_frames_end_the_connection() {
    let node = NetworkNode::start();
    let honest = Honest::of(node.client());
    let lies: [Vec<u64>; 9] = [
        vec![4 << 56 | 1],
        vec![1 << 48 | 1, 1],
        vec![0xFF << 56, 1],
        vec![1],
        vec![1, u64::MAX],
        vec![1, (1 << 15) + 1],
        vec![1 << 56 | 1, 5, 1],
        vec![2 << 56 | 1, 0],
        vec![3 << 56 | 1],
    ];
    for (number, lie) in (1..).zip(lies) {
        let (_control, mut data, _) = open(&node);
        let verbs = [write(201, &[number]), lie.clone()];
        data.send(&frame(number, false, &verbs));
        let reply = data.receive_frame().expect("an answer");
        let said = (reply.tag, reply.status, reply.executed_verb_count);
        assert_eq!(said, (number, MALFORMED, 1), "{lie:?}");
        data.wait_for_end();
        assert_eq!(node.word(201), number);
        honest.works(0);
    }
    let (_control, mut data, _) = open(&node);
    let mut rest = frame(1, false, &[write(202, &[1]), write(202, &[2])]);
    // The frame states one verb and contains two.
    rest[4] = 1;
    data.send(&rest);
    let reply = data.receive_frame().expect("an answer");
    assert_eq!((reply.status, reply.executed_verb_count), (MALFORMED, 1));
    data.wait_for_end();
    assert_eq!(node.word(202), 1);
}

/// Promise: no reply is longer than a frame, however small the request is.
#[test]
fn answers_are_no_larger_than_a_frame() {
    let node = NetworkNode::start();
    let (_control, mut data, _) = open(&node);
    let verbs = vec![read(0, 1 << 15); 100];
    data.send(&frame(1, false, &verbs));
    let reply = data.receive_frame().expect("an answer");
    assert_eq!((reply.status, reply.executed_verb_count), (MALFORMED, 1));
    assert_eq!(reply.words.len(), 1 << 15);
    data.wait_for_end();
}

/// Promise: after a refused verb, nothing of the remaining frames of its batch is executed; the
/// next batch is.
#[test]
fn a_refused_batch_goes_on_in_vain() {
    let node = NetworkNode::start();
    let (_control, mut data, _) = open(&node);
    let outside = node.memory.word_count();
    data.send(&frame(1, true, &[write(300, &[1]), write(outside, &[1])]));
    for tag in 2..50 {
        data.send(&frame(tag, true, &[write(301, &[1])]));
    }
    data.send(&frame(50, false, &[write(301, &[1])]));
    data.send(&frame(51, false, &[write(302, &[1])]));
    let replies = (1..=51).map(|tag| {
        let reply = data.receive_frame().expect("an answer");
        assert_eq!((reply.tag, reply.words.len()), (tag, 0));
        (reply.status, reply.executed_verb_count)
    });
    let replies: Vec<_> = replies.collect();
    assert_eq!((replies[0], replies[50]), ((OUT_OF_REGION, 1), (DONE, 1)));
    assert!(replies[1..50].iter().all(|reply| *reply == (SKIPPED, 0)));
    let words = [300, 301, 302].map(|index| node.word(index));
    assert_eq!(words, [1, 0, 1]);
}

/// Promise: half a frame is not executed. A peer that stops in the middle of one delays no other
/// client, and its session is fenced after the configured silence.
#[test]
fn half_a_frame_and_silence() {
    const SILENCE_MAX: Duration = Duration::from_millis(700);
    let node = NetworkNode::start_with(|options| options.silence_max = SILENCE_MAX);
    let honest = Honest::of(node.client());
    let start = Instant::now();
    let (mut control, mut data, owner) = open(&node);
    let whole = frame(1, false, &[write(400, &[1]), write(401, &[1])]);
    data.send(&whole[..whole.len() - 1]);
    let is_alive = || honest.client.session_life(owner).expect("served") != SessionLife::Fenced;
    while is_alive() {
        honest.works(0);
        assert!(start.elapsed() < Duration::from_secs(30), "never given up");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(start.elapsed() >= SILENCE_MAX, "{:?}", start.elapsed());
    control.wait_for_end();
    data.wait_for_end();
    assert_eq!((node.word(400), node.word(401)), (0, 0));
    honest.works(0);
}

/// Promise: a client that fetches replies slowly but steadily costs the node no more memory than
/// one that fetches them at once; sent bytes are released.
#[test]
fn answers_that_are_fetched_slowly_cost_no_memory() {
    const QUESTION_COUNT: usize = 2000;
    const ANSWER_SIZE_BYTES: usize = (2 + (1 << 15)) * 8;
    const MEMORY_SIZE_KIB_MAX: u64 = 64 << 10;
    let mut server = Peer::start(Part::NetworkServer, "");
    let address = server.hear();
    let (_control, ticket) = Raw::log_in(&address, ADMIN);
    let mut data = Raw::open_data(&address, ADMIN, ticket, 0);
    data.send(&frame(1, false, &[read(0, 1 << 15)]).repeat(QUESTION_COUNT));
    let mut answer = vec![0; ANSWER_SIZE_BYTES];
    for _ in 0..QUESTION_COUNT {
        data.0.read_exact(&mut answer).expect("its answers");
    }
    let path = format!("/proc/{}/status", server.pid());
    let status = std::fs::read_to_string(path).expect("it runs");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let most = most.and_then(|text| text.trim().strip_suffix(" kB"));
    let most: u64 = most.and_then(|text| text.parse().ok()).expect("a size");
    assert!(most < MEMORY_SIZE_KIB_MAX, "{most} KiB");
}

/// Promise: if a client does not fetch its replies, the node executes only a bounded number of its
/// requests. Other clients, including those of the same thread, are served.
#[test]
fn answers_that_nobody_fetches_are_not_produced() {
    const QUESTION_COUNT_MAX: usize = 20_000_000;
    let node = NetworkNode::start_with(|options| options.nic_thread_count = 1);
    let honest = Honest::of(node.client());
    let (_control, mut data, _) = open(&node);
    let questions = frame(1, false, &[read(0, 1 << 15)]).repeat(1000);
    data.0.set_nonblocking(true).expect("a socket");
    let mut asked_bytes = 0;
    let mut full_count = 0;
    while full_count < 20 {
        match data.0.write(&questions) {
            Ok(count) => {
                asked_bytes += count;
                full_count = 0;
            }
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                full_count += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        assert!(
            asked_bytes / 32 < QUESTION_COUNT_MAX,
            "the node takes questions without end"
        );
    }
    for _ in 0..100 {
        honest.works(0);
    }
    // The client now fetches some replies, and then disconnects.
    data.0.set_nonblocking(false).expect("a socket");
    let mut some = vec![0; 8 << 20];
    data.0.read_exact(&mut some).expect("its answers");
    drop(data);
    honest.works(0);
}
