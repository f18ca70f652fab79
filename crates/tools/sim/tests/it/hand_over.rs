//! Writers of a compute node that hand leaves over to each other (H1 to H5): that it happens, also
//! where it is not known whether it has happened, and that nothing comes of it.

use farleaf_index::LayerKind;
use farleaf_sim::plan::{Plan, Profile};
use farleaf_sim::run::run;

/// What is enough to believe that it is judged, and runs in which it comes.
const HAND_OVER_COUNT: u64 = 100;
const ASKED_PROMISE_COUNT: u64 = 20;
const RUN_COUNT_MAX: u64 = 3000;

/// Hand-overs, and promises that were asked after, of runs whose clients are all on one compute
/// node; until there are enough.
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
        handed += verdict.reached.hand_over_count;
        asked += verdict.reached.asked_promise_count;
        if handed >= HAND_OVER_COUNT && asked >= asked_promise_count {
            break;
        }
    }
    (handed, asked)
}

/// Promise (H2, H3): leaves are handed over in runs that the judges see; and where clients die, are
/// cut off and stopped, promises are asked after that may have been kept or not.
#[test]
fn leaves_are_handed_over() {
    for (has_faults, asked_promise_count) in [(false, 0), (true, ASKED_PROMISE_COUNT)] {
        let (handed, asked) = hand_overs(has_faults, asked_promise_count);
        assert!(handed >= HAND_OVER_COUNT, "{handed}");
        assert!(asked >= asked_promise_count, "{asked}");
    }
}
