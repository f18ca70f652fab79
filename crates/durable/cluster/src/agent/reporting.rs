//! Turns the host's status into a report: at once when a fact has changed that the master relies
//! on, and at intervals when only sizes and rates have changed.

use std::fmt::Debug;

use super::host::{RegionHost, ReplicaFailure, ReplicaStatus};
use super::reconcile::{OrderedReplica, Role};
use super::{Agent, UNUSABLE_COUNT_MAX};
use crate::coordinator::{Compare, Coordinator, CoordinatorError, Transaction, TransactionOutcome};
use crate::ids::{Life, RegionId};
use crate::record::server::{FAILURE_SIZE_BYTES_MAX, cut};
use crate::record::{
    CopyReport, FORMAT_VERSION, Orphan, PrimaryReport, Record, ReplicaReport, ServerReport,
    SpaceState, UnusableCopy, VerificationReport, report_key, server_key,
};

/// Number of orphans that are reported; after an operator has removed some, the next ones are.
pub const ORPHAN_COUNT_MAX: usize = 64;

impl<C: Coordinator + Clone + Debug, H: RegionHost> Agent<C, H> {
    /// Reports the status if it differs from the last report. Costs one round trip then.
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
        let (true, Some(lease)) = (is_due, self.leased_key.lease()) else {
            return Ok(());
        };
        // Until the reply arrives, it is unknown which report the coordinator has.
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
                // This life is over (CONTROL-8).
                self.leased_key.lose();
                self.end_life();
            }
        }
        Ok(())
    }

    fn current_report(&mut self, life: Life) -> ServerReport {
        let statuses = self.host.status();
        let mut copies = self.disk_copies.copies.clone();
        copies.extend(self.reopenable_copies());
        let ordered = self.ordered.iter();
        let replicas = ordered.map(|(region, ordered)| {
            let mut own = statuses.iter();
            let own = own.find(|it| it.region == *region && it.replica == ordered.replica);
            let mut report = replica_report(*region, ordered, own);
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

    /// Returns the copies of replicas that broke because of a full disk, once there is space, and
    /// of those that broke because of damage (CONTROL-16).
    fn reopenable_copies(&mut self) -> Vec<CopyReport> {
        let Self { ordered, host, .. } = self;
        let lacking = ordered.iter().filter(|(_, ordered)| {
            let broken = ordered.broken.as_ref();
            broken.is_some_and(ReplicaFailure::can_continue)
        });
        let copies =
            lacking.filter_map(|(region, ordered)| host.reopenable_copy(*region, ordered.replica));
        copies.collect()
    }

    /// Returns unusable copies that were found, and those that replicas left when they broke in
    /// this life. An operator may need the reason as long as they are kept.
    fn unusable(&self) -> Vec<UnusableCopy> {
        let abandoned = self
            .abandoned
            .iter()
            .filter_map(|((region, replica), how)| {
                Some(UnusableCopy {
                    region: *region,
                    replica: *replica,
                    is_damaged: false,
                    how: how.clone()?,
                })
            });
        // First those of this life, which nothing else reports.
        let unusable = abandoned.chain(self.disk_copies.unusable.iter().cloned());
        unusable.take(UNUSABLE_COUNT_MAX).collect()
    }

    /// Returns the first of the files that were moved aside.
    fn orphans(&mut self) -> Vec<Orphan> {
        let orphans = self.host.orphans().into_iter().take(ORPHAN_COUNT_MAX);
        let cut = |orphan: Orphan| Orphan {
            path: cut(orphan.path, FAILURE_SIZE_BYTES_MAX),
            how: cut(orphan.how, FAILURE_SIZE_BYTES_MAX),
        };
        orphans.map(cut).collect()
    }

    /// Marks in-sync backups whose lives are over as failed (CONTROL-14). If the primary's server
    /// reports that, the primary has outlived them.
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

fn replica_report(
    region: RegionId,
    ordered: &OrderedReplica,
    status: Option<&ReplicaStatus>,
) -> ReplicaReport {
    let working = status.filter(|_| ordered.broken.is_none());
    let primary = match &ordered.role {
        // The host's status at another epoch does not belong to the last order.
        Role::Primary { stopped, .. } => working
            .filter(|status| status.epoch == ordered.epoch)
            .and_then(|status| status.primary.clone())
            .map(|primary| PrimaryReport {
                stopped: *stopped,
                ..primary
            }),
        Role::Backup { .. } => None,
    };
    ReplicaReport {
        table: ordered.table,
        region,
        replica: ordered.replica,
        epoch: ordered.epoch,
        primary,
        broken: ordered.broken.as_ref().map(|it| it.how.clone()),
        lacked_space: match &ordered.broken {
            Some(broken) => broken.lacked_space,
            None => status.is_some_and(|it| it.waits_for_space),
        },
        is_damaged: ordered.broken.as_ref().is_some_and(|it| it.is_damaged),
        fault: working
            .and_then(|it| it.fault.clone())
            .map(|how| cut(how, FAILURE_SIZE_BYTES_MAX)),
        verification: working.and_then(|it| it.verification),
        size_bytes: status.map_or(0, |it| it.size_bytes),
        operations_per_second: status.map_or(0, |it| it.operations_per_second),
        position_bytes: status.map_or(0, |it| it.position_bytes),
    }
}

/// Returns a report without values that change all the time. A change of the space state is kept as
/// a fact.
fn facts(report: &ServerReport) -> (ServerReport, SpaceState) {
    let space_state = report.space_state();
    let mut report = report.clone();
    report.free_bytes = None;
    for replica in &mut report.replicas {
        replica.size_bytes = 0;
        replica.operations_per_second = 0;
        replica.position_bytes = 0;
        replica.verification = replica.verification.map(VerificationReport::facts);
    }
    (report, space_state)
}
