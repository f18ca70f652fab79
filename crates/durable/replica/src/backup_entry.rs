//! The primary's state of one of its backups.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use farleaf_lsm::follow::Edit;
use farleaf_lsm::place::{LogNumber, LogPosition};

use crate::error::BackupId;
use crate::index_connection::IndexConnection;
use crate::mismatch::Mismatch;

/// A backup, possibly still being filled.
#[derive(Debug)]
pub(crate) struct BackupEntry<E> {
    pub(crate) id: BackupId,
    /// First log segment that is still read, to be sent or compared (REPLICATION-5,
    /// REPLICATION-15).
    needed_from: AtomicU64,
    /// Whether the backup has everything, so that writes wait for it (REPLICATION-10).
    is_filled: AtomicBool,
    /// Whether the primary no longer waits for the backup (REPLICATION-6).
    is_given_up: AtomicBool,
    lost: OnceLock<String>,
    mismatch: OnceLock<Mismatch>,
    /// Edits that the backup lacks, oldest first.
    edits: Mutex<VecDeque<Arc<Edit>>>,
    pub(crate) index: Mutex<IndexConnection<E>>,
    pub(crate) counters: LinkCounters,
}

/// Counters of what was sent to a backup.
#[derive(Debug, Default)]
pub(crate) struct LinkCounters {
    pub(crate) sent_to: AtomicU64,
    pub(crate) written_to: AtomicU64,
    pub(crate) synced_to: AtomicU64,
    pub(crate) round_count: AtomicU64,
    pub(crate) log_size_bytes: AtomicU64,
    pub(crate) request_count: AtomicU64,
    pub(crate) index_size_bytes: AtomicU64,
    pub(crate) kept_size_bytes: AtomicU64,
}

impl<E> BackupEntry<E> {
    /// Creates the entry of a backup that has nothing, and for which no log segment is retained.
    pub(crate) fn new(id: BackupId, index: IndexConnection<E>) -> Self {
        Self {
            id,
            needed_from: AtomicU64::new(0),
            is_filled: AtomicBool::new(false),
            is_given_up: AtomicBool::new(false),
            lost: OnceLock::new(),
            mismatch: OnceLock::new(),
            edits: Mutex::default(),
            index: Mutex::new(index),
            counters: LinkCounters::default(),
        }
    }

    pub(crate) fn needed_from(&self) -> LogNumber {
        LogNumber(self.needed_from.load(Ordering::Acquire))
    }

    /// Notes that the log was sent up to a position.
    pub(crate) fn note_sent(&self, sent_to: LogPosition) {
        self.counters.sent_to.store(sent_to.0, Ordering::Relaxed);
    }

    /// Notes that the checksums of all segments before this one were compared (REPLICATION-15).
    pub(crate) fn note_verified(&self, verified: LogNumber) {
        self.needed_from.store(verified.0, Ordering::Release);
    }

    pub(crate) fn note_filled(&self) {
        self.is_filled.store(true, Ordering::Release);
    }

    pub(crate) fn is_filled(&self) -> bool {
        self.is_filled.load(Ordering::Acquire)
    }

    pub(crate) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Release);
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Acquire)
    }

    /// Returns why the backup is lost, if it is.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    pub(crate) fn note_lost(&self, how: &str) {
        self.lost.get_or_init(|| how.to_owned());
    }

    /// Notes that the backup wrote something else than the primary (REPLICATION-15).
    pub(crate) fn note_mismatch(&self, found: &Mismatch) {
        self.mismatch.get_or_init(|| *found);
    }

    /// Returns the first mismatch, if there was one.
    pub(crate) fn mismatch(&self) -> Option<Mismatch> {
        self.mismatch.get().copied()
    }

    pub(crate) fn edits(&self) -> MutexGuard<'_, VecDeque<Arc<Edit>>> {
        self.edits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Status of a backup, as its primary knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkStatus {
    /// Identifier of the backup.
    pub backup: BackupId,
    /// Reason why the backup is lost, if it is.
    pub lost: Option<String>,
    /// The difference between backup and primary, if the backup is lost because of one
    /// (REPLICATION-15).
    pub mismatch: Option<Mismatch>,
    /// Log position up to which the backup has the log in its buffers or on its device.
    pub sent_to: LogPosition,
    /// Log position up to which the backup has reported the log as written to its device.
    pub written_to: LogPosition,
    /// Log position up to which the backup has reported the log as durable.
    pub synced_to: LogPosition,
    /// Whether a request to the backup is in progress.
    pub has_pending_request: bool,
    /// Number of manifest edits that the backup lacks.
    pub edit_count: usize,
    /// Number of batches with log that were sent to the backup.
    pub round_count: u64,
    /// Bytes of log that were sent to the backup.
    pub log_size_bytes: u64,
    /// Number of requests sent to the backup.
    pub request_count: u64,
    /// Bytes of trees and of the base's log that were sent with requests.
    pub index_size_bytes: u64,
    /// Bytes of the base that the backup already had (REPLICATION-14).
    pub kept_size_bytes: u64,
}

impl<E> BackupEntry<E> {
    pub(crate) fn status(&self) -> LinkStatus {
        let counters = &self.counters;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LinkStatus {
            backup: self.id,
            lost: self.lost().map(str::to_owned),
            mismatch: self.mismatch(),
            sent_to: LogPosition(load(&counters.sent_to)),
            written_to: LogPosition(load(&counters.written_to)),
            synced_to: LogPosition(load(&counters.synced_to)),
            has_pending_request: matches!(self.index.try_lock(), Err(TryLockError::WouldBlock)),
            edit_count: self.edits().len(),
            round_count: load(&counters.round_count),
            log_size_bytes: load(&counters.log_size_bytes),
            request_count: load(&counters.request_count),
            index_size_bytes: load(&counters.index_size_bytes),
            kept_size_bytes: load(&counters.kept_size_bytes),
        }
    }
}
