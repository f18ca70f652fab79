//! One client: its session, its process and its lanes.

use std::cell::Cell;
use std::rc::Rc;

use farleaf::AsyncSession;
use farleaf::host::{Barrier, Host, ProcessKeeper};
use farleaf_fabric::Endpoint;

use super::Stage;
use crate::check::{self, Violation};
use crate::fabric::endpoint::SimEndpoint;
use crate::fabric::executor::{Tasks, sleep};
use crate::fabric::world::Nanos;
use crate::history::{Answer, Operation};
use crate::session::{Session, SimHost};

/// Time between two looks of a process at the pool, in virtual time.
const PROCESS_TICK: Nanos = 15_000;
/// Time between two looks whether a client's lanes are done.
const LANES_TICK: Nanos = 2_000;

/// Starts a client: a task for its session, a task for its process, and a task per lane.
pub(super) fn start_client(
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
    pub(super) fn end(&self, number: usize) {
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
    pub(super) fn note(&self, text: impl FnOnce() -> String) {
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
        let executed = self.node.world.borrow().executed(endpoint.client());
        if let Some(violation) = check::counters::check(endpoint.counters(), executed) {
            self.complain(violation);
        }
    }
}
