//! Leaf locks in the hands of the node's agent: how many at once, and for how long.
//!
//! They are found by what takes effect, not by what the agent says: a CAS from 0 takes one, so does
//! the WRITE of a whole leaf that begins with the agent's owner word, and a WRITE of anything else
//! over the word gives it back. A lock that is taken over from the dead is not among them: who
//! waits for that one waits for the dead (D8).

use core::ops::Range;
use std::collections::BTreeMap;

use farleaf_fabric::{Verb, VerbKind};
use farleaf_types::{NodeId, OwnerWord, WordAddr};

use super::{ClientId, Nanos, World};
use crate::plant::LEAF_SIZE_WORDS_MIN;

/// The worst of the holdings of leaf locks that a watched client gave back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Locks that were given back.
    pub count: u64,
    /// Most locks of leaves held at once that others may know.
    pub taken_count_max: usize,
    /// The same of leaves that are being made, which nothing links to yet.
    pub made_count_max: usize,
    /// Most batches in which one lock was held, the first and the last one among them.
    pub batch_count_max: u64,
    /// The longest that one was held.
    pub held_ns_max: Nanos,
    /// The longest of that in which no batch of the client was under way. A batch is under way
    /// until its client has picked it up, so it is no time in which the client could not run.
    pub idle_ns_max: Nanos,
}

/// A lock in the client's hands.
#[derive(Clone, Copy, Debug)]
struct Held {
    is_made: bool,
    since: Nanos,
    /// The number of the batch that took it.
    batch: u64,
    /// Idle time of the client until then.
    idle_ns: Nanos,
}

/// A client that is watched, and what it holds.
#[derive(Debug)]
struct Watched {
    client: ClientId,
    owner: u64,
    /// Leaves lie from this word of every node on.
    leaves_from: u64,
    held: BTreeMap<(NodeId, u64), Held>,
    /// Batches that it has posted, and of these, that it has picked up.
    posted_count: u64,
    picked_up_count: u64,
    /// When it last had none under way, and how long it has had none.
    idle_from: Nanos,
    idle_ns: Nanos,
}

/// The client that is watched, and the worst that was seen of it and of those before.
#[derive(Debug, Default)]
pub(super) struct LockWatch {
    watched: Option<Watched>,
    worst: Holding,
}

impl World {
    /// Watches, from now on and until the client is cut off, what leaf locks it holds in the name
    /// of `owner`. Leaves lie from the word `leaves_from` of every node on.
    pub fn watch_locks(&mut self, client: ClientId, owner: OwnerWord, leaves_from: u64) {
        self.locks.watched = Some(Watched {
            client,
            owner: owner.word(),
            leaves_from,
            held: BTreeMap::new(),
            posted_count: 0,
            picked_up_count: 0,
            idle_from: self.now,
            idle_ns: 0,
        });
    }

    /// The worst that was seen of all clients that were watched.
    pub fn holding(&self) -> Holding {
        self.locks.worst
    }
}

impl LockWatch {
    /// The client is cut off: what the dead hold is for a sweep.
    pub(super) fn forget(&mut self, client: ClientId) {
        self.watched.take_if(|watched| watched.client == client);
    }

    /// U4: locks are lost with their leaves.
    pub(super) fn forget_node(&mut self, node: NodeId) {
        if let Some(watched) = &mut self.watched {
            watched.held.retain(|(other, _), _| *other != node);
        }
    }

    pub(super) fn note_posted(&mut self, now: Nanos, client: ClientId) {
        if let Some(watched) = self.watched_as(client) {
            if watched.posted_count == watched.picked_up_count {
                watched.idle_ns += now - watched.idle_from;
            }
            watched.posted_count += 1;
        }
    }

    pub(super) fn note_picked_up(&mut self, now: Nanos, client: ClientId) {
        if let Some(watched) = self.watched_as(client) {
            watched.picked_up_count += 1;
            watched.idle_from = now;
        }
    }

    fn watched_as(&mut self, client: ClientId) -> Option<&mut Watched> {
        let watched = self.watched.as_mut();
        watched.filter(|watched| watched.client == client)
    }

    /// Words of a verb of a client have taken effect; `data` is the verb's, as it is after that.
    pub(super) fn note_effect(
        &mut self,
        (now, client): (Nanos, ClientId),
        (verb, words): (&Verb, &Range<usize>),
        data: &[u64],
    ) {
        let Self { watched, worst } = self;
        let Some(watched) = watched.as_mut().filter(|it| it.client == client) else {
            return;
        };
        if verb.addr.index() < watched.leaves_from {
            return;
        }
        let place = |word: usize| place(verb.addr.offset(word as u64));
        match verb.kind {
            VerbKind::CompareSwap if data[..3] == [0, watched.owner, 0] => {
                watched.take(place(0), false, now);
            }
            VerbKind::CompareSwap if data[..3] == [watched.owner, 0, watched.owner] => {
                watched.give_back(place(0), now, worst);
            }
            VerbKind::Write => {
                let is_leaf = verb.word_count >= LEAF_SIZE_WORDS_MIN;
                for word in words.clone() {
                    let place = place(word);
                    if data[word] != watched.owner {
                        watched.give_back(place, now, worst);
                    } else if is_leaf && word == 0 {
                        watched.take(place, true, now);
                    }
                }
            }
            _ => {}
        }
        let made_count = watched.held.values().filter(|held| held.is_made).count();
        let taken_count = watched.held.len() - made_count;
        worst.made_count_max = worst.made_count_max.max(made_count);
        worst.taken_count_max = worst.taken_count_max.max(taken_count);
    }
}

fn place(addr: WordAddr) -> (NodeId, u64) {
    (addr.node(), addr.index())
}

impl Watched {
    fn take(&mut self, place: (NodeId, u64), is_made: bool, now: Nanos) {
        let held = Held {
            is_made,
            since: now,
            batch: self.posted_count,
            idle_ns: self.idle_ns,
        };
        self.held.insert(place, held);
    }

    fn give_back(&mut self, place: (NodeId, u64), now: Nanos, worst: &mut Holding) {
        let Some(held) = self.held.remove(&place) else {
            return;
        };
        let batch_count = self.posted_count - held.batch + 1;
        worst.count += 1;
        worst.batch_count_max = worst.batch_count_max.max(batch_count);
        worst.held_ns_max = worst.held_ns_max.max(now - held.since);
        worst.idle_ns_max = worst.idle_ns_max.max(self.idle_ns - held.idle_ns);
    }
}
