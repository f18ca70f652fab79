//! Finding the ends of the records in each log segment.

use crate::log::part_sum::PartialRecordSum;
use crate::log::record::{
    EngineId, PAYLOAD_SIZE_BYTES, RECORD_HEADER_SIZE_BYTES, RecordHeader, RecordKind, RecordView,
    SEGMENT_HEADER_SIZE_BYTES, encode_segment_header,
};
use crate::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES};

/// Number of a segment's bytes that belong to records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentEnd {
    /// The segment has no header of this log and number.
    NotBegun,
    /// No complete record is at this offset; more may be written there.
    Open(usize),
    /// An end record is at this offset.
    EndRecord(usize),
    /// The segment is complete without an end record: it is full, or an earlier recovery ended the
    /// log there.
    Closed(usize),
}

/// Walk over the segments of a log in order that verifies every record's checksum.
#[derive(Debug)]
pub(super) struct RecordWalk {
    engine: EngineId,
    read_from: LogPosition,
    large: Option<WalkedLargeRecord>,
    write_end: LogPosition,
}

/// Record larger than a segment, of which a part was read.
#[derive(Debug)]
struct WalkedLargeRecord {
    sum: PartialRecordSum,
    /// Segment in which the record continues.
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

    /// Returns the position behind the last record that is a put, a delete, or was moved by a
    /// merge.
    pub(super) const fn write_end(&self) -> LogPosition {
        self.write_end
    }

    /// Returns the position of a large record whose end was not read.
    pub(super) fn unfinished(&self) -> Option<LogPosition> {
        self.large.as_ref().map(|it| it.sum.position())
    }

    /// Passes over a segment. `end` is the offset at which an earlier recovery ended the log there,
    /// if any.
    pub(super) fn pass(&mut self, number: LogNumber, end: Option<u32>, bytes: &[u8]) -> SegmentEnd {
        let large = self.large.take().filter(|it| it.next == number);
        if bytes.get(..SEGMENT_HEADER_SIZE_BYTES)
            != Some(&encode_segment_header(self.engine, number))
        {
            // The rest of the record may still be written.
            self.large = large;
            return SegmentEnd::NotBegun;
        }
        let limit = end.map_or(SEGMENT_SIZE_BYTES as usize, |it| it as usize);
        let passed = match large {
            Some(large) => self.pass_large(large, bytes),
            None => self.pass_records(number, limit, bytes),
        };
        match passed {
            // A record that began before that offset does not continue.
            SegmentEnd::Closed(size_bytes) if end.is_some() => {
                self.large = None;
                SegmentEnd::Closed(size_bytes.min(limit))
            }
            other => other,
        }
    }

    fn pass_large(&mut self, mut large: WalkedLargeRecord, bytes: &[u8]) -> SegmentEnd {
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
            let end = at + view.size_bytes();
            match view.kind {
                RecordKind::End => return SegmentEnd::EndRecord(at),
                RecordKind::Mark => {}
                RecordKind::Put | RecordKind::Delete | RecordKind::Moved => {
                    self.write_end = number.start().plus(end as u64);
                }
            }
            at = end;
        }
        SegmentEnd::Closed(at)
    }

    /// Handles an offset without a complete record. Bytes before the start of recovery may be the
    /// end of a large record whose other segments were reclaimed.
    fn broken(&self, number: LogNumber, at: usize) -> SegmentEnd {
        let is_rest = at == SEGMENT_HEADER_SIZE_BYTES && number == self.read_from.number();
        if is_rest && self.read_from.offset() > at {
            return SegmentEnd::Closed(self.read_from.offset());
        }
        SegmentEnd::Open(at)
    }
}

/// Begins a record that fills the rest of a segment, and more.
fn begin_large(position: LogPosition, rest: &[u8]) -> Option<WalkedLargeRecord> {
    let (expected, header) = RecordHeader::decode(rest.first_chunk()?)?;
    if header.record_size_bytes() <= PAYLOAD_SIZE_BYTES || rest.len() < PAYLOAD_SIZE_BYTES {
        return None;
    }
    let mut sum = PartialRecordSum::begin(position, expected, header);
    sum.add(&rest[RECORD_HEADER_SIZE_BYTES..]);
    let next = position.number().next();
    Some(WalkedLargeRecord { sum, next })
}
