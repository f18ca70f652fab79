//! Rounds: each engine in its own empty directory, one after the other.

use std::path::Path;

use anyhow::{Context, ensure};
use serde::Serialize;

use crate::device::DeviceBytes;
use crate::engines::{EngineName, Shape};
use crate::work::{Amount, Phase};

/// What is compared.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Engines, in the order of each round.
    pub engines: Vec<EngineName>,
    /// Phases, in their order; a load comes first.
    pub phases: Vec<Phase>,
    /// How much is done in each.
    pub amount: Amount,
    /// What all engines are given.
    pub shape: Shape,
    /// Rounds.
    pub round_count: usize,
}

/// One phase of one engine in one round.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Measured {
    /// Operations in a second.
    pub operations_per_second: f64,
    /// Device bytes written for each byte of keys and values that was put; `None`: nothing was
    /// put, or the system does not count.
    pub write_amplification: Option<f64>,
}

/// Does all rounds; for each engine and phase what was measured, in the order of the plan. `tell`
/// is told of each step.
///
/// # Errors
/// An engine fails, or two of them have found different things.
pub fn compare(
    plan: &Plan,
    directory: &Path,
    mut tell: impl FnMut(String),
) -> anyhow::Result<Vec<Vec<Vec<Measured>>>> {
    let row = || vec![Vec::new(); plan.phases.len()];
    let mut all: Vec<Vec<Vec<Measured>>> = plan.engines.iter().map(|_| row()).collect();
    for round in 0..plan.round_count {
        let mut found_first: Option<Vec<u64>> = None;
        for (engine, name) in plan.engines.iter().enumerate() {
            let step = || format!("round {}: {}", round + 1, name.text());
            tell(step());
            let done = run_one(plan, *name, directory, (round, &mut all[engine]));
            let found = done.with_context(step)?;
            let first = found_first.get_or_insert_with(|| found.clone());
            // Threads share a phase's stream of turns, so only one alone asks for the same.
            let is_comparable = plan.amount.thread_count == 1;
            ensure!(
                !is_comparable || *first == found,
                "{} has found {found:?}, and {} has found {first:?}",
                name.text(),
                plan.engines[0].text(),
            );
        }
    }
    Ok(all)
}

/// All phases of one engine, in a new directory; what each has found.
fn run_one(
    plan: &Plan,
    name: EngineName,
    directory: &Path,
    (round, measured): (usize, &mut [Vec<Measured>]),
) -> anyhow::Result<Vec<u64>> {
    let own = tempfile::Builder::new()
        .prefix("farleaf-bench-lsm-")
        .tempdir_in(directory)
        .with_context(|| format!("no directory can be made in {}", directory.display()))?;
    let engine = name.open(own.path(), plan.shape)?;
    let amount = Amount {
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
        measured.push(Measured {
            operations_per_second: done.operation_count as f64 / done.time.as_secs_f64(),
            write_amplification: written
                .filter(|_| put > 0)
                .map(|written| written as f64 / put as f64),
        });
        found.push(done.found);
    }
    Ok(found)
}
