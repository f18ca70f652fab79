//! Calls that are dropped, and callers that are broken (E8).

use core::cell::Cell;
use core::future::poll_fn;
use core::task::Poll;

use farleaf_executor::{TaskSet, block_on};
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_fabric::{Batch, BatchError, Counters, Endpoint};
use farleaf_message::{CallError, Caller};
use farleaf_types::NodeId;

use crate::sides::{Sides, bytes};

const NEVER: fn() -> bool = || false;

/// Promise (E8, E3, E6): calls that are dropped while they wait for their reply take nothing away
/// for ever: when it comes, their room is used again, and the rest of a long one is forgotten.
#[test]
fn what_is_dropped_leaves_its_room_to_others() {
    let sides = Sides::new(8, 8);
    let (caller, mut mailbox) = (sides.caller(), sides.mailbox());
    for round in 0..100_u64 {
        let mut batches = [Batch::new(), Batch::new(), Batch::new()];
        let mut replies = [const { Vec::new() }; 3];
        let (payload, mut set) = (bytes(round, 100), TaskSet::with_capacity(3));
        for (batch, reply) in batches.iter_mut().zip(&mut replies) {
            let call = caller.call(batch, &payload, (100, reply), NEVER);
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
        // The next request says that nobody waits for it.
        assert_eq!(mailbox.replies().kept_size_bytes(), 10_000);
    }
}

/// Promise (E6): a long reply to a call that was dropped is not kept either if it is served only
/// when the next request has said that nobody waits for it.
#[test]
fn a_late_reply_that_nobody_waits_for_is_not_kept() {
    let sides = Sides::new(8, 8);
    let (caller, mut mailbox) = (sides.caller(), sides.mailbox());
    let (mut batch, mut reply) = (Batch::new(), Vec::new());
    let mut set = TaskSet::with_capacity(1);
    let call = caller.call(&mut batch, b"dropped", (8, &mut reply), NEVER);
    assert!(matches!(set.spawn(call), Ok(None)));
    drop(set);
    let dropped = sides.next(&mut mailbox).expect("it is there");
    let mut set = TaskSet::with_capacity(1);
    let call = caller.call(&mut batch, b"next", (8, &mut reply), NEVER);
    assert!(matches!(set.spawn(call), Ok(None)));
    let next = sides.next(&mut mailbox).expect("it is there");
    sides.reply(mailbox.replies(), dropped, &[1; 10_000]);
    assert_eq!(mailbox.replies().kept_size_bytes(), 0);
    sides.reply(mailbox.replies(), next, b"here");
    set.drain(|| 0, |outcome| assert!(outcome.is_ok()));
    drop(set);
    assert_eq!(reply, b"here");
}

/// Promise (E3): a call waits when there is no room, and one that comes later does not overtake it,
/// though it would fit.
#[test]
fn calls_wait_their_turn() {
    let sides = Sides::new(4, 64);
    let (caller, mut mailbox) = (sides.caller(), sides.mailbox());
    let mut set = TaskSet::with_capacity(5);
    let sizes = [104, 104, 104, 200, 50];
    let ask = async |size: usize| {
        let (mut batch, mut reply) = (Batch::new(), Vec::new());
        let request = vec![0; size];
        let call = caller.call(&mut batch, &request, (8, &mut reply), NEVER);
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

/// Lets a batch take as long as it likes.
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

    fn region_word_count(&self, node: NodeId) -> Option<u64> {
        self.inner.region_word_count(node)
    }
}

/// Promise (E8): a call that is dropped while its request is being written breaks the caller:
/// nobody knows what is in the ring. Calls that wait say so, and so do later ones.
#[test]
fn a_caller_that_is_cut_off_in_a_batch_is_broken() {
    let sides = Sides::new(8, 8);
    let slow = Slow {
        inner: MappedEndpoint::new(std::sync::Arc::clone(&sides.server_region)),
        is_held: Cell::new(true),
    };
    let caller = Caller::new(&slow, &sides.to_caller, &sides.lines);
    let (mut batch, mut reply) = (Batch::new(), Vec::new());
    let mut set = TaskSet::with_capacity(1);
    let call = caller.call(&mut batch, b"half", (8, &mut reply), NEVER);
    assert!(matches!(set.spawn(call), Ok(None)));
    assert!(!sides.lines.is_broken());
    drop(set);
    assert!(sides.lines.is_broken());
    slow.is_held.set(false);
    let call = caller.call(&mut batch, b"whole", (8, &mut reply), NEVER);
    let broken = block_on(call, || 0);
    assert!(matches!(broken, Err(CallError::Broken)), "{broken:?}");
    assert!(sides.next(&mut sides.mailbox()).is_none());
}

/// Promise: who waits for a server that is gone is told so, and not at once for ever.
#[test]
fn a_server_that_is_gone_is_not_waited_for() {
    let sides = Sides::new(8, 8);
    let (caller, mut batch, mut reply) = (sides.caller(), Batch::new(), Vec::new());
    let looks = Cell::new(0);
    let is_gone = || looks.replace(looks.get() + 1) > 3;
    let call = caller.call(&mut batch, b"there?", (8, &mut reply), is_gone);
    let gone = block_on(call, || 0);
    assert!(matches!(gone, Err(CallError::Gone)), "{gone:?}");
}
