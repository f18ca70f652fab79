//! Writing the open segment to the device, without a sync (VL10).

use std::sync::{MutexGuard, PoisonError};

use super::ValueLog;
use super::append::Tail;
use crate::error::LsmError;
use crate::place::LogPosition;
use crate::written::SegmentSums;

impl ValueLog {
    /// How much of the open segment is written to the device. Never held while somebody writes.
    pub(super) fn written(&self) -> MutexGuard<'_, SegmentSums> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held while the open segment is written to the device, so two writes of one block never
    /// cross. A thread that takes the tail, too, takes that first.
    fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// SC2: everything before this place is on the device, if not synced.
    ///
    /// # Errors
    /// [`LsmError::Stopped`]: it could not be written once, and nobody knows.
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

    /// Writes what is not on the device yet.
    pub(super) fn write_out(&self, tail: &Tail) -> Result<(), LsmError> {
        if let Some((place, filled)) = tail.open_part() {
            let _writing = self.writing();
            let mut written = self.written().latest();
            let from = written.size_bytes();
            if from < filled {
                written.append((&self.segments.device, place), tail.filled_from(from))?;
                self.written().note_written(written);
            }
        }
        Ok(())
    }

    /// From where on the log is in memory alone, if any of it is. Costs two locks, one of which
    /// writers take.
    pub fn unwritten_from(&self) -> Option<LogPosition> {
        let tail = self.tail();
        // One that is ended found no room: who appends next tries again.
        let (_, filled) = tail.open_part().filter(|_| !tail.is_ended())?;
        let from = self.written().latest().size_bytes();
        let number = tail.open_number().filter(|_| from < filled)?;
        Some(number.start().plus(from as u64))
    }

    /// VL10: writes what was appended since the last write to the device, and does not sync it: it
    /// outlives this process, if the operating system goes on. A thread that appends waits for
    /// the device only if it fills the segment meanwhile, or syncs. False: nothing was to be
    /// written. The bytes go through `buffer`, whose content is overwritten.
    ///
    /// # Errors
    /// As those of [`sync_to`](Self::sync_to).
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
        let appended = written.append((&self.segments.device, place), buffer);
        if appended.is_ok() {
            self.written().note_written(written);
        }
        drop(writing);
        appended.inspect_err(|error| self.stop(&mut self.tail(), error))?;
        Ok(true)
    }
}
