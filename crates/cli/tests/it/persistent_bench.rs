//! Tests of `farleaf bench ycsb` on persistent tables, with small runs.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::bad_inputs::{Case, case, check};
use crate::pool::{Place, Ran, a_signal_leaves_nothing};

const SMALL: [&str; 10] = [
    "bench",
    "ycsb",
    "--engine",
    "lsm",
    "--value-size",
    "SD",
    "--records",
    "1k",
    "--operations",
    "500",
];

/// Invalid arguments: options of tables in far memory, options of persistent tables without one,
/// and invalid values.
#[rustfmt::skip]
pub(crate) const PERSISTENT_BENCH: &[Case] = &[
    case(&["bench", "ycsb", "--engine", "lsm", "--index", "learned"], 2, &["--index cannot be used with a persistent table"]),
    case(&["bench", "ycsb", "--engine", "lsm", "--fabric", "tcp"], 2, &["--fabric cannot be used with a persistent table"]),
    case(&["bench", "ycsb", "--engine", "lsm", "--metadata-budget", "64KiB"], 2, &["--metadata-budget cannot be used"]),
    case(&["bench", "ycsb", "--engine", "lsm", "--partitions", "2"], 2, &["--partitions cannot be used"]),
    case(&["bench", "ycsb", "--engine", "lsm", "--kind", "words"], 2, &["--kind is words", "must be bytes"]),
    case(&["bench", "ycsb", "--engine", "lsm", "--in-flight", "4"], 2, &["--in-flight is 4", "more --threads"]),
    case(&["bench", "ycsb", "--engine", "lsm", "--value-size", "XL"], 2, &["'XL'", "SD, MD or LD"]),
    case(&["bench", "ycsb", "--engine", "lsm", "--replicas", "16"], 2, &["'16'", "--replicas", "1..=15"]),
    case(&["bench", "ycsb", "--engine", "lsm", "--regions", "118"], 2, &["'118'", "--regions", "1..=117"]),
    case(&["bench", "ycsb", "--engine", "lsm", "--records", "2"], 2, &["--regions is 3", "not above --records"]),
    case(&["bench", "ycsb", "--engine", "lsm", "--l0-size", "1KiB"], 2, &["'1KiB'", "--l0-size", "1MiB or more"]),
    case(&["bench", "ycsb", "--engine", "lsm", "--l0-size", "17GiB"], 2, &["'17GiB'", "--l0-size", "at most 16GiB"]),
    case(&["bench", "ycsb", "--engine", "lsm", "--directory", "no"], 2, &["--directory is no", "an existing directory"]),
    case(&["bench", "ycsb", "--replicas", "2"], 2, &["--replicas cannot be used without --engine lsm or --cluster"]),
    case(&["bench", "ycsb", "--durability", "sync"], 2, &["--durability cannot be used without --engine lsm"]),
    case(&["--secret-file", "s", "bench", "ycsb", "--engine", "lsm"], 2, &["--secret-file cannot be used here"]),
    case(&["--cluster", "tcp:h:1", "bench", "ycsb", "--engine", "memory"], 2, &["--engine memory cannot be used"]),
    case(&["--cluster", "tcp:h:1", "bench", "ycsb", "--directory", "d"], 2, &["--directory cannot be used with a cluster"]),
    case(&["--cluster", "tcp:h:1", "bench", "ycsb", "--slots", "8"], 2, &["--slots cannot be used with a persistent"]),
    case(&["--cluster", "h:1", "bench"], 2, &["--cluster: 'h:1' is not a valid coordinator address"]),
    case(&["--cluster", "tcp:127.0.0.1:1", "bench", "ycsb"], 1, &["tcp:127.0.0.1:1 cannot be reached"]),
];

/// Promise: each is rejected with what is wrong and what to do, before any server is contacted or
/// anything is created.
#[test]
fn bad_arguments_are_refused() {
    let place = Place::new();
    for case in PERSISTENT_BENCH {
        check(&place, case);
    }
}

/// Promise: one command runs workloads on servers of its own. JSON has the arguments and no costs
/// of far memory, and the text has no columns for them; the directory is unchanged.
#[test]
fn own_servers_are_measured() {
    let place = Place::new();
    let scratch = place.path().join("scratch");
    fs::create_dir(&scratch).expect("made");
    let own = [
        "--directory",
        "scratch",
        "--replicas",
        "2",
        "--regions",
        "2",
    ];
    let json = ["--workload", "A,E", "--threads", "2", "--format", "json"];
    let text = place.farleaf(&[&SMALL[..], &own, &json].concat()).quietly();
    let reports: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let workloads = reports.iter().map(|it| it["workload"].as_str());
    assert_eq!(workloads.collect::<Vec<_>>(), [Some("A"), Some("E")]);
    for report in &reports {
        assert_eq!(
            (&report["errors"], &report["missing"]),
            (&0.into(), &0.into())
        );
        assert_eq!(
            (&report["index"], &report["value_size"]),
            (&"lsm".into(), &"SD".into())
        );
        assert_eq!(report["persistent"]["replicas"], 2, "{report}");
        assert_eq!(report["persistent"]["servers"], "own", "{report}");
        assert!(
            report["persistent"]["device"]["bytes_written_mean"].is_number(),
            "{report}"
        );
        assert!(report.get("memory_bytes_per_key").is_none(), "{report}");
    }
    let read = &reports[0]["operations_by_kind"]["read"];
    assert!(read["latency_ns"]["p50"].is_number(), "{read}");
    assert!(read.get("round_trips_mean").is_none(), "{read}");
    let one = [
        "--directory",
        "scratch",
        "--replicas",
        "1",
        "--workload",
        "C",
    ];
    let text = place.farleaf(&[&SMALL[..], &one].concat()).quietly();
    assert!(
        text.contains("servers own, replicas 1, regions 1, durability sync"),
        "{text}"
    );
    assert!(
        !text.contains("leaves") && text.contains("load: "),
        "{text}"
    );
    assert_eq!(fs::read_dir(&scratch).expect("there").count(), 0);
}

/// Promise: the benchmark does not use a cluster that an environment variable names for other
/// commands.
#[test]
fn a_variable_fills_no_cluster() {
    let place = Place::new();
    let mut command = place.command(&["bench", "--records", "1k", "--operations", "500"]);
    command.env("FARLEAF_CLUSTER", "tcp:127.0.0.1:1");
    let text = Ran::from(command.output().expect("it starts")).quietly();
    assert!(text.contains("learned index, shm fabric"), "{text}");
}

/// Promise: a signal ends the benchmark, and no files of its servers are left.
#[test]
fn a_signal_leaves_nothing_of_own_servers() {
    let much = ["--directory", "scratch", "--operations", "50M"];
    let arguments = [&SMALL[..8], &much].concat();
    a_signal_leaves_nothing(&Place::new(), &arguments, Duration::from_millis(500));
}
