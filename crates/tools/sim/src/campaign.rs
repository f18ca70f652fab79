//! Many runs, on all processors, until one breaks a promise.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::check::Violation;
use crate::fabric::world::{Fingerprint, Holding, Nanos};
use crate::history::History;
use crate::plan::{Plan, Profile};
use crate::plant::Plant;
use crate::reduce::reduce;
use crate::run::{Reached, Verdict, run};

/// Which runs are made, and by how many.
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    /// Seed of the first run; the next has the next one. The last is a `u64`, too.
    pub first: u64,
    /// How many runs.
    pub run_count: u64,
    /// When to stop even so.
    pub deadline: Option<Instant>,
    /// Threads that run.
    pub thread_count: usize,
}

/// What is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    /// Which plans.
    pub seeds: Seeds,
    /// What befalls the clients.
    pub profile: Profile,
    /// A bug that is planted.
    pub plant: Option<Plant>,
}

/// What became of a seed, whose run was made twice.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) operation_count: u64,
    pub(crate) duration: Nanos,
    pub(crate) violations: Vec<Violation>,
}

/// A run that broke a promise.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Which run it was, from 0.
    pub number: u64,
    /// Its seed.
    pub seed: u64,
    /// What it broke.
    pub violations: Vec<Violation>,
}

/// What became of a campaign.
#[derive(Clone, Debug)]
pub struct CampaignReport {
    /// Runs that were made, each twice, with the first seeds; up to the finding, if there is one.
    pub run_count: u64,
    /// Operations in them.
    pub operation_count: u64,
    /// Virtual time in them, in nanoseconds.
    pub simulated_ns: u64,
    /// The first run that broke a promise.
    pub finding: Option<Finding>,
}

/// Runs a campaign, until somebody sets `stop`: then the runs that are under way are the last.
/// `progress` is told, from any thread, how many runs have been made.
pub fn run_campaign(
    campaign: &Campaign,
    stop: &AtomicBool,
    progress: impl Fn(u64) + Sync,
) -> CampaignReport {
    let make = |seed| {
        let plan = Plan::draw(seed, campaign.profile);
        let verdict = run_twice(&plan, campaign.plant);
        Made {
            operation_count: plan.operation_count() as u64,
            duration: verdict.duration,
            violations: verdict.violations,
        }
    };
    run_seeds(&campaign.seeds, stop, make, progress)
}

/// The same, for runs of any kind.
pub(crate) fn run_seeds(
    seeds: &Seeds,
    stop: &AtomicBool,
    make: impl Fn(u64) -> Made + Sync,
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
            let made = make(seed);
            operations.fetch_add(made.operation_count, Ordering::Relaxed);
            simulated.fetch_add(made.duration, Ordering::Relaxed);
            if !made.violations.is_empty() {
                has_found.store(true, Ordering::Relaxed);
                let violations = made.violations;
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
    // Runs with smaller numbers were begun before, and are done; later ones do not count.
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

/// Runs a plan twice and compares: a run that differs from itself proves nothing.
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

/// [`run`], in which a panic is a broken promise like any other.
pub fn run_safely(plan: &Plan, plant: Option<Plant>, keep_trace: bool) -> Verdict {
    let caught = catch(|| run(plan, plant, keep_trace));
    caught.unwrap_or_else(|panic| Verdict {
        fingerprint: Fingerprint::default(),
        violations: vec![panic],
        history: History::default(),
        trace: Vec::new(),
        duration: 0,
        holding: Holding::default(),
        reached: Reached::default(),
    })
}

/// What a run comes to; a panic of it is a broken promise. A run owns all that it touches, so
/// whatever a panic leaves half done is not looked at again.
pub(crate) fn catch<R>(run: impl FnOnce() -> R) -> Result<R, Violation> {
    let caught = catch_unwind(AssertUnwindSafe(run));
    caught.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Violation::new("panic", text.unwrap_or("without words"))
    })
}

/// The smallest plan that was found to break a promise as the plan of a seed does, and its run with
/// a trace. Once somebody sets `stop`, it is the smallest so far.
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
