//! Reading the log's bytes as they are, for who follows (FO2).

use super::ValueLog;
use crate::error::LsmError;
use crate::place::{LogPosition, SEGMENT_SIZE_BYTES};

impl ValueLog {
    /// The first byte behind everything that was appended; where the next segment begins if none
    /// is open.
    pub fn end(&self) -> LogPosition {
        self.between_records(|end| end)
    }

    /// Puts the bytes from a place on into a buffer, up to the end of what its segment has by now.
    /// Where the log goes on behind them: right there, or, if nothing more comes into that segment,
    /// where the next one begins. No byte: nothing is there yet.
    ///
    /// One read of the device, or none for the segment that is being filled. Nothing is appended
    /// while that one is copied.
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
        let begun = tail.open_number();
        if number >= begun.unwrap_or_else(|| self.segments.next_number()) {
            return Ok(from);
        }
        let end = tail.closed_end(number);
        drop(tail);
        // Of one that was filled long ago, whatever is behind its end goes along.
        let end = end.unwrap_or(SEGMENT_SIZE_BYTES as usize);
        let place = self.segments.place(number)?;
        buffer.resize(end.saturating_sub(from.offset()), 0);
        let device = &self.segments.device;
        device.read(place, from.offset() as u64, buffer)?;
        Ok(number.next().start())
    }
}
