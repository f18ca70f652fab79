//! Modeled network: its self-check, the laws of its queues, and experiments on it.

use std::cell::Cell;

use farleaf_bench::workload::{OperationKind, WorkloadLetter, WorkloadSpec};
use farleaf_index::LayerKind;
use farleaf_sim::experiment::image::Image;
use farleaf_sim::experiment::plan::{ExperimentTablePlan, ModelPlan, WorkPlan, mixed};
use farleaf_sim::experiment::run::{Measurement, run};
use farleaf_sim::nic::model::{Measure, NetworkModel};
use farleaf_sim::nic::probe::{
    PROBE_COUNT, Probe, ProbeResult, READ_SIZES_BYTES, Verdict, self_check, unloaded,
};
use farleaf_sim::nic::profile::load_profile;

pub(crate) fn profile(name: &str) -> NetworkModel {
    load_profile(name).expect("embedded").model
}

/// Promise: in all profiles every published rate is met within the stated tolerance, and no limit
/// of the profile is exceeded.
#[test]
fn modelled_rates_are_near_published_ones_and_within_the_limits() {
    for name in ["rolex", "rf-tree", "xstore"] {
        let model = profile(name);
        let nics = model.memory.nics_per_node.value;
        let check = self_check(&model, &|| {});
        assert_eq!(check.verdict(), Verdict::Near, "{name}");
        let results = check.results;
        assert_eq!(results.len(), READ_SIZES_BYTES.len() + 2);
        let compared = results.iter().filter(|it| it.published.is_some()).count();
        assert_eq!(compared, model.published.len(), "{name}: each is measured");
        let latencies = results.iter().filter_map(ProbeResult::latency_ratio);
        assert_eq!(latencies.count(), model.published_latency.len(), "{name}");
        for result in &results {
            assert!(result.is_near(), "{name}: {result:?}");
            assert!(
                result.rate_per_s <= limit(&model, result) * nics * 1.001,
                "{result:?}"
            );
        }
    }
}

/// Returns the rate that the narrowest stage of one NIC permits.
fn limit(model: &NetworkModel, result: &ProbeResult) -> f64 {
    let nic = &model.nic;
    let reply_bytes = result.probe.size_bytes as f64 + nic.response_header_bytes.value;
    let link = nic.bandwidth_gbit_per_s.value * 1e9 / 8.0 / reply_bytes;
    match result.probe.measure {
        Measure::Read => link.min(nic.verb_rate_per_s.value),
        Measure::CasSpread => nic.atomic_rate_per_s.value,
        Measure::CasOneWord => 1e9 / nic.atomic_same_slot_ns.value,
    }
}

/// Promise: a verb without load takes exactly the sum of its parts.
#[test]
fn an_unloaded_verb_takes_the_sum_of_its_parts() {
    let model = profile("rolex");
    let nic = &model.nic;
    for size_bytes in [8_u64, 512, 4096] {
        let byte_ns = 8.0 / nic.bandwidth_gbit_per_s.value;
        let reply_ns = (size_bytes as f64 + nic.response_header_bytes.value) * byte_ns;
        let compute = &model.compute;
        let parts = compute.doorbell_ns.value
            + compute.verb_ns.value
            + compute.completion_ns.value
            + compute.checksum_ns_per_kib.value * size_bytes as f64 / 1024.0
            + nic.doorbell_ns.value
            + 2.0 * 1e9 / nic.verb_rate_per_s.value
            + 2.0 * nic.request_header_bytes.value * byte_ns
            + 2.0 * nic.one_way_ns.value
            + 2.0 * reply_ns;
        let probe = Probe {
            measure: Measure::Read,
            size_bytes,
        };
        let took = unloaded(&model, probe) as f64;
        // Each of six stages ends at a whole nanosecond.
        assert!(
            (parts..=parts + 6.0).contains(&took),
            "{size_bytes}: {took} for {parts}"
        );
    }
}

pub(crate) fn image(model: &NetworkModel, layer: LayerKind, threads_per_node: usize) -> Image {
    let plan = ExperimentTablePlan {
        layer,
        slots: 16,
        fill_percent: 75,
        epsilon_keys: 16.0,
        keys: "uniform".parse().expect("known"),
        record_count: 20_000,
        insert_count: 20_000,
        seed: 1,
    };
    let thread_count = model.compute.node_count.value as usize * threads_per_node;
    let node_count = model.memory.node_count.value as usize;
    Image::load(&plan, node_count, thread_count).expect("loads")
}

pub(crate) fn work(workload: WorkloadSpec, threads_per_node: usize) -> WorkPlan {
    WorkPlan {
        workload,
        distribution: None,
        threads_per_node,
        in_flight_count: 2,
        warm_up_count: 1_000,
        window_counts: vec![5_000, 5_000],
        read_only_window_counts: Vec::new(),
        retraining: None,
        models: ModelPlan::default(),
    }
}

fn measured(model: &NetworkModel, layer: LayerKind, workload: WorkloadSpec) -> Vec<Measurement> {
    let image = image(model, layer, 4);
    run(&image, &work(workload, 4), model).expect("runs")
}

/// Promise: the same experiment gives exactly the same numbers.
#[test]
fn an_experiment_is_deterministic() {
    let model = profile("rolex");
    let workload = WorkloadSpec::of(WorkloadLetter::D);
    let first = measured(&model, LayerKind::Learned, workload);
    let again = measured(&model, LayerKind::Learned, workload);
    assert_eq!(first, again);
    assert_eq!(first.len(), 2);
}

/// Promise: all workloads run on all layers without losing a key, and no NIC exceeds its limits.
#[test]
fn all_workloads_run_on_all_layers() {
    let model = profile("rolex");
    for layer in LayerKind::OF_LEAVES {
        for letter in WorkloadLetter::ALL {
            let windows = measured(&model, layer, WorkloadSpec::of(letter));
            for window in windows {
                assert_eq!(window.operation_count, 5_000);
                let threads_in_flight = 3.0 * 4.0 * 2.0;
                let fastest_ns = 2.0 * model.nic.one_way_ns.value;
                let ceiling = threads_in_flight * 1e9 / fastest_ns;
                assert!(
                    window.operations_per_s < ceiling,
                    "{layer} {letter}: {window:?}"
                );
                for (stage, _, share) in window.utilisation.stages() {
                    assert!(
                        (0.0..=1.0).contains(&share),
                        "{layer} {letter} {stage}: {share}"
                    );
                }
            }
        }
    }
}

/// Promise: a get is one round trip on both layers; ROLEX reads its range of leaves, the learned
/// layer little more than one leaf.
#[test]
fn gets_cost_what_the_layers_promise() {
    let model = profile("rolex");
    let gets = |layer| {
        let windows = measured(&model, layer, WorkloadSpec::of(WorkloadLetter::C));
        windows[1].kinds[&OperationKind::Read]
    };
    let (learned, rolex) = (gets(LayerKind::Learned), gets(LayerKind::Rolex));
    assert!(learned.far_costs().round_trips_mean < 1.05, "{learned:?}");
    assert!(rolex.far_costs().round_trips_mean < 1.05, "{rolex:?}");
    assert!(learned.far_costs().bytes_read_mean * 2.0 < rolex.far_costs().bytes_read_mean);
    assert!(learned.latency_ns.p50 >= 2 * model.nic.one_way_ns.value as u64);
}

/// Promise: trees cost the same as elsewhere. A get is one round trip with `rf-tree`, and with
/// `sherman`, whose cache has met every inner node at the start. With `fg` it is one per level plus
/// one. Each get reads one leaf, and the held metadata matches that.
#[test]
fn gets_in_trees_cost_what_the_layers_promise() {
    let model = profile("rolex");
    let gets = |layer| {
        let windows = measured(&model, layer, WorkloadSpec::of(WorkloadLetter::C));
        (
            windows[0].kinds[&OperationKind::Read],
            windows[1].metadata_bytes_per_key,
        )
    };
    let leaf_bytes = 288.0;
    let [rf_tree, sherman, fg] = [LayerKind::RfTree, LayerKind::Sherman, LayerKind::Fg].map(gets);
    for (gets, _) in [rf_tree, sherman] {
        assert!(
            (gets.far_costs().round_trips_mean - 1.0).abs() < 1e-9,
            "{gets:?}"
        );
        assert!(
            (gets.far_costs().bytes_read_mean - leaf_bytes).abs() < 9.0,
            "{gets:?}"
        );
    }
    // A third of 20,000 records in leaves of 12, with 45 leaves per node: 556 leaves, 13 nodes, 1
    // root.
    assert!(
        (fg.0.far_costs().round_trips_mean - 3.0).abs() < 1e-9,
        "{fg:?}"
    );
    let inner_bytes = fg.0.far_costs().bytes_read_mean - leaf_bytes;
    assert!((inner_bytes - 2.0 * 1016.0).abs() < 9.0, "{fg:?}");
    let held = [fg.1, rf_tree.1, sherman.1];
    assert!(held[0] < 0.1 && held[1] > 1.0 && held[2] > 1.0, "{held:?}");
}

/// Promise: for every layer, the metadata of a session counted before a run equals that in the run.
#[test]
fn metadata_is_the_same_before_a_run_and_in_it() {
    let model = profile("rolex");
    for layer in LayerKind::OF_LEAVES {
        let image = image(&model, layer, 4);
        let work = work(mixed(1.0, 0.0, 0.0), 4);
        let window = &run(&image, &work, &model).expect("runs")[1];
        let counted = image.metadata_bytes() as f64 / 20_000.0;
        let held = window.metadata_bytes_per_key;
        assert!(
            (counted - held).abs() < 1e-3 * held,
            "{layer}: {counted}, {held}"
        );
        assert_eq!(image.model_count() > 0, !layer.has_tree(), "{layer}");
        assert!((1_600..1_800).contains(&image.leaf_count()), "{layer}");
    }
}

/// Promise: with any number of clients, READs return no more than the links carry.
#[test]
fn more_threads_never_exceed_the_link() {
    let model = profile("rolex");
    let image = image(&model, LayerKind::Rolex, 24);
    let plan = WorkPlan {
        in_flight_count: 16,
        ..work(mixed(1.0, 0.0, 0.0), 24)
    };
    let window = &run(&image, &plan, &model).expect("runs")[1];
    let bytes_per_s = window.operations_per_s
        * window.kinds[&OperationKind::Read]
            .far_costs()
            .bytes_read_mean;
    let links = 3.0 * model.nic.bandwidth_gbit_per_s.value * 1e9 / 8.0;
    assert!(bytes_per_s < links, "{bytes_per_s} of {links}");
    assert!(
        window.utilisation.memory_transmit > 0.9,
        "the link is what binds: {window:?}"
    );
}

/// Promise: tables that were loaded for another network, other threads or no work at all are
/// refused with the available and the needed number; nothing panics.
#[test]
fn tables_that_do_not_fit_are_refused() {
    let model = profile("rolex");
    let image = image(&model, LayerKind::Learned, 2);
    let reads = mixed(1.0, 0.0, 0.0);
    let refusal = |work: &WorkPlan, model: &NetworkModel| {
        let error = run(&image, work, model).expect_err("refused");
        error.to_string()
    };
    for memory_count in [1.0, 2.0, 4.0] {
        let mut other = model.clone();
        other.memory.node_count.value = memory_count;
        let error = refusal(&work(reads, 2), &other);
        let expected =
            format!("loaded for 3 memory nodes and the run needs {memory_count}; load them again");
        assert!(error.contains(&expected), "{error}");
    }
    let error = refusal(&work(reads, 3), &model);
    assert!(
        error.contains("for 6 client threads and the run needs 9"),
        "{error}"
    );
    let mut none = work(reads, 2);
    none.in_flight_count = 0;
    assert_eq!(
        refusal(&none, &model),
        "in_flight_count = 0: must be from 1 to 4096"
    );
    assert_eq!(
        refusal(&work(reads, 257), &model),
        "threads_per_node = 257: must be from 1 to 256"
    );
    let mut none = work(reads, 2);
    none.window_counts.clear();
    assert!(refusal(&none, &model).starts_with("windows = 0: "));
    for (node_count, thread_count, expected) in [
        (0, 1, "memory nodes = 0: must be from 1 to 256"),
        (300, 1, "memory nodes = 300: must be from 1 to 256"),
        (3, 5000, "client threads = 5000: must be from 1 to 1000"),
    ] {
        let refused = Image::load(image.plan(), node_count, thread_count);
        assert_eq!(refused.expect_err("refused").to_string(), expected);
    }
}

/// Promise: in growing tables, a window's metadata is divided by the number of keys at its end, not
/// by the number of loaded ones.
#[test]
fn metadata_is_divided_by_the_keys_that_are_there() {
    let model = profile("rolex");
    let windows = measured(&model, LayerKind::Rolex, mixed(0.0, 0.0, 1.0));
    let counts: Vec<u64> = windows.iter().map(|window| window.key_count).collect();
    // 20,000 are loaded, 1,000 inserted before the first window, and 5,000 in each.
    assert_eq!(counts, [26_000, 31_000]);
    let bytes = windows
        .iter()
        .map(|window| window.metadata_bytes_per_key * window.key_count as f64);
    for bytes in bytes {
        assert!((bytes - bytes.round()).abs() < 1e-6, "{bytes}");
    }
    let unchanged = &measured(&model, LayerKind::Rolex, mixed(1.0, 0.0, 0.0))[1];
    assert_eq!(unchanged.key_count, 20_000);
}

/// Promise: the self-check reports each finished probe.
#[test]
fn the_self_check_tells_how_far_it_is() {
    let reported = Cell::new(0);
    let check = self_check(&profile("rolex"), &|| reported.set(reported.get() + 1));
    assert_eq!(
        (reported.get(), check.results.len()),
        (PROBE_COUNT, PROBE_COUNT)
    );
}

/// Promise: the self-check reports a deviation from a published latency, and gives no verdict on a
/// testbed without published numbers.
#[test]
fn the_self_check_tells_far_from_unknown() {
    let mut model = profile("rolex");
    model.published.clear();
    let check = self_check(&model, &|| {});
    assert_eq!(check.verdict(), Verdict::Near, "{}", check.summary());
    model.nic.one_way_ns.value *= 1.3;
    let check = self_check(&model, &|| {});
    assert_eq!(check.verdict(), Verdict::Far);
    assert!(check.summary().starts_with("NOT all"));
    model.published_latency.clear();
    let check = self_check(&model, &|| {});
    assert_eq!(check.verdict(), Verdict::NothingToCompare);
    assert!(check.summary().starts_with("Nothing to compare"));
}
