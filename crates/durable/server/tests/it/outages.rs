//! Coordinators that are unavailable, and clusters that are started from their disks.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use farleaf_base::clock::SystemClock;
use farleaf_client::Durability;
use farleaf_cluster::coordinator::{Embedded, SharedCoordinator};
use farleaf_lsm::storage::DirectoryStorage;
use farleaf_trial::fleet::{epochs, terms};
use farleaf_trial::load::CLIENT_COUNT;
use farleaf_trial::{AllowedErrors, CuttableCoordinator, Trial};

use crate::test_cluster::TestCluster;

/// While the coordinator is unavailable for longer than a lease, nothing is acknowledged once
/// leases may be over. When it is back, the same servers continue at the same epochs, and nothing
/// is lost (CONTROL-6, CONTROL-10).
#[test]
fn the_coordinator_is_away() {
    let outage = CuttableCoordinator::new(Embedded::default());
    let shared = SharedCoordinator::new(outage.clone(), "a trial's");
    let test_cluster = TestCluster::over(shared, 3, |_, _| {});
    let table = test_cluster.table(3, true);
    let before = epochs(&test_cluster.coordinator, &table);
    let trial = Trial::new(AllowedErrors::Served);
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
    assert_eq!(epochs(&test_cluster.coordinator, &table), before);
    test_cluster.wait_replicated(&table, 3);
    assert_eq!(epochs(&test_cluster.coordinator, &table), before);
    trial.check_history(&table);
}

/// Opens a coordinator with retries: a thread that used a stopped server may hold the previous one
/// for a moment longer.
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

/// Coordinator and servers are started from their directories, and everything durable is present,
/// in the same table (CONTROL-18).
#[test]
fn all_start_from_their_disks() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let mut test_cluster = TestCluster::over(coordinator_in(scratch.path()), 3, |_, _| {});
    drop(test_cluster.table(3, true));
    for round in 0..2_u64 {
        let table = test_cluster.client().open_table("t").expect("it is there");
        let table = table.with_durability(Durability::Sync);
        test_cluster.wait_replicated(&table, 3);
        for number in 0..100_u64 {
            let value = format!("{round}-{number}");
            table
                .put(format!("{number:02}").as_bytes(), value.as_bytes())
                .expect("put");
        }
        drop(table);
        for index in 0..3 {
            test_cluster.stop(index);
        }
        // Its directory is locked as long as a handle exists.
        test_cluster.coordinator = SharedCoordinator::new(Embedded::default(), "none");
        test_cluster.coordinator = coordinator_in(scratch.path());
        for index in 0..3 {
            test_cluster.start(index);
        }
        let table = test_cluster.client().open_table("t").expect("it is there");
        for number in 0..100_u64 {
            let found = table.get(format!("{number:02}").as_bytes()).expect("got");
            assert_eq!(found, Some(format!("{round}-{number}").into_bytes()));
        }
    }
}
