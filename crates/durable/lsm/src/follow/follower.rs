//! A directory that follows another engine.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::fault::WriteFault;
use super::feed::Feed;
use super::intake::{LogIntake, OwnIntake};
use super::previous::Previous;
use super::sent::SentTrees;
use super::{FOLLOWER, follows, shared};
use crate::device::{self, Device, DeviceBytes};
use crate::engine::{Engine, EngineOptions, TREES, WorkCounts, WorkDone, lock};
use crate::error::LsmError;
use crate::log::record::EngineId;
use crate::log::replay::find_end;
use crate::log::{self, LogMemory, ValueLog};
use crate::manifest::{Change, Manifest};
use crate::place::{LogNumber, LogPosition, TreeId};
use crate::storage::{Storage, StorageLock};
use crate::tree::TreeShape;
use crate::written::WrittenSum;

/// Origin of a follower's trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IndexKind {
    /// Receive trees from the followed engine; the follower flushes and merges nothing
    /// (Send-Index).
    Sent,
    /// Build trees from the log's records (Build-Index).
    Built,
}

/// Options of a following directory.
#[derive(Clone, Debug)]
pub struct FollowOptions {
    /// Origin of the follower's trees.
    pub index: IndexKind,
    /// Whether existing contents of the directory may be replaced, even those of an engine.
    pub replaces: bool,
    /// Options for building trees.
    pub engine: EngineOptions,
    /// Previous copy, closed, in another directory of the same file system.
    pub previous: Option<Arc<dyn Storage>>,
    /// Fault that a test injects.
    #[doc(hidden)]
    pub write_fault: WriteFault,
}

/// Checksum of a log segment as a follower wrote it, of a closed segment or of the part so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSum {
    /// Number of the segment.
    pub number: LogNumber,
    /// Number of bytes that the follower considers written.
    pub end: u32,
    /// Length and checksum of the bytes that were written; the length equals `end` if the follower
    /// is correct.
    pub written: WrittenSum,
}

/// Edit of the followed engine, as received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstalledEdit {
    /// Log position before which all records are that the added tree refers to.
    pub log_end: LogPosition,
    /// New start of recovery, if it changes.
    pub read_from: Option<LogPosition>,
    /// Ids of removed trees.
    pub removed: Vec<TreeId>,
    /// Level, id and shape of a tree, whose segments were received, and which is the newest of that
    /// level.
    pub added: Option<(usize, TreeId, TreeShape)>,
    /// Log segments to which nothing refers any more.
    pub freed: Vec<LogNumber>,
}

/// Directory that follows another engine: it has the log up to some position, and trees.
///
/// One thread uses it, except for its [intake](Self::intake). After a failed write, it can only be
/// promoted.
#[derive(Debug)]
pub struct Follower {
    storage: Arc<dyn Storage>,
    pub(super) manifest: Arc<Manifest>,
    pub(super) log: Arc<ValueLog>,
    intake: OwnIntake,
    /// Position before which everything is synced.
    synced_to: LogPosition,
    /// Whether the end of the last complete record is known; it is not after reopening.
    pub(super) knows_end: bool,
    pub(super) index: Index,
    /// Checksum of the synced part of the segment that contains `synced_to`.
    synced: WrittenSum,
    /// Previous copy, while it may be used.
    previous: Option<Previous>,
}

#[derive(Debug)]
pub(super) enum Index {
    Sent {
        trees: SentTrees,
        _lock: Box<dyn StorageLock>,
    },
    Built {
        engine: Engine,
    },
}

impl Follower {
    /// Opens a follower's directory, to promote it.
    ///
    /// # Errors
    /// - [`LsmError::Locked`], [`LsmError::CannotFollow`] (the directory is not a follower's, or
    ///   was never complete), [`LsmError::CorruptManifest`]: nothing was changed.
    /// - [`LsmError::Storage`]: files cannot be read.
    pub fn open(storage: Arc<dyn Storage>) -> Result<Self, LsmError> {
        let lock = lock(&*storage)?;
        if !follows(&*storage).unwrap_or(false) || !Manifest::is_there(&*storage)? {
            let name = storage.name();
            return Err(LsmError::CannotFollow {
                how: format!("{name} is not a follower's directory, or was never complete"),
            });
        }
        let (manifest, _) = Manifest::open(Arc::clone(&storage))?;
        let manifest = Arc::new(manifest);
        let state = manifest.state();
        shared::check(&*storage, &state)?;
        let device = |name, used: &_| {
            let named_by = (!std::collections::BTreeSet::is_empty(used)).then_some(&manifest);
            let file = device::open_file(&*storage, name, named_by)?;
            Ok::<_, LsmError>(Device::new(file, name, storage.name(), used))
        };
        let log = device(log::FILE, &state.log_segments())?;
        let trees = device(TREES, &state.tree_segments())?;
        let log = Arc::new(ValueLog::new(log, Arc::clone(&manifest), LogMemory::none()));
        let from = state.next_log.start();
        Ok(Self {
            intake: OwnIntake::new(&log, &manifest, from, WriteFault::default(), None),
            synced_to: state.read_from,
            knows_end: false,
            log,
            manifest,
            index: Index::Sent {
                trees: SentTrees::new(Arc::new(trees), WriteFault::default()),
                _lock: lock,
            },
            synced: WrittenSum::of(&[]),
            previous: None,
            storage,
        })
    }

    pub(super) fn over(
        storage: Arc<dyn Storage>,
        manifest: Arc<Manifest>,
        options: FollowOptions,
        log_device: Device,
        trees: SentTrees,
        lock: Box<dyn StorageLock>,
        previous: Option<Previous>,
    ) -> Result<Self, LsmError> {
        let state = manifest.state();
        let end = state.next_log.start();
        let (log, index, feed) = match options.index {
            IndexKind::Sent => {
                let log = ValueLog::new(log_device, Arc::clone(&manifest), LogMemory::none());
                let index = Index::Sent { trees, _lock: lock };
                (Arc::new(log), index, None)
            }
            IndexKind::Built => {
                // A follower must not append moved records to the log, so it collects no segments.
                let engine_options = EngineOptions {
                    live_percent_min: 0,
                    ..options.engine
                };
                let own = Arc::clone(&manifest);
                let engine = Engine::over(Arc::clone(&storage), own, engine_options, lock)?;
                let feed = (engine.clone(), Feed::new(state.engine, end));
                let log = Arc::clone(engine.log());
                (log, Index::Built { engine }, Some(feed))
            }
        };
        log.note_synced(end);
        Ok(Self {
            intake: OwnIntake::new(&log, &manifest, end, options.write_fault, feed),
            synced_to: end,
            knows_end: true,
            storage,
            manifest,
            log,
            index,
            synced: WrittenSum::of(&[]),
            previous,
        })
    }

    /// Settles this copy, which is in force durably: the previous copy is unusable from now on, and
    /// segments that only it used become free. Does nothing without a previous copy. Reads 32 bytes
    /// of each free segment of the log; costs one sync.
    ///
    /// # Errors
    /// The devices, or names, cannot be written.
    pub fn release_previous(&mut self) -> Result<(), LsmError> {
        let Some(previous) = self.previous.take() else {
            return Ok(());
        };
        let device = &self.log.segments().device;
        shared::settle(&*self.storage, device, &self.manifest.state())?;
        device.release_foreign();
        if let Index::Sent { trees, .. } = &self.index {
            trees.device.release_foreign();
        }
        drop(previous);
        Ok(())
    }

    /// Returns the id of the followed engine.
    pub fn engine(&self) -> EngineId {
        self.log.segments().engine
    }

    /// Returns the origin of its trees.
    pub const fn index(&self) -> IndexKind {
        match &self.index {
            Index::Sent { .. } => IndexKind::Sent,
            Index::Built { .. } => IndexKind::Built,
        }
    }

    /// Returns the log position before which everything is written to the device.
    pub fn written_to(&self) -> LogPosition {
        self.intake.0.written_to()
    }

    /// Returns the intake of its log, for any thread.
    pub const fn intake(&self) -> &Arc<LogIntake> {
        &self.intake.0
    }

    /// Returns the log position before which everything is durable.
    pub const fn synced_to(&self) -> LogPosition {
        self.synced_to
    }

    /// Returns the checksum of the synced part of the segment that contains
    /// [`synced_to`](Self::synced_to).
    pub fn synced_sum(&self) -> SegmentSum {
        SegmentSum {
            number: self.synced_to.number(),
            end: self.synced_to.offset() as u32,
            written: self.synced,
        }
    }

    /// Returns the checksum of the last closed segment, if one was closed since this became a
    /// follower.
    pub fn closed_sum(&self) -> Option<SegmentSum> {
        self.intake.0.closed_sum()
    }

    /// Returns counters of flushes, merges, and bytes of its devices.
    pub fn work(&self) -> WorkCounts {
        match &self.index {
            Index::Sent { trees, .. } => WorkCounts {
                log: self.log.segments().device.bytes(),
                trees: trees.device.bytes(),
                ..WorkCounts::default()
            },
            Index::Built { engine } => engine.work(),
        }
    }

    /// Returns the part of the time in [`write_log`](Self::write_log) that was spent on decoding
    /// records and inserting them into L0. Zero if the follower receives its trees.
    pub fn feed_time(&self) -> Duration {
        self.intake.0.feed_time()
    }

    /// Returns the bytes read from and written to the log's device.
    pub fn log_bytes(&self) -> DeviceBytes {
        self.log.segments().device.bytes()
    }

    /// Accepts the log's bytes from the written position on, like
    /// [`Intake::write`](super::Intake::write).
    ///
    /// # Errors
    /// [`LsmError::CannotFollow`] if they are not the next bytes of this log, or they cannot be
    /// written.
    pub fn write_log(
        &mut self,
        at: LogPosition,
        bytes: &[u8],
        is_closed: bool,
    ) -> Result<(), LsmError> {
        let mut intake = self.intake.0.begin().expect("it ends with this follower");
        if at != intake.written_to() {
            let how = format!("the log continues at {}, not at {at}", intake.written_to());
            return Err(LsmError::CannotFollow { how });
        }
        intake.write(bytes, is_closed)
    }

    /// Makes the written part of the log durable. Costs one sync, and one edit of the manifest per
    /// 8 MiB of log.
    ///
    /// # Errors
    /// The log cannot be synced, or the manifest cannot be written.
    pub fn sync_log(&mut self) -> Result<(), LsmError> {
        // Other threads may write more meanwhile, which this sync does not cover.
        let (written_to, complete_end, written) = self.intake.0.written();
        if self.synced_to < written_to {
            self.log.segments().device.sync()?;
            if let Some(complete_end) = complete_end.filter(|_| self.knows_end) {
                self.log.record_durable_end(complete_end)?;
            }
            self.synced_to = written_to;
            self.synced = written;
            self.log.note_synced(self.synced_to);
        }
        Ok(())
    }

    /// Records the durable end of the log in the manifest, up to the end of the last complete
    /// record, like [`Engine::record_durable_end`](crate::Engine::record_durable_end).
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub fn record_durable_end(&self) -> Result<(), LsmError> {
        match self.complete_end(self.synced_to) {
            Some(complete_end) => self.log.record_durable_to(complete_end),
            None => Ok(()),
        }
    }

    /// Returns the end of the last complete record before a position, if known. It is unknown in a
    /// directory that was opened to be promoted.
    fn complete_end(&self, place: LogPosition) -> Option<LogPosition> {
        let known = self.knows_end.then_some(&self.intake.0)?;
        known.complete_end(place)
    }

    /// Writes the next segment of a tree; returns length and checksum of what was written. Costs
    /// one write.
    ///
    /// # Errors
    /// [`LsmError::CannotFollow`], [`LsmError::CorruptTree`] if the segment is invalid, or this
    /// follower builds its trees; or the segment cannot be written.
    pub fn put_tree_segment(
        &mut self,
        id: TreeId,
        index: usize,
        blocks: &[u8],
    ) -> Result<WrittenSum, LsmError> {
        self.sent()?.stage(id, index, blocks)
    }

    /// Makes an edit of the followed engine in this directory. Costs a sync of the log, if needed,
    /// one of the trees, and one edit of the manifest.
    ///
    /// # Errors
    /// [`LsmError::CannotFollow`] if the edit is inconsistent with this directory, or this follower
    /// builds its trees; or the edit cannot be written.
    pub fn install(&mut self, edit: &InstalledEdit) -> Result<(), LsmError> {
        let needed = edit
            .read_from
            .map_or(edit.log_end, |it| it.max(edit.log_end));
        let written_to = self.written_to();
        if needed > written_to {
            let how = format!("an edit needs the log up to {needed}, but it ends at {written_to}");
            return Err(LsmError::CannotFollow { how });
        }
        if needed > self.synced_to {
            self.sync_log()?;
        }
        let state = self.manifest.state();
        let manifest = Arc::clone(&self.manifest);
        let trees = self.sent()?;
        let (changes, free) = trees.changes(edit, &state)?;
        if edit.added.is_some() {
            trees.device.sync()?;
        }
        if changes.is_empty() {
            return Ok(());
        }
        let freed: Vec<LogNumber> = changes.iter().flat_map(freed_by).copied().collect();
        manifest.commit(&changes)?;
        if let Some((_, id, _)) = edit.added {
            trees.named(id);
        }
        trees.device.give_back(free);
        self.log.segments().give_back(&freed);
        Ok(())
    }

    fn sent(&mut self) -> Result<&mut SentTrees, LsmError> {
        match &mut self.index {
            Index::Sent { trees, .. } => Ok(trees),
            Index::Built { .. } => Err(LsmError::CannotFollow {
                how: "received trees, but this follower builds its own".to_owned(),
            }),
        }
    }

    /// Does the next step of background work, if the follower builds its trees; returns false if
    /// there is none.
    ///
    /// # Errors
    /// Same as [`Engine::maintain`].
    pub fn maintain(&mut self) -> Result<bool, LsmError> {
        let Index::Built { engine } = &self.index else {
            return Ok(false);
        };
        let engine = engine.clone();
        if engine.counts().frozen_count > 0 {
            self.sync_log()?;
        }
        Ok(engine.maintain()? != WorkDone::Nothing)
    }

    /// Promotes the follower to an engine with everything that was written here, up to the first
    /// incomplete record. Reads the log twice from the last flush on.
    ///
    /// # Errors
    /// [`LsmError::CorruptLog`] if written data is lost, or an error of [`Engine::open`]. The
    /// directory is still a follower's, or already an engine's.
    pub fn promote(mut self, options: EngineOptions) -> Result<Engine, LsmError> {
        self.intake.0.end();
        self.sync_log()?;
        let state = self.manifest.state();
        let device = &self.log.segments().device;
        let copied_to = self.knows_end.then(|| self.written_to());
        let found = find_end(device, &state, copied_to)?;
        if !state.log.is_empty() {
            // Recovered data must be synced before the manifest records it.
            device.sync()?;
            self.manifest
                .commit(&[Change::EndLog { last: found.last }])?;
        }
        let storage = Arc::clone(&self.storage);
        drop(self);
        let removed = storage.remove(FOLLOWER).and_then(|()| storage.sync_names());
        removed.map_err(|source| LsmError::Storage {
            action: "remove",
            file: FOLLOWER.to_owned(),
            directory: storage.name(),
            source,
        })?;
        Engine::open(storage, options)
    }
}

fn freed_by(change: &Change) -> &[LogNumber] {
    match change {
        Change::FreeLog { numbers } => numbers,
        _ => &[],
    }
}
