//! Duration of a plan.

use std::time::Instant;

use farleaf_cluster::coordinator::{Entry, Revision};
use farleaf_cluster::ids::{Epoch, Life, RegionId, ReplicaNumber, ServerId, TableId};
use farleaf_cluster::plan::{PlanOptions, plan};
use farleaf_cluster::record::region::Key;
use farleaf_cluster::record::{
    Backup, FORMAT_VERSION, PrimaryReport, Record, RegionRecord, Replica, ReplicaReport,
    ServerRecord, ServerReport, TableRecord, report_key, server_key, table_key,
};
use farleaf_cluster::view::View;

fn entry(key: String, value: Vec<u8>, created: u64) -> Entry {
    Entry {
        key,
        value,
        create_revision: Revision(created),
        mod_revision: Revision(created),
        lease: None,
    }
}

/// Creates a replica of a region, on one of `server_count` servers.
fn replica(number: u64, place: u64, server_count: u64) -> Replica {
    Replica {
        number: ReplicaNumber(place + 1),
        server: ServerId((number + place) % server_count + 1),
        life: Life(Revision(3)),
        opened_again: Epoch(0),
    }
}

/// Gives a region its three replicas.
fn fill(region: &mut RegionRecord, replica: impl Fn(u64) -> Replica) {
    region.epoch = Epoch(1);
    region.is_new = false;
    region.next_replica = ReplicaNumber(4);
    region.primary = Some(replica(0));
    let backup = |place| Backup::in_sync(replica(place));
    region.backups = vec![backup(1), backup(2)];
}

fn table_record(table: TableId) -> TableRecord {
    TableRecord {
        version: FORMAT_VERSION,
        table,
        incarnation: None,
        name: "t".to_owned(),
        replica_count: 3,
        dropping: false,
    }
}

/// Creates the view of a cluster that needs no changes.
fn quiet_cluster(region_count: u64, server_count: u64) -> View {
    let (version, table) = (FORMAT_VERSION, TableId(1));
    let record = table_record(table);
    let mut entries = vec![entry(table_key(table), record.encode(), 2)];
    let mut reports = vec![Vec::new(); server_count as usize];
    let key = |number: u64| Key(number.to_be_bytes().to_vec());
    for number in 0..region_count {
        let to = (number + 1 < region_count).then(|| key(number + 1));
        let from = if number == 0 {
            Key::default()
        } else {
            key(number)
        };
        let mut region = RegionRecord::new(table, RegionId(number + 1), from, to);
        let replica = |place: u64| replica(number, place, server_count);
        fill(&mut region, replica);
        for place in 0..3 {
            let primary = (place == 0).then(|| PrimaryReport {
                in_sync: vec![ReplicaNumber(2), ReplicaNumber(3)],
                ..PrimaryReport::default()
            });
            let server = replica(place).server.0 as usize - 1;
            reports[server].push(ReplicaReport {
                table,
                region: region.region,
                replica: replica(place).number,
                epoch: Epoch(1),
                primary,
                broken: None,
                lacked_space: false,
                is_damaged: false,
                fault: None,
                verification: None,
                size_bytes: 1 << 30,
                operations_per_second: 100,
                position_bytes: 1 << 30,
            });
        }
        entries.push(entry(region.key(), region.encode(), 4));
    }
    for (server, replicas) in (1..).map(ServerId).zip(reports) {
        let address = "host:1".to_owned();
        let record = ServerRecord {
            lease_ms: Some(10_000),
            version,
            server,
            address,
        };
        entries.push(entry(server_key(server), record.encode(), 3));
        let report = ServerReport {
            version,
            server,
            life: Life(Revision(3)),
            replicas,
            copies: Vec::new(),
            unusable: Vec::new(),
            orphans: Vec::new(),
            capacity_bytes: 0,
            free_bytes: None,
        };
        println!("{server} reports {} bytes", report.encode().len());
        entries.push(entry(report_key(server), report.encode(), 5));
    }
    let view = View::of(Revision(5), &entries);
    assert!(view.damaged.is_empty());
    view
}

/// Nothing is planned for a cluster that needs no changes. Prints how long that takes.
#[test]
#[ignore = "it measures: docs/reference/control-plane.md has the command"]
fn time_of_a_plan() {
    let view = quiet_cluster(10_000, 30);
    let options = PlanOptions::default();
    for _ in 0..3 {
        let start = Instant::now();
        let planned = plan(&view, &options);
        println!("a plan for 10,000 regions took {:?}", start.elapsed());
        assert!(planned.steps.is_empty(), "{:?}", planned.steps);
    }
}
