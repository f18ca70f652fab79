//! Comparison in rounds: each engine in its own empty directory, one after the other.

use std::path::Path;

use anyhow::{Context, ensure};
use serde::Serialize;

use crate::device::DeviceBytes;
use crate::engines::{EngineName, EngineSettings};
use crate::work::{Phase, WorkAmount};

/// Settings of a comparison.
#[derive(Clone, Debug)]
pub struct LsmComparisonPlan {
    /// Engines, in the order of each round.
    pub engines: Vec<EngineName>,
    /// Phases, in their order; a load comes first.
    pub phases: Vec<Phase>,
    /// Quantity of work in each phase.
    pub amount: WorkAmount,
    /// Settings of all engines.
    pub shape: EngineSettings,
    /// Number of rounds.
    pub round_count: usize,
}

/// Results of one phase of one engine in one round.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PhaseMeasurement {
    /// Operations per second.
    pub operations_per_second: f64,
    /// Device bytes written per byte of keys and values that was put; `None` if nothing was put, or
    /// the system does not count.
    pub write_amplification: Option<f64>,
}

/// Runs all rounds. Returns the results for each engine and phase, in the order of the plan. `tell`
/// is called with each step.
///
/// # Errors
/// An engine failed, or two engines returned different results.
pub fn compare(
    plan: &LsmComparisonPlan,
    directory: &Path,
    mut tell: impl FnMut(String),
) -> anyhow::Result<Vec<Vec<Vec<PhaseMeasurement>>>> {
    let row = || vec![Vec::new(); plan.phases.len()];
    let mut all: Vec<Vec<Vec<PhaseMeasurement>>> = plan.engines.iter().map(|_| row()).collect();
    for round in 0..plan.round_count {
        let mut found_first: Option<Vec<u64>> = None;
        for (engine, name) in plan.engines.iter().enumerate() {
            let step = || format!("round {}: {}", round + 1, name.text());
            tell(step());
            let done = run_one(plan, *name, directory, round, &mut all[engine]);
            let found = done.with_context(step)?;
            let first = found_first.get_or_insert_with(|| found.clone());
            // Threads share a phase's stream of turns, so only a single thread makes the same
            // requests every time.
            let is_comparable = plan.amount.thread_count == 1;
            ensure!(
                !is_comparable || *first == found,
                "results differ: {} found {found:?}, {} found {first:?}",
                name.text(),
                plan.engines[0].text(),
            );
        }
    }
    Ok(all)
}

/// Runs all phases of one engine, in a new directory. Returns the results of each.
fn run_one(
    plan: &LsmComparisonPlan,
    name: EngineName,
    directory: &Path,
    round: usize,
    measured: &mut [Vec<PhaseMeasurement>],
) -> anyhow::Result<Vec<u64>> {
    let own = tempfile::Builder::new()
        .prefix("farleaf-bench-lsm-")
        .tempdir_in(directory)
        .with_context(|| format!("cannot create a directory in '{}'", directory.display()))?;
    let engine = name.open(own.path(), plan.shape)?;
    let amount = WorkAmount {
        seed: plan.amount.seed + round as u64,
        ..plan.amount
    };
    let mut found = Vec::new();
    for (phase, measured) in plan.phases.iter().zip(measured) {
        let before = DeviceBytes::now();
        let done = amount.run(&*engine, *phase)?;
        let written = before.zip(DeviceBytes::now());
        let written = written.map(|(before, after)| after.since(before).written);
        let put = done.put_size_bytes;
        measured.push(PhaseMeasurement {
            operations_per_second: done.operation_count as f64 / done.time.as_secs_f64(),
            write_amplification: written
                .filter(|_| put > 0)
                .map(|written| written as f64 / put as f64),
        });
        found.push(done.found);
    }
    Ok(found)
}
