//! One run of a plan, from an empty region to the verdict.

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
use farleaf_executor::block_on;
use farleaf_index::IndexError;
use farleaf_leaf::LocalLocks;
use farleaf_node::retrain::RetrainPolicy;
use farleaf_types::OwnerWord;

use self::calls::start_serving;
use self::client::start_client;
use self::mishap::strike;
use self::verdict::conclude;
use crate::check::{Findings, Violation};
use crate::fabric::endpoint::{SimEndpoint, StillEndpoint};
use crate::fabric::executor::{Ended, Tasks};
use crate::fabric::world::{
    ClientId, Fingerprint, Holding, Nanos, Progress, SharedWorld, TaskId, World,
};
use crate::history::{Answer, History, Operation};
use crate::node::{Node, TABLE_NAME};
use crate::plan::{COMPUTE_NODE_COUNT_MAX, Plan};
use crate::plant::Plant;
use crate::random::Random;
use crate::session::{Session, SimHost};
use crate::strings::Strings;

/// Things that happen in a run at the most; a run that goes on is one in which somebody waits for
/// ever.
const STEP_COUNT_MAX: u64 = 20_000_000;

/// What became of a run.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Of everything that happened.
    pub fingerprint: Fingerprint,
    /// Promises that were broken.
    pub violations: Vec<Violation>,
    /// What clients did and saw.
    pub history: History,
    /// Everything that happened, if it was kept.
    pub trace: Vec<String>,
    /// How long it took, in virtual time.
    pub duration: Nanos,
    /// How the node's agents held leaf locks, at the worst.
    pub holding: Holding,
    /// What it came to that is rare.
    pub reached: Reached,
}

/// Rare things that happened in a run: what happens in no run is not judged by any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Agents that died, by how far their retraining was.
    pub agent_deaths: BTreeMap<Progress, u64>,
    /// Tickets of the queue that somebody drew, and died before its entry was written (Q5).
    pub lost_ticket_count: u64,
    /// Leaves that writers of a compute node handed over to each other (H2), as far as clients came
    /// to their end.
    pub hand_over_count: u64,
    /// And that were asked for, as it was not known whether they were handed over (H3).
    pub asked_promise_count: u64,
    /// Leaves that agents have moved, by the last tally of theirs.
    pub moved_count: u64,
}

/// What the tasks of a run share.
struct Stage {
    node: Rc<Node>,
    history: RefCell<History>,
    findings: Findings,
    /// Clients that still work or are to be fenced.
    busy: Cell<usize>,
    actors: RefCell<Vec<Actor>>,
    /// Of each compute node, for the sessions on it (H1).
    local_locks: [Arc<LocalLocks>; COMPUTE_NODE_COUNT_MAX],
    agent: Cell<Option<TaskId>>,
    plant: Option<Plant>,
    strings: Option<Arc<Strings>>,
    retraining: Option<RetrainPolicy>,
    reached: RefCell<Reached>,
    /// The node has restarted empty.
    is_lost: Cell<bool>,
    /// Another node than the home has been lost.
    has_lost_member: Cell<bool>,
    /// A session of the node's own has lost its connection.
    has_broken_worker: Cell<bool>,
    /// How often, less those calls that were refused for it.
    unmet_break_count: Cell<u32>,
}

/// One client, as mishaps find it.
struct Actor {
    /// As which its session posts, and as which its process looks at the pool.
    client: ClientId,
    process: ClientId,
    /// Its session's opening and end, and its process.
    tasks: Vec<TaskId>,
    /// Its lanes.
    lanes: Vec<TaskId>,
    /// The task that closes its session, while it does.
    closing: Option<TaskId>,
    /// Once it is registered.
    owner: Option<OwnerWord>,
    /// Nobody counts on it any more.
    is_out: bool,
    /// Nothing has happened to it that it does not have to survive.
    was_spared: bool,
}

/// Runs a plan.
///
/// # Panics
/// The plan's table does not fit the region, which no drawn plan's does.
pub fn run(plan: &Plan, plant: Option<Plant>, keep_trace: bool) -> Verdict {
    let world = world_of(plan, keep_trace);
    let node = Node::new(&world);
    let findings = Findings::default();
    prepare(&node, plan, &findings).expect("a drawn table fits the region");
    let stage = Rc::new(Stage {
        node,
        history: RefCell::default(),
        findings,
        busy: Cell::new(plan.clients.len()),
        actors: RefCell::default(),
        local_locks: Default::default(),
        agent: Cell::default(),
        plant,
        strings: plan.strings.clone(),
        retraining: plan.table.retraining,
        reached: RefCell::default(),
        is_lost: Cell::default(),
        has_lost_member: Cell::default(),
        has_broken_worker: Cell::default(),
        unmet_break_count: Cell::default(),
    });
    let tasks = Tasks::new(&world);
    for (number, client) in plan.clients.iter().enumerate() {
        let endpoint = SimEndpoint::with_plant(&world, plant);
        let process = SimEndpoint::new(&world);
        stage.actors.borrow_mut().push(Actor {
            client: endpoint.client(),
            process: process.client(),
            tasks: Vec::new(),
            lanes: Vec::new(),
            closing: None,
            owner: None,
            is_out: false,
            was_spared: true,
        });
        let endpoints = (endpoint, process);
        start_client(&tasks, &stage, number, endpoints, client.clone());
    }
    for fault in plan.faults.clone() {
        let (stage, crew) = (Rc::clone(&stage), Rc::clone(&tasks));
        tasks.spawn(async move { strike(&stage, &crew, fault).await });
    }
    start_agent(&stage, &tasks);
    if stage.node.takes_calls() {
        start_serving(&tasks, &stage);
    }
    let ended = tasks.run(STEP_COUNT_MAX);
    if ended != Ended::Done {
        let how = format!("somebody waits for ever: {ended:?}");
        stage.complain(Violation::new("progress", how));
    }
    tasks.abandon();
    if ended == Ended::Done {
        conclude(&stage, plan);
    }
    let mut world = world.borrow_mut();
    Verdict {
        fingerprint: world.fingerprint(),
        violations: stage.findings.take(),
        history: stage.history.take(),
        trace: world.take_trace(),
        duration: world.now(),
        holding: world.holding(),
        reached: stage.reached.take(),
    }
}

fn world_of(plan: &Plan, keep_trace: bool) -> SharedWorld {
    let world = World::new(
        &vec![plan.region_size_bytes() as usize / 8; plan.node_count.into()],
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
fn start_agent(stage: &Rc<Stage>, tasks: &Tasks<'_>) {
    let own = Rc::clone(stage);
    let agent = tasks.spawn(async move {
        let is_over = || own.busy.get() == 0;
        let failed = own.node.run_agent(own.plant, own.retraining, is_over).await;
        // What it meets on a lost node it may say; and then it goes on.
        let may_fail = |error: &IndexError| {
            own.is_lost.get() || own.has_lost_member.get() && error.lost_node().is_some()
        };
        if let Some(error) = failed.filter(|error| !may_fail(error)) {
            let how = format!("the agent failed: {error}");
            own.complain(Violation::new("errors", how));
        }
    });
    stage.agent.set(Some(agent));
}

impl Stage {
    /// Something failed that may fail only for a client that something has happened to.
    fn complain_of(&self, number: usize, what: &str, error: &dyn fmt::Debug) {
        let was_spared = self.actors.borrow()[number].was_spared;
        if was_spared && !self.is_lost.get() {
            let how = format!("client {number}: {what}: {error:?}");
            self.complain(Violation::new("errors", how));
        }
    }

    fn complain(&self, violation: Violation) {
        let mut world = self.node.world.borrow_mut();
        world.note(|| violation.to_string());
        drop(world);
        self.findings.borrow_mut().push(violation);
    }

    /// A client is done for: nobody waits for it any more.
    fn leave(&self, number: usize) {
        let mut actors = self.actors.borrow_mut();
        if !core::mem::replace(&mut actors[number].is_out, true) {
            self.busy.set(self.busy.get() - 1);
        }
    }
}

/// Makes the table and fills it, while the world stands still.
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
            let layer = (table.layer, table.entry_count_max);
            node.create_table(layer, table.slots, table.fill_percent)?;
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
        let session = open_still(node, findings, (None, plan.strings.as_ref()))?;
        let load = Operation::Load(table.loaded.clone());
        let loaded = block_on(session.perform(&load, None), || 0)?;
        assert_eq!(loaded, Answer::Loaded, "an empty table can be loaded");
        block_on(session.close(), || 0)?;
        let keeper = node.keeper(StillEndpoint::new(&node.world), OwnerWord::FREE);
        assert!(node.close_desk(&keeper), "nobody else is there");
    }
    if table.is_memory_reused {
        node.hand_out_all();
    }
    Ok(())
}

/// A session that the world stands still for.
fn open_still(
    node: &Rc<Node>,
    findings: &Findings,
    (plant, strings): (Option<Plant>, Option<&Arc<Strings>>),
) -> Result<Session<StillEndpoint>, Box<dyn core::error::Error>> {
    let session = still_session(node, findings, plant, &SessionOptions::default());
    Ok(block_on(Session::open(session, strings.cloned()), || 0)?)
}

/// The same, that asks the node for each key that models do not lead to at once.
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
