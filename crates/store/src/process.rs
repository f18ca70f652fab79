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

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use farleaf_executor::block_on;
use farleaf_fabric::mapped::{MappedEndpoint, MappedRegion};
use farleaf_fabric::{Batch, Endpoint};
use farleaf_region::RegionLayout;
use farleaf_region::session::{HEARTBEAT_DRAINED, heartbeat_addr, published_addr};
use farleaf_types::{OwnerWord, SequenceNumber};
use rustix::thread::MembarrierCommand;

/// Time between two looks at the sequence number.
const TICK: Duration = Duration::from_millis(20);
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
}

/// The process's thread.
#[derive(Debug)]
pub(crate) struct ProcessThread {
    pub(crate) note: Arc<ProcessNote>,
    sessions: Arc<Mutex<Vec<Arc<SessionNote>>>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProcessThread {
    pub(crate) fn start(region: Arc<MappedRegion>, layout: RegionLayout) -> io::Result<Self> {
        let note = Arc::new(ProcessNote::default());
        let registered =
            rustix::thread::membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
        note.needs_fence.store(!registered, Ordering::SeqCst);
        let sessions = Arc::new(Mutex::new(Vec::new()));
        let (stop, stopped) = channel();
        let mut keeper = ProcessKeeper {
            endpoint: MappedEndpoint::new(region),
            layout,
            note: Arc::clone(&note),
            sessions: Arc::clone(&sessions),
            beat: 0,
        };
        let thread = std::thread::Builder::new().name("farleaf-process".to_owned());
        let thread = thread.spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(TICK) {
                if let Err(error) = keeper.tick() {
                    tracing::error!(%error, "cannot follow the pool");
                }
            }
        })?;
        Ok(Self {
            note,
            sessions,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Begins to follow for a session, which has published 0 when it was registered.
    pub(crate) fn add(&self, owner: OwnerWord) -> Arc<SessionNote> {
        let note = Arc::new(SessionNote {
            owner,
            oldest_unfinished: AtomicU64::new(IDLE),
        });
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.push(Arc::clone(&note));
        note
    }

    /// Ends following for a session: nothing is written to its block after this.
    pub(crate) fn remove(&self, note: &Arc<SessionNote>) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|other| !Arc::ptr_eq(other, note));
    }
}

impl Drop for ProcessThread {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the process's thread panicked");
        }
    }
}

struct ProcessKeeper {
    endpoint: MappedEndpoint,
    layout: RegionLayout,
    note: Arc<ProcessNote>,
    sessions: Arc<Mutex<Vec<Arc<SessionNote>>>>,
    beat: u64,
}

impl ProcessKeeper {
    fn tick(&mut self) -> Result<(), farleaf_fabric::BatchError> {
        self.beat = (self.beat + 1) % HEARTBEAT_DRAINED;
        let mut batch = Batch::new();
        let read = batch.read(self.layout.sequence(), 1);
        block_on(self.endpoint.execute(&mut batch), || 0)?;
        let sequence = batch.words(read)[0];
        // P2: the number first, then the barrier, then the notes.
        self.note.sequence.store(sequence, Ordering::SeqCst);
        let barrier = rustix::thread::membarrier(MembarrierCommand::PrivateExpedited);
        if barrier.is_err() && !self.note.needs_fence.swap(true, Ordering::SeqCst) {
            // The sessions fence by themselves from now on; this once nobody did.
            return Ok(());
        }
        // Held while the words are written: a session that has been removed is never written to.
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        batch.clear();
        for session in sessions.iter() {
            let Some((id, _)) = session.owner.holder() else {
                continue;
            };
            let oldest = session.oldest_unfinished.load(Ordering::Acquire);
            batch.write_word(published_addr(&self.layout, id), oldest.min(sequence));
            batch.write_word(heartbeat_addr(&self.layout, id), self.beat);
        }
        if batch.is_empty() {
            Ok(())
        } else {
            block_on(self.endpoint.execute(&mut batch), || 0)
        }
    }
}
