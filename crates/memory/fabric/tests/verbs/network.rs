//! What a bad network does to verbs. Whoever runs these tests makes the network bad before
//! (`guest/inside/netem`); the control connections are on another one.

use std::time::{Duration, Instant};

use farleaf_executor::block_on;
use farleaf_fabric::verbs::VerbsEndpoint;
use farleaf_fabric::{Batch, BatchError, BatchErrorKind, Control, Endpoint};
use farleaf_types::{NodeId, WordAddr};

use crate::node::Node;

/// What `netem` delays packets by, there and back.
const ROUND_TRIP: Duration = Duration::from_millis(2);
/// Timers of an emulated machine are late; two round trips are no less than this all the same.
const ONE_ROUND_TRIP_MAX: Duration = Duration::from_micros(3_900);
/// A peer that is cut off is given up in this time, half of the default of `answer_time_max`.
const LOSS_TIME_MAX: Duration = Duration::from_secs(5);

fn at(index: u64) -> WordAddr {
    WordAddr::new(NodeId(0), index)
}

fn execute(endpoint: &VerbsEndpoint, batch: &mut Batch) -> Result<(), BatchError> {
    block_on(endpoint.execute(batch), endpoint.completions())
}

/// The time of the fastest of many batches: a busy machine makes others slower.
fn fastest(endpoint: &VerbsEndpoint, post: fn(&mut Batch)) -> Duration {
    let times = (0..101).map(|_| {
        let mut batch = Batch::new();
        post(&mut batch);
        let begun = Instant::now();
        execute(endpoint, &mut batch).expect("a round trip");
        begun.elapsed()
    });
    times.min().expect("some")
}

/// Promise (F1): a batch is one round trip of the network, whatever is in it: a leaf's READ, a lock
/// with a READ, and the three WRITEs of a change with the READ behind them (K2).
pub(crate) fn delayed_batches_are_one_round_trip() {
    let node = Node::start();
    let client = node.client(None);
    let owner = client.register_session().expect("a session");
    let endpoint = client.endpoint(owner).expect("a queue pair");
    let get = fastest(&endpoint, |batch| {
        batch.read(at(64), 20);
    });
    let lock = fastest(&endpoint, |batch| {
        batch.compare_swap(at(63), 0, 0);
        batch.read(at(64), 20);
    });
    let change = fastest(&endpoint, |batch| {
        batch.write_word(at(70), 1);
        batch.write_word(at(64), 2);
        batch.write_word(at(63), 0);
    });
    println!("the fastest: READ {get:?}, CAS and READ {lock:?}, three WRITEs {change:?}");
    for time in [get, lock, change] {
        assert!(time >= ROUND_TRIP, "{time:?}: the network is not delayed");
        assert!(
            time < ONE_ROUND_TRIP_MAX,
            "{time:?} is more than a round trip"
        );
    }
}

/// Promise: lost packets are sent again by the cards; every verb takes effect once.
pub(crate) fn lossy_networks_lose_no_verb() {
    let node = Node::start();
    let client = node.client(None);
    let owner = client.register_session().expect("a session");
    let endpoint = client.endpoint(owner).expect("a queue pair");
    let rounds = 500;
    for round in 0..rounds {
        let mut batch = Batch::new();
        let add = batch.fetch_add(at(8), 1);
        batch.write(at(64), &[round; 600]);
        let read = batch.read(at(64), 600);
        execute(&endpoint, &mut batch).expect("sent again until it comes");
        assert_eq!(batch.previous(add), round);
        assert!(batch.words(read) == [round; 600], "round {round}");
    }
    assert_eq!(node.word(8), rounds);
}

/// Promise: a cable that is cut is noticed in the time that a node has to answer, as an unknown
/// outcome; what is posted later is refused at once.
pub(crate) fn cut_cables_are_noticed() {
    let node = Node::start();
    let client = node.client(None);
    let owner = client.register_session().expect("a session");
    let endpoint = client.endpoint(owner).expect("a queue pair");
    let begun = Instant::now();
    let mut last = Instant::now();
    let error = loop {
        let mut batch = Batch::new();
        batch.write_word(at(8), 1);
        match execute(&endpoint, &mut batch) {
            Ok(()) => last = Instant::now(),
            Err(error) => break error,
        }
        assert!(begun.elapsed() < LOSS_TIME_MAX, "nobody has cut the cable");
    };
    let noticed = last.elapsed();
    println!("noticed {noticed:?} after the last answer: {error}");
    assert!(noticed < LOSS_TIME_MAX, "{noticed:?}");
    assert!(
        matches!(error.kind(), BatchErrorKind::Unknown { .. }),
        "{error}"
    );
    let begun = Instant::now();
    let mut batch = Batch::new();
    batch.read(at(8), 1);
    let error = execute(&endpoint, &mut batch).expect_err("it stays lost");
    let is_over = matches!(error.kind(), BatchErrorKind::Unreachable { .. });
    assert!(
        is_over && begun.elapsed() < Duration::from_millis(100),
        "{error}"
    );
}
