//! Waits for a leaf's lock within a process, and hands it over (Sherman's hierarchical locks).
//!
//! Sessions of one process that want the same leaf wait in a *queue*, without verbs. Only the first
//! in the queue tries the lock word. A session that releases the lock may hand it over to the next
//! one: it writes the next owner's word instead of 0, and passes on the image. The next session's
//! change then costs one round trip instead of two. Only the lock word says who holds a leaf. A
//! session outside the queue tries the lock word, as LEAF-5 requires.
//!
//! - **Waits.** An operation that is alone, or first in the queue, tries the lock word. The
//!   others wait for a bounded time, holding no leaf lock, and then try it, too.
//! - **Promise.** A session that commits a change while others wait may *promise* the lock to the
//!   next in the queue. Its batch ends with that session's owner word, flagged as handed over,
//!   instead of `lock` = 0. At most [`HAND_OVER_COUNT_MAX`] hand-overs follow each other, so that
//!   other processes get the lock, too.
//! - **Confirmation.** The next session holds the lock, and the image is the committed one, only
//!   when that batch is known to be executed. If the batch failed or was interrupted, the next
//!   session reads the lock word:
//!   - its own word with the flag: the batch took effect, and the session holds the lock;
//!   - the promiser's word: the batch may still take effect, unless the promiser is fenced;
//!   - any other word, or 0: the batch will not take effect any more.
//! - **Interruption.** A session that is interrupted after a lock was promised to it, and before it
//!   released the lock, may hold the lock: the session is broken (FABRIC-6).
//! - **One promise per session.** A lock is promised only to another session. It is never
//!   promised while an operation of that session is still checking an earlier promise of the same
//!   leaf. So an operation that reads its session's word with the flag reads its own promise, not
//!   that of another operation of its session.
//!
//! A leaf's memory is not reused while operations wait in its queue: a waiting operation is
//! unfinished and holds back its session's sequence number (LEAF-7). A fenced session holds nothing
//! back; its batches fail.

use core::cell::Cell;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};

use farleaf_base::locks::lock;
use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_executor::backoff;

use crate::words::image::LeafBuffer;

/// Largest number of hand-overs in a row, as in the code that Sherman's authors published
/// (`kMaxHandOverTime`).
pub const HAND_OVER_COUNT_MAX: u32 = 8;
/// Number of checks of the queue before a waiting operation tries the lock word: some tens of
/// milliseconds.
const QUEUE_CHECK_COUNT_MAX: u32 = 256;
/// Number of operations at the front of the queue that check often, so that a handed-over lock is
/// used at once.
const NEAR_COUNT: usize = 4;
/// Attempt at which the back-off of an operation near the front starts. It checks in each turn of
/// the thread, and the interval doubles every so many checks.
const NEAR_ATTEMPT: u32 = 8;
const NEAR_CHECKS_PER_ATTEMPT: u32 = 8;
/// Number of shards, large enough that the queues of different leaves seldom share a mutex.
const SHARD_COUNT: usize = 64;

/// How an operation gets the lock once it is its turn.
#[derive(Debug)]
pub enum Admission {
    /// By trying the lock word (LEAF-5).
    Ask,
    /// By checking the lock word, which may already be this session's, because this owner promised
    /// it.
    CheckPromised(OwnerWord),
    /// The session already holds the lock; holds the contents of the leaf.
    Handed(Box<LeafBuffer>),
}

/// Operation that waits.
#[derive(Debug)]
struct Waiter {
    ticket: u64,
    owner: OwnerWord,
}

/// Queue of the operations that want a leaf; exists until the last turn is over.
#[derive(Debug, Default)]
struct LockQueue {
    waiting: VecDeque<Waiter>,
    /// Number of promises in a row.
    hand_over_count: u32,
    /// Ticket of the operation that gets the lock by the batch in progress, and the owner word of
    /// the batch's session.
    promised: Option<(u64, OwnerWord)>,
    /// Ticket and admission of the operation whose turn it is, until it has noticed.
    admitted: Option<(u64, Admission)>,
}

impl LockQueue {
    /// Admits the next operation; returns false if no operation waits.
    fn admit(&mut self, handed: Option<&LeafBuffer>) -> bool {
        let promised = self.promised.take();
        let Some(place) = self.waiting.pop_front() else {
            return false;
        };
        let promised = promised.filter(|(ticket, _)| *ticket == place.ticket);
        self.hand_over_count = promised.map_or(0, |_| self.hand_over_count + 1);
        let admission = match (promised, handed) {
            (None, _) => Admission::Ask,
            (Some((_, promiser)), None) => Admission::CheckPromised(promiser),
            (Some(_), Some(leaf)) => Admission::Handed(Box::new(*leaf)),
        };
        self.admitted = Some((place.ticket, admission));
        true
    }
}

#[derive(Debug, Default)]
struct Shard {
    queues: HashMap<RemoteAddr, LockQueue>,
    ticket: u64,
    /// Leaves and sessions that are checking a promise outside the queue.
    checking_sessions: BTreeSet<(RemoteAddr, u64)>,
}

/// Queues of all sessions of a process.
#[derive(Debug)]
pub struct LocalLocks {
    shards: Box<[Mutex<Shard>]>,
}

impl Default for LocalLocks {
    fn default() -> Self {
        let shards = (0..SHARD_COUNT).map(|_| Mutex::default());
        Self {
            shards: shards.collect(),
        }
    }
}

/// Right of one operation to lock a leaf; ends when dropped.
#[derive(Debug)]
pub struct LockTurn<'a> {
    locks: &'a LocalLocks,
    addr: RemoteAddr,
    owner: OwnerWord,
    position: TurnPosition,
    admission: Admission,
}

/// Position of an operation that has its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TurnPosition {
    /// First in the queue.
    First,
    /// Outside the queue, without blocking others.
    OutsideQueue,
    /// Outside the queue, checking a promise.
    OutsideQueueChecking,
}

/// Operation in the queue; leaves it when dropped.
struct QueuedOperation<'a> {
    locks: &'a LocalLocks,
    addr: RemoteAddr,
    owner: OwnerWord,
    ticket: u64,
    broken: &'a Cell<bool>,
    is_over: bool,
}

impl LocalLocks {
    fn shard(&self, addr: RemoteAddr) -> MutexGuard<'_, Shard> {
        let hash = addr.word().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let shard = &self.shards[hash as usize % SHARD_COUNT];
        lock(shard)
    }

    /// Waits for this operation's turn at a leaf, behind those that came earlier. Posts no verbs,
    /// and returns at once if no other operation of the process wants the leaf. The caller must not
    /// hold a leaf lock. When it is admitted with a promised or handed-over lock, it must enter a
    /// [`Critical`](crate::words::Critical) of its own before awaiting anything else. `broken` is
    /// the session's flag, set if the operation is interrupted while it may hold the lock.
    pub async fn turn<'a>(
        &'a self,
        addr: RemoteAddr,
        owner: OwnerWord,
        broken: &'a Cell<bool>,
    ) -> LockTurn<'a> {
        let ticket = {
            let mut shard = self.shard(addr);
            shard.ticket += 1;
            let ticket = shard.ticket;
            let Some(queue) = shard.queues.get_mut(&addr) else {
                shard.queues.insert(addr, LockQueue::default());
                return LockTurn::new(self, addr, owner, TurnPosition::First, Admission::Ask);
            };
            queue.waiting.push_back(Waiter { ticket, owner });
            ticket
        };
        let mut waiting = QueuedOperation {
            locks: self,
            addr,
            owner,
            ticket,
            broken,
            is_over: false,
        };
        let mut near_look_count = 0;
        for attempt in 0..QUEUE_CHECK_COUNT_MAX {
            if waiting.is_near() {
                backoff(NEAR_ATTEMPT + near_look_count / NEAR_CHECKS_PER_ATTEMPT).await;
                near_look_count += 1;
            } else {
                backoff(attempt).await;
            }
            if let Some(turn) = waiting.admitted() {
                return turn;
            }
        }
        waiting.leave()
    }

    /// Starts a turn without waiting, in the queue if no other operation wants the leaf: for
    /// operations that must not wait here.
    pub fn turn_without_waiting(&self, addr: RemoteAddr, owner: OwnerWord) -> LockTurn<'_> {
        let mut shard = self.shard(addr);
        let is_alone = !shard.queues.contains_key(&addr);
        let mut position = TurnPosition::OutsideQueue;
        if is_alone {
            shard.queues.insert(addr, LockQueue::default());
            position = TurnPosition::First;
        }
        LockTurn::new(self, addr, owner, position, Admission::Ask)
    }

    /// Ends the turn of the first in the queue.
    fn end(&self, addr: RemoteAddr, handed: Option<&LeafBuffer>) {
        let mut shard = self.shard(addr);
        let queue = shard.queues.get_mut(&addr);
        if queue.is_some_and(|queue| !queue.admit(handed)) {
            shard.queues.remove(&addr);
        }
    }
}

impl<'a> QueuedOperation<'a> {
    /// Returns whether the operation is among the next ones.
    fn is_near(&self) -> bool {
        let shard = self.locks.shard(self.addr);
        let queue = shard.queues.get(&self.addr);
        queue.is_some_and(|queue| {
            let mut next = queue.waiting.iter().take(NEAR_COUNT);
            next.any(|place| place.ticket == self.ticket)
        })
    }

    /// Returns the operation's turn, if it has come.
    fn admitted(&mut self) -> Option<LockTurn<'a>> {
        let mut shard = self.locks.shard(self.addr);
        self.admitted_in(&mut shard)
    }

    fn admitted_in(&mut self, shard: &mut Shard) -> Option<LockTurn<'a>> {
        let queue = shard.queues.get_mut(&self.addr)?;
        let admitted = queue.admitted.take_if(|(ticket, _)| *ticket == self.ticket);
        let (_, admission) = admitted?;
        self.is_over = true;
        Some(LockTurn::new(
            self.locks,
            self.addr,
            self.owner,
            TurnPosition::First,
            admission,
        ))
    }

    /// Leaves the queue and continues outside it, unless the turn has just come.
    fn leave(mut self) -> LockTurn<'a> {
        let mut shard = self.locks.shard(self.addr);
        if let Some(turn) = self.admitted_in(&mut shard) {
            return turn;
        }
        self.is_over = true;
        let promised = shard.queues.get_mut(&self.addr).and_then(|queue| {
            queue.waiting.retain(|place| place.ticket != self.ticket);
            queue.promised.take_if(|(ticket, _)| *ticket == self.ticket)
        });
        if let Some((_, promiser)) = promised {
            shard
                .checking_sessions
                .insert((self.addr, self.owner.word()));
            let admission = Admission::CheckPromised(promiser);
            return LockTurn::new(
                self.locks,
                self.addr,
                self.owner,
                TurnPosition::OutsideQueueChecking,
                admission,
            );
        }
        LockTurn::new(
            self.locks,
            self.addr,
            self.owner,
            TurnPosition::OutsideQueue,
            Admission::Ask,
        )
    }
}

impl Drop for QueuedOperation<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let gone = QueuedOperation {
            is_over: true,
            ..*self
        };
        if !matches!(gone.leave().admission, Admission::Ask) {
            // The promised batch may still take effect, so the session may hold the lock.
            self.broken.set(true);
        }
    }
}

impl<'a> LockTurn<'a> {
    fn new(
        locks: &'a LocalLocks,
        addr: RemoteAddr,
        owner: OwnerWord,
        position: TurnPosition,
        admission: Admission,
    ) -> Self {
        Self {
            locks,
            addr,
            owner,
            position,
            admission,
        }
    }

    /// Returns whether this turn is at this leaf.
    pub fn is_at(&self, addr: RemoteAddr) -> bool {
        self.addr == addr
    }

    /// Returns how to get the lock; from the second call on, by trying the lock word.
    pub fn admission(&mut self) -> Admission {
        core::mem::replace(&mut self.admission, Admission::Ask)
    }

    /// Returns the word to write to the lock with the change that is about to be committed: 0, or
    /// the next owner's word as a promise.
    pub fn promise(&self) -> OwnerWord {
        if self.position != TurnPosition::First {
            return OwnerWord::FREE;
        }
        let shard = &mut *self.locks.shard(self.addr);
        let Some(queue) = shard.queues.get_mut(&self.addr) else {
            return OwnerWord::FREE;
        };
        // A session that is still checking a promise cannot be promised another lock.
        let may_have = |next: &&Waiter| {
            let is_asking = shard
                .checking_sessions
                .contains(&(self.addr, next.owner.word()));
            next.owner != self.owner && !is_asking
        };
        match queue.waiting.front().filter(may_have) {
            Some(next) if queue.hand_over_count < HAND_OVER_COUNT_MAX => {
                queue.promised = Some((next.ticket, self.owner));
                next.owner.handed()
            }
            _ => OwnerWord::FREE,
        }
    }

    /// Withdraws a promise for which no batch was posted.
    pub fn withdraw(&self) {
        if self.position == TurnPosition::First {
            let mut shard = self.locks.shard(self.addr);
            if let Some(queue) = shard.queues.get_mut(&self.addr) {
                queue.promised = None;
            }
        }
    }

    /// Confirms the promise after its batch was executed, passes on the leaf's new contents, and
    /// ends the turn.
    pub fn hand_over(mut self, leaf: &LeafBuffer) {
        if self.position == TurnPosition::First {
            self.position = TurnPosition::OutsideQueue;
            self.locks.end(self.addr, Some(leaf));
        }
    }
}

impl Drop for LockTurn<'_> {
    fn drop(&mut self) {
        match self.position {
            TurnPosition::First => self.locks.end(self.addr, None),
            TurnPosition::OutsideQueue => {}
            TurnPosition::OutsideQueueChecking => {
                let mut shard = self.locks.shard(self.addr);
                shard
                    .checking_sessions
                    .remove(&(self.addr, self.owner.word()));
            }
        }
    }
}

#[cfg(test)]
mod tests;
