//! Tests of FABRIC-6: the end of sessions and nodes, and its notification.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use farleaf_base::{NodeId, OwnerWord, WordAddr};
use farleaf_executor::block_on;
use farleaf_fabric::verbs::{VerbsClient, VerbsEndpoint};
use farleaf_fabric::{Batch, BatchError, BatchErrorKind, Control, Endpoint, SessionLife};

use crate::node::Node;

/// Time limit for noticing that a node is gone or has ended the session: the connection beside the
/// queue pair announces it.
const NOTICE_TIME_MAX: Duration = Duration::from_secs(1);
const COUNTER: usize = 500;

fn write(endpoint: &VerbsEndpoint, word: u64) -> Result<(), BatchError> {
    let mut batch = Batch::new();
    batch.write_word(WordAddr::new(NodeId(0), COUNTER as u64), word);
    block_on(endpoint.execute(&mut batch), endpoint.completions())
}

fn session(client: &VerbsClient) -> (OwnerWord, VerbsEndpoint) {
    let owner = client.register_session().expect("a session");
    (owner, client.endpoint(owner).expect("a queue pair"))
}

/// Writes increasing numbers until that fails; then fails once more at once.
fn write_until_lost(endpoint: &VerbsEndpoint) -> [BatchError; 2] {
    let first = (1..).find_map(|word| write(endpoint, word).err());
    let second = write(endpoint, u64::MAX).expect_err("it stays lost");
    assert_eq!(endpoint.in_flight_count(), 0, "it has drained");
    [first.expect("it was lost"), second]
}

/// Checks that the written word does not change any more.
fn assert_still(node: &Node) -> u64 {
    let word = node.word(COUNTER);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(node.word(COUNTER), word, "a verb after fencing");
    word
}

/// Promise (FABRIC-6): after `fence_session` has returned, no verb of the session takes effect,
/// although it writes all the time. The session soon gets an error.
pub(crate) fn a_fenced_session_does_nothing_more() {
    let node = Node::start();
    let (writer, operator) = (node.client(None), node.client(None));
    let (owner, endpoint) = session(&writer);
    let is_told = AtomicBool::new(false);
    let is_told = &is_told;
    std::thread::scope(|scope| {
        let writing = scope.spawn(move || {
            let errors = write_until_lost(&endpoint);
            is_told.store(true, Ordering::SeqCst);
            errors
        });
        while node.word(COUNTER) < 100 {
            std::thread::yield_now();
        }
        operator.fence_session(owner, &mut |_| {}).expect("fenced");
        let fenced = Instant::now();
        assert!(assert_still(&node) >= 100);
        while !is_told.load(Ordering::SeqCst) {
            assert!(fenced.elapsed() < NOTICE_TIME_MAX, "it has not been told");
            std::thread::yield_now();
        }
        let [first, second] = writing.join().expect("it fails and ends");
        let is_open = matches!(
            first.kind(),
            BatchErrorKind::Unknown { .. } | BatchErrorKind::Fenced
        );
        assert!(is_open, "{first}");
        assert_eq!(*second.kind(), BatchErrorKind::Fenced);
    });
    let life = operator.session_life(owner).expect("an answer");
    assert_eq!(life, SessionLife::Fenced);
    let error = writer
        .endpoint(owner)
        .expect_err("there is no such session");
    assert!(
        error.to_string().contains("not a session of this client"),
        "{error}"
    );
}

/// Promise (FABRIC-6): a closed session that continues to post gets `Fenced`, and none of its verbs
/// takes effect.
pub(crate) fn a_closed_session_is_fenced() {
    let node = Node::start();
    let client = node.client(None);
    let (owner, endpoint) = session(&client);
    write(&endpoint, 7).expect("it is open");
    client.close_session(owner).expect("its own");
    std::thread::sleep(Duration::from_millis(100));
    let error = write(&endpoint, 8).expect_err("it is closed");
    assert_eq!(*error.kind(), BatchErrorKind::Fenced);
    assert_eq!(assert_still(&node), 7);
}

/// Promise: if a node stops, clients with verbs in flight soon get a typed error.
pub(crate) fn a_node_that_stops_is_noticed() {
    let node = Node::start();
    let client = node.client(None);
    let (_, endpoint) = session(&client);
    std::thread::scope(|scope| {
        let writing = scope.spawn(move || {
            let errors = write_until_lost(&endpoint);
            (errors, Instant::now())
        });
        while node.word(COUNTER) < 100 {
            std::thread::yield_now();
        }
        let stopped = Instant::now();
        drop(node);
        let ([first, second], noticed_at) = writing.join().expect("it fails and ends");
        assert!(noticed_at.duration_since(stopped) < NOTICE_TIME_MAX);
        let is_unknown = matches!(first.kind(), BatchErrorKind::Unknown { .. });
        assert!(
            is_unknown || *first.kind() == BatchErrorKind::Fenced,
            "{first}"
        );
        let is_over = matches!(
            second.kind(),
            BatchErrorKind::Unreachable { .. } | BatchErrorKind::Fenced
        );
        assert!(is_over, "{second}");
    });
    client.register_session().expect_err("nobody is there");
}

/// Promise (FABRIC-6): the end of a control connection ends its sessions and their queue pairs,
/// even if the process continues to post.
pub(crate) fn a_client_that_goes_takes_its_queue_pairs_along() {
    let node = Node::start();
    let (client, other) = (node.client(None), node.client(None));
    let (owner, endpoint) = session(&client);
    std::thread::scope(|scope| {
        let writing = scope.spawn(move || write_until_lost(&endpoint));
        while node.word(COUNTER) < 100 {
            std::thread::yield_now();
        }
        client.give_up();
        let started = Instant::now();
        while other.session_life(owner).expect("an answer") != SessionLife::Fenced {
            assert!(started.elapsed() < NOTICE_TIME_MAX, "not fenced");
            std::thread::yield_now();
        }
        assert_still(&node);
        let [_, second] = writing.join().expect("it fails and ends");
        assert_eq!(*second.kind(), BatchErrorKind::Fenced);
    });
    let (_, endpoint) = session(&other);
    write(&endpoint, 1).expect("others go on");
}
