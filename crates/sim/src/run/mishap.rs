//! How a mishap strikes.

use std::rc::Rc;

use farleaf_types::NodeId;

use super::{Stage, start_agent};
use crate::fabric::executor::{Tasks, sleep, sleep_until_during};
use crate::fabric::world::{Nanos, TaskId};
use crate::plan::{Fault, Mishap, When};

/// Time between two looks whether the agent has begun.
const AGENT_START: Nanos = 1000;

/// Lets a mishap happen at its time.
pub(super) async fn strike(stage: &Rc<Stage>, crew: &Tasks<'_>, fault: Fault) {
    let world = &stage.node.world;
    match fault.when {
        When::At(at) => sleep(world, at).await,
        When::DuringAgent {
            number,
            verb_count_min,
        } => {
            while stage.node.agent_client().is_none() {
                sleep(world, AGENT_START).await;
            }
            if let Some(client) = stage.node.agent_client() {
                sleep_until_during(world, client, number, verb_count_min).await;
            }
        }
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
        Mishap::AgentDeath { fenced_after } => {
            // Of two of these at once, the other one starts the next agent.
            let Some(task) = stage.agent.take() else {
                return;
            };
            crew.kill(task);
            sleep(world, fenced_after).await;
            stage.node.fence_agent();
            start_agent(stage, crew);
        }
        Mishap::AgentPause { duration } => {
            let until = world.borrow().now() + duration;
            crew.pause(stage.agent.get().as_slice(), until);
        }
    }
}

impl Stage {
    pub(super) fn mark(&self, number: usize) {
        self.actors.borrow_mut()[number].was_spared = false;
    }

    fn tasks_of(&self, number: usize) -> Vec<TaskId> {
        let actor = &self.actors.borrow()[number];
        actor.tasks.iter().chain(&actor.lanes).copied().collect()
    }
}
