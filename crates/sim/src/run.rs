//! One run of a plan, from an empty region to the verdict.

use core::fmt;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

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
use crate::session::Session;

/// Things that happen in a run at the most; a run that goes on is one in which somebody waits for
/// ever.
const STEP_COUNT_MAX: u64 = 20_000_000;
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
    client: ClientId,
    /// Its opening, and its lanes.
    tasks: Vec<TaskId>,
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
        stage.actors.borrow_mut().push(Actor {
            client: endpoint.client(),
            tasks: Vec::new(),
            owner: None,
            is_out: false,
            was_spared: true,
        });
        start_client(&tasks, &stage, (number, endpoint), client.lanes.clone());
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
            let failed = stage.node.run_agent(is_over).await;
            if let Some(error) = failed.filter(|_| !stage.is_lost.get()) {
                let how = format!("a sweep failed: {error}");
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
fn prepare(node: &Node, plan: &Plan) -> Result<(), Box<dyn core::error::Error>> {
    let table = &plan.table;
    let entry = node.create_table(table.layer, table.slots, table.fill_percent)?;
    if table.loaded.is_empty() {
        return Ok(());
    }
    let endpoint = StillEndpoint::new(&node.world);
    let owner = node.register(endpoint.client());
    let session = block_on(Session::open(endpoint, owner, node.layout, entry), || 0)?;
    let load = Operation::Load(table.loaded.clone());
    let loaded = block_on(session.perform(&load, None), || 0)?;
    assert_eq!(loaded, Answer::Loaded, "an empty table can be loaded");
    node.fence(session.endpoint().client(), owner);
    Ok(())
}

/// Starts a client: a task that opens its session, and a task per lane.
fn start_client(
    tasks: &Rc<Tasks<'static>>,
    stage: &Rc<Stage>,
    (number, endpoint): (usize, SimEndpoint),
    lanes: Vec<Vec<Operation>>,
) {
    let (stage, crew) = (Rc::clone(stage), Rc::clone(tasks));
    let opening = Rc::clone(&stage);
    let task = tasks.spawn(async move {
        let node = &opening.node;
        let owner = node.register(endpoint.client());
        opening.actors.borrow_mut()[number].owner = Some(owner);
        let entry = match node.entry() {
            Ok(Some(entry)) => entry,
            found => {
                // A node that has restarted has no table.
                opening.complain_of(number, "the table cannot be found", &found.err());
                return opening.end(number);
            }
        };
        let session = match Session::open(endpoint, owner, node.layout, entry).await {
            Ok(session) => Rc::new(session),
            Err(error) => {
                opening.complain_of(number, "the table cannot be opened", &error);
                return opening.end(number);
            }
        };
        if lanes.is_empty() {
            return close(&opening, number, &session).await;
        }
        let is_alone = lanes.len() == 1;
        let lane_count = Rc::new(Cell::new(lanes.len()));
        for lane in lanes {
            let (stage, session) = (Rc::clone(&opening), Rc::clone(&session));
            let lane_count = Rc::clone(&lane_count);
            let task = crew.spawn(async move {
                work(&stage, number, &session, (lane, is_alone)).await;
                lane_count.set(lane_count.get() - 1);
                if lane_count.get() == 0 {
                    close(&stage, number, &session).await;
                }
            });
            opening.actors.borrow_mut()[number].tasks.push(task);
        }
    });
    stage.actors.borrow_mut()[number].tasks.push(task);
}

impl Stage {
    /// The client's session ends: it posts nothing any more, and says so.
    fn end(&self, number: usize) {
        let (client, owner) = {
            let actor = &self.actors.borrow()[number];
            (actor.client, actor.owner)
        };
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
        let expected = match &operation {
            Operation::CompareSwap(key, _) => session.seen(*key),
            _ => None,
        };
        let was_lost = stage.is_lost.get();
        if was_lost && !is_alone {
            // Another lane may be in the middle of an operation, which must not go on (F6).
            return;
        }
        if was_lost {
            // With all that it knows, and a lock word of its own, it meets a memory that is empty.
            session.endpoint().reconnect();
        }
        let call = stage
            .history
            .borrow_mut()
            .call(number as u32, operation.clone(), expected);
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
        let is_unknown = matches!(answer, Answer::Unknown(_));
        if was_lost && !matches!(answer, Answer::Unknown(_) | Answer::Nothing(_)) {
            let how = format!("{operation:x?} was answered from empty memory: {answer:x?}");
            stage.complain(Violation::new("made up", how));
        }
        stage.history.borrow_mut().answer(call, answer);
        if is_unknown && !stage.is_lost.get() {
            // F6: whoever does not know what it did posts nothing any more.
            return;
        }
    }
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
    } else {
        match session.give_back().await {
            // What cannot be given back is swept.
            Err(error) => stage.complain_of(number, "leaves cannot be given back", &error),
            Ok(()) => session.note_drained().await,
        }
    }
    let was_spared = stage.actors.borrow()[number].was_spared;
    if was_spared && !session.is_broken() {
        let client = session.endpoint().client();
        let executed = stage.node.world.borrow().verb_count(client);
        if let Some(violation) = check::counters::check(session.endpoint().counters(), executed) {
            stage.complain(violation);
        }
    }
    stage.end(number);
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
        self.actors.borrow()[number].tasks.clone()
    }
}

/// Nobody works any more: sweeps, looks at everything, and judges the history.
fn conclude(stage: &Stage, plan: &Plan) {
    if !stage.is_lost.get() {
        match last_look(stage) {
            Ok(last) => {
                let mut history = stage.history.borrow_mut();
                let everything = Operation::Scan(0, RECORD_COUNT_MAX);
                let call = history.call(FINAL_CHECK, everything, None);
                history.answer(call, last);
            }
            Err(error) => {
                let how = format!("the region cannot be read in the end: {error}");
                stage.complain(Violation::new("region", how));
            }
        }
    }
    let history = stage.history.borrow();
    let initial: BTreeMap<u64, u64> = plan.table.loaded.iter().copied().collect();
    let mut found = check::linearizability::check(&history, &initial, &plan.keys());
    found.extend(check::scans::check(&history));
    drop(history);
    for violation in found {
        stage.complain(violation);
    }
}

/// Sweeps and audits; everything that the table holds in the end.
fn last_look(stage: &Stage) -> Result<Answer, Box<dyn core::error::Error>> {
    let node = &stage.node;
    let endpoint = StillEndpoint::new(&node.world);
    let owner = node.register(endpoint.client());
    let keeper = node.keeper(endpoint, owner);
    let swept = block_on(keeper.sweep(), || 0)?;
    if swept.given_up_count > 0 {
        let how = "nobody works any more, and still the sweep waits".to_owned();
        stage.complain(Violation::new("progress", how));
    }
    node.fence(keeper.endpoint.client(), owner);

    let endpoint = StillEndpoint::new(&node.world);
    let client = endpoint.client();
    let owner = node.register(client);
    let entry = node.entry()?.ok_or("the table is gone")?;
    let session = block_on(Session::open(endpoint, owner, node.layout, entry), || 0)?;
    let region = Region::read(node, &session)?.ok_or("the table is gone")?;
    for violation in region.check() {
        stage.complain(violation);
    }
    let everything = Operation::Scan(0, RECORD_COUNT_MAX);
    let last = block_on(session.perform(&everything, None), || 0)?;
    node.fence(client, owner);
    Ok(last)
}
