//! Tests of the reports of runs on a correct store.

use std::cell::RefCell;
use std::fmt::Write;

use farleaf::LayerKind::{self, Learned, Rolex};
use farleaf::{EmbeddedFabric, Pool, PoolOptions, VerbsOptions};
use farleaf_bench::dataset::Dataset;
use farleaf_bench::distribution::Distribution;
use farleaf_bench::report::RunReport;
use farleaf_bench::runner::{FabricKind, ProgressSink, Row, RunConfig, Strings, run};
use farleaf_bench::workload::{OperationKind, WorkloadLetter, WorkloadSpec};

use crate::{run_one_right, run_right, small};

fn round_trips(report: &RunReport, kind: OperationKind) -> f64 {
    report.operations_by_kind[&kind]
        .far_costs()
        .round_trips_mean
}

/// Asserts that each kind occurs as often as the workload specifies, within 3 %, and no other.
fn assert_mix(report: &RunReport, letter: WorkloadLetter) {
    let mix = WorkloadSpec::of(letter).mix;
    for kind in OperationKind::ALL {
        let counted = report
            .operations_by_kind
            .get(&kind)
            .map_or(0, |kind| kind.count);
        let share = counted as f64 / report.operations as f64;
        assert!(
            (share - mix.share(kind)).abs() < 0.03,
            "{letter} {kind}: {share}"
        );
        assert_eq!(counted > 0, mix.share(kind) > 0.0, "{letter} {kind}");
    }
}

/// Promise: all workloads run correctly on both layers and both fabrics, with the expected mix and
/// round trips.
#[test]
fn all_workloads_on_both_layers_and_fabrics() {
    for fabric in FabricKind::ALL {
        if fabric == FabricKind::Verbs && !has_rdma_device() {
            eprintln!("skipped: verbs: this host has no RDMA device");
            continue;
        }
        for layer in [Learned, Rolex] {
            let reports = run_right(&small(layer, fabric));
            for (report, letter) in reports.iter().zip(WorkloadLetter::ALL) {
                assert_eq!(report.workload, letter.to_string());
                assert_mix(report, letter);
                assert!(report.throughput_ops_per_s > 1_000.0, "{report:?}");
                assert!(
                    report.memory_bytes_per_key.expect("known") > 16.0,
                    "{report:?}"
                );
            }
            assert_round_trips(&reports, layer);
        }
    }
}

fn has_rdma_device() -> bool {
    let options = PoolOptions {
        fabric: EmbeddedFabric::Verbs(VerbsOptions::default()),
        size_bytes: 8 << 20,
        retrain_thread_count: 0,
        ..PoolOptions::default()
    };
    Pool::embedded(&options).is_ok()
}

fn assert_round_trips(reports: &[RunReport], layer: LayerKind) {
    let near = |got: f64, want: f64| assert!((want..want + 0.05).contains(&got), "{got} {want}");
    // ROLEX reads the predicted range before it locks a leaf.
    let write = if layer == Rolex { 3.0 } else { 2.0 };
    near(round_trips(&reports[0], OperationKind::Read), 1.0);
    near(round_trips(&reports[0], OperationKind::Update), write);
    near(round_trips(&reports[2], OperationKind::Read), 1.0);
    near(
        round_trips(&reports[5], OperationKind::ReadModifyWrite),
        1.0 + write,
    );
    let read = &reports[2].operations_by_kind[&OperationKind::Read];
    assert!(read.latency_ns.p50 > 0 && read.latency_ns.p50 <= read.latency_ns.max);
    if layer == Learned {
        assert!(read.far_costs().one_leaf_fraction > 0.97, "{read:?}");
        assert!(read.far_costs().bytes_read_mean < 180.0, "{read:?}");
        assert!(
            reports[2].metadata_bytes_per_key.expect("known") < 1.0,
            "{:?}",
            reports[2]
        );
    } else {
        assert!(read.far_costs().leaves_read_mean > 2.0, "{read:?}");
    }
}

/// Promise: runs are correct with several threads and several operations in flight, also when
/// nearly all of them access the same few keys.
#[test]
fn several_threads_and_operations_in_flight() {
    for (records, operations) in [(20_000, 20_000), (20, 20_000)] {
        for (threads, in_flight) in [(1, 16), (2, 1), (2, 16), (3, 2)] {
            for layer in [Learned, Rolex] {
                let config = RunConfig {
                    records,
                    operations,
                    threads,
                    in_flight,
                    ..small(layer, FabricKind::Mem)
                };
                let reports = run_right(&config);
                assert_eq!(reports[0].threads, threads as u64);
                assert_eq!(reports[0].in_flight, Some(in_flight as u64));
            }
        }
    }
}

/// Promise: every workload runs correctly on a table over several pools, over each fabric and with
/// each kind of search layer, by several threads with several operations in flight. Inserts that
/// all belong to one part fit there.
#[test]
fn tables_over_several_pools() {
    for (layer, fabric) in [
        (Learned, FabricKind::Mem),
        (LayerKind::Xstore, FabricKind::Shm),
        (LayerKind::Xstore, FabricKind::Tcp),
        (LayerKind::Rpc, FabricKind::Tcp),
        (LayerKind::Sherman, FabricKind::Mem),
    ] {
        let config = RunConfig {
            partitions: 3,
            threads: 2,
            in_flight: 4,
            dataset: Dataset::Sequential,
            ..small(layer, fabric)
        };
        let reports = run_right(&config);
        assert_eq!(reports.len(), 6);
        assert!(reports.iter().all(|report| report.partitions == Some(3)));
    }
}

/// Promise: every data set and every request distribution runs correctly, with inserts and scans.
#[test]
fn every_data_set_and_distribution() {
    let datasets = [
        Dataset::Uniform,
        Dataset::Sequential,
        Dataset::Normal,
        Dataset::Lognormal,
        Dataset::Clustered,
    ];
    for dataset in datasets {
        for distribution in Distribution::ALL {
            for workload in [WorkloadLetter::D, WorkloadLetter::E] {
                let config = RunConfig {
                    dataset: dataset.clone(),
                    distribution: Some(distribution),
                    ..small(Learned, FabricKind::Mem)
                };
                let report = run_one_right(config, workload);
                assert_eq!(report.distribution, distribution.to_string());
                assert_eq!(report.dataset, dataset.to_string());
            }
        }
    }
}

/// Promise: the keys of a file run like any others.
#[test]
fn a_file_of_keys() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("keys.txt");
    let mut text = String::new();
    // Rough enough for several models, with both ends of the domain.
    for key in (0..10_000_u64)
        .map(|index| index.pow(4))
        .chain([u64::MAX - 1, u64::MAX])
    {
        writeln!(text, "{key}").expect("text");
    }
    std::fs::write(&path, text).expect("a file");
    let config = RunConfig {
        dataset: Dataset::Keys(path),
        records: 9_000,
        operations: 2_000,
        ..small(Learned, FabricKind::Mem)
    };
    let reports = run_right(&config);
    assert!(
        reports[0].dataset.starts_with("keys:"),
        "{}",
        reports[0].dataset
    );
}

/// Promise: the table options are applied to the table and appear in the report, at both ends of
/// their ranges; a pool that is too small for all the models is created again.
#[test]
fn every_table_option() {
    for layer in [Learned, Rolex] {
        for (slots, fill_percent, epsilon_keys) in [(8, 25, 0.5), (12, 75, 4.0), (16, 100, 1024.0)]
        {
            let config = RunConfig {
                slots,
                fill_percent,
                epsilon_keys,
                ..small(layer, FabricKind::Mem)
            };
            let report = run_one_right(config, WorkloadLetter::D);
            assert_eq!(report.slots, Some(slots));
            assert_eq!(report.fill_percent, Some(fill_percent.into()));
            assert_eq!(report.epsilon, Some(epsilon_keys));
        }
    }
}

/// Promise: all workloads run correctly on byte strings, with values in pages, outside, or both. A
/// read is one round trip for a value in a page and two for one outside.
#[test]
fn all_workloads_on_byte_strings() {
    for (value_size, inline_size, round_trips_max) in [
        ("100", 128, 1.1),
        ("1000", 128, 2.1),
        ("SD", 128, 1.4),
        ("LD", 0, 2.1),
    ] {
        for fabric in [FabricKind::Mem, FabricKind::Tcp] {
            let config = RunConfig {
                strings: Some(Strings {
                    value_size: value_size.parse().expect("a size"),
                    inline_value_size_bytes: inline_size,
                    ..Strings::default()
                }),
                ..small(Learned, fabric)
            };
            let reports = run_right(&config);
            for (report, letter) in reports.iter().zip(WorkloadLetter::ALL) {
                assert_mix(report, letter);
                assert_eq!(report.value_size.as_deref(), Some(value_size));
            }
            let of_reads = round_trips(&reports[2], OperationKind::Read);
            assert!(
                (1.0..round_trips_max).contains(&of_reads),
                "{value_size}: {of_reads}"
            );
        }
    }
}

/// Promise: with several fields all workloads run correctly, even if threads lose each other's
/// updates; an update costs a read and a put, and reports contain the number of fields.
#[test]
fn updates_of_one_field_read_and_put() {
    let config = RunConfig {
        strings: Some(Strings {
            field_count: 10,
            ..Strings::default()
        }),
        ..small(Learned, FabricKind::Mem)
    };
    let reports = run_right(&config);
    for (report, letter) in reports.iter().zip(WorkloadLetter::ALL) {
        assert_mix(report, letter);
        assert_eq!(report.field_count, Some(10));
    }
    let whole = RunConfig {
        strings: Some(Strings::default()),
        ..config.clone()
    };
    let whole = run_one_right(whole, WorkloadLetter::A);
    assert_eq!(whole.field_count, None);
    let of = |kind| round_trips(&reports[0], kind);
    let expected = of(OperationKind::Read) + round_trips(&whole, OperationKind::Update);
    let of_updates = of(OperationKind::Update);
    assert!(
        (of_updates - expected).abs() < 0.1,
        "{of_updates}, {expected}"
    );
    let several = RunConfig {
        threads: 3,
        in_flight: 8,
        ..config
    };
    run_right(&several);
}

/// Promise: one seed gives one run: counts and costs of one thread are repeatable.
#[test]
fn one_seed_makes_one_run() {
    let costs = |seed| {
        let reports = run_right(&RunConfig {
            seed,
            ..small(Learned, FabricKind::Mem)
        });
        let kinds = reports
            .into_iter()
            .flat_map(|report| report.operations_by_kind);
        let costs = kinds
            .map(|(kind, cost)| (kind, cost.count, cost.far_costs().bytes_read_mean.to_bits()));
        costs.collect::<Vec<_>>()
    };
    assert_eq!(costs(7), costs(7));
    assert_ne!(costs(7), costs(8));
}

/// Promise: a sink receives the phases in order, each advanced to its total, and each report.
#[test]
fn a_sink_hears_of_every_phase() {
    #[derive(Default)]
    struct FaultRecorder {
        phases: RefCell<Vec<(String, u64, u64)>>,
        reports: RefCell<Vec<String>>,
    }
    impl ProgressSink for FaultRecorder {
        fn begin(&self, title: &str, total: u64) {
            self.phases.borrow_mut().push((title.to_owned(), total, 0));
        }
        fn advance(&self, done: u64) {
            self.phases.borrow_mut().last_mut().expect("a phase").2 = done;
        }
        fn row(&self, row: &Row) {
            let json = row.json.as_ref().expect("an object");
            self.reports.borrow_mut().push(json.clone());
        }
    }
    let heard = FaultRecorder::default();
    let workloads = vec![WorkloadLetter::C, WorkloadLetter::D];
    let config = RunConfig {
        workloads,
        ..small(Learned, FabricKind::Mem)
    };
    let reports = run(&config, &heard).expect("a run");
    let lines = reports.iter().map(serde_json::to_string);
    let lines: serde_json::Result<Vec<String>> = lines.collect();
    assert_eq!(*heard.reports.borrow(), lines.expect("objects"));
    let phases = heard.phases.borrow();
    let wanted = [
        "generating keys",
        "YCSB C, loading",
        "YCSB C, running",
        "YCSB C, checking",
        "YCSB D, loading",
        "YCSB D, running",
        "YCSB D, checking",
    ];
    assert!(phases.iter().map(|(title, ..)| title).eq(wanted));
    for (title, total, done) in phases.iter() {
        assert_eq!(total, done, "{title}");
    }
}
