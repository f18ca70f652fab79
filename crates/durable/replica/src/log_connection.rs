//! The log's way to one backup (RP4, RP5): WRITEs into its buffers, and looks at what it says.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_executor::backoff;
use farleaf_fabric::{Batch, BatchError, Endpoint};
use farleaf_lsm::LsmError;
use farleaf_lsm::log::ValueLog;
use farleaf_lsm::place::LogPosition;
use thiserror::Error;

use crate::agreement::{Acknowledged, Agreement};
use crate::error::Epoch;
use crate::layout::{Layout, STATUS_SIZE_WORDS, to_words};
use crate::member::Member;
use crate::mismatch::Mismatch;
use crate::receipt::{self, RECEIPT_SIZE_WORDS};
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
    /// RP15.
    #[error("{0}")]
    Mismatch(#[from] Mismatch),
    #[error("it says that it has written the log up to {0}, which was sent up to {1}")]
    Beyond(LogPosition, LogPosition),
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
    log: Arc<ValueLog>,
    agreement: Agreement,
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
        (log, from): (Arc<ValueLog>, LogPosition),
    ) -> Self {
        member.note_sent(from);
        member.note_verified(from.number());
        let sender = Sender {
            member,
            layout,
            standing,
            epoch,
            log,
            agreement: Agreement::new(from),
            batch: Batch::new(),
            bytes: Vec::new(),
            words: Vec::new(),
        };
        Self { endpoint, sender }
    }
}

impl<E: Endpoint> Sender<E> {
    pub(crate) const fn sent_to(&self) -> LogPosition {
        self.agreement.sent_to()
    }

    pub(crate) const fn synced_to(&self) -> LogPosition {
        self.agreement.synced_to()
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
        target: LogPosition,
    ) -> Result<(), WayError> {
        while self.sent_to() < target {
            self.wait_for_buffer(endpoint).await?;
            // Words are what is written, so the bytes before go along, as they are.
            let from = LogPosition(self.sent_to().0 & !7);
            let mut bytes = core::mem::take(&mut self.bytes);
            let read = self.log.read_raw(from, &mut bytes);
            to_words(&bytes, &mut self.words);
            let size_bytes = bytes.len() as u64;
            self.bytes = bytes;
            let next = read?;
            self.batch.clear();
            self.batch.write(self.layout.log_word(from), &self.words);
            let closed = (next.number() > from.number()).then(|| {
                let number = from.number();
                (number, (from.offset() as u64 + size_bytes) as u32)
            });
            if let Some((number, size_bytes)) = closed {
                let words = [number.0, u64::from(size_bytes)];
                self.batch.write(self.layout.closed(number), &words);
            }
            self.batch.write_word(self.layout.log_end(), next.0);
            self.agreement.note_sending(next);
            self.execute(endpoint).await?;
            self.agreement.note_sent(next, closed);
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
        let number = self.sent_to().number();
        let mut attempt = 0;
        while !self.layout.is_free(number, self.agreement.written_to()) {
            self.look(endpoint).await?;
            if self.layout.is_free(number, self.agreement.written_to()) {
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
        let asked = self.agreement.asked();
        let receipts = asked.map(|number| {
            let at = self.layout.receipt(number);
            self.batch.read(at, RECEIPT_SIZE_WORDS)
        });
        let receipts: Vec<_> = receipts.collect();
        endpoint.execute(&mut self.batch).await?;
        let found = self.batch.previous(found);
        if found != epoch {
            return Err(WayError::Deposed(Epoch(found)));
        }
        let [written_to, failed, ref synced @ ..] = *self.batch.words(status) else {
            unreachable!("so many were read");
        };
        if failed != 0 {
            return Err(WayError::Failed);
        }
        let said = Acknowledged {
            written_to: LogPosition(written_to),
            synced: receipt::decode(synced),
            closed: receipts
                .into_iter()
                .map(|slot| receipt::decode(self.batch.words(slot)))
                .collect(),
        };
        let taken = self.agreement.take(&self.log, &said);
        if let Err(WayError::Mismatch(mismatch)) = &taken {
            self.member.note_mismatch(mismatch);
        }
        self.member.note_verified(self.agreement.verified());
        let counters = &self.member.counters;
        let written_to = self.agreement.written_to().0;
        counters.written_to.store(written_to, Ordering::Relaxed);
        let synced_to = self.agreement.synced_to().0;
        counters.synced_to.store(synced_to, Ordering::Relaxed);
        taken
    }
}
