//! One tick of the process's background work for all its sessions: heartbeats and publication.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use farleaf_base::{SequenceNumber, SessionId};
use farleaf_fabric::{Batch, BatchError, Endpoint, OperationKind};
use farleaf_pool::PoolLayout;
use farleaf_pool::session::{
    HEARTBEAT_DRAINED, awaited_sequence_addr, heartbeat_addr, published_addr,
};
use rustix::thread::MembarrierCommand;

use super::{ProcessNote, PublishedSessions, SessionNote};
use crate::host::PoolShare;

/// Verbs of a tick for each session: two WRITEs, one READ.
const VERBS_PER_SESSION: usize = 3;

/// Method by which every thread of a process is made to pass a memory barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// The kernel makes the threads pass a barrier, if it can; else each operation executes a
    /// fence.
    Kernel,
    /// No barrier: sessions and keeper run on one thread.
    OneThread,
}

/// Reads new sequence numbers, and publishes for the sessions how far they have caught up.
#[derive(Debug)]
pub struct SequencePublisher<E> {
    endpoint: E,
    layout: PoolLayout,
    note: Arc<ProcessNote>,
    followed: Arc<Mutex<PublishedSessions>>,
    beat: Cell<u64>,
    /// Largest number that the node has requested and that has been reported.
    reported_number: Cell<u64>,
    barrier: Barrier,
}

/// Guard that exists while words are being written for sessions.
struct PublishGuard<'a>(&'a Mutex<PublishedSessions>);

impl<'a> PublishGuard<'a> {
    fn begin(followed: &'a Mutex<PublishedSessions>) -> (Self, Vec<Arc<SessionNote>>) {
        let mut list = followed.lock().unwrap_or_else(PoisonError::into_inner);
        list.is_publishing = true;
        (Self(followed), list.sessions.clone())
    }
}

impl Drop for PublishGuard<'_> {
    fn drop(&mut self) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.is_publishing = false;
    }
}

impl<E: Endpoint> SequencePublisher<E> {
    /// Creates the keeper of a process, which has its own endpoint. A process has only one.
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
            reported_number: Cell::new(0),
            barrier,
        }
    }

    /// Returns the keeper's endpoint.
    pub fn endpoint(&self) -> &E {
        &self.endpoint
    }

    /// Reads the sequence number, publishes and writes a heartbeat for each session. Costs two
    /// round trips, and one more if the number has changed.
    ///
    /// # Errors
    /// The fabric failed; nothing was published, or only for some sessions.
    pub async fn tick(&self) -> Result<(), BatchError> {
        self.beat.set((self.beat.get() + 1) % HEARTBEAT_DRAINED);
        let mut batch = Batch::new();
        let ticked = self.poll_and_publish(&mut batch).await;
        let counters = self.endpoint.counters();
        counters.record(OperationKind::Control, &batch.take_cost());
        ticked
    }

    async fn poll_and_publish(&self, batch: &mut Batch) -> Result<(), BatchError> {
        let read = batch.read(self.layout.sequence(), 1);
        self.endpoint.execute(batch).await?;
        let sequence = batch.words(read)[0];
        if sequence != self.note.sequence.load(Ordering::Relaxed) {
            // A client that sees a sequence number must know the states of the nodes at the time
            // when it was drawn.
            let members = self.layout.members();
            members.refresh(&self.endpoint, &self.layout).await?;
        }
        // In this order: store the number, pass the barrier, read the notes.
        self.note.sequence.store(sequence, Ordering::SeqCst);
        if !self.pass_barrier() {
            return Ok(());
        }
        // Removing a session waits until this ends, and nothing is written to it after that.
        let (_publishing, sessions) = PublishGuard::begin(&self.followed);
        batch.clear();
        let mut asked = Vec::new();
        for session in sessions {
            let Some((id, _)) = session.owner.holder() else {
                continue;
            };
            let oldest = session.oldest_unfinished.load(Ordering::Acquire);
            batch.write_word(published_addr(&self.layout, id), oldest.min(sequence));
            batch.write_word(heartbeat_addr(&self.layout, id), self.beat.get());
            let read = batch.read(awaited_sequence_addr(&self.layout, id), 1);
            asked.push((session, id, oldest, read));
        }
        if let Err(error) = self.endpoint.execute(batch).await {
            let refused = asked.get(error.executed_verb_count() / VERBS_PER_SESSION);
            if let Some((session, ..)) = refused.filter(|_| error.is_forbidden()) {
                self.stop_publishing(session);
                return Ok(());
            }
            return Err(error);
        }
        let asked = asked.into_iter();
        self.answer(asked.map(|(_, id, oldest, read)| (id, oldest, batch.words(read)[0])));
        Ok(())
    }

    /// Stops publishing for a session whose block belongs to another process now (FABRIC-7), so
    /// this session has been fenced. The session notices that itself; the others are published for
    /// at the next tick.
    fn stop_publishing(&self, session: &Arc<SessionNote>) {
        let mut list = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        list.sessions.retain(|other| !Arc::ptr_eq(other, session));
    }

    /// Logs once for each requested number which operation prevents memory from being reused.
    fn answer(&self, asked: impl Iterator<Item = (SessionId, u64, u64)>) {
        for (session, oldest, wanted) in asked {
            if wanted > oldest && wanted > self.reported_number.get() {
                self.reported_number.set(wanted);
                tracing::warn!(
                    session = session.number(),
                    "the pool cannot reuse memory until an operation of this session ends or is \
                     dropped: its future has not been polled for a long time"
                );
            }
        }
    }

    /// Returns false if no barrier was passed. The sessions then execute fences from now on, but
    /// have not yet for this number.
    fn pass_barrier(&self) -> bool {
        match self.barrier {
            Barrier::OneThread => true,
            Barrier::Kernel => {
                let passed = rustix::thread::membarrier(MembarrierCommand::PrivateExpedited);
                // The keeper's fence, which pairs with those of the sessions.
                std::sync::atomic::fence(Ordering::SeqCst);
                passed.is_ok() || self.note.needs_fence.swap(true, Ordering::SeqCst)
            }
        }
    }

    /// Returns the number at which new operations begin.
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

    use farleaf_pool::session::{SESSION_SIZE_WORDS, SessionRecord};

    /// Process without a thread: the test runs its ticks.
    struct Process {
        node: MemNode,
        share: PoolShare,
        publisher: SequencePublisher<MappedEndpoint>,
    }

    impl Process {
        fn new() -> Self {
            let node = MemNode::start(4 << 20, None).expect("a node");
            let share = PoolShare::new("mem:".to_owned(), node.layout());
            let endpoint = MappedEndpoint::new(Arc::clone(node.memory()));
            let publisher = SequencePublisher::new(endpoint, &share, Barrier::Kernel);
            Self {
                node,
                share,
                publisher,
            }
        }

        fn register(&self) -> Arc<SessionNote> {
            let owner = self.node.register_session().expect("a session");
            self.share.process.add(owner)
        }

        /// Sets the pool's sequence number and runs a tick.
        fn tick_at(&self, sequence: u64) {
            let mut batch = Batch::new();
            batch.write_word(self.publisher.layout.sequence(), sequence);
            block_on(self.publisher.endpoint.execute(&mut batch), || 0).expect("a write");
            block_on(self.publisher.tick(), || 0).expect("a tick");
        }

        fn record(&self, note: &SessionNote) -> SessionRecord {
            let (session, _) = note.owner.holder().expect("a session's word");
            let mut batch = Batch::new();
            let block = self.publisher.layout.session(session);
            let read = batch.read(block, SESSION_SIZE_WORDS);
            block_on(self.publisher.endpoint.execute(&mut batch), || 0).expect("a read");
            SessionRecord::decode(batch.words(read).try_into().expect("a block"))
        }

        fn published(&self, note: &SessionNote) -> u64 {
            self.record(note).published.0
        }
    }

    /// Promise: operations that begin after a tick see the number that the tick has read.
    #[test]
    fn a_tick_shows_the_sessions_the_new_number() {
        let process = Process::new();
        process.tick_at(0);
        assert_eq!(process.publisher.seen(), SequenceNumber(0));
        process.tick_at(7);
        assert_eq!(process.publisher.seen(), SequenceNumber(7));
    }

    /// Promise: a tick publishes for each session the smaller of note and number. An idle session
    /// catches up, and no session is ahead of the number.
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

    /// Promise: a requested number is reported once, and only if an operation prevents reuse.
    #[test]
    fn the_node_is_answered_once_for_each_number() {
        let process = Process::new();
        let [idle, behind] = [process.register(), process.register()];
        behind.set_oldest(SequenceNumber(3));
        let ask = |note: &SessionNote, wanted| {
            let (session, _) = note.owner.holder().expect("a session's word");
            let mut batch = Batch::new();
            batch.write_word(
                awaited_sequence_addr(&process.publisher.layout, session),
                wanted,
            );
            block_on(process.publisher.endpoint.execute(&mut batch), || 0).expect("a write");
            process.tick_at(9);
            process.publisher.reported_number.get()
        };
        assert_eq!(ask(&idle, 8), 0, "an idle session is caught up");
        assert_eq!(ask(&behind, 3), 0, "it has come so far");
        assert_eq!(ask(&behind, 5), 5);
        assert_eq!(ask(&behind, 5), 5);
        behind.set_idle();
        assert_eq!(ask(&behind, 9), 5);
    }

    /// Promise: each tick writes one heartbeat for all sessions, never the number that means
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
        process.publisher.beat.set(HEARTBEAT_DRAINED - 1);
        process.tick_at(0);
        assert_ne!(process.record(&notes[0]).heartbeat, HEARTBEAT_DRAINED);
    }

    /// Promise: nothing is written to a removed session, whose block may belong to another one by
    /// now.
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

    /// Promise: removing a session waits until a running tick has written its words.
    #[test]
    fn a_session_is_removed_between_ticks_only() {
        let process = Process::new();
        let note = process.register();
        let (publishing, sessions) = PublishGuard::begin(&process.publisher.followed);
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
