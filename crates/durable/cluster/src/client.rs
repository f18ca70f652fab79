//! Where clients find the primary of a key: a map that may be old, and what they do when it is
//! (CP21).

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
    /// Of which table.
    pub table: TableId,
    /// In which region the key is.
    pub region: RegionId,
    /// The region's first key.
    pub from: Key,
    /// The first key behind the region.
    pub to: Option<Key>,
    /// At which epoch; requests say it.
    pub epoch: Epoch,
    /// Which server.
    pub server: ServerId,
    /// Where it is.
    pub address: String,
}

/// What a look at the map came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The primary.
    Found(Route),
    /// Nobody serves the key now: look again later.
    NotServed,
    /// There is no such table.
    NoTable,
}

/// What a server answers to a request that names a region and an epoch which are not what it is
/// primary of: it does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// The epoch of the record that the server has seen; none: it knows of no such region.
    pub epoch: Option<Epoch>,
}

/// What a client does after it was told [`Stale`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterStale {
    /// The map was old: the next look reads it anew.
    LookAgain,
    /// The server is behind the map: ask it again, after a while.
    AskAgain,
}

/// A client's map.
#[derive(Debug)]
pub struct MapCache<C> {
    coordinator: C,
    tables: BTreeMap<TableId, Vec<RegionRecord>>,
    /// Tables whose regions may be others by now.
    suspect: BTreeSet<TableId>,
    servers: BTreeMap<ServerId, (Life, ServerRecord)>,
    round_trip_count: u64,
}

impl<C: Coordinator> MapCache<C> {
    /// An empty one.
    pub fn new(coordinator: C) -> Self {
        Self {
            coordinator,
            tables: BTreeMap::new(),
            suspect: BTreeSet::new(),
            servers: BTreeMap::new(),
            round_trip_count: 0,
        }
    }

    /// Round trips to the coordinator that looks have cost.
    pub fn round_trip_count(&self) -> u64 {
        self.round_trip_count
    }

    /// The primary of a key. No round trip if the map has the table; one for a table's regions
    /// otherwise, and one for the servers if there are new ones.
    ///
    /// # Errors
    /// Those of the coordinator, and [`ClusterError::Record`].
    pub fn lookup(&mut self, table: TableId, key: &[u8]) -> Result<Lookup, ClusterError> {
        let begins_before = |record: &RegionRecord| record.from.0.as_slice() <= key;
        self.lookup_at(table, begins_before, |record| record.covers(key))
    }

    /// The primary of the keys before this one, or of the last ones: where a scan goes on that
    /// descends. Costs as [`lookup`](Self::lookup) does.
    ///
    /// # Errors
    /// As of [`lookup`](Self::lookup).
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

    /// The last of the regions that begin before something, if it has what is looked for.
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
                // What it was suspected for is of one region; the others may be as they were.
                Err(_) if self.tables.contains_key(&table) => {}
                Err(error) => return Err(error),
            }
        }
        let regions = &self.tables[&table];
        let behind = regions.partition_point(begins_before);
        let last = behind.checked_sub(1).map(|index| &regions[index]);
        let Some(record) = last.filter(|record| has_it(record)) else {
            // Its record is damaged, or somebody has forged a map.
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

    /// A server has said that the route is not right. No round trip; the next look has one, if the
    /// map is still the one that the route is from.
    pub fn stale(&mut self, route: &Route, stale: Stale) -> AfterStale {
        if stale.epoch.is_some_and(|epoch| epoch < route.epoch) {
            return AfterStale::AskAgain;
        }
        self.lost(route);
        AfterStale::LookAgain
    }

    /// A server does not answer: the next look has a round trip, if the map is still the one that
    /// the route is from.
    pub fn lost(&mut self, route: &Route) {
        let is_same =
            |record: &RegionRecord| record.region == route.region && record.epoch == route.epoch;
        let regions = self.tables.get(&route.table);
        if regions.is_some_and(|regions| regions.iter().any(is_same)) {
            self.suspect.insert(route.table);
        }
    }
}
