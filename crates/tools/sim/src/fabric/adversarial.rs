//! Adversarial network: uses every freedom of the contract. Its batches are posted, take effect
//! piece by piece, are cut off, and complete.

use std::collections::BTreeMap;
use std::task::Waker;

use farleaf_base::NodeId;
use farleaf_fabric::{BatchError, BatchErrorKind, Cost, Verb, VerbKind};

use super::event::{BatchEvent, BatchOutcome, DueEvent, cost_of, count_effect};
use super::ids::{ClientId, TaskId};
use super::schedule::{self, Freedoms, Piece};
use super::world::{ClientLife, NodeLife, World, execute};

/// Batch in flight.
#[derive(Debug)]
struct PostedBatch {
    client: ClientId,
    task: Option<TaskId>,
    verbs: Vec<Verb>,
    words: Vec<u64>,
    pieces: Vec<Piece>,
    /// Whether each piece has taken effect.
    is_done: Vec<bool>,
    /// Verb that is refused, if any, with which the batch ends.
    refused: Option<usize>,
    /// Error of a batch that is not posted, since it goes to a node that has left.
    unreachable: Option<BatchError>,
    /// First verb whose node was lost before the batch was complete.
    lost: Option<usize>,
    /// Number of complete verbs, if the batch was cut.
    cut: Option<usize>,
    is_complete: bool,
    /// Waker of the future that waits for the batch: a task may have several futures, and polls
    /// only those that are woken.
    waker: Option<Waker>,
}

/// Network with all freedoms and faults that the contract permits, and its batches in flight.
#[derive(Debug)]
pub(super) struct AdversarialNetwork {
    freedoms: Freedoms,
    flights: BTreeMap<u64, PostedBatch>,
    next_flight: u64,
}

impl AdversarialNetwork {
    /// Creates a network without batches.
    pub(super) fn new(freedoms: Freedoms) -> Self {
        Self {
            freedoms,
            flights: BTreeMap::new(),
            next_flight: 0,
        }
    }

    /// Posts a batch for a task.
    pub(super) fn post(
        &mut self,
        world: &mut World,
        client: ClientId,
        task: Option<TaskId>,
        verbs: Vec<Verb>,
        words: &[u64],
    ) -> u64 {
        let batch = self.next_flight;
        self.next_flight += 1;
        world.locks.note_posted(world.now, client);
        let is_connected = world.life(client) == ClientLife::Connected;
        // A fenced client has no connection to any node (FABRIC-6), whether the node exists or not.
        let unreachable = world.unreachable(&verbs).filter(|_| is_connected);
        if unreachable.is_none() {
            world.executed[client.0 as usize] += cost_of(&verbs, 0);
        }
        let refused = verbs.iter().position(|verb| !world.is_inside(verb));
        let accepted = &verbs[..refused.unwrap_or(verbs.len())];
        let departed = world.now + self.freedoms.latency(&mut world.random);
        let (pieces, landed) =
            schedule::draw(accepted, departed, &self.freedoms, &mut world.random);
        if is_connected && unreachable.is_none() {
            for (piece_index, piece) in pieces.iter().enumerate() {
                world.schedule(
                    piece.at,
                    DueEvent::Batch {
                        batch,
                        event: BatchEvent::Piece(piece_index),
                    },
                );
            }
            world.notify_watchers(client, &verbs, &pieces);
        }
        let back = landed + self.freedoms.latency(&mut world.random);
        world.schedule(
            back,
            DueEvent::Batch {
                batch,
                event: BatchEvent::Complete,
            },
        );
        let is_done = vec![false; pieces.len()];
        self.flights.insert(
            batch,
            PostedBatch {
                client,
                task,
                verbs,
                words: words.to_vec(),
                pieces,
                is_done,
                refused,
                unreachable,
                lost: None,
                cut: (!is_connected).then_some(0),
                is_complete: false,
                waker: None,
            },
        );
        batch
    }

    /// Executes an event of a batch; returns the task that is to be polled.
    pub(super) fn execute(
        &mut self,
        world: &mut World,
        batch: u64,
        event: BatchEvent,
    ) -> Option<TaskId> {
        match event {
            BatchEvent::Piece(piece_index) => {
                let flight = self.flights.get(&batch)?;
                if flight.cut.is_none() {
                    self.take_effect(world, batch, piece_index);
                }
                None
            }
            BatchEvent::Complete => self.complete(world, batch),
            BatchEvent::Modelled(event) => unreachable!("{event:?} in an adversarial network"),
        }
    }

    fn take_effect(&mut self, world: &mut World, batch: u64, piece_index: usize) {
        let Some(flight) = self.flights.get_mut(&batch) else {
            return;
        };
        let verb_index = flight.pieces[piece_index].verb_index;
        let node = flight.verbs[verb_index].addr.node();
        if world.node_life(node) == NodeLife::Lost {
            return;
        }
        flight.is_done[piece_index] = true;
        let Piece {
            verb_index, words, ..
        } = flight.pieces[piece_index].clone();
        let verb = flight.verbs[verb_index];
        let client = flight.client;
        let start = verb.start as usize;
        let memory = &mut world.nodes[usize::from(verb.addr.node().0)];
        let place = verb.addr.index() as usize;
        execute(
            verb.kind,
            &words,
            &mut memory[place..],
            &mut flight.words[start..],
        );
        let executed = &mut world.executed[client.0 as usize];
        count_effect(executed, verb.kind, words.len());
        let data = &flight.words[start..];
        world
            .locks
            .note_effect(world.now, client, &verb, &words, data);
        let effects: Vec<u64> = match verb.kind {
            VerbKind::Read | VerbKind::Write => flight.words[start..][words.clone()].to_vec(),
            VerbKind::CompareSwap => flight.words[start..start + 3].to_vec(),
            VerbKind::FetchAdd => flight.words[start..start + 2].to_vec(),
        };
        world
            .fingerprint
            .add(world.now ^ batch << 40 ^ (verb_index as u64) << 32);
        for word in &effects {
            world.fingerprint.add(*word);
        }
        world.note(|| {
            let kind = match verb.kind {
                VerbKind::Read => "READ ",
                VerbKind::Write => "WRITE",
                VerbKind::CompareSwap => "CAS  ",
                VerbKind::FetchAdd => "FAA  ",
            };
            let at = verb.addr.offset(words.start as u64);
            format!(
                "client {} batch {batch}.{verb_index} {kind} {at:?} {effects:x?}",
                client.0
            )
        });
    }

    /// Cuts a batch (FABRIC-5): on each node, a prefix of the WRITEs and atomics has taken effect,
    /// plus any words of the next WRITE. Atomics that later verbs to their node have overtaken
    /// belong to the prefix and take effect now.
    fn cut(&mut self, world: &mut World, batch: u64) {
        let Some(flight) = self.flights.get(&batch) else {
            return;
        };
        let has_effect = |piece: &Piece| flight.verbs[piece.verb_index].kind != VerbKind::Read;
        let node_of = |piece: &Piece| flight.verbs[piece.verb_index].addr.node();
        let mut last: BTreeMap<NodeId, usize> = BTreeMap::new();
        for (piece, is_done) in flight.pieces.iter().zip(&flight.is_done) {
            if *is_done && has_effect(piece) {
                let last = last.entry(node_of(piece)).or_default();
                *last = piece.verb_index.max(*last);
            }
        }
        let overdue: Vec<usize> = (0..flight.pieces.len())
            .filter(|index| {
                let piece = &flight.pieces[*index];
                has_effect(piece)
                    && !flight.is_done[*index]
                    && last
                        .get(&node_of(piece))
                        .is_some_and(|last| piece.verb_index < *last)
            })
            .collect();
        for piece_index in overdue {
            self.take_effect(world, batch, piece_index);
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
        let event = BatchEvent::Complete;
        world.schedule(world.now, DueEvent::Batch { batch, event });
    }

    fn complete(&mut self, world: &mut World, batch: u64) -> Option<TaskId> {
        let flight = self.flights.get_mut(&batch)?;
        if flight.is_complete {
            return None;
        }
        let accepted_count = flight.refused.unwrap_or(flight.verbs.len());
        // Verbs that were not answered before the loss are not answered anymore.
        let is_lost = |verb: &Verb| world.node_life(verb.addr.node()) == NodeLife::Lost;
        flight.lost = flight.verbs[..accepted_count].iter().position(is_lost);
        flight.is_complete = true;
        if let Some(waker) = flight.waker.take() {
            waker.wake();
        }
        world.fingerprint.add(world.now ^ batch << 40);
        let task = flight.task;
        if task.is_none() {
            // No task waits for the result (FABRIC-10).
            self.flights.remove(&batch);
        }
        task
    }

    /// Wakes a future when a batch is complete.
    pub(super) fn wake_when_complete(&mut self, batch: u64, waker: &Waker) {
        if let Some(flight) = self.flights.get_mut(&batch) {
            flight.waker = Some(waker.clone());
        }
    }

    /// Takes the result of a batch, once it is complete.
    pub(super) fn take_outcome(&mut self, world: &mut World, batch: u64) -> Option<BatchOutcome> {
        if !self.flights.get(&batch)?.is_complete {
            return None;
        }
        let flight = self.flights.remove(&batch)?;
        world.locks.note_picked_up(world.now, flight.client);
        let executed_count = flight.cut.or(flight.refused).unwrap_or(flight.verbs.len());
        let cost = match (&flight.unreachable, flight.lost) {
            (Some(_), _) => Cost::default(),
            (None, Some(_)) => flight.cost_of_effects(),
            (None, None) => cost_of(&flight.verbs, executed_count),
        };
        let result = if let Some(error) = flight.unreachable {
            Err(error)
        } else if flight.cut.is_some() {
            let reason = "the connection broke".to_owned();
            let kind = BatchErrorKind::Unknown { reason };
            Err(BatchError::new(kind, executed_count))
        } else if let Some(first) = flight.lost {
            Err(World::node_lost(&flight.verbs, first))
        } else if let Some(index) = flight.refused {
            Err(world.refusal(&flight.verbs, index))
        } else {
            Ok(())
        };
        Some(BatchOutcome {
            words: flight.words,
            cost,
            result,
        })
    }

    /// Returns the number of batches of a client that are not complete.
    pub(super) fn in_flight_count(&self, client: ClientId) -> usize {
        self.in_flight(client).count()
    }

    /// Cuts all batches of a client that are not complete.
    pub(super) fn cut_batches(&mut self, world: &mut World, client: ClientId) {
        let batches: Vec<u64> = self.in_flight(client).collect();
        for batch in batches {
            self.cut(world, batch);
        }
    }

    fn in_flight(&self, client: ClientId) -> impl Iterator<Item = u64> {
        let flights = self.flights.iter();
        let own = flights.filter(move |(_, flight)| flight.client == client && !flight.is_complete);
        own.map(|(batch, _)| *batch)
    }
}

impl PostedBatch {
    /// Returns the cost of a batch with verbs to a lost node: the words that took effect
    /// (FABRIC-9).
    fn cost_of_effects(&self) -> Cost {
        let mut cost = cost_of(&self.verbs, 0);
        for (piece, is_done) in self.pieces.iter().zip(&self.is_done) {
            if *is_done {
                let kind = self.verbs[piece.verb_index].kind;
                count_effect(&mut cost, kind, piece.words.len());
            }
        }
        cost
    }
}
