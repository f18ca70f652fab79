//! File that marks a directory whose devices are shared with another copy.
//!
//! ```text
//! SHARED     {"version":1,"edit_count":N}
//! ```
//!
//! While the file exists, segments that the manifest does not name may belong to the other copy.
//! Their numbers may not be assigned here yet, so they are not corruption. The count in the file
//! detects lost edits of the manifest instead. The copy in force settles: it erases the headers of
//! such segments, and then removes the file.

use std::io;

use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::error::LsmError;
use crate::log::record::SEGMENT_HEADER_SIZE_BYTES;
use crate::log::replay::unnamed_segments;
use crate::manifest::ManifestState;
use crate::storage::Storage;

/// Name of the file.
pub(crate) const SHARED: &str = "SHARED";
const NEW_SHARED: &str = "SHARED.new";
const VERSION: u32 = 1;
/// Upper bound for the file's size in bytes.
const SIZE_BYTES_MAX: u64 = 256;

/// Contents of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SharedMarker {
    version: u32,
    /// Number of manifest edits when the file was written.
    edit_count: u64,
}

fn failed<'s>(
    storage: &'s dyn Storage,
    action: &'static str,
) -> impl FnOnce(io::Error) -> LsmError + 's {
    move |source| LsmError::Storage {
        action,
        file: SHARED.to_owned(),
        directory: storage.name(),
        source,
    }
}

/// Marks this directory's devices as shared with another copy, durably and atomically.
pub(crate) fn mark(storage: &dyn Storage, edit_count: u64) -> Result<(), LsmError> {
    let shared = SharedMarker {
        version: VERSION,
        edit_count,
    };
    let bytes = serde_json::to_vec(&shared).expect("it is a plain value");
    let write = || {
        // A power failure during a rename may have left one file with both names. Writing to one
        // would write to the other.
        if storage.list()?.iter().any(|name| name == NEW_SHARED) {
            storage.remove(NEW_SHARED)?;
            storage.sync_names()?;
        }
        let file = storage.create(NEW_SHARED)?;
        file.write_at(&bytes, 0)?;
        file.sync()?;
        storage.rename(NEW_SHARED, SHARED)?;
        storage.sync_names()
    };
    write().map_err(failed(storage, "write"))
}

/// Returns true if this directory's devices are shared with another copy. Checks that its manifest
/// has all edits that it had when the file was written.
///
/// # Errors
/// [`LsmError::CorruptManifest`] if edits are missing or the file is invalid; or it cannot be read.
pub(crate) fn check(storage: &dyn Storage, state: &ManifestState) -> Result<bool, LsmError> {
    let damaged = |file: &str, how| LsmError::CorruptManifest {
        file: file.to_owned(),
        directory: storage.name(),
        how,
    };
    let read = || {
        if !storage.list()?.iter().any(|name| name == SHARED) {
            return Ok(None);
        }
        let file = storage.open(SHARED)?;
        // One byte more than is valid: JSON with trailing bytes is an error.
        let mut bytes = vec![0; file.size()?.min(SIZE_BYTES_MAX + 1) as usize];
        file.read_at(&mut bytes, 0)?;
        Ok(Some(bytes))
    };
    let Some(bytes) = read().map_err(failed(storage, "read"))? else {
        return Ok(false);
    };
    let shared: Result<SharedMarker, _> = serde_json::from_slice(&bytes);
    let shared = shared.map_err(|error| damaged(SHARED, error.to_string()))?;
    if shared.version != VERSION {
        let how = format!("unsupported version {}, expected {VERSION}", shared.version);
        return Err(damaged(SHARED, how));
    }
    if state.edit_count < shared.edit_count {
        let how = format!(
            "it has {} edits, but had {} when {SHARED} was written",
            state.edit_count, shared.edit_count
        );
        return Err(damaged("CURRENT", how));
    }
    Ok(true)
}

/// Ends sharing: the other copy is unusable from now on. Erases the headers of log segments that
/// the manifest does not name and whose numbers it has not assigned, and removes the file. Reads 32
/// bytes of each free segment; costs one sync.
pub(crate) fn settle(
    storage: &dyn Storage,
    device: &Device,
    state: &ManifestState,
) -> Result<(), LsmError> {
    for (segment, _) in unnamed_segments(device, state)? {
        device.write(segment, 0, &[0; SEGMENT_HEADER_SIZE_BYTES])?;
    }
    device.sync()?;
    let removed = storage.remove(SHARED).and_then(|()| storage.sync_names());
    removed.map_err(failed(storage, "remove"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::log::record::EngineId;
    use crate::storage::CrashStorage;

    fn with(bytes: &[u8]) -> CrashStorage {
        let storage = CrashStorage::new(1);
        let file = storage.create(SHARED).expect("made");
        file.write_at(bytes, 0).expect("written");
        storage
    }

    fn state(edit_count: u64) -> ManifestState {
        ManifestState {
            edit_count,
            ..ManifestState::new(EngineId(7))
        }
    }

    /// Promise (format): a change needs a new version. A manifest that has lost an edit, a later
    /// version, and invalid contents are corruption. Without the file, nothing is shared.
    #[test]
    fn the_file_is_golden() {
        let storage = CrashStorage::new(1);
        assert!(!check(&storage, &state(0)).expect("there is none"));
        mark(&storage, 12).expect("written");
        mark(&storage, 12).expect("written again");
        let file: Arc<_> = storage.open(SHARED).expect("there");
        let golden = br#"{"version":1,"edit_count":12}"#;
        let mut bytes = vec![0; file.size().expect("known") as usize];
        file.read_at(&mut bytes, 0).expect("read");
        assert_eq!(bytes, golden);
        assert!(check(&storage, &state(12)).expect("it has all"));
        assert!(check(&storage, &state(13)).expect("it has more"));
        for (storage, count, expected) in [
            (storage, 11, "11 edits, but had 12"),
            (with(br#"{"version":2,"edit_count":12}"#), 12, "version 2"),
            (with(b"{}"), 12, "missing field"),
            (with(&[b' '; 300]), 12, "EOF"),
        ] {
            let error = check(&storage, &state(count)).expect_err("damaged");
            assert!(matches!(error, LsmError::CorruptManifest { .. }), "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    proptest! {
        /// Promise: any bytes are either this file or corruption.
        #[test]
        fn any_bytes_are_the_file_or_damage(bytes: Vec<u8>, at in 0..29_usize, byte: u8) {
            let mut changed = br#"{"version":1,"edit_count":12}"#.to_vec();
            changed[at] = byte;
            for bytes in [bytes, changed] {
                match check(&with(&bytes), &state(u64::MAX)) {
                    Ok(is_shared) => prop_assert!(is_shared),
                    Err(error) => {
                        let is_corruption = matches!(error, LsmError::CorruptManifest { .. });
                        prop_assert!(is_corruption, "{error}");
                    }
                }
            }
        }
    }
}
