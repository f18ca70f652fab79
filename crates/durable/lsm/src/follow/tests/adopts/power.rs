//! Power failures while a copy is replaced.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Promoted, beside, state_of};
use crate::follow::tests::{FollowedEngine, Follower, IndexKind, Model, all, options};
use crate::manifest::ManifestState;
use crate::place::SegmentId;
use crate::storage::{CrashStorage, PowerLoss, Storage};
use crate::{Durability, Engine};

/// Promise: power may fail while a copy is filled beside the previous one, follows, and replaces
/// it. Until it is in force, the previous copy is unchanged. From then on the new one has
/// everything that it had synced, and there is never a state in between. The copy that is not in
/// force does no harm, and each continues as an engine.
#[test]
fn one_copy_or_the_other_is_there() {
    let mut counts = [0; 3];
    for seed in 0..12 {
        cut_once(seed, None, &mut counts);
    }
    assert!(counts[0] > 2 && counts[2] > 2, "{counts:?}");
}

/// Promise: the same holds at each operation of some histories: `cargo test --release -p
/// farleaf-lsm at_each_operation -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn one_copy_or_the_other_is_there_at_each_operation() {
    let mut counts = [0; 3];
    for seed in 1_000..1_040 {
        let mut at = 1;
        while cut_once(seed, Some(at), &mut counts) {
            at += 1;
        }
        println!("seed {seed}: power cut at each of {at} operations");
    }
    println!("the old one, the new one, released: {counts:?}");
}

/// Cuts the power once; returns false if the history was over before.
fn cut_once(seed: u64, cut_at: Option<u64>, counts: &mut [u64; 3]) -> bool {
    let Promoted {
        mut pair,
        copy,
        model,
        mut random,
    } = Promoted::new(seed);
    let mut next = || random.next().expect("endless");
    let new = copy.beside(1);
    let at = cut_at.unwrap_or_else(|| 1 + next() % 120);
    copy.cut_power_at(copy.operation_count() + at);
    let mut is_in_force = false;
    let mut is_released = false;
    let mut states = vec![pair.model.clone()];
    let filled = pair.fill_beside(&new, beside(&copy));
    let mut is_on = filled.is_ok();
    let commits_at = next() % 12;
    for index in 0..24 {
        if !is_on {
            break;
        }
        if index == commits_at {
            // The new copy is durably in force.
            let follower = pair.follower.as_mut().expect("filled");
            if follower.sync_log().is_err() {
                break;
            }
            is_in_force = true;
            is_on = follower.release_previous().is_ok();
            is_released = is_on;
            continue;
        }
        let number = next();
        if number % 3 > 0 {
            pair.step(number);
            states.push(pair.model.clone());
            continue;
        }
        let syncs = number % 2 == 0;
        let followed = if syncs {
            pair.follow_log()
                .and_then(|()| pair.follower.as_mut().expect("filled").sync_log())
        } else {
            pair.follow().map(drop)
        };
        is_on = followed.is_ok();
        if is_on && syncs {
            drop(states.drain(..states.len() - 1));
        }
    }
    drop(pair.follower.take());
    let left = copy.lose_power(PowerLoss::Any);
    let (in_force, other) = if is_in_force {
        (left.beside(1), left.clone())
    } else {
        (left.clone(), left.beside(1))
    };
    let found = goes_on(&in_force, seed);
    if is_in_force {
        assert!(
            states.contains(&found),
            "seed {seed}, cut at {at}: the new copy"
        );
    } else {
        assert!(found == model, "seed {seed}, cut at {at}: the old copy");
    }
    counts[usize::from(is_in_force) + usize::from(is_released)] += 1;
    fills(in_force, &other);
    !is_on
}

/// Fills another copy after the one beside it was removed.
fn fills(in_force: CrashStorage, other: &CrashStorage) {
    for name in other.list().expect("listed") {
        other.remove(&name).expect("removed");
    }
    let engine = Engine::open(Arc::new(in_force) as Arc<dyn Storage>, options());
    let mut pair = FollowedEngine::over(engine.expect("it is an engine's"));
    pair.fill(&CrashStorage::new(1), IndexKind::Sent)
        .expect("filled");
}

/// Promotes a copy and reopens it; returns its contents.
fn goes_on(storage: &CrashStorage, seed: u64) -> Model {
    let follower = Follower::open(Arc::new(storage.clone()) as Arc<dyn Storage>);
    let follower = follower.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let engine = follower.promote(options());
    let engine = engine.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let mut found = all(&engine);
    engine
        .put(b"0", b"more", Durability::Sync)
        .expect("written");
    drop(engine);
    assert!(
        !storage
            .list()
            .expect("listed")
            .iter()
            .any(|name| name == "SHARED")
    );
    let again = Engine::open(Arc::new(storage.clone()) as Arc<dyn Storage>, options());
    let again = again.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let before = found.insert(b"0".to_vec(), b"more".to_vec());
    assert!(all(&again) == found, "seed {seed}");
    match before {
        Some(value) => found.insert(b"0".to_vec(), value),
        None => found.remove(&b"0"[..]),
    };
    found
}

/// Returns the segments of either device that a manifest names.
fn segments_of(state: &ManifestState) -> BTreeSet<(bool, SegmentId)> {
    let log = state.log_segments().into_iter().map(|it| (false, it));
    let trees = state.tree_segments().into_iter().map(|it| (true, it));
    log.chain(trees).collect()
}

/// Promise: a new copy that follows, and is not in force yet, frees shared trees and log segments
/// and writes others. The previous copy stays unchanged.
#[test]
fn the_copy_before_stays_as_it_was() {
    let mut freed_count = 0;
    for seed in 0..5 {
        let Promoted {
            mut pair,
            copy,
            model,
            mut random,
        } = Promoted::new(seed);
        pair.fill_beside(&copy.beside(1), beside(&copy))
            .expect("filled");
        let named = |pair: &FollowedEngine| {
            let follower = pair.follower.as_ref().expect("filled");
            segments_of(&follower.manifest.state())
        };
        let mut taken = segments_of(&state_of(&copy));
        taken.retain(|it| named(&pair).contains(it));
        for _ in 0..150 {
            pair.step(random.next().expect("endless"));
        }
        while pair.follow().expect("no fault is set") {}
        let left = named(&pair);
        freed_count += taken.iter().filter(|it| !left.contains(it)).count();
        drop(pair.follower.take());
        assert!(goes_on(&copy, seed) == model, "seed {seed}");
    }
    assert!(freed_count > 3, "{freed_count}");
}
