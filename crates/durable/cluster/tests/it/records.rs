//! Records: decoding returns what was encoded, and the format is fixed; hostile bytes are refused
//! with an error, and nothing worse.

use farleaf_base::fuzzing::run;
use farleaf_base::limits::KEY_SIZE_BYTES_MAX;
use farleaf_base::random::Random;
use farleaf_cluster::coordinator::{Entry, Event, Revision, Transaction, journal};
use farleaf_cluster::ids::{
    ClusterId, Epoch, Life, RegionId, ReplicaNumber, ServerId, TableId, TableIncarnation,
};
use farleaf_cluster::plan::{Action, PlanOptions, PlanStep};
use farleaf_cluster::record::region::Key;
use farleaf_cluster::record::{
    AdminReply, AdminRequest, AdminRequestKind, Backup, CLUSTER_KEY, Cluster, CopyReport, Drain,
    FORMAT_VERSION, IDS_KEY, Ids, MASTER_KEY, MasterRecord, MismatchReport, Orphan, PartSum, Phase,
    PrimaryReport, Record, RecordError, RegionRecord, Replica, ReplicaReport, ServerRecord,
    ServerReport, SpaceState, TableName, TableRecord, UnusableCopy, VerificationReport,
    admin_request_key, drain_key, name_key, region_key, report_key, server_key, table_key,
};
use farleaf_cluster::view::View;

fn replica(number: u64, server: u64) -> Replica {
    Replica {
        number: ReplicaNumber(number),
        server: ServerId(server),
        life: Life(Revision(server + 10)),
        opened_again: Epoch(0),
    }
}

fn region() -> RegionRecord {
    let backup = |number, server, in_sync| Backup {
        replica: replica(number, server),
        in_sync,
        is_lost: false,
    };
    RegionRecord {
        epoch: Epoch(4),
        primary: Some(replica(2, 1)),
        backups: vec![backup(3, 2, true), backup(5, 3, false)],
        next_replica: ReplicaNumber(6),
        phase: Phase::Splitting {
            at: Key(b"m\xFF".to_vec()),
            child: RegionId(9),
        },
        is_new: false,
        split_from: Some(RegionId(3)),
        ..RegionRecord::new(
            TableId(1),
            RegionId(7),
            Key(b"a".to_vec()),
            Some(Key(b"z".to_vec())),
        )
    }
}

fn report() -> ServerReport {
    ServerReport {
        version: FORMAT_VERSION,
        server: ServerId(2),
        life: Life(Revision(12)),
        replicas: vec![ReplicaReport {
            table: TableId(1),
            region: RegionId(7),
            replica: ReplicaNumber(2),
            epoch: Epoch(4),
            primary: Some(PrimaryReport {
                in_sync: vec![ReplicaNumber(3)],
                failed: vec![ReplicaNumber(5)],
                stopped: true,
                prepared: Some((RegionId(9), vec![ReplicaNumber(3)])),
                mismatches: vec![MismatchReport {
                    replica: ReplicaNumber(5),
                    server: ServerId(4),
                    part: "log segment 7".to_owned(),
                    primary: PartSum {
                        size_bytes: 2 << 20,
                        checksum: "00000000000000ff".to_owned(),
                    },
                    backup: PartSum {
                        size_bytes: 0,
                        checksum: "0000000000000000".to_owned(),
                    },
                }],
                mismatch_count: 3,
            }),
            broken: Some("the disk is full".to_owned()),
            lacked_space: true,
            is_damaged: true,
            fault: Some("a record is damaged".to_owned()),
            verification: Some(VerificationReport {
                is_finished: true,
                pass_size_bytes: 6 << 20,
                passed_size_bytes: 2 << 20,
                ended_at_unix_s: Some(1_764_270_000),
            }),
            size_bytes: u64::MAX,
            operations_per_second: 5,
            position_bytes: 6,
        }],
        copies: vec![CopyReport {
            incarnation: None,
            table: TableId(1),
            region: RegionId(8),
            replica: ReplicaNumber(1),
            epoch: Epoch(1),
            position_bytes: 7,
        }],
        unusable: vec![UnusableCopy {
            region: RegionId(9),
            replica: ReplicaNumber(4),
            is_damaged: true,
            how: "it is torn".to_owned(),
        }],
        orphans: vec![Orphan {
            path: "d/orphans/5-2".to_owned(),
            how: "why".to_owned(),
        }],
        capacity_bytes: 1 << 40,
        free_bytes: Some(1 << 30),
    }
}

/// Returns one encoded record of each kind, with its key.
fn one_of_each() -> Vec<(String, Vec<u8>)> {
    let version = FORMAT_VERSION;
    let address = "host:1".to_owned();
    let (server, table) = (ServerId(2), TableId(1));
    let admin_request = AdminRequest {
        version,
        kind: AdminRequestKind::Move {
            table,
            region: RegionId(7),
            from: server,
            to: ServerId(3),
        },
        answer: Some(AdminReply::Refused("no".to_owned())),
    };
    let cluster = Cluster {
        version,
        cluster: ClusterId(77),
        formerly: None,
    };
    let table_record = TableRecord {
        version: TableRecord::VERSION,
        incarnation: Some(TableIncarnation(5)),
        table,
        name: "words".to_owned(),
        replica_count: 3,
        dropping: false,
    };
    vec![
        (CLUSTER_KEY.to_owned(), cluster.encode()),
        (IDS_KEY.to_owned(), Ids::default().encode()),
        (
            MASTER_KEY.to_owned(),
            MasterRecord {
                version,
                address: address.clone(),
            }
            .encode(),
        ),
        (
            server_key(server),
            ServerRecord {
                version,
                server,
                address,
                lease_ms: Some(10_000),
            }
            .encode(),
        ),
        (report_key(server), report().encode()),
        (drain_key(server), Drain { version }.encode()),
        (name_key("words"), TableName { version, table }.encode()),
        (table_key(table), table_record.encode()),
        (region_key(table, RegionId(7)), region().encode()),
        (admin_request_key(5), admin_request.encode()),
    ]
}

fn put(key: &str, value: &[u8]) -> Event {
    Event::Put(Entry {
        key: key.to_owned(),
        value: value.to_vec(),
        create_revision: Revision(3),
        mod_revision: Revision(4),
        lease: None,
    })
}

/// Each record is decoded to what was encoded, under its own key, and a view finds it.
#[test]
fn records_come_back_as_they_were() {
    let key = region().key();
    assert_eq!(RegionRecord::decode(&key, &region().encode()), Ok(region()));
    let key = report_key(ServerId(2));
    assert_eq!(ServerReport::decode(&key, &report().encode()), Ok(report()));
    let mut view = View::default();
    for (key, value) in one_of_each() {
        view.follow(&put(&key, &value));
    }
    assert!(view.damaged.is_empty(), "{:?}", view.damaged);
    assert_eq!(view.regions[&RegionId(7)].record, region());
    assert_eq!(view.lives[&ServerId(2)], Life(Revision(3)));
    assert_eq!(
        (
            view.drains.len(),
            view.admin_requests.len(),
            view.tables.len()
        ),
        (1, 1, 1)
    );
    for (key, _) in one_of_each() {
        let revision = Revision(5);
        view.follow(&Event::Delete(key, revision));
    }
    let gone = View {
        revision: Revision(5),
        ..View::default()
    };
    assert_eq!(format!("{view:?}"), format!("{gone:?}"));
}

/// Fixes the format of a region's record since it has a version.
#[test]
fn a_region_is_written_as_it_always_was() {
    let golden = r#"{"version":1,"table":1,"region":7,"from":"61","to":"7a","epoch":4,"primary":{"number":2,"server":1,"life":11},"backups":[{"replica":{"number":3,"server":2,"life":12},"in_sync":true},{"replica":{"number":5,"server":3,"life":13},"in_sync":false}],"next_replica":6,"phase":{"splitting":{"at":"6dff","child":9}},"is_new":false,"split_from":3}"#;
    assert_eq!(
        String::from_utf8(region().encode()).expect("it is JSON"),
        golden
    );
    assert_eq!(
        region().key(),
        "region/00000000000000000001/00000000000000000007"
    );
}

/// The record of a cluster has a 128-bit identifier; the number of an older version is read in its
/// own format. Versions that do not match the identifier are refused.
#[test]
fn clusters_have_identifiers_of_128_bits() {
    let id = ClusterId(1 << 64);
    let golden = [
        (
            Cluster::new(id, None),
            r#"{"version":2,"cluster":"00000000000000010000000000000000"}"#,
        ),
        (
            Cluster::new(id, Some(ClusterId(77))),
            r#"{"version":2,"cluster":"00000000000000010000000000000000","formerly":77}"#,
        ),
    ];
    for (record, golden) in golden {
        assert_eq!(String::from_utf8(record.encode()).expect("JSON"), golden);
        let decoded = Cluster::decode(CLUSTER_KEY, golden.as_bytes());
        assert_eq!(decoded, Ok(record));
    }
    let old = Cluster::decode(CLUSTER_KEY, br#"{"version":1,"cluster":77}"#);
    assert_eq!(old.map(|it| it.cluster), Ok(ClusterId(77)));
    for (text, why) in [
        (r#"{"version":2,"cluster":77}"#, "format version 2"),
        (r#"{"version":1,"cluster":9007199254740992}"#, "2^53"),
        (r#"{"version":1,"cluster":77,"formerly":78}"#, "was adopted"),
        (
            r#"{"version":1,"cluster":"00000000000000010000000000000000"}"#,
            "format version 1",
        ),
    ] {
        let error = Cluster::decode(CLUSTER_KEY, text.as_bytes()).expect_err(why);
        assert!(error.to_string().contains(why), "{error}");
    }
}

/// Impossible records are refused with a description.
#[test]
fn records_that_cannot_be_are_refused() {
    let refused = |change: fn(&mut RegionRecord), why: &str| {
        let mut record = region();
        change(&mut record);
        let error = RegionRecord::decode(&region().key(), &record.encode()).expect_err(why);
        let error_text = error.to_string();
        assert!(error_text.contains(why), "{error_text}, and not: {why}");
        assert!(error_text.contains("is corrupted"), "{error_text}");
    };
    refused(|it| it.version = 0, "format version 0");
    refused(|it| it.epoch = Epoch(1 << 53), "2^53");
    refused(|it| it.region = RegionId(8), "is the record of");
    refused(|it| it.to = Some(Key(b"a".to_vec())), "range is empty");
    refused(|it| it.next_replica = ReplicaNumber(5), "never assigned");
    refused(
        |it| it.backups[0].replica.number = ReplicaNumber(2),
        "duplicate replica",
    );
    refused(
        |it| it.backups[0].replica.server = ServerId(1),
        "two replicas",
    );
    refused(|it| it.primary = None, "no primary");
    refused(|it| it.is_new = true, "never opened");
    refused(
        |it| it.backups[0].replica.opened_again = Epoch(5),
        "in the future",
    );
    refused(|it| it.from = Key(b"n".to_vec()), "not within it");
    refused(
        |it| it.from = Key(vec![b'a'; KEY_SIZE_BYTES_MAX + 1]),
        "hexadecimal",
    );
    let handing = |it: &mut RegionRecord| {
        it.phase = Phase::HandingOver {
            to: ReplicaNumber(5),
            old_leaves: true,
        };
    };
    refused(handing, "not in sync");
    for bytes in [&b""[..], b"{}", b"[1]", b"\xFF", b"{\"version\":1}"] {
        assert!(RegionRecord::decode(&region().key(), bytes).is_err());
    }
}

/// A record of a later version, whatever its fields, is reported as such and not as damaged. Such
/// records were once reported as damaged, and so restored from copies.
#[test]
fn a_record_of_a_later_version_is_not_damaged() {
    let mut later = region();
    later.version = 2;
    for bytes in [&later.encode()[..], br#"{"version":2,"shards":[]}"#] {
        let error = RegionRecord::decode(&region().key(), bytes).expect_err("of the future");
        let error_text = error.to_string();
        assert!(
            matches!(error, RecordError::Newer { version: 2, .. }),
            "{error_text}"
        );
        assert!(!error_text.contains("corrupted"), "{error_text}");
        assert!(
            error_text.contains("a newer version has written it; use that version"),
            "{error_text}"
        );
    }
}

/// Phases of regions and steps of the master have readable descriptions.
#[test]
fn phases_and_steps_are_told_in_words() {
    assert_eq!(
        region().phase.to_string(),
        r#"it is being split at "m\xff" into region 9"#
    );
    let moving = Phase::Moving {
        leaving: ReplicaNumber(2),
        arriving: ReplicaNumber(5),
    };
    assert_eq!(
        moving.to_string(),
        "replica 2 is removed when replica 5, which is catching up, is in sync"
    );
    let step = PlanStep {
        action: Action::AddBackup(ServerId(3)),
        table: TableId(1),
        region: Some(RegionId(9)),
        transaction: Transaction::new(),
    };
    assert_eq!(
        step.to_string(),
        "region 9 of table 1: add a backup on server 3"
    );
}

/// A server with a damaged record still counts as alive. A region with a damaged record is not
/// changed, and is reported.
#[test]
fn a_damaged_record_is_told() {
    let mut view = View::default();
    view.follow(&put(&server_key(ServerId(2)), b"not JSON"));
    view.follow(&put(&region().key(), &region().encode()));
    view.follow(&put(&region().key(), b"{\"version\":9}"));
    assert_eq!(view.lives[&ServerId(2)], Life(Revision(3)));
    assert!(view.servers.is_empty() && view.regions.is_empty());
    assert_eq!(view.damaged.len(), 2);
    view.follow(&put(&region().key(), &region().encode()));
    assert_eq!(view.damaged.len(), 1);
}

/// Mutated bytes are a record that passes all checks, or an error. The remaining records are
/// planned without a panic.
#[test]
fn fuzzed_records() {
    let honest = one_of_each();
    run("records", |random: &mut Random| {
        let mut view = View::default();
        for (key, value) in &honest {
            let (mut key, mut value) = (key.clone().into_bytes(), value.clone());
            if random.one_in(2) {
                random.mutate(&mut value);
            }
            if random.one_in(8) {
                random.mutate(&mut key);
            }
            view.follow(&put(&String::from_utf8_lossy(&key), &value));
        }
        let plan = farleaf_cluster::plan::plan(&view, &PlanOptions::default());
        for step in plan.steps {
            let checked = step.transaction.check();
            assert!(checked.is_ok(), "{step}: {checked:?}");
        }
    });
}

/// Mutated bytes of a journal are a map or an error.
#[test]
fn fuzzed_journals() {
    let honest = br#"{"version":1,"map":{"revision":3,"next_lease":2,"leases":[[1,500]],"entries":[["a",[1],2,3,1]]}}"#;
    let sum = |before: u32, json: &[u8]| {
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        digest.update(&before.to_le_bytes());
        digest.update(json);
        digest.finalize() as u32
    };
    let changes: [&[u8]; 3] = [
        br#"{"write":[{"put":["b",[1,2],1]},{"delete":"a"}]}"#,
        br#"{"grant":700}"#,
        br#"{"end":1}"#,
    ];
    run("journals", |random: &mut Random| {
        let mut bytes = Vec::new();
        let mut before = 0;
        for json in std::iter::once(&honest[..]).chain(changes) {
            let mut json = json.to_vec();
            // Valid checksums over invalid content.
            if random.one_in(2) {
                random.mutate(&mut json);
            }
            let own = sum(before, &json);
            bytes.extend(format!("{own:08x} {before:08x} ").into_bytes());
            bytes.extend(&json);
            bytes.push(b'\n');
            before = own;
        }
        if random.one_in(4) {
            random.mutate(&mut bytes);
        }
        let _ = journal::replay(&bytes, std::time::Duration::ZERO);
    });
}

/// A server's reports of a replica at epochs below that of its reopening do not apply to the open
/// replica. A record without such an epoch keeps its format (CONTROL-16).
#[test]
fn what_is_told_of_before_counts_no_more() {
    let mut view = View::default();
    view.follow(&put(&server_key(ServerId(2)), b"{}"));
    let mut of_life = report();
    of_life.life = Life(Revision(3));
    view.follow(&put(&report_key(ServerId(2)), &of_life.encode()));
    let mut replica = replica(2, 2);
    replica.life = Life(Revision(3));
    for (opened_again, is_told) in [(0, true), (4, true), (5, false)] {
        replica.opened_again = Epoch(opened_again);
        let report = view.report(RegionId(7), replica);
        assert_eq!(report.is_some(), is_told, "{opened_again}");
    }
    let mut record = region();
    assert!(!String::from_utf8_lossy(&record.encode()).contains("opened_again"));
    record.backups[0].replica.opened_again = Epoch(4);
    let read = RegionRecord::decode(&record.key(), &record.encode());
    assert_eq!(read, Ok(record));
}

/// A report of a version without fields for space or damage is decoded without them.
#[test]
fn reports_without_space_are_read() {
    let mut report = report();
    report.replicas[0].is_damaged = false;
    report.replicas[0].fault = None;
    report.replicas[0].verification = None;
    report.free_bytes = None;
    report.replicas[0].lacked_space = false;
    let bytes = report.encode();
    let value: serde_json::Value = serde_json::from_slice(&bytes).expect("it is JSON");
    assert!(value.get("free_bytes").is_none(), "{value}");
    let replica = &value["replicas"][0];
    assert_eq!(replica["position_bytes"], 6);
    for word in ["lacked_room", "is_damaged", "fault", "verification"] {
        assert!(replica.get(word).is_none(), "{word} in {replica}");
    }
    let read = ServerReport::decode(&report_key(report.server), &bytes);
    assert_eq!(read.map(|it| it.space_state()), Ok(SpaceState::Enough));
}
