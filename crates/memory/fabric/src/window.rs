//! Windows: memory of a session's process that its main node writes into (FABRIC-10).

use core::fmt::Debug;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock, RwLock};
use std::thread::Thread;
use std::time::Duration;

use farleaf_base::OwnerWord;
use farleaf_base::locks::{read, write};

use crate::batch::{Batch, VerbKind};

/// A node's access to the windows of its sessions.
pub trait Windows {
    /// Writes the WRITEs of a batch into a session's window, whose words are counted from 0, in the
    /// order of FABRIC-2.
    ///
    /// The method does not wait for delivery and reports no failure: if a write is never delivered,
    /// the session has ended.
    fn write(&self, owner: OwnerWord, batch: &mut Batch);
}

/// Access to one session's window.
pub(crate) trait WindowWriter: Debug + Send + Sync {
    /// Appends a write of `words` at `index`, after all earlier writes.
    fn write(&self, index: u64, words: &[u64]);

    /// Sends the appended writes.
    fn send(&self);
}

/// Windows of all of a node's sessions that came over a network, on any backend.
#[derive(Debug, Default)]
pub struct WindowRegistry {
    windows: RwLock<HashMap<u64, Arc<dyn WindowWriter>>>,
    wake_signal: WakeSignal,
}

impl WindowRegistry {
    /// Returns the signal that is sent when a session with a window has written something.
    pub fn wake_signal(&self) -> &WakeSignal {
        &self.wake_signal
    }

    /// Adds the window of a session.
    pub(crate) fn add(&self, owner: OwnerWord, window_writer: Arc<dyn WindowWriter>) {
        let mut windows = write(&self.windows);
        windows.insert(owner.word(), window_writer);
    }

    /// Removes the window of a session.
    pub(crate) fn remove(&self, owner: OwnerWord) {
        let mut windows = write(&self.windows);
        windows.remove(&owner.word());
    }
}

impl Windows for WindowRegistry {
    fn write(&self, owner: OwnerWord, batch: &mut Batch) {
        let window_writer = {
            let windows = read(&self.windows);
            windows.get(&owner.word()).map(Arc::clone)
        };
        let Some(window_writer) = window_writer else {
            tracing::debug!(%owner, "reply dropped: its session has disconnected");
            return;
        };
        let (verbs, words, _) = batch.parts_mut();
        for verb in verbs {
            assert!(verb.kind == VerbKind::Write, "windows are only written");
            let start = verb.start as usize;
            window_writer.write(
                verb.addr.index(),
                &words[start..start + verb.word_count as usize],
            );
        }
        window_writer.send();
    }
}

/// Notification that wakes the thread that reads the sessions' writes, if that thread sleeps.
#[derive(Debug, Default)]
pub struct WakeSignal {
    thread: OnceLock<Thread>,
    is_asleep: AtomicBool,
}

impl WakeSignal {
    /// Makes the calling thread the one to wake. There is only one.
    pub fn attach_current_thread(&self) {
        self.thread.get_or_init(std::thread::current);
    }

    /// Announces that this thread is about to sleep. The thread must look once more before it
    /// sleeps, because earlier writes do not wake it.
    pub fn begin_sleep(&self) {
        self.is_asleep.store(true, Ordering::SeqCst);
        // The writing side has a fence between its write and its check of the flag.
        fence(Ordering::SeqCst);
    }

    /// Announces that this thread no longer sleeps.
    pub fn end_sleep(&self) {
        self.is_asleep.store(false, Ordering::SeqCst);
    }

    /// Sleeps until the signal is sent, but at most for `at_most`.
    pub fn sleep(&self, at_most: Duration) {
        std::thread::park_timeout(at_most);
        self.end_sleep();
    }

    /// Wakes the reader after a write and a fence. Costs one load if it does not sleep.
    #[inline]
    pub(crate) fn ring(&self) {
        if self.is_asleep.load(Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }
}
