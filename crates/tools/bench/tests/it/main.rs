//! Tests of small runs of the workloads on real stores.

mod budget;
mod costs;
mod faults;
mod limits;
mod persistent;
mod replication;
mod runs;
mod string_file;
mod timeline;

use farleaf::LayerKind;
use farleaf_bench::report::RunReport;
use farleaf_bench::runner::{FabricKind, RunConfig, Silent, run};
use farleaf_bench::workload::WorkloadLetter;

/// Returns the settings of a run that takes some milliseconds.
fn small(layer: LayerKind, fabric: FabricKind) -> RunConfig {
    RunConfig {
        layer,
        fabric,
        records: 20_000,
        operations: 4_000,
        ..RunConfig::default()
    }
}

/// Executes a run that must succeed without faults, and returns the reports.
fn run_right(config: &RunConfig) -> Vec<RunReport> {
    let reports = run(config, &Silent).unwrap_or_else(|error| panic!("{config:?}: {error}"));
    assert_eq!(reports.len(), config.workloads.len());
    for report in &reports {
        assert_eq!((report.errors, report.missing), (0, 0), "{report:?}");
        assert_eq!(report.operations, config.operations, "{report:?}");
    }
    reports
}

fn run_one_right(config: RunConfig, workload: WorkloadLetter) -> RunReport {
    run_right(&RunConfig {
        workloads: vec![workload],
        ..config
    })
    .remove(0)
}
