//! Backups that get in sync, and changes in several steps: moves, hand-overs, splits.

use super::{Action, CurrentRegion, Planner, load};
use crate::coordinator::{Compare, Transaction};
use crate::ids::{RegionId, ReplicaNumber, ServerId};
use crate::omission::Check;
use crate::record::region::Key;
use crate::record::{Backup, IDS_KEY, Ids, Phase, Record, RegionRecord, Replica, SpaceState};

impl Planner<'_> {
    /// Marks backups as in sync that the primary reports as such (CONTROL-14).
    pub(super) fn mark_in_sync(&mut self, current: &CurrentRegion) -> bool {
        let Some(report) = self.primary_report(&current.record) else {
            return false;
        };
        let mut record = current.record.clone();
        for backup in &mut record.backups {
            let is_open = self.view.report(record.region, backup.replica).is_some();
            backup.in_sync |= report.in_sync.contains(&backup.replica.number)
                || (is_open && self.options.omission.skips_check(Check::InSyncIsReported));
        }
        let mut in_sync = record.backups.iter().filter(|it| it.in_sync);
        record.is_unproven &= !in_sync.all(|it| report.in_sync.contains(&it.replica.number));
        if record == current.record {
            return false;
        }
        self.step(Action::MarkInSync, current, &record);
        true
    }

    /// Continues the phase of a region.
    pub(super) fn continue_phase(&mut self, current: &CurrentRegion) -> bool {
        match current.record.phase.clone() {
            Phase::Steady => false,
            Phase::Moving { leaving, arriving } => self.continue_move(current, leaving, arriving),
            Phase::HandingOver { to, old_leaves } => self.hand_over(current, to, old_leaves),
            Phase::Splitting { at, child } => self.split(current, &at, child),
        }
    }

    fn continue_move(
        &mut self,
        current: &CurrentRegion,
        leaving: ReplicaNumber,
        arriving: ReplicaNumber,
    ) -> bool {
        let mut record = current.record.clone();
        let arrived = record.backup(arriving).filter(|it| it.in_sync);
        if arrived.is_none_or(|it| !self.is_usable(&record, it.replica)) {
            return false; // Being filled, or lost: its primary reports that.
        }
        if record.primary.is_some_and(|it| it.number == leaving) {
            record.phase = Phase::HandingOver {
                to: arriving,
                old_leaves: true,
            };
            self.step(Action::BeginHandOver, current, &record);
            return true;
        }
        record.backups.retain(|it| it.replica.number != leaving);
        record.phase = Phase::Steady;
        self.step(Action::RemoveReplica, current, &record);
        true
    }

    /// Promotes the backup of a hand-over after the primary has stopped (CONTROL-15).
    fn hand_over(&mut self, current: &CurrentRegion, to: ReplicaNumber, old_leaves: bool) -> bool {
        let mut record = current.record.clone();
        let is_stopped = self.primary_report(&record).is_some_and(|it| it.stopped)
            || self.options.omission.skips_check(Check::PrimaryIsOver);
        let new = record.backup(to).copied();
        let new = new.filter(|it| self.is_usable(&record, it.replica));
        let (Some(old), Some(new), true) = (record.primary, new, is_stopped) else {
            return false;
        };
        record.backups.retain(|it| it.replica.number != to);
        if !old_leaves {
            // The old primary has everything that it acknowledged.
            record.backups.push(Backup::in_sync(old));
        }
        record.primary = Some(new.replica);
        if !self.options.omission.skips_check(Check::EpochIsRaised) {
            record.epoch = record.epoch.next();
        }
        record.phase = Phase::Steady;
        self.step(Action::HandOver, current, &record);
        true
    }

    /// Splits a region in two, after the primary has prepared the split and stopped (CONTROL-17).
    fn split(&mut self, current: &CurrentRegion, at: &Key, child: RegionId) -> bool {
        let mut record = current.record.clone();
        let Some(report) = self.primary_report(&record) else {
            return false;
        };
        let prepared = report.prepared.as_ref().filter(|it| it.0 == child);
        let (Some((_, prepared_on)), true) = (prepared, report.stopped) else {
            return false;
        };
        let prepared_on = prepared_on.clone();
        record.epoch = record.epoch.next();
        record.phase = Phase::Steady;
        let mut new = RegionRecord::new(
            record.table,
            child,
            at.clone(),
            record.to.replace(at.clone()),
        );
        new.incarnation = record.incarnation;
        new.epoch = record.epoch;
        new.primary = record.primary;
        new.next_replica = record.next_replica;
        new.is_new = false;
        new.split_from = Some(record.region);
        let backups = record.backups.iter().copied();
        new.backups = backups
            .filter(|it| it.in_sync && prepared_on.contains(&it.replica.number))
            .collect();
        if let Err(how) = new.check(&new.key()) {
            self.wait(
                child,
                format!("an operator to repair the record of the region it is split from: {how}"),
            );
            return true;
        }
        let more = Transaction::new()
            .when(Compare::Modified(
                new.key(),
                crate::coordinator::Revision::NEVER,
            ))
            .put(new.key(), new.encode());
        self.step_with(Action::Split(child), current, &record, more);
        true
    }

    /// Adds a backup to a region with too few replicas.
    pub(super) fn add_backup(&mut self, current: &CurrentRegion, wanted: usize) -> bool {
        let is_moving = matches!(current.record.phase, Phase::Moving { .. });
        let wanted = wanted + usize::from(is_moving);
        if current.record.replicas().count() >= wanted {
            return false;
        }
        if self.primary_report(&current.record).is_none() {
            return true; // Not open yet: nothing else can be done.
        }
        let mut record = current.record.clone();
        record.is_new = false;
        let Some(replica) = self.draw_backup(&mut record) else {
            self.wait_for_server(&record, "for another backup");
            return false;
        };
        self.step(Action::AddBackup(replica.server), current, &record);
        true
    }

    /// Adds a backup on the server that is to have the next one.
    pub(super) fn draw_backup(&mut self, record: &mut RegionRecord) -> Option<Replica> {
        let region = record.region;
        let is_avoided = |server: ServerId| self.options.avoided.contains(&(region, server));
        let server = self.loads.for_backup(record, is_avoided)?;
        self.add_backup_on(record, server)
    }

    /// Adds a backup on this server, if the server is alive.
    pub(super) fn add_backup_on(
        &mut self,
        record: &mut RegionRecord,
        server: ServerId,
    ) -> Option<Replica> {
        let life = *self.view.lives.get(&server)?;
        let replica = record.draw_replica(server, life);
        record.backups.push(Backup::to_fill(replica));
        let size_bytes = load::size_bytes(self.view, record);
        self.loads.add_coming(server, size_bytes);
        Some(replica)
    }

    /// Removes a backup from a region with too many. Prefers one that is catching up, on a drained
    /// server, on one with little free space, and on the one with the most bytes.
    pub(super) fn remove_surplus(&mut self, current: &CurrentRegion, wanted: usize) -> bool {
        let is_steady = current.record.phase == Phase::Steady;
        if !is_steady || current.record.replicas().count() <= wanted {
            return false;
        }
        // The primary will report a member whose life is over as failed. Until then that member is
        // the surplus, and no live one is removed (CONTROL-14).
        let mut members = current.record.members();
        if members.any(|it| !self.is_usable(&current.record, it)) {
            return false;
        }
        let mut record = current.record.clone();
        let place = (0..record.backups.len()).max_by_key(|place| {
            let backup = record.backups[*place];
            let server = backup.replica.server;
            let is_drained = self.view.drains.contains(&server);
            (
                !backup.in_sync,
                is_drained,
                self.view.space_of(server),
                self.loads.of(server).size_bytes,
                server,
            )
        });
        let Some(place) = place else {
            return false;
        };
        record.backups.remove(place);
        self.step(Action::RemoveReplica, current, &record);
        true
    }

    /// Begins to move a replica off a drained server.
    pub(super) fn drain(&mut self, current: &CurrentRegion) -> bool {
        let drained = (current.record.replicas()).find(|it| self.view.drains.contains(&it.server));
        let is_steady = current.record.phase == Phase::Steady;
        let (Some(leaving), true) = (drained, is_steady) else {
            return false;
        };
        if self.moving_count() >= self.options.move_count_max {
            return false;
        }
        let mut record = current.record.clone();
        if self.primary_report(&record).is_none() {
            return false;
        }
        record.is_new = false;
        let Some(arriving) = self.draw_backup(&mut record) else {
            let purpose = format!("that takes over the replica of {}", leaving.server);
            self.wait_for_server(&record, &purpose);
            return false;
        };
        record.phase = Phase::Moving {
            leaving: leaving.number,
            arriving: arriving.number,
        };
        self.step(Action::BeginMove(arriving.server), current, &record);
        true
    }

    /// Hands a primary on a full disk, which cannot write, over to a backup that can (CONTROL-22).
    pub(super) fn hand_over_full_primary(&mut self, current: &CurrentRegion) -> bool {
        let record = &current.record;
        let space_state = |replica: Replica| self.view.space_of(replica.server);
        let is_full = record
            .primary
            .is_some_and(|it| space_state(it) == SpaceState::Full);
        let is_steady = record.phase == Phase::Steady;
        if !is_full || !is_steady || self.primary_report(record).is_none() {
            return false;
        }
        let usable = self.usable_backups(record).into_iter();
        let able = usable.filter(|it| space_state(it.replica) == SpaceState::Enough);
        let least = able.min_by_key(|it| {
            let is_drained = self.view.drains.contains(&it.replica.server);
            let load = self.loads.of(it.replica.server);
            (is_drained, load.primary_count, it.replica.number)
        });
        let Some(to) = least else {
            return false;
        };
        let mut record = record.clone();
        record.phase = Phase::HandingOver {
            to: to.replica.number,
            old_leaves: false,
        };
        self.step(Action::BeginHandOver, current, &record);
        true
    }

    /// Returns the number of regions that are being moved, or begin to be by this plan.
    pub(super) fn moving_count(&self) -> usize {
        let is_moving = |it: &&CurrentRegion| {
            matches!(
                it.record.phase,
                Phase::Moving { .. } | Phase::HandingOver { .. }
            )
        };
        let created = self
            .plan
            .steps
            .iter()
            .filter(|step| matches!(step.action, Action::BeginMove(_) | Action::BeginHandOver));
        self.view.regions.values().filter(is_moving).count() + created.count()
    }

    /// Draws the number of another region; the transaction takes it, if no other process has.
    /// Returns `Err` if the record with the counters cannot be read, or has lost numbers
    /// (CONTROL-23).
    pub(super) fn draw_region(&self) -> Result<(RegionId, Transaction), String> {
        let ids = self.view.ids.as_ref();
        let ids = ids.ok_or("the record of the assigned numbers cannot be read")?;
        if let Some((region, server)) = self.view.blocking_copies().first() {
            return Err(format!(
                "{server} has a copy of {region}, which is unknown to the coordinator \
                 (see `farleaf cluster status`)"
            ));
        }
        let child = ids.record.next_region;
        let raised = Ids {
            next_region: RegionId(child.0 + 1),
            ..ids.record.clone()
        };
        let transaction = Transaction::new()
            .when(Compare::Modified(IDS_KEY.to_owned(), ids.modified))
            .put(IDS_KEY, raised.encode());
        Ok((child, transaction))
    }
}
