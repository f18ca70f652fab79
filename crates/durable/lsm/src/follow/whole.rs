//! Finding the end of the last complete record in a log that arrives in pieces.

use crate::log::part_sum::PartialRecordSum;
use crate::log::record::{
    EngineId, PAYLOAD_SIZE_BYTES, RECORD_HEADER_SIZE_BYTES, RecordHeader, RecordKind, RecordView,
    SEGMENT_HEADER_SIZE_BYTES,
};
use crate::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES};

/// Tracker of record headers in a log. A follower uses it to record a durable end that coincides
/// with the end of a record.
///
/// Costs a look at each record's header, and a checksum of each record larger than a segment. After
/// anything unexpected, the end is unknown from then on.
#[derive(Debug)]
pub(super) struct CompleteRecords {
    engine: EngineId,
    /// Position of the next record, in the current segment or a later one; `None` if it is unknown.
    next: Option<LogPosition>,
    large: Option<TrackedLargeRecord>,
}

/// Record larger than a segment, of which a part has arrived.
#[derive(Debug)]
struct TrackedLargeRecord {
    sum: PartialRecordSum,
    /// Position up to which the checksum covers the record.
    summed_to: LogPosition,
}

impl CompleteRecords {
    /// Creates a tracker for a log whose next record begins a segment.
    pub(super) const fn new(engine: EngineId, from: LogPosition) -> Self {
        Self {
            engine,
            next: Some(from),
            large: None,
        }
    }

    /// Takes the next bytes of the log, or some that were taken before. `is_closed` says that the
    /// segment has no more bytes.
    pub(super) fn take(&mut self, at: LogPosition, bytes: &[u8], is_closed: bool) {
        while let Some(next) = self.next.filter(|it| it.number() == at.number()) {
            let offset = next.offset().max(SEGMENT_HEADER_SIZE_BYTES);
            let is_full = offset + RECORD_HEADER_SIZE_BYTES > SEGMENT_SIZE_BYTES as usize;
            let index = offset.checked_sub(at.offset());
            let has_come = index.is_none_or(|it| it + RECORD_HEADER_SIZE_BYTES <= bytes.len());
            if is_full || !(has_come || is_closed) {
                break;
            }
            let rest = index.and_then(|it| bytes.get(it..)).unwrap_or_default();
            self.next = self.pass(at.number(), offset, rest);
        }
        self.sum_large(at, bytes);
        // If the rest of a segment is too small for a header, no *end* record marks the end.
        if is_closed && self.next.is_some_and(|it| it.number() == at.number()) {
            self.next = Some(at.number().next().start());
        }
    }

    /// Returns a position up to which all records are complete, if everything before `written_to`
    /// has arrived. It is the end of the last complete record, or the start of the next segment.
    ///
    /// Returns `None` if the last record is incomplete and not larger than a segment, or if the
    /// position is unknown.
    pub(super) fn complete_end(&self, written_to: LogPosition) -> Option<LogPosition> {
        let large = self.large.as_ref();
        let before_large = large.map(|it| it.sum.position().number().start());
        // Possibly only the header of the last record has arrived.
        before_large
            .or(self.next)
            .filter(|complete_end| *complete_end <= written_to)
    }

    /// Passes the record at an offset of a segment; returns the position of the next one, or `None`
    /// if it is unknown.
    fn pass(&mut self, number: LogNumber, offset: usize, rest: &[u8]) -> Option<LogPosition> {
        let position = number.start().plus(offset as u64);
        let (expected, header) = RecordHeader::decode(rest.first_chunk()?)?;
        let size_bytes = header.record_size_bytes();
        if size_bytes > PAYLOAD_SIZE_BYTES {
            if offset != SEGMENT_HEADER_SIZE_BYTES {
                return None;
            }
            self.large = Some(TrackedLargeRecord {
                sum: PartialRecordSum::begin(position, expected, header),
                summed_to: position.plus(RECORD_HEADER_SIZE_BYTES as u64),
            });
            let segment_count = size_bytes.div_ceil(PAYLOAD_SIZE_BYTES) as u64;
            return Some(LogNumber(number.0 + segment_count).start());
        }
        if header.kind == RecordKind::End {
            // No record follows this one in its segment, so it must be valid.
            RecordView::decode(rest, self.engine, position)?;
            return Some(number.next().start());
        }
        let end = position.plus(size_bytes as u64);
        (end <= number.next().start()).then_some(end)
    }

    /// Adds the bytes of a large record to its checksum.
    fn sum_large(&mut self, at: LogPosition, bytes: &[u8]) {
        let Some(large) = &mut self.large else {
            return;
        };
        let payload = at.number().start().plus(SEGMENT_HEADER_SIZE_BYTES as u64);
        large.summed_to = large.summed_to.max(payload);
        // Bytes that arrive again are in the checksum already.
        let index = large.summed_to.0.saturating_sub(at.0) as usize;
        let added_size_bytes = large.sum.add(bytes.get(index..).unwrap_or_default());
        large.summed_to = large.summed_to.plus(added_size_bytes as u64);
        if large.sum.left_size_bytes() > 0 {
            return;
        }
        if !large.sum.is_right(self.engine) {
            self.next = None;
        }
        self.large = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::record::{RecordSum, encode_record_header, encode_segment_header};

    const ENGINE: EngineId = EngineId(7);
    const SIZE_BYTES: usize = SEGMENT_SIZE_BYTES as usize;
    const OVERHEAD_BYTES: usize = SEGMENT_HEADER_SIZE_BYTES + RECORD_HEADER_SIZE_BYTES + 3;

    /// Returns a segment of records with values of these sizes, and an *end* record if that fits.
    fn segment(number: LogNumber, sizes: &[usize]) -> Vec<u8> {
        let mut bytes = encode_segment_header(ENGINE, number).to_vec();
        let mut push = |kind, value: &[u8]| {
            let at = number.start().plus(bytes.len() as u64);
            let (header, sum) = RecordSum::of(kind, b"key", value);
            bytes.extend(encode_record_header(header, sum.at(ENGINE, at)));
            bytes.extend(b"key");
            bytes.extend(value);
        };
        for size_bytes in sizes {
            push(RecordKind::Put, &vec![5; *size_bytes]);
        }
        if bytes.len() + RECORD_HEADER_SIZE_BYTES <= SIZE_BYTES {
            let at = number.start().plus(bytes.len() as u64);
            let (header, sum) = RecordSum::of(RecordKind::End, b"", b"");
            bytes.extend(encode_record_header(header, sum.at(ENGINE, at)));
        }
        bytes
    }

    fn new_tracker() -> CompleteRecords {
        CompleteRecords::new(ENGINE, LogNumber(3).start())
    }

    /// Promise: after a closed segment, everything before the next one is complete, however many
    /// pieces arrived. Within a segment, everything up to the end of an arrived record is.
    #[test]
    fn closed_segments_are_whole() {
        for sizes in [&[1_000_000][..], &[], &[0, 5, 700_000, 1]] {
            let bytes = segment(LogNumber(3), sizes);
            let (at, next) = (LogNumber(3).start(), LogNumber(4).start());
            let mut whole = new_tracker();
            whole.take(at, &bytes, true);
            assert_eq!(whole.complete_end(next), Some(next), "{sizes:?}");
            let mut whole = new_tracker();
            let first = OVERHEAD_BYTES + sizes.first().copied().unwrap_or(0);
            let first = first.min(bytes.len());
            whole.take(at, &bytes[..first], false);
            let come_to = at.plus(first as u64);
            if !sizes.is_empty() {
                assert_eq!(whole.complete_end(come_to), Some(come_to));
                assert_eq!(whole.complete_end(LogPosition(come_to.0 - 1)), None);
            }
            whole.take(come_to, &bytes[first..], true);
            assert_eq!(whole.complete_end(next), Some(next), "{sizes:?}");
        }
    }

    /// Promise: whatever space the last record leaves in a segment, everything before the next
    /// segment is complete, for one piece and for two.
    #[test]
    fn every_remainder_is_whole() {
        let (mut in_one, mut in_two) = (new_tracker(), new_tracker());
        let mut number = LogNumber(3);
        for left in 0..=40 {
            for left in [left, 11, left, 12, left, 0] {
                let bytes = segment(number, &[SIZE_BYTES - OVERHEAD_BYTES - left]);
                let at = number.start();
                in_one.take(at, &bytes, true);
                let half = SIZE_BYTES - left - 1;
                in_two.take(at, &bytes[..half], false);
                in_two.take(at.plus(half as u64), &bytes[half..], true);
                number = number.next();
                for whole in [&in_one, &in_two] {
                    assert_eq!(whole.complete_end(number.start()), Some(number.start()));
                }
            }
        }
    }

    /// Promise: a record larger than a segment is complete when all of it has arrived. It may fill
    /// its last segment, and a piece may arrive twice. Until then, everything before it is
    /// complete.
    #[test]
    fn large_records_are_whole_when_they_have_come() {
        for in_last in [1, 100, PAYLOAD_SIZE_BYTES] {
            let size_bytes = 2 * PAYLOAD_SIZE_BYTES + in_last;
            let value = vec![1; size_bytes - RECORD_HEADER_SIZE_BYTES];
            let (header, sum) = RecordSum::of(RecordKind::Put, b"", &value);
            let at = LogNumber(3).start().plus(SEGMENT_HEADER_SIZE_BYTES as u64);
            let mut record = encode_record_header(header, sum.at(ENGINE, at)).to_vec();
            record.extend(value);
            let mut whole = new_tracker();
            for (number, part) in (3..).map(LogNumber).zip(record.chunks(PAYLOAD_SIZE_BYTES)) {
                let mut bytes = encode_segment_header(ENGINE, number).to_vec();
                bytes.extend(part);
                let half = 100_000.min(bytes.len() - 1);
                whole.take(number.start(), &bytes[..half], false);
                let next = number.next().start();
                for _ in 0..2 {
                    whole.take(number.start().plus(half as u64), &bytes[half..], true);
                }
                let expected = if number.0 == 5 {
                    next
                } else {
                    LogNumber(3).start()
                };
                assert_eq!(
                    whole.complete_end(next),
                    Some(expected),
                    "{number:?}, {in_last}"
                );
            }
            whole.take(LogNumber(6).start(), &segment(LogNumber(6), &[5]), true);
            let next = LogNumber(7).start();
            assert_eq!(whole.complete_end(next), Some(next));
        }
    }

    /// Promise: after invalid data, nothing more is reported as complete. Cases are an invalid
    /// header, a wrong checksum of an *end*, a wrong size, and a piece that ends within a header of
    /// a closed segment.
    #[test]
    fn what_is_not_known_is_not_said() {
        let good = segment(LogNumber(3), &[1_000, 2_000]);
        let at = LogNumber(3).start();
        let end = good.len() - RECORD_HEADER_SIZE_BYTES;
        for (broken, bit) in [
            (SEGMENT_HEADER_SIZE_BYTES + 6, 0x40),
            (end, 0x40),
            (SEGMENT_HEADER_SIZE_BYTES + 10, 1 << 5),
        ] {
            let mut bytes = good.clone();
            bytes[broken] ^= bit;
            let mut whole = new_tracker();
            whole.take(at, &bytes, true);
            for number in [4, 5, 6] {
                let number = LogNumber(number);
                whole.take(number.start(), &segment(number, &[1_000_000]), true);
                let said = whole.complete_end(number.next().start());
                assert!(said.is_none_or(|it| it <= at), "{broken}: {said:?}");
            }
        }
        let mut whole = new_tracker();
        whole.take(at, &good[..SEGMENT_HEADER_SIZE_BYTES + 5], false);
        whole.take(
            at.plus(SEGMENT_HEADER_SIZE_BYTES as u64 + 5),
            &good[SEGMENT_HEADER_SIZE_BYTES + 5..],
            true,
        );
        assert_eq!(whole.complete_end(LogNumber(4).start()), None);
    }
}
