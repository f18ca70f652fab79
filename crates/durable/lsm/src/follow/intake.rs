//! Accepting the log of the followed engine.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::fault::WriteFault;
use super::feed::Feed;
use super::follower::SegmentSum;
use super::whole::CompleteRecords;
use crate::engine::Engine;
use crate::error::LsmError;
use crate::log::ValueLog;
use crate::log::record::{SEGMENT_HEADER_SIZE_BYTES, encode_segment_header};
use crate::manifest::Manifest;
use crate::place::{LogNumber, LogPosition, SegmentId};
use crate::written::{RunningSum, WrittenSum};

/// Writer of received log data to a follower's device. Any thread may use it, also while the
/// follower syncs, flushes or merges. Calls of [`begin`](Self::begin) are serialized.
#[derive(Debug)]
pub struct LogIntake {
    log: Arc<ValueLog>,
    manifest: Arc<Manifest>,
    state: Mutex<IntakeState>,
}

#[derive(Debug)]
struct IntakeState {
    /// Position before which everything is written to the device.
    written_to: LogPosition,
    whole: CompleteRecords,
    /// Length and checksum of the written part of the segment that contains `written_to`.
    written: RunningSum,
    /// Last closed segment, as written.
    closed: Option<SegmentSum>,
    write_fault: WriteFault,
    /// Decoder of records and the engine with its L0, for a follower that builds its trees.
    feed: Option<(Engine, Feed)>,
    /// Time spent on decoding records and inserting them into L0.
    feed_time: Duration,
    received_size_bytes: u64,
    has_failed: bool,
    is_over: bool,
}

/// Exclusive use of a [`LogIntake`] by one thread.
#[derive(Debug)]
pub struct Intake<'i> {
    of: &'i LogIntake,
    state: MutexGuard<'i, IntakeState>,
}

impl LogIntake {
    fn state(&self) -> MutexGuard<'_, IntakeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the intake until the returned guard is dropped. Returns `None` if the follower is gone
    /// or being promoted.
    pub fn begin(&self) -> Option<Intake<'_>> {
        let state = self.state();
        (!state.is_over).then_some(Intake { of: self, state })
    }

    /// Records that a write failed in a thread that cannot report it. The follower's thread checks
    /// [`has_failed`](Self::has_failed) and retries.
    pub fn note_failed(&self) {
        self.state().has_failed = true;
    }

    /// Returns true if a write has failed since the last call.
    pub fn has_failed(&self) -> bool {
        std::mem::take(&mut self.state().has_failed)
    }

    /// Ends the intake. When this returns, no thread writes any more.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.is_over = true;
        // The engine may hold the directory's lock.
        state.feed = None;
    }

    /// Returns the position before which everything is written to the device.
    pub fn written_to(&self) -> LogPosition {
        self.state().written_to
    }

    /// Returns the position before which everything is written; the end of the last complete record
    /// before that, if known; and the checksum of the written part of that segment.
    pub(super) fn written(&self) -> (LogPosition, Option<LogPosition>, WrittenSum) {
        let state = self.state();
        let complete_end = state.whole.complete_end(state.written_to);
        (state.written_to, complete_end, state.written.sum())
    }

    /// Returns the checksum of the last closed segment.
    pub(super) fn closed_sum(&self) -> Option<SegmentSum> {
        self.state().closed
    }

    /// Returns the end of the last complete record before a position, if known.
    pub(super) fn complete_end(&self, place: LogPosition) -> Option<LogPosition> {
        self.state().whole.complete_end(place)
    }

    pub(super) fn feed_time(&self) -> Duration {
        self.state().feed_time
    }

    /// Returns the number of received bytes.
    pub fn received_size_bytes(&self) -> u64 {
        self.state().received_size_bytes
    }
}

impl Intake<'_> {
    /// Returns the position before which everything is written, at which the next bytes begin.
    pub fn written_to(&self) -> LogPosition {
        self.state.written_to
    }

    /// Returns the checksum of the last closed segment.
    pub fn closed_sum(&self) -> Option<SegmentSum> {
        self.state.closed
    }

    /// Accepts the next bytes of the log, within one segment. `is_closed` says that these are the
    /// segment's last bytes. Costs one write, and one edit per 16 segments.
    ///
    /// # Errors
    /// [`LsmError::CannotFollow`] if they are not the next bytes of this log, or they cannot be
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
        let to_write = state
            .write_fault
            .of_log(at, state.closed.filter(|_| is_closed), bytes);
        written.append(&segments.device, place, &to_write)?;
        if at.offset() == 0 {
            // After the write, which is retried if the disk was full.
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
            engine.follow_record(
                record.key,
                record.is_delete,
                record.position,
                record.size_bytes,
                end,
            );
        });
        state.feed_time += since.elapsed();
        fed
    }
}

impl LogIntake {
    /// Returns the device segment for the next log segment, if the bytes begin with its header.
    fn next_segment(&self, number: LogNumber, bytes: &[u8]) -> Result<SegmentId, LsmError> {
        let segments = self.log.segments();
        let header = encode_segment_header(segments.engine, number);
        if bytes.get(..SEGMENT_HEADER_SIZE_BYTES) != Some(&header) {
            let how = format!(
                "the header of log segment {} is not one of this log",
                number.0
            );
            return Err(LsmError::CannotFollow { how });
        }
        let coming = segments.upcoming(&self.manifest, 1)?;
        match coming[..] {
            [(next, place), ..] if next == number => Ok(place),
            _ => {
                let next = segments.next_number();
                let how = format!("expected log segment {}, found {}", next.0, number.0);
                Err(LsmError::CannotFollow { how })
            }
        }
    }
}

/// Intake of a follower; dropping it ends the intake for all threads.
#[derive(Debug)]
pub(super) struct OwnIntake(pub(super) Arc<LogIntake>);

impl OwnIntake {
    pub(super) fn new(
        log: &Arc<ValueLog>,
        manifest: &Arc<Manifest>,
        from: LogPosition,
        write_fault: WriteFault,
        feed: Option<(Engine, Feed)>,
    ) -> Self {
        Self(Arc::new(LogIntake {
            state: Mutex::new(IntakeState {
                written_to: from,
                whole: CompleteRecords::new(log.segments().engine, from),
                written: RunningSum::new(),
                closed: None,
                write_fault,
                feed,
                feed_time: Duration::ZERO,
                received_size_bytes: 0,
                has_failed: false,
                is_over: false,
            }),
            log: Arc::clone(log),
            manifest: Arc::clone(manifest),
        }))
    }
}

impl Drop for OwnIntake {
    fn drop(&mut self) {
        self.0.end();
    }
}
