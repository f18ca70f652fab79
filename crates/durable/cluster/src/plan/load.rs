//! What each server has, with what a plan has given it, and which one is to have more.

use std::collections::BTreeMap;

use crate::ids::{RegionId, ServerId};
use crate::record::room::low_below_bytes;
use crate::record::{RegionRecord, Room};
use crate::view::View;

/// A replica counts as so many bytes more than it says, so that empty ones are spread, too.
pub(super) const REPLICA_SIZE_BYTES_MIN: u64 = 1 << 20;

/// What a server has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    /// Of all its replicas.
    pub(super) size_bytes: u64,
    /// Primaries.
    pub(super) primary_count: u64,
    /// Operations of its primaries in a second, and one for each of these.
    pub(super) operations_per_second: u64,
    /// Of `size_bytes` those that are to come, and may not be on its disk yet.
    coming_size_bytes: u64,
}

/// The servers that can have replicas, with what they have.
#[derive(Debug)]
pub(super) struct Loads<'v> {
    view: &'v View,
    servers: BTreeMap<ServerId, Load>,
}

impl<'v> Loads<'v> {
    pub(super) fn new(view: &'v View) -> Self {
        // A server whose record cannot be decoded is alive, and gets nothing.
        let usable = view.servers.keys().filter(|it| !view.drains.contains(it));
        let mut loads = Self {
            view,
            servers: usable.map(|server| (*server, Load::default())).collect(),
        };
        for seen in view.regions.values() {
            let record = &seen.record;
            let size_bytes = size_bytes(view, record);
            for replica in record.members() {
                loads.add(replica.server, size_bytes);
            }
            for backup in record.backups.iter().filter(|it| !it.in_sync) {
                loads.add_coming(backup.replica.server, size_bytes);
            }
            if let Some(primary) = record.primary {
                let operations = operations_per_second(view, record);
                loads.add_primary(primary.server, operations);
            }
        }
        loads
    }

    pub(super) fn add(&mut self, server: ServerId, size_bytes: u64) {
        if let Some(load) = self.servers.get_mut(&server) {
            load.size_bytes = load.size_bytes.saturating_add(size_bytes);
        }
    }

    /// The same, of a replica that is to be filled.
    pub(super) fn add_coming(&mut self, server: ServerId, size_bytes: u64) {
        self.add(server, size_bytes);
        if let Some(load) = self.servers.get_mut(&server) {
            load.coming_size_bytes = load.coming_size_bytes.saturating_add(size_bytes);
        }
    }

    pub(super) fn add_primary(&mut self, server: ServerId, operations_per_second: u64) {
        if let Some(load) = self.servers.get_mut(&server) {
            load.primary_count += 1;
            let sum = load.operations_per_second;
            load.operations_per_second = sum.saturating_add(operations_per_second);
        }
    }

    /// The servers that can have more, with what they have.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ServerId, Load)> + '_ {
        self.servers.iter().map(|(server, load)| (*server, *load))
    }

    pub(super) fn of(&self, server: ServerId) -> Load {
        self.servers.get(&server).copied().unwrap_or_default()
    }

    /// CP22: whether a server has room for so many bytes more, and is not low on it then.
    pub(super) fn has_room(&self, server: ServerId, needed: u64) -> bool {
        let load = self.of(server);
        let report = self.view.server_report(server);
        let capacity = report.map_or(0, |report| report.capacity_bytes);
        let free = report.and_then(|report| report.free_bytes);
        let is_within = capacity == 0 || load.size_bytes.saturating_add(needed) <= capacity;
        let wanted = low_below_bytes(capacity)
            .saturating_add(load.coming_size_bytes)
            .saturating_add(needed);
        is_within && free.is_none_or(|free| free >= wanted)
    }

    /// The server that is to have the first primary of a region. CP22: one that is low on room only
    /// if there is no other, and a full one never.
    pub(super) fn for_primary(&self) -> Option<ServerId> {
        let able = self
            .iter()
            .filter(|(server, _)| self.view.room_of(*server) != Room::Full);
        let least = able.min_by_key(|(server, load)| {
            (
                !self.has_room(*server, REPLICA_SIZE_BYTES_MIN),
                load.primary_count,
                load.size_bytes,
                *server,
            )
        });
        least.map(|(server, _)| server)
    }

    /// Whether a server could have another replica of a region if it had room.
    pub(super) fn lacks_room_alone(&self, record: &RegionRecord) -> bool {
        self.iter()
            .any(|(server, _)| record.replica_on(server).is_none())
    }

    /// The server that is to have another replica of a region: one that has none of it, and room;
    /// one that is to be avoided only if there is no other.
    pub(super) fn for_backup(
        &self,
        record: &RegionRecord,
        is_avoided: impl Fn(ServerId) -> bool,
    ) -> Option<ServerId> {
        let needed = size_bytes(self.view, record);
        let free = self.iter().filter(|(server, _)| {
            record.replica_on(*server).is_none() && self.has_room(*server, needed)
        });
        let least = free.min_by_key(|(server, load)| {
            (
                is_avoided(*server),
                load.size_bytes,
                load.primary_count,
                *server,
            )
        });
        least.map(|(server, _)| server)
    }
}

/// How much a replica of a region is, by what its primary says.
pub(super) fn size_bytes(view: &View, record: &RegionRecord) -> u64 {
    let report = record.primary.and_then(|it| view.report(record.region, it));
    let told = report.map_or(0, |it| it.size_bytes);
    told.saturating_add(REPLICA_SIZE_BYTES_MIN)
}

/// How much a region's primary has to do.
pub(super) fn operations_per_second(view: &View, record: &RegionRecord) -> u64 {
    let report = record.primary.and_then(|it| view.report(record.region, it));
    report
        .map_or(0, |it| it.operations_per_second)
        .saturating_add(1)
}

/// Whether a region is as it should be: nothing is being done, and all are alive and in sync.
pub(super) fn is_quiet(view: &View, record: &RegionRecord, wanted: usize) -> bool {
    let is_steady = record.phase == crate::record::Phase::Steady;
    let is_whole = record.members().count() == wanted
        && record.replicas().count() == wanted
        && record.replicas().all(|it| view.is_alive(it));
    is_steady && is_whole && !has_broken(view, record.region, record)
}

fn has_broken(view: &View, region: RegionId, record: &RegionRecord) -> bool {
    let mut reports = record.replicas().filter_map(|it| view.report(region, it));
    reports.any(|report| report.broken.is_some())
}
