//! Where the records of a log end that comes in pieces, segment by segment (FO5).

use crate::log::part_sum::PartSum;
use crate::log::record::{
    EngineId, PAYLOAD_SIZE_BYTES, RECORD_HEADER_SIZE_BYTES, RecordHeader, RecordKind, RecordView,
    SEGMENT_HEADER_SIZE_BYTES,
};
use crate::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES};

/// How much counts of segments into which nothing more comes. Who follows gets all of their bytes;
/// of those behind the last record, which are nothing's, it need not write any: with records of
/// half a segment that would be as much again.
///
/// Costs a look at each record's header, and a sum of what is larger than a segment. What says
/// where records end is believed only if its own sum is right: an *end*, or a large record. Where
/// anything is not as it should be, all counts from then on.
#[derive(Debug)]
pub(super) struct RecordEnds {
    engine: EngineId,
    /// Where the next record begins, in the segment that comes or in a later one (VL3); `None`: not
    /// known.
    next: Option<LogPosition>,
    /// The last segment whose end is known, and how many of its bytes count. A segment that is
    /// full to its last byte ends where the next one begins, so a position would not tell which of
    /// the two ends there.
    end: Option<(LogNumber, usize)>,
    large: Option<Large>,
}

/// VL3: a record that no segment is large enough for, as far as it has come.
#[derive(Debug)]
struct Large {
    sum: PartSum,
    /// Everything before that place is in the sum.
    summed_to: LogPosition,
}

impl RecordEnds {
    /// Of a log whose next record begins a segment.
    pub(super) const fn new(engine: EngineId, from: LogPosition) -> Self {
        Self {
            engine,
            next: Some(from),
            end: None,
            large: None,
        }
    }

    /// How many of the bytes from a place on count, which are side by side with those before, or
    /// the same again. `is_closed`: nothing more comes into this segment.
    pub(super) fn counted(&mut self, at: LogPosition, bytes: &[u8], is_closed: bool) -> usize {
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
        if !is_closed {
            return bytes.len();
        }
        // One whose rest is too small for a header has no record that says that it ends.
        if self.next.is_some_and(|it| it.number() == at.number()) {
            self.next = Some(at.number().next().start());
        }
        let end = self.end.filter(|(number, _)| *number == at.number());
        let counted = end.map(|(_, size_bytes)| size_bytes.saturating_sub(at.offset()));
        counted.unwrap_or(bytes.len()).min(bytes.len())
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
        let end = position.plus(size_bytes as u64);
        if header.kind == RecordKind::End {
            // What is behind it counts for nothing, so it must be one.
            RecordView::decode(rest, self.engine, position)?;
            self.end = Some((number, offset + size_bytes));
            return Some(number.next().start());
        }
        (end <= number.next().start()).then_some(end)
    }

    /// Takes what these bytes have of a large record into its sum; where it ends is known when that
    /// is right.
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
        if large.sum.is_right(self.engine) {
            let end = large.summed_to.0 - at.number().start().0;
            self.end = Some((at.number(), end as usize));
        } else {
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

    /// A segment of records with values of so many bytes, up to a record *end* if that fits.
    fn segment(number: LogNumber, sizes: &[usize]) -> (Vec<u8>, usize) {
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
        let end = bytes.len();
        // What was there before, which no one wrote into this segment.
        bytes.resize(SIZE_BYTES.max(end), 0xab);
        (bytes, end)
    }

    fn ends() -> RecordEnds {
        RecordEnds::new(ENGINE, LogNumber(3).start())
    }

    /// Promise: of a segment that is closed what is behind its last record does not count, in
    /// however many pieces it comes; of one that is not, everything does.
    #[test]
    fn what_is_behind_the_last_record_does_not_count() {
        for sizes in [&[1_000_000][..], &[], &[0, 5, 700_000, 1]] {
            let (bytes, end) = segment(LogNumber(3), sizes);
            let at = LogNumber(3).start();
            assert_eq!(ends().counted(at, &bytes, true), end, "{sizes:?}");
            assert_eq!(ends().counted(at, &bytes, false), SIZE_BYTES);
            let first = SEGMENT_HEADER_SIZE_BYTES
                + sizes
                    .first()
                    .map_or(0, |it| RECORD_HEADER_SIZE_BYTES + 3 + it);
            let mut ends = ends();
            assert_eq!(ends.counted(at, &bytes[..first], false), first);
            let behind = at.plus(first as u64);
            assert_eq!(ends.counted(behind, &bytes[first..], true), end - first);
            // And of the next one.
            let (bytes, end) = segment(LogNumber(4), &[1_500_000]);
            assert_eq!(ends.counted(LogNumber(4).start(), &bytes, true), end);
        }
    }

    /// Promise (VL3): of a record that no segment is large enough for all counts, and nothing
    /// behind it; a segment that is full to less than a header counts as a whole.
    #[test]
    fn large_records_and_full_segments_count() {
        let size_bytes = 2 * PAYLOAD_SIZE_BYTES + 100;
        let value = vec![1; size_bytes - RECORD_HEADER_SIZE_BYTES];
        let (header, sum) = RecordSum::of(RecordKind::Put, b"", &value);
        let at = LogNumber(3).start().plus(SEGMENT_HEADER_SIZE_BYTES as u64);
        let mut record = encode_record_header(header, sum.at(ENGINE, at)).to_vec();
        record.extend(value);
        let mut ends = ends();
        for (index, part) in record.chunks(PAYLOAD_SIZE_BYTES).enumerate() {
            let number = LogNumber(3 + index as u64);
            let mut bytes = encode_segment_header(ENGINE, number).to_vec();
            bytes.extend(part);
            let end = bytes.len();
            bytes.resize(SIZE_BYTES, 0xab);
            // In two pieces, the second one twice, as where there was no room for it at first.
            let half = 100_000.min(end - 5);
            let behind = number.start().plus(half as u64);
            assert_eq!(ends.counted(number.start(), &bytes[..half], false), half);
            for _ in 0..2 {
                let counted = ends.counted(behind, &bytes[half..], true);
                assert_eq!(counted, end - half, "{index}");
            }
        }
        for left in [0, 11, 12, 11, 12, 0] {
            let number = ends.next.expect("it is known").number();
            let (bytes, expected) = full_segment(number, left);
            assert_eq!(ends.counted(number.start(), &bytes, true), expected);
        }
    }

    /// A segment of one record, which leaves so many bytes; how many bytes count.
    fn full_segment(number: LogNumber, left: usize) -> (Vec<u8>, usize) {
        let overhead = SEGMENT_HEADER_SIZE_BYTES + RECORD_HEADER_SIZE_BYTES + 3;
        let (bytes, end) = segment(number, &[SIZE_BYTES - overhead - left]);
        assert_eq!(bytes.len(), SIZE_BYTES, "{left}");
        let has_end = left >= RECORD_HEADER_SIZE_BYTES;
        (bytes, if has_end { end } else { SIZE_BYTES })
    }

    /// Promise: whatever a segment's last record leaves, all records of that segment and of the
    /// next one count, in one piece or in two. (An `End` record that fitted exactly counted as the
    /// end of the next segment, of which nothing was written then.)
    #[test]
    fn every_remainder_counts() {
        let (mut whole, mut in_two) = (ends(), ends());
        let mut number = LogNumber(3);
        for left in 0..=40 {
            for left in [left, 11, left, 12, left, 0] {
                let (bytes, expected) = full_segment(number, left);
                let at = number.start();
                assert_eq!(whole.counted(at, &bytes, true), expected, "{left}");
                let half = SIZE_BYTES - left - 1;
                assert_eq!(in_two.counted(at, &bytes[..half], false), half);
                let behind = at.plus(half as u64);
                let counted = in_two.counted(behind, &bytes[half..], true);
                assert_eq!(counted, expected - half, "{left}");
                number = number.next();
                for ends in [&whole, &in_two] {
                    assert_eq!(ends.whole_to(number.start()), Some(number.start()));
                }
            }
        }
    }

    /// Promise (VL3): after a record that fills its last segment to the last byte, all of the next
    /// segment counts.
    #[test]
    fn a_large_record_that_fills_its_last_segment_hides_nothing() {
        let value = vec![1; 2 * PAYLOAD_SIZE_BYTES - RECORD_HEADER_SIZE_BYTES];
        let (header, sum) = RecordSum::of(RecordKind::Put, b"", &value);
        let at = LogNumber(3).start().plus(SEGMENT_HEADER_SIZE_BYTES as u64);
        let mut record = encode_record_header(header, sum.at(ENGINE, at)).to_vec();
        record.extend(value);
        let mut ends = ends();
        for (number, part) in (3..).map(LogNumber).zip(record.chunks(PAYLOAD_SIZE_BYTES)) {
            let mut bytes = encode_segment_header(ENGINE, number).to_vec();
            bytes.extend(part);
            assert_eq!(ends.counted(number.start(), &bytes, true), SIZE_BYTES);
        }
        let (bytes, expected) = full_segment(LogNumber(5), 11);
        assert_eq!(ends.counted(LogNumber(5).start(), &bytes, true), expected);
    }

    /// Promise: a header that says that its record is larger than a segment, and is not, hides
    /// nothing of the next one. (One bit of a value's size had 1,079 bytes of that count.)
    #[test]
    fn a_broken_size_hides_nothing() {
        let (mut bytes, _) = segment(LogNumber(3), &[1_000, 2_000]);
        bytes[SEGMENT_HEADER_SIZE_BYTES + 8 + 2] ^= 1 << 5;
        let mut ends = ends();
        let at = LogNumber(3).start();
        assert_eq!(ends.counted(at, &bytes, true), SIZE_BYTES);
        for number in [4, 5] {
            let number = LogNumber(number);
            let (bytes, _) = segment(number, &[1_000_000]);
            assert_eq!(ends.counted(number.start(), &bytes, true), SIZE_BYTES);
        }
    }

    /// Promise: where a header is not one, or an end has not the right sum, all counts, there and
    /// from then on.
    #[test]
    fn what_is_not_known_counts() {
        let (good, end) = segment(LogNumber(3), &[1_000, 2_000]);
        let at = LogNumber(3).start();
        for broken in [
            SEGMENT_HEADER_SIZE_BYTES + 6,
            end - RECORD_HEADER_SIZE_BYTES,
        ] {
            let mut bytes = good.clone();
            bytes[broken] ^= 0x40;
            let mut ends = ends();
            assert_eq!(ends.counted(at, &bytes, true), SIZE_BYTES, "{broken}");
            let (next, _) = segment(LogNumber(4), &[1_000]);
            assert_eq!(ends.counted(LogNumber(4).start(), &next, true), SIZE_BYTES);
        }
        // A piece that ends within a header.
        let mut ends = ends();
        let part = SEGMENT_HEADER_SIZE_BYTES + 5;
        assert_eq!(ends.counted(at, &good[..part], false), part);
        let behind = at.plus(part as u64);
        let rest = SIZE_BYTES - part;
        assert_eq!(ends.counted(behind, &good[part..], true), rest);
    }
}
