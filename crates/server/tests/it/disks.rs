//! Disks that fail, are full, or are slow, under load.

use std::thread;
use std::time::{Duration, Instant};

use farleaf_client::{Durability, PersistentTable};
use farleaf_cluster::ids::ServerId;
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
    primary_fails(|disk| disk.fail(&Fault::Full { after_bytes: 0 }));
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

/// Promise: a disk that stays broken, of the only server that could have a replica, is tried now
/// and then, and not all the time; what is tried leaves nothing on it; and when it is mended, it is
/// found to be so.
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
    let replicas = std::fs::read_dir(crew.directory(backup).join("regions"));
    // The one that had all, for whoever looks into it, and the one that has all.
    assert_eq!(replicas.expect("it is there").count(), 2);
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
