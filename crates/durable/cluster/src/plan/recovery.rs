//! Regions that have lost all members: they wait for all of them to come back, and continue with
//! the newest log (CONTROL-18, CONTROL-19).

use super::{Action, CurrentRegion, Planner};
use crate::ids::{Epoch, Life, RegionId, ReplicaNumber, ServerId};
use crate::omission::Check;
use crate::record::{Backup, CopyReport, Phase, RegionRecord, Replica, ServerReport, SpaceState};

/// Remedy of last resort, for a region that waits for a server.
const OR_GIVE_UP: &str =
    "(or give it up with `farleaf cluster give-up`: data that no other copy has are lost then)";

/// A member that is back with its copy: in a new life, or because there is space for it again.
#[derive(Clone, Copy, Debug)]
struct ReturnedMember {
    replica: Replica,
    life: Life,
    copy: CopyReport,
}

/// State of a member's copy while no member can carry out orders.
enum CopyState {
    ReturnedMember(ReturnedMember),
    /// The copy is damaged, so waiting for it is useless.
    Damaged(String),
    /// The copy may still come; describes what is waited for.
    Awaited(String),
}

impl Planner<'_> {
    /// Continues a region without usable members with the newest log, or reports what it waits for.
    pub(super) fn recover(&mut self, current: &CurrentRegion) {
        let record = &current.record;
        if let Some(record) = self.never_opened(record) {
            self.step(Action::Recover, current, &record);
            return;
        }
        let (mut returned, mut damaged, mut awaited) = (Vec::new(), Vec::new(), Vec::new());
        for member in record.members() {
            match self.copy_state(record, member) {
                CopyState::ReturnedMember(member) => returned.push(member),
                CopyState::Damaged(how) => damaged.push(how),
                CopyState::Awaited(what) => awaited.push(what),
            }
        }
        let is_omitted = self.options.omission.skips_check(Check::AllMembersAreBack);
        if returned.is_empty() {
            // No other member has a copy, so damaged ones are waited for, too.
            awaited.append(&mut damaged);
        }
        if returned.is_empty() || (!is_omitted && !awaited.is_empty()) {
            let why = damaged.iter().map(|how| format!(" ({how})"));
            let what = format!("{}{}", awaited.join("; "), why.collect::<String>());
            self.wait(record.region, what);
            return;
        }
        if let Some(record) = self.continue_with(record, &returned) {
            self.step(Action::Recover, current, &record);
        }
    }

    /// Returns the record of a region that was never opened and whose only server is back without a
    /// copy. An opened region has its copy on disk before anything is acknowledged.
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

    /// Returns the state of a member's copy, as its server reports it in its current life.
    fn copy_state(&self, record: &RegionRecord, replica: Replica) -> CopyState {
        let server = replica.server;
        let life = self.view.lives.get(&server).copied();
        let report = self
            .view
            .reports
            .get(&server)
            .map(|current| &current.record);
        let (Some(life), Some(report)) = (life, report.filter(|it| Some(it.life) == life)) else {
            return CopyState::Awaited(format!("{server} to come back with its copy {OR_GIVE_UP}"));
        };
        if life == replica.life {
            return self.broken_copy_state(record, replica, report);
        }
        if let Some(copy) = report.copy(record, replica.number) {
            return CopyState::ReturnedMember(ReturnedMember {
                replica,
                life,
                copy,
            });
        }
        let is_it = |of: (RegionId, ReplicaNumber)| of == (record.region, replica.number);
        let mut unusable = report.unusable.iter();
        match unusable.find(|it| is_it((it.region, it.replica))) {
            Some(copy) if copy.is_damaged => CopyState::Damaged(format!(
                "a complete copy to replace that of {server}, which is corrupted: {}",
                copy.how
            )),
            Some(copy) => CopyState::Awaited(format!(
                "{server} to be repaired and restarted, as its copy cannot be used: {} \
                 {OR_GIVE_UP}",
                copy.how
            )),
            None => CopyState::Awaited(format!(
                "the copy of {server}, which is back without it: restore its directory and restart \
                 it {OR_GIVE_UP}"
            )),
        }
    }

    /// Returns the state of a broken member's copy, while the member's life continues. After a full
    /// disk and once there is space, or after damage, the member counts as back in another life
    /// (CONTROL-16).
    fn broken_copy_state(
        &self,
        record: &RegionRecord,
        replica: Replica,
        report: &ServerReport,
    ) -> CopyState {
        let server = replica.server;
        let replica_report = self.view.report(record.region, replica);
        let how = replica_report.and_then(|it| it.broken.as_deref());
        let how = how.unwrap_or("no reason was reported");
        if !replica_report.is_some_and(|it| it.lacked_space || it.is_damaged) {
            return CopyState::Awaited(format!(
                "{server} to be repaired and restarted; its copy could not be used: {how}"
            ));
        }
        if let Some(copy) = report.copy(record, replica.number) {
            return CopyState::ReturnedMember(ReturnedMember {
                replica,
                life: replica.life,
                copy,
            });
        }
        if !replica_report.is_some_and(|it| it.lacked_space) {
            return CopyState::Awaited(format!(
                "{server} to reopen its copy, which is corrupted; if this persists, restore it \
                 from a copy and restart the server ({how})"
            ));
        }
        CopyState::Awaited(if report.space_state() == SpaceState::Full {
            format!(
                "free space on the disk of {server}, which is full; its copy then continues \
                 automatically ({how})"
            )
        } else {
            format!(
                "{server} to continue with its copy, as its disk has free space again; if this \
                 persists, repair and restart the server ({how})"
            )
        })
    }

    /// Returns the record of a region whose members on these servers are given up, or why that is
    /// refused.
    pub(super) fn given_up(
        &self,
        record: &RegionRecord,
        servers: &[ServerId],
    ) -> Result<RegionRecord, String> {
        let members: Vec<_> = record.members().collect();
        if members.iter().any(|it| self.is_usable(record, *it)) {
            return Err("a replica of the region is usable, so none may be given up".to_owned());
        }
        let retained: Vec<_> = (members.iter())
            .filter(|it| !servers.contains(&it.server))
            .collect();
        if retained.is_empty() {
            return Err("no replica of the region would be left".to_owned());
        }
        let mut returned = Vec::new();
        for member in retained {
            match self.copy_state(record, *member) {
                CopyState::ReturnedMember(member) => returned.push(member),
                // Damaged members need not be named.
                CopyState::Damaged(_) => {}
                CopyState::Awaited(what) => {
                    return Err(format!(
                        "{} is neither back with its copy nor given up: the region waits for \
                         {what}",
                        member.server
                    ));
                }
            }
        }
        self.continue_with(record, &returned)
            .ok_or_else(|| "no usable copy would be left".to_owned())
    }

    /// Returns the record in which the member with the newest log is primary: by the epoch of the
    /// last record, then by the end. Among equals, one whose disk is not full is preferred
    /// (CONTROL-22).
    ///
    /// The others become in-sync backups. Nothing is read or written until the primary has filled
    /// them. If the primary's copy proves to be damaged before that, one of theirs continues
    /// (CONTROL-13).
    fn continue_with(
        &self,
        record: &RegionRecord,
        returned: &[ReturnedMember],
    ) -> Option<RegionRecord> {
        let newest = returned.iter().max_by_key(|it| {
            let age: (Epoch, u64) = (it.copy.epoch, it.copy.position_bytes);
            let has_space = self.view.space_of(it.replica.server) != SpaceState::Full;
            (age, has_space, std::cmp::Reverse(it.replica.number))
        })?;
        let epoch = record.epoch.next();
        let now = |it: &ReturnedMember| {
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
