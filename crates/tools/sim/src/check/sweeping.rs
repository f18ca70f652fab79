//! D8: a session that nothing befell leaves nothing behind, so that there is nothing to sweep for
//! it: what it says with "drained" is true.

use farleaf_node::sweep::SweepReport;

use super::Violation;

/// Judges the last sweep of a run in which nothing befell anybody, and in which nothing was
/// retrained: what retraining leaves behind is for sweeps.
pub fn check(report: &SweepReport) -> Option<Violation> {
    let counts = (report.lock_count, report.chunk_count, report.leaf_count);
    let damaged_count = report.damaged_count;
    (counts != (0, 0, 0) || damaged_count != 0).then(|| {
        let (locks, chunks, leaves) = counts;
        let how = format!(
            "nothing befell anybody, and the last sweep found {locks} locks, {chunks} chunks, \
             {leaves} leaves and {damaged_count} damaged places"
        );
        Violation::new("sweeping", how)
    })
}

/// BV11: where `holding_count` sessions have ended and not said that they hold nothing, all others
/// had no value block that nothing refers to.
pub fn check_blocks(report: &SweepReport, holding_count: u64) -> Option<Violation> {
    (holding_count == 0 && report.block_count > 0).then(|| {
        let how = format!(
            "every session has said that it holds nothing, and the last sweep found {} value \
             blocks that nothing refers to",
            report.block_count
        );
        Violation::new("sweeping", how)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: each kind of thing that is left behind is seen by itself.
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
