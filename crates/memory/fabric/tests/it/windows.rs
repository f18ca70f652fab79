//! What a node writes into memory of sessions (F10).

use std::time::{Duration, Instant};

use farleaf_executor::block_on;
use farleaf_fabric::{Batch, Control, Endpoint, Windows};
use farleaf_types::{NodeId, WordAddr};

use crate::network::NetworkNode;

const WINDOW_SIZE_WORDS: usize = 256;
/// Of so much data that less than half of it waits for a peer at the most.
const ROUND_COUNT: u64 = 250;

fn at(index: u64) -> WordAddr {
    WordAddr::new(NodeId(0), index)
}

/// The node knows a session's way once it has executed something that came over it.
fn introduce(endpoint: &impl Endpoint) {
    let mut batch = Batch::new();
    batch.read(at(0), 1);
    let done = block_on(endpoint.execute(&mut batch), || endpoint.poll_completions());
    done.expect("the node answers");
}

/// Polls until a word of the window is this.
fn wait_for(endpoint: &impl Endpoint, index: u64, expected: u64) {
    let begun = Instant::now();
    let mut word = [0];
    while word[0] != expected {
        endpoint.poll_completions();
        assert!(endpoint.read_window(index, &mut word), "it is inside");
        let is_late = begun.elapsed() > Duration::from_secs(20);
        assert!(!is_late, "{word:?} for {expected}");
    }
}

/// Promise (F10, F2): what a node's threads write into a session's window arrives, each batch in
/// its order, between the answers to batches, and nobody else's window changes. Who has hung up is
/// written to in vain.
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
    let (doors, owner) = (&node.doors, owners[0]);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut batch = Batch::new();
            for round in 1..=ROUND_COUNT {
                batch.clear();
                batch.write(at(1), &[round; WINDOW_SIZE_WORDS - 1]);
                batch.write_word(at(0), round);
                doors.write(owner, &mut batch);
            }
        });
        let (mut words, mut last) = ([0; WINDOW_SIZE_WORDS], 0);
        let begun = Instant::now();
        while last < ROUND_COUNT {
            // Its answers come the same way.
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
                begun.elapsed() < Duration::from_secs(20),
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
    doors.write(owners[0], &mut batch);
    doors.write(owners[1], &mut batch);
    wait_for(&other, 0, 7);
}

/// Promise: a session that fetches nothing is hung up on before much waits for it.
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
        node.doors.write(owner, &mut batch);
    }
    let begun = Instant::now();
    loop {
        let mut batch = Batch::new();
        batch.read(at(0), 1);
        let done = block_on(endpoint.execute(&mut batch), || endpoint.poll_completions());
        if done.is_err() {
            break;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "it still listens"
        );
    }
}
