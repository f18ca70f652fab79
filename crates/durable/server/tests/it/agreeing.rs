//! Backups that do not write what their primary wrote.

use std::time::{Duration, Instant};

use farleaf_client::{Durability, PersistentTable};
use farleaf_cluster::record::PrimaryReport;
use farleaf_lsm::follow::{Mistake, WriteFault};
use farleaf_lsm::place::LogNumber;
use farleaf_trial::fleet;

use crate::bits::{RECORD_COUNT, key_of, load, value_of};
use crate::crew::Crew;

const PATIENCE: Duration = Duration::from_mins(1);

/// What the primary of a table's first region reports as such, when it is as it is to be.
fn reported(
    crew: &Crew,
    table: &PersistentTable,
    is_due: impl Fn(&PrimaryReport) -> bool,
) -> PrimaryReport {
    let since = Instant::now();
    loop {
        let view = fleet::view(&crew.coordinator);
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

/// Promise (RS12): a backup whose log is not what its primary wrote is reported with its server,
/// the segment and both checksums; writes of durability `sync` wait for another copy; it is filled
/// again by itself, and what it was filled with is compared as well; then it is reported no more,
/// is counted still, and serves all records when the primary is gone.
#[test]
fn a_backup_that_differs_is_reported_and_repaired() {
    // Whichever backup has that segment makes it, until it is lifted.
    let fault = WriteFault::always(Mistake::FlipsBit(LogNumber(1)));
    let planted = fault.clone();
    let mut crew = Crew::with(3, move |_, options| {
        options.write_fault = planted.clone();
    });
    let table = crew.table(2, false).with_durability(Durability::Sync);
    let before = fleet::view(&crew.coordinator);
    let before = before.regions_of(table.id())[0].clone();
    load(&table);
    assert!(fault.made_count() > 0, "more than a segment was written");
    let report = reported(&crew, &table, |report| !report.mismatches.is_empty());
    let mismatch = &report.mismatches[0];
    assert_eq!(mismatch.part, "log segment 1");
    assert_ne!(mismatch.primary.checksum, mismatch.backup.checksum);
    assert!(
        before
            .primary
            .is_some_and(|it| it.server != mismatch.server)
    );
    fault.lift();
    reported(&crew, &table, |report| {
        report.mismatches.is_empty() && report.in_sync.len() == 1 && report.mismatch_count > 0
    });
    crew.wait_whole(&table, 2);
    let primary = crew.primary(&table);
    crew.stop(primary);
    for number in 0..RECORD_COUNT {
        let found = table.get(&key_of(number)).expect("it is served");
        assert_eq!(found, Some(value_of(number)));
    }
}
