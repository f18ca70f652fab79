//! Corruption that all copies of a region have.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use farleaf_client::{ClientError, Durability, PersistentTable};
use farleaf_cluster::ids::{Epoch, ReplicaNumber, ServerId};

use crate::bits::{
    BLOCK_SIZE_BYTES, RECORD_COUNT, another_key, data, find_in_log, key_of, load, value_of,
};
use crate::test_cluster::TestCluster;

const OTHER_COUNT: u64 = 600;

/// Flips a bit of a file.
fn flip(path: &Path, at: u64) {
    let mut options = fs::OpenOptions::new();
    let file = options.read(true).write(true).open(path);
    let file = file.expect("it is there");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 1], at).expect("written");
}

/// Creates three servers, and a table whose copies are all complete.
fn test_cluster() -> (TestCluster, PersistentTable) {
    let test_cluster = TestCluster::with(3, |_, options| {
        options.scrub_interval = Duration::from_millis(20);
        options.engine.cache_size_bytes = 1 << 16;
        options.engine.log_memory_size_bytes = 0;
        options.engine.l0_size_bytes_max = 64 << 10;
        options.engine.l0_entry_count_max = 256;
    });
    let table = test_cluster
        .table(3, false)
        .with_durability(Durability::Sync);
    load(&table);
    let others: Vec<_> = (0..OTHER_COUNT)
        .map(|number| (another_key(number), value_of(number)))
        .collect();
    table.multi_put(&others).expect("put");
    test_cluster.wait_replicated(&table, 3);
    (test_cluster, table)
}

/// Flips bits in all leaves that have none of the kept keys; returns their number.
fn flip_leaves(trees: &Path) -> usize {
    let bytes = fs::read(trees).expect("flushed");
    let blocks = bytes.chunks(BLOCK_SIZE_BYTES).enumerate();
    let is_leaf = |block: &[u8]| block.len() > 38 && block[4] == 1 && &block[32..38] == b"other-";
    let leaves = blocks.filter(|(_, block)| is_leaf(block));
    leaves
        .map(|(index, _)| flip(trees, (index * BLOCK_SIZE_BYTES + 100) as u64))
        .count()
}

/// The servers' reports about the table's region: the faults of its primary and backups, and
/// problems of copies that broken replicas have left.
struct Told {
    primary: Option<String>,
    backups: Vec<Option<String>>,
    left: Vec<String>,
    /// Values that change when another replica becomes primary, or a backup is created.
    moves: (Epoch, ReplicaNumber),
}

fn fault_reports(test_cluster: &TestCluster, table: &PersistentTable) -> Told {
    let view = farleaf_trial::fleet::view(&test_cluster.coordinator);
    let region = view.regions_of(table.id())[0].clone();
    let fault = |replica| view.report(region.region, replica)?.fault.clone();
    let servers = (1..=3).filter_map(|number| view.server_report(ServerId(number)));
    let unusable = servers.flat_map(|report| report.unusable.clone());
    let backups = region.backups.iter().filter(|it| it.in_sync);
    Told {
        primary: region.primary.and_then(fault),
        backups: backups.map(|it| fault(it.replica)).collect(),
        left: unusable.map(|copy| copy.how).collect(),
        moves: (region.epoch, region.next_replica),
    }
}

fn wait_told(
    test_cluster: &TestCluster,
    table: &PersistentTable,
    is_so: impl Fn(&Told) -> bool,
) -> Told {
    let since = Instant::now();
    loop {
        let reports = fault_reports(test_cluster, table);
        if is_so(&reports) {
            return reports;
        }
        let Told {
            primary,
            backups,
            left,
            moves,
        } = reports;
        let is_patient = since.elapsed() < Duration::from_mins(1);
        assert!(is_patient, "{primary:?} {backups:?} {left:?} {moves:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Checks that all records but some are read, and that reads of those return an error with the
/// damage, file and byte.
fn is_served(table: &PersistentTable, damaged: &[Vec<u8>], expected: &[&str]) {
    for number in (0..RECORD_COUNT).step_by(25).filter(|it| *it != 7) {
        let found = table.get(&key_of(number)).expect("it is served");
        assert_eq!(found, Some(value_of(number)));
    }
    for key in damaged {
        let error = table.get(key).expect_err("it is damaged");
        assert!(matches!(error, ClientError::Failed { .. }), "{error}");
        let text = error.to_string();
        for expected in expected {
            assert!(text.contains(expected), "no {expected:?} in {text}");
        }
    }
}

/// If the trees of all copies are damaged in the same place, the last one permanently serves all
/// intact data, and each reports its damage. Replicas are not refilled repeatedly.
#[test]
fn trees_of_all_copies_are_damaged() {
    let (test_cluster, table) = test_cluster();
    test_cluster.ends_with_replicas_unlike("all copies stay damaged");
    thread::sleep(Duration::from_secs(1));
    for index in 0..3 {
        let count = flip_leaves(&data(&test_cluster, index).join("trees"));
        assert!(count > 0, "no leaf has the other keys alone");
    }
    let expected = ["of tree ", " is corrupted: ", "(byte ", "/trees)"];
    let is_told = |how: &str| expected.iter().all(|it| how.contains(it));
    let before = wait_told(&test_cluster, &table, |reports| {
        // A copy that left while two others were members is removed.
        reports.primary.as_deref().is_some_and(is_told) && !reports.left.is_empty()
    });
    assert!(
        before.left.iter().all(|how| is_told(how)),
        "{:?}",
        before.left
    );
    let bad: Vec<_> = (0..OTHER_COUNT)
        .map(another_key)
        .filter(|key| table.get(key).is_err())
        .collect();
    assert!(!bad.is_empty(), "none is damaged");
    for _ in 0..5 {
        is_served(&table, &bad[..3.min(bad.len())], &expected);
        thread::sleep(Duration::from_secs(1));
    }
    table.put(b"another", b"one").expect("put");
    let after = fault_reports(&test_cluster, &table);
    let (epoch, next) = before.moves;
    // The master may have ordered the second of two backups meanwhile.
    assert_eq!(after.moves.0, epoch);
    assert!(
        after.moves.1.0 <= next.0 + 1,
        "{next:?}, {:?}",
        after.moves.1
    );
    assert_eq!(after.primary, before.primary);
    assert!(!after.left.is_empty());
}

/// If the logs of all copies are damaged in the same place, all other data are served. The region
/// gets its full number of replicas, which stay, with that damage. Each reports it.
#[test]
fn logs_of_all_copies_are_damaged() {
    let (test_cluster, table) = test_cluster();
    test_cluster.ends_with_replicas_unlike("all copies stay damaged");
    thread::sleep(Duration::from_secs(1));
    for index in 0..3 {
        let data = data(&test_cluster, index);
        flip(&data.join("log"), find_in_log(&data, &value_of(7)) + 2000);
    }
    let is_told = |how: &Option<String>| how.as_deref().is_some_and(|it| it.contains("corrupted"));
    let before = wait_told(&test_cluster, &table, |reports| {
        is_told(&reports.primary)
            && reports.backups.len() == 2
            && reports.backups.iter().all(is_told)
    });
    for _ in 0..5 {
        is_served(
            &table,
            &[key_of(7)],
            &["the log is corrupted at", "(byte ", "/log)"],
        );
        thread::sleep(Duration::from_secs(1));
    }
    table.put(b"another", b"one").expect("put");
    let after = fault_reports(&test_cluster, &table);
    assert_eq!((after.moves, after.backups.len()), (before.moves, 2));
    // If it were damaged elsewhere, it would have what is lost here, so it is not deleted.
    assert!(!after.left.is_empty(), "no copy is kept");
}

/// Corruption of unflushed records is reported, and causes a flush. So the backup that is filled
/// with it, and the replica that is reopened, serve all intact data; otherwise they would serve
/// nothing.
#[test]
fn damage_before_a_flush_takes_no_region_away() {
    let mut test_cluster = TestCluster::with(2, |_, options| {
        options.scrub_interval = Duration::from_millis(20);
        options.engine.log_memory_size_bytes = 0;
    });
    test_cluster.ends_with_replicas_unlike("all copies stay damaged");
    let table = test_cluster
        .table(2, false)
        .with_durability(Durability::Sync);
    load(&table);
    let (primary, other) = match test_cluster.primary(&table) {
        0 => (0, 1),
        _ => (1, 0),
    };
    test_cluster.stop(other);
    table.put(b"alone", b"one").expect("put");
    let log = data(&test_cluster, primary).join("log");
    let at = find_in_log(&data(&test_cluster, primary), &value_of(7)) + 2000;
    flip(&log, at);
    wait_told(&test_cluster, &table, |reports| reports.primary.is_some());
    is_served(&table, &[key_of(7)], &["the log is corrupted at"]);
    test_cluster.start(other);
    test_cluster.wait_replicated(&table, 2);
    is_served(&table, &[key_of(7)], &["the log is corrupted at"]);
    test_cluster.stop(primary);
    is_served(&table, &[key_of(7)], &["the log is corrupted at"]);
    assert_eq!(table.get(b"alone").expect("served"), Some(b"one".to_vec()));
    test_cluster.stop(other);
    test_cluster.start(other);
    is_served(&table, &[key_of(7)], &["the log is corrupted at"]);
}

/// If unflushed log of the only replica is damaged, nothing is served after a restart, as the lost
/// keys are unknown. The server reports the problem, the byte and the remedy. When the bit is
/// restored and the server restarted, everything is present.
#[test]
fn an_only_log_is_damaged_before_it_is_opened() {
    let mut test_cluster = TestCluster::new(1);
    let table = test_cluster
        .table(1, false)
        .with_durability(Durability::Sync);
    for number in 0..50 {
        table.put(&key_of(number), &value_of(number)).expect("put");
    }
    let log = data(&test_cluster, 0).join("log");
    let at = find_in_log(&data(&test_cluster, 0), &value_of(7)) + 2000;
    test_cluster.stop(0);
    flip(&log, at);
    test_cluster.start(0);
    let since = Instant::now();
    let how = loop {
        let view = farleaf_trial::fleet::view(&test_cluster.coordinator);
        let region = view.regions_of(table.id())[0].clone();
        let primary = region.primary.expect("it had one");
        let report = view.report(region.region, primary);
        if let Some(how) = report.and_then(|it| it.broken.clone()) {
            break how;
        }
        assert!(since.elapsed() < Duration::from_secs(30), "it is not told");
        thread::sleep(Duration::from_millis(50));
    };
    for part in [
        "the log is corrupted at",
        "(byte ",
        &format!(" of {})", log.display()),
        "restore the directory from a copy, or a replica",
        "until then it is not read",
    ] {
        assert!(how.contains(part), "no {part:?} in {how}");
    }
    test_cluster.stop(0);
    flip(&log, at);
    test_cluster.start(0);
    for number in 0..50 {
        let found = table.get(&key_of(number)).expect("it is served");
        assert_eq!(found, Some(value_of(number)));
    }
}
