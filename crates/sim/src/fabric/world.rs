//! Virtual time, the nodes' memory, and everything that is in flight.

use core::cell::RefCell;
use core::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::rc::Rc;

use farleaf_fabric::{BatchError, BatchErrorKind, Cost, Verb, VerbKind};
use farleaf_types::{NodeId, WORD_SIZE_BYTES, WordAddr};

pub use super::fingerprint::Fingerprint;
use super::modelled::{Modelled, Moment};
use super::schedule::{self, Freedoms, Piece};
use crate::random::Random;

/// Virtual time in nanoseconds since the beginning of a run.
pub type Nanos = u64;

/// A client of the world: what F6 fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

/// A task of the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u32);

/// What may become of a client's verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientLife {
    /// They take effect.
    Connected,
    /// Its connection broke: what it posts fails, with nothing done.
    Broken,
    /// F6: no verb of it takes effect any more.
    Fenced,
}

/// Something due at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// A piece of a batch takes effect.
    Piece { batch: u64, piece_index: usize },
    /// A batch is reported complete.
    Complete { batch: u64 },
    /// What becomes of a batch of a modelled world.
    Modelled { batch: u64, moment: Moment },
    /// A task is polled.
    Poll(TaskId),
}

/// What a step of the world was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Something took effect.
    Happened,
    /// A task is to be polled.
    Poll(TaskId),
    /// Nothing will ever happen again.
    Over,
}

/// A task that waits for a moment in the middle of some batch of a client.
#[derive(Debug)]
struct Watch {
    client: ClientId,
    /// Batches with at least so many verbs that change something are counted.
    verb_count_min: usize,
    /// So many are still to come.
    left: u64,
    task: TaskId,
}

/// A batch in flight.
#[derive(Debug)]
struct Flight {
    client: ClientId,
    task: Option<TaskId>,
    verbs: Vec<Verb>,
    words: Vec<u64>,
    pieces: Vec<Piece>,
    /// Which pieces have taken effect.
    is_done: Vec<bool>,
    /// How it ends: the verb that is refused, or nothing.
    refused: Option<usize>,
    /// It was cut: so many verbs are whole.
    cut: Option<usize>,
    is_complete: bool,
}

/// What a batch brought back.
#[derive(Debug)]
pub(super) struct Landed {
    pub(super) words: Vec<u64>,
    pub(super) cost: Cost,
    pub(super) result: Result<(), BatchError>,
}

/// Everything of a run but its tasks.
#[derive(Debug)]
pub struct World {
    now: Nanos,
    sequence: u64,
    due: BinaryHeap<Reverse<(Nanos, u64, Due)>>,
    pub(super) nodes: Vec<Vec<u64>>,
    flights: BTreeMap<u64, Flight>,
    next_flight: u64,
    clients: Vec<ClientLife>,
    freedoms: Freedoms,
    random: Random,
    /// The task that is being polled.
    pub(super) current: Option<TaskId>,
    /// What each client has cost: batches and verbs as they are posted, bytes and atomics where they
    /// take effect.
    executed: Vec<Cost>,
    watches: Vec<Watch>,
    fingerprint: Fingerprint,
    trace: Option<Vec<String>>,
    /// Present: batches take the time that a network takes, and nothing befalls them.
    pub(super) modelled: Option<Modelled>,
}

/// The world, as its clients share it.
pub type SharedWorld = Rc<RefCell<World>>;

impl World {
    /// A world with one zeroed region of this size per node.
    pub fn new(region_word_counts: &[usize], freedoms: Freedoms, random: Random) -> SharedWorld {
        let nodes = region_word_counts.iter().map(|count| vec![0; *count]);
        let world = Self::with_nodes(nodes.collect(), freedoms, random);
        Rc::new(RefCell::new(world))
    }

    pub(super) fn with_modelled(nodes: Vec<Vec<u64>>, modelled: Modelled, random: Random) -> Self {
        Self {
            modelled: Some(modelled),
            ..Self::with_nodes(nodes, Freedoms::CALM, random)
        }
    }

    fn with_nodes(nodes: Vec<Vec<u64>>, freedoms: Freedoms, random: Random) -> Self {
        Self {
            now: 0,
            sequence: 0,
            due: BinaryHeap::new(),
            nodes,
            flights: BTreeMap::new(),
            next_flight: 0,
            clients: Vec::new(),
            freedoms,
            random,
            current: None,
            executed: Vec::new(),
            watches: Vec::new(),
            fingerprint: Fingerprint::default(),
            trace: None,
            modelled: None,
        }
    }

    /// What time it is.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Notes everything that happens from now on, for a reader.
    pub fn keep_trace(&mut self) {
        self.trace = Some(Vec::new());
    }

    /// What was noted.
    pub fn take_trace(&mut self) -> Vec<String> {
        self.trace.take().unwrap_or_default()
    }

    /// Notes something, if anybody wants to know.
    pub fn note(&mut self, text: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{now:>10} ns  {}", text()));
        }
    }

    /// Of all that happened.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Adds to the fingerprint what layers above saw.
    pub fn print(&mut self, word: u64) {
        self.fingerprint.add(word);
    }

    /// The draws of the run.
    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    /// A new client.
    pub fn add_client(&mut self) -> ClientId {
        self.clients.push(ClientLife::Connected);
        self.executed.push(Cost::default());
        ClientId(self.clients.len() as u32 - 1)
    }

    /// What may become of a client's verbs.
    pub fn life(&self, client: ClientId) -> ClientLife {
        self.clients[client.0 as usize]
    }

    /// What has been executed for a client, counted apart from what its endpoint is told (F9).
    /// Retries and leaves are for the layers above to know. A modelled world counts verbs alone.
    pub fn executed(&self, client: ClientId) -> Cost {
        self.executed[client.0 as usize]
    }

    /// [`executed`](Self::executed), under the name that [`run`](crate::run) asks by.
    pub fn verb_count(&self, client: ClientId) -> Cost {
        self.executed(client)
    }

    /// F6: no verb of the client takes effect after this.
    pub fn fence(&mut self, client: ClientId) {
        self.disconnect(client, ClientLife::Fenced);
    }

    /// The client's connection breaks: what is in flight is cut off here and has an unknown
    /// outcome, what it posts later fails.
    pub fn break_connection(&mut self, client: ClientId) {
        self.disconnect(client, ClientLife::Broken);
    }

    /// A node restarts with empty memory: all connections break first.
    pub fn lose_node(&mut self, node: NodeId) {
        for client in 0..self.clients.len() as u32 {
            self.break_connection(ClientId(client));
        }
        self.nodes[usize::from(node.0)].fill(0);
    }

    fn disconnect(&mut self, client: ClientId, life: ClientLife) {
        if self.clients[client.0 as usize] == ClientLife::Fenced {
            return;
        }
        self.clients[client.0 as usize] = life;
        self.release_watchers(client);
        self.note(|| format!("client {} is {life:?}", client.0));
        let flying = self.flights.iter();
        let flying = flying.filter(|(_, flight)| flight.client == client && !flight.is_complete);
        let flying: Vec<u64> = flying.map(|(batch, _)| *batch).collect();
        for batch in flying {
            self.cut(batch);
        }
    }

    /// F5: what took effect is a prefix of the WRITEs and atomics, plus any words of the next
    /// WRITE. Atomics that later verbs have overtaken belong to the prefix and take effect now.
    fn cut(&mut self, batch: u64) {
        let Some(flight) = self.flights.get(&batch) else {
            return;
        };
        let has_effect = |piece: &Piece| flight.verbs[piece.verb_index].kind != VerbKind::Read;
        let done = flight.pieces.iter().zip(&flight.is_done);
        let last = done
            .filter(|(piece, is_done)| **is_done && has_effect(piece))
            .map(|(piece, _)| piece.verb_index)
            .max();
        let overdue: Vec<usize> = (0..flight.pieces.len())
            .filter(|index| {
                let piece = &flight.pieces[*index];
                has_effect(piece)
                    && !flight.is_done[*index]
                    && last.is_some_and(|last| piece.verb_index < last)
            })
            .collect();
        for piece_index in overdue {
            self.take_effect(batch, piece_index);
        }
        let Some(flight) = self.flights.get_mut(&batch) else {
            return;
        };
        let accepted_count = flight.refused.unwrap_or(flight.verbs.len());
        let whole = (0..accepted_count).take_while(|verb| {
            let pieces = flight.pieces.iter().zip(&flight.is_done);
            pieces
                .filter(|(piece, _)| piece.verb_index == *verb)
                .all(|(_, is_done)| *is_done)
        });
        flight.cut = Some(whole.count());
        let at = self.now;
        self.schedule(at, Due::Complete { batch });
    }

    pub(super) fn schedule(&mut self, at: Nanos, due: Due) {
        self.sequence += 1;
        self.due.push(Reverse((at, self.sequence, due)));
    }

    /// The next thing that is due, at its time. Effects and completions happen here; polls are
    /// the executor's.
    pub(super) fn step(&mut self) -> Step {
        let Some(Reverse((at, _, due))) = self.due.pop() else {
            return Step::Over;
        };
        self.now = self.now.max(at);
        match due {
            Due::Piece { batch, piece_index } => {
                let is_flying = self
                    .flights
                    .get(&batch)
                    .is_some_and(|flight| flight.cut.is_none());
                if is_flying {
                    self.take_effect(batch, piece_index);
                }
                Step::Happened
            }
            Due::Complete { batch } => match self.complete(batch) {
                Some(task) => Step::Poll(task),
                None => Step::Happened,
            },
            Due::Modelled { batch, moment } => self.step_modelled(batch, moment),
            Due::Poll(task) => Step::Poll(task),
        }
    }

    fn complete(&mut self, batch: u64) -> Option<TaskId> {
        let flight = self.flights.get_mut(&batch)?;
        if flight.is_complete {
            return None;
        }
        flight.is_complete = true;
        self.fingerprint.add(self.now ^ batch << 40);
        flight.task
    }

    /// Posts a batch for a task.
    pub(super) fn post(
        &mut self,
        client: ClientId,
        task: Option<TaskId>,
        verbs: Vec<Verb>,
        words: &[u64],
    ) -> u64 {
        if self.modelled.is_some() {
            return self.post_modelled(client, task, &verbs, words);
        }
        let batch = self.next_flight;
        self.next_flight += 1;
        self.executed[client.0 as usize] += cost_of(&verbs, 0);
        let refused = verbs.iter().position(|verb| !self.is_inside(verb));
        let accepted = &verbs[..refused.unwrap_or(verbs.len())];
        let is_connected = self.life(client) == ClientLife::Connected;
        let departed = self.now + self.freedoms.latency(&mut self.random);
        let (pieces, landed) = schedule::draw(accepted, departed, &self.freedoms, &mut self.random);
        if is_connected {
            for (piece_index, piece) in pieces.iter().enumerate() {
                self.schedule(piece.at, Due::Piece { batch, piece_index });
            }
            self.tell_watchers(client, &verbs, &pieces);
        }
        let back = landed + self.freedoms.latency(&mut self.random);
        self.schedule(back, Due::Complete { batch });
        let is_done = vec![false; pieces.len()];
        self.flights.insert(
            batch,
            Flight {
                client,
                task,
                verbs,
                words: words.to_vec(),
                pieces,
                is_done,
                refused,
                cut: (!is_connected).then_some(0),
                is_complete: false,
            },
        );
        batch
    }

    /// Polls the task, once, at some moment between the effects of a batch of the client: the
    /// `number`-th, from 1, of those with at least so many verbs that change something; or when the
    /// client posts no more.
    pub(super) fn watch(
        &mut self,
        task: TaskId,
        client: ClientId,
        number: u64,
        verb_count_min: usize,
    ) {
        self.watches.push(Watch {
            client,
            verb_count_min,
            left: number,
            task,
        });
        if self.life(client) != ClientLife::Connected {
            self.release_watchers(client);
        }
    }

    fn tell_watchers(&mut self, client: ClientId, verbs: &[Verb], pieces: &[Piece]) {
        let changes = verbs.iter().filter(|verb| verb.kind != VerbKind::Read);
        let change_count = changes.count();
        let mut due = Vec::new();
        self.watches.retain_mut(|watch| {
            if watch.client == client && change_count >= watch.verb_count_min {
                watch.left = watch.left.saturating_sub(1);
            }
            if watch.left == 0 {
                due.push(watch.task);
            }
            watch.left > 0
        });
        for task in due {
            // Verbs are equally likely, into however many pieces they are torn. The task is polled
            // after the piece, which was scheduled before.
            let verb = self.random.below(verbs.len().max(1) as u64) as usize;
            let of_verb: Vec<_> = pieces.iter().filter(|it| it.verb_index == verb).collect();
            let piece = self.random.below(of_verb.len().max(1) as u64) as usize;
            let at = of_verb.get(piece).map_or(self.now, |piece| piece.at);
            self.schedule(at, Due::Poll(task));
        }
    }

    fn release_watchers(&mut self, client: ClientId) {
        let (released, kept) = core::mem::take(&mut self.watches)
            .into_iter()
            .partition(|watch| watch.client == client);
        self.watches = kept;
        let released: Vec<Watch> = released;
        for watch in released {
            let now = self.now;
            self.schedule(now, Due::Poll(watch.task));
        }
    }

    /// F7.
    pub(super) fn is_inside(&self, verb: &Verb) -> bool {
        let size = self.region_word_count(verb.addr.node());
        let end = verb.addr.index().checked_add(verb.word_count.into());
        matches!((size, end), (Some(size), Some(end)) if end <= size)
    }

    /// Size of a node's region.
    pub fn region_word_count(&self, node: NodeId) -> Option<u64> {
        self.nodes
            .get(usize::from(node.0))
            .map(|words| words.len() as u64)
    }

    /// What a batch brought back, once it is complete.
    pub(super) fn take_landed(&mut self, batch: u64) -> Option<Landed> {
        if self.modelled.is_some() {
            return self.take_landed_modelled(batch);
        }
        if !self.flights.get(&batch)?.is_complete {
            return None;
        }
        let flight = self.flights.remove(&batch)?;
        let executed_count = flight.cut.or(flight.refused).unwrap_or(flight.verbs.len());
        let cost = cost_of(&flight.verbs, executed_count);
        let result = if flight.cut.is_some() {
            let reason = "the connection broke".to_owned();
            let kind = BatchErrorKind::Unknown { reason };
            Err(BatchError::new(kind, executed_count))
        } else if let Some(index) = flight.refused {
            let verb = &flight.verbs[index];
            let kind = BatchErrorKind::Refused {
                addr: verb.addr,
                word_count: verb.word_count.into(),
                region_word_count: self.region_word_count(verb.addr.node()),
            };
            Err(BatchError::new(kind, index))
        } else {
            Ok(())
        };
        Some(Landed {
            words: flight.words,
            cost,
            result,
        })
    }

    pub(super) fn count_verbs(&mut self, client: ClientId, verb_count: u64) {
        self.executed[client.0 as usize].verbs += verb_count;
    }

    fn take_effect(&mut self, batch: u64, piece_index: usize) {
        let Some(flight) = self.flights.get_mut(&batch) else {
            return;
        };
        flight.is_done[piece_index] = true;
        let Piece {
            verb_index, words, ..
        } = flight.pieces[piece_index].clone();
        let verb = flight.verbs[verb_index];
        let client = flight.client;
        let start = verb.start as usize;
        let memory = &mut self.nodes[usize::from(verb.addr.node().0)];
        let place = verb.addr.index() as usize;
        execute(
            verb.kind,
            &words,
            &mut memory[place..],
            &mut flight.words[start..],
        );
        let executed = &mut self.executed[client.0 as usize];
        count_effect(executed, verb.kind, words.len());
        let seen: Vec<u64> = match verb.kind {
            VerbKind::Read | VerbKind::Write => flight.words[start..][words.clone()].to_vec(),
            VerbKind::CompareSwap => flight.words[start..start + 3].to_vec(),
            VerbKind::FetchAdd => flight.words[start..start + 2].to_vec(),
        };
        self.fingerprint
            .add(self.now ^ batch << 40 ^ (verb_index as u64) << 32);
        for word in &seen {
            self.fingerprint.add(*word);
        }
        self.note(|| {
            let kind = match verb.kind {
                VerbKind::Read => "READ ",
                VerbKind::Write => "WRITE",
                VerbKind::CompareSwap => "CAS  ",
                VerbKind::FetchAdd => "FAA  ",
            };
            let at = verb.addr.offset(words.start as u64);
            format!(
                "client {} batch {batch}.{verb_index} {kind} {at:?} {seen:x?}",
                client.0
            )
        });
    }

    /// Memory as it is now, for audits.
    pub fn words(&self, from: WordAddr, word_count: usize) -> &[u64] {
        let start = from.index() as usize;
        &self.nodes[usize::from(from.node().0)][start..start + word_count]
    }

    /// Does a batch at once, as if its verbs took effect at this very moment: what a node's own
    /// processor sees of its loopback, with the world standing still.
    pub(super) fn execute_now(
        &mut self,
        client: ClientId,
        verbs: &[Verb],
        words: &mut [u64],
    ) -> Result<(), usize> {
        self.executed[client.0 as usize] += cost_of(verbs, 0);
        for (index, verb) in verbs.iter().enumerate() {
            if !self.is_inside(verb) {
                return Err(index);
            }
            let memory = &mut self.nodes[usize::from(verb.addr.node().0)];
            let all = 0..verb.word_count as usize;
            let place = verb.addr.index() as usize;
            execute(
                verb.kind,
                &all,
                &mut memory[place..],
                &mut words[verb.start as usize..],
            );
            let executed = &mut self.executed[client.0 as usize];
            count_effect(executed, verb.kind, all.len());
        }
        Ok(())
    }
}

/// F9: what an endpoint counts for a batch of which so many verbs were executed.
pub(super) fn cost_of(verbs: &[Verb], executed_count: usize) -> Cost {
    let nodes: BTreeSet<NodeId> = verbs.iter().map(|verb| verb.addr.node()).collect();
    let mut cost = Cost {
        round_trips: 1,
        doorbells: nodes.len() as u64,
        verbs: verbs.len() as u64,
        ..Cost::default()
    };
    for verb in &verbs[..executed_count] {
        count_effect(&mut cost, verb.kind, verb.word_count as usize);
    }
    cost
}

/// F9: words of a verb have taken effect. An atomic has but one.
fn count_effect(executed: &mut Cost, kind: VerbKind, word_count: usize) {
    let bytes = word_count as u64 * WORD_SIZE_BYTES;
    match kind {
        VerbKind::Read => executed.bytes_read += bytes,
        VerbKind::Write => executed.bytes_written += bytes,
        VerbKind::CompareSwap | VerbKind::FetchAdd => executed.atomics += 1,
    }
}

/// Executes words of a verb on `memory`, which begins at its place; its data begins at `data`.
pub(super) fn execute(
    kind: VerbKind,
    words: &core::ops::Range<usize>,
    memory: &mut [u64],
    data: &mut [u64],
) {
    match kind {
        VerbKind::Read => data[words.clone()].copy_from_slice(&memory[words.clone()]),
        VerbKind::Write => memory[words.clone()].copy_from_slice(&data[words.clone()]),
        VerbKind::CompareSwap => {
            data[2] = memory[0];
            if memory[0] == data[0] {
                memory[0] = data[1];
            }
        }
        VerbKind::FetchAdd => {
            data[1] = memory[0];
            memory[0] = memory[0].wrapping_add(data[0]);
        }
    }
}
