//! Contents of a follower after any history of the engine.

use super::{FollowOptions, FollowedEngine, IndexKind, all, follow_options, maintain_all, options};
use crate::storage::CrashStorage;
use crate::tree::{mix, random_numbers};
use crate::{Durability, EngineOptions};

/// Promise: a follower that was filled at any moment, and promoted at any later one, has the
/// engine's contents. One that receives trees has flushed and merged nothing. The resulting engine
/// can be followed, too.
#[test]
fn a_follower_becomes_the_engine() {
    let mut work = [(0, 0); 2];
    for seed in 0..10_u64 {
        let index = [IndexKind::Sent, IndexKind::Built][(seed % 2) as usize];
        let storage = CrashStorage::new(seed);
        let mut pair = FollowedEngine::new(&storage);
        let mut numbers = random_numbers(mix(seed));
        let mut steps = |pair: &mut FollowedEngine, count: u64| {
            for number in numbers.by_ref().take(count as usize) {
                pair.step(number);
                if (number >> 32).is_multiple_of(8) && pair.follower.is_some() {
                    pair.follow().expect("it follows");
                }
            }
        };
        for generation in 0..3 {
            steps(&mut pair, mix(seed) % 90);
            let storage = CrashStorage::new(seed * 10 + generation);
            pair.fill(&storage, index).expect("filled");
            steps(&mut pair, mix(seed * 3 + generation) % 200);
            if seed % 3 == 0 {
                while pair.follow().expect("it follows") {}
            }
            // A segment that is half full is written in parts.
            pair.follow_log().expect("it follows");
            let follower = pair.follower.take().expect("it was filled");
            let done = follower.work();
            let of_kind = &mut work[(seed % 2) as usize];
            *of_kind = (of_kind.0 + done.flush_count, of_kind.1 + done.merge_count);
            let (model, engine) = (pair.model, pair.engine);
            assert!(all(&engine) == model, "seed {seed}: the engine itself");
            drop(engine);
            let promoted = follower.promote(options()).expect("promoted");
            assert!(all(&promoted) == model, "seed {seed}, {generation}");
            maintain_all(&promoted);
            assert!(all(&promoted) == model, "seed {seed}, {generation}: later");
            promoted
                .put(b"last", b"it can be written", Durability::Sync)
                .expect("put");
            promoted.delete(b"last", Durability::Sync).expect("put");
            drop(promoted);
            pair = FollowedEngine::new(&storage);
            pair.model = model;
        }
    }
    assert_eq!(work[0], (0, 0), "flushes and merges where trees are sent");
    assert!(work[1].0 > 20 && work[1].1 > 5, "{work:?}");
}

/// Promise: if the last segments of a large record have not arrived, nothing of it is present, and
/// everything before it is. (Once, if a primary died while it sent such a record, its backups
/// reported corruption of their log.)
#[test]
fn a_large_record_that_has_not_come_is_left_out() {
    for (index, part_count) in [IndexKind::Sent, IndexKind::Built]
        .into_iter()
        .flat_map(|index| (0..=3).map(move |count| (index, count)))
    {
        let mut pair = FollowedEngine::new(&CrashStorage::new(1));
        pair.fill(&CrashStorage::new(2), index).expect("filled");
        pair.engine
            .put(b"1", b"before", Durability::Memory)
            .expect("put");
        pair.follow_log().expect("it follows");
        pair.engine
            .put(b"2", &vec![7; 5 << 20], Durability::Memory)
            .expect("put");
        let mut follower = pair.follower.take().expect("it was filled");
        let mut buffer = Vec::new();
        // The rest of the previous segment, and this many segments of the record.
        for _ in 0..=part_count {
            let at = follower.written_to();
            let log = pair.engine.log();
            let next = log.read_raw(at, &mut buffer).expect("it is there");
            let is_closed = next.number() > at.number();
            follower
                .write_log(at, &buffer, is_closed)
                .expect("it follows");
        }
        let promoted = follower.promote(options()).expect("promoted");
        let expected = if part_count == 3 { 2 } else { 1 };
        assert_eq!(all(&promoted).len(), expected, "{index:?}, {part_count}");
    }
}

/// Promise: a follower that builds its trees freezes its L0, too, when its records take too much of
/// the log.
#[test]
fn a_follower_freezes_by_the_log() {
    let mut pair = FollowedEngine::new(&CrashStorage::new(1));
    let options = FollowOptions {
        engine: EngineOptions {
            l0_entry_count_max: 1_000,
            l0_log_size_bytes_max: 8 << 20,
            ..options()
        },
        ..follow_options(IndexKind::Built)
    };
    let filled = pair.fill_beside(&CrashStorage::new(2), options);
    filled.expect("filled");
    for round in 0..50_u8 {
        let put = (pair.engine).put(b"1", &vec![round; 1 << 20], Durability::Memory);
        put.expect("put");
        pair.follow_log().expect("it follows");
        let follower = pair.follower.as_mut().expect("it was filled");
        while follower.maintain().expect("no fault is set") {}
    }
    let work = pair.follower.as_ref().expect("it was filled").work();
    // The last one has not arrived completely.
    assert_eq!(work.flush_count, 49 / 8);
}
