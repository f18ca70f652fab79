//! Reading one key, from the current state or a snapshot.

use std::fmt;
use std::sync::Arc;

use super::{Core, Engine};
use crate::error::LsmError;
use crate::log::Record;
use crate::place::LogPosition;
use crate::tree::key_hash;
use crate::version::Version;

/// All keys and values at one moment. The data that a snapshot needs stays on the device until the
/// snapshot is dropped.
pub struct Snapshot {
    pub(super) core: Arc<Core>,
    pub(super) version: Arc<Version>,
    /// Log position before which L0's writes are visible.
    pub(super) bound: LogPosition,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "snapshot before {}", self.bound)
    }
}

impl Engine {
    /// Returns the value of a key, from some moment during the call.
    ///
    /// Costs one read of the log, and one filter block for each tree searched. The tree with the
    /// key costs its height in blocks and one more. The blocks are mostly in the cache.
    ///
    /// # Errors
    /// [`LsmError::CorruptLog`], [`LsmError::CorruptTree`], or files cannot be read.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, LsmError> {
        let version = self.core.version();
        self.core.get(key, &version, LogPosition::MAX)
    }

    /// Returns the value of a key before a log position. It also sees later writes that a flush has
    /// already made into trees; the follower has all of those.
    ///
    /// # Errors
    /// Same as [`Self::get`].
    pub fn get_before(&self, key: &[u8], bound: LogPosition) -> Result<Option<Vec<u8>>, LsmError> {
        // The caller read the bound before this version, so the version has everything before the
        // bound.
        let version = self.core.version();
        self.core.get(key, &version, bound)
    }

    /// Returns a snapshot of the state before a log position. It also sees later writes that a
    /// flush has already made into trees; the follower has all of those. Never waits.
    pub fn snapshot_before(&self, bound: LogPosition) -> Snapshot {
        let core = Arc::clone(&self.core);
        let version = core.version();
        Snapshot {
            core,
            version,
            bound,
        }
    }

    /// Returns a snapshot of the current state. Waits for a write that is being appended.
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
    /// Returns the value of a key in the snapshot. Costs as much as [`Engine::get`].
    ///
    /// # Errors
    /// Same as [`Engine::get`].
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

    /// Reads the record of a key at the position that an entry names.
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
    LsmError::CorruptLog {
        position,
        how: "the record has another key than the index entry".to_owned(),
    }
}
