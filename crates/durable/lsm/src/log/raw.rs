//! Reading the log's bytes for a follower.

use super::ValueLog;
use crate::error::LsmError;
use crate::place::{LogPosition, SEGMENT_SIZE_BYTES};

impl ValueLog {
    /// Returns the end of all appended data, or the start of the next segment if none is open.
    pub fn end(&self) -> LogPosition {
        self.between_records(|end| end)
    }

    /// Reads the bytes from a position to the current end of its segment into a buffer.
    ///
    /// Returns the position at which the log continues: right behind these bytes, or at the next
    /// segment if this one is closed. An empty buffer means that nothing is there yet.
    ///
    /// Costs one read of the device, or none for the open segment, to which nothing is appended
    /// during the copy.
    ///
    /// # Errors
    /// The log cannot be read, or does not have that segment.
    pub fn read_raw(
        &self,
        from: LogPosition,
        buffer: &mut Vec<u8>,
    ) -> Result<LogPosition, LsmError> {
        buffer.clear();
        let tail = self.tail();
        if let Some(bytes) = tail.bytes_from(from) {
            buffer.extend_from_slice(bytes);
            return Ok(if tail.is_ended() {
                from.number().next().start()
            } else {
                from.plus(bytes.len() as u64)
            });
        }
        let number = from.number();
        let open_number = tail.open_number();
        if number >= open_number.unwrap_or_else(|| self.segments.next_number()) {
            return Ok(from);
        }
        let end = tail.closed_end(number);
        drop(tail);
        // The end of a segment closed long ago is not known, so the bytes behind it are included.
        let end = end.unwrap_or(SEGMENT_SIZE_BYTES as usize);
        let place = self.segments.place(number)?;
        buffer.resize(end.saturating_sub(from.offset()), 0);
        let device = &self.segments.device;
        device.read(place, from.offset() as u64, buffer)?;
        Ok(number.next().start())
    }
}
