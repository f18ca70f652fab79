//! Tests of `farleaf bench timeline` with small runs.

use serde_json::Value;

use crate::pool::{Place, Ran};

const SMALL: [&str; 8] = [
    "bench",
    "timeline",
    "--fabric",
    "mem",
    "--interval",
    "0.1",
    "--settle",
    "0.2",
];

fn timeline(place: &Place, arguments: &[&str]) -> Ran {
    place.farleaf(&[&SMALL, arguments].concat())
}

/// Promise: JSON has a line for each interval, in order, and one for the total, with the arguments
/// and the results: nothing wrong, missing or rejected.
#[test]
fn intervals_are_json_lines() {
    let place = Place::new();
    for pattern in [
        &["--first-keys", "2k", "--last-keys", "9k"][..],
        &[
            "--pattern",
            "descending",
            "--first-keys",
            "0",
            "--last-keys",
            "3k",
        ],
        &["--pattern", "window", "--keys", "1k", "--inserts", "4k"],
        &[
            "--pattern",
            "shrink",
            "--first-keys",
            "9k",
            "--delete",
            "80",
        ],
    ] {
        let text = timeline(&place, &[pattern, &["--output", "json"]].concat()).quietly();
        let lines = text.lines().map(serde_json::from_str);
        let lines: Vec<Value> = lines.map(|line| line.expect("JSON")).collect();
        let (total, intervals) = lines.split_last().expect("lines");
        assert!(intervals.len() >= 3, "{text}");
        let mut end_s = 0.0;
        for interval in intervals {
            let at = interval["end_s"].as_f64().expect("a time");
            assert!(interval["kind"] == "interval" && at > end_s, "{interval}");
            end_s = at;
        }
        assert_eq!(
            (&total["kind"], &total["index"]),
            (&"total".into(), &"learned".into())
        );
        for fault in ["errors", "missing", "refused"] {
            assert_eq!(total[fault], 0, "{total}");
        }
        assert!(
            total["fresh"]["one_leaf_fraction"]
                .as_f64()
                .is_some_and(|it| it > 0.1)
        );
        let records = total["records"].as_u64().expect("a count");
        let [loaded, puts, deletes] = ["loaded", "puts", "deletes"].map(|it| total[it].as_u64());
        assert_eq!(
            Some(records),
            loaded.zip(puts).zip(deletes).map(|((l, p), d)| l + p - d)
        );
    }
}

/// Promise: `--to` writes a CSV and an SVG file with every given search layer, and a second run
/// replaces them.
#[test]
fn files_are_written_and_replaced() {
    let place = Place::new();
    let folder = place.path().join("drawn");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("written");
    let arguments = [
        "--first-keys",
        "1k",
        "--last-keys",
        "4k",
        "--to",
        "drawn",
        "--index",
    ];
    let ran = timeline(&place, &[&arguments[..], &["learned,rolex"]].concat());
    assert_eq!(ran.status, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("drawn/timeline.svg"), "{ran:?}");
    let (csv, svg) = (read("timeline.csv"), read("timeline.svg"));
    assert!(csv.starts_with("pattern,index,time_s,phase,"), "{csv}");
    for layer in ["learned", "rolex"] {
        assert!(csv.contains(&format!("\nuniform,{layer},0.1,")), "{csv}");
        assert!(svg.contains(&format!("end of growth, {layer}")), "{layer}");
    }
    let ran = timeline(&place, &[&arguments[..], &["rolex"]].concat());
    assert_eq!(ran.status, Some(0), "{ran:?}");
    assert!(!read("timeline.csv").contains("learned"));
    assert!(!read("timeline.svg").contains("learned"));
}

/// Promise: a run with rejected puts reports them, and ends with status 1.
#[test]
fn refused_puts_end_with_status_1() {
    let place = Place::new();
    let size = [
        "--first-keys",
        "1k",
        "--last-keys",
        "200k",
        "--size",
        "4MiB",
    ];
    let ran = timeline(&place, &size);
    assert_eq!(ran.status, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("was rejected: "), "{ran:?}");
    let checks = ran.stdout.lines().last().expect("lines");
    assert!(
        checks.starts_with("checks") && checks.contains("0 missing"),
        "{checks}"
    );
    assert!(!checks.contains(" 0 refused"), "{checks}");
}
