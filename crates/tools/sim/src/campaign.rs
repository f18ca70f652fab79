//! Campaigns: many runs on all processors, until one breaks a promise.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::check::Violation;
use crate::fabric::world::{Fingerprint, LockHolding, Nanos};
use crate::history::History;
use crate::plan::{Plan, Profile};
use crate::plant::Plant;
use crate::reduce::reduce;
use crate::run::{RareEvents, Verdict, run};

/// Seeds of a campaign, and its limits.
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    /// Seed of the first run. Each later run takes the next seed; the last one fits a `u64`, too.
    pub first: u64,
    /// Number of runs.
    pub run_count: u64,
    /// Time at which the campaign stops even if runs are left.
    pub deadline: Option<Instant>,
    /// Number of threads.
    pub thread_count: usize,
}

/// Settings of a campaign.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    /// Seeds to run.
    pub seeds: Seeds,
    /// Failure profile of the runs.
    pub profile: Profile,
    /// Planted bug, if any.
    pub plant: Option<Plant>,
}

/// Result of one seed, whose plan was run twice.
#[derive(Clone, Debug)]
pub(crate) struct SeedResult {
    pub(crate) operation_count: u64,
    pub(crate) duration: Nanos,
    pub(crate) violations: Vec<Violation>,
}

/// A run that broke a promise.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Number of the run, counted from 0.
    pub number: u64,
    /// Seed of the run.
    pub seed: u64,
    /// Promises that the run broke.
    pub violations: Vec<Violation>,
}

/// Result of a campaign.
#[derive(Clone, Debug)]
pub struct CampaignReport {
    /// Runs outcome, each twice, from the first seed to the finding, if any.
    pub run_count: u64,
    /// Operations of the campaign's runs.
    pub operation_count: u64,
    /// Virtual time of the campaign's runs, in nanoseconds.
    pub simulated_ns: u64,
    /// The first run that broke a promise.
    pub finding: Option<Finding>,
}

/// Runs a campaign. Once `stop` is set, the runs in progress are the last. Any thread calls
/// `progress` with the number of runs outcome.
pub fn run_campaign(
    campaign: &Campaign,
    stop: &AtomicBool,
    progress: impl Fn(u64) + Sync,
) -> CampaignReport {
    let make = |seed| {
        let plan = Plan::draw(seed, campaign.profile);
        let verdict = run_twice(&plan, campaign.plant);
        SeedResult {
            operation_count: plan.operation_count() as u64,
            duration: verdict.duration,
            violations: verdict.violations,
        }
    };
    run_seeds(&campaign.seeds, stop, make, progress)
}

/// Runs a campaign of any kind of runs; see [`run_campaign`].
pub(crate) fn run_seeds(
    seeds: &Seeds,
    stop: &AtomicBool,
    make: impl Fn(u64) -> SeedResult + Sync,
    progress: impl Fn(u64) + Sync,
) -> CampaignReport {
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let operations = AtomicU64::new(0);
    let simulated = AtomicU64::new(0);
    let has_found = AtomicBool::new(false);
    let findings: Mutex<Vec<Finding>> = Mutex::default();
    let work = || {
        loop {
            let is_late = seeds
                .deadline
                .is_some_and(|deadline| Instant::now() >= deadline);
            let is_over = has_found.load(Ordering::Relaxed) || stop.load(Ordering::Relaxed);
            if is_late || is_over {
                return;
            }
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= seeds.run_count {
                return;
            }
            let seed = seeds.first.wrapping_add(number);
            let outcome = make(seed);
            operations.fetch_add(outcome.operation_count, Ordering::Relaxed);
            simulated.fetch_add(outcome.duration, Ordering::Relaxed);
            if !outcome.violations.is_empty() {
                has_found.store(true, Ordering::Relaxed);
                let violations = outcome.violations;
                let mut findings = findings
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                findings.push(Finding {
                    number,
                    seed,
                    violations,
                });
            }
            progress(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..seeds.thread_count {
            scope.spawn(work);
        }
    });
    let findings = findings
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let finding = findings.into_iter().min_by_key(|finding| finding.number);
    // Runs with smaller numbers started earlier and are done; later ones do not count.
    let run_count = match &finding {
        Some(finding) => finding.number + 1,
        None => done.into_inner(),
    };
    CampaignReport {
        run_count,
        operation_count: operations.into_inner(),
        simulated_ns: simulated.into_inner(),
        finding,
    }
}

/// Runs a plan twice and compares the results: a run that is not repeatable proves nothing.
pub fn run_twice(plan: &Plan, plant: Option<Plant>) -> Verdict {
    let mut first = run_safely(plan, plant, false);
    let second = run_safely(plan, plant, false);
    let are_same = first.fingerprint == second.fingerprint
        && first.history.lines().eq(second.history.lines())
        && first.violations == second.violations;
    if !are_same {
        let how = format!(
            "two runs of one plan differ: {:x} and {:x}",
            first.fingerprint.0, second.fingerprint.0
        );
        first.violations.push(Violation::new("determinism", how));
    }
    first
}

/// Calls [`run`] and reports a panic as a broken promise.
pub fn run_safely(plan: &Plan, plant: Option<Plant>, keep_trace: bool) -> Verdict {
    let caught = catch(|| run(plan, plant, keep_trace));
    caught.unwrap_or_else(|panic| Verdict {
        fingerprint: Fingerprint::default(),
        violations: vec![panic],
        history: History::default(),
        trace: Vec::new(),
        duration: 0,
        holding: LockHolding::default(),
        rare_events: RareEvents::default(),
    })
}

/// Returns the result of a run, or its panic as a broken promise. A run owns all its data, so
/// nothing else sees what a panic leaves half done.
pub(crate) fn catch<R>(run: impl FnOnce() -> R) -> Result<R, Violation> {
    let caught = catch_unwind(AssertUnwindSafe(run));
    caught.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Violation::new("panic", text.unwrap_or("panic without a message"))
    })
}

/// Reduces the plan of a failing seed to the smallest one found that breaks a promise, and returns
/// it with a traced run. Once `stop` is set, it returns the smallest so far.
pub fn explain(
    seed: u64,
    profile: Profile,
    plant: Option<Plant>,
    attempt_count_max: u64,
    stop: &AtomicBool,
) -> (Plan, Verdict) {
    let plan = Plan::draw(seed, profile);
    let promises = |verdict: &Verdict| -> Vec<&'static str> {
        verdict
            .violations
            .iter()
            .map(|violation| violation.promise)
            .collect()
    };
    let broken = promises(&run_twice(&plan, plant));
    let reduced = reduce(&plan, attempt_count_max, |candidate| {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        let found = promises(&run_twice(candidate, plant));
        found.iter().any(|promise| broken.contains(promise))
    });
    let verdict = run_safely(&reduced, plant, true);
    (reduced, verdict)
}
