//! Bits that are not what was written.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_client::{ClientError, Durability, PersistentTable};
use farleaf_cluster::admin;
use farleaf_cluster::ids::ServerId;
use farleaf_cluster::record::WishKind;
use farleaf_trial::fleet::wait_regions;

use crate::crew::Crew;
use crate::disk::disks;

pub(crate) const RECORD_COUNT: u64 = 1500;
pub(crate) const BLOCK_SIZE_BYTES: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn key_of(number: u64) -> Vec<u8> {
    format!("key-{number:06}").into_bytes()
}

pub(crate) fn another_key(number: u64) -> Vec<u8> {
    format!("other-{number:06}").into_bytes()
}

/// 4 KiB that are another record's nowhere.
pub(crate) fn value_of(number: u64) -> Vec<u8> {
    format!("[value {number:06}]").into_bytes().repeat(256)
}

/// More than L0 holds, and than a segment of the log.
pub(crate) fn load(table: &PersistentTable) {
    let records: Vec<_> = (0..RECORD_COUNT)
        .map(|number| (key_of(number), value_of(number)))
        .collect();
    for part in records.chunks(100) {
        table.multi_put(part).expect("put");
    }
}

/// The one directory of data that a server has.
pub(crate) fn data(crew: &Crew, index: usize) -> PathBuf {
    let only = |path: &Path, prefix: &str| {
        let entries = fs::read_dir(path).expect("it is there");
        let mut names = entries.map(|entry| entry.expect("listed").path());
        names.find(|path| {
            let name = path.file_name().and_then(|it| it.to_str());
            name.is_some_and(|name| name.starts_with(prefix))
        })
    };
    let replica = only(&crew.directory(index).join("regions"), "").expect("a replica");
    only(&replica, "data-").expect("a copy")
}

/// Where a value lies in the log, as soon as it does.
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

/// Bits flip on the disk of the primary of three; all that is read is right, whoever reads waits
/// for another replica and gets no error, and in the end the disk of that one serves.
fn is_repaired(flip: impl Fn(&Crew, &crate::disk::Disk, &Path)) {
    let disks = disks(3);
    let of_servers = disks.clone();
    let crew = Crew::with(3, move |index, options| {
        options.storage = of_servers[index].opener();
        options.engine.cache_size_bytes = 1 << 16;
        options.engine.l0_size_bytes_max = 64 << 10;
        options.engine.l0_entry_count_max = 256;
    });
    let table = crew.table(3, false).with_durability(Durability::Sync);
    load(&table);
    let primary = crew.primary(&table);
    let data = data(&crew, primary);
    flip(&crew, &disks[primary], &data);
    let before = farleaf_trial::fleet::view(&crew.coordinator);
    let before = before.regions_of(table.id())[0].primary;
    for number in 0..RECORD_COUNT {
        let found = table.get(&key_of(number)).expect("another replica has it");
        assert_eq!(found, Some(value_of(number)));
    }
    // Found by checksum, repaired from a replica: the one that was damaged is none any more.
    wait_regions(&crew.coordinator, &table, |_, region| {
        region.replicas().all(|it| Some(it) != before)
    });
    crew.wait_whole(&table, 3);
    for number in 0..RECORD_COUNT {
        let found = table.get(&key_of(number)).expect("it is served");
        assert_eq!(found, Some(value_of(number)));
    }
}

/// Promise (RS8): a bit of a record in the log that flips is found by its checksum: nobody reads
/// what was not written, another replica takes over, and the damaged one is filled anew.
#[test]
fn a_record_is_damaged() {
    is_repaired(|_, disk, data| {
        let at = find_in_log(data, &value_of(7));
        disk.flip(data, "log", at + 2000);
    });
}

/// The same with bits in the blocks of trees.
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

/// Promise (RS8): a bit of a backup's log flips, and that backup is made primary before anybody has
/// looked: it does not fill the others with that. One of them serves, and all is read.
#[test]
fn a_damaged_backup_fills_nobody() {
    let crew = Crew::with(3, |_, options| {
        options.scrub_interval = Duration::from_hours(1);
        options.engine.l0_size_bytes_max = 64 << 10;
        options.engine.l0_entry_count_max = 256;
    });
    let table = crew.table(3, false).with_durability(Durability::Sync);
    load(&table);
    crew.wait_whole(&table, 3);
    let from = crew.primary(&table);
    let to = (from + 1) % 3;
    let path = data(&crew, to).join("log");
    let at = find_in_log(&data(&crew, to), &value_of(7)) + 2000;
    let mut options = fs::OpenOptions::new();
    let log = options.read(true).write(true).open(path);
    let log = log.expect("it is there");
    let mut byte = [0];
    log.read_exact_at(&mut byte, at).expect("read");
    log.write_all_at(&[byte[0] ^ 1], at).expect("written");
    let before = farleaf_trial::fleet::view(&crew.coordinator);
    let region = before.regions_of(table.id())[0].clone();
    let server = |index: usize| ServerId(index as u64 + 1);
    let damaged = region.replica_on(server(to));
    let kind = WishKind::Move {
        table: table.id(),
        region: region.region,
        from: server(from),
        to: server(to),
    };
    admin::wish(&crew.coordinator, kind).expect("embedded");
    wait_regions(&crew.coordinator, &table, |_, region| {
        region.replicas().all(|it| Some(it) != damaged)
    });
    crew.wait_whole(&table, 3);
    for number in 0..RECORD_COUNT {
        let found = table.get(&key_of(number)).expect("it is served");
        assert_eq!(found, Some(value_of(number)));
    }
}

/// Promise (RS8): with one replica alone an error says who cannot read, and where; everything else
/// is served, and what is damaged stays on the disk: when that is right again, so is the answer.
#[test]
fn the_only_record_is_damaged() {
    let disks = disks(1);
    let disk = disks[0].clone();
    let crew = Crew::with(1, move |_, options| {
        options.storage = disk.opener();
        // Else it is read from memory, where it is right (VL8).
        options.engine.log_memory_size_bytes = 0;
    });
    let table = crew.table(1, false);
    load(&table);
    let data = data(&crew, 0);
    let at = find_in_log(&data, &value_of(7));
    disks[0].flip(&data, "log", at + 2000);
    for _ in 0..3 {
        let error = table
            .get(&key_of(7))
            .expect_err("it is damaged")
            .to_string();
        assert!(error.contains("could not read"), "{error}");
        assert!(error.contains("log is damaged at"), "{error}");
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

/// Promise (RS8): where the only replica's disk takes no writes, reads go on; writes say what is
/// wrong; and after a start on a disk that is mended all that was acknowledged is there.
#[test]
fn the_only_disk_fails() {
    let disks = disks(1);
    let disk = disks[0].clone();
    let mut crew = Crew::with(1, move |_, options| {
        options.storage = disk.opener();
        options.engine.l0_entry_count_max = 256;
    });
    let table = crew.table(1, false);
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
    crew.stop(0);
    crew.start(0);
    for number in 0..RECORD_COUNT {
        let found = table.get(&key_of(number)).expect("it is served");
        assert_eq!(found, Some(value_of(number)));
    }
    table.put(b"another", b"one").expect("put");
}
