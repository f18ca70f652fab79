//! Clients of a run: one session, one process and several lanes each.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use farleaf::host::{Barrier, SequencePublisher, SessionHost};
use farleaf::{AsyncSession, ErrorKind, SessionOptions};
use farleaf_fabric::Endpoint;

use super::RunState;
use crate::check::{self, Violation, closing};
use crate::fabric::endpoint::SimEndpoint;
use crate::fabric::executor::{Tasks, sleep};
use crate::fabric::world::Nanos;
use crate::history::{Answer, Operation, Refusal};
use crate::plan::ClientPlan;
use crate::session::{Session, SimHost, Unexpected};

/// Time between two ticks of a process, in virtual time.
const PROCESS_TICK: Nanos = 15_000;
/// Time between two checks whether a client's lanes are done.
const LANES_TICK: Nanos = 2_000;

/// Starts a client: a task for its session, a task for its process, and a task per lane.
pub(super) fn start_client(
    tasks: &Rc<Tasks<'static>>,
    run_state: &Rc<RunState>,
    number: usize,
    endpoint: SimEndpoint,
    process: SimEndpoint,
    plan: ClientPlan,
) {
    let (opening, crew) = (Rc::clone(run_state), Rc::clone(tasks));
    let task = tasks.spawn(async move {
        let node = &opening.node;
        let client = endpoint.client();
        let owner = node.register(client);
        opening.run_clients.borrow_mut()[number].owner = Some(owner);
        let host = SimHost::new(
            node,
            client,
            &opening.findings,
            Arc::clone(&opening.local_locks[plan.compute_node]),
        );
        let members = host.share().layout().members();
        endpoint.belongs_to(members);
        process.belongs_to(members);
        let keeper = SequencePublisher::new(process, host.share(), Barrier::OneThread);
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
                opening.report_failure(number, "the table cannot be opened", &error);
                return opening.end(number);
            }
        };
        let lanes = plan.lanes;
        let is_alone = lanes.len() == 1;
        let lane_count = Rc::new(Cell::new(lanes.len()));
        for lane in lanes {
            let (run_state, session) = (Rc::clone(&opening), Rc::clone(&session));
            let ends = LaneEnds(Rc::clone(&lane_count));
            let task = crew.spawn(async move {
                let _ends = ends;
                work(&run_state, number, &session, lane, is_alone).await;
            });
            opening.run_clients.borrow_mut()[number].lanes.push(task);
        }
        while lane_count.get() > 0 {
            sleep(&node.world, LANES_TICK).await;
        }
        opening.count_promises(&session);
        close(&crew, &opening, number, &session).await;
        opening.count(number, session.endpoint());
        opening.end(number);
    });
    run_state.run_clients.borrow_mut()[number].tasks.push(task);
}

/// Counter of lanes that have neither ended nor been cancelled.
struct LaneEnds(Rc<Cell<usize>>);

impl Drop for LaneEnds {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Starts the task of a process's background thread.
fn start_process(
    crew: &Tasks<'_>,
    run_state: &Rc<RunState>,
    number: usize,
    keeper: SequencePublisher<SimEndpoint>,
) {
    let process = Rc::clone(run_state);
    let task = crew.spawn(async move {
        while !process.run_clients.borrow()[number].has_left {
            sleep(&process.node.world, PROCESS_TICK).await;
            if let Err(error) = keeper.tick().await {
                if process.run_clients.borrow()[number].has_left {
                    // The session has closed meanwhile, and with it the connection.
                    return;
                }
                return process.report_failure(number, "its process cannot follow", &error);
            }
        }
        process.count(number, keeper.endpoint());
    });
    run_state.run_clients.borrow_mut()[number].tasks.push(task);
}

impl RunState {
    /// Ends the client's session: it posts nothing anymore, and reports that.
    pub(super) fn end(&self, number: usize) {
        let (client, process, owner) = {
            let actor = &self.run_clients.borrow()[number];
            (actor.client, actor.process, actor.owner)
        };
        self.node.world.fence(process);
        match owner {
            Some(owner) => self.node.fence(client, owner),
            None => self.node.world.fence(client),
        }
        self.leave(number);
    }
}

/// Executes a lane's operations until something breaks, and then one more, which must be refused.
async fn work(
    run_state: &RunState,
    number: usize,
    session: &Session<SimEndpoint>,
    operations: Vec<Operation>,
    is_alone: bool,
) {
    for operation in operations {
        let was_lost = run_state.is_lost.get();
        let was_broken = session.is_broken();
        if was_lost && !is_alone {
            // Another lane may be in the middle of an operation, which must not continue
            // (FABRIC-6).
            return;
        }
        if was_lost {
            // With its old knowledge and its old lock word, the session finds an empty memory.
            session.endpoint().reconnect();
        }
        if session.must_open(&operation) {
            perform(run_state, number, session, Operation::Open, was_lost).await;
            if was_broken {
                return;
            }
            if session.must_open(&operation) {
                continue;
            }
        }
        let answer = perform(run_state, number, session, operation, was_lost).await;
        let is_unknown = matches!(answer, Answer::Unknown(_)) && !run_state.is_lost.get();
        if was_broken || is_unknown && !session.is_broken() {
            // A session with an unknown outcome posts nothing anymore (FABRIC-6).
            return;
        }
    }
}

/// Executes one operation and records it in the history.
async fn perform(
    run_state: &RunState,
    number: usize,
    session: &Session<SimEndpoint>,
    operation: Operation,
    was_lost: bool,
) -> Answer {
    let expected = session.expected(&operation);
    let call = run_state.history.borrow_mut().call(
        number as u32,
        operation.clone(),
        session.table_of(&operation),
        expected,
    );
    run_state.note(|| format!("client {number} calls {operation:x?}"));
    let broken = session.is_broken().then(|| session.is_busy());
    let answered = session.perform(&operation, expected).await;
    let answer = answered.unwrap_or_else(|error| {
        // On an empty node, any error is permitted. A broken session of the node's own refuses at
        // most one call.
        let unmet_count = run_state.unreported_break_count.get();
        let is_met = matches!(error, Unexpected::Refused(_)) && unmet_count > 0;
        if is_met {
            run_state.unreported_break_count.set(unmet_count - 1);
        }
        if !run_state.is_lost.get() && !is_met {
            let how = format!("{operation:x?} failed: {error}");
            run_state.report_violation(Violation::new("errors", how));
        }
        Answer::Unknown(error.to_string())
    });
    run_state.note(|| format!("client {number} gets {answer:x?}"));
    run_state.print(&answer);
    let is_made_up = !matches!(
        answer,
        Answer::Unknown(_) | Answer::Nothing(_) | Answer::NodeLost
    );
    if was_lost && is_made_up {
        let how = format!("{operation:x?} returned a result from empty memory: {answer:x?}");
        run_state.report_violation(Violation::new("made up", how));
    }
    if answer == Answer::NodeLost && !run_state.has_lost_member.get() {
        let how =
            format!("client {number}: {operation:x?} reported a lost node, but no node is lost");
        run_state.report_violation(Violation::new("errors", how));
    }
    run_state.history.borrow_mut().answer(call, answer.clone());
    if let Some(is_busy) = broken {
        run_state.check_broken(number, &answer, is_busy);
    }
    answer
}

impl RunState {
    pub(super) fn note(&self, text: impl FnOnce() -> String) {
        self.node.world.borrow_mut().note(text);
    }

    fn print(&self, answer: &Answer) {
        let text = format!("{answer:?}");
        let mut world = self.node.world.borrow_mut();
        text.bytes().for_each(|byte| world.print(byte.into()));
    }
}

impl RunState {
    /// Checks that a session that was broken when an operation was called refuses it (FABRIC-6). It
    /// also closes, unless it was busy with another operation, whose batches may be in flight.
    fn check_broken(&self, number: usize, answer: &Answer, was_busy: bool) {
        if *answer != Answer::Nothing(Refusal::SessionBroken) {
            let how = format!("client {number}: a broken session returned {answer:x?}");
            self.report_violation(Violation::new("closing", how));
        } else if !was_busy {
            self.check_closed(number);
        }
    }

    /// Records the report of the client's session that it is closed (FABRIC-6).
    fn check_closed(&self, number: usize) {
        let owner = self.run_clients.borrow()[number].owner;
        let violation = owner.and_then(|owner| closing::not_fenced(&self.node, owner));
        if let Some(violation) = violation {
            self.report_violation(violation);
        }
    }
}

/// Closes the session, in a task of its own that may be cut off; then it is closed again.
async fn close(
    crew: &Rc<Tasks<'static>>,
    run_state: &Rc<RunState>,
    number: usize,
    session: &Rc<Session<SimEndpoint>>,
) {
    if session.is_broken() {
        run_state.report_failure(number, "the session broke", &"the client had no fault");
    }
    let is_closed = Rc::new(Cell::new(false));
    while !is_closed.get() {
        let running_count = Rc::new(Cell::new(1));
        let ends = LaneEnds(Rc::clone(&running_count));
        let (stage_there, session, closed) = (
            Rc::clone(run_state),
            Rc::clone(session),
            Rc::clone(&is_closed),
        );
        let task = crew.spawn(async move {
            let _ends = ends;
            close_once(&stage_there, number, &session).await;
            stage_there.run_clients.borrow_mut()[number].closing = None;
            closed.set(true);
        });
        {
            let actor = &mut run_state.run_clients.borrow_mut()[number];
            actor.tasks.push(task);
            actor.closing = Some(task);
        }
        while running_count.get() > 0 {
            sleep(&run_state.node.world, LANES_TICK).await;
        }
    }
}

/// Returns leased memory, if the session may, and closes it. A sweep frees what cannot be returned;
/// the report that the session is closed needs no fabric.
async fn close_once(run_state: &RunState, number: usize, session: &Session<SimEndpoint>) {
    loop {
        let was_broken = session.is_broken();
        let Err(error) = session.close().await else {
            return run_state.check_closed(number);
        };
        if was_broken || matches!(error.kind(), ErrorKind::SessionBusy) {
            let how = format!("client {number}: cannot close its session: {error}");
            return run_state.report_violation(Violation::new("closing", how));
        }
        run_state.report_failure(number, "cannot close the session", &error);
    }
}

impl RunState {
    /// Counts the leaves that were handed over to the client's operations.
    fn count_promises(&self, session: &Session<SimEndpoint>) {
        let counters = session.hint_counters();
        let mut rare_events = self.rare_events.borrow_mut();
        rare_events.hand_over_count += counters.handed_count;
        rare_events.asked_promise_count += counters.asked_count;
    }

    /// Checks the counters (FABRIC-9) of a client without faults, and without errors of a lost
    /// node: a load that such an error ends is not fully counted.
    fn count(&self, number: usize, endpoint: &SimEndpoint) {
        let met_loss =
            self.history.borrow().events.iter().any(|event| {
                event.client == number as u32 && event.answer == Some(Answer::NodeLost)
            });
        if !self.run_clients.borrow()[number].has_no_fault || met_loss {
            return;
        }
        let executed = self.node.world.borrow().executed(endpoint.client());
        if let Some(violation) = check::counters::check(endpoint.counters(), executed) {
            self.report_violation(violation);
        }
    }
}
