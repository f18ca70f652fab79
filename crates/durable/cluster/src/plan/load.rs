//! Bytes, primaries and operations of each server, including those that the current plan adds, and
//! the choice of servers for new replicas.

use std::collections::BTreeMap;

use crate::ids::{RegionId, ServerId};
use crate::record::space::low_below_bytes;
use crate::record::{RegionRecord, SpaceState};
use crate::view::View;

/// Bytes that each replica counts in addition to its reported size, so that empty replicas are
/// spread, too.
pub(super) const REPLICA_SIZE_BYTES_MIN: u64 = 1 << 20;

/// Bytes, primaries and operations of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerLoad {
    /// Size of all its replicas, in bytes.
    pub(super) size_bytes: u64,
    /// Number of primaries.
    pub(super) primary_count: u64,
    /// Operations of its primaries per second, plus one for each primary.
    pub(super) operations_per_second: u64,
    /// Part of `size_bytes` that is still to arrive, and may not be on the disk yet.
    coming_size_bytes: u64,
}

/// Servers that can have replicas, with their loads.
#[derive(Debug)]
pub(super) struct ServerLoads<'v> {
    view: &'v View,
    servers: BTreeMap<ServerId, ServerLoad>,
}

impl<'v> ServerLoads<'v> {
    pub(super) fn new(view: &'v View) -> Self {
        // A server whose record cannot be decoded is alive, but gets nothing.
        let usable = view.servers.keys().filter(|it| !view.drains.contains(it));
        let mut loads = Self {
            view,
            servers: usable
                .map(|server| (*server, ServerLoad::default()))
                .collect(),
        };
        for current in view.regions.values() {
            let record = &current.record;
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

    /// Adds the load of a replica that is to be filled.
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

    /// Returns the servers that can have more replicas, with their loads.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ServerId, ServerLoad)> + '_ {
        self.servers.iter().map(|(server, load)| (*server, *load))
    }

    pub(super) fn of(&self, server: ServerId) -> ServerLoad {
        self.servers.get(&server).copied().unwrap_or_default()
    }

    /// Returns whether a server has space for `needed` more bytes, and is not low afterwards
    /// (CONTROL-22).
    pub(super) fn has_space(&self, server: ServerId, needed: u64) -> bool {
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

    /// Returns the server for the first primary of a region. A server low on space is chosen only
    /// if there is no other, and a full one never (CONTROL-22).
    pub(super) fn for_primary(&self) -> Option<ServerId> {
        let able = self
            .iter()
            .filter(|(server, _)| self.view.space_of(*server) != SpaceState::Full);
        let least = able.min_by_key(|(server, load)| {
            (
                !self.has_space(*server, REPLICA_SIZE_BYTES_MIN),
                load.primary_count,
                load.size_bytes,
                *server,
            )
        });
        least.map(|(server, _)| server)
    }

    /// Returns whether a server could have another replica of a region if it had space.
    pub(super) fn lacks_only_space(&self, record: &RegionRecord) -> bool {
        self.iter()
            .any(|(server, _)| record.replica_on(server).is_none())
    }

    /// Returns the server for another replica of a region: one with space and without a replica of
    /// the region. An avoided server is chosen only if there is no other.
    pub(super) fn for_backup(
        &self,
        record: &RegionRecord,
        is_avoided: impl Fn(ServerId) -> bool,
    ) -> Option<ServerId> {
        let needed = size_bytes(self.view, record);
        let free = self.iter().filter(|(server, _)| {
            record.replica_on(*server).is_none() && self.has_space(*server, needed)
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

/// Returns the size of a region's replica, as its primary reports it.
pub(super) fn size_bytes(view: &View, record: &RegionRecord) -> u64 {
    let report = record.primary.and_then(|it| view.report(record.region, it));
    let reported_bytes = report.map_or(0, |it| it.size_bytes);
    reported_bytes.saturating_add(REPLICA_SIZE_BYTES_MIN)
}

/// Returns the operations per second of a region's primary.
pub(super) fn operations_per_second(view: &View, record: &RegionRecord) -> u64 {
    let report = record.primary.and_then(|it| view.report(record.region, it));
    report
        .map_or(0, |it| it.operations_per_second)
        .saturating_add(1)
}

/// Returns whether a region has no phase and the wanted number of replicas, all of them alive, in
/// sync and not broken.
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
