//! Leaves handed over between writers of a compute node: that it happens, also with unknown
//! outcomes, and that no promise breaks.

use farleaf_index::LayerKind;
use farleaf_sim::plan::{Plan, Profile};
use farleaf_sim::run::run;

/// Number of handed-over leaves that is enough to show that they are checked, and number of runs
/// that reach it.
const HAND_OVER_COUNT: u64 = 100;
const ASKED_PROMISE_COUNT: u64 = 20;
const RUN_COUNT_MAX: u64 = 3000;

/// Counts handed-over leaves, and checks of promised locks, in runs whose clients are all on one
/// compute node, until there are enough.
fn hand_overs(has_faults: bool, asked_promise_count: u64) -> (u64, u64) {
    let (mut handed, mut asked) = (0, 0);
    for seed in 1..=RUN_COUNT_MAX {
        let mut plan = Plan::draw(seed, Profile::Trees);
        if plan.table.layer != LayerKind::Sherman || plan.faults.is_empty() == has_faults {
            continue;
        }
        for client in &mut plan.clients {
            client.compute_node = 0;
        }
        let verdict = run(&plan, None, false);
        assert_eq!(verdict.violations, [], "seed {seed}");
        handed += verdict.rare_events.hand_over_count;
        asked += verdict.rare_events.asked_promise_count;
        if handed >= HAND_OVER_COUNT && asked >= asked_promise_count {
            break;
        }
    }
    (handed, asked)
}

/// Promise: leaves are handed over in runs that are checked. If clients die, are cut off and stop,
/// other clients check promised locks, whether the promise was kept or not.
#[test]
fn leaves_are_handed_over() {
    for (has_faults, asked_promise_count) in [(false, 0), (true, ASKED_PROMISE_COUNT)] {
        let (handed, asked) = hand_overs(has_faults, asked_promise_count);
        assert!(handed >= HAND_OVER_COUNT, "{handed}");
        assert!(asked >= asked_promise_count, "{asked}");
    }
}
