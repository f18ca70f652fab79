//! All servers of a region are down at once, and one of their copies is damaged meanwhile.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use farleaf_client::{Durability, PersistentTable};
use farleaf_cluster::admin;
use farleaf_cluster::ids::ServerId;
use farleaf_cluster::record::RegionRecord;
use farleaf_trial::fleet::view;
use farleaf_trial::load::wait_served;

use crate::test_cluster::TestCluster;

const RECORD_COUNT: u64 = 700;

/// Server that has the master, and no replica.
const MASTER: usize = 3;

fn key_of(number: u64) -> Vec<u8> {
    format!("key-{number:06}").into_bytes()
}

/// Returns 4 KiB that occur in no other record.
fn value_of(number: u64) -> Vec<u8> {
    format!("[value {number:06}]").into_bytes().repeat(256)
}

/// Creates three servers with a replica each, and one that only has the master. When that one is
/// stopped first, the record sees the others as lost together.
fn test_cluster() -> (TestCluster, PersistentTable) {
    let test_cluster = TestCluster::with(4, |index, options| {
        options.is_candidate = index == MASTER;
        options.scrub_interval = Duration::from_hours(1);
        options.engine.l0_entry_count_max = 256;
    });
    let master = ServerId(MASTER as u64 + 1);
    admin::set_drain(&test_cluster.coordinator, master, true).expect("embedded");
    let table = test_cluster
        .table(3, false)
        .with_durability(Durability::Sync);
    let records = (0..RECORD_COUNT).map(|number| (key_of(number), value_of(number)));
    let records: Vec<_> = records.collect();
    for part in records.chunks(100) {
        table.multi_put(part).expect("put");
    }
    (test_cluster, table)
}

fn region(test_cluster: &TestCluster, table: &PersistentTable) -> RegionRecord {
    view(&test_cluster.coordinator).regions_of(table.id())[0].clone()
}

/// Returns the directory of a server's only replica, and that of its copy in force.
fn place(test_cluster: &TestCluster, server: ServerId) -> (PathBuf, PathBuf) {
    let regions = test_cluster
        .directory(server.0 as usize - 1)
        .join("regions");
    let only = |path: &Path, prefix: &str| {
        let entries = fs::read_dir(path).expect("it is there");
        let mut paths = entries.map(|entry| entry.expect("listed").path());
        let found = paths.find(|path| {
            let name = path.file_name().and_then(|it| it.to_str());
            name.is_some_and(|name| name.starts_with(prefix))
        });
        found.expect("one is there")
    };
    let replica = only(&regions, "");
    let data = only(&replica, "data-");
    (replica, data)
}

/// Stops all servers, damages some copies, and restarts all. Copies are given by the order of their
/// numbers: of equally new ones the first continues. Everything acknowledged is present, and the
/// first replica, if only its copy was damaged, is no longer a member.
fn are_served_by_others(damaged: &[usize], damage: impl Fn(&Path, &Path)) {
    let (mut test_cluster, table) = test_cluster();
    let before = region(&test_cluster, &table);
    let mut members: Vec<_> = before.members().collect();
    assert_eq!(members.len(), 3, "{before:?}");
    members.sort_by_key(|it| it.number);
    for index in [MASTER, 0, 1, 2] {
        test_cluster.stop(index);
    }
    assert_eq!(
        region(&test_cluster, &table),
        before,
        "nobody is there to change it"
    );
    for index in damaged {
        let (replica, data) = place(&test_cluster, members[*index].server);
        damage(&replica, &data);
    }
    for index in [0, 1, 2, MASTER] {
        test_cluster.start(index);
    }
    wait_served(&table);
    test_cluster.wait_replicated(&table, 3);
    for number in 0..RECORD_COUNT {
        let found = table.get(&key_of(number)).expect("it is served");
        assert_eq!(found, Some(value_of(number)), "{number}");
    }
    let after = region(&test_cluster, &table);
    if damaged == [0] {
        let first = members[0].number;
        assert!(after.replicas().all(|it| it.number != first), "{after:?}");
    }
}

/// Damages the copy of the replica that would continue.
fn is_served_by_another(damage: impl Fn(&Path, &Path)) {
    are_served_by_others(&[0], damage);
}

/// Truncates a log within its unflushed part.
fn cut_log(_: &Path, data: &Path) {
    let log = fs::read(data.join("log")).expect("it is there");
    let value = value_of(RECORD_COUNT - 50);
    let mut windows = log.windows(64);
    let at = windows.position(|window| window == &value[..64]);
    let at = at.expect("it was written") as u64;
    let file = fs::OpenOptions::new().write(true).open(data.join("log"));
    file.expect("it is there").set_len(at).expect("cut");
}

/// A bit of the newest copy's log has flipped while all were down: it fills no other replica, and
/// another copy continues (CONTROL-18).
#[test]
fn a_bit_has_flipped_while_all_were_down() {
    is_served_by_another(|_, data| {
        let log = fs::read(data.join("log")).expect("it is there");
        let value = value_of(RECORD_COUNT / 2);
        let mut windows = log.windows(64);
        let at = windows.position(|window| window == &value[..64]);
        let at = at.expect("it was written") + 100;
        let file = fs::OpenOptions::new().write(true).open(data.join("log"));
        let file = file.expect("it is there");
        file.write_all_at(&[log[at] ^ 1], at as u64)
            .expect("written");
    });
}

/// A log that ends too early, and is valid up to there, does not continue: others have more
/// (CONTROL-18).
#[test]
fn a_log_is_cut_while_all_were_down() {
    is_served_by_another(cut_log);
}

/// If two of three logs were truncated, the complete one continues, whichever that is, even after a
/// backup that was first filled from a truncated one (CONTROL-18).
#[test]
fn two_logs_are_cut_while_all_were_down() {
    for damaged in [[0, 1], [0, 2], [1, 2]] {
        are_served_by_others(&damaged, cut_log);
    }
}

/// The newest copy cannot be opened because a file is missing; another one continues (CONTROL-18).
#[test]
fn a_log_is_gone_while_all_were_down() {
    is_served_by_another(|_, data| fs::remove_file(data.join("log")).expect("it was there"));
}

/// A copy with a damaged manifest is reported, and not waited for (CONTROL-18).
#[test]
fn a_manifest_is_torn_while_all_were_down() {
    is_served_by_another(|_, data| {
        fs::write(data.join("CURRENT"), "nonsense").expect("written");
    });
}

/// Corrupts a file so that its length or kind shows it.
fn lengthen(path: &Path) {
    let mut bytes = fs::read(path).expect("it is there");
    bytes.extend([b'x'; 100]);
    fs::write(path, bytes).expect("written");
}

fn make_directory_of(path: &Path) {
    fs::remove_file(path).expect("it was there");
    fs::create_dir(path).expect("made");
}

/// A file of wrong length, or a directory in its place, is corruption, not a temporary disk error:
/// the region does not wait for that copy. It once waited for a copy whose `CURRENT` was too long
/// (CONTROL-18).
#[test]
fn files_have_wrong_lengths_while_all_were_down() {
    is_served_by_another(|_, data| lengthen(&data.join("CURRENT")));
    is_served_by_another(|_, data| make_directory_of(&data.join("log")));
    is_served_by_another(|replica, _| fs::write(replica.join("REPLICA"), "").expect("written"));
}

/// A replica with a damaged note is reported, and not waited for (CONTROL-18).
#[test]
fn a_note_is_torn_while_all_were_down() {
    is_served_by_another(|replica, _| {
        fs::write(replica.join("REPLICA"), "{\"version\":1,").expect("written");
    });
}

/// A copy of a newer version is waited for, as that version may be started again: it does not count
/// as damaged. When it is given up, the others continue (CONTROL-18).
#[test]
fn a_copy_of_a_newer_program_is_waited_for() {
    let (mut test_cluster, table) = test_cluster();
    let before = region(&test_cluster, &table);
    for index in [MASTER, 0, 1, 2] {
        test_cluster.stop(index);
    }
    let first = before.primary.expect("it is served");
    let (replica, _) = place(&test_cluster, first.server);
    let note = fs::read_to_string(replica.join("REPLICA")).expect("it is there");
    let newer = note.replace("\"version\":2", "\"version\":9");
    fs::write(replica.join("REPLICA"), newer).expect("written");
    for index in [0, 1, 2, MASTER] {
        test_cluster.start(index);
    }
    let since = std::time::Instant::now();
    let reasons = loop {
        let view = view(&test_cluster.coordinator);
        let plan =
            farleaf_cluster::plan::plan(&view, &farleaf_cluster::plan::PlanOptions::default());
        let reasons = plan.waiting.iter().map(|it| it.what.clone());
        let reasons = reasons.collect::<Vec<_>>().join("; ");
        if reasons.contains("version 9") {
            break reasons;
        }
        assert!(since.elapsed() < Duration::from_secs(30), "{reasons}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(reasons.contains(&first.server.to_string()), "{reasons}");
    fs::write(replica.join("REPLICA"), note).expect("written");
    let index = first.server.0 as usize - 1;
    test_cluster.stop(index);
    test_cluster.start(index);
    wait_served(&table);
    for number in 0..RECORD_COUNT {
        let found = table.get(&key_of(number)).expect("it is served");
        assert_eq!(found, Some(value_of(number)), "{number}");
    }
}

/// A closed primary has released its directory, even if it was connecting to a missing server: the
/// same process can open it at once.
#[test]
fn who_stops_behind_its_peer_can_be_opened_again() {
    let mut test_cluster = TestCluster::new(2);
    let table = test_cluster
        .table(2, false)
        .with_durability(Durability::Sync);
    for round in 0..4_u32 {
        let value = round.to_le_bytes();
        table.put(b"key", &value).expect("put");
        test_cluster.wait_replicated(&table, 2);
        let first = test_cluster.primary(&table);
        for index in [first, 1 - first] {
            test_cluster.stop(index);
        }
        for index in [0, 1] {
            test_cluster.start(index);
        }
        wait_served(&table);
        let found = table.get(b"key").expect("it is served");
        assert_eq!(found, Some(value.to_vec()));
    }
}
