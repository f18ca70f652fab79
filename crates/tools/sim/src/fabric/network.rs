//! Network of a world: decides when the verbs of batches take effect.

use std::task::Waker;

use farleaf_fabric::Verb;

use super::adversarial::AdversarialNetwork;
use super::event::{BatchEvent, BatchOutcome};
use super::ids::{ClientId, TaskId};
use super::modelled::ModelledNetwork;
use super::world::World;

/// Network of a world.
#[derive(Debug)]
pub(super) enum Network {
    /// Network with faults, to check correctness.
    Adversarial(AdversarialNetwork),
    /// Network without faults that takes time, to measure.
    Modelled(Box<ModelledNetwork>),
}

impl Network {
    /// Posts a batch for a task; returns its number.
    pub(super) fn post(
        &mut self,
        world: &mut World,
        client: ClientId,
        task: Option<TaskId>,
        verbs: Vec<Verb>,
        words: &[u64],
    ) -> u64 {
        match self {
            Self::Adversarial(network) => network.post(world, client, task, verbs, words),
            Self::Modelled(network) => network.post(world, client, task, &verbs, words),
        }
    }

    /// Executes an event of a batch; returns the task that is to be polled.
    pub(super) fn execute(
        &mut self,
        world: &mut World,
        batch: u64,
        event: BatchEvent,
    ) -> Option<TaskId> {
        match (self, event) {
            (Self::Adversarial(network), event) => network.execute(world, batch, event),
            (Self::Modelled(network), BatchEvent::Modelled(event)) => {
                network.execute(world, batch, event)
            }
            (Self::Modelled(_), event) => unreachable!("{event:?} in a modeled network"),
        }
    }

    /// Wakes a future when a batch is complete. A modeled network only polls the batch's task.
    pub(super) fn wake_when_complete(&mut self, batch: u64, waker: &Waker) {
        if let Self::Adversarial(network) = self {
            network.wake_when_complete(batch, waker);
        }
    }

    /// Takes the result of a batch, once it is complete.
    pub(super) fn take_outcome(&mut self, world: &mut World, batch: u64) -> Option<BatchOutcome> {
        match self {
            Self::Adversarial(network) => network.take_outcome(world, batch),
            Self::Modelled(network) => network.take_outcome(world, batch),
        }
    }

    /// Marks a batch that was posted for no task: nothing takes its result.
    pub(super) fn forget(&mut self, batch: u64) {
        if let Self::Modelled(network) = self {
            network.forget(batch);
        }
    }

    /// Returns the number of batches of a client that are not complete. A modeled network, where
    /// no client is fenced, does not count them.
    pub(super) fn in_flight_count(&self, client: ClientId) -> usize {
        match self {
            Self::Adversarial(network) => network.in_flight_count(client),
            Self::Modelled(_) => 0,
        }
    }
}
