//! The previous copy, from which a filling reuses equal pieces.

#[cfg(test)]
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use super::piece::PieceSum;
use super::shared;
use crate::device::{self, Device};
use crate::engine::{TREES, lock};
use crate::error::LsmError;
use crate::log;
use crate::log::record::EngineId;
use crate::log::replay::check_all_are_named;
use crate::manifest::Manifest;
use crate::place::{LogNumber, SegmentId, TreeId};
use crate::storage::{Storage, StorageLock};

/// Previous copy of the same engine, locked, whose devices the new copy shares. Nothing of it is
/// changed or overwritten until this is dropped.
#[derive(Debug)]
pub(super) struct Previous {
    log: BTreeMap<LogNumber, SegmentId>,
    trees: BTreeMap<TreeId, Vec<SegmentId>>,
    /// Segments of the log's device that its manifest names; `tree_segments` are those of the
    /// trees'.
    pub(super) log_segments: BTreeSet<SegmentId>,
    pub(super) tree_segments: BTreeSet<SegmentId>,
    _lock: Box<dyn StorageLock>,
}

impl Previous {
    /// Opens a copy, and links its devices into another directory, which is empty. Returns `None`
    /// if nothing of it is usable, and logs the reason. The other directory has neither device
    /// then.
    ///
    /// # Errors
    /// A link in the other directory cannot be removed again.
    pub(super) fn open(
        storage: &dyn Storage,
        previous: &Arc<dyn Storage>,
        engine: EngineId,
    ) -> Result<Option<Self>, LsmError> {
        let opened = Self::open_own(previous, engine);
        let opened = opened.and_then(|(it, edit_count)| {
            // The files come first, so that segments which the new copy writes into shared devices
            // are never found without them.
            shared::mark(&**previous, edit_count)?;
            shared::mark(storage, 0)?;
            link(storage, &**previous)?;
            Ok(it)
        });
        match opened {
            Ok(it) => Ok(Some(it)),
            Err(error) => {
                let (of, to) = (previous.name(), storage.name());
                tracing::warn!(%error, "cannot reuse data of {of} in {to}");
                unlink(storage)?;
                Ok(None)
            }
        }
    }

    fn open_own(previous: &Arc<dyn Storage>, engine: EngineId) -> Result<(Self, u64), LsmError> {
        let lock = lock(&**previous)?;
        let cannot = |how: &str| LsmError::CannotFollow {
            how: format!("{}: {how}", previous.name()),
        };
        if !Manifest::is_there(&**previous)? {
            return Err(cannot("it was never complete"));
        }
        let (manifest, _) = Manifest::open(Arc::clone(previous))?;
        let state = manifest.state();
        if state.engine != engine {
            return Err(cannot("it belongs to another engine"));
        }
        if !shared::check(&**previous, &state)? {
            // Once the copy is shared, an edit that it has lost could no longer be detected.
            let file = device::open_file(&**previous, log::FILE, Some(&Arc::new(manifest)))?;
            let device = Device::new(file, log::FILE, previous.name(), &state.log_segments());
            check_all_are_named(&device, &state)?;
        }
        let trees = state.levels.iter().flatten();
        let log = state.log.iter();
        let it = Self {
            log: log.map(|(number, it)| (*number, it.segment)).collect(),
            trees: trees.map(|it| (it.id, it.segments.clone())).collect(),
            log_segments: state.log_segments(),
            tree_segments: state.tree_segments(),
            _lock: lock,
        };
        Ok((it, state.edit_count))
    }

    /// Returns the device segment of its log segment.
    pub(super) fn log_segment(&self, number: LogNumber) -> Option<SegmentId> {
        self.log.get(&number).copied()
    }

    /// Returns the device segment of a segment of its tree.
    pub(super) fn tree_segment(&self, id: TreeId, index: usize) -> Option<SegmentId> {
        self.trees.get(&id)?.get(index).copied()
    }
}

/// Returns true if a segment on the device has this length and checksum. A segment that cannot be
/// read has not.
pub(super) fn has(device: &Device, segment: SegmentId, size_bytes: u32, sum: PieceSum) -> bool {
    #[cfg(test)]
    if OMITS_COMPARING.get() {
        return true;
    }
    let mut bytes = vec![0; size_bytes as usize];
    match device.read(segment, 0, &mut bytes) {
        Ok(()) => PieceSum::of(&bytes) == sum,
        Err(error) => {
            tracing::warn!(%error, "cannot read a segment of the previous copy");
            false
        }
    }
}

#[cfg(test)]
thread_local! {
    /// Fault that tests inject: pieces are reused without comparing them.
    pub(in crate::follow) static OMITS_COMPARING: Cell<bool> = const { Cell::new(false) };
}

/// Links both devices into the new directory, durably.
fn link(storage: &dyn Storage, previous: &dyn Storage) -> Result<(), LsmError> {
    let failed = |file: &str| {
        let (file, directory) = (file.to_owned(), storage.name());
        move |source| LsmError::Storage {
            action: "link",
            file,
            directory,
            source,
        }
    };
    for name in [log::FILE, TREES] {
        let origin = previous.origin(name);
        let origin = origin.ok_or_else(|| io::ErrorKind::Unsupported.into());
        let linked = origin.and_then(|origin| storage.link(&origin, name));
        linked.map_err(failed(name))?;
    }
    storage.sync_names().map_err(failed("."))
}

/// Removes both links from the new directory, so that creating a device there does not empty the
/// old one.
fn unlink(storage: &dyn Storage) -> Result<(), LsmError> {
    let unlink = || {
        let names = storage.list()?;
        let made = [log::FILE, TREES, shared::SHARED];
        for name in names.iter().filter(|name| made.contains(&name.as_str())) {
            storage.remove(name)?;
        }
        storage.sync_names()
    };
    unlink().map_err(|source| LsmError::Storage {
        action: "remove",
        file: log::FILE.to_owned(),
        directory: storage.name(),
        source,
    })
}
