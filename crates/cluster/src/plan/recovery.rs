//! Regions of which every member is lost: they wait for all of them to come back, and the one with
//! the newest log goes on (CP18, CP19).

use super::{Action, Planner};
use crate::ids::{Epoch, Life, RegionId, ReplicaNumber, ServerId};
use crate::omission::Check;
use crate::record::{Backup, CopyReport, Phase, RegionRecord, Replica, Room};
use crate::view::Seen;

/// A member that has come back, in a new life, with its copy.
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
        let has_copy = report.copies.iter().any(|it| it.region == record.region)
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
            return Found::Awaited(format!(
                "{server} to come back with its copy, or to be given up"
            ));
        };
        if life == replica.life {
            let broken = report.replica(record.region, replica.number);
            let broken = broken.and_then(|it| it.broken.as_deref());
            return Found::Awaited(format!(
                "{server} to be mended and started again; its copy could not be used: {}",
                broken.unwrap_or("it does not say why")
            ));
        }
        let is_it = |of: (RegionId, ReplicaNumber)| of == (record.region, replica.number);
        let mut copies = report.copies.iter();
        if let Some(copy) = copies.find(|it| is_it((it.region, it.replica))) {
            return Found::Returned(Returned {
                replica,
                life,
                copy: *copy,
            });
        }
        let mut unusable = report.unusable.iter();
        match unusable.find(|it| is_it((it.region, it.replica))) {
            Some(copy) if copy.is_damaged => Found::Damaged(format!(
                "a whole copy in the place of that of {server}, which is damaged: {}",
                copy.how
            )),
            Some(copy) => Found::Awaited(format!(
                "{server} to be mended and started again, or to be given up; its copy cannot be \
                 used: {}",
                copy.how
            )),
            None => Found::Awaited(format!(
                "the copy of {server}, which is back without it: have its directory restored and \
                 start it again, or give it up (`farleaf cluster give-up`)"
            )),
        }
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
        let now = |it: &Returned| Replica {
            life: it.life,
            ..it.replica
        };
        let others = returned.iter().filter(|it| it.replica != newest.replica);
        let mut record = record.clone();
        record.primary = Some(now(newest));
        record.epoch = record.epoch.next();
        record.backups = others.map(|it| Backup::in_sync(now(it))).collect();
        record.is_new = false;
        record.is_unproven = true;
        record.phase = Phase::Steady;
        Some(record)
    }
}
