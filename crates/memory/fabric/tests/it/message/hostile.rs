//! Rings of arbitrary content, tested and fuzzed.

use farleaf_base::fuzzing::run;
use farleaf_base::random::Random;
use farleaf_executor::{TaskSet, block_on};
use farleaf_fabric::message::segment::{
    MESSAGE_SEGMENT_COUNT_MAX, MessageKind, REPLY_HEAD_SIZE_WORDS, ReplyHead, RequestHead,
    SEGMENT_SIZE_WORDS, Tag, encode,
};
use farleaf_fabric::message::{CallError, MailboxError, MalformedMessage, Ring};
use farleaf_fabric::{Batch, Endpoint};

use crate::message::sides::Sides;

const SEGMENT_COUNT: u32 = 8;

fn write(sides: &Sides, ring: Ring, first: u32, words: &[u64]) {
    let is_request = ring == sides.requests;
    let endpoint = if is_request {
        &sides.to_server
    } else {
        &sides.to_caller
    };
    let mut batch = Batch::new();
    batch.write(ring.at(first), words);
    block_on(endpoint.execute(&mut batch), || 0).expect("inside");
}

fn request(sequence: u64, kind: MessageKind, segment_count: u32) -> (Tag, RequestHead) {
    let tag = Tag {
        sequence,
        segment_count,
        kind,
    };
    let head = RequestHead {
        size_bytes: 16,
        reply_first: 0,
        reply_segment_count: 1,
        awaited_from: 1,
    };
    (tag, head)
}

/// Returns the mailbox's error for a request.
fn malformed(tag: Tag, head: RequestHead, payload: &[u8]) -> Option<MalformedMessage> {
    malformed_in(SEGMENT_COUNT, tag, head, payload)
}

/// Returns the mailbox's error for a request, with a ring of replies of a given size. Checks that
/// the mailbox stays unusable.
fn malformed_in(
    reply_segment_count: u32,
    tag: Tag,
    head: RequestHead,
    payload: &[u8],
) -> Option<MalformedMessage> {
    let sides = Sides::new(SEGMENT_COUNT, reply_segment_count);
    let mut words = Vec::new();
    encode(tag, &head.words(), payload, &mut words);
    words.truncate(SEGMENT_COUNT as usize * SEGMENT_SIZE_WORDS as usize);
    write(&sides, sides.requests, 0, &words);
    let (mut mailbox, mut batch) = (sides.mailbox(), Batch::new());
    let mut next = || {
        let next = mailbox.next(&sides.to_server, &sides.to_caller, &mut batch);
        match block_on(next, || 0) {
            Ok(_) => None,
            Err(MailboxError::Malformed(what)) => Some(what),
            Err(error) => panic!("{error}"),
        }
    };
    let first = next();
    assert_eq!(next(), first);
    first
}

/// Promise: each contradiction in a request, and each position outside of a ring, has its own
/// error.
#[test]
fn what_is_no_request_is_refused() {
    let (tag, head) = request(1, MessageKind::Request, 1);
    assert_eq!(malformed(tag, head, &[0; 16]), None);
    let no_tag = |tag: Tag| {
        let word = tag.word();
        Some(MalformedMessage::Tag { segment: 0, word })
    };
    for kind in [MessageKind::Reply, MessageKind::Refused, MessageKind::Reset] {
        let (tag, head) = request(1, kind, 1);
        assert_eq!(malformed(tag, head, &[0; 16]), no_tag(tag), "{kind:?}");
    }
    let (early, head) = request(2, MessageKind::Request, 1);
    let sequence = MalformedMessage::Sequence {
        segment: 0,
        found: 2,
        expected: 1,
    };
    assert_eq!(malformed(early, head, &[0; 16]), Some(sequence));
    let (long, head) = request(1, MessageKind::Request, SEGMENT_COUNT + 1);
    let segments = MalformedMessage::TooManySegments {
        segment: 0,
        count: SEGMENT_COUNT + 1,
        there: SEGMENT_COUNT,
    };
    assert_eq!(malformed(long, head, &[0; 16]), Some(segments));
    let size_bytes = 105;
    let too_long = MalformedMessage::TooLong {
        size_bytes,
        space_bytes: 104,
    };
    let lying = RequestHead { size_bytes, ..head };
    assert_eq!(malformed(tag, lying, &[0; 16]), Some(too_long));
    let (fetch, head) = request(1, MessageKind::Fetch, 1);
    let short = RequestHead {
        size_bytes: 15,
        ..head
    };
    let what = MalformedMessage::Fetch {
        size_bytes: 15,
        due_bytes: 16,
    };
    assert_eq!(malformed(fetch, short, &[0; 16]), Some(what));
    assert_eq!(
        malformed(fetch, head, &[0; 16]),
        None,
        "it is answered: refused"
    );
}

/// Promise: a space for the reply that is outside of the ring, or larger than a tag can express, is
/// refused.
#[test]
fn what_is_no_place_for_a_reply_is_refused() {
    let (tag, head) = request(1, MessageKind::Request, 1);
    for (first, count) in [
        (0, 0),
        (SEGMENT_COUNT, 1),
        (1, SEGMENT_COUNT),
        (65_535, 65_535),
    ] {
        let astray = RequestHead {
            reply_first: first,
            reply_segment_count: count,
            ..head
        };
        let place = MalformedMessage::ReplySpace {
            first,
            count,
            there: SEGMENT_COUNT,
        };
        assert_eq!(malformed(tag, astray, &[0; 16]), Some(place));
    }
    // Larger than a tag of the reply can express.
    let most = MESSAGE_SEGMENT_COUNT_MAX;
    let of = |count| RequestHead {
        reply_segment_count: count,
        ..head
    };
    assert_eq!(malformed_in(5000, tag, of(most), &[0; 16]), None);
    let place = MalformedMessage::ReplySpace {
        first: 0,
        count: most + 1,
        there: 5000,
    };
    let found = malformed_in(5000, tag, of(most + 1), &[0; 16]);
    assert_eq!(found, Some(place));
}

/// Promise: an invalid reply breaks the caller, with an error that describes it.
#[test]
fn what_is_no_reply_breaks_the_caller() {
    let answer = |tag: Tag, head: ReplyHead| {
        let sides = Sides::new(SEGMENT_COUNT, SEGMENT_COUNT);
        let (caller, mut batch, mut reply) = (sides.caller(), Batch::new(), Vec::new());
        let mut set = TaskSet::with_capacity(1);
        let call = caller.call(&mut batch, b"?", 100, &mut reply, || false);
        assert!(matches!(set.spawn(call), Ok(None)));
        let mut words = Vec::new();
        encode(tag, &head.words(), &[1; 8], &mut words);
        write(&sides, sides.replies, 0, &words);
        let mut outcome = None;
        set.drain(|| 0, |done| outcome = Some(done));
        drop(set);
        match outcome.expect("it has ended") {
            Ok(()) => None,
            Err(CallError::Malformed(what)) => {
                assert!(caller.is_broken());
                Some(what)
            }
            Err(error) => panic!("{error}"),
        }
    };
    let tag = |kind, segment_count| Tag {
        sequence: 1,
        segment_count,
        kind,
    };
    let head = |size_bytes, whole_size_bytes| ReplyHead {
        size_bytes,
        whole_size_bytes,
    };
    let reply = tag(MessageKind::Reply, 1);
    assert_eq!(answer(reply, head(8, 8)), None);
    let request = tag(MessageKind::Request, 1);
    let word = request.word();
    let no_tag = MalformedMessage::Tag { segment: 0, word };
    assert_eq!(answer(request, head(8, 8)), Some(no_tag));
    let two = MalformedMessage::TooManySegments {
        segment: 0,
        count: 2,
        there: 1,
    };
    assert_eq!(answer(tag(MessageKind::Reply, 2), head(8, 8)), Some(two));
    let too_long = MalformedMessage::TooLong {
        size_bytes: 113,
        space_bytes: 112,
    };
    assert_eq!(answer(reply, head(113, 113)), Some(too_long));
    for (size_bytes, whole_size_bytes, due_bytes) in [(8, 7, 0), (0, 9, 9)] {
        let part = MalformedMessage::Part {
            size_bytes,
            whole_size_bytes,
            due_bytes,
        };
        assert_eq!(
            answer(reply, head(size_bytes, whole_size_bytes)),
            Some(part)
        );
    }
}

/// Returns words of a valid ring after random changes.
fn changed(random: &mut Random, tags: &[Tag], head: &[u64]) -> Vec<u64> {
    let mut all: Vec<u8> = Vec::new();
    for tag in tags {
        let mut words = Vec::new();
        encode(*tag, head, &random.bytes::<60>(), &mut words);
        all.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
    random.mutate(&mut all);
    all.resize(SEGMENT_COUNT as usize * SEGMENT_SIZE_WORDS as usize * 8, 0);
    let words = all.chunks(8);
    let words = words.map(|word| u64::from_le_bytes(core::array::from_fn(|byte| word[byte])));
    words.collect()
}

/// Promise: for any content of a ring of requests, the server reads requests, each once, or returns
/// an error, and writes nothing outside of the ring of replies.
#[test]
fn fuzz_requests() {
    let sides = Sides::new(SEGMENT_COUNT, SEGMENT_COUNT);
    run("rings of requests", |random| {
        let kinds = [MessageKind::Request, MessageKind::Fetch, MessageKind::Reset];
        let tags = [1, 2, 3].map(|sequence| Tag {
            sequence,
            segment_count: 1 + random.below(2) as u32,
            kind: kinds[random.index(3)],
        });
        let head = RequestHead {
            size_bytes: [0, 8, 16, 60][random.index(4)],
            reply_first: random.below(8) as u32,
            reply_segment_count: 1 + random.below(3) as u32,
            awaited_from: random.below(3),
        };
        let words = changed(random, &tags, &head.words());
        write(&sides, sides.requests, 0, &words);
        let (mut mailbox, mut batch) = (sides.mailbox(), Batch::new());
        for _ in 0..SEGMENT_COUNT {
            let next = mailbox.next(&sides.to_server, &sides.to_caller, &mut batch);
            let Ok(Some(request)) = block_on(next, || 0) else {
                break;
            };
            assert!(request.payload.len() <= SEGMENT_COUNT as usize * 120);
            sides.reply(mailbox.replies(), request, &[9; 300]);
        }
        let guard = sides.replies.at(0).offset(sides.replies.word_count());
        batch.clear();
        let read = batch.read(guard, 64);
        block_on(sides.to_caller.execute(&mut batch), || 0).expect("inside");
        assert!(batch.words(read).iter().all(|word| *word == 0), "outside");
    });
}

/// Promise: for any content of a ring of replies, a call returns bytes, returns an error, or
/// continues to wait.
#[test]
fn fuzz_replies() {
    let sides = Sides::new(SEGMENT_COUNT, SEGMENT_COUNT);
    run("rings of replies", |random| {
        let zeroes = vec![0; sides.requests.word_count() as usize];
        write(&sides, sides.requests, 0, &zeroes);
        let kinds = [MessageKind::Reply, MessageKind::Refused];
        let tags = [1, 2].map(|sequence| Tag {
            sequence,
            segment_count: 1,
            kind: kinds[random.index(2)],
        });
        let size_bytes = [0, 8, 60, 112][random.index(4)];
        let head = ReplyHead {
            size_bytes,
            whole_size_bytes: size_bytes + [0, 0, 7, 1 << 20][random.index(4)],
        };
        assert_eq!(head.words().len() + 1, REPLY_HEAD_SIZE_WORDS);
        let words = changed(random, &tags, &head.words());
        write(&sides, sides.replies, 0, &words);
        let (caller, mut batch, mut reply) = (sides.caller(), Batch::new(), Vec::new());
        let poll_count = core::cell::Cell::new(0);
        let is_gone = || poll_count.replace(poll_count.get() + 1) > 2;
        let call = caller.call(&mut batch, b"?", 100, &mut reply, is_gone);
        let outcome = block_on(call, || 0);
        assert!(outcome.is_ok() || !matches!(outcome, Err(CallError::Fabric(_))));
    });
}
