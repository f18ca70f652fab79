//! What a follower has, whatever the engine does.

use super::{IndexKind, Pair, all, maintain_all, options};
use crate::Durability;
use crate::storage::CrashStorage;
use crate::tree::{mix, random_numbers};

/// Promise (FO3 to FO8): a follower that was filled at any moment, and is promoted at any later
/// one, has what the engine has; one to which trees are sent has flushed and merged nothing; and
/// what it has become is an engine, which can be followed in its turn.
#[test]
fn a_follower_becomes_the_engine() {
    let mut work = [(0, 0); 2];
    for seed in 0..24_u64 {
        let index = [IndexKind::Sent, IndexKind::Built][(seed % 2) as usize];
        let storage = CrashStorage::new(seed);
        let mut pair = Pair::new(&storage);
        let mut numbers = random_numbers(mix(seed));
        let mut steps = |pair: &mut Pair, count: u64| {
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
            pair = Pair::new(&storage);
            pair.model = model;
        }
    }
    assert_eq!(work[0], (0, 0), "flushes and merges where trees are sent");
    assert!(work[1].0 > 60 && work[1].1 > 20, "{work:?}");
}
