//! An experiment, run to its end.

use core::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_bench::report::{KindReport, OperationCost, RunRecorder};
use farleaf_bench::workload::{InsertLedger, OperationKind, OperationStream};
use serde::Serialize;

use super::ExperimentError;
use super::client::Thread;
use super::image::{Image, within};
use super::plan::WorkPlan;
use crate::fabric::endpoint::SimEndpoint;
use crate::fabric::executor::{Ended, Tasks};
use crate::fabric::world::{Nanos, SharedWorld, World};
use crate::nic::model::{NetworkModel, THREADS_PER_NODE_MAX};
use crate::nic::network::{Network, NetworkMark, Utilisation};
use crate::random::Random;

/// What one window of an experiment was like. All of it is modelled.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// Operations per second of virtual time.
    pub operations_per_s: f64,
    /// Operations of the window.
    pub operation_count: u64,
    /// How long it lasted, in virtual time.
    pub duration_ns: Nanos,
    /// Latency, round trips and bytes of each kind.
    pub kinds: BTreeMap<OperationKind, KindReport>,
    /// How busy the busiest stage of each kind was.
    pub utilisation: Utilisation,
    /// Records in the tables at its end: those loaded, and those whose insert is acknowledged.
    pub key_count: u64,
    /// What one session holds to find leaves, at the window's end, over these records.
    pub metadata_bytes_per_key: f64,
}

/// What the threads of an experiment share.
pub(super) struct Shared<'a> {
    pub(super) image: &'a Image,
    pub(super) world: &'a SharedWorld,
    pub(super) ledger: Arc<InsertLedger>,
    /// Inserts that have been acknowledged, with gaps or without.
    inserted_count: Cell<u64>,
    recorder: RefCell<RunRecorder>,
    done_count: Cell<u64>,
    /// Operation counts at which windows begin and end.
    edges: Vec<u64>,
    next_edge: Cell<usize>,
    windows: RefCell<Vec<Window>>,
    opened: RefCell<Option<(Nanos, NetworkMark)>>,
    failure: RefCell<Option<String>>,
}

/// One window's measures.
struct Window {
    duration_ns: Nanos,
    recorder: RunRecorder,
    utilisation: Utilisation,
    key_count: u64,
    metadata_bytes: u64,
}

impl Shared<'_> {
    pub(super) fn is_over(&self) -> bool {
        self.next_edge.get() == self.edges.len() || self.failure.borrow().is_some()
    }

    /// Ends the experiment without a result.
    pub(super) fn fail(&self, what: String) {
        self.failure.borrow_mut().get_or_insert(what);
    }

    /// A key is in a table that was not.
    pub(super) fn acknowledge(&self, insert_index: u64) {
        self.ledger.acknowledge(insert_index);
        self.inserted_count.set(self.inserted_count.get() + 1);
    }

    /// Counts an operation that has ended. The session that ends a window stands for all in what it
    /// holds.
    pub(super) fn count(
        &self,
        (kind, latency_ns, cost): (OperationKind, Nanos, OperationCost),
        metadata_bytes: impl FnOnce() -> u64,
    ) {
        if self.is_over() {
            return;
        }
        self.recorder.borrow_mut().record(kind, latency_ns, cost);
        self.done_count.set(self.done_count.get() + 1);
        if self.done_count.get() == self.edges[self.next_edge.get()] {
            self.cross_edge(metadata_bytes());
        }
    }

    /// A window ends, and the next one begins.
    fn cross_edge(&self, metadata_bytes: u64) {
        self.next_edge.set(self.next_edge.get() + 1);
        let world = self.world.borrow();
        let recorder = self.recorder.take();
        if let Some((opened_at, mark)) = self.opened.take() {
            self.windows.borrow_mut().push(Window {
                duration_ns: world.now() - opened_at,
                recorder,
                utilisation: world.utilisation_since(&mark),
                key_count: self.ledger.loaded_count() + self.inserted_count.get(),
                metadata_bytes,
            });
        }
        let opened = (world.now(), world.network_mark());
        self.opened.replace(Some(opened));
    }
}

/// Runs a workload on a copy of loaded tables, over a network. The same arguments give the same
/// numbers.
///
/// # Errors
/// The tables are not for this network or these threads; an operation failed, or answered what it
/// must not: no numbers then.
pub fn run(
    image: &Image,
    work: &WorkPlan,
    model: &NetworkModel,
) -> Result<Vec<Measurement>, ExperimentError> {
    check(image, work, model)?;
    let seed = image.plan.seed;
    let memory = image.copy_memory();
    let world = World::modelled(memory, Network::new(model), Random::new(seed));
    let machine_count = model.compute.node_count.value as usize;
    let thread_count = machine_count * work.threads_per_node;
    let mut edges = vec![work.warm_up_count.max(1)];
    for count in &work.window_counts {
        edges.push(edges[edges.len() - 1] + (*count).max(1));
    }
    let insert_count = work
        .insert_count(thread_count)
        .min(image.keys.inserts().len() as u64);
    let loaded_count = image.keys.loaded().len() as u64;
    let shared = Shared {
        image,
        world: &world,
        ledger: Arc::new(InsertLedger::new(loaded_count, insert_count)),
        inserted_count: Cell::new(0),
        recorder: RefCell::default(),
        done_count: Cell::new(0),
        edges,
        next_edge: Cell::new(0),
        windows: RefCell::default(),
        opened: RefCell::default(),
        failure: RefCell::default(),
    };
    let operation_ns = model.compute.operation_ns.value;
    let tasks = Tasks::new(&world);
    for thread_index in 0..thread_count {
        let (machine, thread) = (thread_index % machine_count, thread_index / machine_count);
        let endpoint = SimEndpoint::new(&world);
        world
            .borrow_mut()
            .place_client(endpoint.client(), machine, thread);
        let (spec, distribution) = (&work.workload, work.distribution);
        let ledger = Arc::clone(&shared.ledger);
        let stream = OperationStream::new(spec, distribution, ledger, seed, thread_index)?;
        let thread = Rc::new(Thread::new(
            &shared,
            endpoint,
            thread_index,
            stream,
            operation_ns,
        ));
        for _ in 0..work.in_flight_count {
            tasks.spawn(Rc::clone(&thread).work());
        }
    }
    let ended = tasks.run(u64::MAX);
    tasks.abandon();
    if let Some(what) = shared.failure.take() {
        return Err(ExperimentError::Wrong(what));
    }
    if ended != Ended::Done {
        let what = "a client waits for something that never comes".to_owned();
        return Err(ExperimentError::Wrong(what));
    }
    let windows = shared.windows.take();
    Ok(windows.into_iter().map(Window::measurement).collect())
}

/// Refuses work and networks that the tables were not loaded for.
fn check(image: &Image, work: &WorkPlan, model: &NetworkModel) -> Result<(), ExperimentError> {
    let threads_per_node = work.threads_per_node;
    within(
        "threads_per_node",
        threads_per_node,
        1,
        THREADS_PER_NODE_MAX,
    )?;
    within("in_flight_count", work.in_flight_count, 1, 4096)?;
    within("windows", work.window_counts.len(), 1, 10_000)?;
    let node_count = model.memory.node_count.value as usize;
    let loaded = image.partitions.len();
    if loaded != node_count {
        return Err(ExperimentError::Mismatch {
            what: "memory nodes",
            loaded,
            needed: node_count,
        });
    }
    let thread_count = model.compute.node_count.value as usize * work.threads_per_node;
    let loaded = image.partitions.iter().map(|it| it.owners.len()).min();
    match loaded {
        Some(loaded) if loaded < thread_count => Err(ExperimentError::Mismatch {
            what: "client threads",
            loaded,
            needed: thread_count,
        }),
        _ => Ok(()),
    }
}

impl Window {
    fn measurement(self) -> Measurement {
        let operation_count = self.recorder.operation_count();
        Measurement {
            operations_per_s: operation_count as f64 * 1e9 / self.duration_ns.max(1) as f64,
            operation_count,
            duration_ns: self.duration_ns,
            kinds: self.recorder.operations_by_kind(),
            utilisation: self.utilisation,
            key_count: self.key_count,
            metadata_bytes_per_key: self.metadata_bytes as f64 / self.key_count.max(1) as f64,
        }
    }
}
