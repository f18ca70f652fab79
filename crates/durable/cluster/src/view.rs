//! What the coordinator has, as records: a copy that changes follow into.
//!
//! A view may be old. Who writes because of it compares what it was written for (CP11), or goes by
//! facts that stay true once they are (CP12).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::coordinator::{Coordinator, CoordinatorError, Entry, Event, Revision, Watch};
use crate::ids::{ClusterId, Life, RegionId, ServerId, TableId};
use crate::record::start::Refusal;
use crate::record::{
    CLUSTER_KEY, Cluster, Drain, IDS_KEY, Ids, MASTER_KEY, MasterRecord, Record, RecordError,
    RegionRecord, Replica, ReplicaReport, Room, SERVER_PREFIX, ServerRecord, ServerReport,
    TableRecord, WISH_PREFIX, Wish, number_behind,
};

/// A record, and since when it is there as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen<R> {
    /// The record.
    pub record: R,
    /// When its key came into being.
    pub created: Revision,
    /// When it was written last.
    pub modified: Revision,
}

impl<R: Record> Seen<R> {
    /// Decodes what lies under a key.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn decode(entry: &Entry) -> Result<Self, RecordError> {
        Ok(Self {
            record: R::decode(&entry.key, &entry.value)?,
            created: entry.create_revision,
            modified: entry.mod_revision,
        })
    }
}

/// Everything of a cluster, or the part under a prefix.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// As of when.
    pub revision: Revision,
    /// Which cluster it is.
    pub cluster: Option<Seen<Cluster>>,
    /// The counters.
    pub ids: Option<Seen<Ids>>,
    /// Who is master.
    pub master: Option<Seen<MasterRecord>>,
    /// Which servers are alive, in which life: by their keys alone, whatever their records say.
    pub lives: BTreeMap<ServerId, Life>,
    /// What they say of themselves.
    pub servers: BTreeMap<ServerId, Seen<ServerRecord>>,
    /// What they report.
    pub reports: BTreeMap<ServerId, Seen<ServerReport>>,
    /// Which are to have no replicas.
    pub drains: BTreeSet<ServerId>,
    /// The tables.
    pub tables: BTreeMap<TableId, Seen<TableRecord>>,
    /// The regions of all tables.
    pub regions: BTreeMap<RegionId, Seen<RegionRecord>>,
    /// Which servers refuse these records, and why (ID5).
    pub refusals: BTreeMap<ServerId, Seen<Refusal>>,
    /// The wishes, by their numbers.
    pub wishes: BTreeMap<u64, Seen<Wish>>,
    /// What cannot be decoded, by key: nobody touches it.
    pub damaged: BTreeMap<String, RecordError>,
}

impl View {
    /// What entries say.
    pub fn of(revision: Revision, entries: &[Entry]) -> Self {
        let mut view = Self {
            revision,
            ..Self::default()
        };
        for entry in entries {
            view.put(entry);
        }
        view
    }

    /// Follows a change.
    pub fn follow(&mut self, event: &Event) {
        match event {
            Event::Put(entry) => self.put(entry),
            Event::Delete { key, .. } => self.remove(key),
        }
        self.revision = self.revision.max(event.revision());
    }

    fn put(&mut self, entry: &Entry) {
        self.damaged.remove(&entry.key);
        if let Some(number) = number_behind(&entry.key, SERVER_PREFIX) {
            let life = Life(entry.create_revision);
            self.lives.insert(ServerId(number), life);
        }
        if let Err(error) = self.try_put(entry) {
            // What was there before is not so any more.
            self.remove_record(&entry.key);
            self.damaged.insert(entry.key.clone(), error);
        }
    }

    fn try_put(&mut self, entry: &Entry) -> Result<(), RecordError> {
        let kind = entry.key.split('/').next().unwrap_or_default();
        match kind {
            CLUSTER_KEY => self.cluster = Some(Seen::decode(entry)?),
            IDS_KEY => self.ids = Some(Seen::decode(entry)?),
            MASTER_KEY => self.master = Some(Seen::decode(entry)?),
            "server" => {
                let seen = Seen::<ServerRecord>::decode(entry)?;
                self.servers.insert(seen.record.server, seen);
            }
            "report" => {
                let seen = Seen::<ServerReport>::decode(entry)?;
                self.reports.insert(seen.record.server, seen);
            }
            "drain" => {
                Drain::decode(&entry.key, &entry.value)?;
                let number = number_behind(&entry.key, "drain/");
                self.drains.extend(number.map(ServerId));
            }
            "table" => {
                let seen = Seen::<TableRecord>::decode(entry)?;
                self.tables.insert(seen.record.table, seen);
            }
            "region" => {
                let seen = Seen::<RegionRecord>::decode(entry)?;
                self.regions.insert(seen.record.region, seen);
            }
            "refusal" => {
                let seen = Seen::<Refusal>::decode(entry)?;
                self.refusals.insert(seen.record.server, seen);
            }
            "wish" => {
                let seen = Seen::<Wish>::decode(entry)?;
                let number = number_behind(&entry.key, WISH_PREFIX);
                self.wishes.extend(number.map(|it| (it, seen)));
            }
            // Names are looked up one by one; what else there is, a later version has written.
            _ => {}
        }
        Ok(())
    }

    fn remove(&mut self, key: &str) {
        self.damaged.remove(key);
        if let Some(number) = number_behind(key, SERVER_PREFIX) {
            self.lives.remove(&ServerId(number));
        }
        self.remove_record(key);
    }

    fn remove_record(&mut self, key: &str) {
        let mut parts = key.split('/');
        let kind = parts.next().unwrap_or_default();
        let number = parts.next_back().and_then(|it| number_behind(it, ""));
        match (kind, number) {
            (CLUSTER_KEY, _) => self.cluster = None,
            (IDS_KEY, _) => self.ids = None,
            (MASTER_KEY, _) => self.master = None,
            ("server", Some(it)) => drop(self.servers.remove(&ServerId(it))),
            ("report", Some(it)) => drop(self.reports.remove(&ServerId(it))),
            ("refusal", Some(it)) => drop(self.refusals.remove(&ServerId(it))),
            ("drain", Some(it)) => drop(self.drains.remove(&ServerId(it))),
            ("table", Some(it)) => drop(self.tables.remove(&TableId(it))),
            ("region", Some(it)) => drop(self.regions.remove(&RegionId(it))),
            ("wish", Some(it)) => drop(self.wishes.remove(&it)),
            _ => {}
        }
    }

    /// Whether the life in which a replica was ordered goes on.
    pub fn is_alive(&self, replica: Replica) -> bool {
        self.lives.get(&replica.server) == Some(&replica.life)
    }

    /// Whether that life is over, for certain (CP8), however old this view is: also older than the
    /// life.
    pub fn is_over(&self, replica: Replica) -> bool {
        match self.lives.get(&replica.server) {
            Some(life) => *life > replica.life,
            None => self.revision >= replica.life.0,
        }
    }

    /// What a server says of a replica, in the life in which that was ordered, since it was opened
    /// again, if it was (CP16).
    pub fn report(&self, region: RegionId, replica: Replica) -> Option<&ReplicaReport> {
        let report = &self.reports.get(&replica.server)?.record;
        let is_current = report.life == replica.life && self.is_alive(replica);
        if !is_current {
            return None;
        }
        let report = report.replica(region, replica.number);
        report.filter(|it| it.epoch >= replica.opened_again)
    }

    /// What a server says of itself, in the life that it has now.
    pub fn server_report(&self, server: ServerId) -> Option<&ServerReport> {
        let report = &self.reports.get(&server)?.record;
        let is_current = self.lives.get(&server) == Some(&report.life);
        is_current.then_some(report)
    }

    /// Whether an older version created the cluster, and it has no 128-bit identifier yet (ID1).
    pub fn is_unadopted(&self) -> bool {
        let cluster = self.cluster.as_ref().map(|it| it.record.cluster);
        cluster.is_some_and(ClusterId::is_legacy)
    }

    /// CP23: copies that servers say they have of regions whose numbers were never given away.
    pub fn copies_of_the_unknown(&self) -> BTreeSet<(RegionId, ServerId)> {
        let Some(ids) = &self.ids else {
            return BTreeSet::new();
        };
        let servers = self.lives.keys().copied();
        let reports = servers.filter_map(|server| Some((server, self.server_report(server)?)));
        reports
            .flat_map(|(server, report)| {
                let copies = report.copies.iter().map(|it| it.region);
                let unusable = report.unusable.iter().map(|it| it.region);
                copies.chain(unusable).map(move |region| (region, server))
            })
            .filter(|(region, _)| !ids.record.have_given(*region))
            .collect()
    }

    /// CP23: those of them whose numbers would be given away again.
    pub fn copies_in_the_way(&self) -> BTreeSet<(RegionId, ServerId)> {
        let next = self.ids.as_ref().map(|ids| ids.record.next_region);
        let mut copies = self.copies_of_the_unknown();
        copies.retain(|(region, _)| next.is_some_and(|next| *region >= next));
        copies
    }

    /// How much room a server says that it has.
    pub fn room_of(&self, server: ServerId) -> Room {
        let report = self.server_report(server);
        report.map_or(Room::Enough, ServerReport::room)
    }

    /// The regions of a table, in the order of their keys.
    pub fn regions_of(&self, table: TableId) -> Vec<&RegionRecord> {
        let regions = self.regions.values().map(|seen| &seen.record);
        let mut regions: Vec<_> = regions.filter(|it| it.table == table).collect();
        regions.sort_by(|a, b| a.from.cmp(&b.from));
        regions
    }
}

/// A view that follows the coordinator.
pub struct Mirror<C> {
    coordinator: C,
    prefix: &'static str,
    view: View,
    watch: Option<Box<dyn Watch>>,
}

impl<C: std::fmt::Debug> std::fmt::Debug for Mirror<C> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "Mirror at {} of {:?}",
            self.view.revision, self.coordinator
        )
    }
}

impl<C: Coordinator> Mirror<C> {
    /// One of what lies under a prefix, with nothing in it yet.
    pub fn new(coordinator: C, prefix: &'static str) -> Self {
        Self {
            coordinator,
            prefix,
            view: View::default(),
            watch: None,
        }
    }

    /// What was seen last.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Follows what has changed; waits for something, for so long at the most. Whether the view is
    /// another one now. No round trip, but where there was no watch: two then.
    ///
    /// # Errors
    /// Those of the coordinator: the view stays as it was, and the next call looks at everything.
    pub fn refresh(&mut self, timeout: Duration) -> Result<bool, CoordinatorError> {
        if let Some(watch) = &mut self.watch {
            match watch.next(timeout) {
                Ok(events) => {
                    for event in &events {
                        self.view.follow(event);
                    }
                    return Ok(!events.is_empty());
                }
                Err(CoordinatorError::Compacted { .. }) => self.watch = None,
                Err(error) => {
                    self.watch = None;
                    return Err(error);
                }
            }
        }
        let snapshot = self.coordinator.range(self.prefix)?;
        let watch = self.coordinator.watch(self.prefix, snapshot.revision)?;
        self.view = View::of(snapshot.revision, &snapshot.entries);
        self.watch = Some(watch);
        Ok(true)
    }
}
