//! Checksums of log segments, which a primary compares with those of its backups (FO11).

use super::ValueLog;
use crate::error::LsmError;
use crate::place::{LogNumber, SEGMENT_SIZE_BYTES};
use crate::written::WrittenSum;

impl ValueLog {
    /// Length and checksum of a log segment's first bytes: of as many as asked for, or of all that
    /// it has, if it is one of the last segments and has fewer.
    ///
    /// The checksum is computed from what was written to the device, and of the segment that is
    /// being filled from what will be. Only of a segment that was filled long ago, or of a part of
    /// a filled one, it is computed from what is in memory or on the device now: one read then.
    ///
    /// # Errors
    /// The log cannot be read, or does not have that segment.
    pub fn sum_of(&self, number: LogNumber, size_bytes: u32) -> Result<WrittenSum, LsmError> {
        let count = (size_bytes as usize).min(SEGMENT_SIZE_BYTES as usize);
        if count == 0 {
            // The next segment may not be there yet.
            return Ok(WrittenSum::of(&[]));
        }
        let tail = self.tail();
        if let Some(bytes) = tail.open_bytes(number, count) {
            return Ok(self.written().up_to(bytes));
        }
        let closed = tail.closed_sum(number);
        drop(tail);
        if let Some(sum) = closed.filter(|sum| sum.size_bytes as usize <= count) {
            return Ok(sum);
        }
        // Memory has no more than what was filled. Of a segment that was sent with what is behind
        // its end, only the device has all.
        let sum_first = |bytes: &[u8]| bytes.get(..count).map(WrittenSum::of);
        if let Some(sum) = self.recent.look((number, 0), sum_first).flatten() {
            return Ok(sum);
        }
        let mut bytes = vec![0; count];
        let place = self.segments.place(number)?;
        self.segments.device.read(place, 0, &mut bytes)?;
        Ok(WrittenSum::of(&bytes))
    }
}
