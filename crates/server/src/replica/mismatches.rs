//! Backups that did not write what their primary wrote, until they are repaired (RS12).

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use farleaf_cluster::ids::{RegionId, ReplicaNumber, ServerId};
use farleaf_cluster::record::{MismatchReport, PartSum, PrimaryReport};
use farleaf_lsm::written::WrittenSum;
use farleaf_replica::Mismatch;

/// What a primary has found of its backups. In memory alone: another primary compares anew, as it
/// fills its backups.
#[derive(Debug, Default)]
pub(crate) struct Mismatches {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Oldest first.
    open: Vec<Open>,
    count: u64,
    /// The newest backup that was ordered.
    newest: Option<ReplicaNumber>,
    /// Backups that have repaired one already.
    repairing: BTreeSet<ReplicaNumber>,
}

/// A mismatch that is not repaired.
#[derive(Debug)]
struct Open {
    report: MismatchReport,
    found: Mismatch,
    /// The newest backup that there was when it was found: a later one takes the place of this one.
    newest: Option<ReplicaNumber>,
}

impl Mismatches {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These backups are ordered.
    pub(crate) fn note_ordered(&self, backups: impl Iterator<Item = ReplicaNumber>) {
        let known = &mut *self.known();
        known.newest = known.newest.max(backups.max());
    }

    /// Logs and counts a mismatch, if it is not known yet.
    pub(crate) fn note(
        &self,
        region: RegionId,
        (replica, server): (ReplicaNumber, ServerId),
        found: &Mismatch,
    ) {
        let known = &mut *self.known();
        let is_known = |open: &Open| open.report.replica == replica && open.found == *found;
        if known.open.iter().any(is_known) {
            return;
        }
        tracing::error!(
            "{region}: {found}; the backup is replica {} on {server}, which is filled again from \
             the primary and counts as catching up until then",
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
        known.open.push(Open {
            report,
            found: *found,
            newest: known.newest.max(Some(replica)),
        });
    }

    /// Adds to a report what is not repaired, with the backups that are in sync in it: each one
    /// that came after a mismatch, or was filled again, has repaired one.
    pub(crate) fn report(&self, report: &mut PrimaryReport) {
        let known = &mut *self.known();
        for number in &report.in_sync {
            let repairs = |open: &Open| {
                open.report.replica == *number
                    || (Some(*number) > open.newest && !known.repairing.contains(number))
            };
            if let Some(index) = known.open.iter().position(repairs) {
                let Open { report, .. } = known.open.remove(index);
                if report.replica != *number {
                    known.repairing.insert(*number);
                }
                tracing::info!(
                    "{} has repaired what differed on {}",
                    number.0,
                    report.server
                );
            }
        }
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

    /// Promise (RS12): a mismatch is reported until a backup is in sync that was ordered later, or
    /// the same one was filled again; each repairs one; all are counted, each once.
    #[test]
    fn a_mismatch_is_reported_until_it_is_repaired() {
        let mismatches = Mismatches::default();
        let found = |number| Mismatch {
            part: ComparedPart::LogSegment(LogNumber(number)),
            primary: WrittenSum::of(b"123456789"),
            backup: WrittenSum::of(b""),
        };
        let note = |replica, number| {
            let backup = (ReplicaNumber(replica), ServerId(replica + 10));
            mismatches.note(RegionId(7), backup, &found(number));
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
        mismatches.note_ordered([2, 3].map(ReplicaNumber).into_iter());
        assert_eq!(reported(&[2, 3]), (vec![], 0));
        note(2, 5);
        note(2, 5);
        assert_eq!(reported(&[3]), (vec![2], 1), "3 was there before");
        note(3, 6);
        mismatches.note_ordered([3, 4].map(ReplicaNumber).into_iter());
        assert_eq!(reported(&[]), (vec![2, 3], 2));
        assert_eq!(reported(&[4]), (vec![3], 2));
        assert_eq!(reported(&[4]), (vec![3], 2), "it repairs one");
        assert_eq!(reported(&[4, 5]), (vec![], 2));
        note(6, 7);
        assert_eq!(reported(&[4, 5]), (vec![6], 3));
        assert_eq!(reported(&[4, 5, 6]), (vec![], 3), "it was filled again");
        note(6, 8);
        let mut report = PrimaryReport::default();
        mismatches.report(&mut report);
        let told = &report.mismatches[0];
        assert_eq!((told.server, &*told.part), (ServerId(16), "log segment 8"));
        assert_eq!(told.primary.checksum, "ae8b14860a799888");
        assert_eq!((told.primary.size_bytes, told.backup.size_bytes), (9, 0));
    }
}
