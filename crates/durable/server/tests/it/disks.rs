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
use farleaf_trial::{Course, Trial};

use crate::crew::Crew;
use crate::disk::{Disk, SYNCS, WRITES, disks};

fn crew_on(disks: &[Disk]) -> Crew {
    let of_servers = disks.to_vec();
    Crew::with(disks.len(), move |index, options| {
        options.storage = of_servers[index].opener();
    })
}

fn clients(table: &PersistentTable) -> Vec<PersistentTable> {
    vec![table.clone(); CLIENT_COUNT]
}

/// Waits until no region has a replica in sync on a server.
fn wait_without(crew: &Crew, table: &PersistentTable, index: usize) {
    let server = ServerId(index as u64 + 1);
    wait_regions(&crew.coordinator, table, |_, region| {
        region.members().all(|it| it.server != server) && region.members().count() > 1
    });
}

/// A primary's disk fails while clients write durably, and is replaced.
fn primary_fails(fail: impl Fn(&Disk)) {
    let disks = disks(3);
    let crew = crew_on(&disks);
    let table = crew.table(3, true).with_durability(Durability::Sync);
    let trial = Trial::new(Course::Served);
    trial.run(&clients(&table), || {
        trial.wait_done(100);
        let primary = crew.primary(&table);
        fail(&disks[primary]);
        wait_without(&crew, &table, primary);
        trial.wait_done(200);
        disks[primary].repair();
        crew.wait_whole(&table, 3);
        trial.wait_done(100);
    });
    trial.judge(&table);
}

/// Promise (CP16, RS8): where the primary's disk takes no writes any more, a backup takes over, and
/// what was acknowledged is there; and when it is mended, all is whole again.
#[test]
fn the_primary_cannot_write() {
    primary_fails(|disk| disk.fail_at(WRITES));
}

/// The same where it can write and not sync.
#[test]
fn the_primary_cannot_sync() {
    primary_fails(|disk| disk.fail_at(SYNCS));
}

/// The same where it is full.
#[test]
fn the_primary_is_full() {
    primary_fails(Disk::fill_up);
}

/// Promise (CP14, CP16): where a backup's disk fails, the primary goes on without it, at its epoch;
/// another server's gets all, and the one that has failed is not tried for ever.
#[test]
fn a_backup_fails() {
    let disks = disks(4);
    let crew = crew_on(&disks);
    let table = crew.table(3, false).with_durability(Durability::Sync);
    let primary = crew.primary(&table);
    let seen = view(&crew.coordinator);
    let region = seen.regions_of(table.id())[0].clone();
    let backup = region.backups[0].replica.server.0 as usize - 1;
    assert_ne!(backup, primary);
    let trial = Trial::new(Course::Served);
    trial.run(&clients(&table), || {
        trial.wait_done(100);
        disks[backup].fail_at(SYNCS);
        wait_without(&crew, &table, backup);
        crew.wait_whole(&table, 3);
        trial.wait_done(100);
    });
    assert_eq!(epochs(&crew.coordinator, &table), [region.epoch]);
    assert_eq!(trial.unknown_count(), 0, "it was waited for");
    trial.judge(&table);
}

/// How many replicas have a directory on a server.
fn directory_count(crew: &Crew, index: usize) -> usize {
    let replicas = std::fs::read_dir(crew.directory(index).join("regions"));
    replicas.expect("it is there").count()
}

/// Promise: a disk that stays broken, of the only server that could have a replica, is tried now
/// and then, and not all the time; what is tried leaves nothing on it; and when it is mended, it is
/// found to be so, and the copy from before goes, as nobody needs it then (CP18).
#[test]
fn a_backup_stays_broken() {
    let disks = disks(2);
    let crew = crew_on(&disks);
    let table = crew.table(2, false).with_durability(Durability::Sync);
    let region = || view(&crew.coordinator).regions_of(table.id())[0].clone();
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
    crew.wait_whole(&table, 2);
    wait_until("the copy from before goes", || {
        directory_count(&crew, backup) == 1
    });
}

/// Waits until something is so.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < Duration::from_secs(30), "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// What a region's waits say.
fn waits(crew: &Crew) -> Vec<String> {
    let waiting = plan(&view(&crew.coordinator), &PlanOptions::default()).waiting;
    waiting.into_iter().map(|waits| waits.what).collect()
}

/// Promise (RS10): where the only replica's disk is full, writes are refused with what to do, reads
/// are answered, and nothing is lost; when there is room, writes go on: in the same process, at the
/// same epoch. Also values that are larger than a segment of the log.
#[test]
fn the_only_disk_is_full() {
    for value_size_bytes in [100, 700_000, 3 << 20] {
        let disks = disks(1);
        let crew = crew_on(&disks);
        let table = crew.table(1, false);
        let before = epochs(&crew.coordinator, &table);
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
            for told in ["server 1 is full", "make room on it", "nothing was done"] {
                assert!(refused.contains(told), "{refused}");
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
        assert_eq!(epochs(&crew.coordinator, &table), before);
    }
}

/// Promise (RS10): what was acknowledged before, while, and after the only disk was full is there
/// when the server is started again; and one that is started while its disk is full says that it
/// waits for room, and what to do, and serves when there is some.
#[test]
fn a_server_starts_on_a_full_disk() {
    let disks = disks(1);
    let mut crew = crew_on(&disks);
    let table = crew.table(1, true).with_durability(Durability::Sync);
    let trial = Trial::new(Course::Troubled);
    trial.run(&clients(&table), || {
        for _ in 0..2 {
            trial.wait_done(200);
            disks[0].fill_up();
            thread::sleep(Duration::from_millis(700));
            disks[0].repair();
        }
        trial.wait_done(100);
        disks[0].fill_up();
        crew.stop(0);
        crew.start(0);
        let room = "room on the disk of server 1, which is full: make room on it";
        wait_until("it says what it waits for", || {
            let waits = waits(&crew);
            waits.len() == 3 && waits.iter().all(|it| it.contains(room))
        });
        disks[0].repair();
        trial.wait_done(200);
        assert_eq!(waits(&crew), [""; 0]);
    });
    trial.judge(&table);
}

/// Promise (CP22, RS10): where a backup's disk is full, the region goes on without it at the same
/// epoch, says for what it waits, and does not try that server again; what it had goes from the
/// disk, as two members have all; and when there is room, it gets a replica again.
#[test]
fn a_backup_is_full() {
    let disks = disks(3);
    let crew = crew_on(&disks);
    let table = crew.table(3, false).with_durability(Durability::Sync);
    let region = || view(&crew.coordinator).regions_of(table.id())[0].clone();
    let before = region();
    let backup = before.backups[0].replica.server.0 as usize - 1;
    let trial = Trial::new(Course::Served);
    trial.run(&clients(&table), || {
        trial.wait_done(100);
        disks[backup].fill_up();
        wait_without(&crew, &table, backup);
        let next_replica = region().next_replica;
        wait_until("what it had goes", || directory_count(&crew, backup) == 0);
        thread::sleep(Duration::from_secs(2));
        assert_eq!(region().next_replica, next_replica, "it is not tried again");
        assert_eq!(waits(&crew), ["a server with room for another backup"]);
        trial.wait_done(100);
        disks[backup].repair();
        crew.wait_whole(&table, 3);
        trial.wait_done(100);
    });
    assert_eq!(epochs(&crew.coordinator, &table), [before.epoch]);
    assert_eq!(trial.unknown_count(), 0, "it was waited for");
    assert_eq!(directory_count(&crew, backup), 1);
    trial.judge(&table);
}

/// Promise (CP18): the copy of a backup that broke stays as long as the primary alone has
/// everything.
#[test]
fn a_copy_stays_that_may_be_needed() {
    let disks = disks(2);
    let crew = crew_on(&disks);
    let table = crew.table(2, false).with_durability(Durability::Sync);
    let region = || view(&crew.coordinator).regions_of(table.id())[0].clone();
    let backup = region().backups[0].replica.server.0 as usize - 1;
    disks[backup].fill_up();
    wait_until("the backup leaves", || {
        table.put(b"key", b"value").expect("the primary goes on");
        region().backups.is_empty()
    });
    thread::sleep(Duration::from_secs(1));
    assert_eq!(directory_count(&crew, backup), 1);
    disks[backup].repair();
    crew.wait_whole(&table, 2);
    let number = region().backups[0].replica.number.0;
    let name = format!("{}-{number}", region().region.0);
    let own = crew.directory(backup).join("regions").join(name);
    wait_until("now it goes", || {
        directory_count(&crew, backup) == 1 && own.exists()
    });
}

/// Promise: a disk that is slow makes writes slow, and nothing else: no errors, and nobody is
/// replaced.
#[test]
fn the_disks_are_slow() {
    let disks = disks(3);
    let crew = crew_on(&disks);
    let table = crew.table(3, true).with_durability(Durability::Sync);
    let before = epochs(&crew.coordinator, &table);
    let trial = Trial::new(Course::Served);
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
    assert_eq!(epochs(&crew.coordinator, &table), before);
    assert_eq!(trial.unknown_count(), 0);
    crew.wait_whole(&table, 3);
    trial.judge(&table);
}

/// Promise (RS10): where all disks are full at once, nothing that was acknowledged is lost, also
/// what is in memory alone; and when there is room again all is whole, and nobody was started anew.
#[test]
fn all_disks_are_full() {
    for durability in [Durability::Memory, Durability::Sync] {
        let disks = disks(3);
        let crew = crew_on(&disks);
        let table = crew.table(3, true).with_durability(durability);
        let trial = Trial::new(Course::Troubled);
        trial.run(&clients(&table), || {
            for _ in 0..2 {
                trial.wait_done(200);
                disks.iter().for_each(Disk::fill_up);
                thread::sleep(Duration::from_millis(1500));
                disks.iter().for_each(Disk::repair);
                crew.wait_whole(&table, 3);
            }
            trial.wait_done(100);
        });
        trial.judge(&table);
    }
}

/// Promise (RS10, CP13): the primary is lost for good while the disk of its only backup is full:
/// the backup waits for room, as nobody else has everything, and goes on when there is some. The
/// lost primary is no other that has everything, although it is a member still.
#[test]
fn the_last_one_waits_for_room() {
    let disks = disks(2);
    let mut crew = crew_on(&disks);
    let table = crew.table(2, false);
    table.put(b"key", b"value").expect("put");
    let primary = crew.primary(&table);
    let backup = 1 - primary;
    disks[backup].fill_up();
    crew.stop(primary);
    thread::sleep(Duration::from_secs(2));
    disks[backup].repair();
    wait_until("it goes on", || table.get(b"key").is_ok());
    assert_eq!(table.get(b"key").expect("read"), Some(b"value".to_vec()));
}

/// Promise (RS10, CP18): after an outage of all, one whose disk is full does not hold up a region
/// of which another one, that has room, has everything.
#[test]
fn another_goes_on_if_the_newest_is_on_a_full_disk() {
    let disks = disks(2);
    let mut crew = crew_on(&disks);
    let table = crew.table(2, false).with_durability(Durability::Sync);
    table.put(b"key", b"value").expect("put");
    let region = view(&crew.coordinator).regions_of(table.id())[0].clone();
    let first = region.replicas().min_by_key(|it| it.number);
    let first = first.expect("there are two").server.0 as usize - 1;
    thread::scope(|scope| {
        for server in &mut crew.servers {
            let server = server.take().expect("it runs");
            scope.spawn(move || server.stop());
        }
    });
    disks[first].fill_up();
    crew.start(0);
    crew.start(1);
    wait_until("it goes on", || table.get(b"key").is_ok());
    assert_eq!(table.get(b"key").expect("read"), Some(b"value".to_vec()));
}

/// Promise (CP16, CP18, RS10): the members of a region find no room, one after the other, while
/// nobody can write that into the record, and the primary's server is started again. The region
/// says whose room it waits for, and goes on by itself when there is some on all disks: with all
/// that was durable, and no other server is started again.
#[test]
fn all_go_on_when_there_is_room() {
    const MASTER: usize = 3;
    let disks = disks(4);
    let of_servers = disks.clone();
    let mut crew = Crew::with(4, move |index, options| {
        options.is_candidate = index == MASTER;
        options.storage = of_servers[index].opener();
    });
    let master = ServerId(MASTER as u64 + 1);
    admin::set_drain(&crew.coordinator, master, true).expect("embedded");
    let table = crew.table(3, false).with_durability(Durability::Sync);
    let key = |number: u64| format!("key-{number}").into_bytes();
    for number in 0..200 {
        table.put(&key(number), b"value").expect("there is room");
    }
    let coordinator = crew.coordinator.clone();
    let region = || view(&coordinator).regions_of(table.id())[0].clone();
    let before = region();
    let primary = before.primary.expect("it is served").server;
    let index = primary.0 as usize - 1;
    crew.stop(MASTER);
    disks.iter().for_each(Disk::fill_up);
    let writer = table.clone();
    // What becomes of it nobody knows.
    let writing = thread::spawn(move || drop(writer.put(b"other", b"value")));
    wait_until("the backups break", || {
        let seen = view(&crew.coordinator);
        let is_broken = |replica| {
            let report = seen.report(before.region, replica);
            report.is_some_and(|it| it.broken.is_some() && it.lacked_room)
        };
        before.backups.iter().all(|it| is_broken(it.replica))
    });
    crew.stop(index);
    assert_eq!(region(), before, "nobody can write it");
    crew.start(index);
    crew.start(MASTER);
    let names_all = |waits: &[String]| {
        let told = |server| format!("room on the disk of {server}, which is full");
        let mut backups = before.backups.iter();
        backups.all(|it| waits.concat().contains(&told(it.replica.server)))
    };
    wait_until("it says what it waits for", || names_all(&waits(&crew)));
    thread::sleep(Duration::from_secs(1));
    assert!(names_all(&waits(&crew)), "{:?}", waits(&crew));
    disks.iter().for_each(Disk::repair);
    crew.wait_whole(&table, 3);
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
