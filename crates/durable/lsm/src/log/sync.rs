//! Making the log durable, for all who wait at once (VL5).

use std::sync::{MutexGuard, PoisonError};

use super::record::{Mark, RecordKind, RecordSum};
use super::{Appended, ValueLog};
use crate::error::LsmError;
use crate::manifest::Change;
use crate::place::{LogPosition, SEGMENT_SIZE_BYTES};

/// VL6: when so much more of the log is durable, the manifest says so. Of a log that lost its end,
/// with the marks in it, less than this is not missed.
const SAID_SIZE_BYTES: u64 = 4 * SEGMENT_SIZE_BYTES;

/// How far the log is on the device.
#[derive(Debug)]
pub(super) struct SyncState {
    /// Everything before this place is.
    synced_to: LogPosition,
    /// Somebody is about to sync.
    is_busy: bool,
    /// Where the last marks begin that have nothing between them, and where they end.
    marks: Option<(LogPosition, LogPosition)>,
}

impl SyncState {
    pub(super) fn new(synced_to: LogPosition) -> Self {
        Self {
            synced_to,
            is_busy: false,
            marks: None,
        }
    }

    /// What a sync has marked. A mark behind another one goes on with it.
    fn note_mark(&mut self, mark: Appended) {
        let before = self.marks.filter(|(_, end)| *end == mark.position);
        let begin = before.map_or(mark.position, |(begin, _)| begin);
        self.marks = Some((begin, mark.end));
    }
}

impl ValueLog {
    fn sync_state(&self) -> MutexGuard<'_, SyncState> {
        self.synced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far the log is on the device.
    pub fn synced_to(&self) -> LogPosition {
        self.sync_state().synced_to
    }

    /// Where the log ends, but for marks at its end: when that is durable, so is all that anybody
    /// has written, and nothing is left to be synced. (What a sync that failed has marked counts as
    /// written, and so may a mark that somebody appends now.)
    pub fn written_end(&self) -> LogPosition {
        let marks = self.sync_state().marks;
        let end = self.end();
        match marks {
            Some((begin, marks_end)) if marks_end == end => begin,
            _ => end,
        }
    }

    /// Somebody else has made the log durable up to a place: who follows writes and syncs the
    /// device by itself.
    pub(crate) fn note_synced(&self, end: LogPosition) {
        let mut state = self.sync_state();
        state.synced_to = state.synced_to.max(end);
    }

    /// Makes the log durable up to a place. One write and one sync, by one of those who wait for
    /// all of them; and one edit of the manifest for 8 MiB of log.
    ///
    /// # Errors
    /// There is no room to write it: what was appended is in memory still, and is written when it
    /// is tried again. Or it cannot be written or synced otherwise: what was appended may be there
    /// or not, and nothing is appended any more.
    pub fn sync_to(&self, end: LogPosition) -> Result<(), LsmError> {
        let mut state = self.sync_state();
        loop {
            if state.synced_to >= end {
                return Ok(());
            }
            if !state.is_busy {
                break;
            }
            let waited = self.has_synced.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state.is_busy = true;
        let before = state.synced_to;
        drop(state);
        let synced = self.write_and_sync(before).and_then(|mark| {
            self.say_synced(mark.end)?;
            Ok(mark)
        });
        let mut state = self.sync_state();
        state.is_busy = false;
        if let Ok(mark) = synced {
            state.synced_to = state.synced_to.max(mark.end);
            state.note_mark(mark);
        }
        drop(state);
        self.has_synced.notify_all();
        synced.map(|_| ())
    }

    /// VL6: everything before a place where a record ends is durable, and the manifest says so, if
    /// that is the first of this log since it was opened, or 8 MiB more than it says. Then one
    /// edit.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub(crate) fn say_synced(&self, end: LogPosition) -> Result<(), LsmError> {
        self.say(|said_to| {
            let is_due = said_to.is_none_or(|it| end.0 >= it.0 + SAID_SIZE_BYTES);
            is_due.then_some(end)
        })
    }

    /// VL6: the manifest says of all that is durable that it is, if it says that only of some. One
    /// edit at the most. For an engine's log: what is durable of it ends with a record.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub(crate) fn say_all_synced(&self) -> Result<(), LsmError> {
        self.say_synced_to(self.synced_to())
    }

    /// VL6: up to where the log is durable, if the manifest does not say so yet.
    pub(crate) fn unsaid_to(&self) -> Option<LogPosition> {
        let said_to = self.said_to.lock().unwrap_or_else(PoisonError::into_inner);
        let said_to = (*said_to)?;
        Some(self.synced_to()).filter(|synced_to| *synced_to > said_to)
    }

    /// VL6: everything before a place where a record ends is durable, and the manifest says so. One
    /// edit, if it does not yet.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub(crate) fn say_synced_to(&self, end: LogPosition) -> Result<(), LsmError> {
        // Before a first sync, which says it, nothing is known to be durable of what has come.
        self.say(|said_to| said_to.and(Some(end)))
    }

    /// One at a time says how far the log is durable, and so each says more than the last.
    fn say(
        &self,
        due: impl FnOnce(Option<LogPosition>) -> Option<LogPosition>,
    ) -> Result<(), LsmError> {
        let mut said_to = self.said_to.lock().unwrap_or_else(PoisonError::into_inner);
        let due = due(*said_to).filter(|due| Some(*due) > *said_to);
        let Some(end) = due else {
            return Ok(());
        };
        let said = self.manifest.commit(&[Change::LogSynced(end)]);
        said.inspect_err(|error| self.stop(&mut self.tail(), error))?;
        *said_to = Some(end);
        Ok(())
    }

    /// The mark, up to the end of which the log is durable then.
    fn write_and_sync(&self, synced_to: LogPosition) -> Result<Appended, LsmError> {
        let mark = Mark {
            synced_to,
            edit_count: self.manifest.edit_count(),
        };
        let value = mark.encode();
        let (header, sum) = RecordSum::of(RecordKind::Mark, b"", &value);
        let mut tail = self.tail();
        tail.check()?;
        let marked = self.append_locked(&mut tail, (header, sum), [&[], &value]);
        let marked = marked.and_then(|marked| {
            self.write_out(&tail)?;
            Ok(marked)
        });
        if let Err(error) = &marked {
            self.stop(&mut tail, error);
        }
        drop(tail);
        let mark = marked?;
        if let Err(error) = self.segments.device.sync() {
            Self::stop_for_good(&mut self.tail(), &error);
            return Err(error);
        }
        Ok(mark)
    }
}
