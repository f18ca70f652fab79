//! Put and delete (VL4, VL5), and freezing L0.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::{Core, Engine};
use crate::error::LsmError;
use crate::log::record::{RECORD_HEADER_SIZE_BYTES, RecordKind};
use crate::memtable::Memtable;
use crate::place::{KEY_SIZE_BYTES_MAX, LogPosition, VALUE_SIZE_BYTES_MAX};
use crate::version::Version;

/// No write waits longer for background work.
const DELAY_MAX: Duration = Duration::from_millis(100);

/// When a write returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When readers see it. It is lost with the power, or the process, if no later sync came.
    Memory,
    /// When it is on the device, and everything before it.
    Sync,
}

impl Engine {
    /// Gives a key a value. One copy into the log's buffer and one entry of L0; with
    /// [`Durability::Sync`] one write and one sync, which all who wait share.
    ///
    /// It takes effect when it has its place in the log: from then on readers see it, also if it is
    /// not durable yet.
    ///
    /// # Errors
    /// [`LsmError::KeyTooLong`], [`LsmError::ValueTooLong`]: nothing was done.
    /// [`LsmError::Stopped`] after an earlier failure: the same. Those of the storage: it may be
    /// there or not.
    pub fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<(), LsmError> {
        let written = self.core.write((RecordKind::Put, key, value), durability);
        written.map(|_| ())
    }

    /// Takes a key's value away; one that has none still has none. Costs as [`Self::put`] does.
    ///
    /// # Errors
    /// As those of [`Self::put`].
    pub fn delete(&self, key: &[u8], durability: Durability) -> Result<(), LsmError> {
        let written = self.core.write((RecordKind::Delete, key, b""), durability);
        written.map(|_| ())
    }

    /// Gives a key a value, or takes it away, with [`Durability::Memory`]; and says where the
    /// record ends in the log, for who follows that.
    ///
    /// # Errors
    /// As those of [`Self::put`].
    pub fn append(&self, key: &[u8], value: Option<&[u8]>) -> Result<LogPosition, LsmError> {
        let (kind, value) = match value {
            Some(value) => (RecordKind::Put, value),
            None => (RecordKind::Delete, &b""[..]),
        };
        self.core.write((kind, key, value), Durability::Memory)
    }

    /// Makes the log durable up to a place. One write and one sync, which all who wait share.
    ///
    /// # Errors
    /// As those of [`Self::sync`].
    pub fn sync_to(&self, end: LogPosition) -> Result<(), LsmError> {
        self.core.log.sync_to(end)
    }

    /// Makes all writes durable that have taken effect.
    ///
    /// # Errors
    /// The log cannot be written: later ones may be there or not.
    pub fn sync(&self) -> Result<(), LsmError> {
        let end = self.core.log.between_records(|end| end);
        self.core.log.sync_to(end)
    }

    /// Has the manifest say how far the log is durable, which it says of the last 8 MiB otherwise
    /// only when more has come: so that a log that loses its end when nothing more is written is
    /// found to be damaged (VL6). One edit of the manifest, if there is anything new to say.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub fn say_synced(&self) -> Result<(), LsmError> {
        self.core.check()?;
        self.core.log.say_all_synced()
    }

    /// Up to where the log is durable, if [`say_synced`](Self::say_synced) has anything to do.
    pub fn unsaid_to(&self) -> Option<LogPosition> {
        self.core.log.unsaid_to()
    }

    /// Freezes L0 if it has anything, full or not: the next [`Self::maintain`] flushes it.
    pub fn freeze(&self) {
        self.core.freeze_if(|active| active.entry_count() > 0);
    }

    /// LC6: how long a write waits now.
    pub fn write_delay(&self) -> Duration {
        self.core.delay(&self.core.version())
    }
}

impl Core {
    fn write(
        &self,
        (kind, key, value): (RecordKind, &[u8], &[u8]),
        durability: Durability,
    ) -> Result<LogPosition, LsmError> {
        if key.len() > KEY_SIZE_BYTES_MAX {
            return Err(LsmError::KeyTooLong {
                size_bytes: key.len(),
            });
        }
        if value.len() > VALUE_SIZE_BYTES_MAX {
            return Err(LsmError::ValueTooLong {
                size_bytes: value.len(),
            });
        }
        self.check()?;
        let version = self.version();
        let delay = self.delay(&version);
        if !delay.is_zero() {
            thread::sleep(delay);
        }
        drop(version);
        let size_bytes = (RECORD_HEADER_SIZE_BYTES + key.len() + value.len()) as u64;
        let mut is_full = false;
        let appended = self.log.append((kind, key, value), |appended| {
            let active = &self.version().active;
            let is_delete = kind == RecordKind::Delete;
            active.insert(key, (appended.position, size_bytes), is_delete);
            is_full = self.is_full(active);
        })?;
        if is_full {
            self.freeze_if(|active| self.is_full(active));
        }
        if durability == Durability::Sync {
            self.log.sync_to(appended.end)?;
        }
        Ok(appended.end)
    }

    /// Whether a memtable is to be frozen (LC8).
    pub(super) fn is_full(&self, memtable: &Memtable) -> bool {
        let entry_count = memtable.entry_count();
        let has_room = memtable.size_bytes() < self.options.l0_size_bytes_max
            && entry_count < self.options.l0_entry_count_max
            && memtable.log_size_bytes() < self.options.l0_log_size_bytes_max;
        // An empty one takes some bytes, too.
        entry_count > 0 && !has_room
    }

    /// Replaces L0 by an empty one. No record is appended meanwhile: what is before the place is in
    /// the old one, what is behind it will be in the new one.
    fn freeze_if(&self, is_due: impl FnOnce(&Memtable) -> bool) {
        self.log.between_records(|end| {
            let active = Arc::clone(&self.version().active);
            if !is_due(&active) {
                return;
            }
            self.replace_active(active, end);
        });
        self.wakes.wake();
    }

    /// Freezes L0, which has everything up to a place and nothing behind it.
    pub(super) fn replace_active(&self, active: Arc<Memtable>, end: LogPosition) {
        // A snapshot may need it when it is flushed, and the log may be free but for that.
        // Only those that there are: numbers of segments that were dropped are not used again.
        let numbers = active.start().number()..=end.number();
        let numbers = self.log.segments().numbers(numbers);
        active.freeze(end, self.pins.pin(numbers));
        self.change_version(|version| {
            version.active = Arc::new(Memtable::new(end));
            version.frozen.insert(0, active);
        });
    }

    fn delay(&self, version: &Version) -> Duration {
        let frozen = version.frozen.len().saturating_sub(1);
        let trees = version.level(1).len();
        let behind = frozen + trees.saturating_sub(self.options.level_1_tree_count_max + 1);
        let behind = u32::try_from(behind).unwrap_or(u32::MAX);
        let delay = self
            .options
            .delay
            .saturating_mul(behind.saturating_mul(behind));
        delay.min(DELAY_MAX)
    }
}
