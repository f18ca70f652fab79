//! Logs to which nobody writes any more: their ends come to all disks, and then nothing happens.

use std::thread;
use std::time::{Duration, Instant};

use farleaf_client::{Durability, PersistentTable};
use farleaf_trial::fleet::{epochs, view};

use crate::crew::Crew;
use crate::disk::{Disk, SYNCS, Work, disks};

/// What all disks were asked for.
fn work(disks: &[Disk]) -> Work {
    disks.iter().map(Disk::work).sum()
}

/// A table of which each disk has everything, and to which is written with `memory`; segments of
/// its log are reserved.
fn table_on(disks: &[Disk]) -> (Crew, PersistentTable) {
    let of_servers = disks.to_vec();
    let crew = Crew::with(disks.len(), move |index, options| {
        options.storage = of_servers[index].opener();
        // Then what is read is read by others.
        options.scrub_interval = Duration::from_hours(1);
    });
    let table = crew.table(disks.len(), false);
    let synced = table.clone().with_durability(Durability::Sync);
    synced.put(b"first", b"value").expect("put");
    wait_idle(disks, Duration::from_secs(3));
    (crew, table.with_durability(Durability::Memory))
}

/// Waits until no disk has been asked for anything for so long; what they had been asked for.
fn wait_idle(disks: &[Disk], idle_time: Duration) -> Work {
    let since = Instant::now();
    let mut seen = (work(disks), Instant::now());
    while seen.1.elapsed() < idle_time {
        assert!(since.elapsed() < Duration::from_secs(30), "{:?}", seen.0);
        thread::sleep(Duration::from_millis(20));
        let now = work(disks);
        if now != seen.0 {
            seen = (now, Instant::now());
        }
    }
    seen.0
}

/// Writes with `memory`, and looks that each disk is synced once a second later, and the primary's
/// manifest, too, two seconds after that, which says so (VL6), and that then they are left alone.
fn check_one_sync(replica_count: usize) {
    let disks = disks(replica_count);
    let (crew, table) = table_on(&disks);
    let primary = crew.primary(&table);
    let mut rounds = 0..20_u8;
    for _ in 0..2 {
        let (round, before) = rounds
            .find_map(|round| Some((round, write_at_once(&disks, &table, round)?)))
            .expect("the machine stands still for a second each time");
        thread::sleep(Duration::from_secs(5));
        let after: Vec<Work> = disks.iter().map(Disk::work).collect();
        for (index, (before, after)) in before.iter().zip(&after).enumerate() {
            let expected = if index == primary { 2 } else { 1 };
            let sync_count = after.sync_count - before.sync_count;
            assert_eq!(sync_count, expected, "{round}, {index}");
            let written_bytes = after.written_bytes - before.written_bytes;
            assert!((10_000..20_000).contains(&written_bytes), "{written_bytes}");
        }
        thread::sleep(Duration::from_secs(3));
        let idle: Vec<Work> = disks.iter().map(Disk::work).collect();
        assert_eq!(idle, after, "{round}");
    }
}

/// Puts a hundred records; what the disks had been asked for before. `None`: it took so long that
/// the region may have been idle meanwhile.
fn write_at_once(disks: &[Disk], table: &PersistentTable, round: u8) -> Option<Vec<Work>> {
    wait_idle(disks, Duration::from_secs(2));
    let before = disks.iter().map(Disk::work).collect();
    let since = Instant::now();
    for number in 0..100_u8 {
        table.put(&[number], &[round; 100]).expect("put");
    }
    (since.elapsed() < Duration::from_millis(700)).then_some(before)
}

/// Promise (RS11): what was written with `memory` to a region that is idle then is synced on its
/// disk, by one sync and one of its manifest, a second after the last write. From then on the
/// region does nothing at all with the disk, as the mark of a sync is no write.
#[test]
fn an_idle_region_of_one_disk_syncs_once() {
    check_one_sync(1);
}

/// Promise (RS11): the same on the disk of each of three replicas.
#[test]
fn an_idle_region_of_three_disks_syncs_once() {
    check_one_sync(3);
}

/// Promise (RS11, VL6): of what was written with `sync`, and is followed by nothing, the primary's
/// manifest says that it is durable, by one sync more, and its disk is left alone then.
#[test]
fn what_is_durable_is_said_when_nothing_follows() {
    let disks = disks(1);
    let (_crew, table) = table_on(&disks);
    let table = table.with_durability(Durability::Sync);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let before = work(&disks).sync_count;
        table.put(b"key", b"value").expect("put");
        let after = wait_idle(&disks, Duration::from_secs(3)).sync_count;
        seen.push(after - before);
    }
    // Of the write, and of the manifest.
    assert_eq!(seen, [2, 2, 2]);
}

/// Promise (RS11): what is written to a region to which a record is written each 200 ms, which is
/// never idle, comes to all disks each three seconds; a disk is not synced more often than that.
#[test]
fn a_busy_region_syncs_each_three_seconds() {
    let disks = disks(2);
    let (_crew, table) = table_on(&disks);
    let before = work(&disks).sync_count;
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(6_500) {
        table.put(b"key", b"value").expect("put");
        thread::sleep(Duration::from_millis(200));
    }
    // Two of each of two disks, and that manifests say so. A machine that is busy may be late, but
    // never early.
    let sync_count = work(&disks).sync_count - before;
    assert!((2..=8).contains(&sync_count), "{sync_count} syncs");
}

/// Promise (RS13): what was acknowledged with `memory` is written to the disks of all replicas soon
/// after, and not synced for that.
#[test]
fn what_is_acknowledged_is_written_soon() {
    let disks = disks(3);
    let (_crew, table) = table_on(&disks);
    let is_written = |before: &[Work]| {
        let mut works = disks.iter().map(Disk::work).zip(before);
        works.all(|(now, before)| now.written_bytes - before.written_bytes >= 10_000)
    };
    let mut shortest = Duration::MAX;
    for round in 0..10_u8 {
        wait_idle(&disks, Duration::from_secs(2));
        let before: Vec<Work> = disks.iter().map(Disk::work).collect();
        for number in 0..100_u8 {
            table.put(&[number], &[round; 100]).expect("put");
        }
        let since = Instant::now();
        while !is_written(&before) {
            assert!(
                since.elapsed() < Duration::from_secs(20),
                "it is not written"
            );
            thread::sleep(Duration::from_millis(1));
        }
        shortest = shortest.min(since.elapsed());
        let synced = disks.iter().map(|disk| disk.work().sync_count);
        let were = before.iter().map(|before| before.sync_count);
        // By a sync it would be written as well, but a second later.
        if shortest < Duration::from_millis(500) && synced.eq(were) {
            return;
        }
    }
    panic!("it was written after {shortest:?} at the earliest");
}

fn put_some(table: &PersistentTable) {
    for number in 0..20_u8 {
        table.put(&[number], b"value").expect("put");
    }
}

/// Promise (RS11, RS8): where the sync of an idle region fails on the primary's disk, a backup
/// takes over, as after any sync that fails; and all is there.
#[test]
fn a_sync_of_an_idle_region_fails() {
    let disks = disks(3);
    let (crew, table) = table_on(&disks);
    let (primary, before) = (crew.primary(&table), epochs(&crew.coordinator, &table));
    disks[primary].fail_at(SYNCS);
    put_some(&table);
    // Nobody writes, or reads.
    let since = Instant::now();
    while epochs(&crew.coordinator, &table) == before {
        assert!(since.elapsed() < Duration::from_secs(30), "it goes on");
        thread::sleep(Duration::from_millis(20));
    }
    for number in 0..20_u8 {
        let found = table.get(&[number]).expect("it is served");
        assert_eq!(found, Some(b"value".to_vec()), "{number}");
    }
    assert_ne!(crew.primary(&table), primary);
    disks[primary].repair();
    crew.wait_whole(&table, 3);
}

/// Promise (RS11, RS10): where there is no room for what an idle region has in memory, its only
/// server says so; when there is room, it is synced there, and nothing is lost.
#[test]
fn an_idle_region_finds_no_room() {
    let disks = disks(1);
    let (mut crew, table) = table_on(&disks);
    put_some(&table);
    disks[0].fill_up();
    thread::sleep(Duration::from_secs(3));
    let refused = table.put(b"other", b"value").expect_err("it is full");
    assert!(
        refused.to_string().contains("server 1 is full"),
        "{refused}"
    );
    disks[0].repair();
    wait_idle(&disks, Duration::from_secs(3));
    assert_eq!(view(&crew.coordinator).regions.len(), 1);
    crew.stop(0);
    crew.start(0);
    for number in 0..20_u8 {
        let found = table.get(&[number]).expect("it is served");
        assert_eq!(found, Some(b"value".to_vec()), "{number}");
    }
}
