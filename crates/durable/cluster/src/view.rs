//! Copy of the coordinator's records that follows their changes.
//!
//! A view may be outdated. So a write based on it compares the records that it was planned on
//! (CONTROL-11), or relies on facts that stay true (CONTROL-12).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::coordinator::{Coordinator, CoordinatorError, Entry, Event, Revision, Watch};
use crate::ids::{ClusterId, Life, RegionId, ServerId, TableId};
use crate::record::start::Refusal;
use crate::record::{
    ADMIN_REQUEST_PREFIX, AdminRequest, CLUSTER_KEY, Cluster, Drain, IDS_KEY, Ids, MASTER_KEY,
    MasterRecord, Record, RecordError, RegionRecord, Replica, ReplicaReport, SERVER_PREFIX,
    ServerRecord, ServerReport, SpaceState, TableRecord, number_behind,
};

/// A record with its revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevisionedRecord<R> {
    /// The record.
    pub record: R,
    /// Revision of the key's creation.
    pub created: Revision,
    /// Revision of the last write.
    pub modified: Revision,
}

impl<R: Record> RevisionedRecord<R> {
    /// Decodes an entry.
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

/// All records of a cluster, or those under a prefix.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Revision of the view.
    pub revision: Revision,
    /// The cluster.
    pub cluster: Option<RevisionedRecord<Cluster>>,
    /// The counters.
    pub ids: Option<RevisionedRecord<Ids>>,
    /// The current master.
    pub master: Option<RevisionedRecord<MasterRecord>>,
    /// Servers that are alive, with their lives. Only their keys count, not the content of their
    /// records.
    pub lives: BTreeMap<ServerId, Life>,
    /// Registrations of the servers.
    pub servers: BTreeMap<ServerId, RevisionedRecord<ServerRecord>>,
    /// Reports of the servers.
    pub reports: BTreeMap<ServerId, RevisionedRecord<ServerReport>>,
    /// Servers that are drained.
    pub drains: BTreeSet<ServerId>,
    /// The tables.
    pub tables: BTreeMap<TableId, RevisionedRecord<TableRecord>>,
    /// The regions of all tables.
    pub regions: BTreeMap<RegionId, RevisionedRecord<RegionRecord>>,
    /// Servers that refuse these records as an older copy, with the reason.
    pub refusals: BTreeMap<ServerId, RevisionedRecord<Refusal>>,
    /// Pending requests of administrators, by number.
    pub admin_requests: BTreeMap<u64, RevisionedRecord<AdminRequest>>,
    /// Records that cannot be decoded, by key; they are never changed.
    pub damaged: BTreeMap<String, RecordError>,
}

impl View {
    /// Creates a view of these entries.
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

    /// Applies a change.
    pub fn follow(&mut self, event: &Event) {
        match event {
            Event::Put(entry) => self.put(entry),
            Event::Delete(key, _) => self.remove(key),
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
            // The previous record is no longer valid.
            self.remove_record(&entry.key);
            self.damaged.insert(entry.key.clone(), error);
        }
    }

    fn try_put(&mut self, entry: &Entry) -> Result<(), RecordError> {
        let kind = entry.key.split('/').next().unwrap_or_default();
        match kind {
            CLUSTER_KEY => self.cluster = Some(RevisionedRecord::decode(entry)?),
            IDS_KEY => self.ids = Some(RevisionedRecord::decode(entry)?),
            MASTER_KEY => self.master = Some(RevisionedRecord::decode(entry)?),
            "server" => {
                let decoded = RevisionedRecord::<ServerRecord>::decode(entry)?;
                self.servers.insert(decoded.record.server, decoded);
            }
            "report" => {
                let decoded = RevisionedRecord::<ServerReport>::decode(entry)?;
                self.reports.insert(decoded.record.server, decoded);
            }
            "drain" => {
                Drain::decode(&entry.key, &entry.value)?;
                let number = number_behind(&entry.key, "drain/");
                self.drains.extend(number.map(ServerId));
            }
            "table" => {
                let decoded = RevisionedRecord::<TableRecord>::decode(entry)?;
                self.tables.insert(decoded.record.table, decoded);
            }
            "region" => {
                let decoded = RevisionedRecord::<RegionRecord>::decode(entry)?;
                self.regions.insert(decoded.record.region, decoded);
            }
            "refusal" => {
                let decoded = RevisionedRecord::<Refusal>::decode(entry)?;
                self.refusals.insert(decoded.record.server, decoded);
            }
            "wish" => {
                let decoded = RevisionedRecord::<AdminRequest>::decode(entry)?;
                let number = number_behind(&entry.key, ADMIN_REQUEST_PREFIX);
                self.admin_requests.extend(number.map(|it| (it, decoded)));
            }
            // Names are looked up individually; other keys are of a later version.
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
            ("wish", Some(it)) => drop(self.admin_requests.remove(&it)),
            _ => {}
        }
    }

    /// Returns whether the life in which a replica was ordered continues.
    pub fn is_alive(&self, replica: Replica) -> bool {
        self.lives.get(&replica.server) == Some(&replica.life)
    }

    /// Returns whether that life is certainly over (CONTROL-8), however old this view is, even if
    /// it is older than the life.
    pub fn is_over(&self, replica: Replica) -> bool {
        match self.lives.get(&replica.server) {
            Some(life) => *life > replica.life,
            None => self.revision >= replica.life.0,
        }
    }

    /// Returns the server's report about a replica, in the life in which it was ordered, and since
    /// its reopening if it was opened again (CONTROL-16).
    pub fn report(&self, region: RegionId, replica: Replica) -> Option<&ReplicaReport> {
        let report = &self.reports.get(&replica.server)?.record;
        let is_current = report.life == replica.life && self.is_alive(replica);
        if !is_current {
            return None;
        }
        let report = report.replica(region, replica.number);
        report.filter(|it| it.epoch >= replica.opened_again)
    }

    /// Returns the report of a server in its current life.
    pub fn server_report(&self, server: ServerId) -> Option<&ServerReport> {
        let report = &self.reports.get(&server)?.record;
        let is_current = self.lives.get(&server) == Some(&report.life);
        is_current.then_some(report)
    }

    /// Returns whether an older version created the cluster, and it has no 128-bit identifier yet.
    pub fn is_unadopted(&self) -> bool {
        let cluster = self.cluster.as_ref().map(|it| it.record.cluster);
        cluster.is_some_and(ClusterId::is_legacy)
    }

    /// Returns reported copies of regions whose numbers were never assigned (CONTROL-23).
    pub fn copies_of_unknown_regions(&self) -> BTreeSet<(RegionId, ServerId)> {
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
            .filter(|(region, _)| !ids.record.has_assigned(*region))
            .collect()
    }

    /// Returns those reported copies whose numbers would be assigned again (CONTROL-23).
    pub fn blocking_copies(&self) -> BTreeSet<(RegionId, ServerId)> {
        let next = self.ids.as_ref().map(|ids| ids.record.next_region);
        let mut copies = self.copies_of_unknown_regions();
        copies.retain(|(region, _)| next.is_some_and(|next| *region >= next));
        copies
    }

    /// Returns the free space that a server reports.
    pub fn space_of(&self, server: ServerId) -> SpaceState {
        let report = self.server_report(server);
        report.map_or(SpaceState::Enough, ServerReport::space_state)
    }

    /// Returns the regions of a table, in the order of their keys.
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
    /// Creates an empty mirror of the records under a prefix.
    pub fn new(coordinator: C, prefix: &'static str) -> Self {
        Self {
            coordinator,
            prefix,
            view: View::default(),
            watch: None,
        }
    }

    /// Returns the view of the last refresh.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Applies changes; waits for one at most for `timeout`. Returns whether the view has changed.
    /// Costs no round trip if there is a watch, otherwise two.
    ///
    /// # Errors
    /// The errors of the coordinator: the view stays unchanged, and the next call reads everything.
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
