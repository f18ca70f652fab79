//! Tests of runs on the byte strings of a file.

use std::fmt::Write;

use farleaf::LayerKind::Learned;
use farleaf_bench::dataset::Dataset;
use farleaf_bench::runner::{FabricKind, RunConfig, Silent, Strings, run};
use farleaf_bench::workload::WorkloadLetter;

use crate::{run_right, small};

/// Returns names: clusters within clusters, lengths from 1 to 700 bytes, invalid UTF-8.
fn names(count: usize) -> String {
    let mut text = String::new();
    for index in 0..count {
        let folder = index * index % 97;
        let deep = "sub/".repeat(if index % 50 == 0 { 160 } else { index % 4 });
        let _ = writeln!(text, "dir{folder:02}/{deep}n\\x{:02x}{index}", index % 256);
    }
    text
}

/// Promise: all workloads run correctly on the keys of a file, some of which are reserved for
/// inserts; the report names the file, and has no key size.
#[test]
fn all_workloads_on_the_strings_of_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("names.txt");
    std::fs::write(&path, names(12_000)).expect("a file");
    for (value_size, fabric) in [("100", FabricKind::Mem), ("SD", FabricKind::Shm)] {
        let config = RunConfig {
            dataset: Dataset::Keys(path.clone()),
            strings: Some(Strings {
                value_size: value_size.parse().expect("a size"),
                ..Strings::default()
            }),
            records: 10_000,
            ..small(Learned, fabric)
        };
        for (report, letter) in run_right(&config).iter().zip(WorkloadLetter::ALL) {
            assert_eq!(report.workload, letter.to_string());
            assert_eq!(report.dataset, format!("keys:{}", path.display()));
            assert_eq!(report.key_size_bytes, None);
        }
    }
}

/// Promise: a file with too few strings for loads and inserts is refused with its counts.
#[test]
fn a_file_of_too_few_strings_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("names.txt");
    // One of them twice.
    std::fs::write(&path, "a\nb\nc\na\n").expect("a file");
    let config = RunConfig {
        workloads: vec![WorkloadLetter::C],
        dataset: Dataset::Keys(path),
        strings: Some(Strings::default()),
        records: 4,
        ..small(Learned, FabricKind::Mem)
    };
    let error = run(&config, &Silent).expect_err("too few").to_string();
    assert!(error.contains("names.txt' has 3 distinct keys"), "{error}");
}
