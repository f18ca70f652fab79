//! Helpers for the log's tests: a log opened as an engine opens it, and records whose values are
//! derived from their keys.

mod crashes;
mod damage;
mod memory;
mod sharing;
mod sizes;

use std::sync::Arc;

use super::record::{EngineId, RecordKind};
use super::{Appended, LogMemory, Record, ValueLog};
use crate::error::LsmError;
use crate::manifest::{Manifest, ManifestState};
use crate::place::LogPosition;
use crate::storage::Storage;

/// Put or delete: its position, its key, whether it is a delete, and its size in bytes.
pub(super) type RecoveredRecord = (LogPosition, Vec<u8>, bool, u64);

/// Open log, and the records that recovery returned.
pub(super) struct Opened {
    pub(super) manifest: Arc<Manifest>,
    pub(super) log: ValueLog,
    pub(super) replayed: Vec<RecoveredRecord>,
}

pub(super) fn open(storage: &Arc<dyn Storage>) -> Result<Opened, LsmError> {
    open_with(storage, LogMemory::none())
}

/// Opens a log with these settings for memory.
pub(super) fn open_with(storage: &Arc<dyn Storage>, memory: LogMemory) -> Result<Opened, LsmError> {
    let manifest = if Manifest::is_there(&**storage)? {
        Manifest::open(Arc::clone(storage))?.0
    } else {
        Manifest::create(Arc::clone(storage), ManifestState::new(EngineId(5)))?
    };
    let manifest = Arc::new(manifest);
    let mut replayed = Vec::new();
    let log = ValueLog::recover(&**storage, Arc::clone(&manifest), memory, &mut |it| {
        replayed.push((it.position, it.key.to_vec(), it.is_delete, it.size_bytes));
    })?;
    Ok(Opened {
        manifest,
        log,
        replayed,
    })
}

pub(super) fn value_of(key: &[u8], size_bytes: usize) -> Vec<u8> {
    let start = key.iter().fold(size_bytes, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(usize::from(*byte))
    });
    (start..start + size_bytes)
        .map(|it| (it ^ (it >> 8)) as u8)
        .collect()
}

impl Opened {
    /// Puts a value of this size that is derived from the key.
    pub(super) fn put(&self, key: &[u8], size_bytes: usize) -> Result<Appended, LsmError> {
        let value = value_of(key, size_bytes);
        let mut entered = None;
        let enter = |appended| entered = Some(appended);
        let appended = self.log.append(RecordKind::Put, key, &value, enter)?;
        assert_eq!(entered, Some(appended), "it is entered before it returns");
        Ok(appended)
    }

    pub(super) fn delete(&self, key: &[u8]) -> Result<Appended, LsmError> {
        self.log.append(RecordKind::Delete, key, b"", |_| ())
    }

    /// Asserts that a position has the put of a key, with a value of this size.
    pub(super) fn assert_reads(&self, position: LogPosition, key: &[u8], size_bytes: usize) {
        let mut record = Record::default();
        let read = self.log.read(position, &mut record);
        read.unwrap_or_else(|error| panic!("{position}, {size_bytes} bytes: {error}"));
        assert_eq!(record.key(), key);
        assert!(record.value() == value_of(key, size_bytes), "at {position}");
        assert_eq!(record.size_bytes(), 12 + key.len() + size_bytes);
        assert!(record.into_value() == value_of(key, size_bytes));
    }
}

pub(super) fn seen(
    appended: Appended,
    key: &[u8],
    is_delete: bool,
    value_bytes: usize,
) -> RecoveredRecord {
    let size_bytes = (12 + key.len() + value_bytes) as u64;
    (appended.position, key.to_vec(), is_delete, size_bytes)
}
