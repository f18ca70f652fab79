//! Nodes that do not know the secret, or that send invalid replies: reactions of clients.

use std::net::TcpListener;
use std::thread::JoinHandle;
use std::time::Duration;

use farleaf_fabric::tcp::{TcpClient, TcpConnectOptions};
use farleaf_fabric::{Batch, BatchErrorKind, ControlError};

use super::raw::{
    ADMIN, DONE, FENCED, FORBIDDEN, MAGIC, MALFORMED, Message, OUT_OF_REGION, Raw, SKIPPED, bytes,
    greeting, key_of, message, node_proof, proof,
};
use super::{at, execute};
use crate::network::{SECRET, secret};

const REGION_SIZE_BYTES: u64 = 1 << 30;

/// A node with one client, whose messages the test determines.
struct FakeNode {
    address: String,
    thread: Option<JoinHandle<()>>,
}

impl FakeNode {
    fn start(speak: impl FnOnce(&TcpListener) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let thread = std::thread::spawn(move || speak(&listener));
        Self {
            address,
            thread: Some(thread),
        }
    }

    /// Returns a node that greets correctly, answers the first frame of its data connection with
    /// these bytes, and closes the connection.
    fn answering(answer: Vec<u8>) -> Self {
        Self::start(move |listener| {
            let mut control = accept(listener);
            welcome(&mut control);
            let mut data = accept(listener);
            welcome(&mut data);
            data.receive_frame().expect("a question");
            data.send(&answer);
            data.0
                .shutdown(std::net::Shutdown::Write)
                .expect("connected");
            data.wait_for_end();
        })
    }

    fn connect(&self, answer_time_max: Duration) -> Result<TcpClient, ControlError> {
        let options = TcpConnectOptions {
            secret: Some(secret()),
            answer_time_max,
            ..TcpConnectOptions::default()
        };
        TcpClient::connect(&self.address, &options)
    }
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        let ended = self.thread.take().expect("dropped once").join();
        if !std::thread::panicking() {
            ended.expect("the fake node panicked");
        }
    }
}

fn accept(listener: &TcpListener) -> Raw {
    let (socket, _) = listener.accept().expect("a client");
    let limit = Some(Duration::from_mins(1));
    socket.set_read_timeout(limit).expect("a socket");
    Raw(socket)
}

/// Receives a greeting up to the proof; returns the hello, the challenge sent, and the proof.
fn challenge(raw: &mut Raw) -> (Message, Message, Message) {
    let hello = raw.receive().expect("a hello");
    let challenge = greeting(2, 0, &[0xC4; 32], &[]);
    let proven = raw.ask(&challenge);
    (hello, challenge, proven)
}

/// Returns the details of a welcome.
fn details() -> [u8; 80] {
    let mut details = [0; 80];
    details[..8].copy_from_slice(&REGION_SIZE_BYTES.to_le_bytes());
    details
}

fn welcome_with(proof: &[u8]) -> Message {
    greeting(4, 0, proof, &details())
}

/// Greets a client as a node that knows the secret.
fn welcome(raw: &mut Raw) {
    let (hello, challenge, proven) = challenge(raw);
    let key = key_of(SECRET, ADMIN);
    assert_eq!(proven[16..48], proof(&key, &hello, &challenge));
    raw.send(&welcome_with(&node_proof(
        &key,
        &details(),
        &hello,
        &challenge,
    )));
}

/// Promise: a client accepts only a node that proves the secret. It refuses nodes with another
/// secret, those that return the client's own proof, and those that request no proof.
#[test]
fn a_node_without_the_secret_is_refused() {
    type Answer = fn(&Message, &Message, &Message) -> Message;
    let liars: [Answer; 4] = [
        |hello, challenge, _| {
            let key = key_of("the secret of some other pool", ADMIN);
            welcome_with(&node_proof(&key, &details(), hello, challenge))
        },
        |_, _, proven| welcome_with(&proven[16..48]),
        |_, _, _| welcome_with(&[0; 32]),
        // A welcome that was changed on its way.
        |hello, challenge, _| {
            let key = key_of(SECRET, ADMIN);
            let mut welcome = welcome_with(&node_proof(&key, &details(), hello, challenge));
            welcome[48] ^= 1;
            welcome
        },
    ];
    for liar in liars {
        let node = FakeNode::start(move |listener| {
            let mut raw = accept(listener);
            let (hello, challenge, proven) = challenge(&mut raw);
            raw.send(&liar(&hello, &challenge, &proven));
            assert_eq!(raw.receive(), None, "it is told nothing more");
        });
        let error = node.connect(Duration::from_mins(1)).expect_err("a liar");
        assert!(matches!(error, ControlError::Malformed { .. }), "{error:?}");
        assert!(error.to_string().contains("different secret"), "{error}");
    }
    let node = FakeNode::start(|listener| {
        let mut raw = accept(listener);
        raw.receive().expect("a hello");
        raw.send(&welcome_with(&[0; 32]));
        assert_eq!(raw.receive(), None, "no proof is sent");
    });
    let error = node.connect(Duration::from_mins(1)).expect_err("a liar");
    assert!(error.to_string().contains("out of order"), "{error}");
}

/// Promise: an invalid reply, and a missing one, return typed errors.
#[test]
fn answers_that_are_none_are_errors() {
    let refused = greeting(0, u32::MAX, &[], &[0xFF; 208]);
    let cases: [(Vec<u8>, &str); 6] = [
        (message(&[MAGIC + 1, 1]).to_vec(), "version 6"),
        (vec![b'x'; 256], "not in Farleaf's protocol"),
        (message(&[MAGIC, 99]).to_vec(), "unknown type"),
        (refused.to_vec(), "a refusal without a valid text"),
        (Vec::new(), "cannot be reached"),
        (message(&[MAGIC, 2])[..255].to_vec(), "cannot be reached"),
    ];
    for (answer, said) in cases {
        let node = FakeNode::start(move |listener| {
            let mut raw = accept(listener);
            raw.receive().expect("a hello");
            raw.send(&answer);
        });
        let error = node.connect(Duration::from_mins(1)).expect_err("no node");
        assert!(error.to_string().contains(said), "{error}");
    }
    let node = FakeNode::start(|listener| accept(listener).wait_for_end());
    let error = node
        .connect(Duration::from_millis(100))
        .expect_err("silent");
    assert!(matches!(error, ControlError::Silent { .. }), "{error:?}");
}

fn header(size_words: u64, executed_verb_count: u64, status: u64) -> u64 {
    size_words | executed_verb_count << 32 | status << 48
}

/// Returns the outcome of a batch of a READ of 2 words and a FAA that gets this reply.
fn outcome_of(answer: Vec<u8>) -> Result<Vec<u64>, BatchErrorKind> {
    let node = FakeNode::answering(answer);
    let client = node.connect(Duration::from_mins(1)).expect("it greets");
    let endpoint = client.endpoint(None).expect("it greets");
    let mut batch = Batch::new();
    let seen = batch.read(at(10), 2);
    let added = batch.fetch_add(at(20), 1);
    let done = execute(&endpoint, &mut batch);
    done.map_err(|error| error.kind().clone())?;
    Ok([batch.words(seen), &[batch.previous(added)]].concat())
}

/// Promise (FABRIC-5): a reply that does not fit its batch is an unknown outcome, never a success
/// with invented words.
#[test]
fn a_batch_is_done_only_when_its_answer_fits() {
    let good = bytes(&[header(5, 2, DONE), 0, 7, 8, 9]);
    assert_eq!(outcome_of(good.clone()), Ok(vec![7, 8, 9]));
    let cases: [(&str, Vec<u8>); 14] = [
        ("too few words", bytes(&[header(4, 2, DONE), 0, 7, 8])),
        ("too many", bytes(&[header(6, 2, DONE), 0, 7, 8, 9, 10])),
        ("no words", bytes(&[header(2, 2, DONE), 0])),
        ("too few verbs", bytes(&[header(4, 1, DONE), 0, 7, 8])),
        ("no verbs", bytes(&[header(2, 0, DONE), 0])),
        ("too many verbs", bytes(&[header(5, 3, DONE), 0, 7, 8, 9])),
        (
            "refused and done",
            bytes(&[header(5, 2, OUT_OF_REGION), 0, 7, 8, 9]),
        ),
        ("fenced half way", bytes(&[header(4, 1, FENCED), 0, 7, 8])),
        ("skipped", bytes(&[header(2, 0, SKIPPED), 0])),
        ("malformed", bytes(&[header(2, 0, MALFORMED), 0])),
        ("no status", bytes(&[header(5, 2, 6), 0, 7, 8, 9])),
        ("another tag", bytes(&[header(5, 2, DONE), 1, 7, 8, 9])),
        ("an impossible size", bytes(&[header(1 << 20, 2, DONE), 0])),
        ("half of it", good[..good.len() - 1].to_vec()),
    ];
    for (what, answer) in cases {
        let outcome = outcome_of(answer);
        let is_unknown = matches!(outcome, Err(BatchErrorKind::Unknown { .. }));
        assert!(is_unknown, "{what}: {outcome:?}");
    }
    let fenced = outcome_of(bytes(&[header(2, 0, FENCED), 0]));
    assert_eq!(fenced, Err(BatchErrorKind::Fenced));
    let forbidden = outcome_of(bytes(&[header(4, 1, FORBIDDEN), 0, 7, 8]));
    assert!(matches!(forbidden, Err(BatchErrorKind::Forbidden { .. })));
}

/// Promise (FABRIC-5, FABRIC-7): if only the first piece of a large WRITE was executed, the error
/// does not claim that nothing changed.
#[test]
fn half_a_large_write_is_an_unknown_outcome() {
    for status in [OUT_OF_REGION, FORBIDDEN, FENCED] {
        let node = FakeNode::answering(bytes(&[header(2, 1, DONE), 0, header(2, 0, status), 0]));
        let client = node.connect(Duration::from_mins(1)).expect("it greets");
        let endpoint = client.endpoint(None).expect("it greets");
        let mut batch = Batch::new();
        batch.write(at(0), &vec![1; 1 << 16]);
        let error = execute(&endpoint, &mut batch).expect_err("half of it");
        let kind = error.kind();
        assert!(matches!(kind, BatchErrorKind::Unknown { .. }), "{kind:?}");
        assert_eq!(error.executed_verb_count(), 0);
    }
}

/// Promise: after a reply that announces the end of a connection, the client posts nothing, even
/// before the end arrives. The next batch has no effect and reports that. (Regression: it had an
/// unknown outcome.)
#[test]
fn nothing_is_posted_after_the_last_answer() {
    for status in [FENCED, MALFORMED] {
        let node = FakeNode::start(move |listener| {
            let mut control = accept(listener);
            welcome(&mut control);
            let mut data = accept(listener);
            welcome(&mut data);
            data.receive_frame().expect("a question");
            data.send(&bytes(&[header(2, 0, status), 0]));
            assert!(data.receive_frame().is_none(), "it was told");
        });
        let client = node.connect(Duration::from_secs(10)).expect("it greets");
        let endpoint = client.endpoint(None).expect("it greets");
        let mut batch = Batch::new();
        batch.fetch_add(at(20), 1);
        execute(&endpoint, &mut batch).expect_err("the last answer");
        let error = execute(&endpoint, &mut batch).expect_err("it is over");
        let kind = error.kind();
        assert!(
            matches!(kind, BatchErrorKind::Unreachable { .. }),
            "{kind:?}"
        );
    }
}

/// Promise: a repeated reply is not accepted for the next batch.
#[test]
fn an_answer_that_comes_twice_ends_the_connection() {
    let good = [header(5, 2, DONE), 0, 7, 8, 9];
    let outcome = outcome_of(bytes(&[good, good].concat()));
    // The first reply was correct, but nothing else that such a node sends is trusted.
    let Err(BatchErrorKind::Unknown { reason }) = outcome else {
        assert_eq!(outcome, Ok(vec![7, 8, 9]));
        return;
    };
    assert!(reason.contains("a reply to no request"), "{reason}");
}

/// Promise: a node that stops in the middle of a reply is lost after the configured time, and not
/// waited for without end.
#[test]
fn half_an_answer_and_silence() {
    let node = FakeNode::start(|listener| {
        let mut control = accept(listener);
        welcome(&mut control);
        let mut data = accept(listener);
        welcome(&mut data);
        data.receive_frame().expect("a question");
        data.send(&bytes(&[header(5, 2, DONE), 0, 7]));
        data.wait_for_end();
    });
    let client = node.connect(Duration::from_millis(200)).expect("it greets");
    let endpoint = client.endpoint(None).expect("it greets");
    let mut batch = Batch::new();
    batch.read(at(10), 3);
    let error = execute(&endpoint, &mut batch).expect_err("half an answer");
    assert!(
        error
            .to_string()
            .contains("no reply from the memory node for 0.2 s"),
        "{error}"
    );
    let error = execute(&endpoint, &mut batch).expect_err("lost");
    assert!(matches!(error.kind(), BatchErrorKind::Unreachable { .. }));
}
