//! Writing the open segment to the device, without a sync (VL10).

use std::sync::{MutexGuard, PoisonError};

use super::ValueLog;
use super::append::Tail;
use crate::error::LsmError;
use crate::place::LogPosition;
use crate::written::SegmentSums;

impl ValueLog {
    /// What of the open segment is written to the device. Who has the tail, too, took that first.
    /// Held while somebody writes, so two writes of one block never cross.
    pub(super) fn written(&self) -> MutexGuard<'_, SegmentSums> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
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
            let mut written = self.written();
            let from = written.latest().size_bytes();
            if from < filled {
                written.append((&self.segments.device, place), tail.filled_from(from))?;
            }
        }
        Ok(())
    }

    /// VL10: writes what was appended since the last write to the device, and does not sync it: it
    /// outlives this process, if the operating system goes on. Nobody who appends waits for the
    /// device, but for who fills the segment meanwhile. False: nothing was to be written. The bytes
    /// go through `buffer`, which holds nothing of worth.
    ///
    /// # Errors
    /// As those of [`sync_to`](Self::sync_to).
    pub fn write_tail(&self, buffer: &mut Vec<u8>) -> Result<bool, LsmError> {
        let tail = self.tail();
        tail.check()?;
        // One that is ended found no room: who appends next tries again.
        let Some((place, filled)) = tail.open_part().filter(|_| !tail.is_ended()) else {
            return Ok(false);
        };
        let mut written = self.written();
        let from = written.latest().size_bytes();
        if from >= filled {
            return Ok(false);
        }
        buffer.clear();
        buffer.extend_from_slice(tail.filled_from(from));
        drop(tail);
        let appended = written.append((&self.segments.device, place), buffer);
        drop(written);
        appended.inspect_err(|error| self.stop(&mut self.tail(), error))?;
        Ok(true)
    }
}
