//! Making a directory, and reading one again.

use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use super::flush::TreePlace;
use super::follow::WorkCounters;
use super::{Core, Engine, EngineOptions, maintain};
use crate::cache::BlockCache;
use crate::device::{self, Device};
use crate::error::LsmError;
use crate::follow::follows;
use crate::log::record::EngineId;
use crate::log::{self, LogMemory, ValueLog};
use crate::manifest::{Manifest, ManifestState, TreeEntry};
use crate::memtable::Memtable;
use crate::place::BlockNumber;
use crate::scrub::block_text;
use crate::storage::{Storage, StorageLock};
use crate::version::{Garbage, LogPins, Version};

pub(crate) const LOCK: &str = "LOCK";
/// The name of the file that trees are in.
pub(crate) const TREES: &str = "trees";

impl Engine {
    /// An engine over a manifest that is open, in a directory that is locked.
    pub(crate) fn over(
        storage: Arc<dyn Storage>,
        (manifest, options): (Arc<Manifest>, EngineOptions),
        lock: Box<dyn StorageLock>,
    ) -> Result<Self, LsmError> {
        let core = recover(storage, (manifest, options), lock)?;
        Ok(Self {
            core: Arc::new(core),
        })
    }

    /// Opens a directory, or makes one in a directory that has none. What was acknowledged as
    /// [`Durability::Sync`](super::Durability::Sync) is there; of what was written later, what
    /// comes before some place in the order of writes.
    ///
    /// Reads the log from the end of the last flush on, the references of all trees, and 32 bytes
    /// of each free segment of the log.
    ///
    /// # Errors
    /// [`LsmError::Locked`], [`LsmError::VersionFromTheFuture`], [`LsmError::VersionFromThePast`],
    /// [`LsmError::DamagedManifest`], [`LsmError::DamagedLog`], [`LsmError::DamagedTree`],
    /// [`LsmError::NoIdentity`], [`LsmError::Follows`]: nothing was changed but for the lock's
    /// file. [`LsmError::BadOption`]: nothing was changed at all. Or files cannot be read or
    /// written.
    pub fn open(storage: Arc<dyn Storage>, options: EngineOptions) -> Result<Self, LsmError> {
        options.check()?;
        let lock = lock(&*storage)?;
        check_leads(&*storage)?;
        let manifest = if Manifest::is_there(&*storage)? {
            Manifest::open(Arc::clone(&storage))?.0
        } else {
            check_is_new(&*storage)?;
            let id = match options.id {
                Some(id) => id,
                None => EngineId::draw().map_err(LsmError::NoIdentity)?,
            };
            Manifest::create(Arc::clone(&storage), ManifestState::new(id))?
        };
        Self::over(storage, (Arc::new(manifest), options), lock)
    }
}

/// FO5: nobody opens what follows another engine.
fn check_leads(storage: &dyn Storage) -> Result<(), LsmError> {
    if follows(storage).map_err(|source| cannot_list(storage, source))? {
        return Err(LsmError::Follows {
            directory: storage.name(),
        });
    }
    Ok(())
}

fn names(storage: &dyn Storage) -> Result<Vec<String>, LsmError> {
    let names = storage.list();
    names.map_err(|source| cannot_list(storage, source))
}

fn cannot_list(storage: &dyn Storage, source: io::Error) -> LsmError {
    LsmError::Storage {
        action: "list",
        file: ".".to_owned(),
        directory: storage.name(),
        source,
    }
}

pub(crate) fn lock(storage: &dyn Storage) -> Result<Box<dyn StorageLock>, LsmError> {
    let lock = storage.lock(LOCK).map_err(|source| LsmError::Storage {
        action: "lock",
        file: LOCK.to_owned(),
        directory: storage.name(),
        source,
    })?;
    lock.ok_or_else(|| LsmError::Locked {
        directory: storage.name(),
    })
}

/// A directory without `CURRENT` has nothing that is made after it: it was never whole.
fn check_is_new(storage: &dyn Storage) -> Result<(), LsmError> {
    let names = names(storage)?;
    let is_later = |name: &&String| {
        [log::FILE, TREES].contains(&name.as_str())
            || name.starts_with("MANIFEST-") && *name != "MANIFEST-1"
    };
    let Some(name) = names.iter().find(is_later) else {
        return Ok(());
    };
    Err(LsmError::DamagedManifest {
        file: "CURRENT".to_owned(),
        directory: storage.name(),
        how: format!("there is none, and there is {name}, which is made later"),
    })
}

/// SC6: damage of a tree that a directory cannot be opened with, and where it is: there is no
/// engine that could be asked for the place.
fn with_place(error: LsmError, device: &Device, entry: &TreeEntry) -> LsmError {
    let LsmError::DamagedTree { tree, block, how } = error else {
        return error;
    };
    let place = block_text(device, entry, BlockNumber(block));
    let place = place.map_or_else(String::new, |place| format!(" ({place})"));
    let how = format!(
        "{how}{place}: restore the directory from a copy, or a replica; until then nothing of it \
         is read"
    );
    LsmError::DamagedTree { tree, block, how }
}

fn recover(
    storage: Arc<dyn Storage>,
    (manifest, options): (Arc<Manifest>, EngineOptions),
    lock: Box<dyn StorageLock>,
) -> Result<Core, LsmError> {
    let state = manifest.state();
    let pins = Arc::new(LogPins::default());
    let garbage = Arc::new(Garbage::default());
    let cache = Arc::new(BlockCache::new(options.cache_size_bytes));
    let used = state.tree_segments();
    let file = device::open_file(&*storage, TREES, (!used.is_empty()).then_some(&manifest))?;
    let trees = Arc::new(Device::new(file, (TREES, storage.name()), &used));
    let place = TreePlace {
        device: &trees,
        cache: &cache,
        garbage: &garbage,
        pins: &pins,
    };
    let mut levels = Vec::new();
    for entries in &state.levels {
        let opened = entries.iter().map(|entry| {
            let opened = place.open(entry.clone());
            opened.map_err(|error| with_place(error, &trees, entry))
        });
        levels.push(opened.collect::<Result<Vec<_>, _>>()?);
    }
    for tree in levels.iter().flatten() {
        let is_lost = |it: &_| !state.log.contains_key(it);
        if let Some(lost) = tree.references().needed().find(is_lost) {
            let how = format!(
                "it does not name log segment {}, into which tree {} leads",
                lost.0,
                tree.entry().id.0
            );
            return Err(manifest.damaged(how));
        }
    }
    let active = Arc::new(Memtable::new(state.read_from));
    let memory = LogMemory {
        recent_size_bytes: options.log_memory_size_bytes,
        cache: Arc::clone(&cache),
    };
    let of = (Arc::clone(&manifest), memory);
    let log = ValueLog::recover(&*storage, of, &mut |record| {
        let place = (record.position, record.size_bytes);
        active.insert(record.key, place, record.is_delete);
    })?;
    pins.note_change();
    Ok(Core {
        storage,
        options,
        log: Arc::new(log),
        trees,
        cache,
        version: RwLock::new(Arc::new(Version {
            active,
            frozen: Vec::new(),
            levels,
        })),
        pins,
        garbage,
        next_tree: AtomicU64::new(state.next_tree.0),
        manifest,
        flushing: Mutex::new(()),
        merging: Mutex::default(),
        freeing: Mutex::new(()),
        wakes: maintain::Wakes::default(),
        failed: OnceLock::new(),
        editing: Mutex::new(()),
        follow: OnceLock::new(),
        fresh_room: Arc::default(),
        work: WorkCounters::default(),
        _lock: lock,
    })
}
