//! What is scrubbed, as it is at a moment.

use std::sync::Arc;

use super::OpenedTrees;
use crate::device::Device;
use crate::error::LsmError;
use crate::log::ValueLog;
use crate::manifest::Manifest;
use crate::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES};
use crate::version::LiveTree;

/// An engine, or a follower.
pub(crate) trait Whole {
    fn log(&self) -> &ValueLog;
    fn manifest(&self) -> &Manifest;
    fn tree_device(&self) -> &Device;

    /// What there is now, and stays as long as the caller has it.
    ///
    /// # Errors
    /// [`LsmError::Stopped`]: what was being written when it failed is not known. Or a follower's
    /// tree cannot be opened.
    fn see(&self, opened: &mut OpenedTrees) -> Result<Seen, LsmError>;

    /// VL6: where the log ended once in a segment: what is behind is nothing.
    fn ended_at(&self, number: LogNumber) -> usize {
        let end = self
            .manifest()
            .with_state(|state| state.log.get(&number)?.end);
        end.map_or(SEGMENT_SIZE_BYTES as usize, |end| end as usize)
    }
}

/// What there is at a moment.
pub(crate) struct Seen {
    /// From there on all of the log is needed. Looked at before the trees: so what it no longer
    /// covers, they do.
    pub(crate) read_from: LogPosition,
    /// Everything of the log before this place is on the device.
    pub(crate) log_end: LogPosition,
    /// FO6: of the last record not all may have come.
    pub(crate) can_go_on: bool,
    pub(crate) trees: Vec<Arc<LiveTree>>,
}

impl Seen {
    /// SC1: the next segment in which a record begins that is needed, and is on the device.
    pub(super) fn next_segment(&self, log: &ValueLog, from: LogNumber) -> Option<LogNumber> {
        let rows = self.trees.iter();
        let row = rows.filter_map(|it| it.references().next_from(from)).min();
        let read = log.segments().next_from(from.max(self.read_from.number()));
        let next = [row, read].into_iter().flatten().min();
        next.filter(|number| *number <= self.log_end.number())
    }

    /// Whether nothing more comes into a segment, and all of it is on the device.
    pub(super) fn is_closed(&self, number: LogNumber) -> bool {
        number < self.log_end.number()
    }

    /// How much of a segment is on the device.
    pub(super) fn end_in(&self, number: LogNumber) -> usize {
        match number.cmp(&self.log_end.number()) {
            std::cmp::Ordering::Less => SEGMENT_SIZE_BYTES as usize,
            std::cmp::Ordering::Equal => self.log_end.offset(),
            std::cmp::Ordering::Greater => 0,
        }
    }

    /// Whether a segment in which a record begins is needed.
    pub(crate) fn needs(&self, number: LogNumber) -> bool {
        let is_led_to = |it: &Arc<LiveTree>| it.references().next_from(number) == Some(number);
        number >= self.read_from.number() || self.trees.iter().any(is_led_to)
    }
}
