//! Backups that did not write what their primary wrote, until they are repaired.

use std::collections::BTreeSet;
use std::sync::Mutex;

use farleaf_cluster::ids::{RegionId, ReplicaNumber, ServerId};
use farleaf_cluster::record::mismatch::MISMATCH_COUNT_MAX;
use farleaf_cluster::record::{MismatchReport, PartSum, PrimaryReport};
use farleaf_lsm::written::WrittenSum;
use farleaf_replica::Mismatch;

use crate::sync::lock;

/// Mismatches that a primary has found. They are only in memory: another primary compares
/// everything again when it fills its backups.
#[derive(Debug, Default)]
pub(crate) struct Mismatches {
    known: Mutex<KnownMismatches>,
}

#[derive(Debug, Default)]
struct KnownMismatches {
    /// Unrepaired mismatches, oldest first.
    open: Vec<OpenMismatch>,
    count: u64,
    /// Backups that are ordered now.
    ordered: BTreeSet<ReplicaNumber>,
    /// Newest backup that was ever ordered.
    newest: Option<ReplicaNumber>,
}

/// A mismatch that is not repaired.
#[derive(Debug)]
struct OpenMismatch {
    report: MismatchReport,
    found: Mismatch,
    /// Newest backup when the mismatch was found: a later one replaces the backup of the mismatch.
    newest: Option<ReplicaNumber>,
}

impl Mismatches {
    /// Sets the ordered backups.
    pub(crate) fn note_ordered(&self, backups: impl Iterator<Item = ReplicaNumber>) {
        let known = &mut *lock(&self.known);
        known.ordered = backups.collect();
        known.newest = known.newest.max(known.ordered.last().copied());
    }

    /// Logs and counts a mismatch, if it is not known yet.
    pub(crate) fn note(
        &self,
        region: RegionId,
        replica: ReplicaNumber,
        server: ServerId,
        found: &Mismatch,
    ) {
        let known = &mut *lock(&self.known);
        let is_known = |open: &OpenMismatch| open.report.replica == replica && open.found == *found;
        if known.open.iter().any(is_known) {
            return;
        }
        tracing::error!(
            "{region}: {found} (replica {} on {server}); copying it again from the primary",
            replica.0
        );
        known.count += 1;
        let report = MismatchReport {
            replica,
            server,
            part: found.part.to_string(),
            primary: part_sum(found.primary),
            backup: part_sum(found.backup),
        };
        known.open.retain(|open| open.report.replica != replica);
        known.open.push(OpenMismatch {
            report,
            found: *found,
            newest: known.newest.max(Some(replica)),
        });
        if known.open.len() > MISMATCH_COUNT_MAX {
            known.open.remove(0);
        }
    }

    /// Adds unrepaired mismatches to a report. A mismatch is repaired when its backup is in sync,
    /// since it was filled again. It also is when all backups are in sync, including one that was
    /// ordered later.
    pub(crate) fn report(&self, report: &mut PrimaryReport) {
        let known = &mut *lock(&self.known);
        let in_sync: BTreeSet<_> = report.in_sync.iter().copied().collect();
        let are_all_in_sync = known.ordered.is_subset(&in_sync);
        known.open.retain(|open| {
            let has_later = in_sync.last().copied() > open.newest;
            let is_repaired =
                in_sync.contains(&open.report.replica) || (are_all_in_sync && has_later);
            if is_repaired {
                let MismatchReport { server, part, .. } = &open.report;
                tracing::info!("the mismatch in {part} on {server} is repaired");
            }
            !is_repaired
        });
        report.mismatches = known.open.iter().map(|it| it.report.clone()).collect();
        report.mismatch_count = known.count;
    }
}

fn part_sum(of: WrittenSum) -> PartSum {
    PartSum {
        size_bytes: u64::from(of.size_bytes),
        checksum: format!("{:016x}", of.crc),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_lsm::place::LogNumber;
    use farleaf_replica::ComparedPart;

    /// A mismatch is reported until its backup is filled again, or all backups are in sync,
    /// including a later one. Each mismatch is counted once.
    #[test]
    fn a_mismatch_is_reported_until_it_is_repaired() {
        let mismatches = Mismatches::default();
        let found = |number| Mismatch {
            part: ComparedPart::LogSegment(LogNumber(number)),
            primary: WrittenSum::of(b"123456789"),
            backup: WrittenSum::of(b""),
        };
        let note = |replica, number| {
            let server = ServerId(replica + 10);
            mismatches.note(RegionId(7), ReplicaNumber(replica), server, &found(number));
        };
        let order = |backups: &[u64]| {
            mismatches.note_ordered(backups.iter().copied().map(ReplicaNumber));
        };
        let reported = |in_sync: &[u64]| {
            let in_sync = in_sync.iter().copied().map(ReplicaNumber).collect();
            let mut report = PrimaryReport {
                in_sync,
                ..PrimaryReport::default()
            };
            mismatches.report(&mut report);
            let replicas = report.mismatches.iter().map(|it| it.replica.0);
            (replicas.collect::<Vec<_>>(), report.mismatch_count)
        };
        order(&[2, 3]);
        assert_eq!(reported(&[2, 3]), (vec![], 0));
        note(2, 5);
        note(2, 5);
        assert_eq!(reported(&[3]), (vec![2], 1));
        order(&[3]);
        assert_eq!(reported(&[3]), (vec![2], 1), "3 was there before");
        note(3, 6);
        order(&[4, 5]);
        assert_eq!(reported(&[4]), (vec![2, 3], 2), "5 is not in sync yet");
        note(5, 6);
        order(&[4, 6]);
        assert_eq!(reported(&[4, 6]), (vec![], 3));
        note(6, 7);
        assert_eq!(reported(&[4]), (vec![6], 4));
        assert_eq!(reported(&[4, 6]), (vec![], 4), "it was filled again");
        for number in 0..20 {
            note(number + 10, 8);
        }
        assert_eq!(reported(&[]).0.len(), MISMATCH_COUNT_MAX);
        order(&[40]);
        assert_eq!(reported(&[40]), (vec![], 24));
        note(6, 8);
        let mut report = PrimaryReport::default();
        mismatches.report(&mut report);
        let mismatch = &report.mismatches[0];
        assert_eq!(
            (mismatch.server, &*mismatch.part),
            (ServerId(16), "log segment 8")
        );
        assert_eq!(mismatch.primary.checksum, "ae8b14860a799888");
        assert_eq!(
            (mismatch.primary.size_bytes, mismatch.backup.size_bytes),
            (9, 0)
        );
    }
}
