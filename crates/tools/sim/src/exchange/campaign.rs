//! Many runs, on all processors, until one breaks a promise.

use std::sync::atomic::AtomicBool;

use super::{MessagePlant, converse};
use crate::campaign::{CampaignReport, Made, Seeds, catch, run_seeds};
use crate::check::Violation;

/// Runs conversations, until somebody sets `stop`; calls that ended well are its operations.
/// `progress` is told, from any thread, how many runs have been made.
pub fn run_message_campaign(
    seeds: &Seeds,
    plant: Option<MessagePlant>,
    stop: &AtomicBool,
    progress: impl Fn(u64) + Sync,
) -> CampaignReport {
    run_seeds(seeds, stop, |seed| run_twice(seed, plant), progress)
}

/// A panic of the code under test is a finding, and so are two runs of a seed that differ.
fn run_twice(seed: u64, plant: Option<MessagePlant>) -> Made {
    let run = || catch(|| converse(seed, plant));
    match (run(), run()) {
        (Ok(first), Ok(second)) => {
            let mut violations = first.violations;
            if first.fingerprint != second.fingerprint {
                let (first, second) = (first.fingerprint.0, second.fingerprint.0);
                let how = format!("two runs of one seed differ: {first:x} and {second:x}");
                violations.push(Violation::new("determinism", how));
            }
            Made {
                operation_count: first.answered_count,
                duration: first.duration,
                violations,
            }
        }
        (Err(panic), _) | (_, Err(panic)) => Made {
            operation_count: 0,
            duration: 0,
            violations: vec![panic],
        },
    }
}
