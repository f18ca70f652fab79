//! Checking one log segment: its header, and all records that begin in it.

use super::verified::VerifiedPiece;
use crate::error::LsmError;
use crate::log::damaged;
use crate::log::part_sum::PartialRecordSum;
use crate::log::record::{
    EngineId, PAYLOAD_SIZE_BYTES, RECORD_HEADER_SIZE_BYTES, RecordHeader, RecordKind, RecordView,
    SEGMENT_HEADER_SIZE_BYTES, encode_segment_header,
};
use crate::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES, SegmentId};

/// Result of checking a segment.
#[derive(Debug)]
pub(super) enum SegmentCheck {
    /// All records are valid. Bytes behind this offset do not count.
    Whole { end: usize },
    /// A record is valid so far and continues in the next segments.
    GoesOn(Box<ScrubbedLargeRecord>),
    /// A record would continue in the next segments, but this segment is not full. This is
    /// corruption, unless the rest has yet to arrive.
    NotAll(LsmError),
}

/// Record larger than a segment, of which a part was read.
#[derive(Debug)]
pub(super) struct ScrubbedLargeRecord {
    sum: PartialRecordSum,
    /// Device segment in which the record begins.
    pub(super) segment: SegmentId,
    /// Log segment in which the record continues.
    pub(super) next: LogNumber,
    /// Segments read so far. They are compared with a follower's when the whole record is valid.
    pub(super) pieces: Vec<VerifiedPiece>,
}

/// Checks the bytes of a segment on the device.
pub(super) fn check_segment(
    bytes: &[u8],
    engine: EngineId,
    number: LogNumber,
    segment: SegmentId,
) -> Result<SegmentCheck, LsmError> {
    check_header(bytes, engine, number)?;
    let mut at = SEGMENT_HEADER_SIZE_BYTES;
    while at < bytes.len() && at + RECORD_HEADER_SIZE_BYTES <= SEGMENT_SIZE_BYTES as usize {
        let position = number.start().plus(at as u64);
        let rest = &bytes[at..];
        let first = rest.first_chunk().and_then(RecordHeader::decode);
        let Some((expected, header)) = first else {
            return Err(damaged(position, "no record begins there"));
        };
        let size_bytes = header.record_size_bytes();
        if size_bytes > PAYLOAD_SIZE_BYTES {
            if at != SEGMENT_HEADER_SIZE_BYTES {
                return Err(damaged(
                    position,
                    "the record does not fit into its segment",
                ));
            }
            if bytes.len() < SEGMENT_SIZE_BYTES as usize {
                let error = damaged(position, "the record is incomplete");
                return Ok(SegmentCheck::NotAll(error));
            }
            let mut sum = PartialRecordSum::begin(position, expected, header);
            sum.add(&rest[RECORD_HEADER_SIZE_BYTES..]);
            return Ok(SegmentCheck::GoesOn(Box::new(ScrubbedLargeRecord {
                sum,
                segment,
                next: number.next(),
                pieces: Vec::new(),
            })));
        }
        let Some(view) = RecordView::decode(rest, engine, position) else {
            return Err(damaged(position, "the record's checksum does not match"));
        };
        at += view.size_bytes();
        if view.kind == RecordKind::End {
            break;
        }
    }
    Ok(SegmentCheck::Whole { end: at })
}

fn check_header(bytes: &[u8], engine: EngineId, number: LogNumber) -> Result<(), LsmError> {
    let header = encode_segment_header(engine, number);
    if bytes.get(..SEGMENT_HEADER_SIZE_BYTES) != Some(&header) {
        let how = "the segment header is not one of this log";
        return Err(damaged(number.start(), how));
    }
    Ok(())
}

impl ScrubbedLargeRecord {
    /// Returns the position of the record.
    pub(super) const fn position(&self) -> LogPosition {
        self.sum.position()
    }

    /// Returns the end of the record's part in the next segment, as an offset.
    pub(super) fn end_in_next(&self) -> usize {
        SEGMENT_HEADER_SIZE_BYTES + self.sum.left_size_bytes().min(PAYLOAD_SIZE_BYTES)
    }

    /// Returns the first log segment behind the record.
    pub(super) fn end(&self) -> LogNumber {
        let count = self.sum.left_size_bytes().div_ceil(PAYLOAD_SIZE_BYTES);
        LogNumber(self.next.0 + count as u64)
    }

    /// Takes the record's part in the next segment; returns true if the record is complete.
    pub(super) fn take(&mut self, bytes: &[u8], engine: EngineId) -> Result<bool, LsmError> {
        check_header(bytes, engine, self.next)?;
        self.sum.add(&bytes[SEGMENT_HEADER_SIZE_BYTES..]);
        self.next = self.next.next();
        if self.sum.left_size_bytes() > 0 {
            return Ok(false);
        }
        if !self.sum.is_right(engine) {
            let how = "the record's checksum does not match";
            return Err(damaged(self.position(), how));
        }
        Ok(true)
    }
}
