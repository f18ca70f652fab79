//! Opening the log of a directory: recovery, and recording the end that it found.

use std::sync::Arc;

use super::replay::{ReplayedRecord, replay};
use super::{FILE, LogMemory, ValueLog};
use crate::device::{self, Device};
use crate::error::LsmError;
use crate::follow::shared;
use crate::manifest::{Change, Manifest};
use crate::storage::Storage;

impl ValueLog {
    /// Opens the log of a manifest's directory. Passes puts and deletes to a function in log order,
    /// from the manifest's start of recovery.
    ///
    /// When this returns, the passed records are durable, and data behind them never returns: the
    /// next append begins a segment with a new number. `memory` sets what is read from memory
    /// afterwards.
    ///
    /// Reads each segment once. Uses the memory of two segments, and of one record larger than a
    /// segment.
    ///
    /// # Errors
    /// [`LsmError::CorruptLog`] or [`LsmError::CorruptManifest`] if durable data is lost or
    /// corrupted; nothing was changed. Otherwise, files cannot be read or written.
    pub fn recover(
        storage: &dyn Storage,
        manifest: Arc<Manifest>,
        memory: LogMemory,
        take: &mut dyn FnMut(ReplayedRecord<'_>),
    ) -> Result<Self, LsmError> {
        let state = manifest.state();
        let names_any = !state.log.is_empty();
        let file = device::open_file(storage, FILE, names_any.then_some(&manifest))?;
        let used = state.log_segments();
        let before = Device::new(Arc::clone(&file), FILE, storage.name(), &used);
        // If files are shared with another copy, segments may belong to that copy.
        let is_shared = shared::check(storage, &state)?;
        let found = replay(&before, &state, is_shared, take)?;
        if found.edit_count > state.edit_count {
            return Err(manifest.damaged(format!(
                "it has {} edits, but the log was written with {}",
                state.edit_count, found.edit_count
            )));
        }
        if names_any {
            // A process that ended leaves records that can be read but are not durable. They must
            // be durable before the manifest records that.
            before.sync()?;
            manifest.commit(&[Change::EndLog { last: found.last }])?;
        }
        if is_shared {
            shared::settle(storage, &before, &manifest.state())?;
        }
        let used = manifest.state().log_segments();
        let device = Device::new(file, FILE, storage.name(), &used);
        Ok(Self::new(device, manifest, memory))
    }
}
