//! A directory that follows another engine (FO4 to FO9).

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
use crate::engine::{Engine, EngineOptions, TREES, WorkCounts, Worked, lock};
use crate::error::LsmError;
use crate::log::record::EngineId;
use crate::log::replay::find_end;
use crate::log::{self, LogMemory, ValueLog};
use crate::manifest::{Change, Manifest};
use crate::place::{LogNumber, LogPosition, TreeId};
use crate::storage::{Storage, StorageLock};
use crate::tree::TreeShape;
use crate::written::WrittenSum;

/// Where a follower's trees come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IndexKind {
    /// Ready made, from the engine that is followed: it flushes and merges nothing (Send-Index).
    Sent,
    /// It makes them itself, of the log's records (Build-Index).
    Built,
}

/// How a directory follows.
#[derive(Clone, Debug)]
pub struct FollowOptions {
    /// Where its trees come from.
    pub index: IndexKind,
    /// What was in the directory may be replaced, whoever made it.
    pub replaces: bool,
    /// How it makes trees, if it does.
    pub engine: EngineOptions,
    /// FO9: a copy that was there before, in another directory of the same file system, which
    /// nobody has open.
    pub previous: Option<Arc<dyn Storage>>,
    /// A mistake that a test plants.
    #[doc(hidden)]
    pub write_fault: WriteFault,
}

/// A log segment of which nothing more comes, or has come yet, as a follower wrote it (FO11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSum {
    /// Which one.
    pub number: LogNumber,
    /// The follower takes so many of its first bytes for written.
    pub end: u32,
    /// Length and checksum of what was written of it: the same length, if the follower is right.
    pub written: WrittenSum,
}

/// An edit of the engine that is followed, as it comes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstalledEdit {
    /// What it adds leads into the log up to there.
    pub log_end: LogPosition,
    /// LC4: the log is read again from there.
    pub read_from: Option<LogPosition>,
    /// These trees are gone.
    pub removed: Vec<TreeId>,
    /// This one, whose segments have come, is the newest of a level.
    pub added: Option<(usize, TreeId, TreeShape)>,
    /// LC5: nothing leads into these log segments any more.
    pub freed: Vec<LogNumber>,
}

/// A directory that follows another engine: it has the log up to some place, and trees.
///
/// Used by one thread, but for its [intake](Self::intake). After a failure to write it is of no
/// use, but for being promoted.
#[derive(Debug)]
pub struct Follower {
    storage: Arc<dyn Storage>,
    pub(super) manifest: Arc<Manifest>,
    pub(super) log: Arc<ValueLog>,
    intake: OwnIntake,
    /// Everything before is synced.
    synced_to: LogPosition,
    /// FO6: what was written before this process is not known.
    pub(super) knows_end: bool,
    pub(super) index: Index,
    /// FO11: what was synced of the segment that `synced_to` is in.
    synced: WrittenSum,
    /// FO9: the copy before, as long as it may be used.
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
    /// [`LsmError::Locked`]; [`LsmError::CannotFollow`]: it is none, or was never whole;
    /// [`LsmError::DamagedManifest`]. Nothing was changed. Or files cannot be read.
    pub fn open(storage: Arc<dyn Storage>) -> Result<Self, LsmError> {
        let lock = lock(&*storage)?;
        if !follows(&*storage).unwrap_or(false) || !Manifest::is_there(&*storage)? {
            let name = storage.name();
            return Err(LsmError::CannotFollow {
                how: format!("{name} is no follower's directory, or has never had all"),
            });
        }
        let (manifest, _) = Manifest::open(Arc::clone(&storage))?;
        let manifest = Arc::new(manifest);
        let state = manifest.state();
        shared::check(&*storage, &state)?;
        let device = |name, used: &_| {
            let named_by = (!std::collections::BTreeSet::is_empty(used)).then_some(&manifest);
            let file = device::open_file(&*storage, name, named_by)?;
            Ok::<_, LsmError>(Device::new(file, (name, storage.name()), used))
        };
        let log = device(log::FILE, &state.log_segments())?;
        let trees = device(TREES, &state.tree_segments())?;
        let log = Arc::new(ValueLog::new(log, Arc::clone(&manifest), LogMemory::none()));
        let of = (Arc::clone(&log), Arc::clone(&manifest));
        Ok(Self {
            intake: own_intake(of, (state.next_log.start(), WriteFault::default()), None),
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
        (manifest, options): (Arc<Manifest>, FollowOptions),
        (log_device, trees): (Device, SentTrees),
        (lock, previous): (Box<dyn StorageLock>, Option<Previous>),
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
                // FO7: it has no log of its own, into which it could move anything.
                let engine_options = EngineOptions {
                    live_percent_min: 0,
                    ..options.engine
                };
                let of = (Arc::clone(&manifest), engine_options);
                let engine = Engine::over(Arc::clone(&storage), of, lock)?;
                let feed = (engine.clone(), Feed::new(state.engine, end));
                let log = Arc::clone(engine.log());
                (log, Index::Built { engine }, Some(feed))
            }
        };
        log.note_synced(end);
        let of = (Arc::clone(&log), Arc::clone(&manifest));
        Ok(Self {
            intake: own_intake(of, (end, options.write_fault), feed),
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

    /// FO9: this copy is the one in force, durably, and the one before counts for nothing from now
    /// on: what that one alone had is free. Nothing happens without one. 32 bytes of each free
    /// segment of the log are read; one sync.
    ///
    /// # Errors
    /// The devices, or names, cannot be written.
    pub fn release_previous(&mut self) -> Result<(), LsmError> {
        let Some(previous) = self.previous.take() else {
            return Ok(());
        };
        let device = &self.log.segments().device;
        shared::settle(&*self.storage, device, &self.manifest.state())?;
        device.release_kept();
        if let Index::Sent { trees, .. } = &self.index {
            trees.device.release_kept();
        }
        drop(previous);
        Ok(())
    }

    /// Whose log it follows.
    pub fn engine(&self) -> EngineId {
        self.log.segments().engine
    }

    /// Where its trees come from.
    pub const fn index(&self) -> IndexKind {
        match &self.index {
            Index::Sent { .. } => IndexKind::Sent,
            Index::Built { .. } => IndexKind::Built,
        }
    }

    /// Everything before this place in the log is written to the device.
    pub fn written_to(&self) -> LogPosition {
        self.intake.0.written_to()
    }

    /// What takes in its log, for any thread.
    pub const fn intake(&self) -> &Arc<LogIntake> {
        &self.intake.0
    }

    /// Everything before this place in the log is durable.
    pub const fn synced_to(&self) -> LogPosition {
        self.synced_to
    }

    /// FO11: what was written and synced of the segment that [`synced_to`](Self::synced_to) is in.
    pub fn synced_sum(&self) -> SegmentSum {
        SegmentSum {
            number: self.synced_to.number(),
            end: self.synced_to.offset() as u32,
            written: self.synced,
        }
    }

    /// FO11: the last segment that was closed since it became a follower, and what was written of
    /// it.
    pub fn closed_sum(&self) -> Option<SegmentSum> {
        self.intake.0.closed_sum()
    }

    /// What it has done: flushes and merges, and what went from and to its devices.
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

    /// FO7: of the time of all [`write_log`](Self::write_log), what it took to read the records and
    /// to put them into an L0 of its own, if it makes its trees itself.
    pub fn feed_time(&self) -> Duration {
        self.intake.0.feed_time()
    }

    /// What went from and to the log's device.
    pub fn log_bytes(&self) -> DeviceBytes {
        self.log.segments().device.bytes()
    }

    /// Takes in the log's bytes from where they were written to, as
    /// [`Intake::write`](super::Intake::write) does.
    ///
    /// # Errors
    /// [`LsmError::CannotFollow`]: they are not the next bytes of this log. Or they cannot be
    /// written.
    pub fn write_log(
        &mut self,
        at: LogPosition,
        bytes: &[u8],
        is_closed: bool,
    ) -> Result<(), LsmError> {
        let mut intake = self.intake.0.begin().expect("it ends with this follower");
        if at != intake.written_to() {
            let how = format!(
                "the log goes on at {}, and not at {at}",
                intake.written_to()
            );
            return Err(LsmError::CannotFollow { how });
        }
        intake.write(bytes, is_closed)
    }

    /// Makes durable what was written of the log. One sync, and one edit of the manifest for 8 MiB
    /// of log.
    ///
    /// # Errors
    /// It cannot be synced, or the manifest cannot be written.
    pub fn sync_log(&mut self) -> Result<(), LsmError> {
        // Others may write more meanwhile, of which this sync says nothing.
        let (written_to, whole_to, written) = self.intake.0.written();
        if self.synced_to < written_to {
            self.log.segments().device.sync()?;
            if let Some(whole_to) = whole_to.filter(|_| self.knows_end) {
                self.log.say_synced(whole_to)?;
            }
            self.synced_to = written_to;
            self.synced = written;
            self.log.note_synced(self.synced_to);
        }
        Ok(())
    }

    /// Has the manifest say how far the log is durable, as
    /// [`Engine::say_synced`](crate::Engine::say_synced) does, up to the end of the last record
    /// that has come as a whole.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub fn say_synced(&self) -> Result<(), LsmError> {
        match self.whole_to(self.synced_to) {
            Some(whole_to) => self.log.say_synced_to(whole_to),
            None => Ok(()),
        }
    }

    /// VL6: up to where all records are whole of what came before a place, as far as that is known.
    /// Of a directory that was opened to be promoted nobody knows yet what is there.
    fn whole_to(&self, place: LogPosition) -> Option<LogPosition> {
        let known = self.knows_end.then_some(&self.intake.0)?;
        known.whole_to(place)
    }

    /// Takes in the next segment of a tree; length and checksum of what was written (FO11). One
    /// write.
    ///
    /// # Errors
    /// [`LsmError::CannotFollow`], [`LsmError::DamagedTree`]: it is not that, or this follower
    /// makes its trees itself. Or it cannot be written.
    pub fn put_tree_segment(
        &mut self,
        id: TreeId,
        index: usize,
        blocks: &[u8],
    ) -> Result<WrittenSum, LsmError> {
        self.sent()?.stage(id, index, blocks)
    }

    /// Makes an edit of the engine that is followed one of this directory. A sync of the log, if it
    /// must be, and of the trees, and one edit of the manifest.
    ///
    /// # Errors
    /// [`LsmError::CannotFollow`]: it cannot follow on what is here, or this follower makes its
    /// trees itself. Or it cannot be written.
    pub fn install(&mut self, edit: &InstalledEdit) -> Result<(), LsmError> {
        let needed = edit
            .read_from
            .map_or(edit.log_end, |it| it.max(edit.log_end));
        let written_to = self.written_to();
        if needed > written_to {
            let how =
                format!("an edit needs the log up to {needed}, which is here up to {written_to}");
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
                how: "trees are sent to one that makes them itself".to_owned(),
            }),
        }
    }

    /// FO7: does the background work that is next, if it makes its trees itself; false: there is
    /// none.
    ///
    /// # Errors
    /// As those of [`Engine::maintain`].
    pub fn maintain(&mut self) -> Result<bool, LsmError> {
        let Index::Built { engine } = &self.index else {
            return Ok(false);
        };
        let engine = engine.clone();
        if engine.counts().frozen_count > 0 {
            self.sync_log()?;
        }
        Ok(engine.maintain()? != Worked::Nothing)
    }

    /// FO8: makes it an engine of its own, which has everything that was written here, up to the
    /// first record that is not whole. Reads the log twice from the last flush on.
    ///
    /// # Errors
    /// [`LsmError::DamagedLog`]: what was written here is not there any more. As those of
    /// [`Engine::open`]. It is a follower's directory still, or an engine's.
    pub fn promote(mut self, options: EngineOptions) -> Result<Engine, LsmError> {
        self.intake.0.end();
        self.sync_log()?;
        let state = self.manifest.state();
        let device = &self.log.segments().device;
        let copied_to = self.knows_end.then(|| self.written_to());
        let found = find_end(device, &state, copied_to)?;
        if !state.log.is_empty() {
            // What could be read and was not synced must be, before this says that it is there.
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

fn own_intake(
    of: (Arc<ValueLog>, Arc<Manifest>),
    from: (LogPosition, WriteFault),
    feed: Option<(Engine, Feed)>,
) -> OwnIntake {
    OwnIntake(Arc::new(LogIntake::new(of, from, feed)))
}

fn freed_by(change: &Change) -> &[LogNumber] {
    match change {
        Change::FreeLog { numbers } => numbers,
        _ => &[],
    }
}
