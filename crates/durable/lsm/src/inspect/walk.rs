//! Where the records of a log segment end (VL1 to VL3).

use crate::log::part_sum::PartSum;
use crate::log::record::{
    EngineId, PAYLOAD_SIZE_BYTES, RECORD_HEADER_SIZE_BYTES, RecordHeader, RecordKind, RecordView,
    SEGMENT_HEADER_SIZE_BYTES, encode_segment_header,
};
use crate::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES};

/// How many of a segment's bytes belong to records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentEnd {
    /// The segment has no header of this log and number.
    NotBegun,
    /// No whole record is at this offset: more may come.
    Open(usize),
    /// Nothing more comes into this segment.
    Closed(usize),
}

/// Passes over the segments of a log in their order, and checks every record's checksum.
#[derive(Debug)]
pub(super) struct RecordWalk {
    engine: EngineId,
    read_from: LogPosition,
    large: Option<Large>,
    write_end: LogPosition,
}

/// A record that is larger than a segment (VL3), as far as it was read.
#[derive(Debug)]
struct Large {
    sum: PartSum,
    /// The segment in which it continues.
    next: LogNumber,
}

impl RecordWalk {
    pub(super) const fn new(engine: EngineId, read_from: LogPosition) -> Self {
        Self {
            engine,
            read_from,
            large: None,
            write_end: LogPosition(0),
        }
    }

    /// Position behind the last record that is a put, a delete, or was moved by a merge.
    pub(super) const fn write_end(&self) -> LogPosition {
        self.write_end
    }

    /// Where a large record begins of which the end was not read.
    pub(super) fn unfinished(&self) -> Option<LogPosition> {
        self.large.as_ref().map(|it| it.sum.position())
    }

    /// Passes over a segment. `end`: the log ended there when the directory was opened once.
    pub(super) fn pass(&mut self, number: LogNumber, end: Option<u32>, bytes: &[u8]) -> SegmentEnd {
        let large = self.large.take().filter(|it| it.next == number);
        if bytes.get(..SEGMENT_HEADER_SIZE_BYTES)
            != Some(&encode_segment_header(self.engine, number))
        {
            // The record may still come, as far as anybody can tell.
            self.large = large;
            return SegmentEnd::NotBegun;
        }
        let limit = end.map_or(SEGMENT_SIZE_BYTES as usize, |it| it as usize);
        let passed = match large {
            Some(large) => self.pass_large(large, bytes),
            None => self.pass_records(number, limit, bytes),
        };
        match passed {
            // What was begun before that place continues nowhere.
            SegmentEnd::Closed(size_bytes) if end.is_some() => {
                self.large = None;
                SegmentEnd::Closed(size_bytes.min(limit))
            }
            other => other,
        }
    }

    fn pass_large(&mut self, mut large: Large, bytes: &[u8]) -> SegmentEnd {
        let size_bytes = large.sum.left_size_bytes().min(PAYLOAD_SIZE_BYTES);
        let end = SEGMENT_HEADER_SIZE_BYTES + size_bytes;
        large.sum.add(&bytes[SEGMENT_HEADER_SIZE_BYTES..end]);
        if large.sum.left_size_bytes() == 0 {
            if !large.sum.is_right(self.engine) {
                self.large = Some(large);
                return SegmentEnd::Open(SEGMENT_HEADER_SIZE_BYTES);
            }
            self.write_end = large.next.start().plus(end as u64);
            return SegmentEnd::Closed(end);
        }
        large.next = large.next.next();
        self.large = Some(large);
        SegmentEnd::Closed(end)
    }

    fn pass_records(&mut self, number: LogNumber, limit: usize, bytes: &[u8]) -> SegmentEnd {
        let mut at = SEGMENT_HEADER_SIZE_BYTES;
        while at < limit && at + RECORD_HEADER_SIZE_BYTES <= SEGMENT_SIZE_BYTES as usize {
            let position = number.start().plus(at as u64);
            let rest = &bytes[at..limit];
            if at == SEGMENT_HEADER_SIZE_BYTES
                && let Some(large) = begin_large(position, rest)
            {
                self.large = Some(large);
                return SegmentEnd::Closed(SEGMENT_SIZE_BYTES as usize);
            }
            let Some(view) = RecordView::decode(rest, self.engine, position) else {
                return self.broken(number, at);
            };
            at += view.size_bytes();
            match view.kind {
                RecordKind::End => return SegmentEnd::Closed(at),
                RecordKind::Mark => {}
                RecordKind::Put | RecordKind::Delete | RecordKind::Moved => {
                    self.write_end = number.start().plus(at as u64);
                }
            }
        }
        SegmentEnd::Closed(at)
    }

    /// No whole record is at an offset. What is before the place from which the log is read may be
    /// the end of a large record whose other segments were reclaimed.
    fn broken(&self, number: LogNumber, at: usize) -> SegmentEnd {
        let is_rest = at == SEGMENT_HEADER_SIZE_BYTES && number == self.read_from.number();
        if is_rest && self.read_from.offset() > at {
            return SegmentEnd::Closed(self.read_from.offset());
        }
        SegmentEnd::Open(at)
    }
}

/// A record that begins at a place and fills the segment's rest, and more.
fn begin_large(position: LogPosition, rest: &[u8]) -> Option<Large> {
    let (expected, header) = RecordHeader::decode(rest.first_chunk()?)?;
    if header.record_size_bytes() <= PAYLOAD_SIZE_BYTES || rest.len() < PAYLOAD_SIZE_BYTES {
        return None;
    }
    let mut sum = PartSum::begin(position, (expected, header));
    sum.add(&rest[RECORD_HEADER_SIZE_BYTES..]);
    let next = position.number().next();
    Some(Large { sum, next })
}
