//! Data to be scrubbed, at one moment.

use std::sync::Arc;

use super::OpenedTrees;
use crate::device::Device;
use crate::error::LsmError;
use crate::log::ValueLog;
use crate::manifest::Manifest;
use crate::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES};
use crate::version::LiveTree;

/// Engine or follower that is scrubbed.
pub(crate) trait Whole {
    fn log(&self) -> &ValueLog;
    fn manifest(&self) -> &Manifest;
    fn tree_device(&self) -> &Device;

    /// Returns the current data, which stays while the caller holds it.
    ///
    /// # Errors
    /// [`LsmError::Stopped`]: a failed write has left the device in an unknown state. Otherwise, a
    /// follower's tree cannot be opened.
    fn current_view(&self, opened: &mut OpenedTrees) -> Result<ScrubView, LsmError>;

    /// Returns the offset at which an earlier recovery ended the log in a segment, or the segment's
    /// size.
    fn ended_at(&self, number: LogNumber) -> usize {
        let end = self
            .manifest()
            .with_state(|state| state.log.get(&number)?.end);
        end.map_or(SEGMENT_SIZE_BYTES as usize, |end| end as usize)
    }
}

/// Data at one moment.
pub(crate) struct ScrubView {
    /// Log position from which on all of the log is needed. It is read before the trees, so trees
    /// cover what it no longer covers.
    pub(crate) read_from: LogPosition,
    /// Position before which the whole log is on the device.
    pub(crate) log_end: LogPosition,
    /// Whether the last record may be incomplete, as on a follower.
    pub(crate) may_be_incomplete: bool,
    pub(crate) trees: Vec<Arc<LiveTree>>,
}

impl ScrubView {
    /// Returns the next needed segment, on the device, in which a record begins.
    pub(super) fn next_segment(&self, log: &ValueLog, from: LogNumber) -> Option<LogNumber> {
        let rows = self.trees.iter();
        let row = rows.filter_map(|it| it.references().next_from(from)).min();
        let read = log.segments().next_from(from.max(self.read_from.number()));
        let next = [row, read].into_iter().flatten().min();
        next.filter(|number| *number <= self.log_end.number())
    }

    /// Returns true if a segment is closed and completely on the device.
    pub(super) fn is_closed(&self, number: LogNumber) -> bool {
        number < self.log_end.number()
    }

    /// Returns the number of a segment's bytes that are on the device.
    pub(super) fn end_in(&self, number: LogNumber) -> usize {
        match number.cmp(&self.log_end.number()) {
            std::cmp::Ordering::Less => SEGMENT_SIZE_BYTES as usize,
            std::cmp::Ordering::Equal => self.log_end.offset(),
            std::cmp::Ordering::Greater => 0,
        }
    }

    /// Returns true if a segment in which a record begins is needed.
    pub(crate) fn needs(&self, number: LogNumber) -> bool {
        let is_referenced = |it: &Arc<LiveTree>| it.references().next_from(number) == Some(number);
        number >= self.read_from.number() || self.trees.iter().any(is_referenced)
    }
}
