//! Fuzzing of a client's connection to a malicious node.

use core::pin::Pin;
use core::sync::atomic::AtomicU64;
use core::task::{Context, Poll, Waker};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

use super::{Random, batch_within, run};
use crate::batch::Batch;
use crate::endpoint::Endpoint;
use crate::tcp::connection::TcpConnection;
use crate::tcp::execute::execute_frame;
use crate::tcp::frame::{FrameRequest, encode_batch, encode_window, frame_size_bytes};
use crate::tcp::gate::{ClientState, Grant};
use crate::tcp::{TcpEndpoint, TcpExecute};
use farleaf_net::secret::Rights;
use farleaf_net::stream::Stream;

const REGION_SIZE_WORDS: u64 = 1024;
const WINDOW_SIZE_WORDS: usize = 64;

/// Adds unsolicited window frames between replies, as a correct node sends them. Returns the
/// window's words.
fn put_window_frames(random: &mut Random, answers: &mut Vec<Vec<u8>>) -> Vec<u64> {
    let mut window = vec![0; WINDOW_SIZE_WORDS];
    let mut place = 0;
    while random.one_in(2) && place <= answers.len() {
        let start = random.index(WINDOW_SIZE_WORDS);
        let count = random.index(WINDOW_SIZE_WORDS - start + 1);
        let words: Vec<u64> = (0..count).map(|_| random.bits()).collect();
        window[start..start + count].copy_from_slice(&words);
        let mut frame = Vec::new();
        encode_window(&mut frame, start as u64, &words);
        place += random.index(answers.len() - place + 1);
        answers.insert(place, frame);
        place += 1;
    }
    window
}

/// Returns the frames that batches become on a new connection.
fn encoded(batches: &mut [Batch]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (slot, batch) in (0..).zip(batches) {
        let (verbs, data, _) = batch.parts_mut();
        encode_batch(&mut bytes, slot, verbs.iter(), data);
    }
    bytes
}

/// Returns a correct node's replies, by frame.
fn answers(mut requests: &[u8]) -> Vec<Vec<u8>> {
    let memory: Vec<AtomicU64> = (0..REGION_SIZE_WORDS).map(AtomicU64::new).collect();
    let client = ClientState::new(Rights::Admin, Grant::everything());
    let mut answers = Vec::new();
    while let Ok(Some(size)) = frame_size_bytes(requests) {
        let (whole, rest) = requests.split_at(size);
        let mut out = Vec::new();
        execute_frame(&memory, &client, FrameRequest::decode(whole), &mut out);
        answers.push(out);
        requests = rest;
    }
    answers
}

fn pair(listener: &TcpListener) -> (TcpEndpoint, TcpStream) {
    let address = listener.local_addr().expect("bound");
    let socket = TcpStream::connect(address).expect("it listens");
    let (node, _) = listener.accept().expect("it has connected");
    node.set_read_timeout(Some(Duration::from_mins(1)))
        .expect("a socket");
    // Close with a reset, so that ports are not used up by closed connections in TIME_WAIT.
    set_socket_linger(&node, Some(Duration::ZERO)).expect("a socket");
    let stream = Stream::new(socket, None).expect("a socket");
    let connection = TcpConnection::new(stream, REGION_SIZE_WORDS, Duration::from_mins(1));
    (TcpEndpoint::to_one(connection), node)
}

/// Returns a batch inside the memory; the client itself refuses others.
fn batch(random: &mut Random) -> Batch {
    loop {
        let batch = batch_within(random, REGION_SIZE_WORDS);
        let mut verbs = batch.verbs().iter();
        let is_inside =
            verbs.all(|verb| verb.addr.index() + u64::from(verb.word_count) <= REGION_SIZE_WORDS);
        if is_inside {
            return batch;
        }
    }
}

fn poll(future: &mut TcpExecute<'_>) -> Poll<bool> {
    let mut context = Context::from_waker(Waker::noop());
    Pin::new(future).poll(&mut context).map(|done| done.is_ok())
}

/// Promise (FABRIC-5): whatever a node replies, and writes into windows, each batch ends with
/// success or an error, and nothing stays in flight, even if its future was dropped before. A
/// correct reply is a success, and what a correct node writes is in the window.
#[test]
fn fuzz_replies() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    run("replies", |random| {
        let (endpoint, mut node) = pair(&listener);
        let mut batches: Vec<Batch> = (0..=random.below(4)).map(|_| batch(random)).collect();
        let expected = encoded(&mut batches);
        let mut futures: Vec<_> = batches.iter_mut().map(|it| endpoint.start(it)).collect();
        for future in &mut futures {
            assert!(poll(future).is_pending());
        }
        endpoint.poll_completions();
        let mut requests = vec![0; expected.len()];
        node.read_exact(&mut requests).expect("requests");
        assert_eq!(requests, expected);
        let mut answers = answers(&requests);
        let is_honest = random.one_in(8);
        let has_window = is_honest || random.one_in(2);
        assert!(!has_window || endpoint.open_window(WINDOW_SIZE_WORDS));
        let window = put_window_frames(random, &mut answers);
        if !is_honest && random.one_in(4) {
            let (one, other) = (random.index(answers.len()), random.index(answers.len()));
            answers.swap(one, other);
        }
        let mut answer = answers.concat();
        if !is_honest {
            random.mutate(&mut answer);
        }
        if !is_honest && random.one_in(4) {
            let dropped = random.index(futures.len());
            drop(futures.remove(dropped));
        }
        node.write_all(&answer).expect("room for answers");
        if !is_honest {
            drop(node);
        }
        let mut turn_count = 0;
        while !futures.is_empty() {
            endpoint.poll_completions();
            futures.retain_mut(|future| match poll(future) {
                Poll::Pending => true,
                Poll::Ready(is_done) => {
                    assert!(is_done || !is_honest, "an honest answer");
                    false
                }
            });
            turn_count += 1;
            assert!(turn_count < 10_000_000, "a batch never ends");
        }
        while endpoint.in_flight_count() > 0 {
            endpoint.poll_completions();
            turn_count += 1;
            assert!(turn_count < 10_000_000, "something stays in flight");
        }
        if is_honest {
            endpoint.await_window(true);
            let mut seen = vec![0; WINDOW_SIZE_WORDS];
            while seen != window {
                endpoint.poll_completions();
                assert!(endpoint.read_window(0, &mut seen), "there is one");
                turn_count += 1;
                assert!(turn_count < 10_000_000, "words never come: {seen:x?}");
            }
        }
    });
}
