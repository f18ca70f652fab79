//! State that the threads of a run share: meters, the first failure, and shutdown.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use farleaf_lsm::engine::WorkCounts;
use farleaf_replica::BackupCounts;
use serde::Serialize;

use super::error::ReplicationError;
use super::processor::PartMeter;
use super::traffic::Traffic;

/// Number of servers: each is primary of one half of the regions, and backup of the other half.
pub(super) const SERVER_COUNT: usize = 2;

/// Time between two checks whether all background work is done.
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// State that the threads of a run share.
#[derive(Debug)]
pub(super) struct ReplicationRunState {
    pub(super) meter: PartMeter,
    pub(super) log_traffic: Arc<Traffic>,
    pub(super) index_traffic: Arc<Traffic>,
    first: Mutex<Option<ReplicationError>>,
    has_failed: AtomicBool,
    /// Shutdown flags: background work of primaries ends first, then that of backups.
    pub(super) is_over: [AtomicBool; 2],
    /// Number of consecutive passes without work, for each background thread of primaries and of
    /// backups.
    quiet: [Vec<AtomicU64>; 2],
    /// Number of passes with work.
    busy_count: AtomicU64,
    /// Work that backups have done, by region.
    backups: Vec<Mutex<BackupCounts>>,
}

/// Role of a background thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Primaries,
    Backups,
}

impl ReplicationRunState {
    /// Creates the state for this many regions, and threads of each role.
    pub(super) fn new(region_count: usize, thread_count: usize) -> Self {
        let quiet = || (0..thread_count).map(|_| AtomicU64::new(0)).collect();
        Self {
            meter: PartMeter::default(),
            log_traffic: Arc::default(),
            index_traffic: Arc::default(),
            first: Mutex::new(None),
            has_failed: AtomicBool::new(false),
            is_over: Default::default(),
            quiet: [quiet(), quiet()],
            busy_count: AtomicU64::new(0),
            backups: (0..region_count).map(|_| Mutex::default()).collect(),
        }
    }

    /// Records a failure; the first one ends the run.
    pub(super) fn fail(&self, error: ReplicationError) {
        locked(&self.first).get_or_insert(error);
        self.has_failed.store(true, Ordering::Release);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Returns the first failure, if there was one.
    pub(super) fn check(&self) -> Result<(), ReplicationError> {
        if !self.has_failed() {
            return Ok(());
        }
        // The first caller gets it and reports it.
        locked(&self.first).take().map_or(Ok(()), Err)
    }

    pub(super) fn is_over(&self, role: Role) -> bool {
        self.is_over[role as usize].load(Ordering::Acquire)
    }

    pub(super) fn end(&self, role: Role) {
        self.is_over[role as usize].store(true, Ordering::Release);
    }

    /// Records that a pass of a background thread is over.
    pub(super) fn note_pass(&self, role: Role, thread: usize, has_worked: bool) {
        let quiet = &self.quiet[role as usize][thread];
        if has_worked {
            self.busy_count.fetch_add(1, Ordering::AcqRel);
            quiet.store(0, Ordering::Release);
        } else {
            quiet.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Waits until no background work is left: a period in which every thread has had two
    /// consecutive passes without work, and no thread a pass with work. (A thread in the middle of
    /// a step has not completed its second such pass. A step that begins later was made due by one
    /// that has ended meanwhile.)
    ///
    /// # Errors
    /// The first failure, if there is one.
    pub(super) fn drain(&self) -> Result<(), ReplicationError> {
        loop {
            let busy_count = self.busy_count.load(Ordering::Acquire);
            let all = || self.quiet.iter().flatten();
            all().for_each(|quiet| quiet.store(0, Ordering::Release));
            while all().any(|quiet| quiet.load(Ordering::Acquire) < 2) {
                self.check()?;
                thread::sleep(POLL_INTERVAL);
            }
            if self.busy_count.load(Ordering::Acquire) == busy_count {
                return self.check();
            }
        }
    }

    pub(super) fn note_backup(&self, region: usize, counts: BackupCounts) {
        *locked(&self.backups[region]) = counts;
    }

    /// Returns the work of all backups.
    pub(super) fn backup_work(&self) -> DeviceCounts {
        let all = self.backups.iter();
        all.map(|it| DeviceCounts::from(&locked(it).work)).sum()
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends all background threads when it is dropped, also by a panic.
pub(super) struct ShutdownGuard<'s>(pub(super) &'s ReplicationRunState);

impl Drop for ShutdownGuard<'_> {
    fn drop(&mut self) {
        self.0.end(Role::Primaries);
        self.0.end(Role::Backups);
    }
}

/// Flushes, merges, and bytes from and to devices, of many engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceCounts {
    /// Number of L0s that became trees.
    pub flush_count: u64,
    /// Number of merges.
    pub merge_count: u64,
    /// Bytes read from logs.
    pub log_read_size_bytes: u64,
    /// Bytes written to logs.
    pub log_written_size_bytes: u64,
    /// Bytes read from trees.
    pub tree_read_size_bytes: u64,
    /// Bytes written to trees.
    pub tree_written_size_bytes: u64,
}

impl From<&WorkCounts> for DeviceCounts {
    fn from(work: &WorkCounts) -> Self {
        Self {
            flush_count: work.flush_count,
            merge_count: work.merge_count,
            log_read_size_bytes: work.log.read,
            log_written_size_bytes: work.log.written,
            tree_read_size_bytes: work.trees.read,
            tree_written_size_bytes: work.trees.written,
        }
    }
}

impl DeviceCounts {
    /// Returns the bytes from and to devices.
    pub const fn size_bytes(&self) -> u64 {
        self.log_read_size_bytes
            + self.log_written_size_bytes
            + self.tree_read_size_bytes
            + self.tree_written_size_bytes
    }

    fn with(&self, other: &Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            flush_count: of(self.flush_count, other.flush_count),
            merge_count: of(self.merge_count, other.merge_count),
            log_read_size_bytes: of(self.log_read_size_bytes, other.log_read_size_bytes),
            log_written_size_bytes: of(self.log_written_size_bytes, other.log_written_size_bytes),
            tree_read_size_bytes: of(self.tree_read_size_bytes, other.tree_read_size_bytes),
            tree_written_size_bytes: of(
                self.tree_written_size_bytes,
                other.tree_written_size_bytes,
            ),
        }
    }

    /// Returns the difference from an earlier count.
    pub(super) fn since(&self, before: &Self) -> Self {
        self.with(before, |now, before| now - before)
    }
}

impl std::iter::Sum for DeviceCounts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| sum.with(&one, |a, b| a + b))
    }
}
