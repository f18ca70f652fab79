//! Put and delete, and freezing L0.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use farleaf_base::limits::{KEY_SIZE_BYTES_MAX, VALUE_SIZE_BYTES_MAX};

use super::{Core, Engine};
use crate::error::LsmError;
use crate::log::record::{RECORD_HEADER_SIZE_BYTES, RecordKind};
use crate::memtable::Memtable;
use crate::place::LogPosition;
use crate::version::Version;

/// Maximum delay of a write because of a backlog of background work.
const DELAY_MAX: Duration = Duration::from_millis(100);

/// Point at which a write returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Return when readers see the write. It is lost if the process or power fails before a later
    /// sync.
    Memory,
    /// Return when the write and everything before it are on the device.
    Sync,
}

impl Engine {
    /// Sets the value of a key.
    ///
    /// Costs one copy into the log's buffer and one entry of L0. With [`Durability::Sync`], it also
    /// costs one write and one sync, which all waiting threads share.
    ///
    /// The write takes effect when it gets its log position. Readers see it from then on, even
    /// before it is durable.
    ///
    /// # Errors
    /// - [`LsmError::KeyTooLong`], [`LsmError::ValueTooLong`]: nothing was done.
    /// - [`LsmError::Stopped`] after an earlier failure: nothing was done.
    /// - Errors of the storage: the write may have taken effect or not.
    pub fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<(), LsmError> {
        let written = self.core.write(RecordKind::Put, key, value, durability);
        written.map(|_| ())
    }

    /// Deletes a key; a key without a value stays without one. Costs as much as [`Self::put`].
    ///
    /// # Errors
    /// Same as [`Self::put`].
    pub fn delete(&self, key: &[u8], durability: Durability) -> Result<(), LsmError> {
        let written = self.core.write(RecordKind::Delete, key, b"", durability);
        written.map(|_| ())
    }

    /// Sets the value of a key, or deletes it, with [`Durability::Memory`]. Returns the log
    /// position at which the record ends, for replication.
    ///
    /// # Errors
    /// Same as [`Self::put`].
    pub fn append(&self, key: &[u8], value: Option<&[u8]>) -> Result<LogPosition, LsmError> {
        let (kind, value) = match value {
            Some(value) => (RecordKind::Put, value),
            None => (RecordKind::Delete, &b""[..]),
        };
        self.core.write(kind, key, value, Durability::Memory)
    }

    /// Makes the log durable up to a position. Costs one write and one sync, which all waiting
    /// threads share.
    ///
    /// # Errors
    /// Same as [`Self::sync`].
    pub fn sync_to(&self, end: LogPosition) -> Result<(), LsmError> {
        self.core.log.sync_to(end)
    }

    /// Makes all writes durable that have taken effect.
    ///
    /// # Errors
    /// The log cannot be written. Later writes may be present or not when the directory is
    /// reopened.
    pub fn sync(&self) -> Result<(), LsmError> {
        let end = self.core.log.between_records(|end| end);
        self.core.log.sync_to(end)
    }

    /// Records the whole durable end of the log in the manifest.
    ///
    /// Otherwise, the manifest records the last 8 MiB only when more is written. The record lets
    /// recovery detect that an idle log has lost its end. Costs one edit of the manifest, if there
    /// is anything new to record.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub fn record_durable_end(&self) -> Result<(), LsmError> {
        self.core.check()?;
        self.core.log.record_whole_durable_end()
    }

    /// Returns the durable end of the log, if [`record_durable_end`](Self::record_durable_end) has
    /// anything to record.
    pub fn unrecorded_end(&self) -> Option<LogPosition> {
        self.core.log.unrecorded_end()
    }

    /// Freezes L0 if it has any entry, full or not. The next [`Self::maintain`] flushes it.
    pub fn freeze(&self) {
        self.core.freeze_if(|active| active.entry_count() > 0);
    }

    /// Returns the current delay of a write because of a backlog of background work.
    pub fn write_delay(&self) -> Duration {
        self.core.delay(&self.core.version())
    }
}

impl Core {
    fn write(
        &self,
        kind: RecordKind,
        key: &[u8],
        value: &[u8],
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
        let appended = self.log.append(kind, key, value, |appended| {
            let active = &self.version().active;
            let is_delete = kind == RecordKind::Delete;
            active.insert(key, appended.position, size_bytes, is_delete);
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

    /// Returns true if a memtable has reached a limit and must be frozen.
    pub(super) fn is_full(&self, memtable: &Memtable) -> bool {
        let entry_count = memtable.entry_count();
        let is_below_limits = memtable.size_bytes() < self.options.l0_size_bytes_max
            && entry_count < self.options.l0_entry_count_max
            && memtable.log_size_bytes() < self.options.l0_log_size_bytes_max;
        // An empty memtable has a size, too.
        entry_count > 0 && !is_below_limits
    }

    /// Freezes L0 if a condition holds, and replaces it by an empty one. No record is appended
    /// meanwhile. Records before the position are in the old L0, and those behind it will be in the
    /// new one.
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

    /// Replaces L0, which has everything up to a log position and nothing behind it.
    pub(super) fn replace_active(&self, active: Arc<Memtable>, end: LogPosition) {
        // Snapshots may need the frozen L0 after it is flushed, when nothing else keeps its log
        // segments. Only existing segments are pinned: numbers of dropped segments are never
        // reused.
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
