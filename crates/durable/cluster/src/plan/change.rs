//! Backups that get in sync, and what is done by several steps: moves, hand-overs, splits.

use super::{Action, Planner, load};
use crate::coordinator::{Compare, Transaction};
use crate::ids::{RegionId, ReplicaNumber, ServerId};
use crate::omission::Check;
use crate::record::region::Key;
use crate::record::{Backup, IDS_KEY, Ids, Phase, Record, RegionRecord, Replica, Room};
use crate::view::Seen;

impl Planner<'_> {
    /// Backups of which the primary says that they are in sync count as such (CP14).
    pub(super) fn mark_in_sync(&mut self, seen: &Seen<RegionRecord>) -> bool {
        let Some(report) = self.primary_report(&seen.record) else {
            return false;
        };
        let mut record = seen.record.clone();
        for backup in &mut record.backups {
            let is_open = self.view.report(record.region, backup.replica).is_some();
            backup.in_sync |= report.in_sync.contains(&backup.replica.number)
                || (is_open && self.options.omission.leaves_out(Check::InSyncIsReported));
        }
        let mut in_sync = record.backups.iter().filter(|it| it.in_sync);
        record.is_unproven &= !in_sync.all(|it| report.in_sync.contains(&it.replica.number));
        if record == seen.record {
            return false;
        }
        self.step(Action::MarkInSync, seen, &record);
        true
    }

    /// Goes on with what is being done.
    pub(super) fn go_on_with_phase(&mut self, seen: &Seen<RegionRecord>) -> bool {
        match seen.record.phase.clone() {
            Phase::Steady => false,
            Phase::Moving { leaving, arriving } => self.go_on_moving(seen, leaving, arriving),
            Phase::HandingOver { to, old_leaves } => self.hand_over(seen, to, old_leaves),
            Phase::Splitting { at, child } => self.split(seen, &at, child),
        }
    }

    fn go_on_moving(
        &mut self,
        seen: &Seen<RegionRecord>,
        leaving: ReplicaNumber,
        arriving: ReplicaNumber,
    ) -> bool {
        let mut record = seen.record.clone();
        let arrived = record.backup(arriving).filter(|it| it.in_sync);
        if arrived.is_none_or(|it| !self.is_usable(&record, it.replica)) {
            return false; // It is being filled, or lost: its primary says so.
        }
        if record.primary.is_some_and(|it| it.number == leaving) {
            record.phase = Phase::HandingOver {
                to: arriving,
                old_leaves: true,
            };
            self.step(Action::BeginHandOver, seen, &record);
            return true;
        }
        record.backups.retain(|it| it.replica.number != leaving);
        record.phase = Phase::Steady;
        self.step(Action::RemoveReplica, seen, &record);
        true
    }

    /// The primary has stopped, so the backup takes over (CP15).
    fn hand_over(
        &mut self,
        seen: &Seen<RegionRecord>,
        to: ReplicaNumber,
        old_leaves: bool,
    ) -> bool {
        let mut record = seen.record.clone();
        let is_stopped = self.primary_report(&record).is_some_and(|it| it.stopped)
            || self.options.omission.leaves_out(Check::PrimaryIsOver);
        let new = record.backup(to).copied();
        let new = new.filter(|it| self.is_usable(&record, it.replica));
        let (Some(old), Some(new), true) = (record.primary, new, is_stopped) else {
            return false;
        };
        record.backups.retain(|it| it.replica.number != to);
        if !old_leaves {
            // It has all that it has acknowledged.
            record.backups.push(Backup::in_sync(old));
        }
        record.primary = Some(new.replica);
        if !self.options.omission.leaves_out(Check::EpochIsRaised) {
            record.epoch = record.epoch.next();
        }
        record.phase = Phase::Steady;
        self.step(Action::HandOver, seen, &record);
        true
    }

    /// The primary has prepared the split and stopped, so the region becomes two (CP17).
    fn split(&mut self, seen: &Seen<RegionRecord>, at: &Key, child: RegionId) -> bool {
        let mut record = seen.record.clone();
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
                format!("somebody to mend the record that it comes from: {how}"),
            );
            return true;
        }
        let more = Transaction::new()
            .when(Compare::Modified(
                new.key(),
                crate::coordinator::Revision::NEVER,
            ))
            .put(new.key(), new.encode());
        self.step_with(Action::Split(child), seen, &record, more);
        true
    }

    /// A region with too few replicas gets a backup.
    pub(super) fn add_backup(&mut self, seen: &Seen<RegionRecord>, wanted: usize) -> bool {
        let is_moving = matches!(seen.record.phase, Phase::Moving { .. });
        let wanted = wanted + usize::from(is_moving);
        if seen.record.replicas().count() >= wanted {
            return false;
        }
        if self.primary_report(&seen.record).is_none() {
            return true; // It is not open yet, and nothing else can be done.
        }
        let mut record = seen.record.clone();
        record.is_new = false;
        let Some(replica) = self.draw_backup(&mut record) else {
            let what = if self.loads.lacks_room_alone(&record) {
                "a server with room for another backup"
            } else {
                "a server for another backup"
            };
            self.wait(record.region, what.to_owned());
            return false;
        };
        self.step(Action::AddBackup(replica.server), seen, &record);
        true
    }

    /// Adds a backup on the server that is to have it.
    pub(super) fn draw_backup(&mut self, record: &mut RegionRecord) -> Option<Replica> {
        let region = record.region;
        let is_avoided = |server: ServerId| self.options.avoided.contains(&(region, server));
        let server = self.loads.for_backup(record, is_avoided)?;
        self.add_backup_on(record, server)
    }

    /// Adds a backup on this server, if that is alive.
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

    /// A region with too many backups loses one: one that is being filled, if there is any, on a
    /// server that is drained, on one with little room, on the one with most.
    pub(super) fn remove_surplus(&mut self, seen: &Seen<RegionRecord>, wanted: usize) -> bool {
        let is_steady = seen.record.phase == Phase::Steady;
        if !is_steady || seen.record.replicas().count() <= wanted {
            return false;
        }
        // CP14: of one whose life is over the primary will say that it has failed: that one is the
        // surplus then, and no living one is.
        let mut members = seen.record.members();
        if members.any(|it| !self.is_usable(&seen.record, it)) {
            return false;
        }
        let mut record = seen.record.clone();
        let place = (0..record.backups.len()).max_by_key(|place| {
            let backup = record.backups[*place];
            let server = backup.replica.server;
            let is_drained = self.view.drains.contains(&server);
            (
                !backup.in_sync,
                is_drained,
                self.view.room_of(server),
                self.loads.of(server).size_bytes,
                server,
            )
        });
        let Some(place) = place else {
            return false;
        };
        record.backups.remove(place);
        self.step(Action::RemoveReplica, seen, &record);
        true
    }

    /// A replica on a server that is drained begins to move.
    pub(super) fn drain(&mut self, seen: &Seen<RegionRecord>) -> bool {
        let drained = (seen.record.replicas()).find(|it| self.view.drains.contains(&it.server));
        let is_steady = seen.record.phase == Phase::Steady;
        let (Some(leaving), true) = (drained, is_steady) else {
            return false;
        };
        if self.moving_count() >= self.options.move_count_max {
            return false;
        }
        let mut record = seen.record.clone();
        if self.primary_report(&record).is_none() {
            return false;
        }
        record.is_new = false;
        let Some(arriving) = self.draw_backup(&mut record) else {
            let with_room = if self.loads.lacks_room_alone(&record) {
                " with room"
            } else {
                ""
            };
            let what = format!("a server{with_room} that takes what {} has", leaving.server);
            self.wait(record.region, what);
            return false;
        };
        record.phase = Phase::Moving {
            leaving: leaving.number,
            arriving: arriving.number,
        };
        self.step(Action::BeginMove(arriving.server), seen, &record);
        true
    }

    /// CP22: a primary on a full disk, which can write nothing, hands over to a backup that can.
    pub(super) fn leave_full(&mut self, seen: &Seen<RegionRecord>) -> bool {
        let record = &seen.record;
        let room = |replica: Replica| self.view.room_of(replica.server);
        let is_full = record.primary.is_some_and(|it| room(it) == Room::Full);
        let is_steady = record.phase == Phase::Steady;
        if !is_full || !is_steady || self.primary_report(record).is_none() {
            return false;
        }
        let usable = self.usable_backups(record).into_iter();
        let able = usable.filter(|it| room(it.replica) == Room::Enough);
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
        self.step(Action::BeginHandOver, seen, &record);
        true
    }

    /// How many regions are being moved, or begin to be by this plan.
    pub(super) fn moving_count(&self) -> usize {
        let is_moving = |it: &&Seen<RegionRecord>| {
            matches!(
                it.record.phase,
                Phase::Moving { .. } | Phase::HandingOver { .. }
            )
        };
        let begun = self
            .plan
            .steps
            .iter()
            .filter(|step| matches!(step.action, Action::BeginMove(_) | Action::BeginHandOver));
        self.view.regions.values().filter(is_moving).count() + begun.count()
    }

    /// Draws the number of another region: the transaction takes it, if nobody else has. `Err`: the
    /// record with the counters cannot be read, or has forgotten some (CP23).
    pub(super) fn draw_region(&self) -> Result<(RegionId, Transaction), String> {
        let seen = self.view.ids.as_ref();
        let seen = seen.ok_or("the record with the counters cannot be read")?;
        if let Some((region, server)) = self.view.copies_in_the_way().first() {
            return Err(format!(
                "{server} has a copy of {region}, of which the coordinator has never heard \
                 (`farleaf cluster status` says more)"
            ));
        }
        let child = seen.record.next_region;
        let ids = Ids {
            next_region: RegionId(child.0 + 1),
            ..seen.record.clone()
        };
        let transaction = Transaction::new()
            .when(Compare::Modified(IDS_KEY.to_owned(), seen.modified))
            .put(IDS_KEY, ids.encode());
        Ok((child, transaction))
    }
}
