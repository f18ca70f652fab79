//! One client: its session, its process and its lanes.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use farleaf::host::{Barrier, Host, ProcessKeeper};
use farleaf::{AsyncSession, ErrorKind, SessionOptions};
use farleaf_fabric::Endpoint;

use super::Stage;
use crate::check::{self, Violation, closing};
use crate::fabric::endpoint::SimEndpoint;
use crate::fabric::executor::{Tasks, sleep};
use crate::fabric::world::Nanos;
use crate::history::{Answer, Operation, Refusal};
use crate::plan::ClientPlan;
use crate::session::{Session, SimHost, Unexpected};

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
    plan: ClientPlan,
) {
    let (opening, crew) = (Rc::clone(stage), Rc::clone(tasks));
    let task = tasks.spawn(async move {
        let node = &opening.node;
        let client = endpoint.client();
        let owner = node.register(client);
        opening.actors.borrow_mut()[number].owner = Some(owner);
        let host = SimHost::new(
            node,
            client,
            &opening.findings,
            Arc::clone(&opening.local_locks[plan.compute_node]),
        );
        let members = host.share().layout().members();
        endpoint.belongs_to(members);
        process.belongs_to(members);
        let keeper = ProcessKeeper::new(process, host.share(), Barrier::OneThread);
        start_process(&crew, &opening, number, keeper);
        let options = SessionOptions {
            metadata_budget_bytes: plan.metadata_budget_bytes,
            link_count_max: plan.link_count_max,
            model_cache: plan.model_cache,
            does_not_speculate: plan.does_not_speculate,
        };
        let session = AsyncSession::with_options(host, endpoint, owner, &options);
        let session = match Session::open(session, opening.strings.clone()).await {
            Ok(session) => Rc::new(session),
            Err(error) => {
                opening.complain_of(number, "the table cannot be opened", &error);
                return opening.end(number);
            }
        };
        let lanes = plan.lanes;
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
        opening.count_promises(&session);
        close(&crew, &opening, number, &session).await;
        opening.count(number, session.endpoint());
        opening.end(number);
    });
    stage.actors.borrow_mut()[number].tasks.push(task);
}

/// A task that has not ended, or been cancelled.
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

/// A lane's operations, until something breaks; and one more then, which must be refused.
async fn work(
    stage: &Stage,
    number: usize,
    session: &Session<SimEndpoint>,
    (operations, is_alone): (Vec<Operation>, bool),
) {
    for operation in operations {
        let was_lost = stage.is_lost.get();
        let was_broken = session.is_broken();
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
            if was_broken {
                return;
            }
            if session.must_open(&operation) {
                continue;
            }
        }
        let answer = perform(stage, number, session, (operation, was_lost)).await;
        let is_unknown = matches!(answer, Answer::Unknown(_)) && !stage.is_lost.get();
        if was_broken || is_unknown && !session.is_broken() {
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
    let broken = session.is_broken().then(|| session.is_busy());
    let answered = session.perform(&operation, expected).await;
    let answer = answered.unwrap_or_else(|error| {
        // Whoever meets an empty node may say so in any words.
        // A session of the node's own that has lost its connection refuses one call at the most.
        let unmet_count = stage.unmet_break_count.get();
        let is_met = matches!(error, Unexpected::Refused(_)) && unmet_count > 0;
        if is_met {
            stage.unmet_break_count.set(unmet_count - 1);
        }
        if !stage.is_lost.get() && !is_met {
            let how = format!("{operation:x?} failed: {error}");
            stage.complain(Violation::new("errors", how));
        }
        Answer::Unknown(error.to_string())
    });
    stage.note(|| format!("client {number} is told {answer:x?}"));
    stage.print(&answer);
    let is_made_up = !matches!(
        answer,
        Answer::Unknown(_) | Answer::Nothing(_) | Answer::NodeLost
    );
    if was_lost && is_made_up {
        let how = format!("{operation:x?} was answered from empty memory: {answer:x?}");
        stage.complain(Violation::new("made up", how));
    }
    if answer == Answer::NodeLost && !stage.has_lost_member.get() {
        let how = format!("client {number}: {operation:x?} met a lost node, and none is");
        stage.complain(Violation::new("errors", how));
    }
    stage.history.borrow_mut().answer(call, answer.clone());
    if let Some(is_busy) = broken {
        stage.judge_broken(number, &answer, is_busy);
    }
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

impl Stage {
    /// F6: a session that was broken when an operation was called refuses it; and closes, unless it
    /// was busy with another, whose batches may be on their way.
    fn judge_broken(&self, number: usize, answer: &Answer, was_busy: bool) {
        if *answer != Answer::Nothing(Refusal::SessionBroken) {
            let how = format!("client {number}: a broken session answers {answer:x?}");
            self.complain(Violation::new("closing", how));
        } else if !was_busy {
            self.judge_closed(number);
        }
    }

    /// F6: the client's session says that it is closed.
    fn judge_closed(&self, number: usize) {
        let owner = self.actors.borrow()[number].owner;
        let violation = owner.and_then(|owner| closing::not_fenced(&self.node, owner));
        if let Some(violation) = violation {
            self.complain(violation);
        }
    }
}

/// Closes the session, in a task of its own that may be cut off: then it is done again.
async fn close(
    crew: &Rc<Tasks<'static>>,
    stage: &Rc<Stage>,
    number: usize,
    session: &Rc<Session<SimEndpoint>>,
) {
    if session.is_broken() {
        stage.complain_of(number, "the session broke", &"nothing befell it");
    }
    let is_closed = Rc::new(Cell::new(false));
    while !is_closed.get() {
        let running_count = Rc::new(Cell::new(1));
        let ends = LaneEnds(Rc::clone(&running_count));
        let (stage_there, session, closed) =
            (Rc::clone(stage), Rc::clone(session), Rc::clone(&is_closed));
        let task = crew.spawn(async move {
            let _ends = ends;
            close_once(&stage_there, number, &session).await;
            stage_there.actors.borrow_mut()[number].closing = None;
            closed.set(true);
        });
        {
            let actor = &mut stage.actors.borrow_mut()[number];
            actor.tasks.push(task);
            actor.closing = Some(task);
        }
        while running_count.get() > 0 {
            sleep(&stage.node.world, LANES_TICK).await;
        }
    }
}

/// Gives back what is leased, if the session may, and closes it. What cannot be given back is
/// swept; but to say that it is closed needs no fabric.
async fn close_once(stage: &Stage, number: usize, session: &Session<SimEndpoint>) {
    loop {
        let was_broken = session.is_broken();
        let Err(error) = session.close().await else {
            return stage.judge_closed(number);
        };
        if was_broken || matches!(error.kind(), ErrorKind::SessionBusy) {
            let how = format!("client {number}: its session cannot be closed: {error}");
            return stage.complain(Violation::new("closing", how));
        }
        stage.complain_of(number, "it cannot be closed", &error);
    }
}

impl Stage {
    /// H2, H3: what the client's operations have come by.
    fn count_promises(&self, session: &Session<SimEndpoint>) {
        let counters = session.hint_counters();
        let mut reached = self.reached.borrow_mut();
        reached.hand_over_count += counters.handed_count;
        reached.asked_promise_count += counters.asked_count;
    }

    /// F9, for a client that nothing has happened to, and that no lost node has failed: a load that
    /// one ends is not counted to its last batch.
    fn count(&self, number: usize, endpoint: &SimEndpoint) {
        let met_loss =
            self.history.borrow().events.iter().any(|event| {
                event.client == number as u32 && event.answer == Some(Answer::NodeLost)
            });
        if !self.actors.borrow()[number].was_spared || met_loss {
            return;
        }
        let executed = self.node.world.borrow().executed(endpoint.client());
        if let Some(violation) = check::counters::check(endpoint.counters(), executed) {
            self.complain(violation);
        }
    }
}
