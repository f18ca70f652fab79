//! A region's first primary; primaries and backups that are lost.

use super::{Action, Planner, load};
use crate::ids::ReplicaNumber;
use crate::omission::Check;
use crate::record::{Backup, Phase, PrimaryReport, RegionRecord, Replica};
use crate::view::Seen;

impl Planner<'_> {
    /// A region that nobody has ever served gets a primary.
    pub(super) fn place_first(&mut self, seen: &Seen<RegionRecord>) -> bool {
        let mut record = seen.record.clone();
        if record.primary.is_some() {
            return false;
        }
        let server = self.loads.for_primary();
        let Some((server, life)) = server.and_then(|it| Some((it, *self.view.lives.get(&it)?)))
        else {
            let what = if self.loads.lacks_room_alone(&record) {
                "a server with room for its first replica"
            } else {
                "a server for its first replica"
            };
            self.wait(record.region, what.to_owned());
            return true;
        };
        let replica = record.draw_replica(server, life);
        record.primary = Some(replica);
        record.epoch = record.epoch.next();
        self.loads.add_coming(server, load::REPLICA_SIZE_BYTES_MIN);
        self.loads.add_primary(server, 1);
        self.step(Action::Place, seen, &record);
        true
    }

    /// A region of which the primary says that it is open is new no more (CP18): its only server,
    /// when it comes back without its copy, has lost it.
    pub(super) fn mark_opened(&mut self, seen: &Seen<RegionRecord>) -> bool {
        if !seen.record.is_new || self.primary_report(&seen.record).is_none() {
            return false;
        }
        let mut record = seen.record.clone();
        record.is_new = false;
        self.step(Action::MarkOpened, seen, &record);
        true
    }

    /// A replica can do what was ordered: its life goes on, and it has not said that it is broken.
    pub(super) fn is_usable(&self, record: &RegionRecord, replica: Replica) -> bool {
        self.view.is_alive(replica) && !self.is_broken(record, replica)
    }

    /// It says, in the life in which it was ordered, that it is broken (CP16). That its copy can go
    /// on when all members are back does not make it whole.
    fn is_broken(&self, record: &RegionRecord, replica: Replica) -> bool {
        let report = self.view.report(record.region, replica);
        report.is_some_and(|it| it.broken.is_some())
    }

    /// The members that can do what was ordered.
    pub(super) fn usable_backups(&self, record: &RegionRecord) -> Vec<Backup> {
        let backups = record.backups.iter().copied();
        backups
            .filter(|it| it.in_sync && self.is_usable(record, it.replica))
            .collect()
    }

    /// A primary whose life is over, or that is broken, is replaced by a backup in sync (CP13).
    /// True: it was, or cannot be.
    pub(super) fn replace_primary(&mut self, seen: &Seen<RegionRecord>) -> bool {
        let omission = self.options.omission;
        let Some(primary) = seen.record.primary else {
            return false;
        };
        if self.is_usable(&seen.record, primary) {
            return false;
        }
        let mut usable = self.usable_backups(&seen.record);
        if omission.leaves_out(Check::PromotedWasInSync) {
            let backups = seen.record.backups.iter().copied();
            usable = backups
                .filter(|it| self.view.is_alive(it.replica))
                .collect();
        }
        let least = usable.iter().min_by_key(|it| {
            let load = self.loads.of(it.replica.server);
            let is_drained = self.view.drains.contains(&it.replica.server);
            let room = self.view.room_of(it.replica.server);
            (room, is_drained, load.primary_count, it.replica.number)
        });
        let Some(promoted) = least.map(|it| it.replica) else {
            self.recover(seen);
            return true;
        };
        let mut members = usable;
        members.extend(self.lost_members(&seen.record));
        let mut record = seen.record.clone();
        promote(&mut record, promoted, members);
        if omission.leaves_out(Check::EpochIsRaised) {
            record.epoch = seen.record.epoch;
        }
        let operations = load::operations_per_second(self.view, &record);
        self.loads.add_primary(promoted.server, operations);
        self.step(Action::Promote, seen, &record);
        true
    }

    /// CP18: members whose lives are over, the old primary among them, stay members until the new
    /// primary says that they are lost: it may be lost with them, without having said anything.
    fn lost_members(&self, record: &RegionRecord) -> Vec<Backup> {
        let members = record.members();
        let lost = members.filter(|it| !self.view.is_alive(*it));
        lost.map(|replica| Backup {
            is_lost: true,
            ..Backup::in_sync(replica)
        })
        .collect()
    }

    /// What the primary says at the record's epoch.
    pub(super) fn primary_report(&self, record: &RegionRecord) -> Option<&PrimaryReport> {
        let report = self.view.report(record.region, record.primary?)?;
        let is_current = report.epoch == record.epoch;
        report.primary.as_ref().filter(|_| is_current)
    }

    /// Backups that are broken, or of which the primary says that they have failed, leave; and ones
    /// that were never in sync, when their lives are over (CP14). A phase that needs one of them
    /// ends. One that was in sync is not dropped for its life alone: the primary may have died with
    /// it, and what it has is all that anybody has then (CP18).
    pub(super) fn drop_lost(&mut self, seen: &Seen<RegionRecord>) -> bool {
        let failed: Vec<ReplicaNumber> = self
            .primary_report(&seen.record)
            .map_or(Vec::new(), |it| it.failed.clone());
        let is_lost = |backup: &Backup| {
            let is_told = !self.options.omission.leaves_out(Check::LossIsTold);
            let is_usable = if backup.in_sync && is_told {
                !self.is_broken(&seen.record, backup.replica)
            } else {
                self.is_usable(&seen.record, backup.replica)
            };
            !is_usable || failed.contains(&backup.replica.number)
        };
        if !seen.record.backups.iter().any(is_lost) {
            return false;
        }
        let mut record = seen.record.clone();
        record.backups.retain(|backup| !is_lost(backup));
        end_phase_without(&mut record);
        self.step(Action::DropReplicas, seen, &record);
        true
    }
}

/// Ends a phase whose replicas are not there any more. A primary that may have stopped for it
/// goes on at another epoch: at its own it never does (CP15).
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

/// Makes a backup primary at the next epoch, with these members. What was being done ends.
fn promote(record: &mut RegionRecord, promoted: Replica, members: Vec<Backup>) {
    record.primary = Some(promoted);
    record.epoch = record.epoch.next();
    record.backups = members;
    record
        .backups
        .retain(|it| it.replica.number != promoted.number);
    record.phase = Phase::Steady;
}
