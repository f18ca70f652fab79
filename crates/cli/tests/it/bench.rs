//! Tests of `farleaf bench` with small runs.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::pool::{Place, end, lines, send};

const SMALL: [&str; 4] = ["--records", "2k", "--operations", "3_000"];

fn bench(place: &Place, arguments: &[&str]) -> String {
    let arguments = [&["bench"], arguments, &SMALL].concat();
    place.farleaf(&arguments).quietly()
}

fn reports(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// Promise: each JSON report is one line, with the arguments and the results: nothing wrong,
/// nothing missing; on both fabrics.
#[test]
fn reports_are_json_lines() {
    let place = Place::new();
    for fabric in ["mem", "shm"] {
        let arguments = [
            "ycsb",
            "--workload",
            "A,b",
            "--workload",
            "E",
            "--format",
            "json",
        ];
        let arguments = [&arguments[..], &["--fabric", fabric, "--threads", "2"]].concat();
        let reports = reports(&bench(&place, &arguments));
        let letters: Vec<_> = reports
            .iter()
            .map(|report| report["workload"].as_str())
            .collect();
        assert_eq!(letters, [Some("A"), Some("B"), Some("E")]);
        for report in &reports {
            assert_eq!(
                (&report["errors"], &report["missing"]),
                (&0.into(), &0.into()),
                "{report}"
            );
            assert_eq!(report["fabric"], fabric);
            assert_eq!(
                (&report["records"], &report["operations"]),
                (&2_000.into(), &3_000.into())
            );
            assert_eq!(
                (&report["threads"], &report["modelled"]),
                (&2.into(), &false.into())
            );
            assert!(
                report["throughput_ops_per_s"]
                    .as_f64()
                    .is_some_and(|it| it > 0.0)
            );
            let commit = report["commit"].as_str().expect("a commit");
            assert!(commit == "unknown" || commit.len() >= 7, "{commit}");
        }
        let read = &reports[0]["operations_by_kind"]["read"];
        assert!(
            read["round_trips_mean"]
                .as_f64()
                .is_some_and(|it| it >= 1.0),
            "{read}"
        );
    }
}

/// Promise: `bench` alone takes the options of `bench ycsb`, and runs A to F. Several runs end with
/// a table that compares them.
#[test]
fn bench_alone_runs_all_workloads() {
    let place = Place::new();
    let text = bench(&place, &["--fabric", "mem"]);
    for workload in ["A", "B", "C", "D", "E", "F"] {
        assert!(
            text.contains(&format!("YCSB {workload}: learned index, mem fabric")),
            "{text}"
        );
    }
    assert!(
        text.trim_end()
            .ends_with("of the most frequent operation; metadata: per key"),
        "{text}"
    );
}

/// Promise: the options for index, leaves, keys and seed reach the runs.
#[test]
fn options_reach_the_runs() {
    let place = Place::new();
    let keys = lines((0..5_000_u64).map(|index| index * index));
    place.file("keys.txt", keys);
    let arguments = [
        "ycsb",
        "--workload",
        "C",
        "--index",
        "learned,rolex",
        "--keys",
        "keys.txt",
    ];
    let more = [
        "--slots",
        "16",
        "--fill",
        "50",
        "--epsilon",
        "8",
        "--seed",
        "7",
    ];
    let most = [
        "--in-flight",
        "4",
        "--distribution",
        "uniform",
        "--format",
        "json",
    ];
    let reports = reports(&bench(&place, &[&arguments[..], &more, &most].concat()));
    let indexes: Vec<_> = reports
        .iter()
        .map(|report| report["index"].as_str())
        .collect();
    assert_eq!(indexes, [Some("learned"), Some("rolex")]);
    for report in &reports {
        assert_eq!(
            (&report["slots"], &report["seed"]),
            (&16.into(), &7.into()),
            "{report}"
        );
        // In percent, and in keys.
        assert_eq!(report["fill_percent"], 50, "{report}");
        assert_eq!(report["epsilon"].as_f64(), Some(8.0), "{report}");
        assert_eq!(
            (&report["in_flight"], &report["distribution"]),
            (&4.into(), &"uniform".into())
        );
        assert_eq!(report["dataset"], "keys:keys.txt");
    }
}

/// Promise: the version names the commit, as reports do.
#[test]
fn the_version_names_the_commit() {
    let version = Place::new().farleaf(&["--version"]).quietly();
    assert!(
        version.starts_with("farleaf 0.") && version.contains("(commit "),
        "{version}"
    );
}

/// Returns the names of the files in the directory of the sockets, as soon as there are any.
fn runtime_files(place: &Place) -> Vec<String> {
    let Ok(files) = std::fs::read_dir(place.runtime_directory()) else {
        return Vec::new();
    };
    let name = |file: std::fs::DirEntry| file.file_name().to_string_lossy().into_owned();
    files.map(|file| name(file.expect("a file"))).collect()
}

/// Promise: SIGINT or SIGTERM ends a benchmark at once with the usual status of the signal. Neither
/// the socket nor the lock file of its private pool is left.
#[test]
fn a_signal_leaves_no_files_of_the_private_pool() {
    for signal in [Signal::INT, Signal::TERM] {
        let place = Place::new();
        let much = ["--records", "100k", "--operations", "1G"];
        let mut command =
            place.command(&[&["bench", "ycsb", "--workload", "A"], &much[..]].concat());
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let started = Instant::now();
        while runtime_files(&place).len() < 2 {
            assert!(started.elapsed() < Duration::from_mins(1), "no pool");
            std::thread::sleep(Duration::from_millis(5));
        }
        send(&child, signal);
        assert_eq!(
            end(&mut child),
            (None, String::new()),
            "ended by {signal:?}"
        );
        assert_eq!(runtime_files(&place), Vec::<String>::new());
    }
}

/// Promise: `bench costs` prints a line for each layer and kind of operation, as JSON with the
/// counters, and as a table with the same values.
#[test]
fn costs_are_printed_layer_by_layer() {
    let place = Place::new();
    let arguments = [
        "bench",
        "costs",
        "--fabric",
        "mem",
        "--records",
        "10k",
        "--operations",
        "500",
    ];
    let some = ["--index", "fg,learned"];
    let json = place.farleaf(&[&arguments[..], &some, &["--output", "json"]].concat());
    let rows = reports(&json.quietly());
    let names: Vec<_> = rows
        .iter()
        .map(|row| (row["index"].as_str(), row["operation"].as_str()))
        .collect();
    assert_eq!(rows.len(), 12, "{names:?}");
    assert_eq!(names[0], (Some("fg"), Some("search")));
    assert_eq!(names[11], (Some("learned"), Some("delete")));
    assert_eq!(rows[0]["round_trips"].as_f64(), Some(3.0));
    let text = place.farleaf(&[&arguments[..], &some].concat()).quietly();
    assert!(
        text.starts_with("10,000 records, uniform keys, mem fabric; "),
        "{text}"
    );
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5 + rows.len(), "{text}");
    assert!(
        lines[5].starts_with("fg      search        3.000 "),
        "{text}"
    );
}

/// Promise: `--link-count-max` is in the report. Retries and links are reported for each kind of
/// operation, as JSON and below the table.
#[test]
fn retries_and_links_are_told() {
    let place = Place::new();
    let arguments = ["ycsb", "--workload", "D", "--index", "rf-tree"];
    let more = ["--link-count-max", "0", "--format", "json"];
    let reports = reports(&bench(&place, &[&arguments[..], &more].concat()));
    let report = &reports[0];
    assert_eq!(report["link_count_max"], 0, "{report}");
    for kind in ["read", "insert"] {
        let measured = &report["operations_by_kind"][kind];
        // A single session knows of all splits, and takes no lock.
        for (name, value) in [("retries_mean", 0.0), ("links_mean", 0.0)] {
            assert_eq!(measured[name].as_f64(), Some(value), "{report}");
        }
        let atomics = measured["atomics_mean"].as_f64().expect("a mean");
        assert_eq!(atomics >= 1.0, kind == "insert", "{report}");
    }
    let text = bench(&place, &arguments);
    let counters = "\nretries: read 0, insert 0\nlinks followed: read 0, insert 0\n";
    assert!(text.contains(counters), "{text}");
}
