//! Scans of tables of words in descending order: plans whose scans are turned around.

use std::time::{SystemTime, UNIX_EPOCH};

use farleaf_base::random::Random;
use farleaf_sim::campaign::run_safely;
use farleaf_sim::history::{Answer, Operation};
use farleaf_sim::plan::{Plan, Profile};

/// Runs of each profile.
const RUN_COUNT: u64 = 120;

/// Turns most scans around.
fn turn(random: &mut Random, operation: &mut Operation) {
    match operation {
        Operation::Other(inner) => turn(random, inner),
        Operation::Scan(from, limit) if random.chance(800) => {
            // No key is below 0: such a scan would not reach the memory node.
            let to = if random.chance(300) {
                u64::MAX
            } else {
                (*from).max(1)
            };
            *operation = Operation::ScanReverse(to, *limit);
        }
        _ => {}
    }
}

fn turned_plan(seed: u64, profile: Profile) -> Plan {
    let mut plan = Plan::draw(seed, profile);
    let mut random = Random::new(seed);
    let lanes = plan.clients.iter_mut().flat_map(|client| &mut client.lanes);
    for operation in lanes.flatten() {
        turn(&mut random, operation);
    }
    plan
}

/// Promise: under every fault, scans in descending order return each record that was there all the
/// time, and no other, in order. Fresh seeds in each run.
#[test]
fn descending_scans_miss_nothing() {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let first = since.map_or(0, |since| since.as_nanos() as u64) >> 10;
    println!("fresh seeds from {first} on");
    for profile in Profile::ALL {
        if profile == Profile::Bytes {
            continue;
        }
        let mut record_count = 0;
        for seed in first..first + RUN_COUNT {
            let verdict = run_safely(&turned_plan(seed, profile), None, false);
            if let Some(violation) = verdict.violations.first() {
                panic!("profile {profile}, seed {seed}: {violation}");
            }
            for event in &verdict.history.events {
                if let (Operation::ScanReverse(..), Some(Answer::Records(records, _))) =
                    (event.operation.on_table(), &event.answer)
                {
                    record_count += records.len() as u64;
                }
            }
        }
        assert!(
            record_count > 100,
            "profile {profile}: {record_count} records"
        );
    }
}
