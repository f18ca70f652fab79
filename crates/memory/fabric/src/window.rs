//! Windows: memory of a session's process that its home node writes into (F10).

use core::fmt::Debug;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::thread::Thread;
use std::time::Duration;

use farleaf_types::OwnerWord;

use crate::batch::{Batch, VerbKind};

/// A node's way into the windows of its sessions.
pub trait Windows {
    /// Writes what a batch of WRITEs says into a session's window, whose words are counted from 0:
    /// in their order, as F2 has it. Nobody waits until it is there, and nobody hears if it never
    /// is: the session is over then.
    fn write(&self, owner: OwnerWord, batch: &mut Batch);
}

/// The way into one session's window.
pub(crate) trait Door: Debug + Send + Sync {
    /// Writes these words from `index` on, after all that was written before.
    fn write(&self, index: u64, words: &[u64]);

    /// What was written leaves.
    fn leave(&self);
}

/// The doors of all sessions of a node that have come over a network, whichever way.
#[derive(Debug, Default)]
pub struct Doors {
    doors: RwLock<HashMap<u64, Arc<dyn Door>>>,
    bell: Bell,
}

impl Doors {
    /// Rung when a session that has a door has written something.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }

    /// A session has a door.
    pub(crate) fn add(&self, owner: OwnerWord, door: Arc<dyn Door>) {
        let mut doors = self.doors.write().unwrap_or_else(PoisonError::into_inner);
        doors.insert(owner.word(), door);
    }

    /// It has none any more.
    pub(crate) fn remove(&self, owner: OwnerWord) {
        let mut doors = self.doors.write().unwrap_or_else(PoisonError::into_inner);
        doors.remove(&owner.word());
    }
}

impl Windows for Doors {
    fn write(&self, owner: OwnerWord, batch: &mut Batch) {
        let door = {
            let doors = self.doors.read().unwrap_or_else(PoisonError::into_inner);
            doors.get(&owner.word()).map(Arc::clone)
        };
        let Some(door) = door else {
            tracing::debug!(%owner, "an answer came too late: its session has hung up");
            return;
        };
        let (verbs, words, _) = batch.parts_mut();
        for verb in verbs {
            assert!(verb.kind == VerbKind::Write, "windows are only written");
            let start = verb.start as usize;
            door.write(
                verb.addr.index(),
                &words[start..start + verb.word_count as usize],
            );
        }
        door.leave();
    }
}

/// Wakes the thread that reads what sessions have written, where it sleeps.
#[derive(Debug, Default)]
pub struct Bell {
    thread: OnceLock<Thread>,
    is_asleep: AtomicBool,
}

impl Bell {
    /// Who is woken: this thread, from now on. There is one only.
    pub fn belongs_here(&self) {
        self.thread.get_or_init(std::thread::current);
    }

    /// This thread is about to sleep. It has to look once more before it does: what was written
    /// before this it has to see by itself.
    pub fn begin_sleep(&self) {
        self.is_asleep.store(true, Ordering::SeqCst);
        // Who writes has a fence between that and the look at the flag.
        fence(Ordering::SeqCst);
    }

    /// It does not.
    pub fn end_sleep(&self) {
        self.is_asleep.store(false, Ordering::SeqCst);
    }

    /// Sleeps for so long, or until somebody rings.
    pub fn sleep(&self, at_most: Duration) {
        std::thread::park_timeout(at_most);
        self.end_sleep();
    }

    /// Something was written, and a fence has followed. A load while nobody sleeps.
    #[inline]
    pub(crate) fn ring(&self) {
        if self.is_asleep.load(Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }
}
