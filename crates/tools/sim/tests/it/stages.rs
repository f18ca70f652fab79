//! Stages of a modeled network, one by one: what each delays, and what it does not.

use std::cell::Cell;
use std::rc::Rc;

use farleaf_base::random::Random;
use farleaf_base::{NodeId, WordAddr};
use farleaf_bench::workload::{OperationKind, WorkloadLetter, WorkloadSpec};
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::LayerKind;
use farleaf_sim::experiment::plan::mixed;
use farleaf_sim::experiment::run::{Measurement, run};
use farleaf_sim::fabric::SharedWorld;
use farleaf_sim::fabric::endpoint::{SimEndpoint, StillEndpoint};
use farleaf_sim::fabric::executor::{ExecutorOutcome, Tasks, sleep};
use farleaf_sim::fabric::world::Nanos;
use farleaf_sim::nic::model::NetworkModel;
use farleaf_sim::nic::network::Network;

use crate::network::{image, profile, work};

fn at(index: u64) -> WordAddr {
    WordAddr::new(NodeId(0), index)
}

fn world(model: &NetworkModel) -> SharedWorld {
    let memories = vec![vec![0; 4096]; model.memory.node_count.value as usize];
    SharedWorld::with_machines(memories, Network::new(model), Random::new(1))
}

/// Returns a word as it is now; no time passes.
async fn word(still: &StillEndpoint, index: u64) -> u64 {
    let mut batch = Batch::new();
    let read = batch.read(at(index), 1);
    still.execute(&mut batch).await.expect("inside");
    batch.words(read)[0]
}

/// Returns the time for which other clients see a lock held, if its owner takes it in one batch and
/// releases it in the next.
fn hold_ns(model: &NetworkModel) -> Nanos {
    let world = world(model);
    let (client, still) = (SimEndpoint::new(&world), StillEndpoint::new(&world));
    let tasks = Tasks::new(&world);
    let held = Cell::new(0);
    tasks.spawn(async {
        let mut batch = Batch::new();
        batch.compare_swap(at(0), 0, 7);
        batch.read(at(1), 512);
        client.execute(&mut batch).await.expect("inside");
        batch.clear();
        batch.write_word(at(0), 0);
        client.execute(&mut batch).await.expect("inside");
    });
    tasks.spawn(async {
        while word(&still, 0).await == 0 {
            sleep(&world, 1).await;
        }
        let taken_at = world.borrow().now();
        while word(&still, 0).await == 7 {
            sleep(&world, 1).await;
        }
        held.set(world.borrow().now() - taken_at);
    });
    assert_eq!(tasks.run(u64::MAX), ExecutorOutcome::Done);
    drop(tasks);
    held.get()
}

/// Promise: between the batches that take and release a lock its owner polls a completion, checks
/// what it read, writes a verb and rings a doorbell. The lock is held for exactly this time, not
/// for that of other work before and after.
#[test]
fn a_lock_is_held_for_what_its_holder_computes() {
    let model = profile("rolex");
    let usual = hold_ns(&model);
    let longer = |change: &dyn Fn(&mut NetworkModel)| {
        let mut other = model.clone();
        change(&mut other);
        hold_ns(&other) as i64 - usual as i64
    };
    let is_near = |found: i64, expected: i64| (found - expected).abs() <= 2;
    assert!(is_near(
        longer(&|it| it.compute.doorbell_ns.value += 700.0),
        700
    ));
    assert!(is_near(
        longer(&|it| it.compute.verb_ns.value += 300.0),
        300
    ));
    assert!(is_near(
        longer(&|it| it.compute.completion_ns.value += 900.0),
        900
    ));
    // 512 words are 4 KiB.
    let checks = longer(&|it| it.compute.checksum_ns_per_kib.value += 100.0);
    assert!(is_near(checks, 400), "{checks}");
    assert!(is_near(
        longer(&|it| it.compute.operation_ns.value += 900.0),
        0
    ));
}

/// Promise (FABRIC-2): the verbs of a batch take effect in their order, even if an atomic among
/// them waits for others' atomics and the verbs after it could proceed.
#[test]
fn verbs_of_a_batch_take_effect_as_posted() {
    let model = profile("rolex");
    let world = world(&model);
    let tasks = Tasks::new(&world);
    let batch_count = Rc::new(Cell::new(0));
    for client in 0..40_u64 {
        let endpoint = SimEndpoint::new(&world);
        world
            .modelled()
            .machines
            .place(endpoint.client(), client as usize, 0);
        let batch_count = Rc::clone(&batch_count);
        tasks.spawn(async move {
            // Three words of its own, and one contended word.
            let own = 8 + client * 4;
            let mut batch = Batch::new();
            for turn in 1..=20 {
                batch.clear();
                batch.write_word(at(own), turn);
                let first = batch.read(at(own), 2);
                batch.fetch_add(at(0), 1);
                batch.write_word(at(own + 1), turn);
                let second = batch.read(at(own), 2);
                endpoint.execute(&mut batch).await.expect("inside");
                assert_eq!(batch.words(first), [turn, turn - 1]);
                assert_eq!(batch.words(second), [turn, turn]);
                batch_count.set(batch_count.get() + 1);
            }
        });
    }
    let still = StillEndpoint::new(&world);
    let ahead_count = Rc::new(Cell::new(0));
    let (clock, seen, done) = (
        SharedWorld::clone(&world),
        Rc::clone(&ahead_count),
        Rc::clone(&batch_count),
    );
    tasks.spawn(async move {
        while done.get() < 800 {
            let (first, second) = (word(&still, 8).await, word(&still, 9).await);
            assert!(first == second || first == second + 1, "{first} {second}");
            seen.set(seen.get() + u64::from(first > second));
            sleep(&clock, 7).await;
        }
    });
    assert_eq!(tasks.run(u64::MAX), ExecutorOutcome::Done);
    drop(tasks);
    assert!(
        ahead_count.get() > 100,
        "the atomic between them takes time"
    );
    let mut sum = Batch::new();
    let count = sum.read(at(0), 1);
    let still = StillEndpoint::new(&world);
    farleaf_executor::block_on(still.execute(&mut sum), || 0).expect("inside");
    assert_eq!(sum.words(count)[0], 800, "no increment is lost");
}

/// Returns the CAS per second of many clients, each on one of these words.
fn atomic_rate(model: &NetworkModel, words: &[u64]) -> f64 {
    const CLIENT_COUNT: usize = 64;
    const TURN_COUNT: u64 = 100;
    let world = world(model);
    let tasks = Tasks::new(&world);
    for client in 0..CLIENT_COUNT {
        let endpoint = SimEndpoint::new(&world);
        world
            .modelled()
            .machines
            .place(endpoint.client(), client, client);
        let word = words[client % words.len()];
        tasks.spawn(async move {
            let mut batch = Batch::new();
            for _ in 0..TURN_COUNT {
                batch.clear();
                batch.compare_swap(at(word), 0, 0);
                endpoint.execute(&mut batch).await.expect("inside");
            }
        });
    }
    assert_eq!(tasks.run(u64::MAX), ExecutorOutcome::Done);
    drop(tasks);
    let now = world.borrow().now();
    (CLIENT_COUNT as u64 * TURN_COUNT) as f64 * 1e9 / now as f64
}

/// Promise: atomics on different words that share a slot of the NIC's locking table wait for each
/// other as if on one word; atomics on neighboring words do not.
#[test]
fn a_shared_address_slot_serialises_atomics() {
    let model = profile("rolex");
    let slot_count = model.nic.atomic_slot_count.value as u64;
    let one_at_a_time = 1e9 / model.nic.atomic_same_slot_ns.value;
    let same_word = atomic_rate(&model, &[5]);
    let same_slot = atomic_rate(&model, &[5, 5 + slot_count, 5 + 2 * slot_count]);
    let neighbours = atomic_rate(&model, &[5, 6, 7]);
    let is_near = |rate: f64, expected: f64| (0.95..=1.0).contains(&(rate / expected));
    assert!(is_near(same_word, one_at_a_time), "{same_word}");
    assert!(is_near(same_slot, one_at_a_time), "{same_slot}");
    assert!(is_near(neighbours, 3.0 * one_at_a_time), "{neighbours}");
}

/// Promise: the parts of an operation's time add up to it. For a get in an idle network they are
/// the profile's numbers, without waiting or backoff; with many in flight the additional time is
/// waiting.
#[test]
fn parts_of_the_time_are_all_of_it() {
    let model = profile("rolex");
    let image = image(&model, LayerKind::RfTree, 24);
    let gets = |threads_per_node, in_flight_count| {
        let mut plan = work(mixed(1.0, 0.0, 0.0), threads_per_node);
        plan.in_flight_count = in_flight_count;
        let windows = run(&image, &plan, &model).expect("runs");
        let window = windows.into_iter().next_back().expect("a window");
        let kind = OperationKind::Read;
        (window.times[&kind], window.kinds[&kind])
    };
    let (idle, report) = gets(1, 1);
    let (compute, nic) = (&model.compute, &model.nic);
    let processor_ns = compute.operation_ns.value
        + compute.doorbell_ns.value
        + compute.verb_ns.value
        + compute.completion_ns.value;
    let is_near = |found: f64, expected: f64| (found - expected).abs() < 0.01;
    assert!(is_near(idle.processor_ns, processor_ns), "{idle:?}");
    let checksum_ns = compute.checksum_ns_per_kib.value * 288.0 / 1024.0;
    assert!(is_near(idle.checksum_ns, checksum_ns), "{idle:?}");
    assert!(
        is_near(idle.wire_ns, 2.0 * nic.one_way_ns.value),
        "{idle:?}"
    );
    assert!(
        idle.queue_ns < 20.0 && is_near(idle.backoff_ns, 0.0),
        "{idle:?}"
    );
    let p50_ns = report.latency_ns.p50 as f64;
    assert!(
        (idle.total_ns() / p50_ns - 1.0).abs() < 0.02,
        "{idle:?} {p50_ns}"
    );
    let (busy, report) = gets(24, 16);
    let more_ns = busy.total_ns() - idle.total_ns();
    assert!(
        busy.queue_ns > more_ns * 0.99 && more_ns > 1_000.0,
        "{busy:?}"
    );
    assert!(is_near(busy.wire_ns, idle.wire_ns) && is_near(busy.backoff_ns, 0.0));
    assert!(busy.total_ns() < report.latency_ns.max as f64);
}

/// Promise: if compute nodes are the memory nodes, a thread's verb to its own machine goes through
/// one NIC twice and over no link. A verb to another machine takes the usual path.
#[test]
fn a_verb_to_the_own_machine_goes_over_no_link() {
    let model = profile("rf-tree");
    let took = |machine: usize, model: &NetworkModel| {
        let world = world(model);
        let client = SimEndpoint::new(&world);
        world.modelled().machines.place(client.client(), machine, 3);
        let tasks = Tasks::new(&world);
        let took = Cell::new(0);
        tasks.spawn(async {
            let started_at = world.borrow().now();
            let mut batch = Batch::new();
            batch.read(at(0), 36);
            client.execute(&mut batch).await.expect("inside");
            took.set(world.borrow().now() - started_at);
        });
        assert_eq!(tasks.run(u64::MAX), ExecutorOutcome::Done);
        drop(tasks);
        took.get() as i64
    };
    let (own, other) = (took(0, &model), took(1, &model));
    let nic = &model.nic;
    let way_ns = 2.0 * (nic.one_way_ns.value - model.memory.loopback_ns.value);
    let bytes = 288.0 + nic.request_header_bytes.value + nic.response_header_bytes.value;
    let link_ns = 2.0 * bytes * 8.0 / nic.bandwidth_gbit_per_s.value;
    let apart = (other - own) as f64 - way_ns - link_ns;
    assert!(apart.abs() <= 4.0, "{own} {other}");
    let mut apart = model.clone();
    apart.shared_machines = None;
    assert_eq!((took(0, &apart), took(1, &apart)), (other, other));
}

fn reads(model: &NetworkModel, threads_per_node: usize) -> Measurement {
    let image = image(model, LayerKind::Learned, threads_per_node);
    let mut plan = work(mixed(1.0, 0.0, 0.0), threads_per_node);
    plan.in_flight_count = 8;
    let windows = run(&image, &plan, model).expect("runs");
    windows.into_iter().next_back().expect("a window")
}

/// Promise: if operations take long to compute, the processors limit the throughput: it is what
/// they can execute, their utilization shows that, and twice as many execute twice as much.
#[test]
fn processors_bound_the_throughput() {
    let mut model = profile("rolex");
    model.compute.operation_ns.value = 5_000.0;
    let compute = &model.compute;
    let get_ns = compute.operation_ns.value
        + compute.doorbell_ns.value
        + compute.completion_ns.value
        + compute.verb_ns.value;
    let [few, many] = [2, 4].map(|threads_per_node| {
        let found = reads(&model, threads_per_node);
        let bound = 3.0 * threads_per_node as f64 * 1e9 / get_ns;
        let share = found.operations_per_s / bound;
        assert!((0.97..=1.001).contains(&share), "{share}: {found:?}");
        let processor = found.utilisation.processor;
        assert!((0.97..=1.0).contains(&processor), "{found:?}");
        assert!(found.utilisation.memory_transmit < 0.5, "{found:?}");
        found.operations_per_s
    });
    assert!((1.95..2.05).contains(&(many / few)), "{few} {many}");
}

/// Promise: work before a window does not affect its numbers: a window is the same after a warm-up
/// and after another window.
#[test]
fn warming_up_is_in_no_window() {
    let model = profile("rolex");
    let image = image(&model, LayerKind::Learned, 4);
    let mut plan = work(WorkloadSpec::of(WorkloadLetter::A), 4);
    (plan.warm_up_count, plan.window_counts) = (500, vec![2_500, 4_000]);
    let windows = run(&image, &plan, &model).expect("runs");
    (plan.warm_up_count, plan.window_counts) = (3_000, vec![4_000]);
    let warm = run(&image, &plan, &model).expect("runs");
    assert_eq!(windows.len(), 2);
    assert_eq!(warm.len(), 1);
    assert_eq!(windows[1], warm[0]);
    let counts = warm[0].kinds.values().map(|kind| kind.count);
    assert_eq!(counts.sum::<u64>(), 4_000);
}
