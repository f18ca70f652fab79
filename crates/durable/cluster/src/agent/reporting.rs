//! From the host's status to a report: at once when a fact has changed that the master goes by, now
//! and then when only sizes and rates have.

use std::fmt::Debug;

use super::host::{RegionHost, ReplicaFailure, ReplicaStatus};
use super::reconcile::{Held, Role};
use super::{Agent, UNUSABLE_COUNT_MAX};
use crate::coordinator::{Compare, Coordinator, CoordinatorError, Transaction, TransactionOutcome};
use crate::ids::{Life, RegionId};
use crate::record::server::{FAILURE_SIZE_BYTES_MAX, cut};
use crate::record::{
    CopyReport, FORMAT_VERSION, Orphan, PrimaryReport, Record, ReplicaReport, Room, ServerReport,
    UnusableCopy, VerificationReport, report_key, server_key,
};

/// So many orphans are reported: an operator who has removed some sees the next ones.
pub const ORPHAN_COUNT_MAX: usize = 64;

impl<C: Coordinator + Clone + Debug, H: RegionHost> Agent<C, H> {
    /// Reports what is so, if it is something else than what was reported. One round trip then.
    pub(super) fn report(&mut self, life: Life) -> Result<(), CoordinatorError> {
        let report = self.current_report(life);
        let now = self.clock.now();
        let is_due = match &self.reported {
            None => true,
            Some(before) if facts(before) != facts(&report) => true,
            Some(before) => {
                *before != report && now >= self.reported_at + self.options.load_interval
            }
        };
        let (true, Some(lease)) = (is_due, self.tenure.lease()) else {
            return Ok(());
        };
        // Until the answer is there, nobody knows what the coordinator has.
        self.reported = None;
        let server = server_key(self.options.server);
        let key = report_key(self.options.server);
        let transaction = Transaction::new()
            .when(Compare::Created(server, life.0))
            .put_leased(key, report.encode(), lease);
        match self.coordinator.transact(&transaction)? {
            TransactionOutcome::Committed(_) => {
                self.reported = Some(report);
                self.reported_at = now;
            }
            TransactionOutcome::Refused | TransactionOutcome::LeaseGone => {
                // This life is over (CP8).
                self.tenure.lose();
                self.end_life();
            }
        }
        Ok(())
    }

    fn current_report(&mut self, life: Life) -> ServerReport {
        let statuses = self.host.status();
        let mut copies = self.found.copies.clone();
        copies.extend(self.copies_again());
        let held = self.held.iter();
        let replicas = held.map(|(region, held)| {
            let mut own = statuses.iter();
            let own = own.find(|it| it.region == *region && it.replica == held.replica);
            let mut report = replica_report(*region, held, own);
            if let Some(primary) = &mut report.primary {
                self.note_lost(*region, primary);
            }
            report
        });
        ServerReport {
            version: FORMAT_VERSION,
            server: self.options.server,
            life,
            replicas: replicas.collect(),
            copies,
            unusable: self.unusable(),
            orphans: self.orphans(),
            capacity_bytes: self.host.capacity_bytes(),
            free_bytes: self.host.free_bytes(),
        }
    }
}

impl<C: Coordinator + Clone + Debug, H: RegionHost> Agent<C, H> {
    /// CP16: the copies of replicas that broke for want of room, from when there is some; and of
    /// those that broke for damage.
    fn copies_again(&mut self) -> Vec<CopyReport> {
        let Self { held, host, .. } = self;
        let lacking = held.iter().filter(|(_, held)| {
            let broken = held.broken.as_ref();
            broken.is_some_and(ReplicaFailure::can_go_on_again)
        });
        let copies = lacking.filter_map(|(region, held)| host.copy_again(*region, held.replica));
        copies.collect()
    }

    /// What was found that cannot be used, and what replicas have left that broke in this life and
    /// are none any more: as long as they are kept, somebody may need to know why (RS8).
    fn unusable(&self) -> Vec<UnusableCopy> {
        let left = self.left.iter().filter_map(|((region, replica), how)| {
            Some(UnusableCopy {
                region: *region,
                replica: *replica,
                is_damaged: false,
                how: how.clone()?,
            })
        });
        // First what was lost in this life, of which nobody else tells.
        let unusable = left.chain(self.found.unusable.iter().cloned());
        unusable.take(UNUSABLE_COUNT_MAX).collect()
    }

    /// ID3: the first of what was moved aside.
    fn orphans(&mut self) -> Vec<Orphan> {
        let orphans = self.host.orphans().into_iter().take(ORPHAN_COUNT_MAX);
        let cut = |orphan: Orphan| Orphan {
            path: cut(orphan.path, FAILURE_SIZE_BYTES_MAX),
            how: cut(orphan.how, FAILURE_SIZE_BYTES_MAX),
        };
        orphans.map(cut).collect()
    }

    /// CP14: backups in sync whose lives are over have failed. If it is the primary that says so,
    /// it has outlived them.
    fn note_lost(&self, region: RegionId, primary: &mut PrimaryReport) {
        let record = self.mirror.view().regions.get(&region);
        let backups = record.map_or(&[][..], |seen| &seen.record.backups);
        let lost = backups
            .iter()
            .filter(|it| it.is_lost || (it.in_sync && self.servers.view().is_over(it.replica)))
            .map(|it| it.replica.number);
        let lost: Vec<_> = lost.filter(|it| !primary.failed.contains(it)).collect();
        primary.failed.extend(lost);
    }
}

fn replica_report(region: RegionId, held: &Held, status: Option<&ReplicaStatus>) -> ReplicaReport {
    let primary = match &held.role {
        // What the host says of another epoch is not what was ordered last.
        Role::Primary { stopped, .. } => status
            .filter(|status| status.epoch == held.epoch && held.broken.is_none())
            .and_then(|status| status.primary.clone())
            .map(|primary| PrimaryReport {
                stopped: *stopped,
                ..primary
            }),
        Role::Backup { .. } => None,
    };
    ReplicaReport {
        table: held.table,
        region,
        replica: held.replica,
        epoch: held.epoch,
        primary,
        broken: held.broken.as_ref().map(|it| it.how.clone()),
        lacked_room: match &held.broken {
            Some(broken) => broken.lacked_room,
            None => status.is_some_and(|it| it.waits_for_room),
        },
        is_damaged: held.broken.as_ref().is_some_and(|it| it.is_damaged),
        fault: status
            .filter(|_| held.broken.is_none())
            .and_then(|it| it.fault.clone())
            .map(|how| cut(how, FAILURE_SIZE_BYTES_MAX)),
        verification: status
            .filter(|_| held.broken.is_none())
            .and_then(|it| it.verification),
        size_bytes: status.map_or(0, |it| it.size_bytes),
        operations_per_second: status.map_or(0, |it| it.operations_per_second),
        position_bytes: status.map_or(0, |it| it.position_bytes),
    }
}

/// A report without what changes all the time. That room gets low, or is no more, is a fact.
fn facts(report: &ServerReport) -> (ServerReport, Room) {
    let room = report.room();
    let mut report = report.clone();
    report.free_bytes = None;
    for replica in &mut report.replicas {
        replica.size_bytes = 0;
        replica.operations_per_second = 0;
        replica.position_bytes = 0;
        replica.verification = replica.verification.map(VerificationReport::facts);
    }
    (report, room)
}
