//! Garbage collection of the log: a merge moves the live records out of mostly dead segments.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Core;
use crate::error::LsmError;
use crate::log::record::{PAYLOAD_SIZE_BYTES, RecordKind};
use crate::log::{LogPin, Record, ValueLog};
use crate::place::{LogNumber, LogPosition, TreeId};
use crate::tree::{Deletes, Entry, EntrySource, Merge, TreeEntries};
use crate::version::Version;

impl Core {
    /// Returns the log segments that a merge of these trees empties: little in them lives, no other
    /// tree refers to them, and recovery starts behind them.
    pub(super) fn mostly_dead(&self, version: &Version, taken: &[TreeId]) -> BTreeSet<LogNumber> {
        let least = PAYLOAD_SIZE_BYTES as u64 * self.options.live_percent_min / 100;
        let read_from = self.manifest.read_from().number();
        let mut live_bytes: BTreeMap<LogNumber, u64> = BTreeMap::new();
        for live in version.trees() {
            let is_taken = taken.contains(&live.entry().id);
            let rows = live.references().iter();
            for (number, row) in rows.take_while(|(number, _)| *number < read_from) {
                let bytes = live_bytes.entry(number).or_default();
                let more = if is_taken { row.size_bytes } else { u64::MAX };
                *bytes = bytes.saturating_add(more);
            }
        }
        let dead = live_bytes.into_iter().filter(|(_, bytes)| *bytes < least);
        dead.map(|(number, _)| number).collect()
    }
}

/// Merged entries of several trees, including deletes.
pub(super) type Trees = Merge<TreeEntries, Arc<ValueLog>>;

/// Entries of a merge. If one points into a mostly dead segment, its record is appended to the log
/// again when its turn comes, and the entry points there.
pub(super) struct CollectingEntries {
    trees: Trees,
    /// Whether deletes will be in the new tree. Records of deletes that will not are not moved.
    deletes: Deletes,
    dead: BTreeSet<LogNumber>,
    /// New position and size of the current entry's record; `None` if it was not moved.
    moved: Option<(LogPosition, u64)>,
    /// Bytes of all moved records.
    moved_size_bytes: u64,
    /// End of the last moved record.
    end: Option<LogPosition>,
    /// Pins that keep moved records until a tree does.
    pins: Vec<LogPin>,
    record: Record,
}

impl CollectingEntries {
    pub(super) fn new(
        core: &Core,
        trees: Trees,
        deletes: Deletes,
        dead: BTreeSet<LogNumber>,
    ) -> Result<Self, LsmError> {
        let mut collect = Self {
            trees,
            deletes,
            dead,
            moved: None,
            moved_size_bytes: 0,
            end: None,
            pins: Vec::new(),
            record: Record::default(),
        };
        collect.move_current(core)?;
        Ok(collect)
    }

    /// Returns the current entry. It is not for the new tree if it is a delete that is dropped.
    pub(super) fn entry(&self) -> Option<Entry<'_>> {
        let mut entry = self.trees.entry()?;
        if let Some((position, _)) = self.moved {
            entry.position = position;
        }
        Some(entry)
    }

    /// Returns true if the current entry is a delete that is dropped, with the values that it
    /// deletes.
    pub(super) fn is_dropped(&self) -> bool {
        let entry = self.trees.entry();
        self.deletes == Deletes::Omit && entry.is_some_and(|it| it.is_delete)
    }

    pub(super) fn record_size_bytes(&self) -> u64 {
        match self.moved {
            Some((_, size_bytes)) => size_bytes,
            None => self.trees.record_size_bytes(),
        }
    }

    /// Returns the bytes of all records moved so far.
    pub(super) const fn moved_size_bytes(&self) -> u64 {
        self.moved_size_bytes
    }

    /// Returns the position up to which the log must be durable before an edit names a tree of
    /// these entries.
    pub(super) const fn end(&self) -> Option<LogPosition> {
        self.end
    }

    /// Advances to the next entry, passing at most one entry of each tree.
    pub(super) fn advance(&mut self, core: &Core) -> Result<(), LsmError> {
        self.trees.advance()?;
        self.move_current(core)
    }

    fn move_current(&mut self, core: &Core) -> Result<(), LsmError> {
        self.moved = None;
        let entry = self.trees.entry().filter(|_| !self.is_dropped());
        let position = entry.map(|entry| entry.position);
        let Some(position) = position.filter(|it| self.dead.contains(&it.number())) else {
            return Ok(());
        };
        core.log.read_once(position, &mut self.record)?;
        let (key, value) = (self.record.key(), self.record.value());
        let mut pin = None;
        let appended = core.log.append(RecordKind::Moved, key, value, |appended| {
            // No L0 can be frozen behind this record yet, so recovery still starts before it.
            let numbers = appended.position.number().0..=appended.end.number().0;
            pin = Some(core.pins.pin(numbers.map(LogNumber)));
        })?;
        self.pins.extend(pin);
        let size_bytes = self.record.size_bytes() as u64;
        self.moved = Some((appended.position, size_bytes));
        self.moved_size_bytes += size_bytes;
        self.end = Some(appended.end);
        Ok(())
    }
}
