//! What a process does for all its sessions: heartbeats, and following what was taken away (D7).
//!
//! - **P1.** A session notes, before an operation reads anything, the sequence number at which its
//!   oldest unfinished operation began; between operations it notes "idle".
//! - **P2.** The process thread sees a new sequence number, stores it where the sessions look,
//!   makes every thread of the process pass a full memory barrier, and only then reads the notes.
//!   So an operation either was noted before, or will see the new number when it begins.
//! - **P3.** It publishes for each session the smaller of its note and the number. Idle sessions
//!   are so caught up without doing anything.
//! - **P4.** An operation that sees a new number as it begins first looks which of the session's
//!   tables were dropped, and gives back what it leased for them.

mod keeper;
mod thread;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farleaf_executor::backoff;
use farleaf_types::{OwnerWord, SequenceNumber};

pub use keeper::{Barrier, ProcessKeeper};
pub(crate) use thread::ProcessThread;

/// The note of a session without unfinished operations.
const IDLE: u64 = u64::MAX;

/// What a session shares with its process's thread.
#[derive(Debug)]
pub(crate) struct SessionNote {
    pub(crate) owner: OwnerWord,
    /// P1.
    oldest_unfinished: AtomicU64,
}

impl SessionNote {
    /// The note of a session that does nothing yet.
    pub(crate) fn idle(owner: OwnerWord) -> Self {
        Self {
            owner,
            oldest_unfinished: AtomicU64::new(IDLE),
        }
    }

    /// P1: notes at which number the oldest unfinished operation began.
    #[inline]
    pub(crate) fn set_oldest(&self, sequence: SequenceNumber) {
        self.oldest_unfinished.store(sequence.0, Ordering::Release);
    }

    /// P1: notes that no operation is unfinished.
    #[inline]
    pub(crate) fn set_idle(&self) {
        self.oldest_unfinished.store(IDLE, Ordering::Release);
    }

    /// What is noted; `None`: idle.
    #[cfg(test)]
    pub(crate) fn oldest(&self) -> Option<SequenceNumber> {
        let noted = self.oldest_unfinished.load(Ordering::Acquire);
        (noted != IDLE).then_some(SequenceNumber(noted))
    }
}

/// What all sessions of a process read.
#[derive(Debug, Default)]
pub(crate) struct ProcessNote {
    /// P2: the last sequence number that the process has seen.
    sequence: AtomicU64,
    /// Whether the kernel cannot make threads pass a barrier, so that each operation must by
    /// itself.
    needs_fence: AtomicBool,
}

impl ProcessNote {
    /// The number at which an operation begins that has just been noted (P2).
    #[inline]
    pub(crate) fn sequence_after_note(&self) -> SequenceNumber {
        if self.needs_fence.load(Ordering::Relaxed) {
            std::sync::atomic::fence(Ordering::SeqCst);
        } else {
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
        }
        SequenceNumber(self.sequence.load(Ordering::Acquire))
    }

    /// The process sees a number, as its thread would (P2).
    #[cfg(test)]
    pub(crate) fn see(&self, sequence: SequenceNumber) {
        self.sequence.store(sequence.0, Ordering::SeqCst);
    }
}

/// What the sessions of a process and its thread share.
#[derive(Debug, Default)]
pub(crate) struct Process {
    pub(crate) note: Arc<ProcessNote>,
    followed: Arc<Mutex<Followed>>,
}

/// The sessions that are followed for.
#[derive(Debug, Default)]
struct Followed {
    sessions: Vec<Arc<SessionNote>>,
    /// Words are being written for sessions of the list as it was.
    is_publishing: bool,
}

impl Process {
    fn followed(&self) -> MutexGuard<'_, Followed> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to follow for a session, which has published 0 when it was registered.
    pub(crate) fn add(&self, owner: OwnerWord) -> Arc<SessionNote> {
        let note = Arc::new(SessionNote::idle(owner));
        self.followed().sessions.push(Arc::clone(&note));
        note
    }

    /// Ends following for a session: nothing is written to its block after this.
    pub(crate) async fn remove(&self, note: &Arc<SessionNote>) {
        for attempt in 0.. {
            if self.is_removed(note) {
                return;
            }
            backoff(attempt).await;
        }
    }

    /// Takes a session off the list; false while words may still be written for it.
    fn is_removed(&self, note: &Arc<SessionNote>) -> bool {
        let mut followed = self.followed();
        followed.sessions.retain(|other| !Arc::ptr_eq(other, note));
        !followed.is_publishing
    }
}
