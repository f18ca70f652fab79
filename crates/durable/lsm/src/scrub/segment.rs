//! One log segment: its header, and all records that begin in it (SC2).

use super::verified::VerifiedPiece;
use crate::error::LsmError;
use crate::log::damaged;
use crate::log::part_sum::PartSum;
use crate::log::record::{
    EngineId, PAYLOAD_SIZE_BYTES, RECORD_HEADER_SIZE_BYTES, RecordHeader, RecordKind, RecordView,
    SEGMENT_HEADER_SIZE_BYTES, encode_segment_header,
};
use crate::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES, SegmentId};

/// What a segment is.
#[derive(Debug)]
pub(super) enum Part {
    /// All of its records are whole. Nothing behind this offset counts.
    Whole { end: usize },
    /// It has one, which goes on in the next segments.
    GoesOn(Box<Large>),
    /// It has one that would go on in the next segments, and this one is not full: damage, unless
    /// the rest is to come.
    NotAll(LsmError),
}

/// A record that no segment is large enough for (VL3), as far as it was read.
#[derive(Debug)]
pub(super) struct Large {
    sum: PartSum,
    /// Where the segment is in which it begins.
    pub(super) segment: SegmentId,
    /// The segment that it goes on in.
    pub(super) next: LogNumber,
    /// Its segments so far, for whoever compares them with a follower's when the record is known to
    /// be valid.
    pub(super) pieces: Vec<VerifiedPiece>,
}

/// Checks what a segment has on the device.
pub(super) fn check_segment(
    bytes: &[u8],
    engine: EngineId,
    (number, segment): (LogNumber, SegmentId),
) -> Result<Part, LsmError> {
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
                return Err(damaged(position, "the record is too large for its place"));
            }
            if bytes.len() < SEGMENT_SIZE_BYTES as usize {
                let error = damaged(position, "the record does not go on");
                return Ok(Part::NotAll(error));
            }
            let mut sum = PartSum::begin(position, (expected, header));
            sum.add(&rest[RECORD_HEADER_SIZE_BYTES..]);
            return Ok(Part::GoesOn(Box::new(Large {
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
    Ok(Part::Whole { end: at })
}

fn check_header(bytes: &[u8], engine: EngineId, number: LogNumber) -> Result<(), LsmError> {
    let header = encode_segment_header(engine, number);
    if bytes.get(..SEGMENT_HEADER_SIZE_BYTES) != Some(&header) {
        let how = "the segment does not begin as one of this log";
        return Err(damaged(number.start(), how));
    }
    Ok(())
}

impl Large {
    /// Where it begins.
    pub(super) const fn position(&self) -> LogPosition {
        self.sum.position()
    }

    /// Up to where it is in the next segment.
    pub(super) fn end_in_next(&self) -> usize {
        SEGMENT_HEADER_SIZE_BYTES + self.sum.left_size_bytes().min(PAYLOAD_SIZE_BYTES)
    }

    /// The first segment behind it.
    pub(super) fn end(&self) -> LogNumber {
        let count = self.sum.left_size_bytes().div_ceil(PAYLOAD_SIZE_BYTES);
        LogNumber(self.next.0 + count as u64)
    }

    /// Takes in what the next segment has of it; true: that was all.
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
