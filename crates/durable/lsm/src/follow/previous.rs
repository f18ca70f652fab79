//! The copy that was there before, of which a filling takes what is the same (FO9).

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

/// A copy of the same engine, locked, whose devices the new one has, too. Nothing of it is changed,
/// nor written over, until this is dropped.
#[derive(Debug)]
pub(super) struct Previous {
    log: BTreeMap<LogNumber, SegmentId>,
    trees: BTreeMap<TreeId, Vec<SegmentId>>,
    /// The segments of either device that it names.
    pub(super) log_segments: BTreeSet<SegmentId>,
    pub(super) tree_segments: BTreeSet<SegmentId>,
    _lock: Box<dyn StorageLock>,
}

impl Previous {
    /// Opens a copy, and gives its devices names in another directory, which is empty. `None`:
    /// nothing of it can be of use; the log tells why. The other directory has neither device
    /// then.
    ///
    /// # Errors
    /// What was begun in the other directory cannot be taken back.
    pub(super) fn open(
        storage: &dyn Storage,
        (previous, engine): (&Arc<dyn Storage>, EngineId),
    ) -> Result<Option<Self>, LsmError> {
        let opened = Self::open_own(previous, engine);
        let opened = opened.and_then(|(it, edit_count)| {
            // In this order: nothing that the new copy writes into its devices is ever found
            // without these.
            shared::mark(&**previous, edit_count)?;
            shared::mark(storage, 0)?;
            link(storage, &**previous)?;
            Ok(it)
        });
        match opened {
            Ok(it) => Ok(Some(it)),
            Err(error) => {
                let (of, to) = (previous.name(), storage.name());
                tracing::warn!(%error, "nothing of {of} is taken into {to}");
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
            return Err(cannot("it was never whole"));
        }
        let (manifest, _) = Manifest::open(Arc::clone(previous))?;
        let state = manifest.state();
        if state.engine != engine {
            return Err(cannot("it is of another engine"));
        }
        if !shared::check(&**previous, &state)? {
            // MF2: once it is shared, an edit that it has lost would not be found any more.
            let file = device::open_file(&**previous, log::FILE, Some(&Arc::new(manifest)))?;
            let device = Device::new(file, (log::FILE, previous.name()), &state.log_segments());
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

    /// Where its log segment of a number is.
    pub(super) fn log_segment(&self, number: LogNumber) -> Option<SegmentId> {
        self.log.get(&number).copied()
    }

    /// Where a segment of its tree of a number is.
    pub(super) fn tree_segment(&self, id: TreeId, index: usize) -> Option<SegmentId> {
        self.trees.get(&id)?.get(index).copied()
    }
}

/// Whether a segment has these bytes, as many as there are meant to be, on the device. What cannot
/// be read has not.
pub(super) fn has(device: &Device, segment: SegmentId, (size_bytes, sum): (u32, PieceSum)) -> bool {
    #[cfg(test)]
    if OMITS_COMPARING.get() {
        return true;
    }
    let mut bytes = vec![0; size_bytes as usize];
    match device.read(segment, 0, &mut bytes) {
        Ok(()) => PieceSum::of(&bytes) == sum,
        Err(error) => {
            tracing::warn!(%error, "a piece of the copy that was there before cannot be read");
            false
        }
    }
}

#[cfg(test)]
thread_local! {
    /// A mistake that tests plant: own pieces are taken as they are.
    pub(in crate::follow) static OMITS_COMPARING: Cell<bool> = const { Cell::new(false) };
}

/// Both devices get names in the new directory, for good.
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

/// Neither device has a name in the new directory: whoever makes one there does not empty the old.
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
