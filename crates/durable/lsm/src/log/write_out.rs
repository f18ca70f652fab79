//! Writing the open segment to the device, without a sync.

use std::sync::{MutexGuard, PoisonError};

use super::ValueLog;
use super::append::Tail;
use crate::error::LsmError;
use crate::place::LogPosition;
use crate::written::SegmentSums;

impl ValueLog {
    /// Locks the written part of the open segment. No thread holds this lock during a write.
    pub(super) fn written(&self) -> MutexGuard<'_, SegmentSums> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks writes of the open segment to the device, so that two writes of one block do not
    /// overlap. A thread that needs the tail, too, locks the tail first.
    fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the position before which everything is written to the device, if not synced.
    ///
    /// # Errors
    /// [`LsmError::Stopped`]: an earlier write failed, so this is unknown.
    pub(crate) fn written_to(&self) -> Result<LogPosition, LsmError> {
        let tail = self.tail();
        tail.check()?;
        let number = tail.open_number();
        Ok(number.map_or_else(
            || self.segments.next_number().start(),
            |number| {
                number
                    .start()
                    .plus(self.written().latest().size_bytes() as u64)
            },
        ))
    }

    /// Writes the bytes that are not on the device yet.
    pub(super) fn write_out(&self, tail: &Tail) -> Result<(), LsmError> {
        if let Some((place, filled)) = tail.open_part() {
            let _writing = self.writing();
            let mut written = self.written().latest();
            let from = written.size_bytes();
            if from < filled {
                written.append(&self.segments.device, place, tail.filled_from(from))?;
                self.written().note_written(written);
            }
        }
        Ok(())
    }

    /// Returns the position from which the log is in memory only, if any. Costs two locks, one of
    /// which writers take.
    pub fn unwritten_from(&self) -> Option<LogPosition> {
        let tail = self.tail();
        // A segment that has ended could not be written for lack of space; the next append retries.
        let (_, filled) = tail.open_part().filter(|_| !tail.is_ended())?;
        let from = self.written().latest().size_bytes();
        let number = tail.open_number().filter(|_| from < filled)?;
        Some(number.start().plus(from as u64))
    }

    /// Writes what was appended since the last write to the device, without a sync. The data then
    /// survives this process, but not a failure of the operating system or power.
    ///
    /// Appenders wait for the device only if they fill the segment or sync meanwhile. Returns false
    /// if there was nothing to write. The bytes pass through `buffer`, which is overwritten.
    ///
    /// # Errors
    /// Same as [`sync_to`](Self::sync_to).
    pub fn write_tail(&self, buffer: &mut Vec<u8>) -> Result<bool, LsmError> {
        let tail = self.tail();
        tail.check()?;
        let Some((place, filled)) = tail.open_part().filter(|_| !tail.is_ended()) else {
            return Ok(false);
        };
        let writing = self.writing();
        let mut written = self.written().latest();
        let from = written.size_bytes();
        if from >= filled {
            return Ok(false);
        }
        buffer.clear();
        buffer.extend_from_slice(tail.filled_from(from));
        drop(tail);
        let appended = written.append(&self.segments.device, place, buffer);
        if appended.is_ok() {
            self.written().note_written(written);
        }
        drop(writing);
        appended.inspect_err(|error| self.stop(&mut self.tail(), error))?;
        Ok(true)
    }
}
