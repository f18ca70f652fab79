//! Getting one key, now or as of a snapshot (LC1).

use std::fmt;
use std::sync::Arc;

use super::{Core, Engine};
use crate::error::LsmError;
use crate::log::Record;
use crate::place::LogPosition;
use crate::tree::key_hash;
use crate::version::Version;

/// All keys and values as they were at a moment. What it needs stays on the device as long as it is
/// there.
pub struct Snapshot {
    pub(super) core: Arc<Core>,
    pub(super) version: Arc<Version>,
    /// Of L0, what was written before this place.
    pub(super) bound: LogPosition,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "snapshot before {}", self.bound)
    }
}

impl Engine {
    /// The value of a key. One read of the log, and for each tree that is asked a block of its
    /// filter, and of the one that has the key its height and one more; blocks mostly from the
    /// cache.
    ///
    /// It is the value at some moment while this runs.
    ///
    /// # Errors
    /// [`LsmError::DamagedLog`], [`LsmError::DamagedTree`], or files cannot be read.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, LsmError> {
        let version = self.core.version();
        self.core.get(key, &version, LogPosition::MAX)
    }

    /// The value that a key had before a place in the log, or what a flush had made of it by then
    /// (FO4).
    ///
    /// # Errors
    /// As those of [`Self::get`].
    pub fn get_before(&self, key: &[u8], bound: LogPosition) -> Result<Option<Vec<u8>>, LsmError> {
        // In this order: the version has all of what is before the bound.
        let version = self.core.version();
        self.core.get(key, &version, bound)
    }

    /// What there was before a place in the log, or what the last flush had by then (FO4), for as
    /// long as it is needed. Waits for nobody.
    pub fn snapshot_before(&self, bound: LogPosition) -> Snapshot {
        let core = Arc::clone(&self.core);
        let version = core.version();
        Snapshot {
            core,
            version,
            bound,
        }
    }

    /// What there is now, for as long as it is needed. Waits for a write that is being appended.
    pub fn snapshot(&self) -> Snapshot {
        let core = Arc::clone(&self.core);
        let (version, bound) = core.log.between_records(|end| (core.version(), end));
        Snapshot {
            core,
            version,
            bound,
        }
    }
}

impl Snapshot {
    /// The value that a key had then. Costs as [`Engine::get`] does.
    ///
    /// # Errors
    /// As those of [`Engine::get`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, LsmError> {
        self.core.get(key, &self.version, self.bound)
    }
}

impl Core {
    fn get(
        &self,
        key: &[u8],
        version: &Version,
        bound: LogPosition,
    ) -> Result<Option<Vec<u8>>, LsmError> {
        let mut record = Record::default();
        for memtable in version.memtables() {
            if let Some(found) = memtable.get(key, bound) {
                if found.is_delete {
                    return Ok(None);
                }
                self.read_expected(found.position, key, &mut record)?;
                return Ok(Some(record.into_value()));
            }
        }
        let hash = key_hash(key);
        for live in version.trees() {
            let Some(candidate) = live.tree().get(key, hash, &*self.log)? else {
                continue;
            };
            match (candidate.is_certain, candidate.is_delete) {
                (true, true) => return Ok(None),
                (true, false) => self.read_expected(candidate.position, key, &mut record)?,
                (false, is_delete) => {
                    self.log.read(candidate.position, &mut record)?;
                    if record.key() != key {
                        continue;
                    }
                    if is_delete {
                        return Ok(None);
                    }
                }
            }
            return Ok(Some(record.into_value()));
        }
        Ok(None)
    }

    /// Reads the record of a key from where it must be.
    fn read_expected(
        &self,
        position: LogPosition,
        key: &[u8],
        record: &mut Record,
    ) -> Result<(), LsmError> {
        self.log.read(position, record)?;
        if record.key() == key {
            return Ok(());
        }
        Err(not_of_the_key(position))
    }
}

pub(super) fn not_of_the_key(position: LogPosition) -> LsmError {
    LsmError::DamagedLog {
        position,
        how: "the record there is not of the key that leads to it".to_owned(),
    }
}
