//! Writes the log from a backup's buffers to its device (REPLICATION-4).

use std::sync::Arc;
use std::time::Instant;

use farleaf_executor::block_on;
use farleaf_fabric::Endpoint;
use farleaf_lsm::LsmError;
use farleaf_lsm::place::LogPosition;

use super::buffers::{Buffers, WriteExtent};
use super::counts::add_time;
use super::{Backup, BackupState, failed_memory};
use crate::error::ReplicaError;
use crate::layout::STATUS_SIZE_WORDS;
use crate::receipt;

impl<E: Endpoint> Backup<E> {
    /// Returns the words of the primary: the end of the log in the buffers, and the position that
    /// is to be durable.
    pub(super) fn primary_words(&mut self) -> Result<(LogPosition, LogPosition), ReplicaError> {
        let mut buffers = Buffers {
            near: &self.near,
            layout: &self.layout,
            batch: &mut self.batch,
            bytes: &mut self.bytes,
        };
        buffers.primary_words()
    }

    /// Writes full segments, and syncs if the primary requests it. Returns false if there was
    /// nothing to do.
    pub(super) fn follow_log(&mut self) -> Result<bool, ReplicaError> {
        let BackupState::Following(follower) = &self.state else {
            return Ok(false);
        };
        let synced_to = follower.synced_to();
        let has_failed = follower.intake().has_failed();
        let (_, sync_wanted) = self.primary_words()?;
        if sync_wanted <= synced_to {
            // After a failed write of another thread: the write fails here, too, or succeeds by
            // now.
            let extent = if has_failed {
                WriteExtent::All
            } else {
                WriteExtent::OneSegment
            };
            return self.take_log(extent);
        }
        self.take_log(WriteExtent::All)?;
        let since = Instant::now();
        if let BackupState::Following(follower) = &mut self.state {
            if sync_wanted > follower.written_to() {
                let how = format!("cannot sync the log up to {sync_wanted}, which is past its end");
                return Err(LsmError::CannotFollow { how }.into());
            }
            follower.sync_log()?;
            self.counts.sync_count += 1;
        }
        add_time(&mut self.counts.log_time_ns, since);
        self.report_progress()?;
        Ok(true)
    }

    /// Writes buffered log to the device. Returns false if there was none.
    pub(super) fn take_log(&mut self, extent: WriteExtent) -> Result<bool, ReplicaError> {
        let BackupState::Following(follower) = &self.state else {
            return Ok(false);
        };
        let intake = Arc::clone(follower.intake());
        let since = Instant::now();
        let mut buffers = Buffers {
            near: &self.near,
            layout: &self.layout,
            batch: &mut self.batch,
            bytes: &mut self.bytes,
        };
        let has_taken = buffers.take(&intake, extent)?;
        if has_taken {
            add_time(&mut self.counts.log_time_ns, since);
        }
        Ok(has_taken)
    }

    /// Reports the written and synced positions to the primary.
    pub(super) fn report_progress(&mut self) -> Result<(), ReplicaError> {
        let BackupState::Following(follower) = &self.state else {
            return Ok(());
        };
        let receipt = receipt::encode(follower.synced_sum());
        let intake = Arc::clone(follower.intake());
        // Held during the report, so that it does not overwrite another thread's report of a later
        // position.
        let Some(intake) = intake.begin() else {
            return Ok(());
        };
        let mut words = [0; STATUS_SIZE_WORDS];
        words[0] = intake.written_to().0;
        words[2..].copy_from_slice(&receipt);
        self.batch.clear();
        self.batch.write(self.layout.status(), &words);
        let executed = self.near.execute(&mut self.batch);
        block_on(executed, self.near.completions()).map_err(|error| failed_memory(&error))
    }

    /// Reports to the primary that the backup has failed (REPLICATION-6).
    pub(super) fn report_failure(&mut self) -> Result<(), ReplicaError> {
        self.batch.clear();
        self.batch.write_word(self.layout.failed(), 1);
        self.execute()
    }
}
