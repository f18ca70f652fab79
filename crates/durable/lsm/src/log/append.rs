//! Appending to the log.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use super::ValueLog;
use super::record::{
    PAYLOAD_SIZE_BYTES, RECORD_HEADER_SIZE_BYTES, RecordHeader, RecordKind, RecordSum,
    SEGMENT_HEADER_SIZE_BYTES, encode_record_header, encode_segment_header,
};
use crate::error::LsmError;
use crate::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES, SegmentId};
use crate::written::{RunningSum, WrittenSum};

/// Number of closed segments whose end is remembered.
const CLOSED_COUNT_MAX: usize = 64;

/// End of the log, in memory.
#[derive(Debug)]
pub(super) struct Tail {
    /// The open segment; `None` if the next record begins one.
    open: Option<OpenSegment>,
    /// First bytes of the open segment; the buffer has the size of a segment.
    buffer: Vec<u8>,
    /// Lengths and checksums of the last closed segments.
    closed: VecDeque<(LogNumber, WrittenSum)>,
    /// First failed write that was not for lack of space. Once it is set, nothing is written.
    failed: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct OpenSegment {
    number: LogNumber,
    place: SegmentId,
    /// Number of filled bytes in the segment. `ValueLog::written` has the number of written ones.
    filled: usize,
    /// Whether the segment has ended: nothing follows the filled bytes, but they may still have to
    /// be written.
    is_ended: bool,
}

/// Place of an appended record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Position of the record.
    pub position: LogPosition,
    /// Position behind the record.
    pub end: LogPosition,
}

impl Tail {
    pub(super) fn new() -> Self {
        Self {
            open: None,
            buffer: vec![0; SEGMENT_SIZE_BYTES as usize],
            closed: VecDeque::new(),
            failed: None,
        }
    }

    /// Returns the filled bytes from a position in the open segment; `None` if the position is in
    /// another segment.
    pub(super) fn bytes_from(&self, position: LogPosition) -> Option<&[u8]> {
        let open = self.open.filter(|open| open.number == position.number())?;
        self.buffer.get(position.offset()..open.filled)
    }

    /// Returns an error if an earlier write failed.
    pub(super) fn check(&self) -> Result<(), LsmError> {
        match &self.failed {
            None => Ok(()),
            Some(first) => Err(LsmError::Stopped {
                first: first.clone(),
            }),
        }
    }

    /// Returns the position behind the filled bytes, if a segment is open.
    fn end(&self) -> Option<LogPosition> {
        self.open
            .map(|open| open.number.start().plus(open.filled as u64))
    }

    /// Returns the end of a closed segment, as an offset; known for the last ones.
    pub(super) fn closed_end(&self, number: LogNumber) -> Option<usize> {
        Some(self.closed_sum(number)?.size_bytes as usize)
    }

    /// Returns length and checksum of a closed segment; known for the last ones.
    pub(super) fn closed_sum(&self, number: LogNumber) -> Option<WrittenSum> {
        let mut closed = self.closed.iter().rev();
        closed.find_map(|(other, sum)| (*other == number).then_some(*sum))
    }

    /// Returns the first bytes of the open segment: as many as requested, or all filled ones.
    /// Returns `None` if another segment is open.
    pub(super) fn open_bytes(&self, number: LogNumber, size_bytes: usize) -> Option<&[u8]> {
        let open = self.open.filter(|open| open.number == number)?;
        Some(&self.buffer[..size_bytes.min(open.filled)])
    }

    /// Returns true if the open segment has ended, but could not be written for lack of space.
    pub(super) fn is_ended(&self) -> bool {
        self.open.is_some_and(|open| open.is_ended)
    }

    /// Returns the device segment of the open segment, and the number of filled bytes.
    pub(super) fn open_part(&self) -> Option<(SegmentId, usize)> {
        self.open.map(|open| (open.place, open.filled))
    }

    /// Returns the filled bytes of the open segment from an offset.
    pub(super) fn filled_from(&self, offset: usize) -> &[u8] {
        let filled = self.open.map_or(0, |open| open.filled);
        &self.buffer[offset..filled]
    }

    /// Returns the number of the open segment.
    pub(super) fn open_number(&self) -> Option<LogNumber> {
        self.open.map(|open| open.number)
    }

    /// Closes the open segment.
    fn close(&mut self, written: WrittenSum) {
        if let Some(open) = self.open.take() {
            if self.closed.len() == CLOSED_COUNT_MAX {
                self.closed.pop_front();
            }
            debug_assert_eq!(
                written.size_bytes as usize, open.filled,
                "all of it is written"
            );
            self.closed.push_back((open.number, written));
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        let open = self.open.as_mut().expect("a segment is open");
        let end = open.filled + bytes.len();
        self.buffer[open.filled..end].copy_from_slice(bytes);
        open.filled = end;
    }
}

impl ValueLog {
    pub(super) fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a record. `enter` is called with its position before any other record gets one. The
    /// record is in memory only when this returns; [`sync_to`](Self::sync_to) makes it durable.
    ///
    /// # Errors
    /// - [`LsmError::Stopped`]: nothing was appended.
    /// - Disk full: nothing was appended, and the append can be retried.
    /// - Other failures of the log or the manifest: nothing refers to the record now, and nothing
    ///   more will be appended. A record larger than a segment may be present after recovery.
    pub fn append(
        &self,
        kind: RecordKind,
        key: &[u8],
        value: &[u8],
        enter: impl FnOnce(Appended),
    ) -> Result<Appended, LsmError> {
        let (header, sum) = RecordSum::of(kind, key, value);
        let mut tail = self.tail();
        tail.check()?;
        let appended = self.append_locked(&mut tail, header, &sum, [key, value]);
        match &appended {
            Ok(appended) => enter(*appended),
            Err(error) => self.stop(&mut tail, error),
        }
        appended
    }

    /// Calls a function with the position at or behind which the next record will be. Nothing is
    /// appended meanwhile.
    pub fn between_records<R>(&self, then: impl FnOnce(LogPosition) -> R) -> R {
        let tail = self.tail();
        // If the open segment has ended, the next record begins the next segment, even if this one
        // is not written yet.
        let end = tail.end().filter(|_| !tail.is_ended());
        then(end.unwrap_or_else(|| self.segments.next_number().start()))
    }

    pub(super) fn append_locked(
        &self,
        tail: &mut Tail,
        header: RecordHeader,
        sum: &RecordSum,
        body: [&[u8]; 2],
    ) -> Result<Appended, LsmError> {
        let size_bytes = header.record_size_bytes();
        self.note_record_size(size_bytes);
        if size_bytes > PAYLOAD_SIZE_BYTES {
            return self.append_large(tail, header, sum, body);
        }
        let open = tail.open.filter(|it| !it.is_ended);
        let free_size_bytes = open.map_or(0, |it| SEGMENT_SIZE_BYTES as usize - it.filled);
        if size_bytes > free_size_bytes {
            self.end_segment(tail)?;
            self.begin_segment(tail)?;
        }
        let position = tail.end().expect("a segment is open");
        let first = encode_record_header(header, sum.at(self.segments.engine, position));
        for bytes in [&first[..], body[0], body[1]] {
            tail.push(bytes);
        }
        let end = tail.end().expect("a segment is open");
        Ok(Appended { position, end })
    }

    /// Appends a record larger than a segment. All of it is written before any of its segments is
    /// begun. So if the disk is full, the next record begins the first of these segments, and
    /// nothing refers to their contents.
    fn append_large(
        &self,
        tail: &mut Tail,
        header: RecordHeader,
        sum: &RecordSum,
        body: [&[u8]; 2],
    ) -> Result<Appended, LsmError> {
        self.end_segment(tail)?;
        let Self { segments, .. } = self;
        let count = header.record_size_bytes().div_ceil(PAYLOAD_SIZE_BYTES);
        let places = segments.upcoming(&self.manifest, count)?;
        // From here on, reads of earlier positions do not take the tail's lock.
        let first_number = segments.next_number();
        self.tail_number.store(first_number.0, Ordering::Release);
        let position = first_number.start().plus(SEGMENT_HEADER_SIZE_BYTES as u64);
        let first = encode_record_header(header, sum.at(segments.engine, position));
        let mut parts = [&first[..], body[0], body[1]];
        let mut written = Vec::with_capacity(count);
        for (number, place) in &places {
            let header = encode_segment_header(segments.engine, *number);
            tail.buffer[..header.len()].copy_from_slice(&header);
            let filled = header.len() + fill(&mut tail.buffer[header.len()..], &mut parts);
            let mut sum = RunningSum::new();
            sum.append(&segments.device, *place, &tail.buffer[..filled])?;
            written.push(sum);
        }
        let mut end = position;
        for sum in written {
            let (number, place) = segments.begin_next(&self.manifest)?;
            tail.open = Some(OpenSegment {
                number,
                place,
                filled: sum.size_bytes(),
                is_ended: true,
            });
            self.written().begin(sum);
            end = tail.end().expect("a segment is open");
            tail.close(sum.sum());
        }
        let next = segments.next_number();
        self.tail_number.store(next.0, Ordering::Release);
        Ok(Appended { position, end })
    }

    /// Ends the open segment, so that the next record begins a new one. Returns the number of that
    /// one, and the result of a function that is called while nothing is appended.
    ///
    /// # Errors
    /// The log cannot be written, and nothing more is appended.
    pub(crate) fn end_segment_now<R>(
        &self,
        then: impl FnOnce() -> R,
    ) -> Result<(R, LogNumber), LsmError> {
        let mut tail = self.tail();
        tail.check()?;
        let ended = self.end_segment(&mut tail);
        ended.inspect_err(|error| self.stop(&mut tail, error))?;
        let next = self.segments.next_number();
        self.tail_number.store(next.0, Ordering::Release);
        Ok((then(), next))
    }

    /// Ends and closes the open segment.
    fn end_segment(&self, tail: &mut Tail) -> Result<(), LsmError> {
        let Some(end) = tail.end() else {
            return Ok(());
        };
        let open = tail.open.as_mut().expect("it has an end");
        let free_size_bytes = SEGMENT_SIZE_BYTES as usize - open.filled;
        // An earlier try may have failed for lack of space.
        let was_ended = std::mem::replace(&mut open.is_ended, true);
        if !was_ended && free_size_bytes >= RECORD_HEADER_SIZE_BYTES {
            let (header, sum) = RecordSum::of(RecordKind::End, b"", b"");
            tail.push(&encode_record_header(
                header,
                sum.at(self.segments.engine, end),
            ));
        }
        self.write_out(tail)?;
        if let Some(closed) = tail.open {
            let written = self.written().latest().sum();
            tail.close(written);
            let buffer = std::mem::take(&mut tail.buffer);
            tail.buffer = self.recent.keep(closed.number, closed.filled, buffer);
        }
        Ok(())
    }

    fn begin_segment(&self, tail: &mut Tail) -> Result<(), LsmError> {
        let (number, place) = self.segments.begin_next(&self.manifest)?;
        tail.open = Some(OpenSegment {
            number,
            place,
            filled: 0,
            is_ended: false,
        });
        self.written().begin(RunningSum::new());
        tail.push(&encode_segment_header(self.segments.engine, number));
        debug_assert_eq!(
            tail.open.map(|it| it.filled),
            Some(SEGMENT_HEADER_SIZE_BYTES)
        );
        self.tail_number.store(number.0, Ordering::Release);
        Ok(())
    }

    /// Stops the log after a failed write, except for lack of space. Data that was written
    /// partially will be overwritten by the same bytes, or is behind the log's end. If the
    /// manifest's sync failed for lack of space, its state is unknown, and the log stops.
    pub(super) fn stop(&self, tail: &mut Tail, error: &LsmError) {
        if !error.is_out_of_space() || self.manifest.check().is_err() {
            Self::stop_for_good(tail, error);
        }
    }

    /// Stops the log after a failed sync, whatever the reason: the state of the device is unknown.
    pub(super) fn stop_for_good(tail: &mut Tail, error: &LsmError) {
        tail.failed.get_or_insert_with(|| error.to_string());
    }

    fn note_record_size(&self, size_bytes: usize) {
        let before = self.record_size_bytes.load(Ordering::Relaxed);
        let after = before - before / 16 + (size_bytes as u64) / 16;
        self.record_size_bytes.store(after, Ordering::Relaxed);
    }
}

/// Fills a buffer from consecutive parts, and removes these bytes from them; returns how many there
/// were.
fn fill(buffer: &mut [u8], parts: &mut [&[u8]]) -> usize {
    let mut filled = 0;
    for part in parts {
        let (fits, rest) = part.split_at(part.len().min(buffer.len() - filled));
        buffer[filled..filled + fits.len()].copy_from_slice(fits);
        filled += fits.len();
        *part = rest;
    }
    filled
}
