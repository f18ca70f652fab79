//! Tests that impossible runs are refused before they start.

use farleaf::LayerKind;
use farleaf_bench::dataset::Dataset;
use farleaf_bench::runner::{BenchError, FabricKind, RunConfig, Silent, run};
use farleaf_bench::workload::WorkloadLetter;

use crate::small;

fn refusal(config: &RunConfig) -> BenchError {
    match run(config, &Silent) {
        Ok(reports) => panic!("{reports:?}"),
        Err(error) => error,
    }
}

/// Promise: an out-of-range option is refused by name.
#[test]
fn options_out_of_range() {
    let good = || small(LayerKind::Learned, FabricKind::Mem);
    let bad = [
        (
            "workload",
            RunConfig {
                workloads: Vec::new(),
                ..good()
            },
        ),
        (
            "records",
            RunConfig {
                records: 0,
                ..good()
            },
        ),
        (
            "operations",
            RunConfig {
                operations: 0,
                ..good()
            },
        ),
        (
            "threads",
            RunConfig {
                threads: 100_000,
                ..good()
            },
        ),
        (
            "in-flight",
            RunConfig {
                in_flight: 0,
                ..good()
            },
        ),
        ("slots", RunConfig { slots: 7, ..good() }),
        (
            "fill",
            RunConfig {
                fill_percent: 200,
                ..good()
            },
        ),
        (
            "epsilon",
            RunConfig {
                epsilon_keys: -1.0,
                ..good()
            },
        ),
    ];
    for (name, config) in bad {
        match refusal(&config) {
            BenchError::BadOption { option, .. } => assert_eq!(option, name),
            other => panic!("{name}: {other}"),
        }
    }
}

/// Promise: more records or inserts than fit the host's memory are refused, not attempted.
#[test]
fn more_than_the_host_has() {
    let config = RunConfig {
        operations: u64::MAX,
        ..small(LayerKind::Learned, FabricKind::Mem)
    };
    assert!(matches!(refusal(&config), BenchError::TooLarge { .. }));
}

/// Promise: a key file that is too small is refused with the number that the run needs, including
/// inserts; workloads without inserts can use all of it.
#[test]
fn a_key_file_too_small() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("keys.txt");
    let lines: Vec<String> = (0..1_000).map(|key| key.to_string()).collect();
    std::fs::write(&path, lines.join("\n")).expect("a file");
    let config = RunConfig {
        dataset: Dataset::Keys(path.clone()),
        records: 1_000,
        operations: 1_000,
        ..small(LayerKind::Learned, FabricKind::Mem)
    };
    let error = refusal(&config);
    assert!(matches!(error, BenchError::KeysTooFew { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("1000 distinct keys") && text.contains("needs 1100"),
        "{text}"
    );
    let reads_only = RunConfig {
        workloads: vec![WorkloadLetter::C],
        ..config.clone()
    };
    assert_eq!(
        run(&reads_only, &Silent).expect("all keys loaded")[0].records,
        1_000
    );

    std::fs::write(&path, "1\nx\n").expect("a file");
    assert!(refusal(&config).to_string().contains("keys.txt:2"));
}
