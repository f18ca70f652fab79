//! State of a cluster as commands show it, and its problems.

use std::collections::BTreeSet;

use farleaf_cluster::ids::{ClusterId, ServerId, TableId};
use farleaf_cluster::plan::{PlanOptions, plan};
use farleaf_cluster::record::space::low_below_bytes;
use farleaf_cluster::record::{Phase, RegionRecord, Replica, SpaceState};
use farleaf_cluster::view::View;
use serde::Serialize;

use super::identity::{OrphanStatus, RefusalStatus, identity_lacks, orphans_of, refusals_of};
use super::mismatch::{MismatchStatus, note_mismatches};
use super::verified::{self, VerificationStatus};
use crate::command::table_cluster::{Listed, tables_of};
use crate::output::counted;
use crate::strings::{EncodingArguments, Notation, ShownRecord, ShownValue};

/// State of a cluster, as one JSON object.
#[derive(Serialize)]
pub(super) struct ClusterStatus {
    /// Identity of the cluster; `null` if its record is corrupted.
    pub(super) cluster: Option<ClusterId>,
    pub(super) coordinator: String,
    pub(super) revision: u64,
    /// Address of the master, if there is one.
    pub(super) master: Option<String>,
    pub(super) servers: Vec<ServerStatus>,
    pub(super) tables: Vec<Listed>,
    pub(super) regions: Vec<RegionStatus>,
    pub(super) damaged: Vec<Damage>,
    pub(super) waiting: Vec<Waits>,
    /// Replicas with corruption.
    pub(super) faults: Vec<Fault>,
    /// Backups that differed from their primary and have not been repaired yet.
    pub(super) mismatches: Vec<MismatchStatus>,
    /// Number of mismatches that the current primaries have found, repaired ones included.
    pub(super) mismatch_count: u64,
    /// Servers that reject the coordinator's records.
    pub(super) refusals: Vec<RefusalStatus>,
    /// Orphaned directories, which servers keep because nothing proves that they are garbage.
    pub(super) orphans: Vec<OrphanStatus>,
    /// Problems of the cluster; if there are none, status prints "no problems found".
    pub(super) lacking: Vec<String>,
}

#[derive(Serialize)]
pub(super) struct ServerStatus {
    pub(super) number: u64,
    pub(super) address: Option<String>,
    pub(super) is_alive: bool,
    pub(super) is_drained: bool,
    pub(super) replica_count: usize,
    pub(super) primary_count: usize,
    pub(super) size_bytes: u64,
    pub(super) operations_per_second: u64,
    /// Capacity of the server's disk; `null` if the server does not report it.
    pub(super) capacity_bytes: Option<u64>,
    pub(super) free_bytes: Option<u64>,
    /// Free bytes below which the server gets no more replicas.
    pub(super) low_below_bytes: Option<u64>,
    pub(super) disk_space: Option<SpaceStatus>,
}

/// Free space of a disk, in classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SpaceStatus {
    Enough,
    Low,
    Full,
}

#[derive(Serialize)]
pub(super) struct RegionStatus {
    pub(super) number: u64,
    pub(super) table: String,
    /// First key of the region. `to` is the first key after it.
    pub(super) from: KeyShown,
    pub(super) to: Option<KeyShown>,
    pub(super) epoch: u64,
    pub(super) primary: Option<ReplicaStatus>,
    pub(super) backups: Vec<ReplicaStatus>,
    pub(super) phase: String,
    pub(super) size_bytes: Option<u64>,
    /// Whether the primary serves the region.
    pub(super) is_served: bool,
    /// Number of mismatches that the current primary has found, repaired ones included.
    pub(super) mismatch_count: u64,
}

#[derive(Serialize)]
pub(super) struct ReplicaStatus {
    pub(super) server: u64,
    /// Whether the server is still in the life in which the replica was ordered.
    pub(super) is_alive: bool,
    pub(super) is_in_sync: bool,
    /// Reason why the replica does not serve; `null` if none is known.
    pub(super) trouble: Option<Trouble>,
    /// Progress of verification; `null` if the server does not report it.
    pub(super) verification: Option<VerificationStatus>,
}

/// Reason why a replica does not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Trouble {
    /// The server's life is over, and the server has started again.
    Restarted,
    /// The replica is broken, and will be opened again or replaced.
    Broken,
}

#[derive(Serialize)]
pub(super) struct Damage {
    pub(super) key: String,
    pub(super) how: String,
}

/// Replica with corruption, or broken replica whose files are kept.
#[derive(Serialize)]
pub(super) struct Fault {
    pub(super) region: u64,
    pub(super) server: u64,
    /// Whether it is still a replica of the region; otherwise a former one that broke.
    pub(super) is_replica: bool,
    /// Whether the replica is broken, and is being replaced from another one.
    pub(super) is_broken: bool,
    pub(super) how: String,
}

#[derive(Serialize)]
pub(super) struct Waits {
    pub(super) region: u64,
    pub(super) what: String,
}

/// Key, in JSON as `scan` prints it: an object with `key` or `key_hex`.
pub(super) struct KeyShown(pub(super) Vec<u8>);

impl Serialize for KeyShown {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let shown = ShownRecord {
            notation: Notation::Bytes(EncodingArguments::default()),
            key: &self.0,
            value: ShownValue::NotAsked,
        };
        shown.serialize(serializer)
    }
}

/// Returns all known servers: those that are alive, drained, or have a replica.
pub(super) fn servers_of(view: &View) -> BTreeSet<ServerId> {
    let regions = view.regions.values();
    let replicas = regions.flat_map(|entry| entry.record.replicas());
    let with_replicas = replicas.map(|replica| replica.server);
    let mut servers: BTreeSet<ServerId> = with_replicas.collect();
    servers.extend(view.lives.keys());
    servers.extend(&view.drains);
    servers
}

impl ClusterStatus {
    /// Returns the state of all tables or of one, as of a view.
    pub(super) fn new(view: &View, coordinator: &str, table: Option<TableId>) -> Self {
        let is_meant = |of: TableId| table.is_none_or(|table| table == of);
        let mut tables = tables_of(view);
        tables.retain(|listed| is_meant(TableId(listed.number)));
        let mut regions: Vec<&RegionRecord> = Vec::new();
        for listed in &tables {
            regions.extend(view.regions_of(TableId(listed.number)));
        }
        let waiting = plan(view, &PlanOptions::default()).waiting;
        let waiting = waiting.into_iter().filter(|waits| {
            let region = view.regions.get(&waits.region);
            region.is_none_or(|entry| is_meant(entry.record.table))
        });
        let mut status = Self {
            cluster: view.cluster.as_ref().map(|entry| entry.record.cluster),
            coordinator: coordinator.to_owned(),
            revision: view.revision.0,
            master: view
                .master
                .as_ref()
                .map(|entry| entry.record.address.clone()),
            servers: servers_of(view)
                .into_iter()
                .map(|server| ServerStatus::new(view, server))
                .collect(),
            tables,
            regions: regions
                .iter()
                .map(|it| RegionStatus::new(view, it))
                .collect(),
            damaged: view
                .damaged
                .iter()
                .map(|(key, error)| Damage {
                    key: key.clone(),
                    how: error.to_string(),
                })
                .collect(),
            waiting: waiting
                .map(|waits| Waits {
                    region: waits.region.0,
                    what: waits.what,
                })
                .collect(),
            faults: regions.iter().flat_map(|it| faults_of(view, it)).collect(),
            mismatches: Vec::new(),
            mismatch_count: 0,
            refusals: refusals_of(view),
            orphans: orphans_of(view),
            lacking: Vec::new(),
        };
        for region in regions {
            status.mismatch_count += note_mismatches(view, region, &mut status.mismatches);
        }
        status.lacking = status.lacks();
        status
    }

    /// Returns the problems. A change in progress, such as a move, is not a problem.
    pub(super) fn lacks(&self) -> Vec<String> {
        let mut lacking = Vec::new();
        if self.master.is_none() {
            lacking.push("no master is elected".to_owned());
        }
        let unserved = self.regions.iter().filter(|region| !region.is_served);
        let short = self.regions.iter().filter(|region| {
            let table = self.tables.iter().find(|table| table.name == region.table);
            table.is_some_and(|table| region.in_sync_count() < table.replica_count)
        });
        let mut note = |number: usize, one: &str, what: &str, whats: &str| {
            if number > 0 {
                let what = if number == 1 { what } else { whats };
                lacking.push(format!("{} {what}", counted(number, one)));
            }
        };
        note(
            unserved.count(),
            "region",
            "is not served",
            "are not served",
        );
        let lacks = "in-sync replicas";
        note(
            short.count(),
            "region",
            &format!("lacks {lacks}"),
            &format!("lack {lacks}"),
        );
        let (broken, faulty): (Vec<_>, Vec<_>) = self
            .faults
            .iter()
            .filter(|it| it.is_replica)
            .partition(|it| it.is_broken);
        let faulty: BTreeSet<u64> = faulty.into_iter().map(|it| it.region).collect();
        let damaged = "corruption that no replica can repair";
        note(
            faulty.len(),
            "region",
            &format!("has {damaged}"),
            &format!("have {damaged}"),
        );
        let replaced = "corrupted and being replaced from another one";
        note(
            broken.len(),
            "replica",
            &format!("is {replaced}"),
            &format!("are {replaced}"),
        );
        let differed = "that differed from its primary is catching up";
        note(
            self.mismatches.len(),
            "replica",
            differed,
            "that differed from their primaries are catching up",
        );
        let servers = self.servers.iter();
        let full = servers.filter(|it| it.disk_space == Some(SpaceStatus::Full));
        note(full.count(), "server", "has a full disk", "have full disks");
        let unreadable = "cannot be read";
        note(self.damaged.len(), "record", unreadable, unreadable);
        note(
            self.waiting.len(),
            "region",
            "needs attention",
            "need attention",
        );
        lacking.extend(verified::lacking(&self.regions));
        lacking.extend(identity_lacks(self));
        lacking
    }
}

/// Returns the copies of a region with corruption: replicas that continue or are broken, and files
/// of former replicas.
fn faults_of(view: &View, region: &RegionRecord) -> Vec<Fault> {
    let fault = |server: ServerId, (is_replica, is_broken), how: &str| Fault {
        region: region.region.0,
        server: server.0,
        is_replica,
        is_broken,
        how: how.to_owned(),
    };
    let replicas = region.replicas().filter_map(|replica| {
        let report = view.report(region.region, replica)?;
        if let Some(broken) = &report.broken {
            return (report.is_damaged).then(|| fault(replica.server, (true, true), broken));
        }
        let how = report.fault.as_ref()?;
        Some(fault(replica.server, (true, false), how))
    });
    let mut faults: Vec<Fault> = replicas.collect();
    for server in view.lives.keys() {
        let unusable = view
            .server_report(*server)
            .map_or(&[][..], |it| &it.unusable);
        let of_region = unusable.iter().filter(|it| it.region == region.region);
        faults.extend(of_region.map(|copy| fault(*server, (false, false), &copy.how)));
    }
    faults
}

impl ServerStatus {
    fn new(view: &View, server: ServerId) -> Self {
        let regions = view.regions.values().map(|entry| &entry.record);
        let has = regions.clone().filter(|it| it.replica_on(server).is_some());
        let is_primary = |it: &&RegionRecord| it.primary.is_some_and(|it| it.server == server);
        let life = view.lives.get(&server);
        let report = view.server_report(server);
        let replicas = report.map_or(&[][..], |report| &report.replicas);
        let capacity_bytes = report.map(|report| report.capacity_bytes);
        let capacity_bytes = capacity_bytes.filter(|capacity| *capacity > 0);
        let free_bytes = report.and_then(|report| report.free_bytes);
        Self {
            number: server.0,
            address: view
                .servers
                .get(&server)
                .map(|it| it.record.address.clone()),
            is_alive: life.is_some(),
            is_drained: view.drains.contains(&server),
            replica_count: has.count(),
            primary_count: regions.filter(is_primary).count(),
            size_bytes: replicas.iter().map(|it| it.size_bytes).sum(),
            operations_per_second: replicas.iter().map(|it| it.operations_per_second).sum(),
            capacity_bytes,
            free_bytes,
            low_below_bytes: capacity_bytes.map(low_below_bytes),
            disk_space: free_bytes.map(|_| match view.space_of(server) {
                SpaceState::Enough => SpaceStatus::Enough,
                SpaceState::Low => SpaceStatus::Low,
                SpaceState::Full => SpaceStatus::Full,
            }),
        }
    }
}

impl RegionStatus {
    fn new(view: &View, region: &RegionRecord) -> Self {
        let table = view.tables.get(&region.table);
        let report = region.primary.and_then(|it| view.report(region.region, it));
        let is_served = report.is_some_and(|report| {
            let primary = report.primary.as_ref();
            report.epoch == region.epoch
                && report.broken.is_none()
                && primary.is_some_and(|primary| !primary.stopped)
        });
        let replica = |replica: Replica, is_in_sync| ReplicaStatus {
            server: replica.server.0,
            is_alive: view.is_alive(replica),
            is_in_sync,
            trouble: trouble_of(view, region, replica),
            verification: view
                .report(region.region, replica)
                .and_then(|report| report.verification.as_ref())
                .map(VerificationStatus::new),
        };
        Self {
            number: region.region.0,
            table: table.map_or_else(String::new, |entry| entry.record.name.clone()),
            from: KeyShown(region.from.0.clone()),
            to: region.to.as_ref().map(|to| KeyShown(to.0.clone())),
            epoch: region.epoch.0,
            primary: region.primary.map(|it| replica(it, true)),
            backups: region
                .backups
                .iter()
                .map(|backup| replica(backup.replica, backup.in_sync))
                .collect(),
            phase: phase_text(region),
            size_bytes: report.map(|report| report.size_bytes),
            is_served,
            mismatch_count: report
                .and_then(|report| report.primary.as_ref())
                .map_or(0, |primary| primary.mismatch_count),
        }
    }

    /// Returns the number of in-sync replicas on servers that are alive.
    fn in_sync_count(&self) -> usize {
        let replicas = self.primary.iter().chain(&self.backups);
        replicas.filter(|it| it.is_alive && it.is_in_sync).count()
    }
}

fn trouble_of(view: &View, region: &RegionRecord, replica: Replica) -> Option<Trouble> {
    if view.lives.contains_key(&replica.server) && view.is_over(replica) {
        return Some(Trouble::Restarted);
    }
    let report = view.report(region.region, replica)?;
    report.broken.as_ref().map(|_| Trouble::Broken)
}

/// Describes the current change of a region.
pub(super) fn phase_text(region: &RegionRecord) -> String {
    let server = |number| {
        let replica = region.replicas().find(|it| it.number == number);
        replica.map_or_else(
            || "an unknown server".to_owned(),
            |it| it.server.0.to_string(),
        )
    };
    match &region.phase {
        Phase::Steady => "steady".to_owned(),
        Phase::Moving { leaving, arriving } => {
            format!("moving from {} to {}", server(*leaving), server(*arriving))
        }
        Phase::HandingOver { to, .. } => format!("handing over to {}", server(*to)),
        Phase::Splitting { child, .. } => format!("splitting off {child}"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use farleaf_cluster::coordinator::{Entry, Revision};
    use farleaf_cluster::ids::{Epoch, Life, RegionId, ReplicaNumber};
    use farleaf_cluster::record::region::Key;
    use farleaf_cluster::record::{
        Backup, FORMAT_VERSION, Record as _, ReplicaReport, ServerRecord, ServerReport, report_key,
        server_key,
    };

    use super::*;

    const LIFE: Life = Life(Revision(5));

    pub(in super::super) fn replica(number: u64) -> Replica {
        Replica {
            number: ReplicaNumber(number),
            server: ServerId(number),
            life: LIFE,
            opened_again: Epoch(0),
        }
    }

    /// Returns a server's report about its replica of region 7.
    pub(in super::super) fn report(
        number: u64,
        broken: bool,
        is_damaged: bool,
        fault: bool,
    ) -> [Entry; 2] {
        let server = ServerId(number);
        let registered = ServerRecord {
            version: FORMAT_VERSION,
            server,
            address: "host:1".to_owned(),
            lease_ms: None,
        };
        let report = ServerReport {
            version: FORMAT_VERSION,
            server,
            life: LIFE,
            replicas: vec![ReplicaReport {
                table: TableId(1),
                region: RegionId(7),
                replica: ReplicaNumber(number),
                epoch: Epoch(1),
                primary: None,
                broken: broken.then(|| "it gave up".to_owned()),
                lacked_space: false,
                is_damaged,
                fault: fault.then(|| "a record is damaged".to_owned()),
                verification: None,
                size_bytes: 0,
                operations_per_second: 0,
                position_bytes: 0,
            }],
            copies: Vec::new(),
            unusable: Vec::new(),
            orphans: Vec::new(),
            capacity_bytes: 0,
            free_bytes: None,
        };
        let entry = |key, value| Entry {
            key,
            value,
            create_revision: LIFE.0,
            mod_revision: LIFE.0,
            lease: None,
        };
        [
            entry(server_key(server), registered.encode()),
            entry(report_key(server), report.encode()),
        ]
    }

    /// Promise: a replica that is broken by corruption does not count as irreparable, because it is
    /// replaced from another one. A replica that continues with corruption counts.
    #[test]
    fn a_broken_replica_is_no_damage_for_good() {
        let mut region = RegionRecord::new(TableId(1), RegionId(7), Key(Vec::new()), None);
        region.primary = Some(replica(1));
        region.backups = [2, 3]
            .map(|number| Backup {
                replica: replica(number),
                in_sync: true,
                is_lost: false,
            })
            .into();
        let status = |reports: [(bool, bool, bool); 3]| {
            let reports = (1..).zip(reports);
            let entries: Vec<Entry> = reports
                .flat_map(|(number, (broken, is_damaged, fault))| {
                    report(number, broken, is_damaged, fault)
                })
                .collect();
            let view = View::of(Revision(9), &entries);
            assert!(view.damaged.is_empty(), "{:?}", view.damaged);
            let faults = faults_of(&view, &region);
            let replicas: Vec<_> = faults.iter().map(|it| (it.server, it.is_broken)).collect();
            let mut status = ClusterStatus::new(&view, "tcp:h:1", None);
            status.faults = faults;
            (replicas, status.lacks().join("; "))
        };
        let whole = (false, false, false);
        let (broken, faulty) = ((true, true, false), (false, false, true));
        let (replicas, lacks) = status([whole, broken, (true, false, false)]);
        assert_eq!(replicas, [(2, true)]);
        assert!(
            lacks.contains("1 replica is corrupted and being replaced from another one")
                && !lacks.contains("no replica can repair"),
            "{lacks}"
        );
        let (replicas, lacks) = status([faulty, broken, broken]);
        assert_eq!(replicas, [(1, false), (2, true), (3, true)]);
        assert!(
            lacks.contains(
                "1 region has corruption that no replica can repair; 2 replicas are corrupted"
            ),
            "{lacks}"
        );
    }

    /// Promise: a replica is reported as restarted when its server is alive in a later life, and as
    /// broken when its server reports that. A view older than the replica's order reports neither.
    #[test]
    fn troubles_of_replicas_are_told() {
        let region = RegionRecord::new(TableId(1), RegionId(7), Key(Vec::new()), None);
        let ordered_in = |revision| Replica {
            life: Life(Revision(revision)),
            ..replica(1)
        };
        for (broken, revision, expected) in [
            (false, LIFE.0.0, None),
            (true, LIFE.0.0, Some(Trouble::Broken)),
            (true, LIFE.0.0 - 1, Some(Trouble::Restarted)),
            (true, LIFE.0.0 + 1, None),
        ] {
            let view = View::of(Revision(9), &report(1, broken, false, false));
            let trouble = trouble_of(&view, &region, ordered_in(revision));
            assert_eq!(trouble, expected, "{broken}, {revision}");
        }
    }
}
