//! Leaf locks that the node's agent holds: how many at once, and for how long.
//!
//! The watch sees effects, not what the agent reports. A lock begins with a CAS from 0, or with the
//! WRITE of a whole leaf that begins with the agent's owner word. It ends with a WRITE of anything
//! else over that word. Locks taken over from dead owners do not count: an operation that waits for
//! one waits for the dead owner (LEAF-8).

use core::ops::Range;
use std::collections::BTreeMap;

use farleaf_base::{NodeId, OwnerWord, WordAddr};
use farleaf_fabric::{Verb, VerbKind};

use super::{ClientId, Nanos, World};
use crate::plant::LEAF_SIZE_WORDS_MIN;

/// Maxima over all leaf locks that a watched client has released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockHolding {
    /// Number of released locks.
    pub count: u64,
    /// Most locks held at once on leaves that other sessions can reach.
    pub taken_count_max: usize,
    /// Most locks held at once on new leaves, to which no link leads yet.
    pub made_count_max: usize,
    /// Most batches during which one lock was held, including the first and the last one.
    pub batch_count_max: u64,
    /// Longest time for which a lock was held.
    pub held_ns_max: Nanos,
    /// Longest part of such a time in which no batch of the client was in flight. A batch counts as
    /// in flight until its client has picked up the result, so time in which the client could not
    /// run is not included.
    pub idle_ns_max: Nanos,
}

/// Lock that the client holds.
#[derive(Clone, Copy, Debug)]
struct HeldLock {
    is_new: bool,
    since: Nanos,
    /// Number of the batch that took the lock.
    batch: u64,
    /// Idle time of the client until then.
    idle_ns: Nanos,
}

/// Client under watch, with its locks.
#[derive(Debug)]
struct WatchedClient {
    client: ClientId,
    owner: u64,
    /// First word of the leaves, on every node.
    leaves_from: u64,
    locks: BTreeMap<WordAddr, HeldLock>,
    /// Batches that the client has posted, and those whose result it has picked up.
    posted_count: u64,
    picked_up_count: u64,
    /// Start of the current idle time, and the idle time before it.
    idle_from: Nanos,
    idle_ns: Nanos,
}

/// Client under watch, and the maxima of this client and earlier ones.
#[derive(Debug, Default)]
pub(in crate::fabric) struct LockWatch {
    watched: Option<WatchedClient>,
    worst: LockHolding,
}

impl World {
    /// Watches the leaf locks that a client holds as `owner`, from now on until the client is cut
    /// off. Leaves begin at word `leaves_from` of every node.
    pub fn watch_locks(&mut self, client: ClientId, owner: OwnerWord, leaves_from: u64) {
        self.locks.watched = Some(WatchedClient {
            client,
            owner: owner.word(),
            leaves_from,
            locks: BTreeMap::new(),
            posted_count: 0,
            picked_up_count: 0,
            idle_from: self.now,
            idle_ns: 0,
        });
    }

    /// Returns the maxima over all watched clients.
    pub fn holding(&self) -> LockHolding {
        self.locks.worst
    }
}

impl LockWatch {
    /// Ends the watch of a client that is cut off: its locks are left to a sweep.
    pub(super) fn forget(&mut self, client: ClientId) {
        self.watched.take_if(|watched| watched.client == client);
    }

    /// Drops the locks on a lost node: they are lost with their leaves.
    pub(super) fn forget_node(&mut self, node: NodeId) {
        if let Some(watched) = &mut self.watched {
            watched.locks.retain(|addr, _| addr.node() != node);
        }
    }

    pub(in crate::fabric) fn note_posted(&mut self, now: Nanos, client: ClientId) {
        if let Some(watched) = self.watched(client) {
            if watched.posted_count == watched.picked_up_count {
                watched.idle_ns += now - watched.idle_from;
            }
            watched.posted_count += 1;
        }
    }

    pub(in crate::fabric) fn note_picked_up(&mut self, now: Nanos, client: ClientId) {
        if let Some(watched) = self.watched(client) {
            watched.picked_up_count += 1;
            watched.idle_from = now;
        }
    }

    fn watched(&mut self, client: ClientId) -> Option<&mut WatchedClient> {
        let watched = self.watched.as_mut();
        watched.filter(|watched| watched.client == client)
    }

    /// Records that words of a client's verb have taken effect; `data` is the verb's data after
    /// that.
    pub(in crate::fabric) fn note_effect(
        &mut self,
        now: Nanos,
        client: ClientId,
        verb: &Verb,
        words: &Range<usize>,
        data: &[u64],
    ) {
        let Self { watched, worst } = self;
        let Some(watched) = watched.as_mut().filter(|it| it.client == client) else {
            return;
        };
        if verb.addr.index() < watched.leaves_from {
            return;
        }
        match verb.kind {
            VerbKind::CompareSwap if data[..3] == [0, watched.owner, 0] => {
                watched.take(verb.addr, false, now);
            }
            VerbKind::CompareSwap if data[..3] == [watched.owner, 0, watched.owner] => {
                watched.release(verb.addr, now, worst);
            }
            VerbKind::Write => {
                let is_leaf = verb.word_count >= LEAF_SIZE_WORDS_MIN;
                for word in words.clone() {
                    let addr = verb.addr.offset(word as u64);
                    if data[word] != watched.owner {
                        watched.release(addr, now, worst);
                    } else if is_leaf && word == 0 {
                        watched.take(addr, true, now);
                    }
                }
            }
            _ => {}
        }
        let new_count = watched.locks.values().filter(|lock| lock.is_new).count();
        let taken_count = watched.locks.len() - new_count;
        worst.made_count_max = worst.made_count_max.max(new_count);
        worst.taken_count_max = worst.taken_count_max.max(taken_count);
    }
}

impl WatchedClient {
    fn take(&mut self, addr: WordAddr, is_new: bool, now: Nanos) {
        let lock = HeldLock {
            is_new,
            since: now,
            batch: self.posted_count,
            idle_ns: self.idle_ns,
        };
        self.locks.insert(addr, lock);
    }

    fn release(&mut self, addr: WordAddr, now: Nanos, worst: &mut LockHolding) {
        let Some(lock) = self.locks.remove(&addr) else {
            return;
        };
        let batch_count = self.posted_count - lock.batch + 1;
        worst.count += 1;
        worst.batch_count_max = worst.batch_count_max.max(batch_count);
        worst.held_ns_max = worst.held_ns_max.max(now - lock.since);
        worst.idle_ns_max = worst.idle_ns_max.max(self.idle_ns - lock.idle_ns);
    }
}
