//! One look at the pool in the name of all sessions of a process (P2, P3).

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use farleaf_fabric::{Batch, BatchError, Endpoint, OperationKind};
use farleaf_region::PoolLayout;
use farleaf_region::session::{HEARTBEAT_DRAINED, asked_addr, heartbeat_addr, published_addr};
use farleaf_types::{SequenceNumber, SessionId};
use rustix::thread::MembarrierCommand;

use super::{Followed, ProcessNote, SessionNote};
use crate::host::PoolShare;

/// Verbs of a tick for each session: two words written, one read.
const VERBS_PER_SESSION: usize = 3;

/// How every thread of a process is made to pass a memory barrier (P2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// By the kernel, if it can; else each operation fences by itself.
    Kernel,
    /// Not at all: sessions and keeper run on one thread.
    OneThread,
}

/// What looks for new sequence numbers, and publishes for the sessions how far they have come.
#[derive(Debug)]
pub struct ProcessKeeper<E> {
    endpoint: E,
    layout: PoolLayout,
    note: Arc<ProcessNote>,
    followed: Arc<Mutex<Followed>>,
    beat: Cell<u64>,
    /// The largest number that the node asked for and that was told of (S4).
    answered: Cell<u64>,
    barrier: Barrier,
}

/// While it lives, words are being written for sessions.
struct Publishing<'a>(&'a Mutex<Followed>);

impl<'a> Publishing<'a> {
    fn begin(followed: &'a Mutex<Followed>) -> (Self, Vec<Arc<SessionNote>>) {
        let mut list = followed.lock().unwrap_or_else(PoisonError::into_inner);
        list.is_publishing = true;
        (Self(followed), list.sessions.clone())
    }
}

impl Drop for Publishing<'_> {
    fn drop(&mut self) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.is_publishing = false;
    }
}

impl<E: Endpoint> ProcessKeeper<E> {
    /// For the sessions of a process; it has an endpoint of its own, and is the only one of its
    /// process.
    pub fn new(endpoint: E, share: &PoolShare, barrier: Barrier) -> Self {
        let note = Arc::clone(&share.process.note);
        if barrier == Barrier::Kernel {
            let registered =
                rustix::thread::membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
            note.needs_fence.store(!registered, Ordering::SeqCst);
        }
        Self {
            endpoint,
            layout: share.layout.clone(),
            note,
            followed: Arc::clone(&share.process.followed),
            beat: Cell::new(0),
            answered: Cell::new(0),
            barrier,
        }
    }

    /// Its endpoint.
    pub fn endpoint(&self) -> &E {
        &self.endpoint
    }

    /// P2 and P3, and a heartbeat for each session: two round trips, and one more where the number
    /// has changed.
    ///
    /// # Errors
    /// The fabric failed; nothing was published, or for some sessions.
    pub async fn tick(&self) -> Result<(), BatchError> {
        self.beat.set((self.beat.get() + 1) % HEARTBEAT_DRAINED);
        let mut batch = Batch::new();
        let ticked = self.look_and_publish(&mut batch).await;
        let counters = self.endpoint.counters();
        counters.record(OperationKind::Control, &batch.take_cost());
        ticked
    }

    async fn look_and_publish(&self, batch: &mut Batch) -> Result<(), BatchError> {
        let read = batch.read(self.layout.sequence(), 1);
        self.endpoint.execute(batch).await?;
        let sequence = batch.words(read)[0];
        if sequence != self.note.sequence.load(Ordering::Relaxed) {
            // U3: whoever sees a number has seen the nodes as they were when it was drawn (V5).
            let members = self.layout.members();
            members.refresh(&self.endpoint, &self.layout).await?;
        }
        // P2: the number first, then the barrier, then the notes.
        self.note.sequence.store(sequence, Ordering::SeqCst);
        if !self.pass_barrier() {
            return Ok(());
        }
        // A session that is removed waits until this is over: it is never written to after that.
        let (_publishing, sessions) = Publishing::begin(&self.followed);
        batch.clear();
        let mut asked = Vec::new();
        for session in sessions {
            let Some((id, _)) = session.owner.holder() else {
                continue;
            };
            let oldest = session.oldest_unfinished.load(Ordering::Acquire);
            batch.write_word(published_addr(&self.layout, id), oldest.min(sequence));
            batch.write_word(heartbeat_addr(&self.layout, id), self.beat.get());
            let read = batch.read(asked_addr(&self.layout, id), 1);
            asked.push((session, id, oldest, read));
        }
        if let Err(error) = self.endpoint.execute(batch).await {
            let refused = asked.get(error.executed_verb_count() / VERBS_PER_SESSION);
            if let Some((session, ..)) = refused.filter(|_| error.is_forbidden()) {
                self.let_go(session);
                return Ok(());
            }
            return Err(error);
        }
        let asked = asked.into_iter();
        self.answer(asked.map(|(_, id, oldest, read)| (id, oldest, batch.words(read)[0])));
        Ok(())
    }

    /// F7: the words of a session are the process's no more, so the session has been fenced. It
    /// learns that by itself; the others are published for at the next tick.
    fn let_go(&self, session: &Arc<SessionNote>) {
        let mut list = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        list.sessions.retain(|other| !Arc::ptr_eq(other, session));
    }

    /// S4: tells the process's users, once for each number, what keeps memory from being reused.
    fn answer(&self, asked: impl Iterator<Item = (SessionId, u64, u64)>) {
        for (session, oldest, wanted) in asked {
            if wanted > oldest && wanted > self.answered.get() {
                self.answered.set(wanted);
                tracing::warn!(
                    session = session.number(),
                    "the pool's node waits for an operation of this session to go on: nobody has \
                     polled its future for long, and memory cannot be reused until it ends or is \
                     dropped"
                );
            }
        }
    }

    /// False: from now on the sessions fence by themselves, but this once nobody did.
    fn pass_barrier(&self) -> bool {
        match self.barrier {
            Barrier::OneThread => true,
            Barrier::Kernel => {
                let passed = rustix::thread::membarrier(MembarrierCommand::PrivateExpedited);
                // The sessions fence on their side; this is the keeper's side of it.
                std::sync::atomic::fence(Ordering::SeqCst);
                passed.is_ok() || self.note.needs_fence.swap(true, Ordering::SeqCst)
            }
        }
    }

    /// The number that operations see that begin now.
    pub fn seen(&self) -> SequenceNumber {
        self.note.sequence_after_note()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_executor::block_on;
    use farleaf_fabric::Control;
    use farleaf_fabric::mapped::MappedEndpoint;
    use farleaf_node::MemNode;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use farleaf_region::session::{SESSION_SIZE_WORDS, SessionRecord};

    /// A process without a thread: its ticks come when the test says so.
    struct Process {
        node: MemNode,
        share: PoolShare,
        keeper: ProcessKeeper<MappedEndpoint>,
    }

    impl Process {
        fn new() -> Self {
            let node = MemNode::start(4 << 20, None).expect("a node");
            let share = PoolShare::new("mem:".to_owned(), node.layout());
            let endpoint = MappedEndpoint::new(Arc::clone(node.region()));
            let keeper = ProcessKeeper::new(endpoint, &share, Barrier::Kernel);
            Self {
                node,
                share,
                keeper,
            }
        }

        fn register(&self) -> Arc<SessionNote> {
            let owner = self.node.register_session().expect("a session");
            self.share.process.add(owner)
        }

        /// The pool's number becomes this, and the process looks.
        fn tick_at(&self, sequence: u64) {
            let mut batch = Batch::new();
            batch.write_word(self.keeper.layout.sequence(), sequence);
            block_on(self.keeper.endpoint.execute(&mut batch), || 0).expect("a write");
            block_on(self.keeper.tick(), || 0).expect("a tick");
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
        let process = Process::new();
        process.tick_at(0);
        assert_eq!(process.keeper.seen(), SequenceNumber(0));
        process.tick_at(7);
        assert_eq!(process.keeper.seen(), SequenceNumber(7));
    }

    /// P3: the smaller of note and number is published, for each session its own; a session that
    /// does nothing is caught up, and one that is not behind is never ahead of the number.
    #[test]
    fn the_smaller_of_note_and_number_is_published() {
        let process = Process::new();
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

    /// S4: what the node asks for is told of once, and only if an operation is in the way.
    #[test]
    fn the_node_is_answered_once_for_each_number() {
        let process = Process::new();
        let [idle, behind] = [process.register(), process.register()];
        behind.set_oldest(SequenceNumber(3));
        let ask = |note: &SessionNote, wanted| {
            let (session, _) = note.owner.holder().expect("a session's word");
            let mut batch = Batch::new();
            batch.write_word(asked_addr(&process.keeper.layout, session), wanted);
            block_on(process.keeper.endpoint.execute(&mut batch), || 0).expect("a write");
            process.tick_at(9);
            process.keeper.answered.get()
        };
        assert_eq!(ask(&idle, 8), 0, "an idle session is caught up");
        assert_eq!(ask(&behind, 3), 0, "it has come so far");
        assert_eq!(ask(&behind, 5), 5);
        assert_eq!(ask(&behind, 5), 5);
        behind.set_idle();
        assert_eq!(ask(&behind, 9), 5);
    }

    /// Hearts beat with every tick, one beat for all sessions, and never with the number that says
    /// "drained".
    #[test]
    fn every_tick_is_a_heartbeat() {
        let process = Process::new();
        let notes = [process.register(), process.register()];
        process.tick_at(0);
        let first = process.record(&notes[0]).heartbeat;
        process.tick_at(0);
        let second = notes.each_ref().map(|note| process.record(note).heartbeat);
        assert_eq!(second, [first + 1, first + 1]);
        process.keeper.beat.set(HEARTBEAT_DRAINED - 1);
        process.tick_at(0);
        assert_ne!(process.record(&notes[0]).heartbeat, HEARTBEAT_DRAINED);
    }

    /// A session that has been removed is not written to again: its block may be another's by now.
    #[test]
    fn a_removed_session_is_left_alone() {
        let process = Process::new();
        let note = process.register();
        assert_eq!(note.oldest(), None, "a new session is idle");
        block_on(process.share.process.remove(&note), || 0);
        let before = process.record(&note);
        process.tick_at(4);
        let after = process.record(&note);
        assert_eq!(
            (after.published, after.heartbeat),
            (before.published, before.heartbeat)
        );
        assert_ne!(after.published, SequenceNumber(4));
    }

    /// Whoever removes a session while words are being written waits until they are.
    #[test]
    fn a_session_is_removed_between_ticks_only() {
        let process = Process::new();
        let note = process.register();
        let (publishing, sessions) = Publishing::begin(&process.keeper.followed);
        assert_eq!(sessions.len(), 1);
        let mut removal = pin!(process.share.process.remove(&note));
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..100 {
            assert!(removal.as_mut().poll(&mut context).is_pending());
        }
        drop(publishing);
        block_on(removal, || 0);
        assert!(process.share.process.followed().sessions.is_empty());
    }
}
