//! Valid streams that are changed at random.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::time::Duration;

use farleaf_base::fuzzing::run;
use farleaf_base::random::Random;

use crate::request::frame::{Header, Kind};
use crate::request::inbox::{Inbox, Limits, Received};

/// Reader that returns one piece per call, and then the end.
struct Pieces(VecDeque<Vec<u8>>);

impl Read for Pieces {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let Some(piece) = self.0.front_mut() else {
            return Ok(0);
        };
        let count = piece.len().min(to.len());
        to[..count].copy_from_slice(&piece[..count]);
        piece.drain(..count);
        if piece.is_empty() {
            self.0.pop_front();
        }
        Ok(count)
    }
}

fn pieces(random: &mut Random, mut bytes: &[u8]) -> Pieces {
    let mut pieces = VecDeque::new();
    while !bytes.is_empty() {
        let at_most = if random.one_in(2) { 16 } else { 100_000 };
        let (piece, rest) = bytes.split_at((1 + random.index(at_most)).min(bytes.len()));
        pieces.push_back(piece.to_vec());
        bytes = rest;
    }
    Pieces(pieces)
}

/// Returns frames with payloads, some of them large.
fn frames(random: &mut Random) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for _ in 0..=random.below(6) {
        let size_bytes = match random.below(8) {
            0 => random.index(200_000),
            1 => 65_520 + random.index(16),
            _ => random.index(300),
        };
        let seed = random.bits() as u8;
        frames.push((0..size_bytes).map(|index| index as u8 ^ seed).collect());
    }
    frames
}

/// Promise: for any stream, an inbox returns frames within its limit and ends, without a panic.
/// What precedes the first change is returned as sent.
#[test]
fn any_stream_is_read_to_its_end() {
    run("wire frames", |random| {
        let sent = frames(random);
        let mut bytes = Vec::new();
        for payload in &sent {
            let (kind, size_bytes) = (Kind::Request, payload.len());
            bytes.extend_from_slice(&Header { kind, size_bytes }.encode());
            bytes.extend_from_slice(payload);
        }
        let honest = bytes.clone();
        random.mutate(&mut bytes);
        let same = honest.iter().zip(&bytes).take_while(|(a, b)| a == b);
        let same_bytes = same.count();
        let limits = Limits {
            size_bytes_max: 150_000,
            time: Duration::from_mins(1),
        };
        let mut from = pieces(random, &bytes);
        let mut inbox = Inbox::new();
        let mut read_bytes = 0;
        let mut count = 0;
        while let Ok(Received::Frame(kind)) = inbox.receive(&mut from, limits) {
            assert!(inbox.payload().len() <= limits.size_bytes_max);
            read_bytes += 8 + inbox.payload().len();
            if read_bytes <= same_bytes {
                assert_eq!(kind, Kind::Request);
                assert!(inbox.payload() == sent[count], "frame {count}");
            }
            count += 1;
        }
        assert!(read_bytes <= bytes.len());
    });
}
