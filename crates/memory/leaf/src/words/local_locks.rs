//! Waiting for a leaf's lock within a process, and handing it over (Sherman's hierarchical locks).
//!
//! Sessions of one process that want the same leaf stand in a *line*, without verbs; only its first
//! asks the lock word. Who gives the lock back may hand it over to the next in line: its owner word
//! is written where 0 would be, and with the word it gets the image, so that its change costs one
//! round trip instead of two. The lock word alone says who holds a leaf: whoever leaves the line,
//! or never stood in one, asks it, as D5 has it.
//!
//! - **H1.** Who is alone, or first in line, asks the lock word. The others wait for a bounded
//!   time, with no lock of any leaf in hand, and then ask it, too.
//! - **H2.** Who commits a change while somebody waits may *promise* the lock to the next in line:
//!   instead of `lock` = 0, the batch ends with that session's owner word, flagged as handed over.
//!   Not more than [`HAND_OVER_COUNT_MAX`] times in a row, so that other processes have their turn.
//! - **H3.** The next in line holds the lock, and the image is what was committed, only when that
//!   batch is known to be executed. If it failed, or was cut off, the next in line asks the word:
//!   its own with the flag means that the batch took effect, and the lock is its own; the
//!   promiser's, that it may still do so, be the promiser fenced since; any other, or none, that it
//!   will not any more.
//! - **H4.** To whom a lock is promised, and who is cut off before it has given it back, may hold
//!   it: the session is broken (F6).
//! - **H5.** A lock is promised to another session only, and not while an operation of that session
//!   still asks after an earlier promise of the same leaf. So who asks after a promise, and reads
//!   the own word with the flag, reads what was promised to it, not what another operation of its
//!   session was handed.
//!
//! A leaf's memory is not used for anything else while somebody stands in its line: who waits is an
//! operation under way, and keeps its session's number back (D7). A session that is fenced keeps
//! nothing back; its batches fail.

use core::cell::Cell;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farleaf_executor::backoff;
use farleaf_types::{OwnerWord, RemoteAddr};

use crate::image::LeafBuffer;

/// H2. As in the code that Sherman's authors have published (`kMaxHandOverTime`).
pub const HAND_OVER_COUNT_MAX: u32 = 8;
/// H1: so many looks at the line before who waits asks the lock word: some tens of milliseconds.
const LOOK_COUNT_MAX: u32 = 256;
/// Who is so near to the front looks often: a lock that was handed over waits for nobody.
const NEAR_COUNT: usize = 4;
/// Backing off of who is near begins at this attempt, with a look in each turn of the thread, and
/// doubles every so many looks.
const NEAR_ATTEMPT: u32 = 8;
const NEAR_LOOKS_PER_ATTEMPT: u32 = 8;
/// Lines of different leaves seldom share a mutex.
const SHARD_COUNT: usize = 64;

/// How to come by the lock, once it is an operation's turn.
#[derive(Debug)]
pub enum Admission {
    /// By asking the lock word (D5).
    Ask,
    /// By asking the lock word, which may be this session's already, as this one has promised (H3).
    AskPromised(OwnerWord),
    /// It is this session's, and this is the leaf (H2).
    Handed(Box<LeafBuffer>),
}

/// An operation that waits.
#[derive(Debug)]
struct Place {
    ticket: u64,
    owner: OwnerWord,
}

/// Who wants a leaf; there is one as long as somebody's turn is not over.
#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<Place>,
    /// Promises in a row.
    hand_over_count: u32,
    /// Who is to get the lock by the batch that is under way, and whose batch that is.
    promised: Option<(u64, OwnerWord)>,
    /// Whose turn it is, until they have seen that.
    admitted: Option<(u64, Admission)>,
}

impl Line {
    /// The next one's turn begins; false: there is no next one.
    fn admit(&mut self, handed: Option<&LeafBuffer>) -> bool {
        let promised = self.promised.take();
        let Some(place) = self.waiting.pop_front() else {
            return false;
        };
        let promised = promised.filter(|(ticket, _)| *ticket == place.ticket);
        self.hand_over_count = promised.map_or(0, |_| self.hand_over_count + 1);
        let admission = match (promised, handed) {
            (None, _) => Admission::Ask,
            (Some((_, promiser)), None) => Admission::AskPromised(promiser),
            (Some(_), Some(leaf)) => Admission::Handed(Box::new(*leaf)),
        };
        self.admitted = Some((place.ticket, admission));
        true
    }
}

#[derive(Debug, Default)]
struct Shard {
    lines: HashMap<RemoteAddr, Line>,
    ticket: u64,
    /// Leaves, and sessions that ask after a promise beside the line (H5).
    asking: BTreeSet<(RemoteAddr, u64)>,
}

/// The lines of a process's sessions.
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

/// An operation whose turn it is at a leaf; over when it is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    locks: &'a LocalLocks,
    addr: RemoteAddr,
    owner: OwnerWord,
    stand: Stand,
    admission: Admission,
}

/// Where an operation is whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    /// First in line.
    First,
    /// Beside the line, in nobody's way.
    Beside,
    /// Beside the line, and asks after a promise (H5).
    BesideAsking,
}

/// An operation in line. Dropped: it goes away.
struct Waiting<'a> {
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
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// H1: this operation's turn at a leaf, after those that came before it. Posts nothing; at
    /// once when nobody else of the process wants the leaf. The caller holds no lock of a leaf, and
    /// when it is admitted as one who was promised the lock, or was handed it, enters a
    /// [`Critical`](crate::Critical) of its own before it awaits anything else. `broken` is the
    /// session's (H4).
    pub async fn turn<'a>(
        &'a self,
        addr: RemoteAddr,
        owner: OwnerWord,
        broken: &'a Cell<bool>,
    ) -> Turn<'a> {
        let ticket = {
            let mut shard = self.shard(addr);
            shard.ticket += 1;
            let ticket = shard.ticket;
            let Some(line) = shard.lines.get_mut(&addr) else {
                shard.lines.insert(addr, Line::default());
                return Turn::new(self, (addr, owner), Stand::First, Admission::Ask);
            };
            line.waiting.push_back(Place { ticket, owner });
            ticket
        };
        let mut waiting = Waiting {
            locks: self,
            addr,
            owner,
            ticket,
            broken,
            is_over: false,
        };
        let mut near_look_count = 0;
        for attempt in 0..LOOK_COUNT_MAX {
            if waiting.is_near() {
                backoff(NEAR_ATTEMPT + near_look_count / NEAR_LOOKS_PER_ATTEMPT).await;
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

    /// This operation's turn, in line if nobody else wants the leaf: for who must not wait here
    /// (H1).
    pub fn turn_now(&self, addr: RemoteAddr, owner: OwnerWord) -> Turn<'_> {
        let mut shard = self.shard(addr);
        let is_alone = !shard.lines.contains_key(&addr);
        let mut stand = Stand::Beside;
        if is_alone {
            shard.lines.insert(addr, Line::default());
            stand = Stand::First;
        }
        Turn::new(self, (addr, owner), stand, Admission::Ask)
    }

    /// The turn of the one in front is over.
    fn end(&self, addr: RemoteAddr, handed: Option<&LeafBuffer>) {
        let mut shard = self.shard(addr);
        let line = shard.lines.get_mut(&addr);
        if line.is_some_and(|line| !line.admit(handed)) {
            shard.lines.remove(&addr);
        }
    }
}

impl<'a> Waiting<'a> {
    /// Whether it is among the next ones.
    fn is_near(&self) -> bool {
        let shard = self.locks.shard(self.addr);
        let line = shard.lines.get(&self.addr);
        line.is_some_and(|line| {
            let mut next = line.waiting.iter().take(NEAR_COUNT);
            next.any(|place| place.ticket == self.ticket)
        })
    }

    /// Its turn, if that has come.
    fn admitted(&mut self) -> Option<Turn<'a>> {
        let mut shard = self.locks.shard(self.addr);
        self.admitted_in(&mut shard)
    }

    fn admitted_in(&mut self, shard: &mut Shard) -> Option<Turn<'a>> {
        let line = shard.lines.get_mut(&self.addr)?;
        let admitted = line.admitted.take_if(|(ticket, _)| *ticket == self.ticket);
        let (_, admission) = admitted?;
        self.is_over = true;
        let place = (self.addr, self.owner);
        Some(Turn::new(self.locks, place, Stand::First, admission))
    }

    /// H1: it goes on beside the line, unless its turn has just come.
    fn leave(mut self) -> Turn<'a> {
        let mut shard = self.locks.shard(self.addr);
        if let Some(turn) = self.admitted_in(&mut shard) {
            return turn;
        }
        self.is_over = true;
        let place = (self.addr, self.owner);
        let promised = shard.lines.get_mut(&self.addr).and_then(|line| {
            line.waiting.retain(|place| place.ticket != self.ticket);
            line.promised.take_if(|(ticket, _)| *ticket == self.ticket)
        });
        if let Some((_, promiser)) = promised {
            shard.asking.insert((self.addr, self.owner.word()));
            let admission = Admission::AskPromised(promiser);
            return Turn::new(self.locks, place, Stand::BesideAsking, admission);
        }
        Turn::new(self.locks, place, Stand::Beside, Admission::Ask)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let gone = Waiting {
            is_over: true,
            ..*self
        };
        if !matches!(gone.leave().admission, Admission::Ask) {
            // H4.
            self.broken.set(true);
        }
    }
}

impl<'a> Turn<'a> {
    fn new(
        locks: &'a LocalLocks,
        (addr, owner): (RemoteAddr, OwnerWord),
        stand: Stand,
        admission: Admission,
    ) -> Self {
        Self {
            locks,
            addr,
            owner,
            stand,
            admission,
        }
    }

    /// Whether it is one at this leaf.
    pub fn is_at(&self, addr: RemoteAddr) -> bool {
        self.addr == addr
    }

    /// How to come by the lock; the second time, and from then on, by asking for it.
    pub fn admission(&mut self) -> Admission {
        core::mem::replace(&mut self.admission, Admission::Ask)
    }

    /// H2: what to write into the lock word with the change that is about to be committed: 0, or
    /// the next one's owner word.
    pub fn promise(&self) -> OwnerWord {
        if self.stand != Stand::First {
            return OwnerWord::FREE;
        }
        let shard = &mut *self.locks.shard(self.addr);
        let Some(line) = shard.lines.get_mut(&self.addr) else {
            return OwnerWord::FREE;
        };
        // H5.
        let may_have = |next: &&Place| {
            let is_asking = shard.asking.contains(&(self.addr, next.owner.word()));
            next.owner != self.owner && !is_asking
        };
        match line.waiting.front().filter(may_have) {
            Some(next) if line.hand_over_count < HAND_OVER_COUNT_MAX => {
                line.promised = Some((next.ticket, self.owner));
                next.owner.handed()
            }
            _ => OwnerWord::FREE,
        }
    }

    /// Nothing was posted that keeps the promise.
    pub fn withdraw(&self) {
        if self.stand == Stand::First {
            let mut shard = self.locks.shard(self.addr);
            if let Some(line) = shard.lines.get_mut(&self.addr) {
                line.promised = None;
            }
        }
    }

    /// H3: the batch that keeps the promise is executed, and this is what it left in the leaf. The
    /// turn is over.
    pub fn hand_over(mut self, leaf: &LeafBuffer) {
        if self.stand == Stand::First {
            self.stand = Stand::Beside;
            self.locks.end(self.addr, Some(leaf));
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        match self.stand {
            Stand::First => self.locks.end(self.addr, None),
            Stand::Beside => {}
            Stand::BesideAsking => {
                let mut shard = self.locks.shard(self.addr);
                shard.asking.remove(&(self.addr, self.owner.word()));
            }
        }
    }
}

#[cfg(test)]
mod tests;
