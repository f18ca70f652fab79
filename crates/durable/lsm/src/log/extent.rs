//! Extents: number of bytes in a log segment that count, for comparing two copies of it.

use super::part_sum::PartialRecordSum;
use super::record::{
    EngineId, PAYLOAD_SIZE_BYTES, RECORD_HEADER_SIZE_BYTES, RecordHeader, RecordKind, RecordView,
    SEGMENT_HEADER_SIZE_BYTES,
};
use crate::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES};

/// Computes how many bytes count of consecutive log segments. No reader of the log uses the bytes
/// behind them. So two segments are equal if the bytes that count are.
///
/// Fewer bytes than the segment has count only if all checksums up to there are right; otherwise
/// all bytes count.
#[derive(Clone, Debug)]
pub struct Extents {
    engine: EngineId,
    read_from: LogPosition,
    large: Option<ExtentLargeRecord>,
}

/// Record larger than a segment, of which a part was read.
#[derive(Clone, Debug)]
struct ExtentLargeRecord {
    sum: PartialRecordSum,
    /// Segment in which the record continues.
    next: LogNumber,
}

impl Extents {
    /// Creates extents for segments of an engine whose recovery starts at a position.
    pub const fn new(engine: EngineId, read_from: LogPosition) -> Self {
        Self {
            engine,
            read_from,
            large: None,
        }
    }

    /// Returns the number of bytes that count, from the segment's first one. `end` is the offset at
    /// which an earlier recovery ended the log, if any.
    pub fn size_of(&mut self, number: LogNumber, end: Option<u32>, bytes: &[u8]) -> usize {
        let known = match self.large.take().filter(|it| it.next == number) {
            Some(large) => self.large_end(large, bytes),
            None => self.records_end(number, bytes),
        };
        if let Some(end) = end {
            // A large record that began before that end is incomplete and does not continue.
            self.large = None;
            return bytes.len().min(end as usize);
        }
        known.unwrap_or(bytes.len()).min(bytes.len())
    }

    /// Returns the end of a record that began in an earlier segment; `None` if the record does not
    /// end here, or its checksum is wrong.
    fn large_end(&mut self, mut large: ExtentLargeRecord, bytes: &[u8]) -> Option<usize> {
        let end = SEGMENT_HEADER_SIZE_BYTES + large.sum.left_size_bytes().min(PAYLOAD_SIZE_BYTES);
        large.sum.add(bytes.get(SEGMENT_HEADER_SIZE_BYTES..end)?);
        if large.sum.left_size_bytes() == 0 {
            return large.sum.is_right(self.engine).then_some(end);
        }
        large.next = large.next.next();
        self.large = Some(large);
        None
    }

    /// Returns the end of the last record in the segment; `None` if it is not known.
    fn records_end(&mut self, number: LogNumber, bytes: &[u8]) -> Option<usize> {
        // Bytes before that position may be the rest of a record whose other parts are gone.
        let is_again = number == self.read_from.number();
        let mut is_met = !is_again || self.read_from.offset() <= SEGMENT_HEADER_SIZE_BYTES;
        let mut at = SEGMENT_HEADER_SIZE_BYTES;
        while at != bytes.len() && at + RECORD_HEADER_SIZE_BYTES <= SEGMENT_SIZE_BYTES as usize {
            is_met |= at == self.read_from.offset();
            let position = number.start().plus(at as u64);
            let rest = bytes.get(at..)?;
            let (expected, header) = RecordHeader::decode(rest.first_chunk()?)?;
            let size_bytes = header.record_size_bytes();
            if size_bytes > PAYLOAD_SIZE_BYTES {
                if at == SEGMENT_HEADER_SIZE_BYTES && rest.len() == PAYLOAD_SIZE_BYTES {
                    let mut sum = PartialRecordSum::begin(position, expected, header);
                    sum.add(&rest[RECORD_HEADER_SIZE_BYTES..]);
                    let next = number.next();
                    self.large = Some(ExtentLargeRecord { sum, next });
                }
                return None;
            }
            let view = RecordView::decode(rest, self.engine, position)?;
            at += view.size_bytes();
            if view.kind == RecordKind::End {
                break;
            }
        }
        is_met |= at == self.read_from.offset();
        is_met.then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{RecordSum, encode_record_header, encode_segment_header};
    use super::*;

    const ENGINE: EngineId = EngineId(7);
    const SIZE_BYTES: usize = SEGMENT_SIZE_BYTES as usize;

    fn push(bytes: &mut Vec<u8>, number: LogNumber, kind: RecordKind, value: &[u8]) {
        let at = number.start().plus(bytes.len() as u64);
        let (header, sum) = RecordSum::of(kind, b"", value);
        bytes.extend(encode_record_header(header, sum.at(ENGINE, at)));
        bytes.extend(value);
    }

    fn segment(number: u64, records: &[(RecordKind, &[u8])]) -> Vec<u8> {
        let number = LogNumber(number);
        let mut bytes = encode_segment_header(ENGINE, number).to_vec();
        for &(kind, value) in records {
            push(&mut bytes, number, kind, value);
        }
        bytes
    }

    fn extents(read_from: LogPosition) -> Extents {
        Extents::new(ENGINE, read_from)
    }

    /// Promise: bytes behind the last record do not count, whatever they are. If the end of the
    /// records is not known, all bytes count.
    #[test]
    fn what_is_behind_the_end_does_not_count() {
        let two: [(RecordKind, &[u8]); 2] = [(RecordKind::Put, b"value"), (RecordKind::End, b"")];
        let mut bytes = segment(3, &two);
        let end = bytes.len();
        bytes.resize(SIZE_BYTES, 0xee);
        let size = |read_from, end, bytes: &[u8]| {
            extents(LogPosition(read_from)).size_of(LogNumber(3), end, bytes)
        };
        assert_eq!(size(0, None, &bytes), end);
        assert_eq!(size(0, Some(40), &bytes), 40);
        assert_eq!(size(0, Some(u32::MAX), &bytes), SIZE_BYTES);
        let start = LogNumber(3).start().0;
        assert_eq!(size(start + 49, None, &bytes), end, "a record begins there");
        assert_eq!(size(start + 50, None, &bytes), SIZE_BYTES, "none does");
        for at in [0, 31, 33, 45, end - 1] {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            let expected = if at < 32 { end } else { SIZE_BYTES };
            assert_eq!(size(0, None, &flipped), expected, "byte {at}");
        }
        let open = segment(3, &two[..1]);
        assert_eq!(
            size(0, None, &open),
            open.len(),
            "it ended without a record"
        );
        assert_eq!(size(0, None, &bytes[..40]), 40, "half a record");
        let value = vec![1; SIZE_BYTES - 32 - 12 - 5];
        let mut full = segment(3, &[(RecordKind::Put, &value)]);
        full.resize(SIZE_BYTES, 0xee);
        assert_eq!(size(0, None, &full), SIZE_BYTES - 5, "no room for an end");
    }

    /// Promise: all bytes of a record larger than a segment count, and none behind it, even if it
    /// fills its last segment.
    #[test]
    fn large_records_count_to_their_end() {
        for (in_last, expected) in [(1, 33), (PAYLOAD_SIZE_BYTES, SIZE_BYTES)] {
            let value = vec![5; 2 * PAYLOAD_SIZE_BYTES + in_last - RECORD_HEADER_SIZE_BYTES];
            let mut whole = segment(3, &[(RecordKind::Put, &value)]);
            let rest = whole.split_off(SIZE_BYTES);
            let mut extents = extents(LogPosition(0));
            assert_eq!(extents.size_of(LogNumber(3), None, &whole), SIZE_BYTES);
            let goes_on = |number: u64, part: &[u8]| {
                let mut bytes = encode_segment_header(ENGINE, LogNumber(number)).to_vec();
                bytes.extend(part);
                bytes.resize(SIZE_BYTES, 0xee);
                bytes
            };
            let (second, third) = rest.split_at(PAYLOAD_SIZE_BYTES);
            let second = goes_on(4, second);
            assert_eq!(extents.size_of(LogNumber(4), None, &second), SIZE_BYTES);
            let third = goes_on(5, third);
            assert_eq!(extents.size_of(LogNumber(5), None, &third), expected);
            let mut next = segment(6, &[(RecordKind::End, b"")]);
            next.resize(SIZE_BYTES, 0xee);
            assert_eq!(extents.size_of(LogNumber(6), None, &next), 44);
        }
    }

    /// Promise: after an incomplete large record, an early end of the log, or a missing segment, no
    /// later segment counts fewer bytes.
    #[test]
    fn a_broken_large_record_hides_nothing() {
        let value = vec![5; 2 * PAYLOAD_SIZE_BYTES - RECORD_HEADER_SIZE_BYTES + 8];
        let mut whole = segment(3, &[(RecordKind::Put, &value)]);
        let rest = whole.split_off(SIZE_BYTES);
        let goes_on = |number: u64, part: &[u8]| {
            let mut bytes = encode_segment_header(ENGINE, LogNumber(number)).to_vec();
            bytes.extend(part);
            bytes.resize(SIZE_BYTES, 0xee);
            bytes
        };
        let (second, third) = rest.split_at(PAYLOAD_SIZE_BYTES);
        let parts = [whole, goes_on(4, second), goes_on(5, third)];
        for flipped in [
            (0, 32),
            (0, 44),
            (0, SIZE_BYTES - 1),
            (1, 32),
            (2, 32),
            (2, 39),
        ] {
            let mut parts = parts.clone();
            parts[flipped.0][flipped.1] ^= 1;
            let mut extents = extents(LogPosition(0));
            for (number, bytes) in (3..).map(LogNumber).zip(&parts) {
                let size_bytes = extents.size_of(number, None, bytes);
                assert_eq!(size_bytes, SIZE_BYTES, "{flipped:?}, {number:?}");
            }
        }
        let mut next = segment(
            5,
            &[(RecordKind::Put, b"acknowledged"), (RecordKind::End, b"")],
        );
        let end = next.len();
        next.resize(SIZE_BYTES, 0xee);
        for (ended, second) in [(Some(32), Some(4)), (Some(32), None), (None, None)] {
            let mut extents = extents(LogPosition(0));
            let first = ended.map_or(SIZE_BYTES, |end| end as usize);
            assert_eq!(extents.size_of(LogNumber(3), ended, &parts[0]), first);
            if second.is_some() {
                let size_bytes = extents.size_of(LogNumber(4), None, &parts[1]);
                assert_eq!(size_bytes, SIZE_BYTES);
            }
            assert_eq!(extents.size_of(LogNumber(5), None, &next), end, "{ended:?}");
        }
    }
}
