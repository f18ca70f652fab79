//! Calls over one-sided WRITEs, in the simulator.

use farleaf_sim::exchange::{MESSAGES_FOUND_WITHIN_RUN_COUNT, MessagePlant, run_conversation};

/// Number of runs of these tests; a campaign makes more.
const RUN_COUNT: u64 = 1500;

/// Promise: no run breaks a promise, each is repeatable, and the runs reach rare events: dropped
/// calls, callers that die.
#[test]
fn calls_hold_whatever_befalls_their_callers() {
    let (mut answered, mut dropped, mut lost) = (0, 0, 0);
    for seed in 0..RUN_COUNT {
        let run = run_conversation(seed, None);
        assert_eq!(run.violations, [], "seed {seed}");
        if seed % 10 == 0 {
            let again = run_conversation(seed, None);
            assert_eq!(run.fingerprint, again.fingerprint, "seed {seed}");
        }
        answered += run.answered_count;
        dropped += run.dropped_count;
        lost += run.lost_count;
    }
    println!("{answered} answered, {dropped} dropped, {lost} callers lost");
    assert!(answered > 10 * RUN_COUNT && dropped > RUN_COUNT && lost > RUN_COUNT / 4);
}

/// Promise: every planted bug is found.
#[test]
fn every_planted_bug_of_messages_is_found() {
    for plant in MessagePlant::ALL {
        let mut seeds = 1..=MESSAGES_FOUND_WITHIN_RUN_COUNT;
        let found = seeds.find(|seed| !run_conversation(*seed, Some(plant)).violations.is_empty());
        let found = found.unwrap_or_else(|| panic!("{plant} was not found"));
        println!("{plant}: found after {found} runs");
    }
}
