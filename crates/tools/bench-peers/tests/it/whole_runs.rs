//! Tests of a small comparison as a whole.

use farleaf::PageOptions;
use farleaf_bench_peers::comparison::{ComparisonPlan, Kind, compare};
use farleaf_bench_peers::peer::Work;
use farleaf_bench_peers::peers::{PeerName, StringOptions};
use farleaf_bench_peers::report::Report;

use crate::redis;

/// Promise: with one thread and two, all maps return the same (a comparison ends with an error
/// otherwise). Every subject is measured in every round, every target is judged, and the JSON
/// contains them.
#[test]
fn a_small_comparison_measures_everything() {
    let plan = ComparisonPlan {
        record_count: 1000,
        operation_count: 2000,
        round_count: 3,
        thread_counts: vec![1, 2],
        works: Work::ALL.to_vec(),
        peers: PeerName::OF_WORDS.to_vec(),
        seed: 7,
        kind: Kind::Words { slots: 8 },
    };
    let measured = compare(&plan, |_| {}).expect("all maps agree");
    let figure_count = 2 * (PeerName::OF_WORDS.len() * 4 + 3);
    assert_eq!(measured.figures.len(), figure_count);
    for figure in &measured.figures {
        assert_eq!(figure.nanoseconds_by_round.len(), 3, "{figure:?}");
        assert!(figure.nanoseconds_median() > 0.0, "{figure:?}");
    }
    let report = Report::new(&plan, &measured);
    let json: serde_json::Value =
        serde_json::from_str(&report.to_json().expect("JSON")).expect("JSON");
    assert_eq!(json["medians"].as_array().map(Vec::len), Some(figure_count));
    let targets = json["targets"].as_array().expect("targets");
    assert!(targets.len() == 6 && targets.iter().all(|target| target["measured"].is_f64()));
    let table = report.to_table();
    for name in [
        "threads: 1",
        "threads: 2",
        "masstree",
        "floor, groups of 16",
    ] {
        assert!(table.contains(name), "{name}:\n{table}");
    }
}

fn of_strings(redis: std::path::PathBuf) -> ComparisonPlan {
    ComparisonPlan {
        record_count: 1000,
        operation_count: 2000,
        round_count: 2,
        thread_counts: vec![1, 2],
        works: Work::ALL.to_vec(),
        peers: PeerName::OF_STRINGS.to_vec(),
        seed: 7,
        kind: Kind::Strings(StringOptions {
            key_size_bytes: 24,
            value_size_bytes: 100,
            pages: PageOptions::default(),
            redis,
        }),
    }
}

/// Promise: all maps of byte strings do the same, except for scans of Redis. The report contains
/// the kind of keys and values, and has no targets.
#[test]
fn a_small_comparison_of_strings_measures_everything() {
    let Some(redis) = redis() else { return };
    let plan = of_strings(redis);
    let measured = compare(&plan, |_| {}).expect("all maps agree");
    assert_eq!(
        measured.figures.len(),
        2 * (PeerName::OF_STRINGS.len() * 4 - 1)
    );
    let report = Report::new(&plan, &measured);
    let json: serde_json::Value =
        serde_json::from_str(&report.to_json().expect("JSON")).expect("JSON");
    assert_eq!(json["kind"], "bytes");
    assert_eq!(json["key_size_bytes"], 24);
    assert_eq!(json["value_size_bytes"], 100);
    assert_eq!(json["targets"].as_array().map(Vec::len), Some(0));
    let loaded = json["loaded"].as_array().expect("loads");
    assert!(
        loaded.iter().all(|it| it["ratio_to_farleaf"].is_f64()),
        "{json}"
    );
    assert!(report.to_table().contains("redis"), "{}", report.to_table());
}

/// Promise: a map that is not available on this host, or that does not hold such records, is
/// skipped with a report of the reason, and the others are compared.
#[test]
fn a_missing_map_is_told() {
    let plan = ComparisonPlan {
        peers: vec![PeerName::Farleaf, PeerName::Lmdb, PeerName::Redis],
        works: vec![Work::Get],
        kind: Kind::Strings(StringOptions {
            key_size_bytes: 600,
            value_size_bytes: 100,
            pages: PageOptions::default(),
            redis: "no-such-server".into(),
        }),
        ..of_strings("no-such-server".into())
    };
    let mut steps = Vec::new();
    let measured = compare(&plan, |step| steps.push(step.to_owned())).expect("a comparison");
    assert_eq!((measured.figures.len(), measured.skipped.len()), (2, 2));
    let report = Report::new(&plan, &measured);
    let table = report.to_table();
    for expected in [
        "skipped: redis: cannot start no-such-server",
        "skipped: lmdb: LMDB supports keys of at most 511 bytes",
    ] {
        assert!(
            steps.iter().any(|step| step.contains(expected)),
            "{steps:?}"
        );
        assert!(table.contains(expected), "{table}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&report.to_json().expect("JSON")).expect("JSON");
    assert_eq!(json["skipped"][1]["peer"], "redis");
}
