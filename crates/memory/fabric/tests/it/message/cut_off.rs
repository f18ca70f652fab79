//! Calls that are dropped, and callers that are broken by that.

use core::cell::Cell;
use core::future::poll_fn;
use core::task::Poll;

use farleaf_base::NodeId;
use farleaf_executor::{TaskSet, block_on};
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_fabric::message::{CallError, Caller};
use farleaf_fabric::{Batch, BatchError, Counters, Endpoint};

use crate::message::sides::{Sides, bytes};

const NEVER: fn() -> bool = || false;

/// Promise: calls dropped while they wait for their reply leak nothing. When the reply arrives,
/// their space is reused, and the rest of a long reply is dropped.
#[test]
fn what_is_dropped_leaves_its_space_to_others() {
    let sides = Sides::new(8, 8);
    let (caller, mut mailbox) = (sides.caller(), sides.mailbox());
    for round in 0..100_u64 {
        let mut batches = [Batch::new(), Batch::new(), Batch::new()];
        let mut replies = [const { Vec::new() }; 3];
        let (payload, mut set) = (bytes(round, 100), TaskSet::with_capacity(3));
        for (batch, reply) in batches.iter_mut().zip(&mut replies) {
            let call = caller.call(batch, &payload, 100, reply, NEVER);
            assert!(matches!(set.spawn(call), Ok(None)), "there is room");
        }
        drop(set);
        let mut held = Vec::new();
        while let Some(request) = sides.next(&mut mailbox) {
            assert_eq!(request.payload, payload, "round {round}");
            held.push(request);
        }
        assert_eq!(held.len(), 3, "round {round}");
        for (number, request) in held.into_iter().enumerate() {
            let size_bytes = if number == 1 { 10_000 } else { 100 };
            sides.reply(mailbox.replies(), request, &bytes(round, size_bytes));
        }
        // The next request states that the reply is no longer awaited.
        assert_eq!(mailbox.replies().kept_size_bytes(), 10_000);
    }
}

/// Promise: a long reply to a dropped call is not kept, even if it is served only after the next
/// request has stated that it is not awaited.
#[test]
fn a_late_reply_that_nobody_waits_for_is_not_kept() {
    let sides = Sides::new(8, 8);
    let (caller, mut mailbox) = (sides.caller(), sides.mailbox());
    let (mut batch, mut reply) = (Batch::new(), Vec::new());
    let mut set = TaskSet::with_capacity(1);
    let call = caller.call(&mut batch, b"dropped", 8, &mut reply, NEVER);
    assert!(matches!(set.spawn(call), Ok(None)));
    drop(set);
    let dropped = sides.next(&mut mailbox).expect("it is there");
    let mut set = TaskSet::with_capacity(1);
    let call = caller.call(&mut batch, b"next", 8, &mut reply, NEVER);
    assert!(matches!(set.spawn(call), Ok(None)));
    let next = sides.next(&mut mailbox).expect("it is there");
    sides.reply(mailbox.replies(), dropped, &[1; 10_000]);
    assert_eq!(mailbox.replies().kept_size_bytes(), 0);
    sides.reply(mailbox.replies(), next, b"here");
    set.drain(|| 0, |outcome| assert!(outcome.is_ok()));
    drop(set);
    assert_eq!(reply, b"here");
}

/// Promise: a call waits if there is no space, and a later one does not overtake it, even if it
/// would fit.
#[test]
fn calls_wait_their_turn() {
    let sides = Sides::new(4, 64);
    let (caller, mut mailbox) = (sides.caller(), sides.mailbox());
    let mut set = TaskSet::with_capacity(5);
    let sizes = [104, 104, 104, 200, 50];
    let ask = async |size: usize| {
        let (mut batch, mut reply) = (Batch::new(), Vec::new());
        let request = vec![0; size];
        let call = caller.call(&mut batch, &request, 8, &mut reply, NEVER);
        call.await.expect("nothing fails");
        size
    };
    for size in sizes {
        assert!(matches!(set.spawn(ask(size)), Ok(None)), "it waits");
    }
    let (mut served, mut order) = (Vec::new(), Vec::new());
    while order.len() < sizes.len() {
        set.run_ready(|size| order.push(size));
        if let Some(request) = sides.next(&mut mailbox) {
            served.push(request.payload.len());
            sides.reply(mailbox.replies(), request, b"done");
        }
    }
    assert_eq!(served, sizes);
}

/// Endpoint whose batches can be delayed without limit.
struct Slow {
    inner: MappedEndpoint,
    is_held: Cell<bool>,
}

impl Endpoint for Slow {
    async fn execute<'a>(&'a self, batch: &'a mut Batch) -> Result<(), BatchError> {
        let let_go = poll_fn(|_| {
            if self.is_held.get() {
                return Poll::Pending;
            }
            Poll::Ready(())
        });
        let_go.await;
        self.inner.execute(batch).await
    }

    fn poll_completions(&self) -> usize {
        0
    }

    fn counters(&self) -> &Counters {
        self.inner.counters()
    }

    fn memory_word_count(&self, node: NodeId) -> Option<u64> {
        self.inner.memory_word_count(node)
    }
}

/// Promise: a call that is dropped while its request is being written breaks the caller, because
/// the content of the ring is unknown. Waiting and later calls return an error.
#[test]
fn a_caller_that_is_cut_off_in_a_batch_is_broken() {
    let sides = Sides::new(8, 8);
    let slow = Slow {
        inner: MappedEndpoint::new(std::sync::Arc::clone(&sides.server_memory)),
        is_held: Cell::new(true),
    };
    let caller = Caller::new(&slow, &sides.to_caller, &sides.caller_rings);
    let (mut batch, mut reply) = (Batch::new(), Vec::new());
    let mut set = TaskSet::with_capacity(1);
    let call = caller.call(&mut batch, b"half", 8, &mut reply, NEVER);
    assert!(matches!(set.spawn(call), Ok(None)));
    assert!(!sides.caller_rings.is_broken());
    drop(set);
    assert!(sides.caller_rings.is_broken());
    slow.is_held.set(false);
    let call = caller.call(&mut batch, b"whole", 8, &mut reply, NEVER);
    let broken = block_on(call, || 0);
    assert!(matches!(broken, Err(CallError::Broken)), "{broken:?}");
    assert!(sides.next(&mut sides.mailbox()).is_none());
}

/// Promise: a call to a server that is gone returns an error instead of waiting for ever.
#[test]
fn a_server_that_is_gone_is_not_waited_for() {
    let sides = Sides::new(8, 8);
    let (caller, mut batch, mut reply) = (sides.caller(), Batch::new(), Vec::new());
    let poll_count = Cell::new(0);
    let is_gone = || poll_count.replace(poll_count.get() + 1) > 3;
    let call = caller.call(&mut batch, b"there?", 8, &mut reply, is_gone);
    let gone = block_on(call, || 0);
    assert!(matches!(gone, Err(CallError::Gone)), "{gone:?}");
}
