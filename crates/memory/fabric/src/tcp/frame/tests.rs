use super::*;
use crate::batch::Batch;
use farleaf_base::{NodeId, WordAddr};
use proptest::prelude::*;

fn at(index: u64) -> WordAddr {
    WordAddr::new(NodeId(3), index)
}

fn encode(batch: &mut Batch, tag: u64) -> (Vec<u8>, u32) {
    let mut out = Vec::new();
    let (verbs, data, _) = batch.parts_mut();
    let count = encode_batch(&mut out, tag, verbs.iter(), data);
    (out, count)
}

/// Splits bytes into frames.
fn frames(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let size = frame_size_bytes(bytes).expect("a size").expect("a header");
        let (frame, rest) = bytes.split_at(size);
        frames.push(frame);
        bytes = rest;
    }
    frames
}

/// Promise: the bytes of requests and replies are these; a change needs a new version.
#[test]
fn frames_are_golden() {
    let mut batch = Batch::new();
    batch.compare_swap(at(64), 0, 7);
    batch.read(at(65), 20);
    batch.write(at(0x1_0000_0001), &[5, 6]);
    batch.fetch_add(at(1), 2);
    let (bytes, count) = encode(&mut batch, 0xABCD);
    let expected: [u64; 13] = [
        4 << 32 | 0xD,
        0xABCD,
        2 << 56 | 0x40,
        0,
        7,
        65,
        20,
        1 << 56 | 0x1_0000_0001,
        2,
        5,
        6,
        3 << 56 | 0x1,
        2,
    ];
    assert_eq!(words(&bytes).collect::<Vec<_>>(), expected);
    assert_eq!(bytes[..8], [13, 0, 0, 0, 4, 0, 0, 0]);
    assert_eq!(count, 1);
    let mut out = Vec::new();
    let mut reply = ReplyWriter::begin(&mut out, 9);
    reply.put(3);
    reply.end(FrameStatus::Forbidden, 1);
    assert_eq!(
        words(&out).collect::<Vec<_>>(),
        [3 | 1 << 32 | 2 << 48, 9, 3]
    );
    let read = FrameReply::decode(&out).expect("a reply");
    assert_eq!(
        (read.tag, read.status, read.executed_verb_count),
        (9, FrameStatus::Forbidden, 1)
    );
    assert_eq!(words(read.data).collect::<Vec<_>>(), [3]);
}

/// Promise: a batch larger than a frame arrives as its verbs in order, in frames of which all but
/// the last have *more* set.
#[test]
fn large_batches_are_cut() {
    let long: Vec<u64> = (0..200_000).collect();
    let mut batch = Batch::new();
    batch.read(at(10), 100_000);
    batch.write(at(500_000), &long);
    batch.write(at(1), &[]);
    let (bytes, count) = encode(&mut batch, 1);
    let frames = frames(&bytes);
    assert_eq!(frames.len(), count as usize);
    let (mut read_count, mut written, mut next_read) = (0, Vec::new(), 10);
    let mut verb_count = 0;
    for (number, frame) in frames.iter().enumerate() {
        let mut request = FrameRequest::decode(frame);
        assert_eq!(request.more, number + 1 < frames.len());
        let mut brought = 0;
        for _ in 0..request.verb_count {
            verb_count += 1;
            match request.next_verb().expect("a verb") {
                WireVerb::Read { index, word_count } => {
                    assert_eq!(index, next_read);
                    next_read += word_count as u64;
                    read_count += word_count;
                    brought += word_count;
                }
                WireVerb::Write {
                    index,
                    words: bytes,
                } => {
                    let expected = if bytes.is_empty() {
                        1
                    } else {
                        500_000 + written.len() as u64
                    };
                    assert_eq!(index, expected);
                    written.extend(words(bytes));
                }
                other => panic!("{other:?} was not posted"),
            }
        }
        assert!(request.is_at_end());
        assert!(brought + HEADER_SIZE_WORDS <= FRAME_SIZE_WORDS_MAX);
    }
    assert_eq!((read_count, written), (100_000, long));
    let (verbs, _, _) = batch.parts_mut();
    assert_eq!(verbs.iter().map(wire_verb_count).sum::<usize>(), verb_count);
}

/// Promise: invalid frames are distinguished from incomplete ones.
#[test]
fn impossible_sizes_are_refused() {
    assert_eq!(frame_size_bytes(&[1, 0, 0]), Ok(None));
    for size in [0_u64, 1, FRAME_SIZE_WORDS_MAX as u64 + 1, 0xFFFF_FFFF] {
        assert!(frame_size_bytes(&size.to_le_bytes()).is_err(), "{size}");
    }
    let largest = (FRAME_SIZE_WORDS_MAX as u64).to_le_bytes();
    assert_eq!(
        frame_size_bytes(&largest),
        Ok(Some(FRAME_SIZE_WORDS_MAX * 8))
    );
}

/// Returns a word that may begin a verb, or count its words.
fn verb_like(kind: u64, low: u64) -> u64 {
    kind << 56 | low
}

proptest! {
    /// Promise: the verbs of a frame of arbitrary words are decoded or refused, without a panic.
    #[test]
    fn any_frame_is_read_or_refused(
        mut body in proptest::collection::vec(
            prop_oneof![
                any::<u64>(),
                (0..4_u64, 0..9_u64).prop_map(|(kind, low)| verb_like(kind, low)),
            ],
            1..40,
        ),
        verb_count in 0..12_u64,
    ) {
        let size = body.len() as u64 + 1;
        body.insert(0, size | verb_count << 32);
        let bytes: Vec<u8> = body.iter().flat_map(|word| word.to_le_bytes()).collect();
        if let Ok(Some(size)) = frame_size_bytes(&bytes) {
            prop_assert_eq!(size, bytes.len());
            let mut request = FrameRequest::decode(&bytes);
            for _ in 0..request.verb_count {
                if request.next_verb().is_err() { break }
            }
            let _ = FrameReply::decode(&bytes);
        }
    }
}
