//! How a mishap strikes.

use std::rc::Rc;

use farleaf_fabric::ProtocolPhase;
use farleaf_types::NodeId;

use super::{Stage, start_agent};
use crate::fabric::executor::{Tasks, sleep, sleep_until_during};
use crate::fabric::world::{ClientId, ClientLife, Nanos, TaskId, Wanted};
use crate::plan::{Fault, Mishap, When};

/// Time between two looks whether the agent has begun.
const AGENT_START: Nanos = 1000;
/// Time between two looks whether a client closes its session.
const CLOSING_TICK: Nanos = 1_000;
/// Until the task that closes a session is cut off, at the most.
const CLOSING_CUT_NS_MAX: Nanos = 20_000;

/// Waits for the middle of a batch of an agent: the `number`-th that is wanted of one and the same.
async fn wait_for_agent(stage: &Stage, number: u64, wanted: Wanted) {
    let world = &stage.node.world;
    // Of each agent anew: one that dies in the middle of what another has left half done is the
    // more dangerous one.
    while let Some(client) = living_agent(stage).await {
        sleep_until_during(world, client, number, wanted).await;
        if world.borrow().life(client) == ClientLife::Connected {
            return;
        }
    }
}

/// The agent, as soon as there is one that is not cut off. `None`: nobody works any more.
async fn living_agent(stage: &Stage) -> Option<ClientId> {
    let world = &stage.node.world;
    while stage.busy.get() > 0 && !stage.is_lost.get() {
        let agent = stage.node.agent_client();
        let is_living = |client: &_| world.borrow().life(*client) == ClientLife::Connected;
        if let Some(client) = agent.filter(is_living) {
            return Some(client);
        }
        sleep(world, AGENT_START).await;
    }
    None
}

/// A worker or trainer that has a session, as soon as there is one. `None`: nobody works any more.
async fn hired_worker(stage: &Stage, number: usize) -> Option<ClientId> {
    while stage.busy.get() > 0 && !stage.is_lost.get() {
        if let Some(client) = stage.node.worker_client(number) {
            return Some(client);
        }
        sleep(&stage.node.world, AGENT_START).await;
    }
    None
}

/// Waits for the moment of a mishap.
async fn wait(stage: &Stage, when: When) {
    let world = &stage.node.world;
    match when {
        When::At(at) => sleep(world, at).await,
        When::DuringAgent {
            number,
            verb_count_min,
        } => {
            wait_for_agent(stage, number, Wanted::Changes(verb_count_min)).await;
        }
        When::DuringRetraining { phase, number } => {
            wait_for_agent(stage, number, Wanted::Phase(phase)).await;
        }
        When::DuringWorker {
            worker,
            number,
            verb_count_min,
        } => {
            if let Some(client) = hired_worker(stage, worker).await {
                let wanted = Wanted::Changes(verb_count_min);
                sleep_until_during(world, client, number, wanted).await;
            }
        }
        When::DuringEnqueueing { client } => {
            let client = stage.actors.borrow()[client].client;
            let wanted = Wanted::Phase(ProtocolPhase::Enqueue);
            sleep_until_during(world, client, 1, wanted).await;
        }
        When::During {
            client,
            number,
            verb_count_min,
        } => {
            let client = stage.actors.borrow()[client].client;
            let wanted = Wanted::Changes(verb_count_min);
            sleep_until_during(world, client, number, wanted).await;
        }
    }
}

/// Lets a mishap happen at its time.
pub(super) async fn strike(stage: &Rc<Stage>, crew: &Tasks<'_>, fault: Fault) {
    wait(stage, fault.when).await;
    let world = &stage.node.world;
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
            // Who only pauses is spared: nobody may notice.
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
            let lane = stage.actors.borrow()[client].lanes.get(lane).copied();
            match lane {
                Some(lane) => {
                    stage.mark(client);
                    crew.kill(lane);
                }
                None => cut_closing(stage, crew, client).await,
            }
        }
        Mishap::NodeLoss => stage.lose_the_node(),
        Mishap::Drain { node } => stage.node.drain(NodeId(node)).await,
        Mishap::MemberLoss { node } => {
            if stage.node.lose_member(NodeId(node)) {
                stage.has_lost_member.set(true);
            }
        }
        Mishap::AgentDeath { fenced_after } => kill_agent(stage, crew, fenced_after).await,
        Mishap::WorkerBreak { number } => stage.break_worker(number),
        Mishap::AgentPause { duration } => {
            let until = world.borrow().now() + duration;
            crew.pause(stage.agent.get().as_slice(), until);
        }
    }
}

/// The agent dies, is fenced, and has a successor.
async fn kill_agent(stage: &Rc<Stage>, crew: &Tasks<'_>, fenced_after: Nanos) {
    // Of two of these at once, the other one starts the next agent.
    let Some(task) = stage.agent.take() else {
        return;
    };
    stage.note_agent_death();
    crew.kill(task);
    sleep(&stage.node.world, fenced_after).await;
    stage.node.fence_agent();
    start_agent(stage, crew);
}

/// Drops the task that closes a client's session where it stands, in the middle of a batch or
/// between two.
async fn cut_closing(stage: &Stage, crew: &Tasks<'_>, number: usize) {
    let world = &stage.node.world;
    let closing = || stage.actors.borrow()[number].closing;
    while closing().is_none() {
        if stage.actors.borrow()[number].is_out {
            return;
        }
        sleep(world, CLOSING_TICK).await;
    }
    let is_during = world.borrow_mut().random().chance(500);
    if is_during {
        let client = stage.actors.borrow()[number].client;
        sleep_until_during(world, client, 1, Wanted::Changes(1)).await;
    } else {
        let pause = world.borrow_mut().random().magnitude(CLOSING_CUT_NS_MAX);
        sleep(world, pause).await;
    }
    if let Some(task) = closing() {
        stage.mark(number);
        stage.note(|| format!("client {number} is cut off as it closes"));
        crew.kill(task);
    }
}

impl Stage {
    fn break_worker(&self, number: usize) {
        if let Some(client) = self.node.worker_client(number) {
            self.has_broken_worker.set(true);
            self.unmet_break_count.update(|count| count + 1);
            self.node.world.borrow_mut().break_connection(client);
        }
    }

    /// The only node, or the home, restarts empty.
    fn lose_the_node(&self) {
        let actor_count = self.actors.borrow().len();
        (0..actor_count).for_each(|number| self.mark(number));
        self.is_lost.set(true);
        self.history.borrow_mut().lose_node();
        self.node.world.borrow_mut().lose_node(NodeId(0));
    }

    pub(super) fn mark(&self, number: usize) {
        self.actors.borrow_mut()[number].was_spared = false;
        self.history.borrow_mut().befall(number as u32);
    }

    fn note_agent_death(&self) {
        if self.busy.get() > 0
            && let Some(client) = self.node.agent_client()
        {
            let progress = self.node.world.borrow().progress(client);
            let mut reached = self.reached.borrow_mut();
            *reached.agent_deaths.entry(progress).or_default() += 1;
        }
    }

    fn tasks_of(&self, number: usize) -> Vec<TaskId> {
        let actor = &self.actors.borrow()[number];
        actor.tasks.iter().chain(&actor.lanes).copied().collect()
    }
}
