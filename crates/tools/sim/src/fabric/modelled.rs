//! Batches in a modelled world: nothing is torn or lost, and all that takes time is the network's
//! queues and wires ([`crate::nic`]).
//!
//! It shares time, memory, tasks and endpoints with the world that judges correctness, and nothing
//! else: its batches have no pieces, no cuts and no fences to remember, which is why it does some
//! million verbs a second. A batch is a row of moments: its doorbells ring, it arrives at each
//! node, its verbs take effect one after the other, the reply is back, the client's thread takes it
//! up.

use core::cell::RefCell;
use std::rc::Rc;

use farleaf_fabric::{Cost, Verb, VerbKind};

use super::world::{ClientId, Due, Landed, Nanos, SharedWorld, Step, TaskId, World, execute};
use crate::nic::network::{Network, NetworkMark, NicEnds, TrainedCount, Utilisation};
use crate::nic::parts::Parts;
use crate::nic::queue::{from_nanos, picos};
use crate::random::Random;

/// Where time is no NIC's, a task that backs off is polled again after so long.
const BACKOFF_TURN_NS: (Nanos, Nanos) = (20, 2020);

/// What becomes of a batch next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Moment {
    /// The client's thread has rung the doorbell for its verbs to a node.
    Rung(u8),
    /// Its verbs to a node are there.
    Arrived(u8),
    /// A verb takes effect.
    Effect(u32),
    /// The reply of a node is back.
    Replied(u8),
    /// Everything is back from a node.
    Received(u8),
    /// The client's thread has polled the completions, and checked what it read.
    TakenUp,
}

/// A batch in flight.
#[derive(Debug, Default)]
struct Flight {
    client: Option<ClientId>,
    task: Option<TaskId>,
    verbs: Vec<Verb>,
    words: Vec<u64>,
    /// Nodes that it has gone to and is not back from.
    node_count: usize,
    /// How many it went to.
    doorbells: u64,
    is_complete: bool,
    /// Nobody asks what became of it.
    is_forgotten: bool,
    /// Where its time has gone, on the way to each node.
    parts: Vec<(u8, Parts)>,
}

/// The network, and what is on its way through it.
#[derive(Debug)]
pub(super) struct Modelled {
    network: Network,
    /// The least and the most after which a task that backs off is polled again.
    turn_ns: (Nanos, Nanos),
    flights: Vec<Flight>,
    free: Vec<u64>,
    /// Where each task's time has gone.
    spent: Vec<Parts>,
}

impl World {
    /// A world whose batches take the time that a network takes, with these memories of nodes.
    pub fn modelled(nodes: Vec<Vec<u64>>, network: Network, random: Random) -> SharedWorld {
        let modelled = Modelled {
            turn_ns: network.backoff_turn_ns(),
            network,
            flights: Vec::new(),
            free: Vec::new(),
            spent: Vec::new(),
        };
        Rc::new(RefCell::new(Self::with_modelled(nodes, modelled, random)))
    }

    /// The nodes' memories, for a world to come; this one has none afterwards.
    pub fn take_memory(&mut self) -> Vec<Vec<u64>> {
        core::mem::take(&mut self.nodes)
    }

    /// Puts a client onto a compute node of the network; see [`Network::place`].
    ///
    /// # Panics
    /// The world is not modelled.
    pub fn place_client(&mut self, client: ClientId, compute_node: usize, thread: usize) {
        let modelled = self.modelled.as_mut().expect("a modelled world");
        modelled.network.place(client, compute_node, thread);
    }

    /// Draws after which time a task that backs off from a lock is polled again.
    pub(super) fn backoff_turn(&mut self) -> Nanos {
        let modelled = self.modelled.as_ref();
        let (min, max) = modelled.map_or(BACKOFF_TURN_NS, |modelled| modelled.turn_ns);
        min + self.random().magnitude(max - min)
    }

    /// Puts a client onto a memory node of the network; see [`Network::place_at_memory`].
    ///
    /// # Panics
    /// The world is not modelled.
    pub fn place_at_memory(&mut self, client: ClientId, memory_node: usize) {
        let modelled = self.modelled.as_mut().expect("a modelled world");
        modelled.network.place_at_memory(client, memory_node);
    }

    /// Puts a client onto a memory node of the network, where it answers calls; see
    /// [`Network::place_server`].
    ///
    /// # Panics
    /// The world is not modelled.
    pub fn place_server(&mut self, client: ClientId, memory_node: usize, ends: NicEnds) {
        let modelled = self.modelled.as_mut().expect("a modelled world");
        modelled.network.place_server(client, memory_node, ends);
    }

    /// The NICs that a client's batches go through.
    ///
    /// # Panics
    /// The world is not modelled.
    pub fn ends_of(&self, client: ClientId) -> NicEnds {
        let modelled = self.modelled.as_ref().expect("a modelled world");
        modelled.network.ends_of(client)
    }

    /// A client has trained models: what it posts next waits until its core has done that. In a
    /// world that is not modelled, computing takes no time.
    pub fn train(&mut self, client: ClientId, leaf_count: u64, record_count: u64) {
        let now = self.now();
        if let Some(modelled) = &mut self.modelled {
            let network = &mut modelled.network;
            network.train(now, client, leaf_count, record_count);
        }
    }

    /// What models have been trained on until now.
    ///
    /// # Panics
    /// The world is not modelled.
    pub fn trained(&self) -> TrainedCount {
        let modelled = self.modelled.as_ref().expect("a modelled world");
        modelled.network.trained()
    }

    /// Gives a client's thread something to compute; says when it is done.
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

    /// Where the time of the task that is being polled has gone, since it began.
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

    /// What the network has done until now.
    ///
    /// # Panics
    /// The world is not modelled.
    pub fn network_mark(&self) -> NetworkMark {
        let modelled = self.modelled.as_ref().expect("a modelled world");
        modelled.network.mark(self.now())
    }

    /// How busy the network was since a mark.
    ///
    /// # Panics
    /// The world is not modelled.
    pub fn utilisation_since(&self, mark: &NetworkMark) -> Utilisation {
        let modelled = self.modelled.as_ref().expect("a modelled world");
        modelled.network.utilisation_since(mark, self.now())
    }

    /// Posts a batch whose verbs are all inside the nodes' regions.
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
            modelled.flights.push(Flight::default());
            modelled.flights.len() as u64 - 1
        });
        let flight = &mut modelled.flights[batch as usize];
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
            let moment = Moment::Rung(node);
            self.schedule(at, Due::Modelled { batch, moment });
        }
        batch
    }

    /// Lets happen what is due.
    pub(super) fn step_modelled(&mut self, batch: u64, moment: Moment) -> Step {
        let now = self.now();
        let modelled = self.modelled.as_mut().expect("a modelled world");
        let flight = &mut modelled.flights[batch as usize];
        let client = flight.client.expect("in flight");
        let (at, next) = match moment {
            Moment::Rung(node) => {
                let verbs = of_node(&flight.verbs, node);
                let at = modelled.network.depart(now, client, node, verbs);
                flight.note(node, modelled.network.take_served(), at - now);
                (at, Moment::Arrived(node))
            }
            Moment::Arrived(node) => {
                self.arrive(batch, client, node);
                return Step::Happened;
            }
            Moment::Effect(verb_index) => {
                self.let_effect(batch, verb_index);
                let modelled = self.modelled.as_mut().expect("a modelled world");
                let flight = &mut modelled.flights[batch as usize];
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
                (at, Moment::Replied(node))
            }
            Moment::Replied(node) => {
                let verbs = of_node(&flight.verbs, node);
                let at = modelled.network.receive(now, client, node, verbs);
                flight.note(node, modelled.network.take_served(), at - now);
                (at, Moment::Received(node))
            }
            Moment::Received(last) => {
                flight.node_count -= 1;
                if flight.node_count > 0 {
                    return Step::Happened;
                }
                let (doorbells, verbs) = (flight.doorbells, flight.verbs.iter());
                let at = modelled.network.take_up(now, client, doorbells, verbs);
                flight.note(last, modelled.network.take_served(), at - now);
                // The others were back before.
                let (task, parts) = (flight.task, flight.spent_to(last));
                modelled.spend(task, parts);
                (at, Moment::TakenUp)
            }
            Moment::TakenUp => {
                flight.is_complete = true;
                if flight.is_forgotten {
                    modelled.free.push(batch);
                }
                return flight.task.map_or(Step::Happened, Step::Poll);
            }
        };
        self.schedule(
            at,
            Due::Modelled {
                batch,
                moment: next,
            },
        );
        Step::Happened
    }

    /// Lets a verb take effect.
    fn let_effect(&mut self, batch: u64, verb_index: u32) {
        let modelled = self.modelled.as_mut().expect("a modelled world");
        let flight = &mut modelled.flights[batch as usize];
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
        let flight = &mut modelled.flights[batch as usize];
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
            let moment = Moment::Effect(index);
            self.schedule(at, Due::Modelled { batch, moment });
        }
    }

    /// What a batch brought back, once it is complete.
    pub(super) fn take_landed_modelled(&mut self, batch: u64) -> Option<Landed> {
        let modelled = self.modelled.as_mut()?;
        let flight = &mut modelled.flights[batch as usize];
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
        Some(Landed {
            words,
            cost,
            result: Ok(()),
        })
    }
}

impl Flight {
    /// It has taken so long more on the way to a node, and was served this meanwhile.
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
    /// The compute node that a client is on.
    pub(super) fn machine_of(&self, client: ClientId) -> usize {
        self.network.machine_of(client)
    }

    /// Nobody asks what becomes of a batch.
    pub(super) fn forget(&mut self, batch: u64) {
        self.flights[batch as usize].is_forgotten = true;
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

/// The verbs of a batch that go to one node, in their order.
fn of_node(verbs: &[Verb], node: u8) -> impl Iterator<Item = &Verb> {
    verbs.iter().filter(move |verb| verb.addr.node().0 == node)
}
