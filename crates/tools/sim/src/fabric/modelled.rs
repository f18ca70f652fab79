//! Modeled network: nothing is torn or lost, and time passes only in the queues and wires of
//! [`crate::nic`]. Its batches have no pieces, cuts or fences, which is why it executes about a
//! million verbs per second. A batch is a sequence of moments: its doorbells ring, it arrives at
//! each node, its verbs take effect one after the other, the reply arrives, the client's thread
//! takes it up.

use farleaf_fabric::{Cost, Verb, VerbKind};

use super::event::{BatchEvent, BatchOutcome, DueEvent, ModelledEvent};
use super::world::{ClientId, Nanos, TaskId, World, execute};
use crate::nic::network::Network;
use crate::nic::parts::Parts;
use crate::nic::queue::{from_nanos, picos};

/// Batch in flight.
#[derive(Debug, Default)]
struct ModelledBatch {
    client: Option<ClientId>,
    task: Option<TaskId>,
    verbs: Vec<Verb>,
    words: Vec<u64>,
    /// Number of nodes that have not replied yet.
    node_count: usize,
    /// Number of nodes to which the batch was posted.
    doorbells: u64,
    is_complete: bool,
    /// Whether no task waits for the result.
    is_forgotten: bool,
    /// Time parts so far, for each node.
    parts: Vec<(u8, Parts)>,
}

/// Network and the batches in it.
#[derive(Debug)]
pub struct ModelledNetwork {
    /// Machines and their NICs.
    pub machines: Network,
    batches: Vec<ModelledBatch>,
    free: Vec<u64>,
    /// Time parts of each task.
    spent: Vec<Parts>,
}

impl ModelledNetwork {
    /// Creates a network without batches.
    pub(super) fn new(machines: Network) -> Self {
        Self {
            machines,
            batches: Vec::new(),
            free: Vec::new(),
            spent: Vec::new(),
        }
    }

    /// Schedules computing on a client's thread; returns when it is done.
    pub fn compute(&mut self, world: &World, client: ClientId, duration_ns: f64) -> Nanos {
        let done_at = self.machines.compute(world.now, client, duration_ns);
        let parts = Parts {
            processor: picos(duration_ns),
            ..Parts::default()
        };
        self.spend(world.current, parts.waited(from_nanos(done_at - world.now)));
        done_at
    }

    /// Returns the time parts of the task that is being polled, since it began.
    pub fn spent(&self, world: &World) -> Parts {
        let of_task = world
            .current
            .and_then(|task| self.spent.get(task.0 as usize));
        of_task.copied().unwrap_or_default()
    }

    /// Posts a batch whose verbs are all inside the nodes' memories.
    ///
    /// # Panics
    /// A verb is outside of them.
    pub(super) fn post(
        &mut self,
        world: &mut World,
        client: ClientId,
        task: Option<TaskId>,
        verbs: &[Verb],
        words: &[u64],
    ) -> u64 {
        assert!(
            verbs.iter().all(|verb| world.is_inside(verb)),
            "modeled clients stay inside their regions"
        );
        let now = world.now;
        let batch = self.free.pop().unwrap_or_else(|| {
            self.batches.push(ModelledBatch::default());
            self.batches.len() as u64 - 1
        });
        let flight = &mut self.batches[batch as usize];
        (flight.client, flight.task) = (Some(client), task);
        flight.verbs.clear();
        flight.verbs.extend_from_slice(verbs);
        flight.words.clear();
        flight.words.extend_from_slice(words);
        (flight.is_complete, flight.is_forgotten) = (false, false);
        flight.parts.clear();
        let mut rung = Vec::with_capacity(1);
        for (index, verb) in verbs.iter().enumerate() {
            let node = verb.addr.node().0;
            let is_first = verbs[..index].iter().all(|it| it.addr.node().0 != node);
            if is_first {
                let verb_count = of_node(verbs, node).count();
                let at = self.machines.ring(now, client, verb_count);
                flight.note(node, self.machines.take_served(), at - now);
                rung.push((node, at));
            }
        }
        flight.node_count = rung.len();
        flight.doorbells = rung.len() as u64;
        for (node, at) in rung {
            let event = ModelledEvent::Rung(node);
            world.schedule(at, due(batch, event));
        }
        batch
    }

    /// Executes an event of a batch; returns the task that is to be polled.
    pub(super) fn execute(
        &mut self,
        world: &mut World,
        batch: u64,
        event: ModelledEvent,
    ) -> Option<TaskId> {
        let now = world.now;
        let flight = &mut self.batches[batch as usize];
        let client = flight.client.expect("in flight");
        let (at, next) = match event {
            ModelledEvent::Rung(node) => {
                let verbs = of_node(&flight.verbs, node);
                let at = self.machines.depart(now, client, node, verbs);
                flight.note(node, self.machines.take_served(), at - now);
                (at, ModelledEvent::Arrived(node))
            }
            ModelledEvent::Arrived(node) => {
                self.arrive(world, batch, client, node);
                return None;
            }
            ModelledEvent::Effect(verb_index) => {
                self.execute_effect(world, batch, verb_index);
                let flight = &mut self.batches[batch as usize];
                let verb = flight.verbs[verb_index as usize];
                let node = verb.addr.node().0;
                let later = &flight.verbs[verb_index as usize + 1..];
                let is_last = later.iter().all(|it| it.addr.node().0 != node);
                if !is_last {
                    return None;
                }
                let verbs = of_node(&flight.verbs, node);
                let at = self.machines.reply(now, client, node, verbs);
                flight.note(node, self.machines.take_served(), at - now);
                (at, ModelledEvent::Replied(node))
            }
            ModelledEvent::Replied(node) => {
                let verbs = of_node(&flight.verbs, node);
                let at = self.machines.receive(now, client, node, verbs);
                flight.note(node, self.machines.take_served(), at - now);
                (at, ModelledEvent::Received(node))
            }
            ModelledEvent::Received(last) => {
                flight.node_count -= 1;
                if flight.node_count > 0 {
                    return None;
                }
                let (doorbells, verbs) = (flight.doorbells, flight.verbs.iter());
                let at = self.machines.take_up(now, client, doorbells, verbs);
                flight.note(last, self.machines.take_served(), at - now);
                // The other nodes had replied before.
                let (task, parts) = (flight.task, flight.spent_to(last));
                self.spend(task, parts);
                (at, ModelledEvent::TakenUp)
            }
            ModelledEvent::TakenUp => {
                flight.is_complete = true;
                if flight.is_forgotten {
                    self.free.push(batch);
                }
                return flight.task;
            }
        };
        world.schedule(at, due(batch, next));
        None
    }

    /// Executes a verb.
    fn execute_effect(&mut self, world: &mut World, batch: u64, verb_index: u32) {
        let flight = &mut self.batches[batch as usize];
        let verb = flight.verbs[verb_index as usize];
        let memory = &mut world.nodes[usize::from(verb.addr.node().0)];
        let words = &mut flight.words[verb.start as usize..];
        let all = 0..verb.word_count as usize;
        let place = verb.addr.index() as usize;
        execute(verb.kind, &all, &mut memory[place..], words);
        world.notify_window_watchers(&verb);
    }

    fn arrive(&mut self, world: &mut World, batch: u64, client: ClientId, node: u8) {
        let now = world.now;
        let flight = &mut self.batches[batch as usize];
        let mut moments: Vec<Nanos> = Vec::with_capacity(flight.verbs.len());
        let verbs = of_node(&flight.verbs, node);
        self.machines
            .arrive(now, client, node, verbs, |at| moments.push(at));
        let done_at = moments.last().copied().unwrap_or(now);
        flight.note(node, self.machines.take_served(), done_at - now);
        let indexes: Vec<u32> = (0..flight.verbs.len() as u32)
            .filter(|index| flight.verbs[*index as usize].addr.node().0 == node)
            .collect();
        for (index, at) in indexes.into_iter().zip(moments) {
            let event = ModelledEvent::Effect(index);
            world.schedule(at, due(batch, event));
        }
    }

    /// Takes the result of a batch, once it is complete.
    pub(super) fn take_outcome(&mut self, world: &mut World, batch: u64) -> Option<BatchOutcome> {
        let flight = &mut self.batches[batch as usize];
        if !flight.is_complete {
            return None;
        }
        self.free.push(batch);
        let mut cost = Cost {
            round_trips: 1,
            doorbells: flight.doorbells,
            verbs: flight.verbs.len() as u64,
            ..Cost::default()
        };
        for verb in &flight.verbs {
            let bytes = u64::from(verb.word_count) * 8;
            match verb.kind {
                VerbKind::Read => cost.bytes_read += bytes,
                VerbKind::Write => cost.bytes_written += bytes,
                VerbKind::CompareSwap | VerbKind::FetchAdd => cost.atomics += 1,
            }
        }
        let (client, verb_count) = (flight.client, flight.verbs.len() as u64);
        let words = flight.words.clone();
        if let Some(client) = client {
            world.count_verbs(client, verb_count);
        }
        Some(BatchOutcome {
            words,
            cost,
            result: Ok(()),
        })
    }

    /// Marks a batch as one for whose result no task waits.
    pub(super) fn forget(&mut self, batch: u64) {
        self.batches[batch as usize].is_forgotten = true;
    }

    fn spend(&mut self, task: Option<TaskId>, parts: Parts) {
        let Some(TaskId(task)) = task else { return };
        let index = task as usize;
        if self.spent.len() <= index {
            self.spent.resize(index + 1, Parts::default());
        }
        self.spent[index] += parts;
    }
}

impl ModelledBatch {
    /// Adds time between client and node, with the parts in which the batch was served.
    fn note(&mut self, node: u8, served: Parts, duration: Nanos) {
        let parts = served.waited(from_nanos(duration));
        match self.parts.iter_mut().find(|(known, _)| *known == node) {
            Some((_, noted)) => *noted += parts,
            None => self.parts.push((node, parts)),
        }
    }

    fn spent_to(&self, node: u8) -> Parts {
        let noted = self.parts.iter().find(|(known, _)| *known == node);
        noted.map(|(_, parts)| *parts).unwrap_or_default()
    }
}

/// Returns the due event of a batch.
fn due(batch: u64, event: ModelledEvent) -> DueEvent {
    let event = BatchEvent::Modelled(event);
    DueEvent::Batch { batch, event }
}

/// Returns the verbs of a batch that go to one node, in their order.
fn of_node(verbs: &[Verb], node: u8) -> impl Iterator<Item = &Verb> {
    verbs.iter().filter(move |verb| verb.addr.node().0 == node)
}
