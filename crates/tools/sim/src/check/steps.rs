//! Checks that an operation waits for at most one step of a retrainer: a retrainer holds a leaf
//! lock for few batches and no longer than these take, and holds few locks at once.

use super::Violation;
use crate::fabric::world::LockHolding;

/// Batches of a step from lock to unlock: lock the right leaf, lock the left leaf, unlock it
/// because it does not fit, write the moved records.
pub const STEP_BATCH_COUNT_MAX: u64 = 4;
/// One more batch if the records move to another node.
const OTHER_NODE_BATCH_COUNT: u64 = 1;
/// Leaves that a step locks: the two that are merged.
pub const STEP_LOCK_COUNT_MAX: usize = 2;
/// Leaves that a step creates.
const STEP_MADE_COUNT_MAX: usize = 1;

/// Checks how the node's agents of a run held leaf locks.
///
/// In virtual time: no lock was held for longer than four times the longest batch of its holder,
/// however long the fabric made that batch.
pub fn check(holding: &LockHolding, node_count: u8) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut report_violation = |how| found.push(Violation::new("steps", how));
    let LockHolding {
        taken_count_max,
        made_count_max,
        batch_count_max,
        held_ns_max,
        idle_ns_max,
        ..
    } = *holding;
    let other_node_batch_count = match node_count {
        1 => 0,
        _ => OTHER_NODE_BATCH_COUNT,
    };
    let step_batch_count_max = STEP_BATCH_COUNT_MAX + other_node_batch_count;
    if batch_count_max > step_batch_count_max {
        report_violation(format!(
            "the agent held a leaf lock for {batch_count_max} batches, and one for {held_ns_max} \
             ns; a step has at most {step_batch_count_max} batches"
        ));
    }
    if idle_ns_max > 0 {
        report_violation(format!(
            "the agent held a leaf lock for {idle_ns_max} ns without a batch in flight"
        ));
    }
    if taken_count_max > STEP_LOCK_COUNT_MAX || made_count_max > STEP_MADE_COUNT_MAX {
        report_violation(format!(
            "the agent held {taken_count_max} leaves at once, and {made_count_max} that it created"
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a step of maximal length is no finding, and each excess is one by itself.
    #[test]
    fn whatever_is_more_than_a_step_is_seen() {
        let step = LockHolding {
            count: 10,
            taken_count_max: 2,
            made_count_max: 1,
            batch_count_max: 4,
            held_ns_max: 1_000_000,
            idle_ns_max: 0,
        };
        assert_eq!(check(&step, 1), []);
        let changes: [fn(&mut LockHolding); 4] = [
            |holding| holding.taken_count_max = 3,
            |holding| holding.made_count_max = 2,
            |holding| holding.batch_count_max = 5,
            |holding| holding.idle_ns_max = 1,
        ];
        for change in changes {
            let mut holding = step;
            change(&mut holding);
            assert_eq!(check(&holding, 1).len(), 1, "{holding:?}");
        }
        let to_other_node = LockHolding {
            batch_count_max: 5,
            ..step
        };
        assert_eq!(check(&to_other_node, 2), []);
    }
}
