//! Opening the log of a directory: reading it again, and ending it where it ends (VL6).

use std::sync::Arc;

use super::replay::{ReplayedRecord, replay};
use super::{FILE, LogMemory, ValueLog};
use crate::device::{self, Device};
use crate::error::LsmError;
use crate::follow::shared;
use crate::manifest::{Change, Manifest};
use crate::storage::Storage;

impl ValueLog {
    /// Opens the log of a manifest's directory, and hands out puts and deletes from where the
    /// manifest says, in their order. What is handed out is on the device when this returns, and
    /// what was behind it never comes back: what is appended then begins a segment with a number
    /// that none had. What is read from memory then is said (VL8, VL9).
    ///
    /// Reads each segment once; memory of two, and of one record larger than a segment.
    ///
    /// # Errors
    /// [`LsmError::DamagedLog`] or [`LsmError::DamagedManifest`]: what had been on the device is
    /// not right, and nothing was changed. Or files cannot be read or written.
    pub fn recover(
        storage: &dyn Storage,
        (manifest, memory): (Arc<Manifest>, LogMemory),
        take: &mut dyn FnMut(ReplayedRecord<'_>),
    ) -> Result<Self, LsmError> {
        let state = manifest.state();
        let names_any = !state.log.is_empty();
        let file = device::open_file(storage, FILE, names_any.then_some(&manifest))?;
        let place = || (FILE, storage.name());
        let before = Device::new(Arc::clone(&file), place(), &state.log_segments());
        // FO9.
        let is_shared = shared::check(storage, &state)?;
        let found = replay(&before, (&state, is_shared), take)?;
        if found.edit_count > state.edit_count {
            return Err(manifest.damaged(format!(
                "it has {} edits, and had {} once",
                state.edit_count, found.edit_count
            )));
        }
        if names_any {
            // A process that ended leaves records that can be read and are not durable: they must
            // be, before the manifest says that they are.
            before.sync()?;
            manifest.commit(&[Change::EndLog { last: found.last }])?;
        }
        if is_shared {
            shared::settle(storage, &before, &manifest.state())?;
        }
        let used = manifest.state().log_segments();
        let device = Device::new(file, place(), &used);
        Ok(Self::new(device, manifest, memory))
    }
}
