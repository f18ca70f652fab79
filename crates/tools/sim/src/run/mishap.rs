//! Execution of faults.

use std::rc::Rc;

use farleaf_base::NodeId;
use farleaf_fabric::ProtocolPhase;

use super::{RunState, start_agent};
use crate::fabric::executor::{Tasks, sleep, sleep_until_during};
use crate::fabric::world::{ClientId, ClientLife, Nanos, TaskId, WantedBatches};
use crate::plan::{Fault, FaultKind, FaultMoment};

/// Time between two checks whether the agent has started.
const AGENT_START: Nanos = 1000;
/// Time between two checks whether a client closes its session.
const CLOSING_TICK: Nanos = 1_000;
/// Longest time until the task that closes a session is cut off.
const CLOSING_CUT_NS_MAX: Nanos = 20_000;

/// Waits for the middle of a batch of an agent: the `number`-th wanted one of the same agent.
async fn wait_for_agent(run_state: &RunState, number: u64, wanted: WantedBatches) {
    let world = &run_state.node.world;
    // Counted per agent: an agent that dies while it continues another's work is the more dangerous
    // case.
    while let Some(client) = living_agent(run_state).await {
        sleep_until_during(world, client, number, wanted).await;
        if world.borrow().life(client) == ClientLife::Connected {
            return;
        }
    }
}

/// Returns the agent, as soon as one is not cut off; `None` if no client works anymore.
async fn living_agent(run_state: &RunState) -> Option<ClientId> {
    let world = &run_state.node.world;
    while run_state.busy.get() > 0 && !run_state.is_lost.get() {
        let agent = run_state.node.agent_client();
        let is_living = |client: &_| world.borrow().life(*client) == ClientLife::Connected;
        if let Some(client) = agent.filter(is_living) {
            return Some(client);
        }
        sleep(world, AGENT_START).await;
    }
    None
}

/// Returns a worker or trainer with a session, as soon as there is one; `None` if no client works
/// anymore.
async fn active_worker(run_state: &RunState, number: usize) -> Option<ClientId> {
    while run_state.busy.get() > 0 && !run_state.is_lost.get() {
        if let Some(client) = run_state.node.worker_client(number) {
            return Some(client);
        }
        sleep(&run_state.node.world, AGENT_START).await;
    }
    None
}

/// Waits for the moment of a fault.
async fn wait(run_state: &RunState, when: FaultMoment) {
    let world = &run_state.node.world;
    match when {
        FaultMoment::At(at) => sleep(world, at).await,
        FaultMoment::DuringAgent {
            number,
            verb_count_min,
        } => {
            wait_for_agent(run_state, number, WantedBatches::Changes(verb_count_min)).await;
        }
        FaultMoment::DuringRetraining { phase, number } => {
            wait_for_agent(run_state, number, WantedBatches::Phase(phase)).await;
        }
        FaultMoment::DuringWorker {
            worker,
            number,
            verb_count_min,
        } => {
            if let Some(client) = active_worker(run_state, worker).await {
                let wanted = WantedBatches::Changes(verb_count_min);
                sleep_until_during(world, client, number, wanted).await;
            }
        }
        FaultMoment::DuringEnqueueing { client } => {
            let client = run_state.run_clients.borrow()[client].client;
            let wanted = WantedBatches::Phase(ProtocolPhase::Enqueue);
            sleep_until_during(world, client, 1, wanted).await;
        }
        FaultMoment::During {
            client,
            number,
            verb_count_min,
        } => {
            let client = run_state.run_clients.borrow()[client].client;
            let wanted = WantedBatches::Changes(verb_count_min);
            sleep_until_during(world, client, number, wanted).await;
        }
    }
}

/// Executes a fault at its moment.
pub(super) async fn execute_fault(run_state: &Rc<RunState>, crew: &Tasks<'_>, fault: Fault) {
    wait(run_state, fault.when).await;
    let world = &run_state.node.world;
    run_state.note(|| format!("{:?}", fault.mishap));
    match fault.mishap {
        FaultKind::Death {
            client,
            fenced_after,
        } => {
            run_state.mark(client);
            for task in run_state.tasks_of(client) {
                crew.kill(task);
            }
            sleep(world, fenced_after).await;
            run_state.end(client);
        }
        FaultKind::Pause { client, duration } => {
            // A pause does not count as a fault: no client may notice it.
            let until = world.borrow().now() + duration;
            crew.pause(&run_state.tasks_of(client), until);
        }
        FaultKind::Zombie {
            client,
            fenced_after,
            duration,
        } => {
            run_state.mark(client);
            let until = world.borrow().now() + duration;
            crew.pause(&run_state.tasks_of(client), until);
            sleep(world, fenced_after).await;
            run_state.end(client);
        }
        FaultKind::Break { client } => {
            run_state.mark(client);
            let client = run_state.run_clients.borrow()[client].client;
            world.break_connection(client);
        }
        FaultKind::Cancel { client, lane } => {
            let lane = run_state.run_clients.borrow()[client]
                .lanes
                .get(lane)
                .copied();
            match lane {
                Some(lane) => {
                    run_state.mark(client);
                    crew.kill(lane);
                }
                None => cut_closing(run_state, crew, client).await,
            }
        }
        FaultKind::NodeLoss => run_state.lose_the_node(),
        FaultKind::Drain { node } => run_state.node.drain(NodeId(node)).await,
        FaultKind::MemberLoss { node } => {
            if run_state.node.lose_member(NodeId(node)) {
                run_state.has_lost_member.set(true);
            }
        }
        FaultKind::AgentDeath { fenced_after } => kill_agent(run_state, crew, fenced_after).await,
        FaultKind::WorkerBreak { number } => run_state.break_worker(number),
        FaultKind::AgentPause { duration } => {
            let until = world.borrow().now() + duration;
            crew.pause(run_state.agent.get().as_slice(), until);
        }
    }
}

/// Kills the agent, fences it, and starts its successor.
async fn kill_agent(run_state: &Rc<RunState>, crew: &Tasks<'_>, fenced_after: Nanos) {
    // Of two such faults at once, the other one starts the next agent.
    let Some(task) = run_state.agent.take() else {
        return;
    };
    run_state.note_agent_death();
    crew.kill(task);
    sleep(&run_state.node.world, fenced_after).await;
    run_state.node.fence_agent();
    start_agent(run_state, crew);
}

/// Drops the task that closes a client's session, in the middle of a batch or between two.
async fn cut_closing(run_state: &RunState, crew: &Tasks<'_>, number: usize) {
    let world = &run_state.node.world;
    let closing = || run_state.run_clients.borrow()[number].closing;
    while closing().is_none() {
        if run_state.run_clients.borrow()[number].has_left {
            return;
        }
        sleep(world, CLOSING_TICK).await;
    }
    let is_during = world.borrow_mut().random().chance(500);
    if is_during {
        let client = run_state.run_clients.borrow()[number].client;
        sleep_until_during(world, client, 1, WantedBatches::Changes(1)).await;
    } else {
        let pause = world.borrow_mut().random().magnitude(CLOSING_CUT_NS_MAX);
        sleep(world, pause).await;
    }
    if let Some(task) = closing() {
        run_state.mark(number);
        run_state.note(|| format!("client {number} is cut off while it closes"));
        crew.kill(task);
    }
}

impl RunState {
    fn break_worker(&self, number: usize) {
        if let Some(client) = self.node.worker_client(number) {
            self.has_broken_worker.set(true);
            self.unreported_break_count.update(|count| count + 1);
            self.node.world.break_connection(client);
        }
    }

    /// Restarts the only node, or the main node, with empty memory.
    fn lose_the_node(&self) {
        let actor_count = self.run_clients.borrow().len();
        (0..actor_count).for_each(|number| self.mark(number));
        self.is_lost.set(true);
        self.history.borrow_mut().lose_node();
        self.node.world.lose_node(NodeId(0));
    }

    pub(super) fn mark(&self, number: usize) {
        self.run_clients.borrow_mut()[number].has_no_fault = false;
        self.history.borrow_mut().record_fault(number as u32);
    }

    fn note_agent_death(&self) {
        if self.busy.get() > 0
            && let Some(client) = self.node.agent_client()
        {
            let progress = self.node.world.borrow().progress(client);
            let mut rare_events = self.rare_events.borrow_mut();
            *rare_events.agent_deaths.entry(progress).or_default() += 1;
        }
    }

    fn tasks_of(&self, number: usize) -> Vec<TaskId> {
        let actor = &self.run_clients.borrow()[number];
        actor.tasks.iter().chain(&actor.lanes).copied().collect()
    }
}
