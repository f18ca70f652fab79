//! Scrubbing a follower.

use super::{FollowedEngine, IndexKind};
use crate::LsmError;
use crate::follow::Follower;
use crate::place::SEGMENT_SIZE_BYTES;
use crate::scrub::Scrub;
use crate::storage::{CrashStorage, Storage};
use crate::tree::{mix, random_numbers};

fn round(follower: &Follower) -> Vec<LsmError> {
    let (mut scrub, mut found) = (Scrub::new(), Vec::new());
    loop {
        match follower.scrub(&mut scrub) {
            Ok(scrubbed) if scrubbed.is_round_over => return found,
            Ok(_) => {}
            Err(error) => found.push(error),
        }
    }
}

fn flip(storage: &CrashStorage, name: &str, offset: u64, bit: u64) {
    let file = storage.open(name).expect("there");
    let mut byte = [0];
    file.read_at(&mut byte, offset).expect("read");
    file.write_at(&[byte[0] ^ 1 << bit], offset)
        .expect("written");
}

/// Promise: in a follower of either kind, nothing is found while it follows. Then bits flipped in
/// blocks of trees and in the log are each found and classified, and nothing else is.
#[test]
fn flips_in_what_follows_are_found() {
    let (mut found_counts, mut passed_count, mut round_count) = ([0; 2], 0, 0);
    for seed in 0..4_u64 {
        let index = [IndexKind::Sent, IndexKind::Built][(seed % 2) as usize];
        let mut pair = FollowedEngine::new(&CrashStorage::new(seed));
        let mut numbers = random_numbers(mix(seed * 5));
        for number in numbers.by_ref().take(80) {
            pair.step(number);
        }
        let storage = CrashStorage::new(seed + 100);
        pair.fill(&storage, index).expect("filled");
        let mut scrub = Scrub::new();
        for number in numbers.by_ref().take(300) {
            pair.step(number);
            if (number >> 32).is_multiple_of(4) {
                pair.follow().expect("it follows");
            }
            let follower = pair.follower.as_ref().expect("it was filled");
            follower.scrub(&mut scrub).expect("nothing is damaged");
        }
        while pair.follow().expect("it follows") {}
        round_count += scrub.counts().round_count;
        let follower = pair.follower.take().expect("it was filled");
        let found = round(&follower);
        assert!(found.is_empty(), "seed {seed}: {found:?}");
        for (which, name) in [(0, "log"), (1, "trees")] {
            let size_bytes = storage.open(name).expect("there").size().expect("known");
            for _ in 0..30 {
                let number = numbers.next().expect("endless");
                let segment = number % size_bytes / SEGMENT_SIZE_BYTES * SEGMENT_SIZE_BYTES;
                let offset = (segment + number % 20_000).min(size_bytes - 1);
                flip(&storage, name, offset, number >> 61);
                let found = round(&follower);
                let is_corruption = |error: &LsmError| match which {
                    0 => matches!(error, LsmError::CorruptLog { .. }),
                    _ => matches!(error, LsmError::CorruptTree { .. }),
                };
                assert!(found.iter().all(is_corruption), "seed {seed}: {found:?}");
                found_counts[which] += u32::from(!found.is_empty());
                passed_count += u32::from(found.is_empty());
                flip(&storage, name, offset, number >> 61);
            }
        }
        assert!(round(&follower).is_empty());
    }
    assert!(round_count > 6, "{round_count}");
    assert!(
        found_counts.iter().all(|count| *count > 15) && passed_count > 5,
        "{found_counts:?} {passed_count}"
    );
}
