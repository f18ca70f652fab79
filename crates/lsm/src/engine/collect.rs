//! Moving what lives in log segments that are mostly dead (LC5), as part of a merge.

use std::collections::{BTreeMap, BTreeSet};

use super::Core;
use crate::error::LsmError;
use crate::log::Record;
use crate::log::record::{PAYLOAD_SIZE_BYTES, RecordKind};
use crate::place::{LogNumber, LogPosition, TreeId};
use crate::tree::{Entry, EntrySource, Merge};
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

/// The entries of a merge, of which those that lead into mostly dead segments lead elsewhere: their
/// records are appended to the log again when their turn comes.
pub(super) struct Collect<'c> {
    core: &'c Core,
    merge: Merge<'c>,
    dead: BTreeSet<LogNumber>,
    /// Where the current entry's record is now, and its size; `None`: where it was.
    moved: Option<(LogPosition, u64)>,
    /// The end of the last record that was moved.
    end: Option<LogPosition>,
    /// Keep what was moved until a tree does.
    pins: Vec<LogPin>,
    record: Record,
}

impl<'c> Collect<'c> {
    pub(super) fn new(
        core: &'c Core,
        merge: Merge<'c>,
        dead: BTreeSet<LogNumber>,
    ) -> Result<Self, LsmError> {
        let mut collect = Self {
            core,
            merge,
            dead,
            moved: None,
            end: None,
            pins: Vec::new(),
            record: Record::default(),
        };
        collect.move_current()?;
        Ok(collect)
    }

    /// Up to where the log must be durable before a tree of these entries is named.
    pub(super) const fn end(&self) -> Option<LogPosition> {
        self.end
    }

    fn move_current(&mut self) -> Result<(), LsmError> {
        self.moved = None;
        let entry = self.merge.entry();
        let position = entry.map(|entry| entry.position);
        let Some(position) = position.filter(|it| self.dead.contains(&it.number())) else {
            return Ok(());
        };
        let log = &self.core.log;
        log.read(position, &mut self.record)?;
        let (key, value) = (self.record.key(), self.record.value());
        let mut pin = None;
        let appended = log.append((RecordKind::Moved, key, value), |appended| {
            // No L0 can be frozen behind it yet, so the log is read again from before it.
            let numbers = appended.position.number().0..=appended.end.number().0;
            pin = Some(self.core.pins.pin(numbers.map(LogNumber)));
        })?;
        self.pins.extend(pin);
        self.moved = Some((appended.position, self.record.size_bytes() as u64));
        self.end = Some(appended.end);
        Ok(())
    }
}

impl EntrySource for Collect<'_> {
    fn entry(&self) -> Option<Entry<'_>> {
        let mut entry = self.merge.entry()?;
        if let Some((position, _)) = self.moved {
            entry.position = position;
        }
        Some(entry)
    }

    fn record_size_bytes(&self) -> u64 {
        match self.moved {
            Some((_, size_bytes)) => size_bytes,
            None => self.merge.record_size_bytes(),
        }
    }

    fn advance(&mut self) -> Result<(), LsmError> {
        self.merge.advance()?;
        self.move_current()
    }
}
