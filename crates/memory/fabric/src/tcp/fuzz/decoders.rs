//! Fuzzing of messages and frames, without sockets.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use farleaf_base::{NodeId, OwnerWord};

use super::{Random, batch_within, run};
use crate::batch::Batch;
use crate::tcp::execute::execute_frame;
use crate::tcp::frame::{
    self, FRAME_SIZE_WORDS_MAX, FrameStatus, HEADER_SIZE_WORDS, WireVerb, frame_size_bytes,
};
use crate::tcp::gate::{ClientState, Grant};
use crate::tcp::messages::{
    ControlReply, ControlRequest, FRAME_SIZE_BYTES, JoinRequest, Joined, MemberReply,
};
use crate::verbs::{NodeQueue, QueueParameters};
use farleaf_net::secret::{Pass, Rights};

const REGION_SIZE_WORDS: usize = 2048;

fn request(random: &mut Random) -> ControlRequest {
    let owner = OwnerWord::from_word(random.bits());
    match random.below(12) {
        0..=2 => ControlRequest::Register,
        4 => ControlRequest::Close(owner),
        5 => ControlRequest::Life(owner),
        6 => ControlRequest::Queue(queue(random)),
        7 => ControlRequest::MainNode,
        8 => ControlRequest::Join(JoinRequest {
            memory_id: random.bits(),
            size_bytes: random.bits(),
            wanted: NodeId(random.bits() as u8),
            address: "ä".repeat(random.index(90)),
            serves_verbs: random.one_in(2),
        }),
        9 => ControlRequest::SetMember {
            node: NodeId(random.bits() as u8),
            state: random.bits(),
        },
        10 => ControlRequest::Member(NodeId(random.bits() as u8)),
        _ => ControlRequest::Fence(owner),
    }
}

pub(super) fn queue(random: &mut Random) -> QueueParameters {
    QueueParameters {
        number: random.below(1 << 24) as u32,
        first_packet: random.below(1 << 24) as u32,
        mtu_bytes: 256 << random.below(5),
        answered_reads_max: 1 + random.below(255) as u8,
        lid: random.bits() as u16,
        gid: random.bytes(),
    }
}

fn reply(random: &mut Random) -> ControlReply {
    match random.below(12) {
        0..=2 => ControlReply::Session {
            owner: OwnerWord::from_word((random.bits() | 1 << 48) & !(1 << 63)),
            pass: Pass(random.bytes()),
        },
        3 => ControlReply::Closed,
        4 => ControlReply::Life(random.one_in(2).then_some(random.bits() as u32)),
        5 => ControlReply::Fenced,
        6 => ControlReply::Queue(NodeQueue {
            parameters: queue(random),
            memory_addr: random.bits(),
            memory_key: random.bits() as u32,
        }),
        7 => ControlReply::MainNode("ä".repeat(random.index(90))),
        8 => ControlReply::Joined(Joined {
            node: random
                .one_in(2)
                .then_some(NodeId(1 + random.below(255) as u8)),
            pool_id: random.bits(),
        }),
        9 => ControlReply::Member(MemberReply {
            state: random.bits(),
            pool_id: random.bits(),
            answered_count: random.bits(),
        }),
        10 => ControlReply::UnderWay,
        _ => ControlReply::Refused("ä".repeat(random.index(120))),
    }
}

/// Promise: any bytes of a control connection are decoded or refused; a decoded message encodes to
/// an equal message.
#[test]
fn fuzz_messages() {
    run("messages", |random| {
        let encoded = if random.one_in(2) {
            request(random).encode()
        } else {
            reply(random).encode()
        };
        let mut bytes = encoded.to_vec();
        random.mutate(&mut bytes);
        bytes.resize(FRAME_SIZE_BYTES, 0);
        let mut frame = [0; FRAME_SIZE_BYTES];
        frame.copy_from_slice(&bytes);
        if let Ok(request) = ControlRequest::decode(&frame) {
            assert_eq!(ControlRequest::decode(&request.encode()), Ok(request));
        }
        match ControlReply::decode(&frame) {
            // Invalid UTF-8 is replaced by a longer text, whose end may be cut off.
            Ok(ControlReply::Refused(_)) | Err(_) => {}
            Ok(reply) => assert_eq!(ControlReply::decode(&reply.encode()), Ok(reply)),
        }
    });
}

fn range(random: &mut Random) -> Range<u64> {
    let start = random.below(REGION_SIZE_WORDS as u64);
    start..start + random.below(64)
}

/// Returns a client with random rights, and the ranges that it may change: a verb must lie in one.
fn client(random: &mut Random) -> (ClientState, Vec<Range<u64>>) {
    let open_from = match random.below(4) {
        0 => 0,
        1 => u64::MAX,
        _ => random.below(REGION_SIZE_WORDS as u64),
    };
    let open: Vec<_> = (0..random.below(4)).map(|_| range(random)).collect();
    let own: Vec<_> = (0..random.below(3)).map(|_| range(random)).collect();
    let mut may_change = [&open[..], &own[..]].concat();
    may_change.push(open_from..u64::MAX);
    let state = ClientState::new(Rights::Write, Grant { open_from, open });
    for range in own {
        state.add_own(range);
    }
    (state, may_change)
}

/// Returns a stream of frames, usually with random changes.
pub(super) fn stream(random: &mut Random, memory_size_words: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for tag in 0..=random.below(4) {
        let mut batch = batch_within(random, memory_size_words);
        encode(&mut batch, tag, &mut bytes);
    }
    if !random.one_in(8) {
        random.mutate(&mut bytes);
    }
    bytes
}

fn encode(batch: &mut Batch, tag: u64, out: &mut Vec<u8>) {
    let (verbs, data, _) = batch.parts_mut();
    frame::encode_batch(out, tag, verbs.iter(), data);
}

/// Model of a verb: changes `words` and returns its result, or the status of a refusal.
fn model(
    words: &mut [u64],
    may: &[Range<u64>],
    verb: &WireVerb<'_>,
) -> Result<Vec<u64>, FrameStatus> {
    let (index, word_count, is_read) = match verb {
        WireVerb::Read { index, word_count } => (*index, *word_count, true),
        WireVerb::Write { index, words } => (*index, words.len() / 8, false),
        WireVerb::CompareSwap { index, .. } | WireVerb::FetchAdd { index, .. } => {
            (*index, 1, false)
        }
    };
    if index + word_count as u64 > words.len() as u64 {
        return Err(FrameStatus::OutOfBounds);
    }
    let end = index + word_count as u64;
    let mut holders = may
        .iter()
        .filter(|may| may.start <= index && end <= may.end);
    if !is_read && word_count > 0 && holders.next().is_none() {
        return Err(FrameStatus::Forbidden);
    }
    let touched = index as usize..end as usize;
    let target = &mut words[touched];
    Ok(match verb {
        WireVerb::Read { .. } => target.to_vec(),
        WireVerb::Write { words, .. } => {
            let from = frame::words(words);
            target
                .iter_mut()
                .zip(from)
                .for_each(|(to, from)| *to = from);
            Vec::new()
        }
        WireVerb::CompareSwap {
            expected, desired, ..
        } => {
            let previous = target[0];
            if previous == *expected {
                target[0] = *desired;
            }
            vec![previous]
        }
        WireVerb::FetchAdd { delta, .. } => {
            let previous = target[0];
            target[0] = previous.wrapping_add(*delta);
            vec![previous]
        }
    })
}

/// Model of a frame: returns its status, the number of executed verbs, and their results.
fn model_frame(
    words: &mut [u64],
    may: &[Range<u64>],
    bytes: &[u8],
) -> (FrameStatus, usize, Vec<u64>) {
    let mut request = frame::FrameRequest::decode(bytes);
    let mut brought = Vec::new();
    for executed in 0..request.verb_count {
        let Ok(verb) = request.next_verb() else {
            return (FrameStatus::Malformed, executed, brought);
        };
        let brings = match verb {
            WireVerb::Read { word_count, .. } => word_count,
            WireVerb::Write { .. } => 0,
            WireVerb::CompareSwap { .. } | WireVerb::FetchAdd { .. } => 1,
        };
        let is_too_large = HEADER_SIZE_WORDS + brought.len() + brings > FRAME_SIZE_WORDS_MAX;
        match model(words, may, &verb) {
            Ok(_) | Err(FrameStatus::Forbidden) if is_too_large => {
                return (FrameStatus::Malformed, executed, brought);
            }
            Ok(words) => brought.extend(words),
            Err(status) => return (status, executed, brought),
        }
    }
    let status = if request.is_at_end() {
        FrameStatus::Done
    } else {
        FrameStatus::Malformed
    };
    (status, request.verb_count, brought)
}

/// Promise (FABRIC-5, FABRIC-7): whatever frames arrive, a node does what a simple model does. It
/// executes verbs up to the first invalid or refused one, changes nothing that the client may not
/// change, and reports this in a valid reply.
#[test]
fn fuzz_frames() {
    let memory: Vec<AtomicU64> = (0..REGION_SIZE_WORDS).map(|_| AtomicU64::new(0)).collect();
    let mut out = Vec::new();
    run("frames", |random| {
        let (client, may_change) = client(random);
        let bytes = stream(random, REGION_SIZE_WORDS as u64);
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let before: Vec<u64> = memory.iter().map(load).collect();
        let mut words = before.clone();
        let mut unread = &bytes[..];
        while let Ok(Some(size)) = frame_size_bytes(unread) {
            let Some((whole, rest)) = unread.split_at_checked(size) else {
                break;
            };
            unread = rest;
            out.clear();
            let request = frame::FrameRequest::decode(whole);
            let (tag, verb_count) = (request.tag, request.verb_count);
            let executed = execute_frame(&memory, &client, request, &mut out);
            assert_eq!(frame_size_bytes(&out), Ok(Some(out.len())));
            assert!(out.len() <= FRAME_SIZE_WORDS_MAX * 8);
            let reply = frame::FrameReply::decode(&out).expect("a reply");
            assert_eq!((reply.tag, reply.status), (tag, executed.status));
            assert!(reply.executed_verb_count <= verb_count);
            let brought: Vec<u64> = frame::words(reply.data).collect();
            let result = (reply.status, reply.executed_verb_count, brought);
            assert_eq!(result, model_frame(&mut words, &may_change, whole));
            if executed.status == FrameStatus::Malformed {
                break;
            }
        }
        for (index, word) in memory.iter().map(load).enumerate() {
            assert_eq!(word, words[index], "word {index}");
            let is_open = may_change
                .iter()
                .any(|range| range.contains(&(index as u64)));
            assert!(is_open || word == before[index], "word {index}");
        }
        // Half of the cases begin with words that a CAS may expect.
        if random.one_in(2) {
            let zero = |word: &AtomicU64| word.store(0, Ordering::Relaxed);
            memory.iter().for_each(zero);
        }
    });
}
