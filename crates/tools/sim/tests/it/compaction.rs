//! Compaction of tables with a tree: it happens in the runs, retrainers die in every phase, and no
//! promise breaks.

use farleaf_fabric::ProtocolPhase;
use farleaf_sim::fabric::world::Progress;
use farleaf_sim::plan::{Plan, Profile};
use farleaf_sim::run::run;

use crate::retraining::death;

/// Number of moved leaves that is enough to show that compaction is checked, and number of runs
/// that reach it.
const MOVED_COUNT: u64 = 500;
const DEATH_COUNT: u64 = 5;
const RUN_COUNT_MAX: u64 = 600;

/// Promise: leaves are merged while clients work, in runs that are checked.
#[test]
fn leaves_are_merged() {
    let mut moved_count = 0;
    for seed in 1..=RUN_COUNT_MAX {
        let mut plan = Plan::draw(seed, Profile::Compaction);
        plan.faults.clear();
        let verdict = run(&plan, None, false);
        assert_eq!(verdict.violations, [], "seed {seed}");
        moved_count += verdict.rare_events.moved_count;
        if moved_count >= MOVED_COUNT {
            return;
        }
    }
    panic!("{moved_count} leaves in {RUN_COUNT_MAX} runs");
}

/// Promise: runs survive retrainers that die in any phase of a compaction, also while they finish
/// another's work; and retrainers do die in each phase.
#[test]
fn compactors_die_in_every_phase() {
    use ProtocolPhase::{Gather, GiveBack, Redirect, RootSwap, Snapshot, Steps};
    for phase in [Gather, Redirect, Steps, Snapshot, RootSwap, GiveBack] {
        for is_second in [false, true] {
            let mut death_count = 0;
            for seed in 1..=RUN_COUNT_MAX {
                let mut plan = Plan::draw(seed, Profile::Compaction);
                plan.faults = vec![death(phase, 1 + seed % 3)];
                if is_second {
                    plan.faults.insert(0, death(Steps, 2 + seed % 8));
                }
                let verdict = run(&plan, None, false);
                assert_eq!(verdict.violations, [], "{phase:?}, seed {seed}");
                let is_adopting = false;
                let progress = Progress { is_adopting, phase };
                let deaths = verdict.rare_events.agent_deaths.get(&progress).copied();
                let deaths = deaths.unwrap_or(0);
                let is_counted = !is_second || phase != Steps || deaths > 1;
                death_count += if is_counted { deaths } else { 0 };
                if death_count >= DEATH_COUNT {
                    break;
                }
            }
            assert!(death_count >= DEATH_COUNT, "{phase:?}: {death_count}");
        }
    }
}
