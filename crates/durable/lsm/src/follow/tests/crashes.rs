//! State of a follower after a power failure.

use std::sync::Arc;

use super::{FollowedEngine, Follower, IndexKind, Model, all, options};
use crate::storage::{CrashStorage, PowerLoss, Storage};
use crate::tree::{mix, random_numbers};
use crate::{Durability, Engine, LsmError};

/// Promise: wherever a follower's power fails, no engine opens its directory. Once it has received
/// the base, it can be promoted. It then has the engine's contents of some moment, not before the
/// follower's last sync.
#[test]
fn a_follower_survives_losses_of_power() {
    let (mut promoted_count, mut unfinished_count) = (0, 0);
    for seed in 0..80_u64 {
        let index = [IndexKind::Sent, IndexKind::Built][(seed % 2) as usize];
        let mut pair = FollowedEngine::new(&CrashStorage::new(seed));
        let storage = CrashStorage::new(!seed);
        let mut numbers = random_numbers(mix(seed));
        for number in numbers.by_ref().take(60) {
            pair.step(number);
        }
        let cuts_filling = seed / 2 % 3 == 0;
        if cuts_filling {
            storage.cut_power_at(1 + mix(seed * 7) % 40);
        }
        // States of the engine, from the last one that is durable on.
        let mut states = vec![pair.model.clone()];
        let mut is_filled = pair.fill(&storage, index).is_ok();
        if !cuts_filling {
            storage.cut_power_at(storage.operation_count() + 1 + mix(seed * 7) % 120);
        }
        for number in numbers.by_ref().take(150) {
            if !is_filled {
                break;
            }
            let syncs = (number >> 32).is_multiple_of(8);
            pair.step(number);
            states.push(pair.model.clone());
            let followed = if syncs {
                pair.follow_log().and_then(|()| {
                    let follower = pair.follower.as_mut().expect("filled");
                    follower.sync_log()
                })
            } else {
                pair.follow().map(|_| ())
            };
            match followed {
                Ok(()) if syncs => drop(states.drain(..states.len() - 1)),
                Ok(()) => {}
                Err(_) => is_filled = false,
            }
        }
        let was_filled = pair.follower.take().is_some();
        let left = Arc::new(storage.lose_power(PowerLoss::Any));
        let opened = Engine::open(Arc::clone(&left) as Arc<dyn Storage>, options());
        let names = left.list().expect("listed");
        if names.iter().any(|name| name == "FOLLOWER") {
            assert!(
                matches!(opened, Err(LsmError::Follows { .. })),
                "{opened:?}"
            );
        }
        drop(opened);
        match Follower::open(left as Arc<dyn Storage>) {
            Ok(follower) => {
                let found = promoted(follower, seed);
                assert!(states.contains(&found), "seed {seed}");
                promoted_count += 1;
            }
            Err(error) => {
                assert!(!was_filled, "seed {seed}: {error}");
                assert!(matches!(error, LsmError::CannotFollow { .. }), "{error}");
                unfinished_count += 1;
            }
        }
    }
    assert!(
        promoted_count > 30 && unfinished_count > 10,
        "{promoted_count}"
    );
}

/// Promotes a follower, checks that the engine continues, and returns its contents.
fn promoted(follower: Follower, seed: u64) -> Model {
    let engine = follower.promote(options());
    let engine = engine.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let found = all(&engine);
    engine
        .put(b"0", b"", Durability::Sync)
        .expect("it can be written");
    found
}
