//! Bits that flip on disks.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_client::{ClientError, Durability, PersistentTable};
use farleaf_cluster::admin;
use farleaf_cluster::ids::ServerId;
use farleaf_cluster::record::AdminRequestKind;
use farleaf_trial::fleet::wait_regions;

use crate::disk::disks;
use crate::test_cluster::TestCluster;

pub(crate) const RECORD_COUNT: u64 = 1500;
pub(crate) const BLOCK_SIZE_BYTES: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn key_of(number: u64) -> Vec<u8> {
    format!("key-{number:06}").into_bytes()
}

pub(crate) fn another_key(number: u64) -> Vec<u8> {
    format!("other-{number:06}").into_bytes()
}

/// Returns 4 KiB that occur in no other record.
pub(crate) fn value_of(number: u64) -> Vec<u8> {
    format!("[value {number:06}]").into_bytes().repeat(256)
}

/// Writes more than L0 holds, and more than a log segment.
pub(crate) fn load(table: &PersistentTable) {
    let records: Vec<_> = (0..RECORD_COUNT)
        .map(|number| (key_of(number), value_of(number)))
        .collect();
    for part in records.chunks(100) {
        table.multi_put(part).expect("put");
    }
}

/// Returns the one data directory of a server.
pub(crate) fn data(test_cluster: &TestCluster, index: usize) -> PathBuf {
    let only = |path: &Path, prefix: &str| {
        let entries = fs::read_dir(path).expect("it is there");
        let mut names = entries.map(|entry| entry.expect("listed").path());
        names.find(|path| {
            let name = path.file_name().and_then(|it| it.to_str());
            name.is_some_and(|name| name.starts_with(prefix))
        })
    };
    let replica = only(&test_cluster.directory(index).join("regions"), "").expect("a replica");
    only(&replica, "data-").expect("a copy")
}

/// Waits until a value is in the log, and returns its offset.
pub(crate) fn find_in_log(data: &Path, value: &[u8]) -> u64 {
    let since = Instant::now();
    loop {
        let log = fs::read(data.join("log")).expect("it is there");
        let mut windows = log.windows(64);
        if let Some(at) = windows.position(|window| window == &value[..64]) {
            return at as u64;
        }
        assert!(since.elapsed() < PATIENCE, "it is not in the log");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Flips bits on the disk of the primary of three. All reads are correct; clients wait for another
/// replica and get no error. In the end the repaired disk's server serves.
fn is_repaired(flip: impl Fn(&TestCluster, &crate::disk::Disk, &Path)) {
    let disks = disks(3);
    let of_servers = disks.clone();
    let test_cluster = TestCluster::with(3, move |index, options| {
        options.storage = of_servers[index].opener();
        options.engine.cache_size_bytes = 1 << 16;
        options.engine.l0_size_bytes_max = 64 << 10;
        options.engine.l0_entry_count_max = 256;
    });
    let table = test_cluster
        .table(3, false)
        .with_durability(Durability::Sync);
    load(&table);
    let primary = test_cluster.primary(&table);
    let data = data(&test_cluster, primary);
    flip(&test_cluster, &disks[primary], &data);
    let before = farleaf_trial::fleet::view(&test_cluster.coordinator);
    let before = before.regions_of(table.id())[0].primary;
    for number in 0..RECORD_COUNT {
        let found = table.get(&key_of(number)).expect("another replica has it");
        assert_eq!(found, Some(value_of(number)));
    }
    // Found by checksum and repaired from another replica: the damaged one is no longer a member.
    wait_regions(&test_cluster.coordinator, &table, |_, region| {
        region.replicas().all(|it| Some(it) != before)
    });
    test_cluster.wait_replicated(&table, 3);
    for number in 0..RECORD_COUNT {
        let found = table.get(&key_of(number)).expect("it is served");
        assert_eq!(found, Some(value_of(number)));
    }
}

/// A flipped bit of a record in the log is found by its checksum: no wrong value is read, another
/// replica takes over, and the damaged one is filled again.
#[test]
fn a_record_is_damaged() {
    is_repaired(|_, disk, data| {
        let at = find_in_log(data, &value_of(7));
        disk.flip(data, "log", at + 2000);
    });
}

/// Flipped bits in the blocks of trees are found and repaired in the same way.
#[test]
fn trees_are_damaged() {
    is_repaired(|_, disk, data| {
        let trees = fs::read(data.join("trees")).expect("flushed");
        let blocks = trees.chunks(BLOCK_SIZE_BYTES).enumerate();
        let used = blocks.filter(|(_, block)| block.iter().any(|byte| *byte != 0));
        let mut count = 0;
        for (index, _) in used {
            disk.flip(data, "trees", (index * BLOCK_SIZE_BYTES + 100) as u64);
            count += 1;
        }
        assert!(count > 4, "{count} blocks are used");
    });
}

/// A bit of a backup's log flips, and that backup is promoted before the damage was found: it does
/// not fill the others with it. One of them serves, and everything is read.
#[test]
fn a_damaged_backup_fills_nobody() {
    let test_cluster = TestCluster::with(3, |_, options| {
        options.scrub_interval = Duration::from_hours(1);
        options.engine.l0_size_bytes_max = 64 << 10;
        options.engine.l0_entry_count_max = 256;
    });
    let table = test_cluster
        .table(3, false)
        .with_durability(Durability::Sync);
    load(&table);
    test_cluster.wait_replicated(&table, 3);
    let from = test_cluster.primary(&table);
    let to = (from + 1) % 3;
    let path = data(&test_cluster, to).join("log");
    let at = find_in_log(&data(&test_cluster, to), &value_of(7)) + 2000;
    let mut options = fs::OpenOptions::new();
    let log = options.read(true).write(true).open(path);
    let log = log.expect("it is there");
    let mut byte = [0];
    log.read_exact_at(&mut byte, at).expect("read");
    log.write_all_at(&[byte[0] ^ 1], at).expect("written");
    let before = farleaf_trial::fleet::view(&test_cluster.coordinator);
    let region = before.regions_of(table.id())[0].clone();
    let server = |index: usize| ServerId(index as u64 + 1);
    let damaged = region.replica_on(server(to));
    let kind = AdminRequestKind::Move {
        table: table.id(),
        region: region.region,
        from: server(from),
        to: server(to),
    };
    admin::admin_request(&test_cluster.coordinator, kind).expect("embedded");
    wait_regions(&test_cluster.coordinator, &table, |_, region| {
        region.replicas().all(|it| Some(it) != damaged)
    });
    test_cluster.wait_replicated(&table, 3);
    for number in 0..RECORD_COUNT {
        let found = table.get(&key_of(number)).expect("it is served");
        assert_eq!(found, Some(value_of(number)));
    }
}

/// With only one replica, an error names the server and the place of the damage. Everything else is
/// served, and the damaged data stay on the disk: when they are restored, reads succeed.
#[test]
fn the_only_record_is_damaged() {
    let disks = disks(1);
    let disk = disks[0].clone();
    let test_cluster = TestCluster::with(1, move |_, options| {
        options.storage = disk.opener();
        // Otherwise it is read from memory, where it is intact.
        options.engine.log_memory_size_bytes = 0;
    });
    let table = test_cluster.table(1, false);
    load(&table);
    let data = data(&test_cluster, 0);
    let at = find_in_log(&data, &value_of(7));
    disks[0].flip(&data, "log", at + 2000);
    for _ in 0..3 {
        let error = table
            .get(&key_of(7))
            .expect_err("it is damaged")
            .to_string();
        assert!(error.contains("read failed on"), "{error}");
        assert!(error.contains("log is corrupted at"), "{error}");
        assert!(error.contains("server 1"), "{error}");
        for number in (0..RECORD_COUNT).filter(|number| *number != 7).step_by(50) {
            let found = table.get(&key_of(number)).expect("it is served");
            assert_eq!(found, Some(value_of(number)));
        }
        table.put(b"another", b"one").expect("put");
    }
    disks[0].repair();
    let found = table.get(&key_of(7)).expect("it is served");
    assert_eq!(found, Some(value_of(7)));
}

/// If the only replica's disk accepts no writes, reads continue, and writes return the reason.
/// After a start on the repaired disk everything acknowledged is present.
#[test]
fn the_only_disk_fails() {
    let disks = disks(1);
    let disk = disks[0].clone();
    let mut test_cluster = TestCluster::with(1, move |_, options| {
        options.storage = disk.opener();
        options.engine.l0_entry_count_max = 256;
    });
    let table = test_cluster.table(1, false);
    load(&table);
    disks[0].fail_at(crate::disk::WRITES);
    let hasty = table.clone().with_durability(Durability::Memory);
    // More than L0 holds, so that background work has failed, too.
    let mut failed = None;
    for number in 0..RECORD_COUNT {
        let put = hasty.put(&another_key(number), b"another");
        let is_away = matches!(put, Err(ClientError::NotServed { .. }));
        assert!(!is_away, "{put:?}");
        failed = put.err().or(failed);
    }
    let failed = failed.expect("not all can be written");
    assert!(failed.to_string().contains("a fault: "), "{failed}");
    thread::sleep(Duration::from_millis(100));
    for number in (0..RECORD_COUNT).step_by(50) {
        let found = table.get(&key_of(number)).expect("it is read");
        assert_eq!(found, Some(value_of(number)));
    }
    disks[0].repair();
    test_cluster.stop(0);
    test_cluster.start(0);
    for number in 0..RECORD_COUNT {
        let found = table.get(&key_of(number)).expect("it is served");
        assert_eq!(found, Some(value_of(number)));
    }
    table.put(b"another", b"one").expect("put");
}
