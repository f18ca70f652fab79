//! Logs without further writes: their ends are written to all disks, and then nothing happens.

use std::thread;
use std::time::{Duration, Instant};

use farleaf_client::{Durability, PersistentTable};
use farleaf_trial::fleet::{epochs, view};

use crate::disk::{Disk, SYNCS, Work, disks};
use crate::test_cluster::TestCluster;

/// Returns the counts of all disks.
fn work(disks: &[Disk]) -> Work {
    disks.iter().map(Disk::work).sum()
}

/// Creates a table on these disks that is written with `memory`, with reserved log segments.
fn table_on(disks: &[Disk]) -> (TestCluster, PersistentTable) {
    let of_servers = disks.to_vec();
    let test_cluster = TestCluster::with(disks.len(), move |index, options| {
        options.storage = of_servers[index].opener();
        // Then all reads are caused by other work.
        options.scrub_interval = Duration::from_hours(1);
    });
    let table = test_cluster.table(disks.len(), false);
    let synced = table.clone().with_durability(Durability::Sync);
    synced.put(b"first", b"value").expect("put");
    wait_idle(disks, Duration::from_secs(3));
    (test_cluster, table.with_durability(Durability::Memory))
}

/// Waits until no disk had an operation for some time; returns the counts.
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

/// Writes with `memory`. Checks that each disk is synced once a second later, and the primary's
/// manifest two seconds after that, with the durable end; then the disks stay idle.
fn check_one_sync(replica_count: usize) {
    let disks = disks(replica_count);
    let (test_cluster, table) = table_on(&disks);
    let primary = test_cluster.primary(&table);
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

/// Puts a hundred records; returns the counts before. `None`: it took so long that the region may
/// have been idle meanwhile.
fn write_at_once(disks: &[Disk], table: &PersistentTable, round: u8) -> Option<Vec<Work>> {
    wait_idle(disks, Duration::from_secs(2));
    let before = disks.iter().map(Disk::work).collect();
    let since = Instant::now();
    for number in 0..100_u8 {
        table.put(&[number], &[round; 100]).expect("put");
    }
    (since.elapsed() < Duration::from_millis(700)).then_some(before)
}

/// Writes with `memory` to a region that then is idle are synced on its disk a second after the
/// last write, by one sync and one of its manifest. From then on the region does no disk I/O, as
/// the mark of a sync does not count as a write.
#[test]
fn an_idle_region_of_one_disk_syncs_once() {
    check_one_sync(1);
}

/// The disks of three replicas each sync an idle region once.
#[test]
fn an_idle_region_of_three_disks_syncs_once() {
    check_one_sync(3);
}

/// After a `sync` write without further writes, the primary's manifest records that it is durable,
/// by one more sync, and then the disk stays idle.
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
    // For the write, and for the manifest.
    assert_eq!(seen, [2, 2, 2]);
}

/// A region that gets a record every 200 ms, and is never idle, is synced on all disks every three
/// seconds, and not more often.
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
    // Two for each of two disks, and records in manifests. A busy machine may be late, but never
    // early.
    let sync_count = work(&disks).sync_count - before;
    assert!((2..=8).contains(&sync_count), "{sync_count} syncs");
}

/// Writes acknowledged with `memory` are written to the disks of all replicas soon after, without a
/// sync for that.
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
        // A sync would write them as well, but a second later.
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

/// If the sync of an idle region fails on the primary's disk, a backup takes over, as after any
/// failed sync, and all data are present.
#[test]
fn a_sync_of_an_idle_region_fails() {
    let disks = disks(3);
    let (test_cluster, table) = table_on(&disks);
    let (primary, before) = (
        test_cluster.primary(&table),
        epochs(&test_cluster.coordinator, &table),
    );
    disks[primary].fail_at(SYNCS);
    put_some(&table);
    // No client writes or reads.
    let since = Instant::now();
    while epochs(&test_cluster.coordinator, &table) == before {
        assert!(since.elapsed() < Duration::from_secs(30), "it goes on");
        thread::sleep(Duration::from_millis(20));
    }
    for number in 0..20_u8 {
        let found = table.get(&[number]).expect("it is served");
        assert_eq!(found, Some(b"value".to_vec()), "{number}");
    }
    assert_ne!(test_cluster.primary(&table), primary);
    disks[primary].repair();
    test_cluster.wait_replicated(&table, 3);
}

/// If there is no space for what an idle region has in memory, its only server reports that. When
/// there is space, it is synced, and nothing is lost.
#[test]
fn an_idle_region_finds_no_space() {
    let disks = disks(1);
    let (mut test_cluster, table) = table_on(&disks);
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
    assert_eq!(view(&test_cluster.coordinator).regions.len(), 1);
    test_cluster.stop(0);
    test_cluster.start(0);
    for number in 0..20_u8 {
        let found = table.get(&[number]).expect("it is served");
        assert_eq!(found, Some(b"value".to_vec()), "{number}");
    }
}
