//! Training by memory nodes for clients: its time and its benefit, also with several memory nodes.

use farleaf_bench::distribution::Distribution;
use farleaf_index::LayerKind;
use farleaf_sim::experiment::image::Image;
use farleaf_sim::experiment::keys::KeySource;
use farleaf_sim::experiment::plan::{ExperimentTablePlan, ModelPlan, WorkPlan, mixed};
use farleaf_sim::experiment::run::{Measurement, run};
use farleaf_sim::experiment::training::Training;
use farleaf_sim::figures::config::{Experiments, RunSize, XSTORE_EXPERIMENTS};
use farleaf_sim::figures::measure::{Suite, SuiteError};
use farleaf_sim::nic::model::NetworkModel;
use farleaf_sim::nic::profile::load_profile;

use crate::figures::{few_threads_of, written};
use crate::xstore_figures::testbed;

/// Returns a plan in which a table of full leaves grows by this many inserts, half of all
/// operations, in windows.
fn growing(model: &NetworkModel, insert_count: u64, train_threads: usize) -> Vec<Measurement> {
    let window = insert_count * 2 / 4;
    let work = WorkPlan {
        workload: mixed(0.5, 0.0, 0.5),
        distribution: Some(Distribution::Uniform),
        threads_per_node: model.compute.threads_per_node.value as usize,
        in_flight_count: 4,
        warm_up_count: 1,
        window_counts: vec![window; 4],
        read_only_window_counts: Vec::new(),
        retraining: None,
        models: ModelPlan {
            train_thread_count: train_threads,
            is_speculative: false,
            ..ModelPlan::default()
        },
    };
    let table = ExperimentTablePlan {
        layer: LayerKind::Xstore,
        slots: 16,
        fill_percent: 100,
        epsilon_keys: 16.0,
        keys: KeySource::Bench("uniform".parse().expect("known")),
        record_count: 20_000,
        insert_count: work.insert_count(model.thread_count()) as usize,
        seed: 3,
    };
    let node_count = model.memory.node_count.value as usize;
    let image = Image::load(&table, node_count, model.thread_count()).expect("loaded");
    run(&image, &work, model).expect("it runs")
}

fn all(windows: &[Measurement]) -> Training {
    let of_windows = windows.iter().filter_map(|it| it.training);
    of_windows.fold(Training::default(), Training::and)
}

fn duration_ns(windows: &[Measurement]) -> u64 {
    windows.iter().map(|it| it.duration_ns).sum()
}

fn fallbacks(windows: &[Measurement]) -> u64 {
    windows.iter().map(|it| it.fallback_count).sum()
}

/// Promise: threads train no more than they have time for, with cores of their own or shared with
/// calls. This holds also when a table has outgrown its models and all are trained at once.
#[test]
fn training_takes_its_time() {
    for core_count in [24.0, 2.0] {
        let mut model = testbed(2.0, 2.0, core_count);
        model.memory.retrain_ns_per_key.value = 500.0;
        let windows = growing(&model, 40_000, 2);
        let trained = all(&windows);
        let time_ns = duration_ns(&windows) as f64 * 2.0;
        let taken_ns = trained.leaf_count as f64 * 500.0;
        assert!(taken_ns <= time_ns * 1.01, "{core_count}: {trained:?}");
        let whole_count = trained.sub_model_count - trained.done_count;
        assert!(whole_count > 10, "all were trained anew: {trained:?}");
    }
}

/// Promise: models exist only once they have been trained: if training takes almost forever, a
/// table that has outgrown its models behaves as without training.
#[test]
fn models_come_when_they_are_trained() {
    let mut model = testbed(2.0, 2.0, 24.0);
    model.memory.retrain_ns_per_key.value = 1e6;
    let slow = growing(&model, 40_000, 1);
    let never = growing(&model, 40_000, 0);
    assert_eq!(all(&never).done_count, 0);
    // A sub-model of about 64 leaves takes 64 ms, and the run about 20 ms.
    assert!(duration_ns(&slow) < 60_000_000, "{}", duration_ns(&slow));
    assert_eq!(all(&slow).done_count, 0);
    let ratio = fallbacks(&slow) as f64 / fallbacks(&never) as f64;
    assert!((0.95..1.05).contains(&ratio), "{ratio}");
}

/// Promise: threads train a table's sub-models concurrently, without blocking each other. More
/// threads mean that due sub-models are trained earlier and fewer reads are calls.
#[test]
fn threads_train_side_by_side() {
    let mut model = testbed(4.0, 4.0, 24.0);
    model.memory.retrain_ns_per_key.value = 400.0;
    let [none, one, two] = [0, 1, 2].map(|count| growing(&model, 4_000, count));
    let rate = |of: &[Measurement]| all(of).leaf_count as f64 / duration_ns(of) as f64;
    let ratio = rate(&two) / rate(&one);
    assert!((1.7..2.1).contains(&ratio), "{ratio}");
    // A single thread is always busy; its unfinished training at the end is not counted.
    let busy = rate(&one) * 400.0;
    assert!((0.8..1.02).contains(&busy), "{busy}: {:?}", all(&one));
    let waited = |of: &[Measurement]| all(of).waited_ns_mean().expect("trained");
    assert!(waited(&two) < waited(&one) * 0.8);
    assert!(fallbacks(&two) < fallbacks(&one) && fallbacks(&one) < fallbacks(&none));
}

/// Promise: the same seed gives the same numbers, with threads that train.
#[test]
fn training_is_deterministic() {
    let model = testbed(2.0, 2.0, 4.0);
    assert_eq!(growing(&model, 2_000, 2), growing(&model, 2_000, 2));
}

/// Promise: a figure of servers runs on the stated number of servers, each with its own cores and
/// NICs, over the testbed's own clients.
#[test]
fn servers_are_those_of_the_figure() {
    let (mut experiments, mut profile) = few_threads_of(XSTORE_EXPERIMENTS);
    experiments
        .figure
        .retain(|figure| figure.id == "figure-13b");
    profile.model.memory.cores_per_node.value = 1.0;
    profile.model.compute.node_count.value = 4.0;
    experiments.defaults.in_flight_count.value = 8;
    let size = RunSize {
        record_count: 6_000,
        warm_up_operation_count: 500,
        window_operation_count: 3_000,
    };
    let suite = Suite::new(experiments, "tiny", size, profile).expect("they fit");
    let files = written(&suite, 2);
    let csv = files.iter().find(|(name, _)| name == "figure-13b.csv");
    let mut lines = csv.expect("a file").1.lines();
    let header: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let column = |name: &str| header.iter().position(|it| *it == name).expect("there");
    let mut rates = Vec::new();
    for line in lines {
        let cells: Vec<&str> = line.split(',').collect();
        if cells[column("layer")] != "rpc" || cells[column("chart")] != "YCSB C" {
            continue;
        }
        let servers = ["x", "memory_node_count", "memory_nics_per_node"];
        let rate: f64 = cells[column("operations_per_s")].parse().expect("a rate");
        rates.push((servers.map(|name| cells[column(name)]), rate));
    }
    let servers: Vec<[&str; 3]> = rates.iter().map(|(of, _)| *of).collect();
    let expected = [
        ["1", "1", "1"],
        ["2", "1", "2"],
        ["4", "2", "2"],
        ["6", "3", "2"],
    ];
    assert_eq!(servers, expected);
    for ((of, rate), server_count) in rates.iter().zip([1.0, 1.0, 2.0, 3.0]) {
        let ratio = rate / (server_count * 1e9 / suite.model().memory.call_ns.value);
        assert!((0.9..1.05).contains(&ratio), "{of:?}: {ratio}");
    }
}

/// Promise: invalid figures are refused with the figure and the key.
#[test]
fn what_is_wrong_with_servers_and_training_is_named() {
    for (from, to, expected) in [
        (
            "{ node_count = 3, nics_per_node = 2 },",
            "{ node_count = 65, nics_per_node = 2 },",
            "servers of figure 'figure-13b': node_count = 65: must be from 1 to 64",
        ),
        (
            "{ node_count = 3, nics_per_node = 2 },",
            "{ node_count = 3, nics_per_node = 0 },",
            "servers of figure 'figure-13b': nics_per_node = 0: must be from 1 to 8",
        ),
        (
            "{ node_count = 3, nics_per_node = 2 },",
            "{ node_count = 4, nics_per_node = 1 },",
            "servers of figure 'figure-13b': 4 is listed twice",
        ),
        (
            "train_thread_counts = [1, 2, 4]",
            "train_thread_counts = [65]",
            "train_thread_counts of figure 'figure-14a' = 65: must be from 0 to 64",
        ),
        (
            "train_thread_counts = [1, 2, 4]",
            "train_thread_counts = [1, 1]",
            "train_thread_counts of figure 'figure-14a': 1 is listed twice",
        ),
        (
            "speculation = [true]",
            "speculation = []",
            "speculation of figure 'figure-14a': expected at least one",
        ),
        (
            "insert_percent = 4",
            "insert_percent = 0",
            "insert_percent of figure 'figure-14a' = 0: must be from 1 to 400",
        ),
        ("shows = \"speed\"", "shows = \"spede\"", "spede"),
    ] {
        assert!(XSTORE_EXPERIMENTS.contains(from), "nothing to replace");
        let text = XSTORE_EXPERIMENTS.replacen(from, to, 1);
        let error = Experiments::parse(&text, "mine.toml").expect_err("refused");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let (mut experiments, _) = few_threads_of(XSTORE_EXPERIMENTS);
    experiments
        .figure
        .retain(|figure| figure.id == "figure-13b");
    let profile = load_profile("rf-tree").expect("embedded");
    let quick = experiments.size.quick;
    let refused = Suite::new(experiments, "quick", quick, profile).expect_err("shared machines");
    assert!(
        matches!(refused, SuiteError::SharedServers { .. }),
        "{refused}"
    );
}
