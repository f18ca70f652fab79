//! A backup's log buffers, for the threads that write them to the device.

use farleaf_executor::block_on;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_lsm::LsmError;
use farleaf_lsm::follow::{Intake, LogIntake};
use farleaf_lsm::log::record::SEGMENT_HEADER_SIZE_BYTES;
use farleaf_lsm::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES};

use super::failed_memory;
use crate::error::ReplicaError;
use crate::layout::{CLOSED_SIZE_WORDS, Layout, PRIMARY_SIZE_WORDS, bytes_of};
use crate::receipt;

/// Part of the buffered log to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteExtent {
    /// One closed segment, if there is one.
    OneSegment,
    /// Everything in the buffers.
    All,
}

/// A connection to the buffers, with the state needed to read them.
pub(super) struct Buffers<'b, E> {
    pub(super) near: &'b E,
    pub(super) layout: &'b Layout,
    pub(super) batch: &'b mut Batch,
    pub(super) bytes: &'b mut Vec<u8>,
}

impl<E: Endpoint> Buffers<'_, E> {
    fn execute(&mut self) -> Result<(), ReplicaError> {
        let executed = self.near.execute(self.batch);
        block_on(executed, self.near.completions()).map_err(|error| failed_memory(&error))
    }

    /// Returns the end of the log in the buffers, and the position that is to be durable.
    pub(super) fn primary_words(&mut self) -> Result<(LogPosition, LogPosition), ReplicaError> {
        self.batch.clear();
        let slot = self
            .batch
            .read(self.layout.primary_words(), PRIMARY_SIZE_WORDS);
        self.execute()?;
        let [log_end, sync_wanted] = *self.batch.words(slot) else {
            unreachable!("so many were read");
        };
        Ok((LogPosition(log_end), LogPosition(sync_wanted)))
    }

    /// Writes buffered log to the device and reports that to the primary. Returns false if there
    /// was nothing to write, or if the backup is not following any more.
    pub(super) fn take(
        &mut self,
        intake: &LogIntake,
        extent: WriteExtent,
    ) -> Result<bool, ReplicaError> {
        let Some(mut intake) = intake.begin() else {
            return Ok(false);
        };
        let (log_end, _) = self.primary_words()?;
        let mut has_taken = false;
        loop {
            let at = intake.written_to();
            self.check_end(at, log_end)?;
            let is_closed = at.number() < log_end.number();
            if !is_closed && (extent == WriteExtent::OneSegment || at >= log_end) {
                return Ok(has_taken);
            }
            let end = if is_closed {
                self.closed_end(at)?
            } else {
                log_end.offset()
            };
            self.take_part(&mut intake, end, is_closed)?;
            has_taken = true;
            if extent == WriteExtent::OneSegment {
                return Ok(true);
            }
        }
    }

    /// Checks that the primary's log end lies within the buffers (REPLICATION-2).
    fn check_end(&self, at: LogPosition, log_end: LogPosition) -> Result<(), ReplicaError> {
        let behind = LogNumber(at.number().0 + self.layout.slot_count()).start();
        // The log end is 0 before the first record.
        if log_end <= behind {
            return Ok(());
        }
        let how = format!("the primary reports log end {log_end}, but it was written up to {at}");
        Err(LsmError::CannotFollow { how }.into())
    }

    /// Returns the length of a closed segment, as its primary reports it (REPLICATION-2).
    fn closed_end(&mut self, at: LogPosition) -> Result<usize, ReplicaError> {
        self.batch.clear();
        let closed = self.layout.closed(at.number());
        let slot = self.batch.read(closed, CLOSED_SIZE_WORDS);
        self.execute()?;
        let [number, size_bytes] = *self.batch.words(slot) else {
            unreachable!("so many were read");
        };
        let sizes = at.offset().max(SEGMENT_HEADER_SIZE_BYTES) as u64..=SEGMENT_SIZE_BYTES;
        if number == at.number().0 && sizes.contains(&size_bytes) {
            return Ok(size_bytes as usize);
        }
        let how = format!(
            "log segment {} is closed, but the primary reports that segment {number} ends after \
             {size_bytes} bytes; it was written up to {at}",
            at.number().0
        );
        Err(LsmError::CannotFollow { how }.into())
    }

    /// Writes a segment's buffer from its written end to an offset, and reports the new written end
    /// to the primary.
    fn take_part(
        &mut self,
        intake: &mut Intake<'_>,
        end: usize,
        is_closed: bool,
    ) -> Result<(), ReplicaError> {
        let at = intake.written_to();
        let from = LogPosition(at.0 & !7);
        let word_count = end.div_ceil(8) - from.offset() / 8;
        self.batch.clear();
        let slot = self.batch.read(self.layout.log_word(from), word_count);
        self.execute()?;
        let bytes = bytes_of(self.batch.words(slot), self.bytes);
        let part = &bytes[at.offset() - from.offset()..end - from.offset()];
        intake.write(part, is_closed)?;
        self.batch.clear();
        if let Some(closed) = intake.closed_sum().filter(|_| is_closed) {
            let at = self.layout.receipt(closed.number);
            self.batch.write(at, &receipt::encode(closed));
        }
        let written_to = intake.written_to();
        self.batch.write_word(self.layout.status(), written_to.0);
        self.execute()
    }
}
