//! Effects of an impaired network on verbs. The caller of these tests impairs the network before
//! (`guest/inside/netem`); the control connections use another one.

use std::time::{Duration, Instant};

use farleaf_base::{NodeId, WordAddr};
use farleaf_executor::block_on;
use farleaf_fabric::verbs::VerbsEndpoint;
use farleaf_fabric::{Batch, BatchError, BatchErrorKind, Control, Endpoint};

use crate::node::Node;

/// Delay that `netem` adds to a round trip.
const ROUND_TRIP: Duration = Duration::from_millis(2);
/// Upper limit for one round trip: timers of an emulated machine are late, but two round trips
/// still take longer.
const ONE_ROUND_TRIP_MAX: Duration = Duration::from_micros(3_900);
/// Time in which a peer that is cut off is given up: half of the default `answer_time_max`.
const LOSS_TIME_MAX: Duration = Duration::from_secs(5);

fn at(index: u64) -> WordAddr {
    WordAddr::new(NodeId(0), index)
}

fn execute(endpoint: &VerbsEndpoint, batch: &mut Batch) -> Result<(), BatchError> {
    block_on(endpoint.execute(batch), endpoint.completions())
}

/// Returns the time of the fastest of many batches, because a busy machine delays others.
fn fastest(endpoint: &VerbsEndpoint, post: fn(&mut Batch)) -> Duration {
    let times = (0..101).map(|_| {
        let mut batch = Batch::new();
        post(&mut batch);
        let started = Instant::now();
        execute(endpoint, &mut batch).expect("a round trip");
        started.elapsed()
    });
    times.min().expect("some")
}

/// Promise (FABRIC-1): a batch is one round trip of the network, whatever its verbs are: a leaf's
/// READ, a lock with a READ, and the three WRITEs of a change with the final READ.
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

/// Promise: the cards retransmit lost packets; every verb takes effect once.
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

/// Promise: a cut cable is noticed within the time that a node has for a reply, as an unknown
/// outcome; later batches are refused at once.
pub(crate) fn cut_cables_are_noticed() {
    let node = Node::start();
    let client = node.client(None);
    let owner = client.register_session().expect("a session");
    let endpoint = client.endpoint(owner).expect("a queue pair");
    let started = Instant::now();
    let mut last = Instant::now();
    let error = loop {
        let mut batch = Batch::new();
        batch.write_word(at(8), 1);
        match execute(&endpoint, &mut batch) {
            Ok(()) => last = Instant::now(),
            Err(error) => break error,
        }
        assert!(
            started.elapsed() < LOSS_TIME_MAX,
            "nobody has cut the cable"
        );
    };
    let noticed = last.elapsed();
    println!("noticed {noticed:?} after the last answer: {error}");
    assert!(noticed < LOSS_TIME_MAX, "{noticed:?}");
    assert!(
        matches!(error.kind(), BatchErrorKind::Unknown { .. }),
        "{error}"
    );
    let started = Instant::now();
    let mut batch = Batch::new();
    batch.read(at(8), 1);
    let error = execute(&endpoint, &mut batch).expect_err("it stays lost");
    let is_over = matches!(error.kind(), BatchErrorKind::Unreachable { .. });
    assert!(
        is_over && started.elapsed() < Duration::from_millis(100),
        "{error}"
    );
}
