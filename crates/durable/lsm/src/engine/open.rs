//! Creating and opening a directory.

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
use crate::log::{self, LogMemory, LogPins, ValueLog};
use crate::manifest::{Manifest, ManifestState, TreeEntry};
use crate::memtable::Memtable;
use crate::place::BlockNumber;
use crate::scrub::block_text;
use crate::storage::{Storage, StorageLock};
use crate::version::{Garbage, Version};

pub(crate) const LOCK: &str = "LOCK";
/// Name of the file with the trees.
pub(crate) const TREES: &str = "trees";

impl Engine {
    /// Creates an engine over an open manifest, in a locked directory.
    pub(crate) fn over(
        storage: Arc<dyn Storage>,
        manifest: Arc<Manifest>,
        options: EngineOptions,
        lock: Box<dyn StorageLock>,
    ) -> Result<Self, LsmError> {
        let core = recover(storage, manifest, options, lock)?;
        Ok(Self {
            core: Arc::new(core),
        })
    }

    /// Opens a directory, or creates one if it has no engine yet.
    ///
    /// Everything acknowledged as [`Durability::Sync`](super::Durability::Sync) is present. Of
    /// later writes, those before some log position are present.
    ///
    /// Opening reads the log from the end of the last flush, the references of all trees, and 32
    /// bytes of each free log segment.
    ///
    /// # Errors
    /// - [`LsmError::BadOption`]: nothing was changed.
    /// - [`LsmError::Locked`], [`LsmError::NewerVersion`],
    ///   [`LsmError::OlderVersion`], [`LsmError::CorruptManifest`], [`LsmError::CorruptLog`],
    ///   [`LsmError::CorruptTree`], [`LsmError::NoRandomId`], [`LsmError::Follows`]: nothing was
    ///   changed except the lock file.
    /// - [`LsmError::Storage`]: files cannot be read or written.
    pub fn open(storage: Arc<dyn Storage>, options: EngineOptions) -> Result<Self, LsmError> {
        options.check()?;
        let lock = lock(&*storage)?;
        check_not_follower(&*storage)?;
        let manifest = if Manifest::is_there(&*storage)? {
            Manifest::open(Arc::clone(&storage))?.0
        } else {
            check_is_new(&*storage)?;
            let id = match options.id {
                Some(id) => id,
                None => EngineId::draw().map_err(LsmError::NoRandomId)?,
            };
            Manifest::create(Arc::clone(&storage), ManifestState::new(id))?
        };
        Self::over(storage, Arc::new(manifest), options, lock)
    }
}

/// Returns an error if the directory follows another engine: such a directory must be promoted
/// first.
fn check_not_follower(storage: &dyn Storage) -> Result<(), LsmError> {
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

/// Checks that a directory without `CURRENT` has no file that is created after `CURRENT`. With one,
/// it is corrupted, not new.
fn check_is_new(storage: &dyn Storage) -> Result<(), LsmError> {
    let names = names(storage)?;
    let is_later = |name: &&String| {
        [log::FILE, TREES].contains(&name.as_str())
            || name.starts_with("MANIFEST-") && *name != "MANIFEST-1"
    };
    let Some(name) = names.iter().find(is_later) else {
        return Ok(());
    };
    Err(LsmError::CorruptManifest {
        file: "CURRENT".to_owned(),
        directory: storage.name(),
        how: format!("it is missing, but {name}, which is created after it, exists"),
    })
}

/// Adds the place in the file to corruption of a tree found while opening. Without an engine, the
/// caller cannot ask [`Engine::corruption_place`].
fn with_place(error: LsmError, device: &Device, entry: &TreeEntry) -> LsmError {
    let LsmError::CorruptTree { tree, block, how } = error else {
        return error;
    };
    let place = block_text(device, entry, BlockNumber(block));
    let place = place.map_or_else(String::new, |place| format!(" ({place})"));
    let how = format!(
        "{how}{place}; restore the directory from a copy, or a replica; until then it is not read"
    );
    LsmError::CorruptTree { tree, block, how }
}

fn recover(
    storage: Arc<dyn Storage>,
    manifest: Arc<Manifest>,
    options: EngineOptions,
    lock: Box<dyn StorageLock>,
) -> Result<Core, LsmError> {
    let state = manifest.state();
    let pins = Arc::new(LogPins::default());
    let garbage = Arc::new(Garbage::default());
    let cache = Arc::new(BlockCache::new(options.cache_size_bytes));
    let used = state.tree_segments();
    let file = device::open_file(&*storage, TREES, (!used.is_empty()).then_some(&manifest))?;
    let trees = Arc::new(Device::new(file, TREES, storage.name(), &used));
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
                "it does not name log segment {}, which tree {} needs",
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
    let log = ValueLog::recover(&*storage, Arc::clone(&manifest), memory, &mut |record| {
        active.insert(
            record.key,
            record.position,
            record.size_bytes,
            record.is_delete,
        );
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
        wakes: maintain::WorkerWakeups::default(),
        failed: OnceLock::new(),
        editing: Mutex::new(()),
        follow: OnceLock::new(),
        fresh_block_budget: Arc::default(),
        work: WorkCounters::default(),
        _lock: lock,
    })
}
