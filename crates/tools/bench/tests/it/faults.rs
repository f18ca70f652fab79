//! Tests that a faulty store is detected.

use std::cell::RefCell;

use farleaf::LayerKind;
use farleaf_bench::dataset::Dataset;
use farleaf_bench::report::RunReport;
use farleaf_bench::runner::{
    FabricKind, LoadedStore, ProgressSink, RunConfig, Silent, generate_keys,
};
use farleaf_bench::workload::WorkloadLetter;

use crate::small;

const RECORD_COUNT: u64 = 1_000;

/// Sink that remembers the descriptions of faults.
#[derive(Default)]
pub(crate) struct FaultRecorder(pub(crate) RefCell<Vec<String>>);

impl ProgressSink for FaultRecorder {
    fn fault(&self, description: &str) {
        let (_, description) = description.split_once(": ").expect("a workload");
        self.0.borrow_mut().push(description.to_owned());
    }
}

/// Runs a workload on keys 0 to 999 after `plant` has changed the table.
fn run_planted(
    workload: WorkloadLetter,
    plant: impl FnOnce(&farleaf::Table),
) -> (RunReport, Vec<String>) {
    let config = RunConfig {
        records: RECORD_COUNT,
        dataset: Dataset::Sequential,
        workloads: vec![workload],
        ..small(LayerKind::Learned, FabricKind::Mem)
    };
    let keys = generate_keys(&config, &Silent).expect("keys");
    let store = LoadedStore::load(&config, &keys, workload, &Silent).expect("a store");
    let session = store.pool().session().expect("a session");
    let tables = session.list_tables().expect("tables");
    plant(&session.open_table(&tables[0].name).expect("the table"));
    session.close().expect("closed");
    let heard = FaultRecorder::default();
    let report = store.run(&heard).expect("a run");
    (report, heard.0.into_inner())
}

/// Promise: a lost key is missing in every operation that requests it, and once more in the final
/// check, even when no operation requests it.
#[test]
fn a_lost_key_is_missing() {
    for workload in WorkloadLetter::ALL {
        let (report, faults) = run_planted(workload, |table| {
            for key in 100..200 {
                assert!(table.delete(key).expect("deleted").is_some());
            }
        });
        assert!(report.missing > 100, "{workload}: {}", report.missing);
        assert_eq!(report.errors, 0, "{workload}: {faults:?}");
        assert_eq!(faults.len(), 8, "the first are described");
        assert!(
            faults.iter().all(|fault| fault.ends_with("is missing")),
            "{faults:?}"
        );
    }
}

/// Promise: a value that belongs to another key is an error wherever it is read.
#[test]
fn a_wrong_value_is_an_error() {
    // All ones fit no key here. (Small numbers would pass for values of key 0, whose tag is 0.)
    let corrupt = |table: &farleaf::Table| {
        for key in 0..RECORD_COUNT {
            table.put(key, u64::MAX).expect("put");
        }
    };
    // Reads of their own inserts in D and E are correct.
    for (workload, wrong_share) in [
        (WorkloadLetter::C, 1.0),
        (WorkloadLetter::D, 0.01),
        (WorkloadLetter::E, 0.5),
    ] {
        let (report, faults) = run_planted(workload, corrupt);
        let wrong_min = RECORD_COUNT as f64 + wrong_share * report.operations as f64;
        assert!(
            report.errors as f64 >= wrong_min,
            "{workload}: {}",
            report.errors
        );
        assert_eq!(report.missing, 0);
        assert!(faults[0].contains("does not belong to key"), "{faults:?}");
    }
    // An update's previous value is read as well; what it wrote is correct from then on.
    for workload in [WorkloadLetter::A, WorkloadLetter::F] {
        let (report, _) = run_planted(workload, corrupt);
        assert!(report.errors >= RECORD_COUNT, "{}", report.errors);
        assert!(report.errors < report.operations, "{}", report.errors);
    }
}

/// Promise: a key that was never inserted is an error of the final check, and of scans.
#[test]
fn a_key_too_many_is_an_error() {
    let (report, faults) = run_planted(WorkloadLetter::C, |table| {
        table.put(u64::MAX, 1).expect("put");
    });
    assert_eq!((report.errors, report.missing), (1, 0));
    assert!(faults[0].contains("never inserted"), "{faults:?}");
}

/// Promise: an insert that finds its key present is an error.
#[test]
fn an_insert_that_finds_its_key_is_an_error() {
    let (report, faults) = run_planted(WorkloadLetter::D, |table| {
        table.put(RECORD_COUNT, 1).expect("put");
    });
    assert!(report.errors >= 1);
    assert!(
        faults[0].starts_with("insert of key 1000 found an existing value"),
        "{faults:?}"
    );
}

/// Promise: a store that fails permanently ends the run with an error that names the activity, and
/// blocks no thread.
#[test]
fn a_store_that_fails_for_good_ends_the_run() {
    let config = RunConfig {
        records: RECORD_COUNT,
        threads: 3,
        in_flight: 8,
        ..small(LayerKind::Learned, FabricKind::Mem)
    };
    let keys = generate_keys(&config, &Silent).expect("keys");
    let store = LoadedStore::load(&config, &keys, WorkloadLetter::A, &Silent).expect("a store");
    let dropper = Dropper {
        pool: store.pool().clone(),
    };
    let error = store
        .run(&dropper)
        .expect_err("there is no table")
        .to_string();
    assert!(
        error.starts_with("workload A: the store failed while opening"),
        "{error}"
    );
}

/// Sink that drops the table just before operations run.
struct Dropper {
    pool: farleaf::Pool,
}

impl ProgressSink for Dropper {
    fn begin(&self, title: &str, _: u64) {
        if title.ends_with("running") {
            let session = self.pool.session().expect("a session");
            let tables = session.list_tables().expect("tables");
            session.drop_table(&tables[0].name).expect("dropped");
        }
    }
}
