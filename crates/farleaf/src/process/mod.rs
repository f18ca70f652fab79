//! Background work of a process for all its sessions: heartbeats, and publishing which sequence
//! numbers they have seen (LEAF-7).
//!
//! - **Notes.** Before an operation reads anything, its session notes the sequence number at which
//!   its oldest unfinished operation began. Between operations it notes "idle".
//! - **Barrier.** The process thread reads a new sequence number and stores it for the sessions.
//!   Then it makes every thread of the process pass a full memory barrier, and only then reads the
//!   notes. Therefore an operation either had noted its number before, or sees the new number when
//!   it begins.
//! - **Publication.** The thread publishes for each session the smaller of its note and the number.
//!   Idle sessions thereby catch up without doing anything.
//! - **Dropped tables.** An operation that sees a new number at its begin first checks which of the
//!   session's tables were dropped. It returns the memory that the session leased for them.

mod publisher;
mod thread;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farleaf_base::{OwnerWord, SequenceNumber};
use farleaf_executor::backoff;

pub use publisher::{Barrier, SequencePublisher};
pub(crate) use thread::ProcessThread;

/// Note of a session without unfinished operations.
const IDLE: u64 = u64::MAX;

/// Note that a session shares with its process's thread.
#[derive(Debug)]
pub(crate) struct SessionNote {
    pub(crate) owner: OwnerWord,
    /// Sequence number at which the oldest unfinished operation began, or [`IDLE`].
    oldest_unfinished: AtomicU64,
}

impl SessionNote {
    /// Creates the note of an idle session.
    pub(crate) fn idle(owner: OwnerWord) -> Self {
        Self {
            owner,
            oldest_unfinished: AtomicU64::new(IDLE),
        }
    }

    /// Notes the sequence number at which the oldest unfinished operation began.
    #[inline]
    pub(crate) fn set_oldest(&self, sequence: SequenceNumber) {
        self.oldest_unfinished.store(sequence.0, Ordering::Release);
    }

    /// Notes that the session has no unfinished operation.
    #[inline]
    pub(crate) fn set_idle(&self) {
        self.oldest_unfinished.store(IDLE, Ordering::Release);
    }

    /// Returns the noted sequence number; `None` if the session is idle.
    #[cfg(test)]
    pub(crate) fn oldest(&self) -> Option<SequenceNumber> {
        let noted = self.oldest_unfinished.load(Ordering::Acquire);
        (noted != IDLE).then_some(SequenceNumber(noted))
    }
}

/// Data of a process that all its sessions read.
#[derive(Debug, Default)]
pub(crate) struct ProcessNote {
    /// Last sequence number that the process has seen.
    sequence: AtomicU64,
    /// Set if the kernel cannot make threads pass a barrier, so that each operation must execute a
    /// fence itself.
    needs_fence: AtomicBool,
}

impl ProcessNote {
    /// Returns the number at which an operation begins. Call it after the operation's note.
    #[inline]
    pub(crate) fn sequence_after_note(&self) -> SequenceNumber {
        if self.needs_fence.load(Ordering::Relaxed) {
            std::sync::atomic::fence(Ordering::SeqCst);
        } else {
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
        }
        SequenceNumber(self.sequence.load(Ordering::Acquire))
    }

    /// Stores a number that the process has seen, as its thread would.
    #[cfg(test)]
    pub(crate) fn see(&self, sequence: SequenceNumber) {
        self.sequence.store(sequence.0, Ordering::SeqCst);
    }
}

/// Data that the sessions of a process and its thread share.
#[derive(Debug, Default)]
pub(crate) struct ProcessState {
    pub(crate) note: Arc<ProcessNote>,
    followed: Arc<Mutex<PublishedSessions>>,
}

/// Sessions for which the thread publishes.
#[derive(Debug, Default)]
struct PublishedSessions {
    sessions: Vec<Arc<SessionNote>>,
    /// Set while words are being written for the sessions of an earlier list.
    is_publishing: bool,
}

impl ProcessState {
    fn followed(&self) -> MutexGuard<'_, PublishedSessions> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts publishing for a session, whose block contains 0 since its registration.
    pub(crate) fn add(&self, owner: OwnerWord) -> Arc<SessionNote> {
        let note = Arc::new(SessionNote::idle(owner));
        self.followed().sessions.push(Arc::clone(&note));
        note
    }

    /// Stops publishing for a session: after this, nothing is written to its block.
    pub(crate) async fn remove(&self, note: &Arc<SessionNote>) {
        for attempt in 0.. {
            if self.is_removed(note) {
                return;
            }
            backoff(attempt).await;
        }
    }

    /// Removes a session from the list; returns false while words may still be written for it.
    fn is_removed(&self, note: &Arc<SessionNote>) -> bool {
        let mut followed = self.followed();
        followed.sessions.retain(|other| !Arc::ptr_eq(other, note));
        !followed.is_publishing
    }
}
