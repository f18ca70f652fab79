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
        let note = Arc::new(SessionNote::idle(owner));
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

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_fabric::Control;
    use farleaf_node::MemNode;
    use farleaf_region::session::{SESSION_SIZE_WORDS, SessionRecord};

    /// A process without a thread: its ticks come when the test says so.
    struct Process {
        node: MemNode,
        keeper: ProcessKeeper,
    }

    impl Process {
        fn new() -> Self {
            let node = MemNode::start(4 << 20).expect("a node");
            let keeper = ProcessKeeper {
                endpoint: MappedEndpoint::new(Arc::clone(node.region())),
                layout: node.layout(),
                note: Arc::default(),
                sessions: Arc::default(),
                beat: 0,
            };
            Self { node, keeper }
        }

        fn register(&self) -> Arc<SessionNote> {
            let owner = self.node.register_session().expect("a session");
            let note = Arc::new(SessionNote::idle(owner));
            let mut sessions = self.keeper.sessions.lock().expect("nobody panicked");
            sessions.push(Arc::clone(&note));
            note
        }

        /// The pool's number becomes this, and the process looks.
        fn tick_at(&mut self, sequence: u64) {
            let mut batch = Batch::new();
            batch.write_word(self.keeper.layout.sequence(), sequence);
            block_on(self.keeper.endpoint.execute(&mut batch), || 0).expect("a write");
            self.keeper.tick().expect("a tick");
        }

        fn record(&self, note: &SessionNote) -> SessionRecord {
            let (session, _) = note.owner.holder().expect("a session's word");
            let mut batch = Batch::new();
            let block = self.keeper.layout.session(session);
            let read = batch.read(block, SESSION_SIZE_WORDS);
            block_on(self.keeper.endpoint.execute(&mut batch), || 0).expect("a read");
            SessionRecord::decode(batch.words(read).try_into().expect("a block"))
        }

        fn published(&self, note: &SessionNote) -> u64 {
            self.record(note).published.0
        }
    }

    /// P2: what a tick reads is what operations that begin afterwards see.
    #[test]
    fn a_tick_shows_the_sessions_the_new_number() {
        let mut process = Process::new();
        process.tick_at(0);
        assert_eq!(process.keeper.note.sequence_after_note(), SequenceNumber(0));
        process.tick_at(7);
        assert_eq!(process.keeper.note.sequence_after_note(), SequenceNumber(7));
    }

    /// P3: the smaller of note and number is published, for each session its own; a session that
    /// does nothing is caught up, and one that is not behind is never ahead of the number.
    #[test]
    fn the_smaller_of_note_and_number_is_published() {
        let mut process = Process::new();
        let [idle, behind, ahead] = [process.register(), process.register(), process.register()];
        behind.set_oldest(SequenceNumber(3));
        ahead.set_oldest(SequenceNumber(9));
        process.tick_at(5);
        let published = [&idle, &behind, &ahead].map(|note| process.published(note));
        assert_eq!(published, [5, 3, 5]);
        behind.set_idle();
        process.tick_at(6);
        let published = [&idle, &behind, &ahead].map(|note| process.published(note));
        assert_eq!(published, [6, 6, 6]);
    }

    /// Hearts beat with every tick, one beat for all sessions, and never with the number that says
    /// "drained".
    #[test]
    fn every_tick_is_a_heartbeat() {
        let mut process = Process::new();
        let notes = [process.register(), process.register()];
        process.tick_at(0);
        let first = process.record(&notes[0]).heartbeat;
        process.tick_at(0);
        let second = notes.each_ref().map(|note| process.record(note).heartbeat);
        assert_eq!(second, [first + 1, first + 1]);
        process.keeper.beat = HEARTBEAT_DRAINED - 1;
        process.tick_at(0);
        assert_ne!(process.record(&notes[0]).heartbeat, HEARTBEAT_DRAINED);
    }

    /// A session that has been removed is not written to again: its block may be another's by now.
    #[test]
    fn a_removed_session_is_left_alone() {
        let node = MemNode::start(4 << 20).expect("a node");
        let region = Arc::clone(node.region());
        let thread = ProcessThread::start(region, node.layout()).expect("a thread");
        let note = thread.add(node.register_session().expect("a session"));
        assert_eq!(note.oldest(), None, "a new session is idle");
        thread.remove(&note);
        let mut process = Process {
            keeper: ProcessKeeper {
                endpoint: MappedEndpoint::new(Arc::clone(node.region())),
                layout: node.layout(),
                note: Arc::clone(&thread.note),
                sessions: Arc::clone(&thread.sessions),
                beat: 0,
            },
            node,
        };
        let before = process.record(&note);
        process.tick_at(4);
        let after = process.record(&note);
        assert_eq!(
            (after.published, after.heartbeat),
            (before.published, before.heartbeat)
        );
        assert_ne!(after.published, SequenceNumber(4));
    }
}
