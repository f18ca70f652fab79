//! Promises and costs of calls.

use std::sync::atomic::{AtomicBool, Ordering};

use farleaf_executor::{TaskSet, block_on};
use farleaf_fabric::message::{CallError, Caller, Request};
use farleaf_fabric::{Batch, Endpoint};

use crate::message::sides::{KEPT_SIZE_BYTES_MAX, Sides, bytes};

const NEVER: fn() -> bool = || false;

/// A request, and the length of the reply that it asks for.
struct Question {
    seed: u64,
    size_bytes: usize,
    reply_size_bytes: usize,
    announced_bytes: usize,
}

/// Makes a call that requests a reply of a given length; returns whether the reply is correct.
async fn ask<E: Endpoint, N: Endpoint>(
    caller: &Caller<'_, E, N>,
    question: Question,
    is_gone: impl Fn() -> bool,
) -> bool {
    let Question { seed, .. } = question;
    let mut request = seed.to_le_bytes().to_vec();
    request.extend((question.reply_size_bytes as u64).to_le_bytes());
    request.extend(bytes(seed, question.size_bytes));
    let (mut batch, mut reply) = (Batch::new(), b"before".to_vec());
    let announced_bytes = question.announced_bytes;
    let call = caller.call(&mut batch, &request, announced_bytes, &mut reply, is_gone);
    call.await.expect("nothing fails");
    reply == [b"before", &answer_to(&request)[..]].concat()
}

fn answer_to(request: &[u8]) -> Vec<u8> {
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| request[at + byte]));
    let (seed, reply_size_bytes) = (word(0), word(8) as usize);
    assert_eq!(
        request[16..],
        bytes(seed, request.len() - 16),
        "as it was sent"
    );
    bytes(!seed, reply_size_bytes)
}

/// Runs up to a number of calls concurrently, against a server that answers up to `held_count`
/// requests in reverse order.
fn converse(
    sides: &Sides,
    concurrency: usize,
    held_count: usize,
    calls: impl Iterator<Item = Question>,
) -> u64 {
    let (is_over, caller) = (AtomicBool::new(false), sides.caller());
    std::thread::scope(|scope| {
        let (mut held, server): (Vec<Request>, _) = (Vec::new(), sides.server());
        let is_over_there = &is_over;
        let server = scope.spawn(move || {
            server.serve(is_over_there, move |request| {
                let is_idle = request.is_none();
                held.extend(request);
                if held.len() < held_count && !is_idle {
                    return Vec::new();
                }
                let all = held.drain(..).rev();
                let all = all.map(|request| {
                    let payload = answer_to(&request.payload);
                    (request, payload)
                });
                all.collect()
            })
        });
        let (mut set, mut count) = (TaskSet::with_capacity(concurrency), 0);
        let mut right = |is_right: bool| {
            assert!(is_right);
            count += 1;
        };
        for call in calls {
            while set.is_full() {
                set.run_ready(&mut right);
                std::thread::yield_now();
            }
            let is_gone = || server.is_finished();
            let Ok(done) = set.spawn(ask(&caller, call, is_gone)) else {
                panic!("there is room");
            };
            done.into_iter().for_each(&mut right);
        }
        set.drain(|| 0, &mut right);
        drop(set);
        is_over.store(true, Ordering::Release);
        let served_count = server.join().expect("it serves to the end");
        assert!(!caller.is_broken());
        assert_eq!(served_count, count, "each request is served once");
        served_count
    })
}

/// Promise: every request is served once, over many rounds of the ring, and each call gets its own
/// reply, for all sizes and orders.
#[test]
fn every_call_gets_its_own_reply() {
    for (requests, replies, concurrency, held) in [(1, 1, 1, 1), (7, 5, 3, 2), (64, 100, 16, 9)] {
        let sides = Sides::new(requests, replies);
        let most = sides.caller().request_size_bytes_max() - 16;
        let calls = (0..800_u64).map(|seed| {
            let size_bytes = (seed * 37) as usize % (most + 1);
            let reply_size_bytes = (seed * 53) as usize % 700;
            Question {
                seed,
                size_bytes,
                reply_size_bytes,
                announced_bytes: reply_size_bytes,
            }
        });
        assert_eq!(converse(&sides, concurrency, held, calls), 800);
    }
}

/// Promise: a reply that is longer than its space, or than the ring, arrives completely, and
/// nothing of it is kept afterwards.
#[test]
fn longer_replies_come_in_parts() {
    let sides = Sides::new(16, 16);
    let calls = (0..200_u64).map(|seed| {
        let reply_size_bytes = [0, 1, 111, 112, 113, 5_000, 300_000][seed as usize % 7];
        let announced_bytes = [0, 40, 1 << 20][seed as usize % 3];
        Question {
            seed,
            size_bytes: 8,
            reply_size_bytes,
            announced_bytes,
        }
    });
    assert_eq!(converse(&sides, 5, 3, calls), 200);
}

/// Promise: a reply that exceeds the limit of kept bytes is refused, with as much of the reason as
/// its space can hold.
#[test]
fn what_is_too_much_to_keep_is_refused() {
    let sides = Sides::new(16, 64);
    let (caller, mut mailbox) = (sides.caller(), sides.mailbox());
    let (mut batch, mut reply) = (Batch::new(), Vec::new());
    let call = caller.call(&mut batch, b"all", 500, &mut reply, NEVER);
    let mut set = TaskSet::with_capacity(1);
    assert!(matches!(set.spawn(call), Ok(None)), "it waits");
    let request = sides.next(&mut mailbox).expect("it is there");
    let whole = vec![7; KEPT_SIZE_BYTES_MAX + 1];
    sides.reply(mailbox.replies(), request, &whole);
    assert_eq!(mailbox.replies().kept_size_bytes(), 0);
    let mut refused = None;
    set.drain(|| 0, |outcome| refused = Some(outcome));
    let Some(Err(CallError::Refused { reason })) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(
        reason,
        "the reply has 4194305 bytes, which exceeds the limit of 4194304 unfetched bytes for this \
         caller"
    );
    drop(set);
    assert!(reply.is_empty() && !caller.is_broken());
}

/// Promise: a request that can never be written is refused before anything is written.
#[test]
fn a_request_that_is_too_large_is_refused() {
    let sides = Sides::new(9, 4);
    let (caller, mut batch) = (sides.caller(), Batch::new());
    let most = caller.request_size_bytes_max();
    assert_eq!(most, 5 * 120 - 16);
    let request = vec![0; most + 1];
    let mut reply = Vec::new();
    let call = caller.call(&mut batch, &request, 0, &mut reply, NEVER);
    let refused = block_on(call, || 0).expect_err("too large");
    assert_eq!(
        refused.to_string(),
        "a request of 585 bytes is too large: at most 584 can be sent"
    );
    assert_eq!(batch.cost().verbs, 0);
}

/// Promise: a call costs the caller one round trip and two verbs, and the server as much; three
/// verbs if the end of the ring was skipped. Bytes are those of the segments.
#[test]
fn calls_cost_what_is_said() {
    let sides = Sides::new(4, 4);
    let (caller, mut mailbox) = (sides.caller(), sides.mailbox());
    let segment = 128;
    // The last request would not fit before the end of the ring.
    for (size_bytes, segment_count, verb_count) in [(104, 1, 2), (105, 2, 2), (224, 2, 3)] {
        let (mut batch, mut reply) = (Batch::new(), Vec::new());
        let request = vec![1; size_bytes];
        let call = caller.call(&mut batch, &request, 100, &mut reply, NEVER);
        let mut set = TaskSet::with_capacity(1);
        assert!(matches!(set.spawn(call), Ok(None)));
        let request = sides.next(&mut mailbox).expect("it is there");
        let (mut served, replies) = (Batch::new(), mailbox.replies());
        let replied = replies.reply(&sides.to_caller, &mut served, request.reply, &[2; 100]);
        block_on(replied, || 0).expect("nothing fails");
        set.drain(|| 0, |outcome| assert!(outcome.is_ok()));
        drop(set);
        assert_eq!(reply, [2; 100]);
        let (cost, served) = (batch.cost(), served.cost());
        assert_eq!((served.round_trips, served.verbs), (1, 2));
        assert_eq!(served.bytes_written, segment);
        assert_eq!(
            (cost.round_trips, cost.verbs),
            (1, verb_count),
            "{size_bytes}"
        );
        let reset_bytes = if verb_count == 3 { 8 } else { 0 };
        assert_eq!(cost.bytes_written, segment * segment_count + reset_bytes);
        assert_eq!(cost.bytes_read, 0);
    }
}
