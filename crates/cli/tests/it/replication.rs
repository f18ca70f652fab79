//! Tests of `farleaf bench replication` and `farleaf figures talos` with small runs.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::pool::{self, Place};

const SMALL: [&str; 10] = [
    "bench",
    "replication",
    "--records",
    "3k",
    "--operations",
    "500",
    "--regions",
    "1",
    "--background",
    "1",
];
const FIGURES: [&str; 11] = [
    "figures",
    "talos",
    "--quick",
    "--records",
    "1k",
    "--operations",
    "100",
    "--regions",
    "1",
    "--l0-entries",
    "100",
];

/// Promise: the text has all kinds and phases, and the paper's values. JSON has a line for each row
/// and each ratio; the directory is unchanged.
#[test]
fn a_run_is_told() {
    let place = Place::new();
    let scratch = place.path().join("scratch");
    fs::create_dir(&scratch).expect("made");
    let arguments = [
        "--directory",
        "scratch",
        "--l0-entries",
        "200",
        "--value-size",
        "S",
    ];
    let text = place.farleaf(&[&SMALL[..], &arguments].concat()).quietly();
    for fragment in [
        "1 + 1 regions",
        "Load A  sent",
        "Run A   built",
        "1.1 to 3.0",
    ] {
        assert!(text.contains(fragment), "{fragment}: {text}");
    }
    let json = [
        "--output",
        "json",
        "--kind",
        "sent,built",
        "--workload",
        "B",
    ];
    let text = place
        .farleaf(&[&SMALL[..], &arguments, &json].concat())
        .quietly();
    let lines = text.lines().map(serde_json::from_str);
    let lines: Vec<Value> = lines.map(|line| line.expect("JSON")).collect();
    let rows: Vec<_> = lines.iter().filter(|it| it["record"] == "row").collect();
    let phases = rows
        .iter()
        .map(|row| (row["kind"].as_str(), row["phase"].as_str()));
    let expected = ["sent", "built"].map(|kind| ["Load A", "Run B"].map(|it| (kind, it)));
    let expected = expected.as_flattened().iter();
    let expected: Vec<_> = expected
        .map(|(kind, phase)| (Some(*kind), Some(*phase)))
        .collect();
    assert_eq!(phases.collect::<Vec<_>>(), expected);
    assert!(lines.len() > rows.len() && lines.last().expect("lines")["record"] == "ratio");
    assert_eq!(fs::read_dir(&scratch).expect("there").count(), 0);
}

/// Promise: a signal ends the benchmark, and none of its files are left.
#[test]
fn a_signal_leaves_nothing() {
    let arguments = [&SMALL[..2], &["--directory", "scratch", "--records", "50M"]].concat();
    pool::a_signal_leaves_nothing(&Place::new(), &arguments, Duration::from_millis(200));
}

/// Promise: if a file cannot be written, as on a full disk, the benchmark ends with an error that
/// names the region, the file and the cause, whatever the kind. None of its files are left.
#[test]
fn a_file_that_cannot_be_written_ends_it() {
    let place = Place::new();
    let scratch = place.path().join("scratch");
    fs::create_dir(&scratch).expect("made");
    let program = env!("CARGO_BIN_EXE_farleaf");
    for kind in ["none", "sent", "built"] {
        // No file may be larger than 4 MiB, in the shell's blocks of 512 bytes or of 1,024.
        let command = format!(
            "trap '' XFSZ; ulimit -f 4096; exec '{program}' {} --directory scratch --records 40k \
             --value-size L --kind {kind}",
            SMALL[..2].join(" ")
        );
        let ran = std::process::Command::new("sh")
            .args(["-c", &command])
            .current_dir(place.path())
            .output()
            .expect("started");
        let message = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(1), "{message}");
        assert!(
            message.contains("region") || message.contains("server"),
            "{message}"
        );
        assert!(
            message.contains("cannot write") && message.contains("File too large"),
            "{message}"
        );
        assert_eq!(fs::read_dir(&scratch).expect("there").count(), 0);
    }
}

/// Promise: the figures are written to a folder, and another run replaces them. Other files are
/// kept, and a failed run leaves the former figures.
#[test]
fn figures_are_a_folder() {
    let place = Place::new();
    let run = |arguments: &[&str]| place.farleaf(&[&FIGURES[..], arguments].concat());
    let text = run(&["--to", "drawn"]).quietly();
    assert!(
        text.contains("drawn/index.html") && text.contains("real runs"),
        "{text}"
    );
    let folder = place.path().join("drawn");
    let page = fs::read_to_string(folder.join("index.html")).expect("written");
    assert!(page.contains("Real runs on this machine"), "{page}");
    for name in [
        "tails.csv",
        "breakdown-load-a.svg",
        "growth-run-a-throughput.svg",
    ] {
        assert!(folder.join(name).is_file(), "{name}");
    }
    let failed = run(&["--to", "drawn", "--directory", "none"]);
    assert_eq!(failed.status, Some(2), "{failed:?}");
    let after = fs::read_to_string(folder.join("index.html")).expect("still there");
    assert_eq!(page, after);
}
