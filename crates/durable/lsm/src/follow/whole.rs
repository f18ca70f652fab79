//! Up to where the records of a log are whole that comes in pieces, segment by segment (FO6).

use crate::log::part_sum::PartSum;
use crate::log::record::{
    EngineId, PAYLOAD_SIZE_BYTES, RECORD_HEADER_SIZE_BYTES, RecordHeader, RecordKind, RecordView,
    SEGMENT_HEADER_SIZE_BYTES,
};
use crate::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES};

/// Follows the records of a log from header to header, so that a follower can say up to where what
/// it has synced ends with a record (VL6).
///
/// Costs a look at each record's header, and a checksum of each record larger than a segment. Where
/// anything is not as expected, nothing is known from then on.
#[derive(Debug)]
pub(super) struct WholeRecords {
    engine: EngineId,
    /// Where the next record begins, in the segment that comes or in a later one (VL3); `None`: not
    /// known.
    next: Option<LogPosition>,
    large: Option<Large>,
}

/// VL3: a record that no segment is large enough for, as far as it has come.
#[derive(Debug)]
struct Large {
    sum: PartSum,
    /// Everything before that place is in the sum.
    summed_to: LogPosition,
}

impl WholeRecords {
    /// Of a log whose next record begins a segment.
    pub(super) const fn new(engine: EngineId, from: LogPosition) -> Self {
        Self {
            engine,
            next: Some(from),
            large: None,
        }
    }

    /// Takes the bytes from a place on, which are side by side with those before, or the same
    /// again. `is_closed`: nothing more comes into this segment.
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
        // One whose rest is too small for a header has no record that says that it ends.
        if is_closed && self.next.is_some_and(|it| it.number() == at.number()) {
            self.next = Some(at.number().next().start());
        }
    }

    /// A place up to which all records are whole, where everything has come up to another one. It
    /// is the end of the last one that is, or where the next segment begins. `None`: the last one
    /// is not larger than a segment, and has not come to its end; or it is not known.
    pub(super) fn whole_to(&self, written_to: LogPosition) -> Option<LogPosition> {
        let large = self.large.as_ref();
        let before_large = large.map(|it| it.sum.position().number().start());
        // The header of the last one may be all of it that has come.
        before_large
            .or(self.next)
            .filter(|whole_to| *whole_to <= written_to)
    }

    /// Passes the record that begins at an offset of a segment; where the next one begins. `None`:
    /// that is not known.
    fn pass(&mut self, number: LogNumber, offset: usize, rest: &[u8]) -> Option<LogPosition> {
        let position = number.start().plus(offset as u64);
        let (expected, header) = RecordHeader::decode(rest.first_chunk()?)?;
        let size_bytes = header.record_size_bytes();
        if size_bytes > PAYLOAD_SIZE_BYTES {
            if offset != SEGMENT_HEADER_SIZE_BYTES {
                return None;
            }
            self.large = Some(Large {
                sum: PartSum::begin(position, (expected, header)),
                summed_to: position.plus(RECORD_HEADER_SIZE_BYTES as u64),
            });
            let segment_count = size_bytes.div_ceil(PAYLOAD_SIZE_BYTES) as u64;
            return Some(LogNumber(number.0 + segment_count).start());
        }
        if header.kind == RecordKind::End {
            // No record comes behind it in this segment, so it must be one.
            RecordView::decode(rest, self.engine, position)?;
            return Some(number.next().start());
        }
        let end = position.plus(size_bytes as u64);
        (end <= number.next().start()).then_some(end)
    }

    /// Takes what these bytes have of a large record into its sum.
    fn sum_large(&mut self, at: LogPosition, bytes: &[u8]) {
        let Some(large) = &mut self.large else {
            return;
        };
        let payload = at.number().start().plus(SEGMENT_HEADER_SIZE_BYTES as u64);
        large.summed_to = large.summed_to.max(payload);
        // What comes again is in there already.
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

    /// A segment of records with values of so many bytes, up to a record *end* if that fits.
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

    fn begun() -> WholeRecords {
        WholeRecords::new(ENGINE, LogNumber(3).start())
    }

    /// Promise: behind a closed segment, all before the next one is whole, in however many pieces
    /// it came; within one, all up to the end of a record that has come.
    #[test]
    fn closed_segments_are_whole() {
        for sizes in [&[1_000_000][..], &[], &[0, 5, 700_000, 1]] {
            let bytes = segment(LogNumber(3), sizes);
            let (at, next) = (LogNumber(3).start(), LogNumber(4).start());
            let mut whole = begun();
            whole.take(at, &bytes, true);
            assert_eq!(whole.whole_to(next), Some(next), "{sizes:?}");
            let mut whole = begun();
            let first = OVERHEAD_BYTES + sizes.first().copied().unwrap_or(0);
            let first = first.min(bytes.len());
            whole.take(at, &bytes[..first], false);
            let come_to = at.plus(first as u64);
            if !sizes.is_empty() {
                assert_eq!(whole.whole_to(come_to), Some(come_to));
                assert_eq!(whole.whole_to(LogPosition(come_to.0 - 1)), None);
            }
            whole.take(come_to, &bytes[first..], true);
            assert_eq!(whole.whole_to(next), Some(next), "{sizes:?}");
        }
    }

    /// Promise: whatever a segment's last record leaves, all before the next segment is whole, in
    /// one piece or in two.
    #[test]
    fn every_remainder_is_whole() {
        let (mut in_one, mut in_two) = (begun(), begun());
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
                    assert_eq!(whole.whole_to(number.start()), Some(number.start()));
                }
            }
        }
    }

    /// Promise (VL3): a record that no segment is large enough for is whole when all of it has
    /// come, also if it fills its last segment, and if a piece comes twice; before, all before it
    /// is.
    #[test]
    fn large_records_are_whole_when_they_have_come() {
        for in_last in [1, 100, PAYLOAD_SIZE_BYTES] {
            let size_bytes = 2 * PAYLOAD_SIZE_BYTES + in_last;
            let value = vec![1; size_bytes - RECORD_HEADER_SIZE_BYTES];
            let (header, sum) = RecordSum::of(RecordKind::Put, b"", &value);
            let at = LogNumber(3).start().plus(SEGMENT_HEADER_SIZE_BYTES as u64);
            let mut record = encode_record_header(header, sum.at(ENGINE, at)).to_vec();
            record.extend(value);
            let mut whole = begun();
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
                    whole.whole_to(next),
                    Some(expected),
                    "{number:?}, {in_last}"
                );
            }
            whole.take(LogNumber(6).start(), &segment(LogNumber(6), &[5]), true);
            let next = LogNumber(7).start();
            assert_eq!(whole.whole_to(next), Some(next));
        }
    }

    /// Promise: where a header is none, an *end* has not the right sum, a size is not what was
    /// written, or a piece ends within a header of a closed segment, nothing is said to be whole,
    /// there and from then on.
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
            let mut whole = begun();
            whole.take(at, &bytes, true);
            for number in [4, 5, 6] {
                let number = LogNumber(number);
                whole.take(number.start(), &segment(number, &[1_000_000]), true);
                let said = whole.whole_to(number.next().start());
                assert!(said.is_none_or(|it| it <= at), "{broken}: {said:?}");
            }
        }
        let mut whole = begun();
        whole.take(at, &good[..SEGMENT_HEADER_SIZE_BYTES + 5], false);
        whole.take(
            at.plus(SEGMENT_HEADER_SIZE_BYTES as u64 + 5),
            &good[SEGMENT_HEADER_SIZE_BYTES + 5..],
            true,
        );
        assert_eq!(whole.whole_to(LogNumber(4).start()), None);
    }
}
