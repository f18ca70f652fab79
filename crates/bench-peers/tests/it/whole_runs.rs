//! A small comparison, whole.

use clap::ValueEnum;
use farleaf_bench_peers::comparison::{Plan, compare};
use farleaf_bench_peers::peer::Work;
use farleaf_bench_peers::peers::PeerName;
use farleaf_bench_peers::report::Report;

/// Promise: with one thread and two, all maps find the same (a comparison ends with an error
/// otherwise), everything is measured in every round, every target is judged, and the JSON says so.
#[test]
fn a_small_comparison_measures_everything() {
    let plan = Plan {
        record_count: 1000,
        operation_count: 2000,
        round_count: 3,
        thread_counts: vec![1, 2],
        works: Work::ALL.to_vec(),
        peers: PeerName::value_variants().to_vec(),
        seed: 7,
        slots: 8,
    };
    let measured = compare(&plan, |_| {}).expect("all maps agree");
    let figure_count = 2 * (PeerName::value_variants().len() * 4 + 3);
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
