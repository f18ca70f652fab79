//! Retrainers that die: that it happens wherever it can, and that nothing comes of it.

use farleaf_fabric::ProtocolPhase;
use farleaf_index::LayerKind;
use farleaf_sim::check::steps::{STEP_BATCH_COUNT_MAX, STEP_LOCK_COUNT_MAX};
use farleaf_sim::fabric::world::Progress;
use farleaf_sim::plan::{Fault, Mishap, Plan, Profile, When};
use farleaf_sim::run::run;

/// Deaths in a phase that are enough to believe that it is survived, and runs in which they come.
const DEATH_COUNT: u64 = 5;
const RUN_COUNT_MAX: u64 = 400;

/// A retrainer's death in a batch of a phase.
pub(super) fn death(phase: ProtocolPhase, number: u64) -> Fault {
    Fault {
        when: When::DuringRetraining { phase, number },
        mishap: Mishap::AgentDeath { fenced_after: 0 },
    }
}

/// Runs tables that are retrained, with these faults and no others, until agents have died in a
/// phase often enough. Nothing may be found in any run.
fn assert_survived(layer: LayerKind, progress: Progress, faults: impl Fn(u64) -> Vec<Fault>) {
    let mut death_count = 0;
    for seed in 1..=RUN_COUNT_MAX {
        let mut plan = Plan::draw(seed, Profile::Retraining);
        plan.table.layer = layer;
        for client in &mut plan.clients {
            // Only one of the layers can do with less.
            client.metadata_budget_bytes = None;
        }
        plan.faults = faults(seed);
        let verdict = run(&plan, None, false);
        assert_eq!(verdict.violations, [], "{progress:?}, seed {seed}");
        let deaths = verdict.reached.agent_deaths;
        death_count += deaths.get(&progress).copied().unwrap_or(0);
        if death_count >= DEATH_COUNT {
            return;
        }
    }
    panic!("{progress:?}: {death_count} deaths in {RUN_COUNT_MAX} runs");
}

/// Promise (R6, X1): retrainers that die in any phase of a retraining are survived, whether leaves
/// are moved or stay, and they do die in each.
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

/// Promise (R6): and so are those that die while they finish what another has left half done.
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

/// Promise (R8): steps come to all that they may: four batches, two leaves that others know and one
/// that they do not, in pools of one node (M4: of several, more batches). So the judge who allows
/// so much, and no more, sees what it judges.
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

/// Promise (Q5): clients die with a ticket of the queue in hand, and nothing comes of it.
#[test]
fn tickets_are_lost() {
    let mut lost_count = 0;
    for seed in 1..=RUN_COUNT_MAX {
        let mut plan = Plan::draw(seed, Profile::Retraining);
        let client = seed as usize % plan.clients.len();
        let fenced_after = 0;
        plan.faults = vec![Fault {
            when: When::DuringEnqueueing { client },
            mishap: Mishap::Death {
                client,
                fenced_after,
            },
        }];
        let verdict = run(&plan, None, false);
        assert_eq!(verdict.violations, [], "seed {seed}");
        lost_count += verdict.reached.lost_ticket_count;
    }
    assert!(lost_count >= DEATH_COUNT, "{lost_count}");
}
