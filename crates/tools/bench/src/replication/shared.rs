//! What the threads of a run share: meters, the first failure, and when to end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use farleaf_lsm::engine::WorkCounts;
use farleaf_replica::BackupCounts;
use serde::Serialize;

use super::error::ReplicationError;
use super::processor::Meter;
use super::traffic::Traffic;

/// Servers: each is primary of one half of the regions, and backup of the other one.
pub(super) const SERVER_COUNT: usize = 2;

/// How often it is looked whether all background work is done.
const LOOK_INTERVAL: Duration = Duration::from_micros(500);

/// What the threads of a run share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) meter: Meter,
    pub(super) log_traffic: Arc<Traffic>,
    pub(super) index_traffic: Arc<Traffic>,
    first: Mutex<Option<ReplicationError>>,
    has_failed: AtomicBool,
    /// R4: background work of primaries ends; and then backups do.
    pub(super) is_over: [AtomicBool; 2],
    /// Passes in which the background threads of primaries, and those of backups, have found
    /// nothing to do, one after the other.
    quiet: [Vec<AtomicU64>; 2],
    /// Passes in which they have found something.
    busy_count: AtomicU64,
    /// What backups have done, by region.
    backups: Vec<Mutex<BackupCounts>>,
}

/// Whose background work it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Primaries,
    Backups,
}

impl Shared {
    /// For so many regions, and so many threads of each role.
    pub(super) fn new(region_count: usize, thread_count: usize) -> Self {
        let quiet = || (0..thread_count).map(|_| AtomicU64::new(0)).collect();
        Self {
            meter: Meter::default(),
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

    /// Notes a failure; the first one ends the run.
    pub(super) fn fail(&self, error: ReplicationError) {
        locked(&self.first).get_or_insert(error);
        self.has_failed.store(true, Ordering::Release);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// The first failure, if there was one.
    pub(super) fn check(&self) -> Result<(), ReplicationError> {
        if !self.has_failed() {
            return Ok(());
        }
        // Once taken, it is told by who took it.
        locked(&self.first).take().map_or(Ok(()), Err)
    }

    pub(super) fn is_over(&self, role: Role) -> bool {
        self.is_over[role as usize].load(Ordering::Acquire)
    }

    pub(super) fn end(&self, role: Role) {
        self.is_over[role as usize].store(true, Ordering::Release);
    }

    /// A pass of a background thread is over.
    pub(super) fn note_pass(&self, (role, thread): (Role, usize), has_worked: bool) {
        let quiet = &self.quiet[role as usize][thread];
        if has_worked {
            self.busy_count.fetch_add(1, Ordering::AcqRel);
            quiet.store(0, Ordering::Release);
        } else {
            quiet.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Waits until nobody has anything more to do: for a time in which every thread has had two
    /// passes in a row that found nothing, and none had one that found something. (A thread that
    /// is in the middle of a step has not had the second one; a step that begins later was made due
    /// by one that has ended meanwhile.)
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
                thread::sleep(LOOK_INTERVAL);
            }
            if self.busy_count.load(Ordering::Acquire) == busy_count {
                return self.check();
            }
        }
    }

    pub(super) fn note_backup(&self, region: usize, counts: BackupCounts) {
        *locked(&self.backups[region]) = counts;
    }

    /// What all backups have done.
    pub(super) fn backup_work(&self) -> DeviceCounts {
        let all = self.backups.iter();
        all.map(|it| DeviceCounts::from(&locked(it).work)).sum()
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends all background threads when it is dropped, by a panic too.
pub(super) struct Over<'s>(pub(super) &'s Shared);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.end(Role::Primaries);
        self.0.end(Role::Backups);
    }
}

/// Flushes, merges, and bytes from and to devices, of many engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceCounts {
    /// L0s that became trees.
    pub flush_count: u64,
    /// Merges.
    pub merge_count: u64,
    /// Bytes read of logs.
    pub log_read_size_bytes: u64,
    /// Bytes written of logs.
    pub log_written_size_bytes: u64,
    /// Bytes read of trees.
    pub tree_read_size_bytes: u64,
    /// Bytes written of trees.
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
    /// Bytes from and to devices.
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

    /// What has come since.
    pub(super) fn since(&self, before: &Self) -> Self {
        self.with(before, |now, before| now - before)
    }
}

impl std::iter::Sum for DeviceCounts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| sum.with(&one, |a, b| a + b))
    }
}
