//! Regions of which every member is lost: they wait for all of them to come back, and the one with
//! the newest log goes on (CP18, CP19).

use super::{Action, Planner};
use crate::ids::{Epoch, Life, RegionId, ReplicaNumber, ServerId};
use crate::omission::Check;
use crate::record::{Backup, CopyReport, Phase, RegionRecord, Replica, Room, ServerReport};
use crate::view::Seen;

/// The last way out where a region waits for a server.
const OR_GIVE_UP: &str =
    "(or to be given up by `farleaf cluster give-up`: what nobody else has is lost then)";

/// A member that has come back with its copy: in a new life, or since there is room for it.
#[derive(Clone, Copy, Debug)]
struct Returned {
    replica: Replica,
    life: Life,
    copy: CopyReport,
}

/// What is known of a member's copy while no member can do what is ordered.
enum Found {
    Returned(Returned),
    /// It is there and damaged: to wait for it helps nobody.
    Damaged(String),
    /// It may come yet: what is waited for.
    Awaited(String),
}

impl Planner<'_> {
    /// A region without any member that is usable goes on with the newest log, or waits.
    pub(super) fn recover(&mut self, seen: &Seen<RegionRecord>) {
        let record = &seen.record;
        if let Some(record) = self.never_opened(record) {
            self.step(Action::Recover, seen, &record);
            return;
        }
        let (mut returned, mut damaged, mut awaited) = (Vec::new(), Vec::new(), Vec::new());
        for member in record.members() {
            match self.found(record, member) {
                Found::Returned(member) => returned.push(member),
                Found::Damaged(how) => damaged.push(how),
                Found::Awaited(what) => awaited.push(what),
            }
        }
        let is_omitted = self.options.omission.leaves_out(Check::AllMembersAreBack);
        if returned.is_empty() {
            // What is damaged is waited for, too, as nobody else has anything.
            awaited.append(&mut damaged);
        }
        if returned.is_empty() || (!is_omitted && !awaited.is_empty()) {
            let why = damaged.iter().map(|how| format!(" ({how})"));
            let what = format!("{}{}", awaited.join("; "), why.collect::<String>());
            self.wait(record.region, what);
            return;
        }
        if let Some(record) = self.go_on_with(record, &returned) {
            self.step(Action::Recover, seen, &record);
        }
    }

    /// The record of a region whose only server has come back without it, and that nobody has told
    /// to be open: it never was, since what is opened is on the disk first (RH5).
    fn never_opened(&self, record: &RegionRecord) -> Option<RegionRecord> {
        let primary = record.primary.filter(|_| record.is_new)?;
        let life = *self.view.lives.get(&primary.server)?;
        let report = &self.view.reports.get(&primary.server)?.record;
        let is_back = report.life == life && life != primary.life;
        let has_copy = report.copies.iter().any(|it| it.is_of(record))
            || (report.unusable.iter()).any(|it| it.region == record.region);
        (is_back && !has_copy).then(|| RegionRecord {
            primary: Some(Replica { life, ..primary }),
            epoch: record.epoch.next(),
            ..record.clone()
        })
    }

    /// What a member's server, in the life that it has now, says of the member's copy.
    fn found(&self, record: &RegionRecord, replica: Replica) -> Found {
        let server = replica.server;
        let life = self.view.lives.get(&server).copied();
        let report = self.view.reports.get(&server).map(|seen| &seen.record);
        let (Some(life), Some(report)) = (life, report.filter(|it| Some(it.life) == life)) else {
            return Found::Awaited(format!("{server} to come back with its copy {OR_GIVE_UP}"));
        };
        if life == replica.life {
            return self.found_broken(record, replica, report);
        }
        if let Some(copy) = report.copy(record, replica.number) {
            return Found::Returned(Returned {
                replica,
                life,
                copy,
            });
        }
        let is_it = |of: (RegionId, ReplicaNumber)| of == (record.region, replica.number);
        let mut unusable = report.unusable.iter();
        match unusable.find(|it| is_it((it.region, it.replica))) {
            Some(copy) if copy.is_damaged => Found::Damaged(format!(
                "a whole copy in the place of that of {server}, which is damaged: {}",
                copy.how
            )),
            Some(copy) => Found::Awaited(format!(
                "{server} to be mended and started again, as its copy cannot be used: {} \
                 {OR_GIVE_UP}",
                copy.how
            )),
            None => Found::Awaited(format!(
                "the copy of {server}, which is back without it: have its directory restored and \
                 start it again {OR_GIVE_UP}"
            )),
        }
    }

    /// What is known of the copy of a member that is broken, and whose life goes on: if that was
    /// for want of room, and there is some, or for damage, it is as good as back in another life
    /// (CP16).
    fn found_broken(
        &self,
        record: &RegionRecord,
        replica: Replica,
        report: &ServerReport,
    ) -> Found {
        let server = replica.server;
        let told = self.view.report(record.region, replica);
        let how = told.and_then(|it| it.broken.as_deref());
        let how = how.unwrap_or("it does not say why");
        if !told.is_some_and(|it| it.lacked_room || it.is_damaged) {
            return Found::Awaited(format!(
                "{server} to be mended and started again; its copy could not be used: {how}"
            ));
        }
        if let Some(copy) = report.copy(record, replica.number) {
            return Found::Returned(Returned {
                replica,
                life: replica.life,
                copy,
            });
        }
        if !told.is_some_and(|it| it.lacked_room) {
            return Found::Awaited(format!(
                "{server} to open its copy again, which is damaged; if that lasts, restore it from \
                 a copy and start it again ({how})"
            ));
        }
        Found::Awaited(if report.room() == Room::Full {
            format!(
                "room on the disk of {server}, which is full: its copy goes on by itself then \
                 ({how})"
            )
        } else {
            format!(
                "{server} to go on with its copy, as there is room again; if that lasts, mend it and \
                 start it again ({how})"
            )
        })
    }

    /// The record of a region whose members on these servers are given up, or why not.
    pub(super) fn given_up(
        &self,
        record: &RegionRecord,
        servers: &[ServerId],
    ) -> Result<RegionRecord, String> {
        let members: Vec<_> = record.members().collect();
        if members.iter().any(|it| self.is_usable(record, *it)) {
            return Err("a member of the region is alive, so nothing need be given up".to_owned());
        }
        let kept: Vec<_> = (members.iter())
            .filter(|it| !servers.contains(&it.server))
            .collect();
        if kept.is_empty() {
            return Err("no member of the region would be left".to_owned());
        }
        let mut returned = Vec::new();
        for member in kept {
            match self.found(record, *member) {
                Found::Returned(member) => returned.push(member),
                // Nobody need say that it is given up.
                Found::Damaged(_) => {}
                Found::Awaited(what) => {
                    return Err(format!(
                        "{} is not back with its copy, and not given up: the region waits for \
                         {what}",
                        member.server
                    ));
                }
            }
        }
        self.go_on_with(record, &returned)
            .ok_or_else(|| "no copy is left".to_owned())
    }

    /// The record with the member as primary whose log is the newest: by the epoch of its last
    /// record, then by its end; of those that are as new as each other, one on a disk that is not
    /// full (CP22). The others are backups that have everything: nobody reads or writes until the
    /// primary has brought them what it has (RS4), and if its copy turns out to be damaged before
    /// that, one of theirs goes on (CP13).
    fn go_on_with(&self, record: &RegionRecord, returned: &[Returned]) -> Option<RegionRecord> {
        let newest = returned.iter().max_by_key(|it| {
            let age: (Epoch, u64) = (it.copy.epoch, it.copy.position_bytes);
            let has_room = self.view.room_of(it.replica.server) != Room::Full;
            (age, has_room, std::cmp::Reverse(it.replica.number))
        })?;
        let epoch = record.epoch.next();
        let now = |it: &Returned| {
            let is_same_life = it.life == it.replica.life;
            Replica {
                life: it.life,
                opened_again: if is_same_life { epoch } else { Epoch(0) },
                ..it.replica
            }
        };
        let others = returned.iter().filter(|it| it.replica != newest.replica);
        let mut record = record.clone();
        record.primary = Some(now(newest));
        record.epoch = epoch;
        record.backups = others.map(|it| Backup::in_sync(now(it))).collect();
        record.is_new = false;
        record.is_unproven = true;
        record.phase = Phase::Steady;
        Some(record)
    }
}
