//! Figures with layers that have a tree or make calls: those of ROLEX and RF-tree.

use farleaf_sim::figures::config::{FigureKind, RF_TREE_EXPERIMENTS};
use farleaf_sim::figures::measure::Suite;

use crate::figures::{TINY, few_threads, few_threads_of, one_figure, written};

/// Promise: figures in which ROLEX's paper compares with FG and Sherman include these and RF-tree's
/// layer, and our ratio is beside each of the paper's; figures that vary models do not include
/// trees.
#[test]
fn trees_stand_where_the_paper_compares_with_them() {
    let files = written(&one_figure(few_threads().1), 2);
    let text = |name: &str| &files.iter().find(|(it, _)| it == name).expect("a file").1;
    for layer in [
        "learned", "rolex", "rf-tree", "sherman", "fg", "xstore", "rpc",
    ] {
        let line = format!(",{layer},");
        assert!(text("figure-7.csv").contains(&line), "{layer}");
    }
    let page = text("index.html");
    for over in ["fg", "sherman"] {
        let expected = format!("rolex over {over}: ");
        assert_eq!(page.matches(&expected).count(), 3, "A, D and E over {over}");
    }
    assert_eq!(page.matches("rolex over xstore: ").count(), 2, "A and D");
    assert_eq!(page.matches("rolex over rpc: ").count(), 1, "A");
    assert!(!page.contains(": not measured"), "every ratio has both");
    let experiments = few_threads().0;
    for figure in &experiments.figure {
        let layers = figure.layers.as_ref().map_or(2, Vec::len);
        let is_of_models = matches!(
            figure.kind,
            FigureKind::Epsilon { .. }
                | FigureKind::Slots { .. }
                | FigureKind::Models { .. }
                | FigureKind::Timeline { .. }
        );
        let has_calls = layers == 7;
        let is_counted = matches!(figure.kind, FigureKind::Metadata { .. });
        assert_eq!(has_calls, !is_of_models && !is_counted, "{}", figure.id);
        assert!(has_calls || layers == if is_counted { 5 } else { 2 });
    }
}

/// Promise: the figures of RF-tree are drawn like those of ROLEX: throughput by clients, time by
/// part, tails. Ratios are beside the paper's statements, the page names its testbed as the
/// paper's, and the parts add up to the latency.
#[test]
fn the_figures_of_rf_tree_are_drawn() {
    let (mut experiments, mut profile) = few_threads_of(RF_TREE_EXPERIMENTS);
    // The built-in profile's value: otherwise it would not be the paper's testbed.
    profile.model.compute.threads_per_node.value = 24.0;
    for figure in &mut experiments.figure {
        if let FigureKind::Clients { workloads, .. }
        | FigureKind::Latencies { workloads, .. }
        | FigureKind::TimeParts { workloads, .. } = &mut figure.kind
        {
            workloads.truncate(2);
        }
    }
    let suite = Suite::new(experiments, "tiny", TINY, profile).expect("they fit");
    let files = written(&suite, 2);
    let text = |name: &str| &files.iter().find(|(it, _)| it == name).expect("a file").1;
    let page = text("index.html");
    for expected in [
        "rf-tree over sherman: ",
        "sherman over rf-tree: ",
        "rf-tree over fg: ",
        "with its NICs (source: RF-tree, testbed: 2 servers",
        "Checksums, percent of an operation",
        "waiting in queues: ",
    ] {
        assert!(page.contains(expected), "{expected}");
    }
    assert!(!page.contains("Not the paper's testbed."));
    let unused = page.matches("(unused: no run depends on it)").count();
    assert_eq!(unused, 3, "cores that answer calls, and what one takes");
    assert!(text("figure-9-zipfian.svg").contains("A update"));
    assert!(text("figure-8-load-with-1-thread-a-server.svg").contains("checksums"));
    assert!(text("figure-6-load.svg").contains("client threads of each server"));
    let mut lines = text("figure-8.csv").lines();
    let header: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let at = |name: &str| header.iter().position(|it| *it == name).expect("there");
    let first = at("processor_ns_mean");
    assert_eq!(header.len(), first + 6);
    for line in lines {
        let cells: Vec<&str> = line.split(',').collect();
        let number = |index: usize| cells[index].parse::<f64>().expect("a number");
        let parts: f64 = (first..first + 6).map(number).sum();
        // The mean is not printed, and is not below half of the median.
        assert!(parts > number(at("latency_ns_p50")) / 2.0, "{line}");
        let wire_ns = number(at("wire_ns_mean")) / number(at("round_trips_mean"));
        assert!(
            (1_200.0..=1_830.0).contains(&wire_ns),
            "half is local: {line}"
        );
        assert!(number(at("checksum_ns_mean")) > 0.0, "{line}");
        assert!(number(at("backoff_ns_mean")) >= 0.0, "{line}");
    }
}
