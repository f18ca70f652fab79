//! Regions of which every member is lost: they wait for all of them to come back, and the one with
//! the newest log goes on (CP18, CP19).

use super::{Action, Planner};
use crate::ids::{Epoch, Life, ServerId};
use crate::omission::Check;
use crate::record::{CopyReport, Phase, RegionRecord, Replica};
use crate::view::Seen;

/// A member that has come back, in a new life, with its copy.
#[derive(Clone, Copy, Debug)]
struct Returned {
    replica: Replica,
    life: Life,
    copy: CopyReport,
}

impl Planner<'_> {
    /// A region without any member that is usable goes on with the newest log, or waits.
    pub(super) fn recover(&mut self, seen: &Seen<RegionRecord>) {
        let record = &seen.record;
        if let Some(record) = self.never_opened(record) {
            self.step(Action::Recover, seen, &record);
            return;
        }
        let members: Vec<_> = record.members().collect();
        let returned: Vec<_> = (members.iter())
            .filter_map(|it| self.returned(record, *it))
            .collect();
        let mut missing = members
            .iter()
            .filter(|member| returned.iter().all(|it| it.replica != **member))
            .map(|member| member.server.to_string())
            .peekable();
        let is_omitted = self.options.omission.leaves_out(Check::AllMembersAreBack);
        let waits = returned.is_empty() || !is_omitted;
        if waits && missing.peek().is_some() {
            let missing: Vec<_> = missing.collect();
            let what = format!("{} to come back with its copy", missing.join(", "));
            self.wait(record.region, what);
            return;
        }
        if let Some(record) = go_on_with(record, &returned) {
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
        let has_copy = report.copies.iter().any(|it| it.region == record.region);
        (is_back && !has_copy).then(|| RegionRecord {
            primary: Some(Replica { life, ..primary }),
            epoch: record.epoch.next(),
            ..record.clone()
        })
    }

    /// What a member's server, in the life that it has now, says of the member's copy.
    fn returned(&self, record: &RegionRecord, replica: Replica) -> Option<Returned> {
        let life = *self.view.lives.get(&replica.server)?;
        let report = &self.view.reports.get(&replica.server)?.record;
        if report.life != life || life == replica.life {
            return None;
        }
        let mut copies = report.copies.iter();
        let copy = copies.find(|it| it.region == record.region && it.replica == replica.number)?;
        Some(Returned {
            replica,
            life,
            copy: *copy,
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
            let back = self.returned(record, *member);
            returned.push(back.ok_or_else(|| {
                format!(
                    "{} is not back with its copy, and not given up",
                    member.server
                )
            })?);
        }
        go_on_with(record, &returned).ok_or_else(|| "no copy is left".to_owned())
    }
}

/// The record with the member as primary whose log is the newest: by the epoch of its last record,
/// then by its end. The others are filled anew.
fn go_on_with(record: &RegionRecord, returned: &[Returned]) -> Option<RegionRecord> {
    let newest = returned.iter().max_by_key(|it| {
        let age: (Epoch, u64) = (it.copy.epoch, it.copy.position_bytes);
        (age, std::cmp::Reverse(it.replica.number))
    })?;
    let mut record = record.clone();
    record.primary = Some(Replica {
        life: newest.life,
        ..newest.replica
    });
    record.epoch = record.epoch.next();
    record.backups.clear();
    record.is_new = false;
    record.phase = Phase::Steady;
    Some(record)
}
