//! Calls over one-sided WRITEs, in the simulator (E1 to E9).

use farleaf_sim::exchange::{MESSAGES_FOUND_WITHIN_RUN_COUNT, MessagePlant, converse};

/// Runs that are made here; a campaign makes more.
const RUN_COUNT: u64 = 1500;

/// Promise: no run breaks a promise, each is the same when it is made again, and they come to what
/// is rare: calls that are dropped, callers that die.
#[test]
fn calls_hold_whatever_befalls_their_callers() {
    let (mut answered, mut dropped, mut lost) = (0, 0, 0);
    for seed in 0..RUN_COUNT {
        let run = converse(seed, None);
        assert_eq!(run.violations, [], "seed {seed}");
        if seed % 10 == 0 {
            let again = converse(seed, None);
            assert_eq!(run.fingerprint, again.fingerprint, "seed {seed}");
        }
        answered += run.answered_count;
        dropped += run.dropped_count;
        lost += run.lost_count;
    }
    println!("{answered} answered, {dropped} dropped, {lost} callers lost");
    assert!(answered > 10 * RUN_COUNT && dropped > RUN_COUNT && lost > RUN_COUNT / 4);
}

/// The judge's own test: each bug that can be planted is found.
#[test]
fn every_planted_bug_of_messages_is_found() {
    for plant in MessagePlant::ALL {
        let mut seeds = 1..=MESSAGES_FOUND_WITHIN_RUN_COUNT;
        let found = seeds.find(|seed| !converse(*seed, Some(plant)).violations.is_empty());
        let found = found.unwrap_or_else(|| panic!("{plant} was not found"));
        println!("{plant}: found after {found} runs");
    }
}
