//! Checksums of log segments, which a primary compares with those of its backups.

use super::ValueLog;
use crate::error::LsmError;
use crate::place::{LogNumber, SEGMENT_SIZE_BYTES};
use crate::written::WrittenSum;

impl ValueLog {
    /// Returns length and checksum of the first bytes of a log segment. If one of the last segments
    /// has fewer bytes than requested, they cover all of it.
    ///
    /// The checksum covers the bytes that were written to the device, or will be for the open
    /// segment. For a segment closed long ago, or a part of a closed one, it covers the current
    /// bytes in memory or on the device. The latter costs one read.
    ///
    /// # Errors
    /// The log cannot be read, or does not have that segment.
    pub fn sum_of(&self, number: LogNumber, size_bytes: u32) -> Result<WrittenSum, LsmError> {
        let count = (size_bytes as usize).min(SEGMENT_SIZE_BYTES as usize);
        if count == 0 {
            // The next segment may not exist yet.
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
        // Memory has only the filled part. If a segment was sent with the bytes behind its end,
        // only the device has them all.
        let sum_first = |bytes: &[u8]| bytes.get(..count).map(WrittenSum::of);
        if let Some(sum) = self.recent.look(number, 0, sum_first).flatten() {
            return Ok(sum);
        }
        let mut bytes = vec![0; count];
        let place = self.segments.place(number)?;
        self.segments.device.read(place, 0, &mut bytes)?;
        Ok(WrittenSum::of(&bytes))
    }
}
