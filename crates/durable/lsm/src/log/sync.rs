//! Group commit: making the log durable for all waiting threads at once.

use std::sync::{MutexGuard, PoisonError};

use super::record::{Mark, RecordKind, RecordSum};
use super::{Appended, ValueLog};
use crate::error::LsmError;
use crate::manifest::Change;
use crate::place::{LogPosition, SEGMENT_SIZE_BYTES};

/// Size of newly durable log, in bytes, after which the manifest records its end. If the log loses
/// its end together with the marks in it, a loss smaller than this is not detected.
const RECORD_INTERVAL_SIZE_BYTES: u64 = 4 * SEGMENT_SIZE_BYTES;

/// Durable part of the log.
#[derive(Debug)]
pub(super) struct SyncState {
    /// Position before which everything is durable.
    synced_to: LogPosition,
    /// Whether a thread is syncing.
    is_busy: bool,
    /// Start and end of the last run of adjacent marks.
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

    /// Records the mark of a sync. A mark right behind another one extends the run.
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

    /// Returns the position up to which the log is durable.
    pub fn synced_to(&self) -> LogPosition {
        self.sync_state().synced_to
    }

    /// Returns the end of the log without trailing marks. Once that is durable, all writes are, and
    /// nothing is left to sync.
    ///
    /// The mark of a failed sync counts as a write here, and so may a mark that is being appended.
    pub fn written_end(&self) -> LogPosition {
        let marks = self.sync_state().marks;
        let end = self.end();
        match marks {
            Some((begin, marks_end)) if marks_end == end => begin,
            _ => end,
        }
    }

    /// Records that the log is durable up to a position, because a follower wrote and synced the
    /// device by itself.
    pub(crate) fn note_synced(&self, end: LogPosition) {
        let mut state = self.sync_state();
        state.synced_to = state.synced_to.max(end);
    }

    /// Makes the log durable up to a position. Costs one write and one sync, by one thread for all
    /// waiting ones, and one edit of the manifest per 8 MiB of log.
    ///
    /// # Errors
    /// If the disk is full, the appended data stays in memory, and a retry writes it. After other
    /// failures of a write or sync, the data may be durable or not, and nothing more is appended.
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
            self.record_durable_end(mark.end)?;
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

    /// Records in the manifest that the log is durable up to a position at which a record ends. It
    /// does so the first time after opening, and then after each 8 MiB; that costs one edit.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub(crate) fn record_durable_end(&self, end: LogPosition) -> Result<(), LsmError> {
        self.record_end(|recorded_end| {
            let is_due = recorded_end.is_none_or(|it| end.0 >= it.0 + RECORD_INTERVAL_SIZE_BYTES);
            is_due.then_some(end)
        })
    }

    /// Records the whole durable end of the log in the manifest. Costs at most one edit. Only for
    /// an engine's log, whose durable part ends with a record.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub(crate) fn record_whole_durable_end(&self) -> Result<(), LsmError> {
        self.record_durable_to(self.synced_to())
    }

    /// Returns the durable end of the log, if the manifest does not record it yet.
    pub(crate) fn unrecorded_end(&self) -> Option<LogPosition> {
        let recorded_end = self
            .recorded_end
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let recorded_end = (*recorded_end)?;
        Some(self.synced_to()).filter(|synced_to| *synced_to > recorded_end)
    }

    /// Records in the manifest that the log is durable up to a position at which a record ends.
    /// Costs one edit, if the manifest does not record it yet.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub(crate) fn record_durable_to(&self, end: LogPosition) -> Result<(), LsmError> {
        // Before the first sync, which records its end, no newly appended data is known to be
        // durable.
        self.record_end(|recorded_end| recorded_end.and(Some(end)))
    }

    /// Records a durable end in the manifest. The lock serializes the callers, so recorded ends
    /// ascend.
    fn record_end(
        &self,
        due: impl FnOnce(Option<LogPosition>) -> Option<LogPosition>,
    ) -> Result<(), LsmError> {
        let mut recorded_end = self
            .recorded_end
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let due = due(*recorded_end).filter(|due| Some(*due) > *recorded_end);
        let Some(end) = due else {
            return Ok(());
        };
        let said = self.manifest.commit(&[Change::LogSynced(end)]);
        said.inspect_err(|error| self.stop(&mut self.tail(), error))?;
        *recorded_end = Some(end);
        Ok(())
    }

    /// Appends a mark, and writes and syncs the log up to its end; returns the mark.
    fn write_and_sync(&self, synced_to: LogPosition) -> Result<Appended, LsmError> {
        let mark = Mark {
            synced_to,
            edit_count: self.manifest.edit_count(),
        };
        let value = mark.encode();
        let (header, sum) = RecordSum::of(RecordKind::Mark, b"", &value);
        let mut tail = self.tail();
        tail.check()?;
        let marked = self.append_locked(&mut tail, header, &sum, [&[], &value]);
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
