//! A region's first primary; lost primaries and backups.

use super::{Action, CurrentRegion, Planner, load};
use crate::ids::ReplicaNumber;
use crate::omission::Check;
use crate::record::{Backup, Phase, PrimaryReport, RegionRecord, Replica};

impl Planner<'_> {
    /// Gives a primary to a region that has never had one.
    pub(super) fn place_first(&mut self, current: &CurrentRegion) -> bool {
        let mut record = current.record.clone();
        if record.primary.is_some() {
            return false;
        }
        let server = self.loads.for_primary();
        let Some((server, life)) = server.and_then(|it| Some((it, *self.view.lives.get(&it)?)))
        else {
            self.wait_for_server(&record, "for its first replica");
            return true;
        };
        let replica = record.draw_replica(server, life);
        record.primary = Some(replica);
        record.epoch = record.epoch.next();
        self.loads.add_coming(server, load::REPLICA_SIZE_BYTES_MIN);
        self.loads.add_primary(server, 1);
        self.step(Action::Place, current, &record);
        true
    }

    /// Marks a region as not new when its primary reports it open (CONTROL-18). From then on, its
    /// only server has lost the copy if it comes back without it.
    pub(super) fn mark_opened(&mut self, current: &CurrentRegion) -> bool {
        if !current.record.is_new || self.primary_report(&current.record).is_none() {
            return false;
        }
        let mut record = current.record.clone();
        record.is_new = false;
        self.step(Action::MarkOpened, current, &record);
        true
    }

    /// Returns whether a replica can carry out its order: its life continues, and it is not
    /// reported broken.
    pub(super) fn is_usable(&self, record: &RegionRecord, replica: Replica) -> bool {
        self.view.is_alive(replica) && !self.is_broken(record, replica)
    }

    /// Returns whether a replica is reported broken in the life in which it was ordered
    /// (CONTROL-16). A broken replica does not count as intact because its copy could continue.
    fn is_broken(&self, record: &RegionRecord, replica: Replica) -> bool {
        let report = self.view.report(record.region, replica);
        report.is_some_and(|it| it.broken.is_some())
    }

    /// Returns the in-sync backups that can carry out orders.
    pub(super) fn usable_backups(&self, record: &RegionRecord) -> Vec<Backup> {
        let backups = record.backups.iter().copied();
        backups
            .filter(|it| it.in_sync && self.is_usable(record, it.replica))
            .collect()
    }

    /// Replaces a primary whose life is over, or that is broken, by an in-sync backup (CONTROL-13).
    /// Returns true if the primary was replaced, or must be but cannot.
    pub(super) fn replace_primary(&mut self, current: &CurrentRegion) -> bool {
        let omission = self.options.omission;
        let Some(primary) = current.record.primary else {
            return false;
        };
        if self.is_usable(&current.record, primary) {
            return false;
        }
        let mut usable = self.usable_backups(&current.record);
        if omission.skips_check(Check::PromotedWasInSync) {
            let backups = current.record.backups.iter().copied();
            usable = backups
                .filter(|it| self.view.is_alive(it.replica))
                .collect();
        }
        let least = usable.iter().min_by_key(|it| {
            let load = self.loads.of(it.replica.server);
            let is_drained = self.view.drains.contains(&it.replica.server);
            let space_state = self.view.space_of(it.replica.server);
            (
                space_state,
                is_drained,
                load.primary_count,
                it.replica.number,
            )
        });
        let Some(promoted) = least.map(|it| it.replica) else {
            self.recover(current);
            return true;
        };
        let mut members = usable;
        members.extend(self.lost_members(&current.record));
        let mut record = current.record.clone();
        promote(&mut record, promoted, members);
        if omission.skips_check(Check::EpochIsRaised) {
            record.epoch = current.record.epoch;
        }
        let operations = load::operations_per_second(self.view, &record);
        self.loads.add_primary(promoted.server, operations);
        self.step(Action::Promote, current, &record);
        true
    }

    /// Returns the members whose lives are over, including the old primary. They stay members until
    /// the new primary reports them as failed: it may be lost with them before reporting anything
    /// (CONTROL-18).
    fn lost_members(&self, record: &RegionRecord) -> Vec<Backup> {
        let members = record.members();
        let lost = members.filter(|it| !self.view.is_alive(*it));
        lost.map(|replica| Backup {
            is_lost: true,
            ..Backup::in_sync(replica)
        })
        .collect()
    }

    /// Returns the primary's report at the record's epoch.
    pub(super) fn primary_report(&self, record: &RegionRecord) -> Option<&PrimaryReport> {
        let report = self.view.report(record.region, record.primary?)?;
        let is_current = report.epoch == record.epoch;
        report.primary.as_ref().filter(|_| is_current)
    }

    /// Removes backups that are broken or reported as failed, and catching-up ones whose lives are
    /// over (CONTROL-14). A phase that needs one of them ends. An in-sync backup is not removed
    /// only because its life is over: the primary may have died with it, and then its copy is
    /// needed (CONTROL-18).
    pub(super) fn drop_lost(&mut self, current: &CurrentRegion) -> bool {
        let failed: Vec<ReplicaNumber> = self
            .primary_report(&current.record)
            .map_or(Vec::new(), |it| it.failed.clone());
        let is_lost = |backup: &Backup| {
            let is_report_needed = !self.options.omission.skips_check(Check::LossIsReported);
            let is_usable = if backup.in_sync && is_report_needed {
                !self.is_broken(&current.record, backup.replica)
            } else {
                self.is_usable(&current.record, backup.replica)
            };
            !is_usable || failed.contains(&backup.replica.number)
        };
        if !current.record.backups.iter().any(is_lost) {
            return false;
        }
        let mut record = current.record.clone();
        record.backups.retain(|backup| !is_lost(backup));
        end_phase_without(&mut record);
        self.step(Action::DropReplicas, current, &record);
        true
    }
}

/// Ends a phase whose replicas are gone. A primary that may have stopped for it continues at the
/// next epoch, since it never does at the current one (CONTROL-15).
fn end_phase_without(record: &mut RegionRecord) {
    let is_there = |number| record.replicas().any(|it| it.number == number);
    let goes_on = match &record.phase {
        Phase::Steady | Phase::Splitting { .. } => true,
        Phase::Moving { leaving, arriving } => is_there(*leaving) && is_there(*arriving),
        Phase::HandingOver { to, .. } => is_there(*to),
    };
    if goes_on {
        return;
    }
    if matches!(record.phase, Phase::HandingOver { .. }) {
        record.epoch = record.epoch.next();
    }
    record.phase = Phase::Steady;
}

/// Makes a backup primary at the next epoch, with these members, and ends the phase.
fn promote(record: &mut RegionRecord, promoted: Replica, members: Vec<Backup>) {
    record.primary = Some(promoted);
    record.epoch = record.epoch.next();
    record.backups = members;
    record
        .backups
        .retain(|it| it.replica.number != promoted.number);
    record.phase = Phase::Steady;
}
