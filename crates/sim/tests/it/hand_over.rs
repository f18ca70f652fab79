//! Writers of a compute node that hand leaves over to each other (H1 to H5): that it happens, also
//! where they die, and that nothing comes of it.

use farleaf_index::LayerKind;
use farleaf_sim::plan::{Plan, Profile};
use farleaf_sim::run::run;

/// Hand-overs that are enough to believe that they are judged, and runs in which they come.
const HAND_OVER_COUNT: u64 = 100;
const RUN_COUNT_MAX: u64 = 1000;

/// Hand-overs of runs whose clients are all on one compute node, and write what others write.
fn hand_overs(has_faults: bool) -> u64 {
    let mut hand_over_count = 0;
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
        hand_over_count += verdict.reached.hand_over_count;
        if hand_over_count >= HAND_OVER_COUNT {
            break;
        }
    }
    hand_over_count
}

/// Promise (H2): leaves are handed over in runs that the judges see, with faults and without.
#[test]
fn leaves_are_handed_over() {
    for has_faults in [false, true] {
        let hand_over_count = hand_overs(has_faults);
        assert!(hand_over_count >= HAND_OVER_COUNT, "{hand_over_count}");
    }
}
