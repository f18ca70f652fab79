//! More verbs than a queue pair has space for, and dropped futures.

use std::future::Future as _;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use farleaf_base::{NodeId, WordAddr};
use farleaf_executor::{Executor, block_on};
use farleaf_fabric::verbs::VerbsEndpoint;
use farleaf_fabric::{Batch, Control, Endpoint};

use crate::node::Node;

fn at(index: u64) -> WordAddr {
    WordAddr::new(NodeId(0), index)
}

fn endpoint(node: &Node) -> VerbsEndpoint {
    let client = node.client(None);
    let owner = client.register_session().expect("a session");
    let endpoint = client.endpoint(owner).expect("a queue pair");
    // The process's connection must outlive its sessions' queue pairs.
    std::mem::forget(client);
    endpoint
}

/// Promise: a batch of more verbs than the send queue holds is posted in parts, in order, and
/// counts as one round trip.
pub(crate) fn long_batches_are_posted_in_parts() {
    let node = Node::start();
    let endpoint = endpoint(&node);
    let mut batch = Batch::new();
    let count = 5_000;
    for round in 0..count {
        batch.write_word(at(1000 + round % 16), round);
    }
    let add = batch.fetch_add(at(1000 + (count - 1) % 16), 7);
    batch.fence();
    let slots: Vec<_> = (0..16)
        .map(|place| batch.read(at(1000 + place), 1))
        .collect();
    block_on(endpoint.execute(&mut batch), endpoint.completions()).expect("one round trip");
    assert_eq!(batch.previous(add), count - 1);
    assert_eq!(batch.cost().round_trips, 1);
    assert_eq!(batch.cost().doorbells, 1);
    let largest = slots.iter().map(|slot| batch.words(*slot)[0]).max();
    assert_eq!(largest, Some(count - 1 + 7));
}

/// Promise: many concurrent batches share a queue pair, whatever their sizes, and each gets its own
/// results.
pub(crate) fn many_batches_share_a_queue_pair() {
    let node = Node::start();
    let endpoint = Rc::new(endpoint(&node));
    let executor = Executor::new();
    for (index, size) in [1_u64, 40, 300, 35_000, 3, 128, 20].into_iter().enumerate() {
        let endpoint = Rc::clone(&endpoint);
        let place = at(index as u64 * 36_000 + 1000);
        drop(executor.spawn(async move {
            for turn in 0..20_u64 {
                let mut batch = Batch::new();
                let words: Vec<u64> = (0..size).map(|word| word ^ turn << 32).collect();
                batch.write(place, &words);
                let read = batch.read(place, size as usize);
                endpoint.execute(&mut batch).await.expect("a round trip");
                assert!(batch.words(read) == words, "another's words");
            }
        }));
    }
    executor.drain(endpoint.completions());
    assert_eq!(endpoint.in_flight_count(), 0);
}

/// Promise: verbs of dropped futures take effect, and their memory is reused only after that.
pub(crate) fn dropped_futures_are_detached() {
    let node = Node::start();
    let endpoint = endpoint(&node);
    for round in 1..=50_u64 {
        let mut batch = Batch::new();
        batch.write(at(64), &[round; 200]);
        batch.read(at(64), 200);
        {
            let mut dropped = pin!(endpoint.execute(&mut batch));
            let polled = dropped
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending(), "nothing has been polled for");
        }
        assert!(endpoint.in_flight_count() > 0);
        let mut check = Batch::new();
        let read = check.read(at(64), 200);
        block_on(endpoint.execute(&mut check), endpoint.completions()).expect("a round trip");
        assert_eq!(check.words(read), [round; 200], "one queue pair, one order");
    }
    while endpoint.in_flight_count() > 0 {
        endpoint.poll_completions();
    }
}
