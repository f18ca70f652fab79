//! Opening the log of a directory: reading it again, and ending it where it ends (VL6).

use std::sync::Arc;

use super::read::damaged;
use super::replay::{ReplayedRecord, replay};
use super::{FILE, ValueLog};
use crate::device::Device;
use crate::error::LsmError;
use crate::manifest::{Change, Manifest};
use crate::place::LogPosition;
use crate::storage::{Storage, StorageFile};

impl ValueLog {
    /// Opens the log of a manifest's directory, and hands out puts and deletes from where the
    /// manifest says, in their order. What is handed out is on the device when this returns, and
    /// what was behind it never comes back: what is appended then begins a segment with a number
    /// that none had.
    ///
    /// Reads each segment once; memory of two, and of one record larger than a segment.
    ///
    /// # Errors
    /// [`LsmError::DamagedLog`] or [`LsmError::DamagedManifest`]: what had been on the device is not
    /// right, and nothing was changed. Or files cannot be read or written.
    pub fn recover(
        storage: &dyn Storage,
        manifest: Arc<Manifest>,
        take: &mut dyn FnMut(ReplayedRecord<'_>),
    ) -> Result<Self, LsmError> {
        let state = manifest.state();
        let file = open_file(storage, !state.log.is_empty())?;
        let place = || (FILE, storage.name());
        let before = Device::new(Arc::clone(&file), place(), &state.log_segments());
        let found = replay(&before, &state, take)?;
        if found.edit_count > state.edit_count {
            return Err(manifest.damaged(format!(
                "it has {} edits, and had {} once",
                state.edit_count, found.edit_count
            )));
        }
        if !state.log.is_empty() {
            // A process that ended leaves records that can be read and are not durable: they must
            // be, before the manifest says that they are.
            before.sync()?;
            manifest.commit(&[Change::EndLog { last: found.last }])?;
        }
        let used = manifest.state().log_segments();
        Ok(Self::new(Device::new(file, place(), &used), manifest))
    }
}

fn open_file(storage: &dyn Storage, is_expected: bool) -> Result<Arc<dyn StorageFile>, LsmError> {
    let failed = |action| {
        move |source| LsmError::Storage {
            action,
            file: FILE.to_owned(),
            directory: storage.name(),
            source,
        }
    };
    let names = storage.list().map_err(failed("look for"))?;
    if names.iter().any(|name| name == FILE) {
        return storage.open(FILE).map_err(failed("open"));
    }
    if is_expected {
        let how = "the manifest names its segments, and there is no such file";
        return Err(damaged(LogPosition::default(), how));
    }
    let file = storage.create(FILE).map_err(failed("create"))?;
    // Before anything in it counts, it must have its name for good.
    storage.sync_names().map_err(failed("create"))?;
    Ok(file)
}
