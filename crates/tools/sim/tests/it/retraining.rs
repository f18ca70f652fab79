//! Deaths of retrainers: they happen in every phase, and no promise breaks.

use farleaf_fabric::ProtocolPhase;
use farleaf_index::LayerKind;
use farleaf_sim::check::steps::{STEP_BATCH_COUNT_MAX, STEP_LOCK_COUNT_MAX};
use farleaf_sim::fabric::world::Progress;
use farleaf_sim::plan::{Fault, FaultKind, FaultMoment, Plan, Profile};
use farleaf_sim::run::run;

/// Number of deaths in a phase that is enough to show that they are survived, and number of runs
/// that reach it.
const DEATH_COUNT: u64 = 5;
const RUN_COUNT_MAX: u64 = 400;

/// Returns a retrainer's death in a batch of a phase.
pub(super) fn death(phase: ProtocolPhase, number: u64) -> Fault {
    Fault {
        when: FaultMoment::DuringRetraining { phase, number },
        mishap: FaultKind::AgentDeath { fenced_after: 0 },
    }
}

/// Runs tables that are retrained, with only these faults, until agents have died in a phase often
/// enough. No run may have a finding.
fn assert_survived(layer: LayerKind, progress: Progress, faults: impl Fn(u64) -> Vec<Fault>) {
    let mut death_count = 0;
    for seed in 1..=RUN_COUNT_MAX {
        let mut plan = Plan::draw(seed, Profile::Retraining);
        plan.table.layer = layer;
        for client in &mut plan.clients {
            // Only one of the layers supports budgets.
            client.metadata_budget_bytes = None;
        }
        plan.faults = faults(seed);
        let verdict = run(&plan, None, false);
        assert_eq!(verdict.violations, [], "{progress:?}, seed {seed}");
        let deaths = verdict.rare_events.agent_deaths;
        death_count += deaths.get(&progress).copied().unwrap_or(0);
        if death_count >= DEATH_COUNT {
            return;
        }
    }
    panic!("{progress:?}: {death_count} deaths in {RUN_COUNT_MAX} runs");
}

/// Promise: runs survive retrainers that die in any phase of a retraining, whether leaves move or
/// not, and retrainers do die in each.
#[test]
fn retrainers_die_in_every_phase() {
    use ProtocolPhase::{Announce, Gather, GiveBack, Redirect, RootSwap, Snapshot, Steps, Tables};
    let moving = [
        Gather, Steps, Redirect, Tables, Snapshot, RootSwap, GiveBack,
    ];
    let paper = [Gather, Tables, Snapshot, RootSwap, GiveBack, Announce];
    let learned = moving.map(|phase| (LayerKind::Learned, phase));
    let rolex = paper.map(|phase| (LayerKind::Rolex, phase));
    for (layer, phase) in learned.into_iter().chain(rolex) {
        let is_adopting = false;
        let progress = Progress { is_adopting, phase };
        assert_survived(layer, progress, |seed| vec![death(phase, 1 + seed % 3)]);
    }
}

/// Promise: runs survive retrainers that die while they finish another's work.
#[test]
fn adopters_die_in_every_phase() {
    use ProtocolPhase::{Adopt, GiveBack, Redirect, RootSwap, Snapshot, Steps, Tables};
    for phase in [Adopt, Redirect, Tables, Snapshot, RootSwap, GiveBack] {
        let is_adopting = true;
        let progress = Progress { is_adopting, phase };
        assert_survived(LayerKind::Learned, progress, |seed| {
            vec![death(Steps, 2 + seed % 8), death(phase, 1 + seed % 2)]
        });
    }
}

/// Promise: steps reach their limits: four batches, two reachable leaves and one new leaf, in pools
/// of one node (pools of several need more batches). The check that permits exactly these limits
/// thus sees them.
#[test]
fn steps_come_to_all_that_they_may() {
    let (mut batch_count_max, mut taken_count_max, mut made_count_max) = (0, 0, 0);
    for seed in 1..=300 {
        let plan = Plan::draw(seed, Profile::Retraining);
        if plan.node_count > 1 {
            continue;
        }
        let verdict = run(&plan, None, false);
        assert_eq!(verdict.violations, [], "seed {seed}");
        let holding = verdict.holding;
        batch_count_max = batch_count_max.max(holding.batch_count_max);
        taken_count_max = taken_count_max.max(holding.taken_count_max);
        made_count_max = made_count_max.max(holding.made_count_max);
    }
    assert_eq!(batch_count_max, STEP_BATCH_COUNT_MAX);
    assert_eq!(taken_count_max, STEP_LOCK_COUNT_MAX);
    assert_eq!(made_count_max, 1);
}

/// Promise: runs survive clients that die with a ticket of the queue.
#[test]
fn tickets_are_lost() {
    let mut lost_count = 0;
    for seed in 1..=RUN_COUNT_MAX {
        let mut plan = Plan::draw(seed, Profile::Retraining);
        let client = seed as usize % plan.clients.len();
        let fenced_after = 0;
        plan.faults = vec![Fault {
            when: FaultMoment::DuringEnqueueing { client },
            mishap: FaultKind::Death {
                client,
                fenced_after,
            },
        }];
        let verdict = run(&plan, None, false);
        assert_eq!(verdict.violations, [], "seed {seed}");
        lost_count += verdict.rare_events.lost_ticket_count;
    }
    assert!(lost_count >= DEATH_COUNT, "{lost_count}");
}
