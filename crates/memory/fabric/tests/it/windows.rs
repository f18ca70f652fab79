//! A node's writes into windows of sessions (FABRIC-10).

use std::time::{Duration, Instant};

use farleaf_base::{NodeId, WordAddr};
use farleaf_executor::block_on;
use farleaf_fabric::{Batch, Control, Endpoint, Windows};

use crate::network::NetworkNode;

const WINDOW_SIZE_WORDS: usize = 256;
/// Number of rounds, with so much data that at most half of it can wait for a peer.
const ROUND_COUNT: u64 = 250;

fn at(index: u64) -> WordAddr {
    WordAddr::new(NodeId(0), index)
}

/// Executes a batch, so that the node learns the session's connection.
fn introduce(endpoint: &impl Endpoint) {
    let mut batch = Batch::new();
    batch.read(at(0), 1);
    let done = block_on(endpoint.execute(&mut batch), || endpoint.poll_completions());
    done.expect("the node answers");
}

/// Polls until a word of the window has this value.
fn wait_for(endpoint: &impl Endpoint, index: u64, expected: u64) {
    let started = Instant::now();
    let mut word = [0];
    while word[0] != expected {
        endpoint.poll_completions();
        assert!(endpoint.read_window(index, &mut word), "it is inside");
        let is_late = started.elapsed() > Duration::from_secs(20);
        assert!(!is_late, "{word:?} for {expected}");
    }
}

/// Promise (FABRIC-10, FABRIC-2): writes of a node's threads into a session's window arrive, each
/// batch in order, between replies to batches. No other window changes, and writes to a
/// disconnected session are lost without an error.
#[test]
fn words_arrive_in_their_order() {
    let node = NetworkNode::start();
    let client = node.client();
    let owners = [(); 2].map(|()| client.register_session().expect("room"));
    let endpoints = owners.map(|owner| client.endpoint(Some(owner)).expect("it listens"));
    for endpoint in &endpoints {
        assert!(!endpoint.read_window(0, &mut [0]), "there is none yet");
        assert!(endpoint.open_window(WINDOW_SIZE_WORDS));
        endpoint.await_window(true);
        introduce(endpoint);
    }
    let (windows, owner) = (&node.windows, owners[0]);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut batch = Batch::new();
            for round in 1..=ROUND_COUNT {
                batch.clear();
                batch.write(at(1), &[round; WINDOW_SIZE_WORDS - 1]);
                batch.write_word(at(0), round);
                windows.write(owner, &mut batch);
            }
        });
        let (mut words, mut last) = ([0; WINDOW_SIZE_WORDS], 0);
        let started = Instant::now();
        while last < ROUND_COUNT {
            // Its replies arrive on the same connection.
            let mut batch = Batch::new();
            let added = batch.fetch_add(at(5000), 1);
            let done = block_on(endpoints[0].execute(&mut batch), || {
                endpoints[0].poll_completions()
            });
            done.expect("the node answers");
            assert!(batch.previous(added) < 1 << 32);
            assert!(endpoints[0].read_window(0, &mut words));
            let rest = &words[1..];
            assert!(
                words[0] >= last && rest[0] >= words[0],
                "{words:?} after {last}"
            );
            assert!(rest.iter().all(|word| *word == rest[0]), "{words:?}");
            last = words[0];
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "{last} of {ROUND_COUNT}"
            );
        }
    });
    assert!(!endpoints[0].read_window(WINDOW_SIZE_WORDS as u64 - 1, &mut [0; 2]));
    let mut untouched = [1; WINDOW_SIZE_WORDS];
    assert!(endpoints[1].read_window(0, &mut untouched));
    assert_eq!(untouched, [0; WINDOW_SIZE_WORDS]);
    let [_gone, other] = endpoints;
    client.close_session(owners[0]).expect("it is there");
    let mut batch = Batch::new();
    batch.write_word(at(0), 7);
    windows.write(owners[0], &mut batch);
    windows.write(owners[1], &mut batch);
    wait_for(&other, 0, 7);
}

/// Promise: a session that fetches nothing is disconnected before much data waits for it.
#[test]
fn who_fetches_nothing_is_hung_up_on() {
    let node = NetworkNode::start();
    let client = node.client();
    let owner = client.register_session().expect("room");
    let endpoint = client.endpoint(Some(owner)).expect("it listens");
    assert!(endpoint.open_window(WINDOW_SIZE_WORDS));
    introduce(&endpoint);
    let mut batch = Batch::new();
    // Far more than sockets hold.
    for _ in 0..100_000 {
        batch.clear();
        batch.write(at(0), &[9; WINDOW_SIZE_WORDS]);
        node.windows.write(owner, &mut batch);
    }
    let started = Instant::now();
    loop {
        let mut batch = Batch::new();
        batch.read(at(0), 1);
        let done = block_on(endpoint.execute(&mut batch), || endpoint.poll_completions());
        if done.is_err() {
            break;
        }
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "it still listens"
        );
    }
}
