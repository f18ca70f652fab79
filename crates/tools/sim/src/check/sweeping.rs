//! Checks LEAF-8: a session without faults leaves nothing to sweep, so its report "drained" is
//! true.

use farleaf_node::sweep::SweepReport;

use super::Violation;

/// Checks the last sweep of a run without faults and without retraining; leftovers of retraining
/// are for sweeps.
pub fn check(report: &SweepReport) -> Option<Violation> {
    let counts = (report.lock_count, report.chunk_count, report.leaf_count);
    let damaged_count = report.damaged_count;
    (counts != (0, 0, 0) || damaged_count != 0).then(|| {
        let (locks, chunks, leaves) = counts;
        let how = format!(
            "without any fault, the last sweep found {locks} locks, {chunks} chunks, {leaves} \
             leaves and {damaged_count} corrupted places"
        );
        Violation::new("sweeping", how)
    })
}

/// Checks value blocks: if `holding_count` sessions ended without reporting that they hold nothing,
/// no other session left an unlinked value block.
pub fn check_blocks(report: &SweepReport, holding_count: u64) -> Option<Violation> {
    (holding_count == 0 && report.block_count > 0).then(|| {
        let how = format!(
            "every session reported that it holds nothing, but the last sweep found {} value \
             blocks without a reference",
            report.block_count
        );
        Violation::new("sweeping", how)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: each kind of leftover is found by itself.
    #[test]
    fn whatever_is_left_is_seen() {
        let nothing = SweepReport::default();
        assert_eq!(check(&nothing), None);
        let changes: [fn(&mut SweepReport); 4] = [
            |report| report.lock_count = 1,
            |report| report.chunk_count = 1,
            |report| report.leaf_count = 1,
            |report| report.damaged_count = 1,
        ];
        for change in changes {
            let mut report = nothing;
            change(&mut report);
            assert!(check(&report).is_some(), "{report:?}");
        }
        let held = SweepReport {
            block_count: 1,
            ..nothing
        };
        assert_eq!(check_blocks(&held, 1), None, "somebody has not said so");
        assert!(check_blocks(&held, 0).is_some());
    }
}
