//! Runs: one plan, from an empty memory to the verdict.

mod calls;
mod client;
mod mishap;
mod verdict;

use core::fmt;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use farleaf::{AsyncSession, ModelCache, SessionOptions, TableKind, TableOptions};
use farleaf_base::OwnerWord;
use farleaf_executor::block_on;
use farleaf_index::IndexError;
use farleaf_leaf::words::LocalLocks;
use farleaf_node::retrain::RetrainPolicy;

use self::calls::start_serving;
use self::client::start_client;
use self::mishap::execute_fault;
use self::verdict::conclude;
use crate::check::{Findings, Violation};
use crate::fabric::SharedWorld;
use crate::fabric::endpoint::{SimEndpoint, StillEndpoint};
use crate::fabric::executor::{ExecutorOutcome, Tasks};
use crate::fabric::world::{ClientId, Fingerprint, LockHolding, Nanos, Progress, TaskId};
use crate::history::{Answer, History, Operation};
use crate::node::{Node, TABLE_NAME};
use crate::plan::{COMPUTE_NODE_COUNT_MAX, Plan};
use crate::plant::Plant;
use crate::session::{Session, SimHost};
use crate::strings::StringMap;
use farleaf_base::random::Random;

/// Maximal number of steps of a run; a run that exceeds it has a task that waits forever.
const STEP_COUNT_MAX: u64 = 20_000_000;

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Fingerprint of all events.
    pub fingerprint: Fingerprint,
    /// Broken promises.
    pub violations: Vec<Violation>,
    /// Operations of the clients and their answers.
    pub history: History,
    /// Trace of all events, if requested.
    pub trace: Vec<String>,
    /// Duration in virtual time.
    pub duration: Nanos,
    /// Maxima over the leaf locks that the node's agents held.
    pub holding: LockHolding,
    /// Rare events that happened in the run.
    pub rare_events: RareEvents,
}

/// Rare events of a run: tests require that some run reaches each of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RareEvents {
    /// Agents that died, by the progress of their retraining.
    pub agent_deaths: BTreeMap<Progress, u64>,
    /// Queue tickets whose client died before it wrote the entry.
    pub lost_ticket_count: u64,
    /// Leaves that writers of a compute node handed over to each other, for clients that finished.
    pub hand_over_count: u64,
    /// Handed-over leaves whose lock word was checked, since the outcome of the handing batch was
    /// not known.
    pub asked_promise_count: u64,
    /// Leaves that agents have moved, by their last count.
    pub moved_count: u64,
}

/// State that the tasks of a run share.
struct RunState {
    node: Rc<Node>,
    history: RefCell<History>,
    findings: Findings,
    /// Clients that still work or are to be fenced.
    busy: Cell<usize>,
    run_clients: RefCell<Vec<RunClient>>,
    /// Local locks of each compute node, for its sessions.
    local_locks: [Arc<LocalLocks>; COMPUTE_NODE_COUNT_MAX],
    agent: Cell<Option<TaskId>>,
    plant: Option<Plant>,
    strings: Option<Arc<StringMap>>,
    retraining: Option<RetrainPolicy>,
    rare_events: RefCell<RareEvents>,
    /// Whether the node has restarted empty.
    is_lost: Cell<bool>,
    /// Whether another node than the main node has been lost.
    has_lost_member: Cell<bool>,
    /// Whether a session of the node's own has lost its connection.
    has_broken_worker: Cell<bool>,
    /// Number of such losses, less the calls that were refused because of one.
    unreported_break_count: Cell<u32>,
}

/// One client, as faults see it.
struct RunClient {
    /// Client of its session and of its process.
    client: ClientId,
    process: ClientId,
    /// Tasks that open and close its session, and that of its process.
    tasks: Vec<TaskId>,
    /// Tasks of its lanes.
    lanes: Vec<TaskId>,
    /// Task that closes its session, while it does.
    closing: Option<TaskId>,
    /// Owner word, once the session is registered.
    owner: Option<OwnerWord>,
    /// Whether the run no longer waits for it.
    has_left: bool,
    /// Whether it had no fault except those that it must survive.
    has_no_fault: bool,
}

/// Runs a plan.
///
/// # Panics
/// The plan's table does not fit the memory, which every drawn plan's does.
pub fn run(plan: &Plan, plant: Option<Plant>, keep_trace: bool) -> Verdict {
    let world = world_of(plan, keep_trace);
    let node = Node::new(&world);
    let findings = Findings::default();
    prepare(&node, plan, &findings).expect("a drawn table fits the memory");
    let run_state = Rc::new(RunState {
        node,
        history: RefCell::default(),
        findings,
        busy: Cell::new(plan.clients.len()),
        run_clients: RefCell::default(),
        local_locks: Default::default(),
        agent: Cell::default(),
        plant,
        strings: plan.strings.clone(),
        retraining: plan.table.retraining,
        rare_events: RefCell::default(),
        is_lost: Cell::default(),
        has_lost_member: Cell::default(),
        has_broken_worker: Cell::default(),
        unreported_break_count: Cell::default(),
    });
    let tasks = Tasks::new(&world);
    for (number, client) in plan.clients.iter().enumerate() {
        let endpoint = SimEndpoint::with_plant(&world, plant);
        let process = SimEndpoint::new(&world);
        run_state.run_clients.borrow_mut().push(RunClient {
            client: endpoint.client(),
            process: process.client(),
            tasks: Vec::new(),
            lanes: Vec::new(),
            closing: None,
            owner: None,
            has_left: false,
            has_no_fault: true,
        });
        start_client(
            &tasks,
            &run_state,
            number,
            endpoint,
            process,
            client.clone(),
        );
    }
    for fault in plan.faults.clone() {
        let (run_state, crew) = (Rc::clone(&run_state), Rc::clone(&tasks));
        tasks.spawn(async move { execute_fault(&run_state, &crew, fault).await });
    }
    start_agent(&run_state, &tasks);
    if run_state.node.takes_calls() {
        start_serving(&tasks, &run_state);
    }
    let ended = tasks.run(STEP_COUNT_MAX);
    if ended != ExecutorOutcome::Done {
        let how = format!("a task waits forever: {ended:?}");
        run_state.report_violation(Violation::new("progress", how));
    }
    tasks.abandon();
    if ended == ExecutorOutcome::Done {
        conclude(&run_state, plan);
    }
    let mut world = world.borrow_mut();
    Verdict {
        fingerprint: world.fingerprint(),
        violations: run_state.findings.take(),
        history: run_state.history.take(),
        trace: world.take_trace(),
        duration: world.now(),
        holding: world.holding(),
        rare_events: run_state.rare_events.take(),
    }
}

fn world_of(plan: &Plan, keep_trace: bool) -> SharedWorld {
    let world = SharedWorld::new(
        &vec![plan.memory_size_bytes() as usize / 8; plan.node_count.into()],
        plan.freedoms,
        Random::new(plan.seed),
    );
    if keep_trace {
        world.borrow_mut().keep_trace();
    }
    if plan.lends_windows() {
        world.borrow_mut().lend_windows();
    }
    world
}

/// Starts the node's agent.
fn start_agent(run_state: &Rc<RunState>, tasks: &Tasks<'_>) {
    let own = Rc::clone(run_state);
    let agent = tasks.spawn(async move {
        let is_over = || own.busy.get() == 0;
        let failed = own.node.run_agent(own.plant, own.retraining, is_over).await;
        // The agent may report an error of a lost node, and then continues.
        let may_fail = |error: &IndexError| {
            own.is_lost.get() || own.has_lost_member.get() && error.lost_node().is_some()
        };
        if let Some(error) = failed.filter(|error| !may_fail(error)) {
            let how = format!("the agent failed: {error}");
            own.report_violation(Violation::new("errors", how));
        }
    });
    run_state.agent.set(Some(agent));
}

impl RunState {
    /// Reports a failure that is permitted only for a client with a fault.
    fn report_failure(&self, number: usize, what: &str, error: &dyn fmt::Debug) {
        let has_no_fault = self.run_clients.borrow()[number].has_no_fault;
        if has_no_fault && !self.is_lost.get() {
            let how = format!("client {number}: {what}: {error:?}");
            self.report_violation(Violation::new("errors", how));
        }
    }

    fn report_violation(&self, violation: Violation) {
        let mut world = self.node.world.borrow_mut();
        world.note(|| violation.to_string());
        drop(world);
        self.findings.borrow_mut().push(violation);
    }

    /// Records that the run no longer waits for a client.
    fn leave(&self, number: usize) {
        let mut run_clients = self.run_clients.borrow_mut();
        if !core::mem::replace(&mut run_clients[number].has_left, true) {
            self.busy.set(self.busy.get() - 1);
        }
    }
}

/// Creates and fills the table, while virtual time stands still.
fn prepare(
    node: &Rc<Node>,
    plan: &Plan,
    findings: &Findings,
) -> Result<(), Box<dyn core::error::Error>> {
    if plan.has_calls() {
        node.take_calls();
        let tables = node.server().leaves();
        tables.set_leaves_per_sub_model(plan.table.leaves_per_sub_model);
    }
    let table = &plan.table;
    match table.pages {
        None => {
            let (layer, entry_count_max) = (table.layer, table.entry_count_max);
            node.create_table(layer, entry_count_max, table.slots, table.fill_percent)?;
        }
        Some(pages) => {
            let options = TableOptions {
                kind: TableKind::Bytes(pages),
                layer: table.layer,
                fill_percent: table.fill_percent,
                ..TableOptions::default()
            };
            let session = still_session(node, findings, None, &SessionOptions::default());
            block_on(session.create_byte_table(TABLE_NAME, &options), || 0)?;
            block_on(session.close(), || 0)?;
        }
    }
    if !table.loaded.is_empty() {
        let session = open_still(node, findings, None, plan.strings.as_ref())?;
        let load = Operation::Load(table.loaded.clone());
        let loaded = block_on(session.perform(&load, None), || 0)?;
        assert_eq!(loaded, Answer::Loaded, "an empty table can be loaded");
        block_on(session.close(), || 0)?;
        let keeper = node.keeper(StillEndpoint::new(&node.world), OwnerWord::FREE);
        assert!(node.close_ring_registry(&keeper), "nobody else is there");
    }
    if table.is_memory_reused {
        node.hand_out_all();
    }
    Ok(())
}

/// Opens a session for which virtual time stands still.
fn open_still(
    node: &Rc<Node>,
    findings: &Findings,
    plant: Option<Plant>,
    strings: Option<&Arc<StringMap>>,
) -> Result<Session<StillEndpoint>, Box<dyn core::error::Error>> {
    let session = still_session(node, findings, plant, &SessionOptions::default());
    Ok(block_on(Session::open(session, strings.cloned()), || 0)?)
}

/// Opens such a session that asks the node at once for each key to which models do not lead.
fn open_asking(
    node: &Rc<Node>,
    findings: &Findings,
    model_cache: ModelCache,
) -> Result<Session<StillEndpoint>, Box<dyn core::error::Error>> {
    let options = SessionOptions {
        model_cache,
        does_not_speculate: true,
        ..SessionOptions::default()
    };
    let session = still_session(node, findings, None, &options);
    Ok(block_on(Session::open(session, None), || 0)?)
}

fn still_session(
    node: &Rc<Node>,
    findings: &Findings,
    plant: Option<Plant>,
    options: &SessionOptions,
) -> AsyncSession<SimHost<StillEndpoint>> {
    let endpoint = StillEndpoint::with_plant(&node.world, plant);
    let owner = node.register(endpoint.client());
    let host = SimHost::new(node, endpoint.client(), findings, Arc::default()).still();
    AsyncSession::with_options(host, endpoint, owner, options)
}
