//! What a primary knows of one of its backups.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use farleaf_lsm::follow::Edit;
use farleaf_lsm::place::{LogNumber, LogPosition};

use crate::error::BackupId;
use crate::index_way::IndexWay;
use crate::mismatch::Mismatch;

/// A backup, or one that is being filled.
#[derive(Debug)]
pub(crate) struct Member<E> {
    pub(crate) id: BackupId,
    /// RP5, RP15: the log is still read from this segment on, to be sent, or to be compared.
    needed_from: AtomicU64,
    /// RP10: it has everything, and writes wait for it.
    is_filled: AtomicBool,
    /// RP6: nobody waits for it any more.
    is_given_up: AtomicBool,
    lost: OnceLock<String>,
    mismatch: OnceLock<Mismatch>,
    /// Edits that it has not got, oldest first.
    edits: Mutex<VecDeque<Arc<Edit>>>,
    pub(crate) index: Mutex<IndexWay<E>>,
    pub(crate) counters: LinkCounters,
}

/// What went to a backup.
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

impl<E> Member<E> {
    /// One that has nothing, for which no log segment is freed.
    pub(crate) fn new(id: BackupId, index: IndexWay<E>) -> Self {
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

    /// The log has been sent up to there.
    pub(crate) fn note_sent(&self, sent_to: LogPosition) {
        self.counters.sent_to.store(sent_to.0, Ordering::Relaxed);
    }

    /// RP15: the checksums of all segments before this one were compared.
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

    /// Why it is lost, if it is.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    pub(crate) fn note_lost(&self, how: &str) {
        self.lost.get_or_init(|| how.to_owned());
    }

    /// RP15: what it wrote is not what the primary wrote.
    pub(crate) fn note_mismatch(&self, found: &Mismatch) {
        self.mismatch.get_or_init(|| *found);
    }

    /// The first mismatch, if there was one.
    pub(crate) fn mismatch(&self) -> Option<Mismatch> {
        self.mismatch.get().copied()
    }

    pub(crate) fn edits(&self) -> MutexGuard<'_, VecDeque<Arc<Edit>>> {
        self.edits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a backup is doing, as its primary knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkStatus {
    /// Which.
    pub backup: BackupId,
    /// Why it is lost, if it is.
    pub lost: Option<String>,
    /// RP15: what it wrote that is not what the primary wrote, if it is lost because of that.
    pub mismatch: Option<Mismatch>,
    /// It has the log up to there in its buffers or on its device;
    pub sent_to: LogPosition,
    /// on its device, up to there, as far as it was heard;
    pub written_to: LogPosition,
    /// and durable, up to there.
    pub synced_to: LogPosition,
    /// Something is being brought to it now, or asked of it.
    pub is_being_asked: bool,
    /// Edits of the manifest that it has not got yet.
    pub edit_count: usize,
    /// Batches that brought it the log, and bytes of the log in them.
    pub round_count: u64,
    /// See there.
    pub log_size_bytes: u64,
    /// Requests, and bytes of trees and of the base's log that went before them.
    pub request_count: u64,
    /// See there.
    pub index_size_bytes: u64,
    /// RP14: bytes of the base that it had already.
    pub kept_size_bytes: u64,
}

impl<E> Member<E> {
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
            is_being_asked: matches!(self.index.try_lock(), Err(TryLockError::WouldBlock)),
            edit_count: self.edits().len(),
            round_count: load(&counters.round_count),
            log_size_bytes: load(&counters.log_size_bytes),
            request_count: load(&counters.request_count),
            index_size_bytes: load(&counters.index_size_bytes),
            kept_size_bytes: load(&counters.kept_size_bytes),
        }
    }
}
