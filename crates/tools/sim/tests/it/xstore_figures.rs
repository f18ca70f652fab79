//! Figures with layers whose memory node answers calls: XStore's.

use farleaf::ModelCache;
use farleaf_bench::workload::{OperationKind, WorkloadLetter, WorkloadSpec};
use farleaf_index::LayerKind;
use farleaf_sim::experiment::image::Image;
use farleaf_sim::experiment::keys::KeySource;
use farleaf_sim::experiment::plan::{ExperimentTablePlan, ModelPlan, WorkPlan};
use farleaf_sim::experiment::run::{Measurement, run};
use farleaf_sim::figures::config::{FigureKind, XSTORE_EXPERIMENTS};
use farleaf_sim::figures::measure::Suite;
use farleaf_sim::nic::model::NetworkModel;
use farleaf_sim::nic::profile::load_profile;

use crate::figures::{TINY, few_threads_of, written};

/// Returns XStore's testbed with this many compute nodes, threads per node, and server cores.
pub(crate) fn testbed(node_count: f64, thread_count: f64, core_count: f64) -> NetworkModel {
    let mut model = load_profile("xstore").expect("embedded").model;
    model.compute.node_count.value = node_count;
    model.compute.threads_per_node.value = thread_count;
    model.memory.cores_per_node.value = core_count;
    model
}

/// Runs a window of a workload over such a testbed.
pub(crate) fn window(
    model: &NetworkModel,
    layer: LayerKind,
    letter: WorkloadLetter,
    fill_percent: u8,
    models: ModelPlan,
) -> Measurement {
    let threads_per_node = model.compute.threads_per_node.value as usize;
    let work = WorkPlan {
        workload: WorkloadSpec::of(letter),
        distribution: None,
        threads_per_node,
        in_flight_count: 4,
        warm_up_count: 500,
        window_counts: vec![6_000],
        read_only_window_counts: Vec::new(),
        retraining: None,
        models,
    };
    let table = ExperimentTablePlan {
        layer,
        slots: 16,
        fill_percent,
        epsilon_keys: 16.0,
        keys: KeySource::Bench("uniform".parse().expect("known")),
        record_count: 20_000,
        insert_count: work.insert_count(model.thread_count()) as usize,
        seed: 3,
    };
    let node_count = model.memory.node_count.value as usize;
    let image = Image::load(&table, node_count, model.thread_count()).expect("loaded");
    let mut windows = run(&image, &work, model).expect("it runs");
    windows.pop().expect("one window")
}

/// Promise: if the server's cores limit the rate, it is determined by the cost of one call: for all
/// operations (`rpc`) or half of them (`xstore`, whose clients read themselves). Training takes its
/// threads' cores.
#[test]
fn calls_take_cores_of_the_server() {
    let model = testbed(4.0, 4.0, 4.0);
    let per_core_per_s = 1e9 / model.memory.call_ns.value;
    let rpc = window(
        &model,
        LayerKind::Rpc,
        WorkloadLetter::C,
        50,
        ModelPlan::default(),
    );
    let xstore = window(
        &model,
        LayerKind::Xstore,
        WorkloadLetter::A,
        50,
        ModelPlan::default(),
    );
    for (what, found, expected) in [
        ("rpc", rpc.operations_per_s, 4.0 * per_core_per_s),
        (
            "xstore",
            xstore.operations_per_s,
            2.0 * 2.0 * per_core_per_s,
        ),
    ] {
        let ratio = found / expected;
        assert!((0.9..1.1).contains(&ratio), "{what}: {found} of {expected}");
    }
    let update = &xstore.kinds[&OperationKind::Update];
    assert!(update.far_costs().round_trips_mean < 1.01, "{update:?}");
    let read = &xstore.kinds[&OperationKind::Read];
    assert!(read.far_costs().round_trips_mean < 1.01 && read.far_costs().leaves_read_mean < 1.01);
    assert_eq!(xstore.fallback_count, 0, "nothing has split");
}

/// Promise: a scan that the server executes takes a core longer for each record beyond the first,
/// and no other operation does.
#[test]
fn scanned_records_take_cores_of_the_server() {
    let mut model = testbed(4.0, 4.0, 4.0);
    let gets = |model: &NetworkModel| {
        window(
            model,
            LayerKind::Rpc,
            WorkloadLetter::C,
            50,
            ModelPlan::default(),
        )
    };
    let few = gets(&model);
    model.memory.call_record_ns.value = 200.0;
    assert_eq!(gets(&model), few);
    let scans = window(
        &model,
        LayerKind::Rpc,
        WorkloadLetter::E,
        50,
        ModelPlan::default(),
    );
    // 95 % are scans of 50.5 records on average.
    let call_ns = model.memory.call_ns.value + 0.95 * 49.5 * 200.0;
    let ratio = scans.operations_per_s / (4.0 * 1e9 / call_ns);
    assert!((0.9..1.1).contains(&ratio), "{ratio} of what four cores do");
}

/// Promise: a reply leaves by the NIC that its session's machine uses: if all sessions use the
/// first NIC, that one sends as much as it receives.
#[test]
fn replies_leave_by_the_nic_of_the_request() {
    let mut model = testbed(4.0, 1.0, 24.0);
    // Only links limit the rate.
    model.nic.bandwidth_gbit_per_s.value = 0.5;
    let found = window(
        &model,
        LayerKind::Rpc,
        WorkloadLetter::C,
        50,
        ModelPlan::default(),
    );
    let (sent, received) = (
        found.utilisation.memory_transmit,
        found.utilisation.memory_receive,
    );
    assert!(sent > 0.9 && received > 0.9, "{:?}", found.utilisation);
}

/// Promise: without splits, models lead to every key, on each of several servers, though a server's
/// first leaf begins far before its first key.
#[test]
fn nothing_falls_back_on_several_servers() {
    let mut model = testbed(2.0, 2.0, 24.0);
    model.memory.node_count.value = 3.0;
    let found = window(
        &model,
        LayerKind::Xstore,
        WorkloadLetter::C,
        50,
        ModelPlan::default(),
    );
    assert_eq!(found.fallback_count, 0);
    let read = &found.kinds[&OperationKind::Read];
    assert!(read.far_costs().leaves_read_mean < 1.01, "{read:?}");
}

/// Promise: the client's cache of models determines round trips and held bytes. Keys moved by
/// splits without training are found by the link, or by asking the node.
#[test]
fn models_are_used_as_planned() {
    let model = testbed(2.0, 2.0, 24.0);
    let mut retained = Vec::new();
    for (cache, trips) in [
        (ModelCache::All, 1.0),
        (ModelCache::Models, 2.0),
        (ModelCache::Top, 3.0),
    ] {
        let models = ModelPlan {
            cache,
            ..ModelPlan::default()
        };
        let found = window(&model, LayerKind::Xstore, WorkloadLetter::C, 50, models);
        let read = &found.kinds[&OperationKind::Read];
        assert!(
            (read.far_costs().round_trips_mean - trips).abs() < 0.01,
            "{cache}"
        );
        retained.push(found.metadata_bytes_per_key);
    }
    assert!(
        retained[0] > 1.0 && retained[0] > 4.0 * retained[1] && retained[1] > retained[2],
        "{retained:?}"
    );
    // Leaves are full, so every insert splits one; the training takes almost forever.
    let mut slow = model;
    slow.memory.retrain_ns_per_key.value = 1e5;
    let fallbacks = [true, false].map(|is_speculative| {
        let models = ModelPlan {
            is_speculative,
            ..ModelPlan::default()
        };
        window(&slow, LayerKind::Xstore, WorkloadLetter::D, 100, models).fallback_count
    });
    assert!(fallbacks[1] > 50, "{fallbacks:?}");
    assert!(fallbacks[0] * 2 < fallbacks[1], "{fallbacks:?}");
}

/// Promise: XStore's figures are drawn, with the paper's numbers beside ours, and the page contains
/// only measured numbers.
#[test]
fn the_figures_of_xstore_are_drawn() {
    let (mut experiments, mut profile) = few_threads_of(XSTORE_EXPERIMENTS);
    profile.model.compute.node_count.value = 2.0;
    for figure in &mut experiments.figure {
        if let FigureKind::Timeline { window_count, .. } = &mut figure.kind {
            *window_count = 2;
        }
    }
    let suite = Suite::new(experiments, "tiny", TINY, profile).expect("they fit");
    let files = written(&suite, 2);
    let text = |name: &str| &files.iter().find(|(it, _)| it == name).expect("a file").1;
    let page = text("index.html");
    for expected in [
        "xstore over rpc: ",
        "xstore over sherman: ",
        "learned over xstore: ",
        "C, M op/s",
        "reads that were calls, as models did not lead there",
        "memory.call_ns",
        "train_thread_count",
        "Not the paper's testbed.",
    ] {
        assert!(page.contains(expected), "{expected}");
    }
    assert!(!page.contains(": not measured"), "every number has ours");
    assert!(text("figure-13b.csv").contains(",memory_nic_count,6,"));
    assert!(text("figure-14a.csv").contains(",train_thread_count,4,"));
    assert!(text("figure-14a-uniform-one-link-first.svg").contains("thousand sub-models"));
    assert!(text("figure-14b-latest-asked-at-once.svg").contains("million operations"));
    assert!(text("figure-14b-fallbacks-latest-asked-at-once.svg").contains("were calls"));
    assert!(text("figure-13a.csv").contains(",mix,57:41:2,"));
    assert!(text("figure-15abc.csv").contains(",model_cache,top,"));
    assert!(text("figure-15de-ycsb-c.svg").contains("noised"));
}
