//! Reading the log again when the directory is opened (VL6).

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

/// What was found when the log was read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// The last segment that counts, and where the log ends in it; `None`: there is none.
    pub last: Option<(LogNumber, u32)>,
    /// Records that were handed out.
    pub record_count: u64,
    /// The most edits of the manifest that a mark tells of.
    pub edit_count: u64,
}

/// A put or a delete of the log.
#[derive(Clone, Copy, Debug)]
pub struct ReplayedRecord<'b> {
    /// Where it begins.
    pub position: LogPosition,
    /// Its key.
    pub key: &'b [u8],
    /// It deletes the key.
    pub is_delete: bool,
    /// Its size in the log.
    pub size_bytes: u64,
}

/// Reads the log from where it has to be read, and hands out puts and deletes in their order.
/// Reads each segment once; memory of two, and of one record larger than a segment. Where the
/// device is another copy's, too (FO9), segments that nobody names may be that one's.
///
/// # Errors
/// [`LsmError::DamagedLog`]: what had been on the device is not right. Or it cannot be read.
pub fn replay(
    device: &Device,
    (state, is_shared): (&ManifestState, bool),
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

/// FO6: where a log ends that was copied from another device, up to a place if that is known. What
/// marks say of that device, nobody has promised of this one, so what is behind the end does not
/// count but for what the manifest says. Costs as [`replay`] does.
///
/// # Errors
/// [`LsmError::DamagedLog`]: what trees lead to, or what was read again before, or what was copied
/// or synced, is not there. Or it cannot be read.
pub fn find_end(
    device: &Device,
    state: &ManifestState,
    copied_to: Option<LogPosition>,
) -> Result<Replayed, LsmError> {
    let mut replay = Replay::new(device, state);
    let end = replay.read_all(state.read_from, &mut |_| {})?;
    replay.check_what_was_synced(state, end)?;
    // Where all segments were read there is nothing more: of the numbers up to the next one, those
    // that the log had reserved when it was opened last were never anybody's.
    let is_cut = replay.index < replay.segments.len();
    let missing = copied_to.filter(|copied_to| is_cut && end < *copied_to);
    if let Some(copied_to) = missing
        && !replay.goes_on_behind(end, copied_to)?
    {
        let how = format!("no record is whole there, and the log was written up to {copied_to}");
        return Err(damaged(end, how));
    }
    replay.count_before(state);
    Ok(replay.found)
}

/// How far a log goes: behind where the last record begins that is whole, of those that are to be
/// read again; where these begin, if there is none. Nothing is held against the log. Reads each
/// segment once, as [`replay`] does.
///
/// # Errors
/// It cannot be read.
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

/// What comes next in a segment.
enum Next {
    /// The record that ended there is followed by this offset.
    At(usize),
    /// Nothing more is in this segment.
    Segment,
    /// No record is whole there.
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

    /// VL3: whether a record begins at a place that no segment is large enough for, and ends behind
    /// another place: not all of it has come.
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

    /// Segments before the first one that is read count, too: trees lead into them.
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
    /// Hands out all records; the place at which the first one is not whole.
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
                    Next::At(next) => at = next,
                    Next::Segment => break,
                    Next::Broken => return Ok(number.start().plus(at as u64)),
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

    /// What was read last counts.
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
    ) -> Result<Next, LsmError> {
        let position = number.start().plus(at as u64);
        let bytes = &self.buffer[at..];
        let Some((_, header)) = bytes.first_chunk().and_then(RecordHeader::decode) else {
            return Ok(Next::Broken);
        };
        if header.record_size_bytes() > PAYLOAD_SIZE_BYTES {
            return self.take_large(position, header, take);
        }
        let Some(view) = RecordView::decode(bytes, self.engine, position) else {
            return Ok(Next::Broken);
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
            RecordKind::End => return Ok(Next::Segment),
        }
        Ok(Next::At(at + view.size_bytes()))
    }

    /// VL3: a record that goes on in the next segments, which it fills but for the last.
    fn take_large(
        &mut self,
        position: LogPosition,
        header: RecordHeader,
        take: &mut dyn FnMut(ReplayedRecord<'_>),
    ) -> Result<Next, LsmError> {
        let size_bytes = header.record_size_bytes();
        let mut bytes = self.buffer[position.offset()..].to_vec();
        let mut index = self.index;
        let mut part = vec![0; SEGMENT_SIZE_BYTES as usize];
        while bytes.len() < size_bytes {
            index += 1;
            let expected = LogNumber(position.number().0 + (index - self.index) as u64);
            let Some((_, entry)) = self.segments.get(index).filter(|it| it.0 == expected) else {
                return Ok(Next::Broken);
            };
            self.device.read(entry.segment, 0, &mut part)?;
            let (first, rest) = part.split_at(SEGMENT_HEADER_SIZE_BYTES);
            if first != encode_segment_header(self.engine, expected) {
                return Ok(Next::Broken);
            }
            let left = size_bytes - bytes.len();
            bytes.extend_from_slice(&rest[..left.min(rest.len())]);
        }
        bytes.truncate(size_bytes);
        let Some(view) = RecordView::decode(&bytes, self.engine, position) else {
            return Ok(Next::Broken);
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
        // What follows begins a segment.
        Ok(Next::Segment)
    }

    /// VL6: what a manifest says that the log had on the device is there: up to where it is read
    /// from, up to where it ended when it was read before, and up to where syncs have said.
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

    /// VL6: no mark behind the log's end says that what is there was on the device.
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
            // A segment that ends before its last record does has nothing behind that one.
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

    /// VL6: what was durable is not there. What is before it is not given, either: of the keys that
    /// are written from there on nobody could tell, so an old value would pass for the newest.
    fn lacks(&self, end: LogPosition, synced_to: LogPosition) -> LsmError {
        let mut segments = self.segments.iter();
        let segment = segments.find(|it| it.0 == end.number());
        let place = segment.map_or_else(String::new, |(_, entry)| {
            let offset = end.offset() as u64;
            format!(" ({})", self.device.byte_text(entry.segment, offset))
        });
        let how = format!(
            "no record is whole there{place}, and the log was on the device up to {synced_to}: \
             restore the directory from a copy, or a replica; until then nothing of it is read, as \
             what is lost may be newer than what is left"
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

/// Where in some bytes a mark may begin: what its header has behind the sum is always the same.
fn find_mark(bytes: &[u8]) -> Option<usize> {
    let header = RecordHeader {
        kind: RecordKind::Mark,
        key_size_bytes: 0,
        value_size_bytes: MARK_SIZE_BYTES,
    };
    let header = encode_record_header(header, 0);
    let (sum, same) = header.split_at(SUM_SIZE_BYTES);
    let mut at = sum.len();
    // Most bytes are ruled out by one comparison.
    while let Some(found) = bytes.get(at + 1..)?.iter().position(|it| *it == same[1]) {
        at += found;
        if bytes[at..].starts_with(same) {
            return Some(at - sum.len());
        }
        at += 1;
    }
    None
}

/// MF2: no segment has a number that the manifest never gave away: one has it only after the edit
/// that named it was in force. A manifest that lacks such edits may name it, too, for what is to be
/// read again or written. (Where trees lead, sums tell.)
pub(crate) fn check_all_are_named(device: &Device, state: &ManifestState) -> Result<(), LsmError> {
    let before = state.log.range(..state.read_from.number());
    let passed = before.map(|(_, entry)| entry.segment).collect();
    let unnamed = segments_from_later(device, state, &passed)?;
    let Some((_, number)) = unnamed.first() else {
        return Ok(());
    };
    let how = "the segment was written, and no edit of the manifest names it: the manifest is \
               damaged, or an old one; restore the directory from a copy, or a replica";
    Err(damaged(number.start(), how))
}

/// Segments that the manifest does not name, with numbers that it never gave away. Reads 32 bytes
/// of each that it does not name.
pub(crate) fn unnamed_segments(
    device: &Device,
    state: &ManifestState,
) -> Result<Vec<(SegmentId, LogNumber)>, LsmError> {
    segments_from_later(device, state, &state.log_segments())
}

/// Segments with numbers that the manifest never gave away, but for those that are passed. Reads 32
/// bytes of each.
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
