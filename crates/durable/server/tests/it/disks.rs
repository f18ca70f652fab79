//! Disks that fail, are full, or are slow, under load.

use std::thread;
use std::time::{Duration, Instant};

use farleaf_client::{Durability, PersistentTable};
use farleaf_cluster::admin;
use farleaf_cluster::ids::ServerId;
use farleaf_cluster::plan::{PlanOptions, plan};
use farleaf_lsm::storage::{Fault, Operation};
use farleaf_trial::fleet::{epochs, view, wait_regions};
use farleaf_trial::load::CLIENT_COUNT;
use farleaf_trial::{AllowedErrors, Trial};

use crate::disk::{Disk, SYNCS, WRITES, disks};
use crate::test_cluster::TestCluster;

fn crew_on(disks: &[Disk]) -> TestCluster {
    let of_servers = disks.to_vec();
    TestCluster::with(disks.len(), move |index, options| {
        options.storage = of_servers[index].opener();
    })
}

fn clients(table: &PersistentTable) -> Vec<PersistentTable> {
    vec![table.clone(); CLIENT_COUNT]
}

/// Waits until no region has an in-sync replica on a server.
fn wait_without(test_cluster: &TestCluster, table: &PersistentTable, index: usize) {
    let server = ServerId(index as u64 + 1);
    wait_regions(&test_cluster.coordinator, table, |_, region| {
        region.members().all(|it| it.server != server) && region.members().count() > 1
    });
}

/// Makes a primary's disk fail while clients write durably; the primary is replaced.
fn primary_fails(fail: impl Fn(&Disk)) {
    let disks = disks(3);
    let test_cluster = crew_on(&disks);
    let table = test_cluster
        .table(3, true)
        .with_durability(Durability::Sync);
    let trial = Trial::new(AllowedErrors::Served);
    trial.run(&clients(&table), || {
        trial.wait_done(100);
        let primary = test_cluster.primary(&table);
        fail(&disks[primary]);
        wait_without(&test_cluster, &table, primary);
        trial.wait_done(200);
        disks[primary].repair();
        test_cluster.wait_replicated(&table, 3);
        trial.wait_done(100);
    });
    trial.check_history(&table);
}

/// If the primary's disk accepts no writes any more, a backup takes over with everything
/// acknowledged. When the disk is repaired, the region is fully replicated again (CONTROL-16).
#[test]
fn the_primary_cannot_write() {
    primary_fails(|disk| disk.fail_at(WRITES));
}

/// A primary that can write but not sync is replaced in the same way.
#[test]
fn the_primary_cannot_sync() {
    primary_fails(|disk| disk.fail_at(SYNCS));
}

/// A primary on a full disk is replaced in the same way.
#[test]
fn the_primary_is_full() {
    primary_fails(Disk::fill_up);
}

/// If a backup's disk fails, the primary continues without it, at the same epoch. Another server
/// gets everything, and the failed one is not retried forever (CONTROL-14, CONTROL-16).
#[test]
fn a_backup_fails() {
    let disks = disks(4);
    let test_cluster = crew_on(&disks);
    let table = test_cluster
        .table(3, false)
        .with_durability(Durability::Sync);
    let primary = test_cluster.primary(&table);
    let seen = view(&test_cluster.coordinator);
    let region = seen.regions_of(table.id())[0].clone();
    let backup = region.backups[0].replica.server.0 as usize - 1;
    assert_ne!(backup, primary);
    let trial = Trial::new(AllowedErrors::Served);
    trial.run(&clients(&table), || {
        trial.wait_done(100);
        disks[backup].fail_at(SYNCS);
        wait_without(&test_cluster, &table, backup);
        test_cluster.wait_replicated(&table, 3);
        trial.wait_done(100);
    });
    assert_eq!(epochs(&test_cluster.coordinator, &table), [region.epoch]);
    assert_eq!(trial.unknown_count(), 0, "it was waited for");
    trial.check_history(&table);
}

/// Returns the number of replicas with a directory on a server.
fn directory_count(test_cluster: &TestCluster, index: usize) -> usize {
    let replicas = std::fs::read_dir(test_cluster.directory(index).join("regions"));
    replicas.expect("it is there").count()
}

/// The disk of the only server that could have a replica stays broken: it is retried at intervals,
/// and retries leave nothing on it. When it is repaired, the server gets the replica, and the
/// previous copy is removed, as it is no longer needed (CONTROL-18).
#[test]
fn a_backup_stays_broken() {
    let disks = disks(2);
    let test_cluster = crew_on(&disks);
    let table = test_cluster
        .table(2, false)
        .with_durability(Durability::Sync);
    let region = || view(&test_cluster.coordinator).regions_of(table.id())[0].clone();
    let backup = region().backups[0].replica.server.0 as usize - 1;
    let before = region().next_replica.0;
    disks[backup].fail_at(SYNCS);
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(4) {
        table.put(b"key", b"value").expect("the primary goes on");
        thread::sleep(Duration::from_millis(1));
    }
    let tried_count = region().next_replica.0 - before;
    assert!((1..=6).contains(&tried_count), "{tried_count} tries");
    disks[backup].repair();
    test_cluster.wait_replicated(&table, 2);
    wait_until("the copy from before goes", || {
        directory_count(&test_cluster, backup) == 1
    });
}

/// Waits until a condition holds.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < Duration::from_secs(30), "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns what a region waits for.
fn waits(test_cluster: &TestCluster) -> Vec<String> {
    let waiting = plan(&view(&test_cluster.coordinator), &PlanOptions::default()).waiting;
    waiting.into_iter().map(|waits| waits.what).collect()
}

/// If the only replica's disk is full, writes are refused with the remedy, reads succeed, and
/// nothing is lost. When there is space, writes continue in the same process, at the same epoch.
/// The test includes values larger than a log segment.
#[test]
fn the_only_disk_is_full() {
    for value_size_bytes in [100, 700_000, 3 << 20] {
        let disks = disks(1);
        let test_cluster = crew_on(&disks);
        let table = test_cluster.table(1, false);
        let before = epochs(&test_cluster.coordinator, &table);
        for durability in [Durability::Memory, Durability::Sync] {
            let table = table.clone().with_durability(durability);
            let value = |number: u64| vec![number as u8; value_size_bytes];
            let key = |number: u64| format!("{durability:?}-{number}").into_bytes();
            for number in 0..5 {
                table
                    .put(&key(number), &value(number))
                    .expect("there is room");
            }
            disks[0].fill_up();
            let mut refused = None;
            let mut unknown = Vec::new();
            let mut acknowledged = 5;
            for number in 5..100_000 {
                match table.put(&key(number), &value(number)) {
                    Ok(()) => acknowledged = number + 1,
                    Err(error) if error.is_outcome_unknown() => unknown.push(number),
                    Err(error) => {
                        refused = Some(error.to_string());
                        break;
                    }
                }
            }
            let refused = refused.expect("no room is left");
            for part in ["server 1 is full", "free space on it", "nothing was done"] {
                assert!(refused.contains(part), "{refused}");
            }
            assert!(
                unknown.len() <= 1,
                "{unknown:?}: the others were told first"
            );
            let is_there = |number: u64| {
                let found = table.get(&key(number)).expect("reads go on");
                found == Some(value(number))
            };
            let are_there = || (0..acknowledged).all(|it| is_there(it) || unknown.contains(&it));
            assert!(are_there());
            disks[0].repair();
            wait_until("writes go on", || table.put(&key(5), &value(5)).is_ok());
            table
                .put(&key(1 << 20), &value(5))
                .expect("and so do others");
            assert!(are_there());
        }
        assert_eq!(epochs(&test_cluster.coordinator, &table), before);
    }
}

/// Everything acknowledged before, during and after a full only disk is present after a restart. A
/// server that is started on the full disk reports that it waits for space, with the remedy, and
/// serves when there is some.
#[test]
fn a_server_starts_on_a_full_disk() {
    let disks = disks(1);
    let mut test_cluster = crew_on(&disks);
    let table = test_cluster
        .table(1, true)
        .with_durability(Durability::Sync);
    let trial = Trial::new(AllowedErrors::Troubled);
    trial.run(&clients(&table), || {
        for _ in 0..2 {
            trial.wait_done(200);
            disks[0].fill_up();
            thread::sleep(Duration::from_millis(700));
            disks[0].repair();
        }
        trial.wait_done(100);
        disks[0].fill_up();
        test_cluster.stop(0);
        test_cluster.start(0);
        let text = "free space on the disk of server 1, which is full; free space on it";
        wait_until("it says what it waits for", || {
            let waits = waits(&test_cluster);
            waits.len() == 3 && waits.iter().all(|it| it.contains(text))
        });
        disks[0].repair();
        trial.wait_done(200);
        assert_eq!(waits(&test_cluster), [""; 0]);
    });
    trial.check_history(&table);
}

/// If a backup's disk is full, the region continues without it at the same epoch, reports what it
/// waits for, and does not retry that server. The backup's copy is removed, as two members have
/// everything. When there is space, the server gets a replica again (CONTROL-22).
#[test]
fn a_backup_is_full() {
    let disks = disks(3);
    let test_cluster = crew_on(&disks);
    let table = test_cluster
        .table(3, false)
        .with_durability(Durability::Sync);
    let region = || view(&test_cluster.coordinator).regions_of(table.id())[0].clone();
    let before = region();
    let backup = before.backups[0].replica.server.0 as usize - 1;
    let trial = Trial::new(AllowedErrors::Served);
    trial.run(&clients(&table), || {
        trial.wait_done(100);
        disks[backup].fill_up();
        wait_without(&test_cluster, &table, backup);
        let next_replica = region().next_replica;
        wait_until("what it had goes", || {
            directory_count(&test_cluster, backup) == 0
        });
        thread::sleep(Duration::from_secs(2));
        assert_eq!(region().next_replica, next_replica, "it is not tried again");
        assert_eq!(
            waits(&test_cluster),
            ["a server with free space for another backup"]
        );
        trial.wait_done(100);
        disks[backup].repair();
        test_cluster.wait_replicated(&table, 3);
        trial.wait_done(100);
    });
    assert_eq!(epochs(&test_cluster.coordinator, &table), [before.epoch]);
    assert_eq!(trial.unknown_count(), 0, "it was waited for");
    assert_eq!(directory_count(&test_cluster, backup), 1);
    trial.check_history(&table);
}

/// The copy of a backup that broke stays as long as only the primary has everything (CONTROL-18).
#[test]
fn a_copy_stays_that_may_be_needed() {
    let disks = disks(2);
    let test_cluster = crew_on(&disks);
    let table = test_cluster
        .table(2, false)
        .with_durability(Durability::Sync);
    let region = || view(&test_cluster.coordinator).regions_of(table.id())[0].clone();
    let backup = region().backups[0].replica.server.0 as usize - 1;
    disks[backup].fill_up();
    wait_until("the backup leaves", || {
        table.put(b"key", b"value").expect("the primary goes on");
        region().backups.is_empty()
    });
    thread::sleep(Duration::from_secs(1));
    assert_eq!(directory_count(&test_cluster, backup), 1);
    disks[backup].repair();
    test_cluster.wait_replicated(&table, 2);
    let number = region().backups[0].replica.number.0;
    let name = format!("{}-{number}", region().region.0);
    let own = test_cluster.directory(backup).join("regions").join(name);
    wait_until("now it goes", || {
        directory_count(&test_cluster, backup) == 1 && own.exists()
    });
}

/// A slow disk makes writes slow, and nothing else: there are no errors, and no replica is
/// replaced.
#[test]
fn the_disks_are_slow() {
    let disks = disks(3);
    let test_cluster = crew_on(&disks);
    let table = test_cluster
        .table(3, true)
        .with_durability(Durability::Sync);
    let before = epochs(&test_cluster.coordinator, &table);
    let trial = Trial::new(AllowedErrors::Served);
    trial.run(&clients(&table), || {
        trial.wait_done(50);
        for disk in &disks {
            disk.fail(&Fault::Slow {
                operations: &[Operation::Sync, Operation::Write],
                each: Duration::from_millis(60),
            });
        }
        thread::sleep(Duration::from_secs(2));
        trial.wait_done(10);
    });
    assert_eq!(epochs(&test_cluster.coordinator, &table), before);
    assert_eq!(trial.unknown_count(), 0);
    test_cluster.wait_replicated(&table, 3);
    trial.check_history(&table);
}

/// If all disks are full at once, nothing acknowledged is lost, even if it was only in memory. When
/// there is space again, the region is fully replicated, without restarts.
#[test]
fn all_disks_are_full() {
    for durability in [Durability::Memory, Durability::Sync] {
        let disks = disks(3);
        let test_cluster = crew_on(&disks);
        let table = test_cluster.table(3, true).with_durability(durability);
        let trial = Trial::new(AllowedErrors::Troubled);
        trial.run(&clients(&table), || {
            for _ in 0..2 {
                trial.wait_done(200);
                disks.iter().for_each(Disk::fill_up);
                thread::sleep(Duration::from_millis(1500));
                disks.iter().for_each(Disk::repair);
                test_cluster.wait_replicated(&table, 3);
            }
            trial.wait_done(100);
        });
        trial.check_history(&table);
    }
}

/// The primary is permanently lost while the disk of its only backup is full. The backup waits for
/// space, as no other replica has everything, and continues when there is some. The lost primary
/// does not count as complete, although it is still a member (CONTROL-13).
#[test]
fn the_last_one_waits_for_space() {
    let disks = disks(2);
    let mut test_cluster = crew_on(&disks);
    let table = test_cluster.table(2, false);
    table.put(b"key", b"value").expect("put");
    let primary = test_cluster.primary(&table);
    let backup = 1 - primary;
    disks[backup].fill_up();
    test_cluster.stop(primary);
    thread::sleep(Duration::from_secs(2));
    disks[backup].repair();
    wait_until("it goes on", || table.get(b"key").is_ok());
    assert_eq!(table.get(b"key").expect("read"), Some(b"value".to_vec()));
}

/// After an outage of all, a member with a full disk does not block a region of which another one,
/// with space, has everything (CONTROL-18).
#[test]
fn another_goes_on_if_the_newest_is_on_a_full_disk() {
    let disks = disks(2);
    let mut test_cluster = crew_on(&disks);
    let table = test_cluster
        .table(2, false)
        .with_durability(Durability::Sync);
    table.put(b"key", b"value").expect("put");
    let region = view(&test_cluster.coordinator).regions_of(table.id())[0].clone();
    let first = region.replicas().min_by_key(|it| it.number);
    let first = first.expect("there are two").server.0 as usize - 1;
    thread::scope(|scope| {
        for server in &mut test_cluster.servers {
            let server = server.take().expect("it runs");
            scope.spawn(move || server.stop());
        }
    });
    disks[first].fill_up();
    test_cluster.start(0);
    test_cluster.start(1);
    wait_until("it goes on", || table.get(b"key").is_ok());
    assert_eq!(table.get(b"key").expect("read"), Some(b"value".to_vec()));
}

/// The members of a region find their disks full, one after the other, while the record cannot be
/// changed, and the primary's server is restarted. The region reports the disks that it waits for.
/// When all have space, the region continues by itself, with all durable data, without other
/// restarts (CONTROL-16, CONTROL-18).
#[test]
fn all_go_on_when_there_is_space() {
    const MASTER: usize = 3;
    let disks = disks(4);
    let of_servers = disks.clone();
    let mut test_cluster = TestCluster::with(4, move |index, options| {
        options.is_candidate = index == MASTER;
        options.storage = of_servers[index].opener();
    });
    let master = ServerId(MASTER as u64 + 1);
    admin::set_drain(&test_cluster.coordinator, master, true).expect("embedded");
    let table = test_cluster
        .table(3, false)
        .with_durability(Durability::Sync);
    let key = |number: u64| format!("key-{number}").into_bytes();
    for number in 0..200 {
        table.put(&key(number), b"value").expect("there is room");
    }
    let coordinator = test_cluster.coordinator.clone();
    let region = || view(&coordinator).regions_of(table.id())[0].clone();
    let before = region();
    let primary = before.primary.expect("it is served").server;
    let index = primary.0 as usize - 1;
    test_cluster.stop(MASTER);
    disks.iter().for_each(Disk::fill_up);
    let writer = table.clone();
    // The outcome of this write is unknown.
    let writing = thread::spawn(move || drop(writer.put(b"other", b"value")));
    wait_until("the backups break", || {
        let seen = view(&test_cluster.coordinator);
        let is_broken = |replica| {
            let report = seen.report(before.region, replica);
            report.is_some_and(|it| it.broken.is_some() && it.lacked_space)
        };
        before.backups.iter().all(|it| is_broken(it.replica))
    });
    test_cluster.stop(index);
    assert_eq!(region(), before, "nobody can write it");
    test_cluster.start(index);
    test_cluster.start(MASTER);
    let names_all = |waits: &[String]| {
        let message = |server| format!("free space on the disk of {server}, which is full");
        let mut backups = before.backups.iter();
        backups.all(|it| waits.concat().contains(&message(it.replica.server)))
    };
    wait_until("it says what it waits for", || {
        names_all(&waits(&test_cluster))
    });
    thread::sleep(Duration::from_secs(1));
    assert!(
        names_all(&waits(&test_cluster)),
        "{:?}",
        waits(&test_cluster)
    );
    disks.iter().for_each(Disk::repair);
    test_cluster.wait_replicated(&table, 3);
    for number in 0..200 {
        let found = table.get(&key(number)).expect("it is served");
        assert_eq!(found, Some(b"value".to_vec()), "{number}");
    }
    table.put(&key(0), b"later").expect("writes go on");
    assert!(writing.join().is_ok());
    let after = region();
    for old in before.backups.iter().map(|it| it.replica) {
        let new = after.replica_on(old.server).expect("it is a member still");
        assert_eq!((new.number, new.life), (old.number, old.life));
    }
}
