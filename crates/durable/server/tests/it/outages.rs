//! Coordinators that are away, and clusters that are started from their disks.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use farleaf_client::Durability;
use farleaf_cluster::clock::SystemClock;
use farleaf_cluster::coordinator::{Embedded, SharedCoordinator};
use farleaf_lsm::storage::DirectoryStorage;
use farleaf_trial::fleet::{epochs, terms};
use farleaf_trial::load::CLIENT_COUNT;
use farleaf_trial::{Course, Outage, Trial};

use crate::crew::Crew;

/// Promise (CP6, CP10): while the coordinator is away for longer than a lease, nothing is
/// acknowledged once leases may be over; when it is back, the same servers go on at the same
/// epochs, and nothing is lost.
#[test]
fn the_coordinator_is_away() {
    let outage = Outage::new(Embedded::default());
    let shared = SharedCoordinator::new(outage.clone(), "a trial's");
    let crew = Crew::over(shared, 3, |_, _| {});
    let table = crew.table(3, true);
    let before = epochs(&crew.coordinator, &table);
    let trial = Trial::new(Course::Served);
    let (mut over_ns, mut back_ns) = (0, 0);
    trial.run(&vec![table.clone(); CLIENT_COUNT], || {
        trial.wait_done(100);
        outage.away(|| {
            thread::sleep(terms().time_to_live);
            over_ns = trial.history.now_ns();
            thread::sleep(Duration::from_millis(1500));
            back_ns = trial.history.now_ns();
        });
        trial.wait_done(100);
    });
    let between = trial.history.acknowledged(over_ns..back_ns);
    assert_eq!(between, [], "their leases may have been over");
    assert_eq!(epochs(&crew.coordinator, &table), before);
    crew.wait_whole(&table, 3);
    assert_eq!(epochs(&crew.coordinator, &table), before);
    trial.judge(&table);
}

/// A thread that was asking a server which had ended may have the one before for a moment longer
/// than its own server is there.
fn coordinator_in(path: &Path) -> SharedCoordinator {
    let since = Instant::now();
    loop {
        let storage = DirectoryStorage::open(path).expect("a directory");
        match Embedded::open(Arc::new(storage), Arc::new(SystemClock)) {
            Ok(embedded) => return SharedCoordinator::new(embedded, "a directory"),
            Err(error) => assert!(since.elapsed() < Duration::from_secs(10), "{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Promise (CJ1, CP18, RH5): coordinator and servers are started from their directories, and
/// everything that was durable is there, in the table that there was.
#[test]
fn all_start_from_their_disks() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let mut crew = Crew::over(coordinator_in(scratch.path()), 3, |_, _| {});
    drop(crew.table(3, true));
    for round in 0..2_u64 {
        let table = crew.client().open_table("t").expect("it is there");
        let table = table.with_durability(Durability::Sync);
        crew.wait_whole(&table, 3);
        for number in 0..100_u64 {
            let value = format!("{round}-{number}");
            table
                .put(format!("{number:02}").as_bytes(), value.as_bytes())
                .expect("put");
        }
        drop(table);
        for index in 0..3 {
            crew.stop(index);
        }
        // Its directory is locked as long as somebody has it.
        crew.coordinator = SharedCoordinator::new(Embedded::default(), "none");
        crew.coordinator = coordinator_in(scratch.path());
        for index in 0..3 {
            crew.start(index);
        }
        let table = crew.client().open_table("t").expect("it is there");
        for number in 0..100_u64 {
            let found = table.get(format!("{number:02}").as_bytes()).expect("got");
            assert_eq!(found, Some(format!("{round}-{number}").into_bytes()));
        }
    }
}
