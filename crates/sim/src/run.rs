//! One run of a plan, from an empty region to the verdict.

use core::fmt;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use farleaf::AsyncSession;
use farleaf::host::{Barrier, Host, ProcessKeeper};
use farleaf_executor::block_on;
use farleaf_fabric::Endpoint;
use farleaf_types::{NodeId, OwnerWord};

use crate::check::region::Region;
use crate::check::{self, Violation};
use crate::fabric::endpoint::{SimEndpoint, StillEndpoint};
use crate::fabric::executor::{Ended, Tasks, sleep, sleep_until_during};
use crate::fabric::world::{ClientId, Fingerprint, Nanos, TaskId, World};
use crate::history::{Answer, FINAL_CHECK, History, Operation};
use crate::node::{Node, REGION_SIZE_BYTES};
use crate::plan::{Fault, Mishap, Plan, When};
use crate::plant::Plant;
use crate::random::Random;
use crate::session::{Session, SimHost};

/// Things that happen in a run at the most; a run that goes on is one in which somebody waits for
/// ever.
const STEP_COUNT_MAX: u64 = 20_000_000;
/// Time between two looks of a process at the pool, in virtual time.
const PROCESS_TICK: Nanos = 15_000;
/// Time between two looks whether a client's lanes are done.
const LANES_TICK: Nanos = 2_000;
/// Number of the table that a run begins with.
const MAIN_TABLE: u32 = 1;
/// Steps in which a dropped table's memory becomes free, when nobody works any more: the number is
/// drawn, then the chunks are freed.
const RECLAIM_COUNT: u32 = 2;
/// More records than any run's table has.
const RECORD_COUNT_MAX: usize = 1 << 20;

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
}

/// What the tasks of a run share.
struct Stage {
    node: Rc<Node>,
    history: RefCell<History>,
    violations: RefCell<Vec<Violation>>,
    /// Clients that still work or are to be fenced.
    busy: Cell<usize>,
    actors: RefCell<Vec<Actor>>,
    agent: Cell<Option<TaskId>>,
    /// The node has restarted empty.
    is_lost: Cell<bool>,
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
    /// Once it is registered.
    owner: Option<OwnerWord>,
    /// Nobody counts on it any more.
    is_out: bool,
    /// Nothing has happened to it.
    was_spared: bool,
}

/// Runs a plan.
///
/// # Panics
/// The plan's table does not fit the region, which no drawn plan's does.
pub fn run(plan: &Plan, plant: Option<Plant>, keep_trace: bool) -> Verdict {
    let world = World::new(
        &[REGION_SIZE_BYTES as usize / 8],
        plan.freedoms,
        Random::new(plan.seed),
    );
    if keep_trace {
        world.borrow_mut().keep_trace();
    }
    let node = Node::new(&world);
    prepare(&node, plan).expect("a drawn table fits the region");
    let stage = Rc::new(Stage {
        node,
        history: RefCell::default(),
        violations: RefCell::default(),
        busy: Cell::new(plan.clients.len()),
        actors: RefCell::default(),
        agent: Cell::default(),
        is_lost: Cell::default(),
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
            owner: None,
            is_out: false,
            was_spared: true,
        });
        let endpoints = (endpoint, process);
        start_client(&tasks, &stage, number, endpoints, client.lanes.clone());
    }
    for fault in plan.faults.clone() {
        let (stage, crew) = (Rc::clone(&stage), Rc::clone(&tasks));
        tasks.spawn(async move { strike(&stage, &crew, fault).await });
    }
    {
        let stage = Rc::clone(&stage);
        let named = Rc::clone(&stage);
        let agent = async move {
            let is_over = || stage.busy.get() == 0;
            let failed = stage.node.run_agent(plant, is_over).await;
            if let Some(error) = failed.filter(|_| !stage.is_lost.get()) {
                let how = format!("the agent failed: {error}");
                stage.complain(Violation::new("errors", how));
            }
        };
        let agent = tasks.spawn(agent);
        named.agent.set(Some(agent));
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
        violations: stage.violations.take(),
        history: stage.history.take(),
        trace: world.take_trace(),
        duration: world.now(),
    }
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
        self.violations.borrow_mut().push(violation);
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
fn prepare(node: &Rc<Node>, plan: &Plan) -> Result<(), Box<dyn core::error::Error>> {
    let table = &plan.table;
    node.create_table(table.layer, table.slots, table.fill_percent)?;
    if !table.loaded.is_empty() {
        let session = open_still(node)?;
        let load = Operation::Load(table.loaded.clone());
        let loaded = block_on(session.perform(&load, None), || 0)?;
        assert_eq!(loaded, Answer::Loaded, "an empty table can be loaded");
        block_on(session.close(), || 0)?;
    }
    if table.is_memory_reused {
        node.hand_out_all();
    }
    Ok(())
}

/// A session that the world stands still for.
fn open_still(node: &Rc<Node>) -> Result<Session<StillEndpoint>, Box<dyn core::error::Error>> {
    let endpoint = StillEndpoint::new(&node.world);
    let owner = node.register(endpoint.client());
    let host = SimHost::new(node, endpoint.client());
    let session = AsyncSession::new(host, endpoint, owner);
    Ok(block_on(Session::open(session), || 0)?)
}

/// Starts a client: a task for its session, a task for its process, and a task per lane.
fn start_client(
    tasks: &Rc<Tasks<'static>>,
    stage: &Rc<Stage>,
    number: usize,
    (endpoint, process): (SimEndpoint, SimEndpoint),
    lanes: Vec<Vec<Operation>>,
) {
    let (opening, crew) = (Rc::clone(stage), Rc::clone(tasks));
    let task = tasks.spawn(async move {
        let node = &opening.node;
        let client = endpoint.client();
        let owner = node.register(client);
        opening.actors.borrow_mut()[number].owner = Some(owner);
        let host = SimHost::new(node, client);
        let keeper = ProcessKeeper::new(process, host.share(), Barrier::OneThread);
        start_process(&crew, &opening, number, keeper);
        let session = AsyncSession::new(host, endpoint, owner);
        let session = match Session::open(session).await {
            Ok(session) => Rc::new(session),
            Err(error) => {
                opening.complain_of(number, "the table cannot be opened", &error);
                return opening.end(number);
            }
        };
        let is_alone = lanes.len() == 1;
        let lane_count = Rc::new(Cell::new(lanes.len()));
        for lane in lanes {
            let (stage, session) = (Rc::clone(&opening), Rc::clone(&session));
            let ends = LaneEnds(Rc::clone(&lane_count));
            let task = crew.spawn(async move {
                let _ends = ends;
                work(&stage, number, &session, (lane, is_alone)).await;
            });
            opening.actors.borrow_mut()[number].lanes.push(task);
        }
        while lane_count.get() > 0 {
            sleep(&node.world, LANES_TICK).await;
        }
        close(&opening, number, &session).await;
    });
    stage.actors.borrow_mut()[number].tasks.push(task);
}

/// A lane that has not ended, or been cancelled.
struct LaneEnds(Rc<Cell<usize>>);

impl Drop for LaneEnds {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Starts the task that stands for a process's thread (P2, P3).
fn start_process(
    crew: &Tasks<'_>,
    stage: &Rc<Stage>,
    number: usize,
    keeper: ProcessKeeper<SimEndpoint>,
) {
    let process = Rc::clone(stage);
    let task = crew.spawn(async move {
        while !process.actors.borrow()[number].is_out {
            sleep(&process.node.world, PROCESS_TICK).await;
            if let Err(error) = keeper.tick().await {
                if process.actors.borrow()[number].is_out {
                    // The session has closed meanwhile, and the connection with it.
                    return;
                }
                return process.complain_of(number, "its process cannot follow", &error);
            }
        }
        process.count(number, keeper.endpoint());
    });
    stage.actors.borrow_mut()[number].tasks.push(task);
}

impl Stage {
    /// The client's session ends: it posts nothing any more, and says so.
    fn end(&self, number: usize) {
        let (client, process, owner) = {
            let actor = &self.actors.borrow()[number];
            (actor.client, actor.process, actor.owner)
        };
        self.node.world.borrow_mut().fence(process);
        match owner {
            Some(owner) => self.node.fence(client, owner),
            None => self.node.world.borrow_mut().fence(client),
        }
        self.leave(number);
    }
}

/// A lane's operations, until something breaks.
async fn work(
    stage: &Stage,
    number: usize,
    session: &Session<SimEndpoint>,
    (operations, is_alone): (Vec<Operation>, bool),
) {
    for operation in operations {
        if session.is_broken() {
            return;
        }
        let was_lost = stage.is_lost.get();
        if was_lost && !is_alone {
            // Another lane may be in the middle of an operation, which must not go on (F6).
            return;
        }
        if was_lost {
            // With all that it knows, and a lock word of its own, it meets a memory that is empty.
            session.endpoint().reconnect();
        }
        if session.must_open(&operation) {
            perform(stage, number, session, (Operation::Open, was_lost)).await;
            if session.must_open(&operation) {
                continue;
            }
        }
        let answer = perform(stage, number, session, (operation, was_lost)).await;
        if matches!(answer, Answer::Unknown(_)) && !stage.is_lost.get() {
            // F6: whoever does not know what it did posts nothing any more.
            return;
        }
    }
}

/// One operation, as the history has it.
async fn perform(
    stage: &Stage,
    number: usize,
    session: &Session<SimEndpoint>,
    (operation, was_lost): (Operation, bool),
) -> Answer {
    let expected = session.expected(&operation);
    let on = (session.table_of(&operation), expected);
    let call = stage
        .history
        .borrow_mut()
        .call(number as u32, operation.clone(), on);
    stage.note(|| format!("client {number} calls {operation:x?}"));
    let answered = session.perform(&operation, expected).await;
    let answer = answered.unwrap_or_else(|error| {
        // Whoever meets an empty node may say so in any words.
        if !stage.is_lost.get() {
            let how = format!("{operation:x?} failed: {error}");
            stage.complain(Violation::new("errors", how));
        }
        Answer::Unknown(error)
    });
    stage.note(|| format!("client {number} is told {answer:x?}"));
    stage.print(&answer);
    let is_made_up = !matches!(answer, Answer::Unknown(_) | Answer::Nothing(_));
    if was_lost && is_made_up {
        let how = format!("{operation:x?} was answered from empty memory: {answer:x?}");
        stage.complain(Violation::new("made up", how));
    }
    stage.history.borrow_mut().answer(call, answer.clone());
    answer
}

impl Stage {
    fn note(&self, text: impl FnOnce() -> String) {
        self.node.world.borrow_mut().note(text);
    }

    fn print(&self, answer: &Answer) {
        let text = format!("{answer:?}");
        let mut world = self.node.world.borrow_mut();
        text.bytes().for_each(|byte| world.print(byte.into()));
    }
}

/// Gives back what is leased, if the session may, and closes it.
async fn close(stage: &Stage, number: usize, session: &Session<SimEndpoint>) {
    if session.is_broken() {
        stage.complain_of(number, "the session broke", &"nothing befell it");
    }
    // What cannot be given back is swept.
    if let Err(error) = session.close().await {
        stage.complain_of(number, "it cannot be closed", &error);
    }
    stage.count(number, session.endpoint());
    stage.end(number);
}

impl Stage {
    /// F9, for a client that nothing has happened to.
    fn count(&self, number: usize, endpoint: &SimEndpoint) {
        if !self.actors.borrow()[number].was_spared {
            return;
        }
        let executed = self.node.world.borrow().verb_count(endpoint.client());
        if let Some(violation) = check::counters::check(endpoint.counters(), executed) {
            self.complain(violation);
        }
    }
}

/// Lets a mishap happen at its time.
async fn strike(stage: &Stage, crew: &Tasks<'_>, fault: Fault) {
    let world = &stage.node.world;
    match fault.when {
        When::At(at) => sleep(world, at).await,
        When::During {
            client,
            number,
            verb_count_min,
        } => {
            let client = stage.actors.borrow()[client].client;
            sleep_until_during(world, client, number, verb_count_min).await;
        }
    }
    stage.note(|| format!("{:?}", fault.mishap));
    match fault.mishap {
        Mishap::Death {
            client,
            fenced_after,
        } => {
            stage.mark(client);
            for task in stage.tasks_of(client) {
                crew.kill(task);
            }
            sleep(world, fenced_after).await;
            stage.end(client);
        }
        Mishap::Pause { client, duration } => {
            stage.mark(client);
            let until = world.borrow().now() + duration;
            crew.pause(&stage.tasks_of(client), until);
        }
        Mishap::Zombie {
            client,
            fenced_after,
            duration,
        } => {
            stage.mark(client);
            let until = world.borrow().now() + duration;
            crew.pause(&stage.tasks_of(client), until);
            sleep(world, fenced_after).await;
            stage.end(client);
        }
        Mishap::Break { client } => {
            stage.mark(client);
            let client = stage.actors.borrow()[client].client;
            world.borrow_mut().break_connection(client);
        }
        Mishap::Cancel { client, lane } => {
            stage.mark(client);
            let lanes = stage.actors.borrow()[client].lanes.clone();
            if let Some(lane) = lanes.get(lane) {
                crew.kill(*lane);
            }
        }
        Mishap::NodeLoss => {
            let actor_count = stage.actors.borrow().len();
            (0..actor_count).for_each(|number| stage.mark(number));
            stage.is_lost.set(true);
            world.borrow_mut().lose_node(NodeId(0));
        }
        Mishap::AgentPause { duration } => {
            let until = world.borrow().now() + duration;
            crew.pause(stage.agent.get().as_slice(), until);
        }
    }
}

impl Stage {
    fn mark(&self, number: usize) {
        self.actors.borrow_mut()[number].was_spared = false;
    }

    fn tasks_of(&self, number: usize) -> Vec<TaskId> {
        let actor = &self.actors.borrow()[number];
        actor.tasks.iter().chain(&actor.lanes).copied().collect()
    }
}

/// Nobody works any more: sweeps, looks at everything, and judges the history.
fn conclude(stage: &Stage, plan: &Plan) {
    if !stage.is_lost.get()
        && let Err(error) = last_look(stage)
    {
        let how = format!("the region cannot be read in the end: {error}");
        stage.complain(Violation::new("region", how));
    }
    let history = stage.history.borrow();
    let mut found: Vec<Violation> = check::names::check(&history).into_iter().collect();
    for table in history.tables() {
        let initial: BTreeMap<u64, u64> = match table {
            MAIN_TABLE => plan.table.loaded.iter().copied().collect(),
            _ => BTreeMap::new(),
        };
        let history = history.of_table(table);
        found.extend(check::linearizability::check(
            &history,
            &initial,
            &plan.keys(),
        ));
        found.extend(check::scans::check(&history));
    }
    drop(history);
    for violation in found {
        stage.complain(violation);
    }
}

/// Sweeps, frees and audits; then reads everything that the tables hold.
fn last_look(stage: &Stage) -> Result<(), Box<dyn core::error::Error>> {
    let node = &stage.node;
    let endpoint = StillEndpoint::new(&node.world);
    let owner = node.register(endpoint.client());
    let keeper = node.keeper(endpoint, owner);
    let swept = block_on(keeper.sweep(), || 0)?;
    if swept.given_up_count > 0 {
        let how = "nobody works any more, and still the sweep waits".to_owned();
        stage.complain(Violation::new("progress", how));
    }
    for _ in 0..RECLAIM_COUNT {
        block_on(keeper.reclaim(), || 0)?;
    }
    node.fence(keeper.endpoint.client(), owner);

    let session = open_still(node)?;
    let region = Region::read(node, &session)?.ok_or("the table is gone")?;
    for violation in region.check() {
        stage.complain(violation);
    }
    let everything = Operation::Scan(0, RECORD_COUNT_MAX);
    let elsewhere = Operation::Other(Box::new(everything.clone()));
    for operation in [everything, Operation::Open, elsewhere] {
        if session.must_open(&operation) {
            continue;
        }
        let on = (session.table_of(&operation), None);
        let call = stage
            .history
            .borrow_mut()
            .call(FINAL_CHECK, operation.clone(), on);
        let answer = block_on(session.perform(&operation, None), || 0)?;
        stage.history.borrow_mut().answer(call, answer);
    }
    block_on(session.close(), || 0)?;
    Ok(())
}
