//! Campaigns of message runs: many runs on all processors, until one breaks a promise.

use std::sync::atomic::AtomicBool;

use super::{MessagePlant, run_conversation};
use crate::campaign::{CampaignReport, SeedResult, Seeds, catch, run_seeds};
use crate::check::Violation;

/// Runs conversations until `stop` is set; successful calls count as operations. Any thread calls
/// `progress` with the number of runs made.
pub fn run_message_campaign(
    seeds: &Seeds,
    plant: Option<MessagePlant>,
    stop: &AtomicBool,
    progress: impl Fn(u64) + Sync,
) -> CampaignReport {
    run_seeds(seeds, stop, |seed| run_twice(seed, plant), progress)
}

/// Runs a seed twice. A panic of the code under test is a finding, and so are two runs that differ.
fn run_twice(seed: u64, plant: Option<MessagePlant>) -> SeedResult {
    let run = || catch(|| run_conversation(seed, plant));
    match (run(), run()) {
        (Ok(first), Ok(second)) => {
            let mut violations = first.violations;
            if first.fingerprint != second.fingerprint {
                let (first, second) = (first.fingerprint.0, second.fingerprint.0);
                let how = format!("two runs of one seed differ: {first:x} and {second:x}");
                violations.push(Violation::new("determinism", how));
            }
            SeedResult {
                operation_count: first.answered_count,
                duration: first.duration,
                violations,
            }
        }
        (Err(panic), _) | (_, Err(panic)) => SeedResult {
            operation_count: 0,
            duration: 0,
            violations: vec![panic],
        },
    }
}
