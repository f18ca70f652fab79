//! Clients' cached map from keys to primaries, and their reaction to an outdated map (CONTROL-21).

use std::collections::{BTreeMap, BTreeSet};

use crate::coordinator::Coordinator;
use crate::error::ClusterError;
use crate::ids::{Epoch, Life, RegionId, ServerId, TableId};
use crate::record::region::Key;
use crate::record::{RegionRecord, SERVER_PREFIX, ServerRecord, table_regions_prefix};
use crate::view::View;

/// The primary of a key, as far as the map knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The table.
    pub table: TableId,
    /// The region of the key.
    pub region: RegionId,
    /// First key of the region.
    pub from: Key,
    /// First key after the region.
    pub to: Option<Key>,
    /// Epoch of the region, named by requests.
    pub epoch: Epoch,
    /// Server of the primary.
    pub server: ServerId,
    /// Address of the server.
    pub address: String,
}

/// Result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The primary.
    Found(Route),
    /// No server serves the key now: look up again later.
    NotServed,
    /// The table does not exist.
    NoTable,
}

/// Reply of a server that is not primary of the requested region at the requested epoch, and so
/// does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// Epoch of the region's record that the server has seen; `None` if it does not know the
    /// region.
    pub epoch: Option<Epoch>,
}

/// Reaction of a client to [`Stale`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterStale {
    /// The map was outdated: the next lookup reads it again.
    LookAgain,
    /// The server is behind the map: retry there after a while.
    AskAgain,
}

/// A client's map.
#[derive(Debug)]
pub struct MapCache<C> {
    coordinator: C,
    tables: BTreeMap<TableId, Vec<RegionRecord>>,
    /// Tables whose regions may have changed.
    suspect: BTreeSet<TableId>,
    servers: BTreeMap<ServerId, (Life, ServerRecord)>,
    round_trip_count: u64,
}

impl<C: Coordinator> MapCache<C> {
    /// Creates an empty map.
    pub fn new(coordinator: C) -> Self {
        Self {
            coordinator,
            tables: BTreeMap::new(),
            suspect: BTreeSet::new(),
            servers: BTreeMap::new(),
            round_trip_count: 0,
        }
    }

    /// Returns the number of round trips to the coordinator that lookups have cost.
    pub fn round_trip_count(&self) -> u64 {
        self.round_trip_count
    }

    /// Returns the primary of a key. Costs no round trip if the map has the table. Otherwise costs
    /// one for the table's regions, and one for the servers if there are new ones.
    ///
    /// # Errors
    /// The errors of the coordinator, and [`ClusterError::Record`].
    pub fn lookup(&mut self, table: TableId, key: &[u8]) -> Result<Lookup, ClusterError> {
        let begins_before = |record: &RegionRecord| record.from.0.as_slice() <= key;
        self.lookup_at(table, begins_before, |record| record.covers(key))
    }

    /// Returns the primary of the keys below this one, or of the last keys: where a descending scan
    /// continues. Costs as much as [`lookup`](Self::lookup).
    ///
    /// # Errors
    /// The errors of [`lookup`](Self::lookup).
    pub fn lookup_below(
        &mut self,
        table: TableId,
        key: Option<&[u8]>,
    ) -> Result<Lookup, ClusterError> {
        let begins_before =
            |record: &RegionRecord| key.is_none_or(|key| record.from.0.as_slice() < key);
        let has_those_before = |record: &RegionRecord| match (key, &record.to) {
            (_, None) => true,
            (Some(key), Some(to)) => key <= to.0.as_slice(),
            (None, Some(_)) => false,
        };
        self.lookup_at(table, begins_before, has_those_before)
    }

    /// Looks up the last region that begins before the bound, if it has the key.
    fn lookup_at(
        &mut self,
        table: TableId,
        begins_before: impl Fn(&RegionRecord) -> bool,
        has_it: impl Fn(&RegionRecord) -> bool,
    ) -> Result<Lookup, ClusterError> {
        let is_suspect = self.suspect.remove(&table);
        if is_suspect || !self.tables.contains_key(&table) {
            match self.read(&table_regions_prefix(table)) {
                Ok(view) => {
                    let regions: Vec<_> = view.regions_of(table).into_iter().cloned().collect();
                    if regions.is_empty() {
                        self.tables.remove(&table);
                        return Ok(Lookup::NoTable);
                    }
                    self.tables.insert(table, regions);
                }
                // Only one region is suspect; the cached records of the others may still be valid.
                Err(_) if self.tables.contains_key(&table) => {}
                Err(error) => return Err(error),
            }
        }
        let regions = &self.tables[&table];
        let behind = regions.partition_point(begins_before);
        let last = behind.checked_sub(1).map(|index| &regions[index]);
        let Some(record) = last.filter(|record| has_it(record)) else {
            // The region's record is damaged, or the map was forged.
            self.tables.remove(&table);
            return Ok(Lookup::NotServed);
        };
        let Some(primary) = record.primary else {
            self.tables.remove(&table);
            return Ok(Lookup::NotServed);
        };
        let (region, epoch) = (record.region, record.epoch);
        let (from, to) = (record.from.clone(), record.to.clone());
        let is_known = |cache: &Self| {
            let known = cache.servers.get(&primary.server);
            known.is_some_and(|(life, _)| *life == primary.life)
        };
        if !is_known(self) {
            let view = self.read(SERVER_PREFIX)?;
            let servers = view.servers.into_iter();
            self.servers = servers
                .map(|(server, seen)| (server, (Life(seen.created), seen.record)))
                .collect();
        }
        if !is_known(self) {
            self.tables.remove(&table);
            return Ok(Lookup::NotServed);
        }
        Ok(Lookup::Found(Route {
            table,
            region,
            from,
            to,
            epoch,
            server: primary.server,
            address: self.servers[&primary.server].1.address.clone(),
        }))
    }

    fn read(&mut self, prefix: &str) -> Result<View, ClusterError> {
        self.round_trip_count += 1;
        let snapshot = self.coordinator.range(prefix)?;
        Ok(View::of(snapshot.revision, &snapshot.entries))
    }

    /// Notes that a server rejected the route. Costs no round trip. The next lookup costs one, if
    /// the map is still that of the route.
    pub fn stale(&mut self, route: &Route, stale: Stale) -> AfterStale {
        if stale.epoch.is_some_and(|epoch| epoch < route.epoch) {
            return AfterStale::AskAgain;
        }
        self.lost(route);
        AfterStale::LookAgain
    }

    /// Notes that a server does not answer. The next lookup costs a round trip, if the map is still
    /// that of the route.
    pub fn lost(&mut self, route: &Route) {
        let is_same =
            |record: &RegionRecord| record.region == route.region && record.epoch == route.epoch;
        let regions = self.tables.get(&route.table);
        if regions.is_some_and(|regions| regions.iter().any(is_same)) {
            self.suspect.insert(route.table);
        }
    }
}
