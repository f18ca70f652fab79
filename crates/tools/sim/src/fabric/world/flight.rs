//! Batches in flight: posted, taking effect piece by piece, cut off, complete.

use std::collections::BTreeMap;
use std::task::Waker;

use farleaf_base::NodeId;
use farleaf_fabric::{BatchError, BatchErrorKind, Cost, Verb, VerbKind};

use super::client::{cost_of, count_effect};
use super::memory::execute;
use super::{ClientId, ClientLife, DueEvent, NodeLife, TaskId, World};
use crate::fabric::schedule::{self, Piece};

/// Batch in flight.
#[derive(Debug)]
pub(super) struct PostedBatch {
    pub(super) client: ClientId,
    task: Option<TaskId>,
    pub(super) verbs: Vec<Verb>,
    words: Vec<u64>,
    pub(super) pieces: Vec<Piece>,
    /// Whether each piece has taken effect.
    pub(super) is_done: Vec<bool>,
    /// Verb that is refused, if any, with which the batch ends.
    refused: Option<usize>,
    /// Error of a batch that is not posted, since it goes to a node that has left.
    unreachable: Option<BatchError>,
    /// First verb whose node was lost before the batch was complete.
    lost: Option<usize>,
    /// Number of complete verbs, if the batch was cut.
    pub(super) cut: Option<usize>,
    pub(super) is_complete: bool,
    /// Waker of the future that waits for the batch: a task may have several futures, and polls
    /// only those that are woken.
    waker: Option<Waker>,
}

/// Result of a batch.
#[derive(Debug)]
pub(in crate::fabric) struct BatchOutcome {
    pub(in crate::fabric) words: Vec<u64>,
    pub(in crate::fabric) cost: Cost,
    pub(in crate::fabric) result: Result<(), BatchError>,
}

impl World {
    /// Posts a batch for a task.
    pub(in crate::fabric) fn post(
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
        self.locks.note_posted(self.now, client);
        let is_connected = self.life(client) == ClientLife::Connected;
        // A fenced client has no connection to any node (FABRIC-6), whether the node exists or not.
        let unreachable = self.unreachable(&verbs).filter(|_| is_connected);
        if unreachable.is_none() {
            self.executed[client.0 as usize] += cost_of(&verbs, 0);
        }
        let refused = verbs.iter().position(|verb| !self.is_inside(verb));
        let accepted = &verbs[..refused.unwrap_or(verbs.len())];
        let departed = self.now + self.freedoms.latency(&mut self.random);
        let (pieces, landed) = schedule::draw(accepted, departed, &self.freedoms, &mut self.random);
        if is_connected && unreachable.is_none() {
            for (piece_index, piece) in pieces.iter().enumerate() {
                self.schedule(piece.at, DueEvent::Piece { batch, piece_index });
            }
            self.tell_watchers(client, &verbs, &pieces);
        }
        let back = landed + self.freedoms.latency(&mut self.random);
        self.schedule(back, DueEvent::Complete { batch });
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

    pub(super) fn take_effect(&mut self, batch: u64, piece_index: usize) {
        let Some(flight) = self.flights.get_mut(&batch) else {
            return;
        };
        let verb_index = flight.pieces[piece_index].verb_index;
        let node = flight.verbs[verb_index].addr.node();
        if self.node_lives[usize::from(node.0)] == NodeLife::Lost {
            return;
        }
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
        let data = &flight.words[start..];
        self.locks
            .note_effect((self.now, client), (&verb, &words), data);
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

    /// Cuts a batch (FABRIC-5): on each node, a prefix of the WRITEs and atomics has taken effect,
    /// plus any words of the next WRITE. Atomics that later verbs to their node have overtaken
    /// belong to the prefix and take effect now.
    pub(super) fn cut(&mut self, batch: u64) {
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
        self.schedule(at, DueEvent::Complete { batch });
    }

    pub(super) fn complete(&mut self, batch: u64) -> Option<TaskId> {
        let flight = self.flights.get_mut(&batch)?;
        if flight.is_complete {
            return None;
        }
        let accepted_count = flight.refused.unwrap_or(flight.verbs.len());
        // Verbs that were not answered before the loss are not answered anymore.
        let is_lost = |verb: &Verb| {
            let life = self.node_lives.get(usize::from(verb.addr.node().0));
            life == Some(&NodeLife::Lost)
        };
        flight.lost = flight.verbs[..accepted_count].iter().position(is_lost);
        flight.is_complete = true;
        if let Some(waker) = flight.waker.take() {
            waker.wake();
        }
        self.fingerprint.add(self.now ^ batch << 40);
        let task = flight.task;
        if task.is_none() {
            // No task waits for the result (FABRIC-10).
            self.flights.remove(&batch);
        }
        task
    }

    /// Wakes a future when a batch is complete.
    pub(in crate::fabric) fn wake_when_complete(&mut self, batch: u64, waker: &Waker) {
        if let Some(flight) = self.flights.get_mut(&batch) {
            flight.waker = Some(waker.clone());
        }
    }

    /// Takes the result of a batch, once it is complete.
    pub(in crate::fabric) fn take_outcome(&mut self, batch: u64) -> Option<BatchOutcome> {
        if self.modelled.is_some() {
            return self.take_outcome_modelled(batch);
        }
        if !self.flights.get(&batch)?.is_complete {
            return None;
        }
        let flight = self.flights.remove(&batch)?;
        self.locks.note_picked_up(self.now, flight.client);
        let executed_count = flight.cut.or(flight.refused).unwrap_or(flight.verbs.len());
        let cost = match (&flight.unreachable, flight.lost) {
            (Some(_), _) => Cost::default(),
            (None, Some(_)) => Self::cost_of_effects(&flight),
            (None, None) => cost_of(&flight.verbs, executed_count),
        };
        let result = if let Some(error) = flight.unreachable {
            Err(error)
        } else if flight.cut.is_some() {
            let reason = "the connection broke".to_owned();
            let kind = BatchErrorKind::Unknown { reason };
            Err(BatchError::new(kind, executed_count))
        } else if let Some(first) = flight.lost {
            Err(Self::node_lost(&flight.verbs, first))
        } else if let Some(index) = flight.refused {
            Err(self.refusal(&flight.verbs, index))
        } else {
            Ok(())
        };
        Some(BatchOutcome {
            words: flight.words,
            cost,
            result,
        })
    }
}
