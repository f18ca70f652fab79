//! Batches in a modelled world: nothing is torn or lost, and time passes only in the network's
//! queues and wires ([`crate::nic`]).
//!
//! A modelled world shares only time, memory, tasks and endpoints with the world that checks
//! correctness. Its batches have no pieces, cuts or fences, which is why it executes about a
//! million verbs per second. A batch is a sequence of moments: its doorbells ring, it arrives at
//! each node, its verbs take effect one after the other, the reply arrives, the client's thread
//! takes it up.

use core::cell::RefCell;
use std::rc::Rc;

use farleaf_fabric::{Cost, Verb, VerbKind};

use super::world::{
    BatchOutcome, ClientId, DueEvent, Nanos, SharedWorld, Step, TaskId, World, execute,
};
use crate::nic::network::{Network, NetworkMark, NicEnds, TrainedCount, Utilisation};
use crate::nic::parts::Parts;
use crate::nic::queue::{from_nanos, picos};
use farleaf_base::random::Random;

/// Range of delays after which a task that backs off is polled again, where the NIC does not
/// determine it.
const BACKOFF_TURN_NS: (Nanos, Nanos) = (20, 2020);

/// Next event of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BatchEvent {
    /// The client's thread has rung the doorbell for its verbs to a node.
    Rung(u8),
    /// The verbs for a node have arrived there.
    Arrived(u8),
    /// A verb takes effect.
    Effect(u32),
    /// The reply of a node has arrived.
    Replied(u8),
    /// All data from a node has arrived.
    Received(u8),
    /// The client's thread has polled the completions, and checked the data.
    TakenUp,
}

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

/// Network and the batches on their way through it.
#[derive(Debug)]
pub(super) struct Modelled {
    network: Network,
    /// Least and greatest delay after which a task that backs off is polled again.
    turn_ns: (Nanos, Nanos),
    batches: Vec<ModelledBatch>,
    free: Vec<u64>,
    /// Time parts of each task.
    spent: Vec<Parts>,
}

impl World {
    /// Creates a world whose batches take the time that a network takes, with these memories of
    /// nodes.
    pub fn modelled(nodes: Vec<Vec<u64>>, network: Network, random: Random) -> SharedWorld {
        let modelled = Modelled {
            turn_ns: network.backoff_turn_ns(),
            network,
            batches: Vec::new(),
            free: Vec::new(),
            spent: Vec::new(),
        };
        Rc::new(RefCell::new(Self::with_modelled(nodes, modelled, random)))
    }

    /// Takes the nodes' memories for another world; this one has none afterwards.
    pub fn take_memory(&mut self) -> Vec<Vec<u64>> {
        core::mem::take(&mut self.nodes)
    }

    /// Places a client on a compute node of the network; see [`Network::place`].
    ///
    /// # Panics
    /// The world is not modelled.
    pub fn place_client(&mut self, client: ClientId, compute_node: usize, thread: usize) {
        let modelled = self.modelled.as_mut().expect("a modelled world");
        modelled.network.place(client, compute_node, thread);
    }

    /// Draws the delay after which a task that backs off from a lock is polled again.
    pub(super) fn backoff_turn(&mut self) -> Nanos {
        let modelled = self.modelled.as_ref();
        let (min, max) = modelled.map_or(BACKOFF_TURN_NS, |modelled| modelled.turn_ns);
        min + self.random().magnitude(max - min)
    }

    /// Places a client on a memory node of the network; see [`Network::place_at_memory`].
    ///
    /// # Panics
    /// The world is not modelled.
    pub fn place_at_memory(&mut self, client: ClientId, memory_node: usize) {
        let modelled = self.modelled.as_mut().expect("a modelled world");
        modelled.network.place_at_memory(client, memory_node);
    }

    /// Places a client on a memory node of the network, where it answers calls; see
    /// [`Network::place_server`].
    ///
    /// # Panics
    /// The world is not modelled.
    pub fn place_server(&mut self, client: ClientId, memory_node: usize, ends: NicEnds) {
        let modelled = self.modelled.as_mut().expect("a modelled world");
        modelled.network.place_server(client, memory_node, ends);
    }

    /// Returns the NICs through which a client's batches go.
    ///
    /// # Panics
    /// The world is not modelled.
    pub fn ends_of(&self, client: ClientId) -> NicEnds {
        let modelled = self.modelled.as_ref().expect("a modelled world");
        modelled.network.ends_of(client)
    }

    /// Charges a client for trained models: its next batch waits until its core has trained them.
    /// In a world that is not modelled, computing takes no time.
    pub fn train(&mut self, client: ClientId, leaf_count: u64, record_count: u64) {
        let now = self.now();
        if let Some(modelled) = &mut self.modelled {
            let network = &mut modelled.network;
            network.train(now, client, leaf_count, record_count);
        }
    }

    /// Returns the leaves and records on which models have been trained so far.
    ///
    /// # Panics
    /// The world is not modelled.
    pub fn trained(&self) -> TrainedCount {
        let modelled = self.modelled.as_ref().expect("a modelled world");
        modelled.network.trained()
    }

    /// Schedules computing on a client's thread; returns when it is done.
    ///
    /// # Panics
    /// The world is not modelled.
    pub fn compute(&mut self, client: ClientId, duration_ns: f64) -> Nanos {
        let now = self.now();
        let task = self.current;
        let modelled = self.modelled.as_mut().expect("a modelled world");
        let done_at = modelled.network.compute(now, client, duration_ns);
        let parts = Parts {
            processor: picos(duration_ns),
            ..Parts::default()
        };
        modelled.spend(task, parts.waited(from_nanos(done_at - now)));
        done_at
    }

    /// Returns where the time of the task that is being polled has gone, since it began.
    ///
    /// # Panics
    /// The world is not modelled.
    pub fn spent(&self) -> Parts {
        let modelled = self.modelled.as_ref().expect("a modelled world");
        let of_task = self
            .current
            .and_then(|task| modelled.spent.get(task.0 as usize));
        of_task.copied().unwrap_or_default()
    }

    /// Returns the state of the network's counters.
    ///
    /// # Panics
    /// The world is not modelled.
    pub fn network_mark(&self) -> NetworkMark {
        let modelled = self.modelled.as_ref().expect("a modelled world");
        modelled.network.mark(self.now())
    }

    /// Returns the utilization of the network since a mark.
    ///
    /// # Panics
    /// The world is not modelled.
    pub fn utilisation_since(&self, mark: &NetworkMark) -> Utilisation {
        let modelled = self.modelled.as_ref().expect("a modelled world");
        modelled.network.utilisation_since(mark, self.now())
    }

    /// Posts a batch whose verbs are all inside the nodes' memories.
    pub(super) fn post_modelled(
        &mut self,
        client: ClientId,
        task: Option<TaskId>,
        verbs: &[Verb],
        words: &[u64],
    ) -> u64 {
        assert!(
            verbs.iter().all(|verb| self.is_inside(verb)),
            "modelled clients stay inside their regions"
        );
        let now = self.now();
        let modelled = self.modelled.as_mut().expect("a modelled world");
        let batch = modelled.free.pop().unwrap_or_else(|| {
            modelled.batches.push(ModelledBatch::default());
            modelled.batches.len() as u64 - 1
        });
        let flight = &mut modelled.batches[batch as usize];
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
                let at = modelled.network.ring(now, client, verb_count);
                flight.note(node, modelled.network.take_served(), at - now);
                rung.push((node, at));
            }
        }
        flight.node_count = rung.len();
        flight.doorbells = rung.len() as u64;
        for (node, at) in rung {
            let moment = BatchEvent::Rung(node);
            self.schedule(at, DueEvent::Modelled { batch, moment });
        }
        batch
    }

    /// Executes an event of a batch.
    pub(super) fn step_modelled(&mut self, batch: u64, moment: BatchEvent) -> Step {
        let now = self.now();
        let modelled = self.modelled.as_mut().expect("a modelled world");
        let flight = &mut modelled.batches[batch as usize];
        let client = flight.client.expect("in flight");
        let (at, next) = match moment {
            BatchEvent::Rung(node) => {
                let verbs = of_node(&flight.verbs, node);
                let at = modelled.network.depart(now, client, node, verbs);
                flight.note(node, modelled.network.take_served(), at - now);
                (at, BatchEvent::Arrived(node))
            }
            BatchEvent::Arrived(node) => {
                self.arrive(batch, client, node);
                return Step::Happened;
            }
            BatchEvent::Effect(verb_index) => {
                self.execute_effect(batch, verb_index);
                let modelled = self.modelled.as_mut().expect("a modelled world");
                let flight = &mut modelled.batches[batch as usize];
                let verb = flight.verbs[verb_index as usize];
                let node = verb.addr.node().0;
                let later = &flight.verbs[verb_index as usize + 1..];
                let is_last = later.iter().all(|it| it.addr.node().0 != node);
                if !is_last {
                    return Step::Happened;
                }
                let verbs = of_node(&flight.verbs, node);
                let at = modelled.network.reply(now, client, node, verbs);
                flight.note(node, modelled.network.take_served(), at - now);
                (at, BatchEvent::Replied(node))
            }
            BatchEvent::Replied(node) => {
                let verbs = of_node(&flight.verbs, node);
                let at = modelled.network.receive(now, client, node, verbs);
                flight.note(node, modelled.network.take_served(), at - now);
                (at, BatchEvent::Received(node))
            }
            BatchEvent::Received(last) => {
                flight.node_count -= 1;
                if flight.node_count > 0 {
                    return Step::Happened;
                }
                let (doorbells, verbs) = (flight.doorbells, flight.verbs.iter());
                let at = modelled.network.take_up(now, client, doorbells, verbs);
                flight.note(last, modelled.network.take_served(), at - now);
                // The other nodes had replied before.
                let (task, parts) = (flight.task, flight.spent_to(last));
                modelled.spend(task, parts);
                (at, BatchEvent::TakenUp)
            }
            BatchEvent::TakenUp => {
                flight.is_complete = true;
                if flight.is_forgotten {
                    modelled.free.push(batch);
                }
                return flight.task.map_or(Step::Happened, Step::Poll);
            }
        };
        self.schedule(
            at,
            DueEvent::Modelled {
                batch,
                moment: next,
            },
        );
        Step::Happened
    }

    /// Executes a verb.
    fn execute_effect(&mut self, batch: u64, verb_index: u32) {
        let modelled = self.modelled.as_mut().expect("a modelled world");
        let flight = &mut modelled.batches[batch as usize];
        let verb = flight.verbs[verb_index as usize];
        let memory = &mut self.nodes[usize::from(verb.addr.node().0)];
        let words = &mut flight.words[verb.start as usize..];
        let all = 0..verb.word_count as usize;
        let place = verb.addr.index() as usize;
        execute(verb.kind, &all, &mut memory[place..], words);
        self.tell_window_watchers(&verb);
    }

    fn arrive(&mut self, batch: u64, client: ClientId, node: u8) {
        let now = self.now();
        let modelled = self.modelled.as_mut().expect("a modelled world");
        let flight = &mut modelled.batches[batch as usize];
        let mut moments: Vec<Nanos> = Vec::with_capacity(flight.verbs.len());
        let verbs = of_node(&flight.verbs, node);
        modelled
            .network
            .arrive(now, client, node, verbs, |at| moments.push(at));
        let done_at = moments.last().copied().unwrap_or(now);
        flight.note(node, modelled.network.take_served(), done_at - now);
        let indexes: Vec<u32> = (0..flight.verbs.len() as u32)
            .filter(|index| flight.verbs[*index as usize].addr.node().0 == node)
            .collect();
        for (index, at) in indexes.into_iter().zip(moments) {
            let moment = BatchEvent::Effect(index);
            self.schedule(at, DueEvent::Modelled { batch, moment });
        }
    }

    /// Takes the result of a batch, once it is complete.
    pub(super) fn take_outcome_modelled(&mut self, batch: u64) -> Option<BatchOutcome> {
        let modelled = self.modelled.as_mut()?;
        let flight = &mut modelled.batches[batch as usize];
        if !flight.is_complete {
            return None;
        }
        modelled.free.push(batch);
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
            self.count_verbs(client, verb_count);
        }
        Some(BatchOutcome {
            words,
            cost,
            result: Ok(()),
        })
    }
}

impl ModelledBatch {
    /// Adds time on the way to a node, with the parts in which the batch was served.
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

impl Modelled {
    /// Returns the compute node of a client.
    pub(super) fn machine_of(&self, client: ClientId) -> usize {
        self.network.machine_of(client)
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

/// Returns the verbs of a batch that go to one node, in their order.
fn of_node(verbs: &[Verb], node: u8) -> impl Iterator<Item = &Verb> {
    verbs.iter().filter(move |verb| verb.addr.node().0 == node)
}
