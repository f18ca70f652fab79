//! Writes the end of the log to the device while the backup's thread does something else
//! (REPLICATION-16).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use farleaf_fabric::{Batch, Endpoint};
use farleaf_lsm::follow::LogIntake;
use farleaf_lsm::place::LogPosition;

use super::buffers::{Buffers, WriteExtent};
use crate::error::ReplicaError;
use crate::layout::Layout;

/// The log intake of a filled backup, for the thread that writes the end of its log. Empty until
/// the backup is filled.
#[derive(Debug, Default)]
pub(super) struct SharedIntake(Mutex<Weak<LogIntake>>);

impl SharedIntake {
    fn intake(&self) -> MutexGuard<'_, Weak<LogIntake>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, intake: &Arc<LogIntake>) {
        *self.intake() = Arc::downgrade(intake);
    }
}

/// Writes a backup's buffers to its device, without a sync, from another thread than the backup's
/// own. The backup's own thread may be busy for long with a sync or a tree.
pub struct BackupTail<E> {
    near: E,
    layout: Layout,
    shared: Weak<SharedIntake>,
    batch: Batch,
    bytes: Vec<u8>,
}

impl<E> core::fmt::Debug for BackupTail<E> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "the end of a backup's log, {:?}", self.layout)
    }
}

impl<E: Endpoint> BackupTail<E> {
    pub(super) fn new(near: E, layout: Layout, shared: Weak<SharedIntake>) -> Self {
        Self {
            near,
            layout,
            shared,
            batch: Batch::new(),
            bytes: Vec::new(),
        }
    }

    /// Returns whether the backup is gone, so that nothing more will ever be written.
    pub fn is_over(&self) -> bool {
        self.shared.strong_count() == 0
    }

    /// Returns the position from which on the log is only in the buffers, if any of it is. Costs
    /// one batch on the backup's own memory.
    ///
    /// # Errors
    /// If the backup's memory cannot be read.
    pub fn unwritten_from(&mut self) -> Result<Option<LogPosition>, ReplicaError> {
        let Some(intake) = self.intake() else {
            return Ok(None);
        };
        let written_to = intake.written_to();
        let (log_end, _) = self.buffers().primary_words()?;
        Ok((written_to < log_end).then_some(written_to))
    }

    fn intake(&self) -> Option<Arc<LogIntake>> {
        self.shared.upgrade()?.intake().upgrade()
    }

    const fn buffers(&mut self) -> Buffers<'_, E> {
        Buffers {
            near: &self.near,
            layout: &self.layout,
            batch: &mut self.batch,
            bytes: &mut self.bytes,
        }
    }

    /// Writes buffered log to the device, without a sync. Returns false if there was none.
    ///
    /// # Errors
    /// - Disk full: the log stays in the buffers and can be written when there is space. The backup
    ///   itself reports the full disk at its next sync or when the segment is full.
    /// - Others, as those of [`Backup::serve`](super::Backup::serve): the next call of `serve`
    ///   returns the same error, or succeeds in writing.
    pub fn write(&mut self) -> Result<bool, ReplicaError> {
        let Some(intake) = self.intake() else {
            return Ok(false);
        };
        let taken = self.buffers().take(&intake, WriteExtent::All);
        taken.inspect_err(|error| {
            if !error.is_out_of_space() {
                intake.note_failed();
            }
        })
    }
}
