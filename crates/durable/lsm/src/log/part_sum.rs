//! The sum of a record that comes in parts, as one that no segment is large enough for does (VL3).

use super::record::{EngineId, RECORD_HEADER_SIZE_BYTES, RecordHeader, RecordSum};
use crate::place::LogPosition;

/// Of one record, as far as it has come.
#[derive(Clone, Debug)]
pub(crate) struct PartSum {
    position: LogPosition,
    expected: u32,
    sum: RecordSum,
    left_size_bytes: usize,
}

impl PartSum {
    /// Of a record at a place, of which the header has come.
    pub(crate) fn begin(position: LogPosition, (expected, header): (u32, RecordHeader)) -> Self {
        Self {
            position,
            expected,
            sum: RecordSum::begin(header),
            left_size_bytes: header.record_size_bytes() - RECORD_HEADER_SIZE_BYTES,
        }
    }

    /// Where the record begins.
    pub(crate) const fn position(&self) -> LogPosition {
        self.position
    }

    /// How much is to come; 0: all is there.
    pub(crate) const fn left_size_bytes(&self) -> usize {
        self.left_size_bytes
    }

    /// Takes what comes next, and nothing behind the record's end; how many bytes that were.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> usize {
        let size_bytes = bytes.len().min(self.left_size_bytes);
        self.sum.add(&bytes[..size_bytes]);
        self.left_size_bytes -= size_bytes;
        size_bytes
    }

    /// Whether all has come, and is what was written there.
    pub(crate) fn is_right(&self, engine: EngineId) -> bool {
        self.left_size_bytes == 0 && self.sum.at(engine, self.position) == self.expected
    }
}
