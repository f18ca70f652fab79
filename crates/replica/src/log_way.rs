//! The log's way to one backup (RP4, RP5): WRITEs into its buffers, and looks at what it says.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_executor::backoff;
use farleaf_fabric::{Batch, BatchError, Endpoint};
use farleaf_lsm::LsmError;
use farleaf_lsm::log::ValueLog;
use farleaf_lsm::place::LogPosition;
use thiserror::Error;

use crate::error::Epoch;
use crate::layout::{Layout, STATUS_SIZE_WORDS, to_words};
use crate::member::Member;
use crate::standing::Standing;

/// Why a backup was not reached.
#[derive(Debug, Error)]
pub(crate) enum WayError {
    /// RP8.
    #[error("one of {0} has taken over")]
    Deposed(Epoch),
    #[error("{0}")]
    Batch(#[from] BatchError),
    #[error("it says that it has failed")]
    Failed,
    #[error("it was given up")]
    GivenUp,
    /// RP13.
    #[error("its primary has stopped")]
    Stopped,
    #[error("{0}")]
    Own(#[from] LsmError),
}

impl WayError {
    /// Of several at once, the one with the most counts: that another primary has taken over is
    /// worse than that a backup is lost, and both are more than that this primary has stopped.
    pub(crate) const fn weight(&self) -> u8 {
        match self {
            Self::Deposed(_) => 2,
            Self::Stopped => 0,
            _ => 1,
        }
    }
}

/// The way to one backup's buffers. Used by one thread at a time.
#[derive(Debug)]
pub(crate) struct LogWay<E> {
    pub(crate) endpoint: E,
    pub(crate) sender: Sender<E>,
}

/// What is known of the buffers, beside the way there.
#[derive(Debug)]
pub(crate) struct Sender<E> {
    pub(crate) member: Arc<Member<E>>,
    layout: Layout,
    standing: Arc<Standing>,
    /// The one that the backup had when it was last looked at, and is to have.
    epoch: Epoch,
    sent_to: LogPosition,
    written_to: LogPosition,
    synced_to: LogPosition,
    batch: Batch,
    bytes: Vec<u8>,
    words: Vec<u64>,
}

impl<E: Endpoint> LogWay<E> {
    /// To a backup that has everything before a place, where a segment begins.
    pub(crate) fn new(
        endpoint: E,
        (layout, epoch, standing): (Layout, Epoch, Arc<Standing>),
        member: Arc<Member<E>>,
        from: LogPosition,
    ) -> Self {
        member.note_sent(from);
        let sender = Sender {
            member,
            layout,
            standing,
            epoch,
            sent_to: from,
            written_to: from,
            synced_to: from,
            batch: Batch::new(),
            bytes: Vec::new(),
            words: Vec::new(),
        };
        Self { endpoint, sender }
    }
}

impl<E: Endpoint> Sender<E> {
    pub(crate) const fn sent_to(&self) -> LogPosition {
        self.sent_to
    }

    pub(crate) const fn synced_to(&self) -> LogPosition {
        self.synced_to
    }

    /// The epoch that the backup is to have.
    pub(crate) const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// RP12: changes the backup's epoch to a later one, if it is not lost. One batch.
    pub(crate) async fn raise(&mut self, endpoint: &E, to: Epoch) -> Result<(), WayError> {
        if self.member.is_given_up() {
            return Err(WayError::GivenUp);
        }
        // RP6: nothing is acknowledged before it is removed, whatever its word is.
        if self.member.lost().is_none() {
            self.batch.clear();
            let found = self
                .batch
                .compare_swap(self.layout.epoch(), self.epoch.0, to.0);
            endpoint.execute(&mut self.batch).await?;
            let found = Epoch(self.batch.previous(found));
            if found != self.epoch && found != to {
                return Err(WayError::Deposed(found));
            }
        }
        self.epoch = to;
        Ok(())
    }

    /// Brings the log up to a place that it has come to. One batch for each segment, and looks at
    /// what the backup has written where that has no buffer free.
    pub(crate) async fn send_to(
        &mut self,
        endpoint: &E,
        log: &ValueLog,
        target: LogPosition,
    ) -> Result<(), WayError> {
        while self.sent_to < target {
            self.wait_for_buffer(endpoint).await?;
            // Words are what is written, so the bytes before go along, as they are.
            let from = LogPosition(self.sent_to.0 & !7);
            let mut bytes = core::mem::take(&mut self.bytes);
            let read = log.read_raw(from, &mut bytes);
            to_words(&bytes, &mut self.words);
            let size_bytes = bytes.len() as u64;
            self.bytes = bytes;
            let next = read?;
            self.batch.clear();
            self.batch.write(self.layout.log_word(from), &self.words);
            self.batch.write_word(self.layout.log_end(), next.0);
            self.execute(endpoint).await?;
            self.sent_to = next;
            self.member.note_sent(next);
            let counters = &self.member.counters;
            counters.round_count.fetch_add(1, Ordering::Relaxed);
            counters
                .log_size_bytes
                .fetch_add(size_bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// RP4: the buffer of the segment that comes next is free.
    async fn wait_for_buffer(&mut self, endpoint: &E) -> Result<(), WayError> {
        let number = self.sent_to.number();
        let mut attempt = 0;
        while !self.layout.is_free(number, self.written_to) {
            self.look(endpoint).await?;
            if self.layout.is_free(number, self.written_to) {
                break;
            }
            backoff(attempt).await;
            attempt += 1;
        }
        Ok(())
    }

    /// Looks how far the backup is, and that nobody has taken over. One batch.
    pub(crate) async fn look(&mut self, endpoint: &E) -> Result<(), WayError> {
        self.batch.clear();
        self.execute(endpoint).await
    }

    /// Wishes that the log up to a place is made durable. One batch.
    pub(crate) async fn ask_for_sync(
        &mut self,
        endpoint: &E,
        to: LogPosition,
    ) -> Result<(), WayError> {
        self.batch.clear();
        self.batch.write_word(self.layout.sync_wanted(), to.0);
        self.execute(endpoint).await
    }

    /// RP8: behind everything else, a batch finds its primary's epoch, or counts for nothing.
    async fn execute(&mut self, endpoint: &E) -> Result<(), WayError> {
        if self.member.is_given_up() {
            return Err(WayError::GivenUp);
        }
        // Who waits for a backup that hangs does not wait for ever.
        if self.standing.is_stopped() {
            return Err(WayError::Stopped);
        }
        let epoch = self.epoch.0;
        let found = self.batch.compare_swap(self.layout.epoch(), epoch, epoch);
        let status = self.batch.read(self.layout.status(), STATUS_SIZE_WORDS);
        endpoint.execute(&mut self.batch).await?;
        let found = self.batch.previous(found);
        if found != epoch {
            return Err(WayError::Deposed(Epoch(found)));
        }
        let [written_to, synced_to, failed] = *self.batch.words(status) else {
            unreachable!("so many were read");
        };
        if failed != 0 {
            return Err(WayError::Failed);
        }
        // Words that race are each whole; and neither goes back.
        self.written_to = self.written_to.max(LogPosition(written_to));
        self.synced_to = self.synced_to.max(LogPosition(synced_to));
        let counters = &self.member.counters;
        counters
            .written_to
            .store(self.written_to.0, Ordering::Relaxed);
        counters
            .synced_to
            .store(self.synced_to.0, Ordering::Relaxed);
        Ok(())
    }
}
