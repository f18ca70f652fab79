//! Backups that do not write what their primary wrote.

use std::time::{Duration, Instant};

use farleaf_client::{Durability, PersistentTable};
use farleaf_cluster::record::PrimaryReport;
use farleaf_lsm::follow::{Mistake, WriteFault};
use farleaf_lsm::place::LogNumber;
use farleaf_trial::fleet;

use crate::bits::{RECORD_COUNT, key_of, load, value_of};
use crate::test_cluster::TestCluster;

const PATIENCE: Duration = Duration::from_mins(1);

/// Waits until the primary's report of a table's first region has the expected state, and returns
/// it.
fn reported(
    test_cluster: &TestCluster,
    table: &PersistentTable,
    is_due: impl Fn(&PrimaryReport) -> bool,
) -> PrimaryReport {
    let since = Instant::now();
    loop {
        let view = fleet::view(&test_cluster.coordinator);
        let region = view.regions_of(table.id())[0].clone();
        let report = region.primary.and_then(|it| view.report(region.region, it));
        let report = report.and_then(|it| it.primary.clone());
        if let Some(report) = report.filter(|report| is_due(report)) {
            return report;
        }
        assert!(since.elapsed() < PATIENCE, "it is not reported");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A backup whose log differs from what its primary wrote is reported with its server, the segment
/// and both checksums. Writes of durability `sync` wait for another copy. The backup is filled
/// again automatically, and that is compared as well. Then it is no longer reported, but still
/// counted, and serves all records when the primary is gone.
#[test]
fn a_backup_that_differs_is_reported_and_repaired() {
    // Any backup that has this segment makes the mistake, until the fault is lifted.
    let fault = WriteFault::always(Mistake::FlipsBit(LogNumber(1)));
    let planted = fault.clone();
    let mut test_cluster = TestCluster::with(3, move |_, options| {
        options.write_fault = planted.clone();
    });
    let table = test_cluster
        .table(2, false)
        .with_durability(Durability::Sync);
    let before = fleet::view(&test_cluster.coordinator);
    let before = before.regions_of(table.id())[0].clone();
    load(&table);
    assert!(
        fault.injected_count() > 0,
        "more than a segment was written"
    );
    let report = reported(&test_cluster, &table, |report| {
        !report.mismatches.is_empty()
    });
    let mismatch = &report.mismatches[0];
    assert_eq!(mismatch.part, "log segment 1");
    assert_ne!(mismatch.primary.checksum, mismatch.backup.checksum);
    assert!(
        before
            .primary
            .is_some_and(|it| it.server != mismatch.server)
    );
    fault.lift();
    reported(&test_cluster, &table, |report| {
        report.mismatches.is_empty() && report.in_sync.len() == 1 && report.mismatch_count > 0
    });
    test_cluster.wait_replicated(&table, 2);
    let primary = test_cluster.primary(&table);
    test_cluster.stop(primary);
    for number in 0..RECORD_COUNT {
        let found = table.get(&key_of(number)).expect("it is served");
        assert_eq!(found, Some(value_of(number)));
    }
}
