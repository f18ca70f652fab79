//! Runs an experiment to its end.

use core::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farleaf::Cost;
use farleaf_bench::report::{KindReport, RunRecorder};
use farleaf_bench::workload::{InsertLedger, OperationKind, OperationStream, WorkloadSpec};
use farleaf_node::retrain::Retrainer;
use farleaf_pool::PoolLayout;
use serde::Serialize;

use super::ExperimentError;
use super::agent::Agent;
use super::client::{ClientThread, Streams};
use super::image::{Image, within};
use super::machine::{Machine, SessionRegistry};
use super::plan::{WorkPlan, mixed};
use super::server::Server;
use super::time::{TimeParts, TimeRecorder};
use super::training::Training;
use crate::fabric::SharedWorld;
use crate::fabric::executor::{ExecutorOutcome, Tasks};
use crate::fabric::world::Nanos;
use crate::nic::model::{NetworkModel, THREADS_PER_NODE_MAX};
use crate::nic::network::{Network, NetworkMark, TrainedCount, Utilisation};
use crate::nic::parts::Parts;
use farleaf_base::random::Random;

/// Measurement of one window of an experiment. All of it is modeled.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// Operations per second of virtual time.
    pub operations_per_s: f64,
    /// Operations of the window.
    pub operation_count: u64,
    /// Duration in virtual time.
    pub duration_ns: Nanos,
    /// Latency, round trips and bytes of each kind of operation.
    pub kinds: BTreeMap<OperationKind, KindReport>,
    /// Time parts of each kind of operation.
    pub times: BTreeMap<OperationKind, TimeParts>,
    /// Utilization of the busiest stage of each kind.
    pub utilisation: Utilisation,
    /// Records in the tables at the window's end: those loaded, and those whose insert is
    /// acknowledged.
    pub key_count: u64,
    /// Bytes per record that one session holds to find leaves, at the window's end.
    pub metadata_bytes_per_key: f64,
    /// Retraining by the memory nodes; `None` if they do not retrain.
    pub retraining: Option<Retraining>,
    /// Keys for which clients asked the memory nodes, since models did not lead to them.
    pub fallback_count: u64,
    /// Training by the memory nodes for clients; `None` if they do not train.
    pub training: Option<Training>,
}

/// Retraining by all memory nodes in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Retraining {
    /// Retrainings that were committed.
    pub retraining_count: u64,
    /// Total duration of the committed retrainings.
    pub time_ns: Nanos,
    /// Leaves on which models were trained.
    pub leaf_count: u64,
    /// Records in these leaves.
    pub record_count: u64,
}

impl Retraining {
    /// Adds the two.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            retraining_count: self.retraining_count + other.retraining_count,
            time_ns: self.time_ns + other.time_ns,
            leaf_count: self.leaf_count + other.leaf_count,
            record_count: self.record_count + other.record_count,
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            retraining_count: self.retraining_count - before.retraining_count,
            time_ns: self.time_ns - before.time_ns,
            leaf_count: self.leaf_count - before.leaf_count,
            record_count: self.record_count - before.record_count,
        }
    }
}

/// State that the threads of an experiment share.
pub(super) struct ExperimentState<'a> {
    pub(super) image: &'a Image,
    pub(super) world: &'a SharedWorld,
    pub(super) ledger: Arc<InsertLedger>,
    /// Number of acknowledged inserts, with or without gaps in their indexes.
    inserted_count: Cell<u64>,
    recorder: RefCell<RunRecorder>,
    times: RefCell<TimeRecorder>,
    done_count: Cell<u64>,
    fallback_count: Cell<u64>,
    /// Tasks of client threads that have not ended.
    working_count: Cell<usize>,
    /// Operation counts at which windows begin and end.
    edges: Vec<u64>,
    next_edge: Cell<usize>,
    /// Index of the edge after which clients only read.
    read_only_edge: usize,
    windows: RefCell<Vec<WindowMeasures>>,
    opened: RefCell<Option<WindowStart>>,
    failure: RefCell<Option<String>>,
    retrainers: RefCell<Vec<Rc<Retrainer>>>,
    /// Memory nodes that train models for clients.
    trainers: RefCell<Vec<Rc<Server>>>,
    /// Set when the experiment is over; memory nodes then stop.
    pub(super) stop: AtomicBool,
}

/// Counters at the start of a window.
struct WindowStart {
    at: Nanos,
    mark: NetworkMark,
    retraining: Retraining,
    training: Training,
}

/// Measures of one window.
struct WindowMeasures {
    duration_ns: Nanos,
    recorder: RunRecorder,
    times: TimeRecorder,
    utilisation: Utilisation,
    key_count: u64,
    metadata_bytes: u64,
    retraining: Option<Retraining>,
    fallback_count: u64,
    training: Option<Training>,
}

impl ExperimentState<'_> {
    pub(super) fn is_over(&self) -> bool {
        self.next_edge.get() == self.edges.len() || self.failure.borrow().is_some()
    }

    /// Returns whether some client has not ended.
    pub(super) fn is_working(&self) -> bool {
        self.working_count.get() > 0
    }

    /// Records that a client's task has ended.
    pub(super) fn end_work(&self) {
        self.working_count.update(|count| count - 1);
    }

    /// Returns whether the windows have begun in which clients only read.
    pub(super) fn is_read_only(&self) -> bool {
        self.next_edge.get() > self.read_only_edge
    }

    /// Ends the experiment without a result.
    pub(super) fn fail(&self, what: String) {
        self.failure.borrow_mut().get_or_insert(what);
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Returns the retrainings so far.
    fn retrained(&self, trained: TrainedCount) -> Retraining {
        let retrainers = self.retrainers.borrow();
        let tallies = || retrainers.iter().map(|retrainer| retrainer.tally());
        Retraining {
            retraining_count: tallies().map(|tally| tally.retraining_count).sum(),
            time_ns: tallies().map(|tally| tally.time_ns).sum(),
            leaf_count: trained.leaf_count,
            record_count: trained.record_count,
        }
    }

    /// Counts keys that were requested by calls.
    pub(super) fn count_fallbacks(&self, count: u64) {
        self.fallback_count.update(|before| before + count);
    }

    /// Records that an inserted key is in its table.
    pub(super) fn acknowledge(&self, insert_index: u64) {
        self.ledger.acknowledge(insert_index);
        self.inserted_count.set(self.inserted_count.get() + 1);
    }

    /// Counts an operation that has ended. The session that ends a window represents all sessions
    /// in the bytes that it holds.
    pub(super) fn count(
        &self,
        kind: OperationKind,
        latency_ns: Nanos,
        cost: Cost,
        parts: Parts,
        metadata_bytes: impl FnOnce() -> u64,
    ) {
        if self.is_over() {
            return;
        }
        self.recorder.borrow_mut().record(kind, latency_ns, cost);
        self.times.borrow_mut().record(kind, latency_ns, parts);
        self.done_count.set(self.done_count.get() + 1);
        if self.done_count.get() == self.edges[self.next_edge.get()] {
            self.cross_edge(metadata_bytes());
        }
    }

    /// Ends a window and begins the next one.
    fn cross_edge(&self, metadata_bytes: u64) {
        self.next_edge.set(self.next_edge.get() + 1);
        let now = self.world.borrow().now();
        let machines = &self.world.modelled().machines;
        let (recorder, times) = (self.recorder.take(), self.times.take());
        let fallback_count = self.fallback_count.take();
        let retraining = self.retrained(machines.trained());
        let retrains = !self.retrainers.borrow().is_empty();
        let trainers = self.trainers.borrow();
        let trained = trainers.iter().map(|server| server.training());
        let training = trained.fold(Training::default(), Training::and);
        if let Some(opened) = self.opened.take() {
            self.windows.borrow_mut().push(WindowMeasures {
                duration_ns: now - opened.at,
                recorder,
                times,
                utilisation: machines.utilisation_since(&opened.mark, now),
                key_count: self.ledger.loaded_count() + self.inserted_count.get(),
                metadata_bytes,
                fallback_count,
                retraining: retrains.then(|| retraining.since(opened.retraining)),
                training: (!trainers.is_empty()).then(|| training.since(opened.training)),
            });
        }
        self.opened.replace(Some(WindowStart {
            at: now,
            mark: machines.mark(now),
            retraining,
            training,
        }));
        self.stop.store(self.is_over(), Ordering::Relaxed);
    }
}

/// Memory and session table of a memory node.
struct Node {
    layout: PoolLayout,
    registry: Rc<SessionRegistry>,
    server: Option<Rc<Server>>,
}

/// Runs a workload on a copy of loaded tables, over a network. The same arguments give the same
/// numbers.
///
/// # Errors
/// The tables do not fit this network or these threads, or an operation failed or returned a wrong
/// answer. There are no numbers then.
pub fn run(
    image: &Image,
    work: &WorkPlan,
    model: &NetworkModel,
) -> Result<Vec<Measurement>, ExperimentError> {
    check(image, work, model)?;
    let seed = image.plan.seed;
    let memory = image.copy_memory();
    let world = SharedWorld::with_machines(memory, Network::new(model), Random::new(seed));
    world.borrow_mut().lend_windows();
    let machine_count = model.compute.node_count.value as usize;
    let thread_count = machine_count * work.threads_per_node;
    let shared = shared(image, work, &world, thread_count);
    let nodes = image.partitions.iter();
    let nodes = nodes.map(|node| {
        let registry = SessionRegistry::new(&world, &node.layout);
        let has_calls = image.plan.layer.has_calls();
        let server = has_calls.then(|| Server::new(&world, &node.layout, &registry, model));
        Node {
            layout: node.layout.clone(),
            registry,
            server,
        }
    });
    let nodes: Vec<Node> = nodes.collect();
    let machines = (0..machine_count).map(|index| {
        let nodes = nodes.iter();
        let nodes = nodes.map(|node| {
            Machine::new(
                index,
                node.layout.clone(),
                &node.registry,
                node.server.as_ref(),
                &world,
            )
        });
        nodes.collect::<Vec<_>>()
    });
    let machines: Vec<Vec<Rc<Machine>>> = machines.collect();
    let operation_ns = model.compute.operation_ns.value;
    let threads = RefCell::new(Ok(Vec::with_capacity(thread_count)));
    let tasks = Tasks::new(&world);
    // Before anything is measured, and without a draw of the run.
    tasks.spawn_after(0, async {
        let opened = open_all(&shared, work, &machines, operation_ns).await;
        *threads.borrow_mut() = opened;
    });
    finish(&tasks, &shared)?;
    for thread in threads.replace(Ok(Vec::new()))? {
        for _ in 0..work.in_flight_count {
            let work = Rc::clone(&thread).work();
            tasks.spawn(async {
                work.await;
                shared.end_work();
            });
        }
    }
    spawn_background(&tasks, &shared, work, &nodes, &machines)?;
    for server in nodes.iter().filter_map(|node| node.server.as_ref()) {
        if image.plan.layer.has_node_writes() {
            shared.trainers.borrow_mut().push(Rc::clone(server));
        }
        server.start(&tasks, &shared, work.models);
    }
    finish(&tasks, &shared)?;
    tasks.abandon();
    let windows = shared.windows.take();
    Ok(windows
        .into_iter()
        .map(WindowMeasures::measurement)
        .collect())
}

/// Starts the tasks that retrain, and those that follow. Without inserts no retraining is ever due,
/// and no client polls.
fn spawn_background<'a>(
    tasks: &Tasks<'a>,
    shared: &'a ExperimentState<'a>,
    work: &WorkPlan,
    nodes: &[Node],
    machines: &[Vec<Rc<Machine>>],
) -> Result<(), ExperimentError> {
    let has_calls = shared.image.plan.layer.has_calls();
    let Some(plan) = work.retraining.filter(|_| work.retrains() && !has_calls) else {
        return Ok(());
    };
    for node in nodes {
        let (layout, registry) = (node.layout.clone(), &node.registry);
        let agent = Agent::new(shared.world, layout, registry, plan)?;
        let retrainer = Rc::clone(agent.retrainer());
        shared.retrainers.borrow_mut().push(retrainer);
        tasks.spawn(agent.work(shared));
    }
    for machine in machines.iter().flatten() {
        tasks.spawn(Rc::clone(machine).follow(shared, plan.tick_ns));
    }
    Ok(())
}

/// Runs all tasks to their end.
fn finish(tasks: &Tasks<'_>, shared: &ExperimentState<'_>) -> Result<(), ExperimentError> {
    let ended = tasks.run(u64::MAX);
    if let Some(what) = shared.failure.take() {
        return Err(ExperimentError::Wrong(what));
    }
    if ended != ExecutorOutcome::Done {
        let what = "a client waits forever".to_owned();
        return Err(ExperimentError::Wrong(what));
    }
    Ok(())
}

fn shared<'a>(
    image: &'a Image,
    work: &WorkPlan,
    world: &'a SharedWorld,
    thread_count: usize,
) -> ExperimentState<'a> {
    let mut edges = vec![work.warm_up_count.max(1)];
    for count in work
        .window_counts
        .iter()
        .chain(&work.read_only_window_counts)
    {
        edges.push(edges[edges.len() - 1] + (*count).max(1));
    }
    let insert_count = work.insert_count(thread_count);
    let insert_count = insert_count.min(image.keys.inserts().len() as u64);
    let loaded_count = image.keys.loaded().len() as u64;
    ExperimentState {
        image,
        world,
        ledger: Arc::new(InsertLedger::new(loaded_count, insert_count)),
        inserted_count: Cell::new(0),
        recorder: RefCell::default(),
        times: RefCell::default(),
        done_count: Cell::new(0),
        fallback_count: Cell::new(0),
        working_count: Cell::new(thread_count * work.in_flight_count),
        edges,
        next_edge: Cell::new(0),
        read_only_edge: work.window_counts.len(),
        windows: RefCell::default(),
        opened: RefCell::default(),
        failure: RefCell::default(),
        retrainers: RefCell::default(),
        trainers: RefCell::default(),
        stop: AtomicBool::new(false),
    }
}

/// Opens sessions and tables of all threads, alternating between machines.
async fn open_all<'a>(
    shared: &'a ExperimentState<'a>,
    work: &WorkPlan,
    machines: &[Vec<Rc<Machine>>],
    operation_ns: f64,
) -> Result<Vec<Rc<ClientThread<'a>>>, ExperimentError> {
    let thread_count = machines.len() * work.threads_per_node;
    let mut threads = Vec::with_capacity(thread_count);
    let stream = |spec: &WorkloadSpec, thread_index: usize| {
        let ledger = Arc::clone(&shared.ledger);
        let seed = shared.image.plan.seed;
        OperationStream::new(spec, work.distribution, ledger, seed, thread_index)
    };
    for thread_index in 0..thread_count {
        let machine = &machines[thread_index % machines.len()];
        let streams = Streams {
            work: stream(&work.workload, thread_index)?,
            rest: stream(&mixed(1.0, 0.0, 0.0), thread_index)?,
        };
        let thread = thread_index / machines.len();
        let thread =
            ClientThread::open(shared, machine, thread, work.models, streams, operation_ns).await?;
        threads.push(Rc::new(thread));
    }
    Ok(threads)
}

/// Refuses work and networks for which the tables were not loaded.
fn check(image: &Image, work: &WorkPlan, model: &NetworkModel) -> Result<(), ExperimentError> {
    let threads_per_node = work.threads_per_node;
    within(
        "threads_per_node",
        threads_per_node,
        1,
        THREADS_PER_NODE_MAX,
    )?;
    within("in_flight_count", work.in_flight_count, 1, 4096)?;
    let window_count = work.window_counts.len() + work.read_only_window_counts.len();
    within("windows", window_count, 1, 10_000)?;
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
    if image.thread_count < thread_count {
        return Err(ExperimentError::Mismatch {
            what: "client threads",
            loaded: image.thread_count,
            needed: thread_count,
        });
    }
    Ok(())
}

impl WindowMeasures {
    fn measurement(self) -> Measurement {
        let operation_count = self.recorder.operation_count();
        Measurement {
            operations_per_s: operation_count as f64 * 1e9 / self.duration_ns.max(1) as f64,
            operation_count,
            duration_ns: self.duration_ns,
            kinds: self.recorder.operations_by_kind(),
            times: self.times.by_kind(),
            utilisation: self.utilisation,
            key_count: self.key_count,
            metadata_bytes_per_key: self.metadata_bytes as f64 / self.key_count.max(1) as f64,
            retraining: self.retraining,
            fallback_count: self.fallback_count,
            training: self.training,
        }
    }
}
