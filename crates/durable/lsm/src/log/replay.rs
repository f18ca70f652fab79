//! Reading the log for recovery.

use std::collections::BTreeSet;

use crate::device::Device;
use crate::error::LsmError;
use crate::manifest::ManifestState;
use crate::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES, SegmentId};

use super::read::damaged;
use super::record::{
    EngineId, MARK_SIZE_BYTES, Mark, PAYLOAD_SIZE_BYTES, RECORD_HEADER_SIZE_BYTES, RecordHeader,
    RecordKind, RecordView, SEGMENT_HEADER_SIZE_BYTES, SUM_SIZE_BYTES, encode_record_header,
    encode_segment_header, segment_number,
};

/// Result of reading the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Last segment that counts, and the offset at which the log ends in it; `None` if there is
    /// none.
    pub last: Option<(LogNumber, u32)>,
    /// Number of records passed to the caller.
    pub record_count: u64,
    /// Largest number of manifest edits in a mark.
    pub edit_count: u64,
}

/// Put or delete of the log.
#[derive(Clone, Copy, Debug)]
pub struct ReplayedRecord<'b> {
    /// Position of the record.
    pub position: LogPosition,
    /// Key of the record.
    pub key: &'b [u8],
    /// Whether the record deletes the key.
    pub is_delete: bool,
    /// Size of the record in the log, in bytes.
    pub size_bytes: u64,
}

/// Reads the log from the start of recovery, and passes puts and deletes to a function in log
/// order.
///
/// Reads each segment once. Uses the memory of two segments, and of one record larger than a
/// segment. If the device is shared with another copy, segments that the manifest does not name may
/// belong to that copy.
///
/// # Errors
/// [`LsmError::CorruptLog`] if durable data is lost or corrupted, or the log cannot be read.
pub fn replay(
    device: &Device,
    state: &ManifestState,
    is_shared: bool,
    take: &mut dyn FnMut(ReplayedRecord<'_>),
) -> Result<Replayed, LsmError> {
    let mut replay = Replay::new(device, state);
    let end = replay.read_all(state.read_from, take)?;
    replay.check_what_was_synced(state, end)?;
    replay.check_nothing_was_behind(end)?;
    if !is_shared {
        check_all_are_named(device, state)?;
    }
    replay.count_before(state);
    Ok(replay.found)
}

/// Returns the end of a log that was copied from another device, up to a position if that is known.
///
/// Marks describe the other device and prove nothing about this one. So data behind the end counts
/// only if the manifest says so. Costs as much as [`replay`].
///
/// # Errors
/// [`LsmError::CorruptLog`] if data is missing that trees refer to, that an earlier recovery found,
/// or that was copied or synced. Otherwise, the log cannot be read.
pub fn find_end(
    device: &Device,
    state: &ManifestState,
    copied_to: Option<LogPosition>,
) -> Result<Replayed, LsmError> {
    let mut replay = Replay::new(device, state);
    let end = replay.read_all(state.read_from, &mut |_| {})?;
    replay.check_what_was_synced(state, end)?;
    // If all segments were read, there is nothing more. Of the numbers up to the next one, the
    // segments that were still reserved when the log was last opened were never used.
    let is_cut = replay.index < replay.segments.len();
    let missing = copied_to.filter(|copied_to| is_cut && end < *copied_to);
    if let Some(copied_to) = missing
        && !replay.goes_on_behind(end, copied_to)?
    {
        let how = format!("no valid record is there, but the log was written up to {copied_to}");
        return Err(damaged(end, how));
    }
    replay.count_before(state);
    Ok(replay.found)
}

/// Returns how far a log goes: a position behind the start of the last complete record, or the
/// start of recovery if there is none. Nothing counts as corruption. Reads each segment once, as
/// [`replay`] does.
///
/// # Errors
/// The log cannot be read.
pub fn reach(device: &Device, state: &ManifestState) -> Result<LogPosition, LsmError> {
    let mut reach = state.read_from;
    let mut replay = Replay::new(device, state);
    replay.read_all(state.read_from, &mut |record| {
        reach = LogPosition(record.position.0 + 1);
    })?;
    Ok(reach)
}

struct Replay<'a> {
    device: &'a Device,
    engine: EngineId,
    segments: Vec<(LogNumber, crate::manifest::LogEntry)>,
    index: usize,
    buffer: Vec<u8>,
    found: Replayed,
}

/// Continuation of a segment.
enum NextRecord {
    /// The record ended, and the next one begins at this offset.
    At(usize),
    /// The segment has ended.
    Segment,
    /// No complete record is there.
    Broken,
}

impl<'a> Replay<'a> {
    fn new(device: &'a Device, state: &ManifestState) -> Self {
        let numbers = state.log.range(state.read_from.number()..);
        Self {
            device,
            engine: state.engine,
            segments: numbers.map(|(number, it)| (*number, *it)).collect(),
            index: 0,
            buffer: vec![0; SEGMENT_SIZE_BYTES as usize],
            found: Replayed {
                last: None,
                record_count: 0,
                edit_count: 0,
            },
        }
    }

    /// Returns true if a record larger than a segment begins at a position and ends behind another
    /// one: only a part of it has arrived.
    fn goes_on_behind(
        &mut self,
        position: LogPosition,
        place: LogPosition,
    ) -> Result<bool, LsmError> {
        let number = position.number();
        let mut segments = self.segments.iter();
        let Some((_, entry)) = segments.find(|it| it.0 == number).copied() else {
            return Ok(false);
        };
        self.load(number, entry.segment)?;
        let first = self.buffer[position.offset()..].first_chunk();
        let size_bytes = first
            .and_then(RecordHeader::decode)
            .map_or(0, |(_, header)| header.record_size_bytes());
        if size_bytes <= PAYLOAD_SIZE_BYTES || position.offset() != SEGMENT_HEADER_SIZE_BYTES {
            return Ok(false);
        }
        let whole = (size_bytes - 1) / PAYLOAD_SIZE_BYTES;
        let in_last = size_bytes - whole * PAYLOAD_SIZE_BYTES;
        let last = LogNumber(number.0 + whole as u64).start();
        Ok(last.plus((SEGMENT_HEADER_SIZE_BYTES + in_last) as u64) > place)
    }

    /// Counts segments before the start of recovery, too: trees refer to them.
    fn count_before(&mut self, state: &ManifestState) {
        if self.found.last.is_none() {
            let before = state.log.range(..state.read_from.number()).next_back();
            let end =
                |entry: &crate::manifest::LogEntry| entry.end.unwrap_or(SEGMENT_SIZE_BYTES as u32);
            self.found.last = before.map(|(number, entry)| (*number, end(entry)));
        }
    }
}

impl Replay<'_> {
    /// Passes all records to a function; returns the position of the first incomplete one.
    fn read_all(
        &mut self,
        from: LogPosition,
        take: &mut dyn FnMut(ReplayedRecord<'_>),
    ) -> Result<LogPosition, LsmError> {
        while let Some((number, entry)) = self.segments.get(self.index).copied() {
            self.load(number, entry.segment)?;
            let header = encode_segment_header(self.engine, number);
            if self.buffer[..SEGMENT_HEADER_SIZE_BYTES] != header {
                return Ok(number.start());
            }
            let is_first = number == from.number();
            let mut at = if is_first { from.offset() } else { 0 }.max(SEGMENT_HEADER_SIZE_BYTES);
            self.found.last = Some((number, at as u32));
            let end = entry
                .end
                .map_or(SEGMENT_SIZE_BYTES as usize, |end| end as usize);
            loop {
                if at >= end || at + RECORD_HEADER_SIZE_BYTES > SEGMENT_SIZE_BYTES as usize {
                    break;
                }
                match self.take_record(number, at, take)? {
                    NextRecord::At(next) => at = next,
                    NextRecord::Segment => break,
                    NextRecord::Broken => return Ok(number.start().plus(at as u64)),
                }
                self.note_end(at);
            }
            self.index += 1;
        }
        let end = self
            .found
            .last
            .map_or(from, |(number, _)| number.next().start());
        Ok(end)
    }

    /// Records that everything read so far counts.
    fn note_end(&mut self, at: usize) {
        let (number, _) = self.segments[self.index];
        self.found.last = Some((number, at as u32));
    }

    fn load(&mut self, number: LogNumber, segment: SegmentId) -> Result<(), LsmError> {
        debug_assert!(self.segments.iter().any(|(other, _)| *other == number));
        self.device.read(segment, 0, &mut self.buffer)
    }

    fn take_record(
        &mut self,
        number: LogNumber,
        at: usize,
        take: &mut dyn FnMut(ReplayedRecord<'_>),
    ) -> Result<NextRecord, LsmError> {
        let position = number.start().plus(at as u64);
        let bytes = &self.buffer[at..];
        let Some((_, header)) = bytes.first_chunk().and_then(RecordHeader::decode) else {
            return Ok(NextRecord::Broken);
        };
        if header.record_size_bytes() > PAYLOAD_SIZE_BYTES {
            return self.take_large(position, header, take);
        }
        let Some(view) = RecordView::decode(bytes, self.engine, position) else {
            return Ok(NextRecord::Broken);
        };
        match view.kind {
            RecordKind::Put | RecordKind::Delete => {
                self.found.record_count += 1;
                take(ReplayedRecord {
                    position,
                    key: view.key,
                    is_delete: view.kind == RecordKind::Delete,
                    size_bytes: view.size_bytes() as u64,
                });
            }
            RecordKind::Mark => {
                if let Some(mark) = mark_of(&view) {
                    self.found.edit_count = self.found.edit_count.max(mark.edit_count);
                }
            }
            RecordKind::Moved => {}
            RecordKind::End => return Ok(NextRecord::Segment),
        }
        Ok(NextRecord::At(at + view.size_bytes()))
    }

    /// Reads a record that fills the next segments, except the last one.
    fn take_large(
        &mut self,
        position: LogPosition,
        header: RecordHeader,
        take: &mut dyn FnMut(ReplayedRecord<'_>),
    ) -> Result<NextRecord, LsmError> {
        let size_bytes = header.record_size_bytes();
        let mut bytes = self.buffer[position.offset()..].to_vec();
        let mut index = self.index;
        let mut part = vec![0; SEGMENT_SIZE_BYTES as usize];
        while bytes.len() < size_bytes {
            index += 1;
            let expected = LogNumber(position.number().0 + (index - self.index) as u64);
            let Some((_, entry)) = self.segments.get(index).filter(|it| it.0 == expected) else {
                return Ok(NextRecord::Broken);
            };
            self.device.read(entry.segment, 0, &mut part)?;
            let (first, rest) = part.split_at(SEGMENT_HEADER_SIZE_BYTES);
            if first != encode_segment_header(self.engine, expected) {
                return Ok(NextRecord::Broken);
            }
            let left = size_bytes - bytes.len();
            bytes.extend_from_slice(&rest[..left.min(rest.len())]);
        }
        bytes.truncate(size_bytes);
        let Some(view) = RecordView::decode(&bytes, self.engine, position) else {
            return Ok(NextRecord::Broken);
        };
        if view.kind == RecordKind::Put {
            self.found.record_count += 1;
            take(ReplayedRecord {
                position,
                key: view.key,
                is_delete: false,
                size_bytes: size_bytes as u64,
            });
        }
        self.index = index;
        let in_segments = size_bytes - (SEGMENT_SIZE_BYTES as usize - position.offset());
        let in_last = match in_segments % PAYLOAD_SIZE_BYTES {
            0 => PAYLOAD_SIZE_BYTES,
            part => part,
        };
        self.note_end(SEGMENT_HEADER_SIZE_BYTES + in_last);
        // The next record begins a segment.
        Ok(NextRecord::Segment)
    }

    /// Checks that data is present that the manifest records as durable: up to the start of
    /// recovery, up to the end that an earlier recovery found, and up to the recorded durable end.
    fn check_what_was_synced(
        &self,
        state: &ManifestState,
        end: LogPosition,
    ) -> Result<(), LsmError> {
        let mut ends = self.segments.iter().rev();
        let ended =
            ends.find_map(|(number, entry)| Some(number.start().plus(u64::from(entry.end?))));
        let said = state.read_from.max(state.log_synced_to);
        let known = ended.map_or(said, |ended| ended.max(said));
        if end < known {
            return Err(self.lacks(end, known));
        }
        Ok(())
    }

    /// Checks that no mark behind the log's end proves that data there was durable.
    fn check_nothing_was_behind(&mut self, end: LogPosition) -> Result<(), LsmError> {
        let written_count = self.device.written_count()?;
        for index in 0..self.segments.len() {
            let (number, entry) = self.segments[index];
            if number < end.number() || entry.segment.0 >= written_count {
                continue;
            }
            self.load(number, entry.segment)?;
            let from = if number == end.number() {
                end.offset()
            } else {
                0
            };
            let limit = entry
                .end
                .map_or(SEGMENT_SIZE_BYTES as usize, |end| end as usize);
            let mut at = from;
            // The segment may end before its last record does; nothing follows that record.
            while let Some(found) = self.buffer.get(at..limit).and_then(find_mark) {
                at += found;
                let mark = self.mark_at(number.start().plus(at as u64));
                if let Some(mark) = mark
                    && mark.synced_to > end
                {
                    return Err(self.lacks(end, mark.synced_to));
                }
                at += 1;
            }
        }
        Ok(())
    }

    /// Returns the error for missing durable data.
    ///
    /// Data before it is not returned, either. The missing records may have changed any key, so an
    /// old value could pass for the newest.
    fn lacks(&self, end: LogPosition, synced_to: LogPosition) -> LsmError {
        let mut segments = self.segments.iter();
        let segment = segments.find(|it| it.0 == end.number());
        let place = segment.map_or_else(String::new, |(_, entry)| {
            let offset = end.offset() as u64;
            format!(" ({})", self.device.byte_text(entry.segment, offset))
        });
        let how = format!(
            "no valid record is there{place}, but the log was durable up to {synced_to}; restore \
             the directory from a copy, or a replica; until then it is not read, because the lost \
             records may be newer than the remaining ones"
        );
        damaged(end, how)
    }

    fn mark_at(&self, position: LogPosition) -> Option<Mark> {
        let bytes = &self.buffer[position.offset()..];
        let (_, header) = RecordHeader::decode(bytes.first_chunk()?)?;
        if header.kind != RecordKind::Mark {
            return None;
        }
        mark_of(&RecordView::decode(bytes, self.engine, position)?)
    }
}

/// Finds the next possible mark: the header of a mark behind its checksum is always the same.
fn find_mark(bytes: &[u8]) -> Option<usize> {
    let header = RecordHeader {
        kind: RecordKind::Mark,
        key_size_bytes: 0,
        value_size_bytes: MARK_SIZE_BYTES,
    };
    let header = encode_record_header(header, 0);
    let (sum, same) = header.split_at(SUM_SIZE_BYTES);
    let mut at = sum.len();
    // One comparison rules out most bytes.
    while let Some(found) = bytes.get(at + 1..)?.iter().position(|it| *it == same[1]) {
        at += found;
        if bytes[at..].starts_with(same) {
            return Some(at - sum.len());
        }
        at += 1;
    }
    None
}

/// Checks that no segment on the device has a number that the manifest has not assigned.
///
/// A segment gets a number only after the edit that named it was in force. So such a segment proves
/// that the manifest lacks edits. A manifest that lacks edits may still name the segment for
/// recovery or as reserved, so those are checked, too. Segments to which only trees refer are
/// verified by their checksums.
pub(crate) fn check_all_are_named(device: &Device, state: &ManifestState) -> Result<(), LsmError> {
    let before = state.log.range(..state.read_from.number());
    let passed = before.map(|(_, entry)| entry.segment).collect();
    let unnamed = segments_from_later(device, state, &passed)?;
    let Some((_, number)) = unnamed.first() else {
        return Ok(());
    };
    let how = "the segment was written, but no edit of the manifest names it: the manifest is \
               corrupted, or an old copy; restore the directory from a copy, or a replica";
    Err(damaged(number.start(), how))
}

/// Returns segments that the manifest does not name, with numbers that it has not assigned. Reads
/// 32 bytes of each segment that it does not name.
pub(crate) fn unnamed_segments(
    device: &Device,
    state: &ManifestState,
) -> Result<Vec<(SegmentId, LogNumber)>, LsmError> {
    segments_from_later(device, state, &state.log_segments())
}

/// Returns segments with numbers that the manifest has not assigned, except those in `passed`.
/// Reads 32 bytes of each.
fn segments_from_later(
    device: &Device,
    state: &ManifestState,
    passed: &BTreeSet<SegmentId>,
) -> Result<Vec<(SegmentId, LogNumber)>, LsmError> {
    let mut header = [0; SEGMENT_HEADER_SIZE_BYTES];
    let mut found = Vec::new();
    for segment in (0..device.written_count()?).map(SegmentId) {
        if passed.contains(&segment) {
            continue;
        }
        device.read(segment, 0, &mut header)?;
        let number = segment_number(&header, state.engine);
        found.extend(
            number
                .filter(|it| *it >= state.next_log)
                .map(|it| (segment, it)),
        );
    }
    Ok(found)
}

fn mark_of(view: &RecordView<'_>) -> Option<Mark> {
    Some(Mark::decode(*view.value.first_chunk()?))
}
