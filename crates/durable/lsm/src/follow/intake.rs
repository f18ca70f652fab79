//! The log that comes to a follower (FO12).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::fault::WriteFault;
use super::feed::Feed;
use super::follower::SegmentSum;
use super::whole::WholeRecords;
use crate::engine::Engine;
use crate::error::LsmError;
use crate::log::ValueLog;
use crate::log::record::{SEGMENT_HEADER_SIZE_BYTES, encode_segment_header};
use crate::manifest::Manifest;
use crate::place::{LogNumber, LogPosition, SegmentId};
use crate::written::{RunningSum, WrittenSum};

/// Writes the log that comes to a follower to its device. Any thread may have it, also while the
/// follower syncs, flushes or merges; one at a time [begins](Self::begin).
#[derive(Debug)]
pub struct LogIntake {
    log: Arc<ValueLog>,
    manifest: Arc<Manifest>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Everything before is written to the device.
    written_to: LogPosition,
    whole: WholeRecords,
    /// FO11: length and checksum of what was written of the segment that `written_to` is in.
    written: RunningSum,
    /// FO11: the last closed segment, as written.
    closed: Option<SegmentSum>,
    write_fault: WriteFault,
    /// FO7: of a follower that makes its trees itself.
    feed: Option<(Engine, Feed)>,
    /// What it took to put records of the log into an L0 of its own.
    feed_time: Duration,
    received_size_bytes: u64,
    has_failed: bool,
    is_over: bool,
}

/// One thread takes in the log.
#[derive(Debug)]
pub struct Intake<'i> {
    of: &'i LogIntake,
    state: MutexGuard<'i, State>,
}

impl LogIntake {
    pub(super) fn new(
        (log, manifest): (Arc<ValueLog>, Arc<Manifest>),
        (from, write_fault): (LogPosition, WriteFault),
        feed: Option<(Engine, Feed)>,
    ) -> Self {
        Self {
            state: Mutex::new(State {
                written_to: from,
                whole: WholeRecords::new(log.segments().engine, from),
                written: RunningSum::new(),
                closed: None,
                write_fault,
                feed,
                feed_time: Duration::ZERO,
                received_size_bytes: 0,
                has_failed: false,
                is_over: false,
            }),
            log,
            manifest,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what comes, until what is returned is dropped. `None`: the follower is gone, or is
    /// being promoted.
    pub fn begin(&self) -> Option<Intake<'_>> {
        let state = self.state();
        (!state.is_over).then_some(Intake { of: self, state })
    }

    /// Something could not be written by a thread that cannot tell: the one that has the follower
    /// looks ([`has_failed`](Self::has_failed)), and tries again.
    pub fn note_failed(&self) {
        self.state().has_failed = true;
    }

    /// Whether somebody could not write, since this was last asked.
    pub fn has_failed(&self) -> bool {
        std::mem::take(&mut self.state().has_failed)
    }

    /// Nothing is taken in any more; nobody writes when this returns.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.is_over = true;
        // It may have the directory's lock.
        state.feed = None;
    }

    /// Everything before this place is written to the device.
    pub fn written_to(&self) -> LogPosition {
        self.state().written_to
    }

    /// Everything before the first place is written to the device. VL6: the second one is where the
    /// records end that are whole before that, if it is known. FO11: what was written of the
    /// segment that the first one is in.
    pub(super) fn written(&self) -> (LogPosition, Option<LogPosition>, WrittenSum) {
        let state = self.state();
        let whole_to = state.whole.whole_to(state.written_to);
        (state.written_to, whole_to, state.written.sum())
    }

    /// FO11: the last segment that was closed.
    pub(super) fn closed_sum(&self) -> Option<SegmentSum> {
        self.state().closed
    }

    /// VL6: up to where all records are whole of what came before a place, as far as that is known.
    pub(super) fn whole_to(&self, place: LogPosition) -> Option<LogPosition> {
        self.state().whole.whole_to(place)
    }

    pub(super) fn feed_time(&self) -> Duration {
        self.state().feed_time
    }

    /// How much has come.
    pub fn received_size_bytes(&self) -> u64 {
        self.state().received_size_bytes
    }
}

impl Intake<'_> {
    /// Everything before this place is written to the device: what comes next begins here.
    pub fn written_to(&self) -> LogPosition {
        self.state.written_to
    }

    /// FO11: the last segment that was closed.
    pub fn closed_sum(&self) -> Option<SegmentSum> {
        self.state.closed
    }

    /// Takes in the next bytes of the log, up to some place in the same segment; `is_closed`: these
    /// are the last ones of that segment. One write; one edit for 16 segments.
    ///
    /// # Errors
    /// [`LsmError::CannotFollow`]: they are not the next bytes of this log. Or they cannot be
    /// written.
    pub fn write(&mut self, bytes: &[u8], is_closed: bool) -> Result<(), LsmError> {
        let state = &mut *self.state;
        let at = state.written_to;
        let segments = self.of.log.segments();
        let place = if at.offset() == 0 {
            self.of.next_segment(at.number(), bytes)?
        } else {
            segments.place(at.number())?
        };
        state.whole.take(at, bytes, is_closed);
        let mut written = state.written;
        let behind = (at, state.closed.filter(|_| is_closed));
        let to_write = state.write_fault.of_log(behind, bytes);
        written.append((&segments.device, place), &to_write)?;
        if at.offset() == 0 {
            // Not before: where there was no room, it is tried again.
            segments.begin_next(&self.of.manifest)?;
        }
        if is_closed {
            state.closed = Some(SegmentSum {
                number: at.number(),
                end: (at.offset() + bytes.len()) as u32,
                written: written.sum(),
            });
            state.written = RunningSum::new();
            state.written_to = at.number().next().start();
        } else {
            state.written = written;
            state.written_to = at.plus(bytes.len() as u64);
        }
        state.received_size_bytes += bytes.len() as u64;
        let Some((engine, feed)) = &mut state.feed else {
            return Ok(());
        };
        let since = Instant::now();
        let fed = feed.take(at, bytes, is_closed, &mut |record, end| {
            let place = (record.position, record.size_bytes);
            engine.follow_record((record.key, record.is_delete), place, end);
        });
        state.feed_time += since.elapsed();
        fed
    }
}

impl LogIntake {
    /// Where the next segment of the log goes, if these bytes begin it.
    fn next_segment(&self, number: LogNumber, bytes: &[u8]) -> Result<SegmentId, LsmError> {
        let segments = self.log.segments();
        let header = encode_segment_header(segments.engine, number);
        if bytes.get(..SEGMENT_HEADER_SIZE_BYTES) != Some(&header) {
            let how = format!("log segment {} does not begin as one of this log", number.0);
            return Err(LsmError::CannotFollow { how });
        }
        let coming = segments.coming(&self.manifest, 1)?;
        match coming[..] {
            [(next, place), ..] if next == number => Ok(place),
            _ => {
                let next = segments.next_number();
                let how = format!("log segment {} comes, and not {}", next.0, number.0);
                Err(LsmError::CannotFollow { how })
            }
        }
    }
}

/// A follower's own: when it is dropped, nobody takes in anything any more.
#[derive(Debug)]
pub(super) struct OwnIntake(pub(super) Arc<LogIntake>);

impl Drop for OwnIntake {
    fn drop(&mut self) {
        self.0.end();
    }
}
