//! Sends the log to one backup (REPLICATION-4, REPLICATION-5): WRITEs into its buffers, and polls
//! of its status words.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_base::WORD_SIZE_BYTES;
use farleaf_executor::backoff;
use farleaf_fabric::{Batch, BatchError, Endpoint};
use farleaf_lsm::LsmError;
use farleaf_lsm::log::ValueLog;
use farleaf_lsm::place::LogPosition;
use thiserror::Error;

use crate::backup_entry::BackupEntry;
use crate::epoch_state::EpochState;
use crate::error::Epoch;
use crate::layout::{Layout, STATUS_SIZE_WORDS, words_of};
use crate::mismatch::Mismatch;
use crate::receipt::{self, RECEIPT_SIZE_WORDS};
use crate::verified_acks::{BackupAck, VerifiedAcks};

/// Error of an access to a backup.
#[derive(Debug, Error)]
pub(crate) enum LogConnectionError {
    /// Another primary has taken over (REPLICATION-8).
    #[error("a primary of {0} has taken over")]
    Deposed(Epoch),
    #[error("{0}")]
    Batch(#[from] BatchError),
    #[error("it reports that it has failed")]
    Failed,
    #[error("it was declared lost or removed")]
    GivenUp,
    /// The backup wrote something else than the primary (REPLICATION-15).
    #[error("{0}")]
    Mismatch(#[from] Mismatch),
    #[error("it reports the log as written up to {0}, but only {1} was sent")]
    Beyond(LogPosition, LogPosition),
    /// The primary was stopped (REPLICATION-13).
    #[error("its primary has stopped")]
    Stopped,
    #[error("{0}")]
    Own(#[from] LsmError),
}

impl LogConnectionError {
    /// Returns the severity; of several failures the highest counts. A takeover by another primary
    /// outweighs a lost backup, and both outweigh a stop.
    pub(crate) const fn weight(&self) -> u8 {
        match self {
            Self::Deposed(_) => 2,
            Self::Stopped => 0,
            _ => 1,
        }
    }
}

/// Connection to one backup's log buffers. One thread at a time uses it.
#[derive(Debug)]
pub(crate) struct LogConnection<E> {
    pub(crate) endpoint: E,
    pub(crate) sender: LogSendState<E>,
}

/// State of the log buffers, apart from the endpoint.
#[derive(Debug)]
pub(crate) struct LogSendState<E> {
    pub(crate) backup_entry: Arc<BackupEntry<E>>,
    layout: Layout,
    epoch_state: Arc<EpochState>,
    /// Epoch that the backup had at the last poll and is expected to have.
    epoch: Epoch,
    log: Arc<ValueLog>,
    verified_acks: VerifiedAcks,
    batch: Batch,
    bytes: Vec<u8>,
    words: Vec<u64>,
}

impl<E: Endpoint> LogConnection<E> {
    /// Creates the connection to a backup that has everything before a position, which is the start
    /// of a segment.
    pub(crate) fn new(
        endpoint: E,
        layout: Layout,
        epoch: Epoch,
        epoch_state: Arc<EpochState>,
        backup_entry: Arc<BackupEntry<E>>,
        log: Arc<ValueLog>,
        from: LogPosition,
    ) -> Self {
        backup_entry.note_sent(from);
        backup_entry.note_verified(from.number());
        let sender = LogSendState {
            backup_entry,
            layout,
            epoch_state,
            epoch,
            log,
            verified_acks: VerifiedAcks::new(from),
            batch: Batch::new(),
            bytes: Vec::new(),
            words: Vec::new(),
        };
        Self { endpoint, sender }
    }
}

impl<E: Endpoint> LogSendState<E> {
    pub(crate) const fn sent_to(&self) -> LogPosition {
        self.verified_acks.sent_to()
    }

    pub(crate) const fn synced_to(&self) -> LogPosition {
        self.verified_acks.synced_to()
    }

    /// Returns the epoch that the backup is expected to have.
    pub(crate) const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Raises the backup's epoch, unless the backup is lost (REPLICATION-12). Costs one batch.
    pub(crate) async fn raise(
        &mut self,
        endpoint: &E,
        to: Epoch,
    ) -> Result<(), LogConnectionError> {
        if self.backup_entry.is_given_up() {
            return Err(LogConnectionError::GivenUp);
        }
        // Nothing is acknowledged before a lost backup is removed, whatever its epoch word is
        // (REPLICATION-6).
        if self.backup_entry.lost().is_none() {
            self.batch.clear();
            let found = self
                .batch
                .compare_swap(self.layout.epoch(), self.epoch.0, to.0);
            endpoint.execute(&mut self.batch).await?;
            let found = Epoch(self.batch.previous(found));
            if found != self.epoch && found != to {
                return Err(LogConnectionError::Deposed(found));
            }
        }
        self.epoch = to;
        Ok(())
    }

    /// Sends the log up to `end`. Costs one batch for each segment, and polls of the written
    /// position while the backup has no free buffer.
    pub(crate) async fn send_to(
        &mut self,
        endpoint: &E,
        target: LogPosition,
    ) -> Result<(), LogConnectionError> {
        while self.sent_to() < target {
            self.wait_for_buffer(endpoint).await?;
            // WRITEs consist of whole words, so the preceding bytes of the first word are sent
            // again.
            let from = LogPosition(self.sent_to().0 & !7);
            let mut bytes = core::mem::take(&mut self.bytes);
            let read = self.log.read_raw(from, &mut bytes);
            let size_bytes = bytes.len() as u64;
            bytes.resize(bytes.len().next_multiple_of(WORD_SIZE_BYTES as usize), 0);
            self.bytes = bytes;
            let next = read?;
            self.batch.clear();
            let words = words_of(&self.bytes, &mut self.words);
            self.batch.write(self.layout.log_word(from), words);
            let closed = (next.number() > from.number()).then(|| {
                let number = from.number();
                (number, (from.offset() as u64 + size_bytes) as u32)
            });
            if let Some((number, size_bytes)) = closed {
                let words = [number.0, u64::from(size_bytes)];
                self.batch.write(self.layout.closed(number), &words);
            }
            self.batch.write_word(self.layout.log_end(), next.0);
            self.verified_acks.note_sending(next);
            self.execute(endpoint).await?;
            self.verified_acks.note_sent(next, closed);
            self.backup_entry.note_sent(next);
            let counters = &self.backup_entry.counters;
            counters.round_count.fetch_add(1, Ordering::Relaxed);
            counters
                .log_size_bytes
                .fetch_add(size_bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Waits until the buffer of the next segment is free (REPLICATION-4).
    async fn wait_for_buffer(&mut self, endpoint: &E) -> Result<(), LogConnectionError> {
        let number = self.sent_to().number();
        let mut attempt = 0;
        while !self.layout.is_free(number, self.verified_acks.written_to()) {
            self.poll(endpoint).await?;
            if self.layout.is_free(number, self.verified_acks.written_to()) {
                break;
            }
            backoff(attempt).await;
            attempt += 1;
        }
        Ok(())
    }

    /// Polls the backup's status words and epoch. Costs one batch.
    pub(crate) async fn poll(&mut self, endpoint: &E) -> Result<(), LogConnectionError> {
        self.batch.clear();
        self.execute(endpoint).await
    }

    /// Requests that the log up to a position is made durable. Costs one batch.
    pub(crate) async fn ask_for_sync(
        &mut self,
        endpoint: &E,
        to: LogPosition,
    ) -> Result<(), LogConnectionError> {
        self.batch.clear();
        self.batch.write_word(self.layout.sync_wanted(), to.0);
        self.execute(endpoint).await
    }

    /// Executes the batch with a final CAS. The batch counts only if the CAS finds the primary's
    /// epoch (REPLICATION-8).
    async fn execute(&mut self, endpoint: &E) -> Result<(), LogConnectionError> {
        if self.backup_entry.is_given_up() {
            return Err(LogConnectionError::GivenUp);
        }
        // Waiting for a backup that hangs ends with a stop.
        if self.epoch_state.is_stopped() {
            return Err(LogConnectionError::Stopped);
        }
        let epoch = self.epoch.0;
        let found = self.batch.compare_swap(self.layout.epoch(), epoch, epoch);
        let status = self.batch.read(self.layout.status(), STATUS_SIZE_WORDS);
        let requested = self.verified_acks.requested();
        let receipts = requested.map(|number| {
            let at = self.layout.receipt(number);
            self.batch.read(at, RECEIPT_SIZE_WORDS)
        });
        let receipts: Vec<_> = receipts.collect();
        endpoint.execute(&mut self.batch).await?;
        let found = self.batch.previous(found);
        if found != epoch {
            return Err(LogConnectionError::Deposed(Epoch(found)));
        }
        let [written_to, failed, ref synced @ ..] = *self.batch.words(status) else {
            unreachable!("so many were read");
        };
        if failed != 0 {
            return Err(LogConnectionError::Failed);
        }
        let said = BackupAck {
            written_to: LogPosition(written_to),
            synced: receipt::decode(synced),
            closed: receipts
                .into_iter()
                .map(|slot| receipt::decode(self.batch.words(slot)))
                .collect(),
        };
        let taken = self.verified_acks.take(&self.log, &said);
        if let Err(LogConnectionError::Mismatch(mismatch)) = &taken {
            self.backup_entry.note_mismatch(mismatch);
        }
        self.backup_entry
            .note_verified(self.verified_acks.verified());
        let counters = &self.backup_entry.counters;
        let written_to = self.verified_acks.written_to().0;
        counters.written_to.store(written_to, Ordering::Relaxed);
        let synced_to = self.verified_acks.synced_to().0;
        counters.synced_to.store(synced_to, Ordering::Relaxed);
        taken
    }
}
