//! Many runs, on all processors, until one breaks a promise.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{MessagePlant, converse};
use crate::check::Violation;

/// What is to be run.
#[derive(Clone, Copy, Debug)]
pub struct MessageCampaign {
    /// Seed of the first run; the next has the next one.
    pub first_seed: u64,
    /// How many runs.
    pub run_count: u64,
    /// A bug that is planted.
    pub plant: Option<MessagePlant>,
    /// Threads that run.
    pub thread_count: usize,
}

/// What became of it.
#[derive(Clone, Debug, Default)]
pub struct MessageReport {
    /// Runs that were made, each twice.
    pub run_count: u64,
    /// Calls that ended well.
    pub answered_count: u64,
    /// Calls that were dropped while they were under way.
    pub dropped_count: u64,
    /// Callers that died, or whose connection broke.
    pub lost_count: u64,
    /// Virtual time in them, in nanoseconds.
    pub simulated_ns: u64,
    /// The smallest seed that broke a promise, and what it broke.
    pub finding: Option<(u64, Vec<Violation>)>,
}

/// Runs a campaign, until somebody sets `stop`. `progress` is told, from any thread, how many runs
/// have been made.
pub fn run_message_campaign(
    campaign: &MessageCampaign,
    stop: &AtomicBool,
    progress: impl Fn(u64) + Sync,
) -> MessageReport {
    let (next, report) = (AtomicU64::new(0), Mutex::new(MessageReport::default()));
    let has_found = AtomicBool::new(false);
    let work = || {
        while !has_found.load(Ordering::Relaxed) && !stop.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= campaign.run_count {
                return;
            }
            let seed = campaign.first_seed.wrapping_add(number);
            let of = run_twice(seed, campaign.plant);
            let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
            report.add(of);
            has_found.fetch_or(report.finding.is_some(), Ordering::Relaxed);
            progress(report.run_count);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..campaign.thread_count {
            scope.spawn(work);
        }
    });
    report.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl MessageReport {
    fn add(&mut self, other: Self) {
        self.run_count += other.run_count;
        self.answered_count += other.answered_count;
        self.dropped_count += other.dropped_count;
        self.lost_count += other.lost_count;
        self.simulated_ns += other.simulated_ns;
        let smallest = |finding: &(u64, Vec<Violation>)| finding.0;
        let findings = self.finding.take().into_iter().chain(other.finding);
        self.finding = findings.min_by_key(smallest);
    }
}

/// A panic of the code under test is a finding, and so are two runs of a seed that differ.
fn run_twice(seed: u64, plant: Option<MessagePlant>) -> MessageReport {
    let run = || catch_unwind(AssertUnwindSafe(|| converse(seed, plant)));
    let (Ok(first), Ok(second)) = (run(), run()) else {
        let how = "the code under test panicked";
        return MessageReport {
            run_count: 1,
            finding: Some((seed, vec![Violation::new("panic", how)])),
            ..MessageReport::default()
        };
    };
    let mut violations = first.violations;
    if first.fingerprint != second.fingerprint {
        let how = "two runs of one seed were not the same";
        violations.push(Violation::new("determinism", how));
    }
    MessageReport {
        run_count: 1,
        answered_count: first.answered_count,
        dropped_count: first.dropped_count,
        lost_count: first.lost_count,
        simulated_ns: first.duration,
        finding: (!violations.is_empty()).then_some((seed, violations)),
    }
}
