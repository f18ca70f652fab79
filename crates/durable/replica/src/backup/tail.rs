//! The end of the log, on the device while the backup does something else (RP16).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use farleaf_fabric::{Batch, Endpoint};
use farleaf_lsm::follow::LogIntake;
use farleaf_lsm::place::LogPosition;

use super::buffers::{Buffers, Extent};
use crate::error::ReplicaError;
use crate::layout::Layout;

/// What a backup takes its log in with, for who writes its end; none before it has everything.
#[derive(Debug, Default)]
pub(super) struct Shared(Mutex<Weak<LogIntake>>);

impl Shared {
    fn intake(&self) -> MutexGuard<'_, Weak<LogIntake>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, intake: &Arc<LogIntake>) {
        *self.intake() = Arc::downgrade(intake);
    }
}

/// Writes what is in a backup's buffers to its device, without a sync, from another thread than the
/// backup's own, which may be at work with a sync or a tree for long.
pub struct BackupTail<E> {
    near: E,
    layout: Layout,
    shared: Weak<Shared>,
    batch: Batch,
    bytes: Vec<u8>,
}

impl<E> core::fmt::Debug for BackupTail<E> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "the end of a backup's log, {:?}", self.layout)
    }
}

impl<E: Endpoint> BackupTail<E> {
    pub(super) fn new(near: E, layout: Layout, shared: Weak<Shared>) -> Self {
        Self {
            near,
            layout,
            shared,
            batch: Batch::new(),
            bytes: Vec::new(),
        }
    }

    /// Whether the backup is gone, so that nothing more will ever be written.
    pub fn is_over(&self) -> bool {
        self.shared.strong_count() == 0
    }

    /// From where on the log is in the buffers alone, if any of it is. One batch on the backup's
    /// own memory.
    ///
    /// # Errors
    /// Its memory cannot be read.
    pub fn unwritten_from(&mut self) -> Result<Option<LogPosition>, ReplicaError> {
        let Some(intake) = self.intake() else {
            return Ok(None);
        };
        let written_to = intake.written_to();
        let (log_end, _) = self.buffers().wishes()?;
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

    /// Writes what has come and is not on the device yet, without a sync; false: there was nothing.
    ///
    /// # Errors
    /// There is no room: what came stays in the buffers, and can be written when there is some; the
    /// backup itself finds that when it is to sync, or the segment is full. Others, as those of
    /// [`Backup::serve`](super::Backup::serve): that meets the same error when it is called next,
    /// or writes what could not be written.
    pub fn write(&mut self) -> Result<bool, ReplicaError> {
        let Some(intake) = self.intake() else {
            return Ok(false);
        };
        let taken = self.buffers().take(&intake, Extent::All);
        taken.inspect_err(|error| {
            if !error.is_no_room() {
                intake.note_failed();
            }
        })
    }
}
