//! The log from a backup's buffers to its device (RP4).

use std::sync::Arc;
use std::time::Instant;

use farleaf_executor::block_on;
use farleaf_fabric::Endpoint;
use farleaf_lsm::LsmError;
use farleaf_lsm::place::LogPosition;

use super::buffers::{Buffers, Extent};
use super::counts::add_time;
use super::{Backup, State, failed_memory};
use crate::error::ReplicaError;
use crate::layout::STATUS_SIZE_WORDS;
use crate::receipt;

impl<E: Endpoint> Backup<E> {
    /// What the primary has written of itself: up to where the log is in the buffers, and is to be
    /// durable.
    pub(super) fn wishes(&mut self) -> Result<(LogPosition, LogPosition), ReplicaError> {
        let mut buffers = Buffers {
            near: &self.near,
            layout: &self.layout,
            batch: &mut self.batch,
            bytes: &mut self.bytes,
        };
        buffers.wishes()
    }

    /// Writes full segments, and syncs if that is wished for; false: there was nothing to do.
    pub(super) fn follow_log(&mut self) -> Result<bool, ReplicaError> {
        let State::Following(follower) = &self.state else {
            return Ok(false);
        };
        let synced_to = follower.synced_to();
        let has_failed = follower.intake().has_failed();
        let (_, sync_wanted) = self.wishes()?;
        if sync_wanted <= synced_to {
            // What another thread could not write fails here, too, or can be written by now.
            let extent = if has_failed {
                Extent::All
            } else {
                Extent::OneSegment
            };
            return self.take_log(extent);
        }
        self.take_log(Extent::All)?;
        let since = Instant::now();
        if let State::Following(follower) = &mut self.state {
            if sync_wanted > follower.written_to() {
                let how =
                    format!("the log is to be durable up to {sync_wanted}, which is not there");
                return Err(LsmError::CannotFollow { how }.into());
            }
            follower.sync_log()?;
            self.counts.sync_count += 1;
        }
        add_time(&mut self.counts.log_time_ns, since);
        self.tell()?;
        Ok(true)
    }

    /// Writes to the device what is in the buffers; false: there was nothing.
    pub(super) fn take_log(&mut self, extent: Extent) -> Result<bool, ReplicaError> {
        let State::Following(follower) = &self.state else {
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

    /// Tells the primary how far it is.
    pub(super) fn tell(&mut self) -> Result<(), ReplicaError> {
        let State::Following(follower) = &self.state else {
            return Ok(());
        };
        let receipt = receipt::encode(follower.synced_sum());
        let intake = Arc::clone(follower.intake());
        // Held, so that what another thread tells of a later place is not undone.
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

    /// RP6: tells the primary that it cannot go on.
    pub(super) fn tell_failed(&mut self) -> Result<(), ReplicaError> {
        self.batch.clear();
        self.batch.write_word(self.layout.failed(), 1);
        self.execute()
    }
}
