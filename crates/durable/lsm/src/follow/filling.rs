//! A directory that receives the base of an engine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::FOLLOWER;
use super::follower::{FollowOptions, Follower, IndexKind};
use super::piece::PieceSum;
use super::previous::{Previous, has};
use super::sent::SentTrees;
use crate::device::{self, Device};
use crate::engine::{LOCK, TREES, lock};
use crate::error::LsmError;
use crate::log;
use crate::log::record::{EngineId, SEGMENT_HEADER_SIZE_BYTES};
use crate::manifest::{LogEntry, Manifest, ManifestState, TreeEntry};
use crate::place::{
    LEVEL_COUNT_MAX, LogNumber, LogPosition, SEGMENT_SIZE_BYTES, SegmentId, TreeId,
};
use crate::storage::{Storage, StorageLock};
use crate::tree::TreeShape;
use crate::written::{RunningSum, WrittenSum};

/// Distance from the primary's number of edits to the follower's first one. Marks in the log count
/// the primary's edits.
const EDIT_COUNT_STEP: u64 = 1 << 40;

/// Directory with a part of a base. If it is dropped, the directory is neither an engine's nor a
/// follower's.
#[derive(Debug)]
pub struct Filling {
    storage: Arc<dyn Storage>,
    options: FollowOptions,
    engine: EngineId,
    log_device: Device,
    log: BTreeMap<LogNumber, LogEntry>,
    trees: SentTrees,
    levels: Vec<Vec<TreeEntry>>,
    previous: Option<Previous>,
    lock: Box<dyn StorageLock>,
}

/// Parts of a base ([`Engine::base`](crate::Engine::base)) other than its log segments and trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BaseManifest {
    /// First segment of the log that is sent later.
    pub next_log: LogNumber,
    /// Log position at which recovery starts.
    pub read_from: LogPosition,
    /// First tree id that was never used.
    pub next_tree: TreeId,
    /// Number of edits of the manifest.
    pub edit_count: u64,
}

impl Filling {
    /// Empties a directory, to fill it with a base. A directory with an engine that does not follow
    /// is emptied only if the options allow it. If there is a usable previous copy of the same
    /// engine, the new one shares its devices.
    ///
    /// # Errors
    /// - [`LsmError::Locked`], [`LsmError::CannotFollow`] (the directory has an engine's data):
    ///   nothing was changed.
    /// - [`LsmError::Storage`]: files cannot be removed or created.
    pub fn begin(
        storage: Arc<dyn Storage>,
        options: FollowOptions,
        engine: EngineId,
    ) -> Result<Self, LsmError> {
        let lock = lock(&*storage)?;
        empty(&*storage, options.replaces)?;
        // A follower that builds its trees reopens its devices when it is complete, so it shares
        // none.
        let previous = options.previous.as_ref();
        let previous = match previous.filter(|_| options.index == IndexKind::Sent) {
            Some(previous) => Previous::open(&*storage, previous, engine)?,
            None => None,
        };
        let device = |name, segments: Option<&BTreeSet<SegmentId>>| {
            let mut file = device::open_file(&*storage, name, None)?;
            if options.index == IndexKind::Sent {
                // Until promotion, only scrubs read these files. They bypass the page cache, which
                // would cost one more copy.
                file = device::open_uncached(&*storage, name)?;
            }
            let none = BTreeSet::new();
            let segments = segments.unwrap_or(&none);
            Ok::<_, LsmError>(Device::beside(file, name, storage.name(), segments))
        };
        let log_device = device(log::FILE, previous.as_ref().map(|it| &it.log_segments))?;
        let trees = device(TREES, previous.as_ref().map(|it| &it.tree_segments))?;
        let trees = SentTrees::new(Arc::new(trees), options.write_fault.clone());
        Ok(Self {
            options,
            engine,
            log_device,
            log: BTreeMap::new(),
            trees,
            levels: Vec::new(),
            previous,
            lock,
            storage,
        })
    }

    /// Returns true if there is a previous copy from which pieces can be reused.
    pub const fn has_previous(&self) -> bool {
        self.previous.is_some()
    }

    /// Reuses a log segment of the previous copy if its first bytes have this checksum. Costs one
    /// read. Returns false if the copy has no such piece, or it cannot be read.
    ///
    /// # Errors
    /// [`LsmError::CannotFollow`]: the segment was received before, or is invalid.
    pub fn take_log(
        &mut self,
        number: LogNumber,
        end: Option<u32>,
        size_bytes: u32,
        sum: PieceSum,
    ) -> Result<bool, LsmError> {
        let is_one = (SEGMENT_HEADER_SIZE_BYTES as u64..=SEGMENT_SIZE_BYTES)
            .contains(&u64::from(size_bytes));
        if !is_one || self.log.contains_key(&number) {
            let how = format!(
                "log segment {} of {size_bytes} bytes is a duplicate, or its size is invalid",
                number.0
            );
            return Err(LsmError::CannotFollow { how });
        }
        let previous = self.previous.as_ref();
        let Some(segment) = previous.and_then(|it| it.log_segment(number)) else {
            return Ok(false);
        };
        let device = &self.log_device;
        if !has(device, segment, size_bytes, sum) || !device.adopt_segment(segment) {
            return Ok(false);
        }
        self.log.insert(number, LogEntry { segment, end });
        Ok(true)
    }

    /// Reuses the next segment of a tree from the previous copy if its blocks have this checksum.
    /// Costs one read. Returns false if the copy has no such piece, or it cannot be read.
    ///
    /// # Errors
    /// [`LsmError::CannotFollow`]: the segment is not the next one, or is invalid.
    pub fn take_tree_segment(
        &mut self,
        id: TreeId,
        index: usize,
        size_bytes: u32,
        sum: PieceSum,
    ) -> Result<bool, LsmError> {
        self.trees.check_next(id, index, size_bytes as usize)?;
        let previous = self.previous.as_ref();
        let Some(segment) = previous.and_then(|it| it.tree_segment(id, index)) else {
            return Ok(false);
        };
        if !has(&self.trees.device, segment, size_bytes, sum) {
            return Ok(false);
        }
        Ok(self.trees.take(id, index, segment))
    }

    /// Writes a log segment, and the offset at which an earlier recovery ended the log there, if
    /// any. Returns length and checksum of what was written.
    ///
    /// # Errors
    /// [`LsmError::CannotFollow`] if the segment was received before or is too long; or it cannot
    /// be written.
    pub fn put_log(
        &mut self,
        number: LogNumber,
        end: Option<u32>,
        bytes: &[u8],
    ) -> Result<WrittenSum, LsmError> {
        if bytes.len() as u64 > SEGMENT_SIZE_BYTES || self.log.contains_key(&number) {
            let how = format!("log segment {} is a duplicate, or too long", number.0);
            return Err(LsmError::CannotFollow { how });
        }
        let segment = self.log_device.allocate();
        let bytes = self.options.write_fault.of_log(number.start(), None, bytes);
        let mut written = RunningSum::new();
        written.append(&self.log_device, segment, &bytes)?;
        self.log.insert(number, LogEntry { segment, end });
        Ok(written.sum())
    }

    /// Writes the next segment of a tree; the segments of one tree are in sequence. Returns length
    /// and checksum of what was written.
    ///
    /// # Errors
    /// [`LsmError::CannotFollow`], [`LsmError::CorruptTree`] if the bytes are not that; or they
    /// cannot be written.
    pub fn put_tree_segment(
        &mut self,
        id: TreeId,
        index: usize,
        blocks: &[u8],
    ) -> Result<WrittenSum, LsmError> {
        self.trees.stage(id, index, blocks)
    }

    /// Completes a tree, as the newest of a level so far.
    ///
    /// # Errors
    /// [`LsmError::CannotFollow`], [`LsmError::CorruptTree`]: the tree is incomplete or invalid.
    pub fn put_tree(&mut self, level: usize, id: TreeId, shape: TreeShape) -> Result<(), LsmError> {
        if !(1..=LEVEL_COUNT_MAX).contains(&level) {
            let how = format!("invalid tree level {level}");
            return Err(LsmError::CannotFollow { how });
        }
        let entry = self
            .trees
            .entry(id, shape, |it| self.log.contains_key(it))?;
        if self.levels.len() < level {
            self.levels.resize_with(level, Vec::new);
        }
        self.levels[level - 1].insert(0, entry);
        self.trees.named(id);
        Ok(())
    }

    /// Completes the base: from now on, this is a follower's directory. Costs two syncs and a
    /// manifest.
    ///
    /// # Errors
    /// [`LsmError::CorruptManifest`] if the received data cannot be an engine's; or the data cannot
    /// be written. The directory is not a follower's then.
    pub fn finish(self, end: BaseManifest) -> Result<Follower, LsmError> {
        self.log_device.sync()?;
        self.trees.device.sync()?;
        let edit_count = end.edit_count.checked_add(EDIT_COUNT_STEP);
        let edit_count = edit_count.ok_or_else(|| LsmError::CannotFollow {
            how: format!("invalid number of edits {}", end.edit_count),
        })?;
        // The engine ended its last segment for the base, so that segment is complete. Later
        // numbers may have been skipped.
        let last = self.log.last_key_value();
        let log_synced_to = last.map_or(LogPosition(0), |(number, _)| number.next().start());
        let state = ManifestState {
            edit_count,
            log_synced_to,
            log: self.log,
            next_log: end.next_log,
            read_from: end.read_from,
            next_tree: end.next_tree,
            levels: self.levels,
            ..ManifestState::new(self.engine)
        };
        let manifest = Manifest::create(Arc::clone(&self.storage), state)?;
        Follower::over(
            self.storage,
            Arc::new(manifest),
            self.options,
            self.log_device,
            self.trees,
            self.lock,
            self.previous,
        )
    }
}

/// Removes all files of a directory; first those that make it an engine's or a follower's.
fn empty(storage: &dyn Storage, replaces: bool) -> Result<(), LsmError> {
    let failed = |action, file: &str| {
        let file = file.to_owned();
        move |source| LsmError::Storage {
            action,
            file,
            directory: storage.name(),
            source,
        }
    };
    let names = storage.list().map_err(failed("list", "."))?;
    let follows = names.iter().any(|name| name == FOLLOWER);
    let is_new = names.iter().all(|name| name == LOCK);
    if !follows && !is_new && !replaces {
        return Err(LsmError::CannotFollow {
            how: format!(
                "{} has files that are not a follower's; use an empty directory, or set the option \
                 to replace the files",
                storage.name()
            ),
        });
    }
    // Until the manifest exists, this file keeps the directory from passing for anything else.
    let marker = storage.create(FOLLOWER);
    let marker = marker.and_then(|file| file.sync());
    marker.map_err(failed("create", FOLLOWER))?;
    storage.sync_names().map_err(failed("create", FOLLOWER))?;
    let current = names.iter().filter(|name| *name == "CURRENT");
    let others = names.iter().filter(|name| *name != "CURRENT");
    for name in current.chain(others) {
        if name == LOCK || name == FOLLOWER {
            continue;
        }
        storage.remove(name).map_err(failed("remove", name))?;
        if name == "CURRENT" {
            storage.sync_names().map_err(failed("remove", name))?;
        }
    }
    storage.sync_names().map_err(failed("remove", "."))
}
