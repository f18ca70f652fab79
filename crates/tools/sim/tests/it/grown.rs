//! Experiments in which memory nodes retrain: that they do, its cost, and its benefit.

use std::cell::Cell;
use std::rc::Rc;

use farleaf_base::random::Random;
use farleaf_base::{NodeId, WordAddr};
use farleaf_bench::distribution::Distribution;
use farleaf_bench::report::KindReport;
use farleaf_bench::workload::OperationKind;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::LayerKind;
use farleaf_sim::experiment::plan::{RetrainPlan, WorkPlan, mixed};
use farleaf_sim::experiment::run::{Measurement, Retraining, run};
use farleaf_sim::fabric::SharedWorld;
use farleaf_sim::fabric::endpoint::SimEndpoint;
use farleaf_sim::fabric::executor::{ExecutorOutcome, Tasks};
use farleaf_sim::fabric::world::Nanos;
use farleaf_sim::nic::model::NetworkModel;
use farleaf_sim::nic::network::Network;

use crate::network::{image, profile, work};

const EACH: [LayerKind; 2] = [LayerKind::Learned, LayerKind::Rolex];

/// Policy with frequent ticks, as the tables are small.
const PLAN: RetrainPlan = RetrainPlan {
    tick_ns: 20_000,
    leaf_count_max: 512,
    joined_leaf_count: 8,
};

/// Returns a plan in which a thread of each compute node inserts and reads until the tables are
/// nearly twice as large, and then only reads.
fn growing(retraining: Option<RetrainPlan>) -> WorkPlan {
    WorkPlan {
        distribution: Some(Distribution::Uniform),
        window_counts: vec![8_000; 4],
        read_only_window_counts: vec![8_000; 4],
        retraining,
        ..work(mixed(0.5, 0.0, 0.5), 1)
    }
}

fn measured(layer: LayerKind, plan: &WorkPlan) -> Vec<Measurement> {
    let model = profile("rolex");
    run(&image(&model, layer, 1), plan, &model).expect("runs")
}

fn reads(window: &Measurement) -> &KindReport {
    &window.kinds[&OperationKind::Read]
}

fn all(windows: &[Measurement]) -> Retraining {
    let of_windows = windows.iter().filter_map(|it| it.retraining);
    of_windows.fold(Retraining::default(), Retraining::and)
}

/// Promise: memory nodes retrain while tables grow. Afterwards gets cost the same as in a loaded
/// table: one round trip, and one leaf with `learned`, whose sessions then hold less. With `rolex`
/// they read at most the leaves of the range. Without retraining, gets cost more.
#[test]
fn retraining_brings_gets_back_to_where_they_were() {
    for layer in EACH {
        let with = measured(layer, &growing(Some(PLAN)));
        let without = measured(layer, &growing(None));
        assert_eq!((with.len(), without.len()), (8, 8));
        assert!(without.iter().all(|it| it.retraining.is_none()));
        let done = all(&with);
        assert!(done.retraining_count > 3, "{layer}: {done:?}");
        assert!(done.record_count > 20_000, "{layer}: {done:?}");
        let held = [&with[7], &without[7]].map(|it| it.metadata_bytes_per_key);
        let (with, without) = (reads(&with[7]), reads(&without[7]));
        assert!(
            with.far_costs().round_trips_mean < 1.01,
            "{layer}: {with:?}"
        );
        if layer == LayerKind::Learned {
            assert!(with.far_costs().one_leaf_fraction > 0.99, "{with:?}");
            assert!(without.far_costs().one_leaf_fraction < 0.99, "{without:?}");
            assert!(held[0] < held[1], "{held:?}");
        } else {
            assert!(with.far_costs().leaves_read_mean < 3.6, "{with:?}");
            assert!(without.far_costs().leaves_read_mean > with.far_costs().leaves_read_mean + 0.3);
        }
    }
}

/// Promise: training takes a memory node's core for the time that the profile states, and a slower
/// core retrains fewer leaves in the same time.
#[test]
fn training_takes_a_core() {
    for layer in EACH {
        let [quick, slow] = [10.0, 20_000.0].map(|ns_per_key| {
            let mut model = profile("rolex");
            model.memory.retrain_ns_per_key.value = ns_per_key;
            let plan = growing(Some(PLAN));
            run(&image(&model, layer, 1), &plan, &model).expect("runs")
        });
        let (quick_done, slow_done) = (all(&quick), all(&slow));
        assert!(
            slow_done.record_count * 2 < quick_done.record_count,
            "{layer}: {slow_done:?} {quick_done:?}"
        );
        let busiest = |of: &[Measurement]| {
            let shares = of.iter().map(|it| it.utilisation.memory_core);
            shares.fold(0.0, f64::max)
        };
        assert!(busiest(&slow) > 0.9 && busiest(&slow) <= 1.0);
        assert!(busiest(&quick) < busiest(&slow));
    }
}

/// Promise: with retraining, too, the same experiment gives exactly the same numbers.
#[test]
fn retraining_is_deterministic() {
    for layer in EACH {
        let plan = growing(Some(PLAN));
        assert_eq!(measured(layer, &plan), measured(layer, &plan));
    }
}

/// Promise: without inserts no retraining is due, and no number depends on it.
#[test]
fn what_inserts_nothing_is_the_same_with_retraining() {
    for layer in EACH {
        let [with, without] = [Some(PLAN), None].map(|retraining| {
            let plan = WorkPlan {
                retraining,
                ..work(mixed(0.5, 0.5, 0.0), 1)
            };
            measured(layer, &plan)
        });
        assert_eq!(with, without);
    }
}

/// Promise: the cost of an operation does not include following new roots. A get of `learned` that
/// reads one leaf reads the bytes of one leaf, however many roots its session has followed.
#[test]
fn following_is_no_part_of_an_operation() {
    let windows = measured(LayerKind::Learned, &growing(Some(PLAN)));
    let first = reads(&windows[0]).far_costs().bytes_read_mean;
    let last = reads(&windows[7]);
    let per_leaf = last.far_costs().bytes_read_mean / last.far_costs().leaves_read_mean;
    assert!((per_leaf - 288.0).abs() < 3.0, "{last:?}");
    assert!(first < 1.2 * 288.0, "{first}");
}

/// Returns the time of a READ of a memory node's own word.
fn own_read_ns(model: &NetworkModel, trained_record_count: u64) -> Nanos {
    let memories = vec![vec![0; 64]; model.memory.node_count.value as usize];
    let world = SharedWorld::with_machines(memories, Network::new(model), Random::new(1));
    let own = SimEndpoint::new(&world);
    world.modelled().machines.place_at_memory(own.client(), 1);
    let took = Rc::new(Cell::new(0));
    let tasks = Tasks::new(&world);
    let (noted, clock) = (Rc::clone(&took), SharedWorld::clone(&world));
    tasks.spawn(async move {
        let started_at = clock.borrow().now();
        own.note_training(1, trained_record_count);
        let mut batch = Batch::new();
        batch.read(WordAddr::new(NodeId(1), 0), 1);
        own.execute(&mut batch).await.expect("inside");
        noted.set(clock.borrow().now() - started_at);
    });
    assert_eq!(tasks.run(u64::MAX), ExecutorOutcome::Done);
    took.get()
}

/// Promise: a memory node's own verb goes through its NIC twice and over no link. It takes the sum
/// of these parts, whatever the bandwidth and the wire, after earlier training.
#[test]
fn a_loopback_takes_the_sum_of_its_parts() {
    let mut model = profile("rolex");
    let (compute, nic) = (&model.compute, &model.nic);
    let parts = compute.doorbell_ns.value
        + compute.verb_ns.value
        + compute.completion_ns.value
        + compute.checksum_ns_per_kib.value * 8.0 / 1024.0
        + nic.doorbell_ns.value
        + 2.0 * 1e9 / nic.verb_rate_per_s.value
        + 2.0 * model.memory.loopback_ns.value;
    let took = own_read_ns(&model, 0) as f64;
    assert!((parts..=parts + 6.0).contains(&took), "{took} for {parts}");
    let trained = own_read_ns(&model, 1_000) as f64;
    let training = 1_000.0 * model.memory.retrain_ns_per_key.value;
    assert!((trained - took - training).abs() <= 2.0, "{trained}");
    model.nic.one_way_ns.value *= 7.0;
    model.nic.bandwidth_gbit_per_s.value = 1.0;
    assert!((own_read_ns(&model, 0) as f64 - took).abs() < 1.0);
}
