//! Moving what lives in log segments that are mostly dead (LC5), as part of a merge.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Core;
use crate::error::LsmError;
use crate::log::record::{PAYLOAD_SIZE_BYTES, RecordKind};
use crate::log::{Record, ValueLog};
use crate::place::{LogNumber, LogPosition, TreeId};
use crate::tree::{Deletes, Entry, EntrySource, Merge, TreeEntries};
use crate::version::{LogPin, Version};

impl Core {
    /// The log segments that a merge of these trees empties: of which little lives, into which no
    /// other tree leads, and from which the log is not read again.
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

/// The trees of a merge as one, which keeps deletes.
pub(super) type Trees = Merge<TreeEntries, Arc<ValueLog>>;

/// The entries of a merge, of which those that lead into mostly dead segments lead elsewhere: their
/// records are appended to the log again when their turn comes.
pub(super) struct Collect {
    trees: Trees,
    /// Whether deletes will be in the new tree: of those that will not, nothing is moved.
    deletes: Deletes,
    dead: BTreeSet<LogNumber>,
    /// Where the current entry's record is now, and its size; `None`: where it was.
    moved: Option<(LogPosition, u64)>,
    /// Bytes of all records that were moved.
    moved_size_bytes: u64,
    /// The end of the last record that was moved.
    end: Option<LogPosition>,
    /// Keep what was moved until a tree does.
    pins: Vec<LogPin>,
    record: Record,
}

impl Collect {
    pub(super) fn new(
        core: &Core,
        (trees, deletes): (Trees, Deletes),
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

    /// The current entry, which is not one of the new tree if it is a delete that goes.
    pub(super) fn entry(&self) -> Option<Entry<'_>> {
        let mut entry = self.trees.entry()?;
        if let Some((position, _)) = self.moved {
            entry.position = position;
        }
        Some(entry)
    }

    /// Whether the current entry goes, and with it what it deletes.
    pub(super) fn goes(&self) -> bool {
        let entry = self.trees.entry();
        self.deletes == Deletes::Go && entry.is_some_and(|it| it.is_delete)
    }

    pub(super) fn record_size_bytes(&self) -> u64 {
        match self.moved {
            Some((_, size_bytes)) => size_bytes,
            None => self.trees.record_size_bytes(),
        }
    }

    /// Bytes of all records that were moved so far.
    pub(super) const fn moved_size_bytes(&self) -> u64 {
        self.moved_size_bytes
    }

    /// Up to where the log must be durable before a tree of these entries is named.
    pub(super) const fn end(&self) -> Option<LogPosition> {
        self.end
    }

    /// Goes to the next entry: one of each tree at the most is passed.
    pub(super) fn advance(&mut self, core: &Core) -> Result<(), LsmError> {
        self.trees.advance()?;
        self.move_current(core)
    }

    fn move_current(&mut self, core: &Core) -> Result<(), LsmError> {
        self.moved = None;
        let entry = self.trees.entry().filter(|_| !self.goes());
        let position = entry.map(|entry| entry.position);
        let Some(position) = position.filter(|it| self.dead.contains(&it.number())) else {
            return Ok(());
        };
        core.log.read_once(position, &mut self.record)?;
        let (key, value) = (self.record.key(), self.record.value());
        let mut pin = None;
        let appended = core
            .log
            .append((RecordKind::Moved, key, value), |appended| {
                // No L0 can be frozen behind it yet, so the log is read again from before it.
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
