//! Checksum of a record that arrives in parts, such as one larger than a segment.

use super::record::{EngineId, RECORD_HEADER_SIZE_BYTES, RecordHeader, RecordSum};
use crate::place::LogPosition;

/// Checksum over the parts of one record that have arrived.
#[derive(Clone, Debug)]
pub(crate) struct PartialRecordSum {
    position: LogPosition,
    expected: u32,
    sum: RecordSum,
    left_size_bytes: usize,
}

impl PartialRecordSum {
    /// Begins the checksum of the record at a position, from its header.
    pub(crate) fn begin(position: LogPosition, expected: u32, header: RecordHeader) -> Self {
        Self {
            position,
            expected,
            sum: RecordSum::begin(header),
            left_size_bytes: header.record_size_bytes() - RECORD_HEADER_SIZE_BYTES,
        }
    }

    /// Returns the position at which the record begins.
    pub(crate) const fn position(&self) -> LogPosition {
        self.position
    }

    /// Returns the number of bytes that are missing; 0 if the record is complete.
    pub(crate) const fn left_size_bytes(&self) -> usize {
        self.left_size_bytes
    }

    /// Adds the next bytes, up to the end of the record; returns how many it used.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> usize {
        let size_bytes = bytes.len().min(self.left_size_bytes);
        self.sum.add(&bytes[..size_bytes]);
        self.left_size_bytes -= size_bytes;
        size_bytes
    }

    /// Returns true if the record is complete and its checksum is right.
    pub(crate) fn is_right(&self, engine: EngineId) -> bool {
        self.left_size_bytes == 0 && self.sum.at(engine, self.position) == self.expected
    }
}
