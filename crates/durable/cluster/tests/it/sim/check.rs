//! Checks after every event, and at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use farleaf_cluster::coordinator::{Coordinator, Embedded, Event, Watch};
use farleaf_cluster::ids::{RegionId, ServerId, TableId};
use farleaf_cluster::lease::LeaseGuard;
use farleaf_cluster::record::region::Key;
use farleaf_cluster::record::{Phase, RegionRecord, Replica};
use farleaf_cluster::view::View;

use super::sim_servers::SimServers;
use super::world::{KEY_END, REPLICA_COUNT};

/// Acknowledged values of a key.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Newest value that must never be lost.
    durable: u64,
    /// Newest value that was acknowledged or read.
    seen: u64,
}

pub(crate) struct Checker {
    table: TableId,
    view: View,
    watch: Box<dyn Watch>,
    keys: BTreeMap<u8, Known>,
    broken: Option<String>,
    /// Whether a value that was only in memory was lost, as is permitted.
    has_forgotten: bool,
    /// Number of times that two servers could have answered a read of the same key.
    pub(crate) overlap_count: u64,
    /// Number of reopened replicas that had broken on a full disk.
    pub(crate) again_count: u64,
}

impl Checker {
    pub(crate) fn new(embedded: &Embedded, table: TableId) -> Self {
        let snapshot = embedded.range("").expect("it works");
        let watch = embedded.watch("", snapshot.revision).expect("it works");
        Self {
            table,
            view: View::of(snapshot.revision, &snapshot.entries),
            watch,
            keys: BTreeMap::new(),
            broken: None,
            has_forgotten: false,
            overlap_count: 0,
            again_count: 0,
        }
    }

    pub(crate) fn regions(&self) -> Vec<RegionRecord> {
        self.view
            .regions_of(self.table)
            .into_iter()
            .cloned()
            .collect()
    }

    /// Returns the members of a region, except for those that reported themselves as broken or that
    /// the primary reported as failed. The latter are no longer members when a master acts on that,
    /// even if the reporter is lost by then.
    pub(crate) fn lasting_members(&self, record: &RegionRecord) -> Vec<Replica> {
        let report = record.primary;
        let report = report.and_then(|it| self.view.report(record.region, it));
        let report = report.and_then(|it| it.primary.as_ref());
        let failed = report.map_or(&[][..], |it| &it.failed);
        let is_broken = |it: &Replica| {
            let report = self.view.report(record.region, *it);
            report.is_some_and(|it| it.broken.is_some())
        };
        let members = record.members();
        let lasting = members.filter(|it| !failed.contains(&it.number) && !is_broken(it));
        lasting.collect()
    }

    /// Returns the value below which no later read may be.
    pub(crate) fn floor(&self, key: u8) -> u64 {
        let known = self.keys.get(&key).copied().unwrap_or_default();
        if self.has_forgotten {
            known.durable
        } else {
            known.seen
        }
    }

    pub(crate) fn acknowledged(&mut self, key: u8, value: u64, is_durable: bool) {
        let known = self.keys.entry(key).or_default();
        known.seen = known.seen.max(value);
        if is_durable {
            known.durable = known.durable.max(value);
        }
    }

    pub(crate) fn read(&mut self, key: u8, value: u64, floor: u64) {
        if value < floor {
            self.broken = Some(format!("key {key} is read as {value}, and was {floor}"));
        }
        let known = self.keys.entry(key).or_default();
        known.seen = known.seen.max(value);
    }

    pub(crate) fn judge(&mut self, sim_servers: &SimServers) -> Result<(), String> {
        let broken = self.broken.take().filter(|_| !sim_servers.reads_may_be_old);
        if let Some(broken) = broken {
            return Err(broken);
        }
        for event in self.watch.next(Duration::ZERO).expect("it works") {
            trace(&event);
            let before = self.view.regions.clone();
            self.view.follow(&event);
            let change = before.iter().find_map(|(region, old)| {
                let new = self.view.regions.get(region)?;
                (new.modified != old.modified).then(|| (old.record.clone(), new.record.clone()))
            });
            if let Some((old, new)) = change {
                self.judge_change(sim_servers, &old, &new)?;
            }
        }
        if let Some(error) = self.view.damaged.values().next() {
            return Err(error.to_string());
        }
        self.judge_coverage()?;
        let judged = judge_primaries(sim_servers);
        if sim_servers.reads_may_be_old {
            self.overlap_count += u64::from(judged.is_err());
            return Ok(());
        }
        judged
    }

    /// Checks that a new primary had everything, and that epochs rise with it.
    fn judge_change(
        &mut self,
        sim_servers: &SimServers,
        old: &RegionRecord,
        new: &RegionRecord,
    ) -> Result<(), String> {
        let region = old.region;
        if new.epoch < old.epoch || new.next_replica < old.next_replica {
            return Err(format!("{region} goes back: {old:?}, {new:?}"));
        }
        let again = new.replicas().filter(|it| it.opened_again > old.epoch);
        self.again_count += again.count() as u64;
        let (Some(before), Some(after)) = (old.primary, new.primary) else {
            return Ok(());
        };
        if before == after {
            return Ok(());
        }
        if new.epoch == old.epoch {
            return Err(format!(
                "{region} has another primary at the same {}",
                new.epoch
            ));
        }
        let was_member = old.members().any(|it| it == after);
        let recovered = old.members().find(|it| it.number == after.number);
        match recovered {
            None => Err(format!(
                "{after:?} is primary of {region}, and had not everything"
            )),
            Some(_) if was_member => Ok(()),
            Some(_) => self.judge_recovery(sim_servers, old, after.server),
        }
    }

    /// Checks that the newest of all members' copies continues.
    fn judge_recovery(
        &mut self,
        sim_servers: &SimServers,
        old: &RegionRecord,
        chosen: ServerId,
    ) -> Result<(), String> {
        self.has_forgotten = true;
        let damaged = &sim_servers.servers[&chosen].damaged;
        if damaged.iter().any(|(region, _)| *region == old.region) {
            return Ok(()); // That was after the report.
        }
        let age = |server: ServerId| {
            let server = &sim_servers.servers[&server];
            let replica = server
                .copies
                .get(&old.region)
                .or(server.open.get(&old.region));
            replica.map(|it| (it.age(), it.number))
        };
        let chosen_age = age(chosen);
        for member in old.members() {
            let other = age(member.server).filter(|it| it.1 == member.number);
            if other.map(|it| it.0) > chosen_age.map(|it| it.0) {
                return Err(format!(
                    "{} goes on with {chosen_age:?} of {chosen}, and {} has {other:?}",
                    old.region, member.server
                ));
            }
        }
        Ok(())
    }

    /// Checks that every key belongs to one region.
    fn judge_coverage(&self) -> Result<(), String> {
        let mut at = Some(Key::default());
        for record in self.view.regions_of(self.table) {
            if at.as_ref() != Some(&record.from) {
                return Err(format!(
                    "{} begins at {}, not {at:?}",
                    record.region, record.from
                ));
            }
            at.clone_from(&record.to);
        }
        match at {
            None => Ok(()),
            Some(at) => Err(format!("nobody has the keys from {at} on")),
        }
    }

    /// Checks that every region is served, fully replicated, and has all durable data.
    pub(crate) fn judge_end(&self, sim_servers: &SimServers) -> Result<(), String> {
        for record in self.view.regions_of(self.table) {
            let region = record.region;
            let whole = record.members().count() == REPLICA_COUNT
                && record.replicas().count() == REPLICA_COUNT
                && record.replicas().all(|it| self.view.is_alive(it));
            let Some(primary) = record.primary.filter(|_| whole) else {
                return Err(format!("{region} is not whole: {record:?}"));
            };
            // Balancing may continue.
            if matches!(record.phase, Phase::Splitting { .. }) {
                return Err(format!("{region} is being split"));
            }
            let server = &sim_servers.servers[&primary.server];
            let may = server
                .guard
                .as_ref()
                .is_some_and(LeaseGuard::may_acknowledge);
            let open = server
                .open
                .get(&region)
                .filter(|it| it.epoch == record.epoch);
            let serves = |it: &super::sim_servers::SimReplica| {
                let primary = it.primary.as_ref();
                primary.is_some_and(|primary| !primary.stopped && primary.committed == it.log.len())
            };
            let Some(open) = open.filter(|it| may && serves(it)) else {
                return Err(format!("{region} is not served by {}", primary.server));
            };
            for key in (0..KEY_END as u8).filter(|key| record.covers(&[*key])) {
                let last = open.log.iter().rev().find(|it| it.key == key);
                let value = last.map_or(0, |it| it.value);
                if value < self.floor(key) {
                    return Err(format!(
                        "key {key} has {value}, and had {}",
                        self.floor(key)
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Prints a change, if tracing is on.
fn trace(event: &Event) {
    if !super::traces() {
        return;
    }
    match event {
        Event::Put(entry) if entry.key.starts_with("report/") => {}
        Event::Put(entry) => {
            let value = String::from_utf8_lossy(&entry.value);
            eprintln!("{} {} {value}", entry.mod_revision, entry.key);
        }
        Event::Delete(key, revision) => eprintln!("{revision} {key} is gone"),
    }
}

/// Checks that for every key at most one server can acknowledge anything.
fn judge_primaries(sim_servers: &SimServers) -> Result<(), String> {
    let mut serving: Vec<(ServerId, RegionId, &Key, Option<&Key>)> = Vec::new();
    for (id, server) in &sim_servers.servers {
        let may = server
            .guard
            .as_ref()
            .is_some_and(LeaseGuard::may_acknowledge);
        if !server.is_up || !may {
            continue;
        }
        for (region, replica) in &server.open {
            if replica.primary.as_ref().is_none_or(|it| it.stopped) {
                continue;
            }
            let (from, to) = (&replica.from, replica.to.as_ref());
            let other = serving.iter().find(|other| {
                other.3.is_none_or(|end| from < end) && to.is_none_or(|end| other.2 < end)
            });
            if let Some(other) = other {
                return Err(format!(
                    "{id} as primary of {region} and {} as primary of {} can both acknowledge",
                    other.0, other.1
                ));
            }
            serving.push((*id, *region, from, to));
        }
    }
    Ok(())
}
