//! A backup: what its server does for one region (RP3, RP4, RP7).
//!
//! | module | what it holds |
//! |---|---|
//! | `buffers` | its buffers, for whoever writes what is in them |
//! | `log` | the log from its buffers to the device |
//! | `tail` | the same from another thread, without a sync |
//! | `epoch` | the word that says whose it is; a later one |
//! | `serve` | what a primary asks by messages |
//! | `counts` | what it has done |

mod buffers;
mod counts;
mod epoch;
mod log;
mod serve;
mod tail;

use std::sync::Arc;

use farleaf_executor::block_on;
use farleaf_fabric::{Batch, BatchError, Endpoint};
use farleaf_lsm::follow::{Filling, Follower, WriteFault};
use farleaf_lsm::place::{LogNumber, LogPosition};
use farleaf_lsm::scrub::{Scrub, ScrubCounts, Scrubbed};
use farleaf_lsm::storage::Storage;
use farleaf_lsm::{Engine, EngineOptions, LsmError};
use farleaf_message::Mailbox;

pub use counts::BackupCounts;
pub use tail::BackupTail;

use self::buffers::Extent;
use self::epoch::Swapped;
use self::tail::Shared;
use crate::error::{Epoch, ReplicaError};
use crate::layout::Layout;

/// How a backup works.
#[derive(Clone, Debug, Default)]
pub struct BackupOptions {
    /// How it makes trees, where it is to make them (Build-Index); its id counts for nothing.
    pub engine: EngineOptions,
    /// What its directory has may be replaced, whoever made it. Without this, only an empty one, or
    /// a backup's, is filled.
    pub replaces: bool,
    /// RP14: the copy that is in force until this one is, in another directory; nobody has it open.
    /// What it has of its primary's need not be sent. [`Backup::note_in_force`] tells when this one
    /// has taken its place.
    pub previous: Option<Arc<dyn Storage>>,
    /// A mistake that a test plants.
    #[doc(hidden)]
    pub write_fault: WriteFault,
}

/// How a backup is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupStatus {
    /// Whose primary's it is: that, too, that its primary has raised it to (RP12).
    pub epoch: Epoch,
    /// It has had everything, and can be promoted.
    pub is_filled: bool,
    /// Why it cannot go on, if it cannot.
    pub failed: Option<String>,
    /// It has the log up to there: of those that can be promoted, the one with the highest has the
    /// newest.
    pub log_end: LogPosition,
    /// On the device, up to there;
    pub written_to: LogPosition,
    /// and durable, up to there.
    pub synced_to: LogPosition,
    /// What scrubbing has done since it had everything, and found.
    pub scrub: ScrubCounts,
}

/// The backup of one region, of one primary. Used by one thread; whoever has it calls
/// [`serve`](Self::serve) as long as it is one.
pub struct Backup<E> {
    near: E,
    layout: Layout,
    epoch: Epoch,
    storage: Arc<dyn Storage>,
    options: BackupOptions,
    mailbox: Mailbox,
    batch: Batch,
    /// What was read from buffers, where words have their bytes in another order.
    bytes: Vec<u8>,
    state: State,
    failed: Option<Failed>,
    /// RP8: the epoch at which nothing of its primary counts any more.
    promoted_to: Option<Epoch>,
    counts: BackupCounts,
    scrub: Scrub,
    shared: Arc<Shared>,
}

/// Why a backup does not go on.
#[derive(Clone)]
struct Failed {
    how: String,
    /// Its disk may have lost what was written.
    is_disk: bool,
    /// Its disk is full.
    is_no_room: bool,
}

impl From<Failed> for ReplicaError {
    fn from(failed: Failed) -> Self {
        Self::Failed {
            how: failed.how,
            is_no_room: failed.is_no_room,
        }
    }
}

enum State {
    /// For a primary to come.
    Waiting,
    Filling(Box<Filling>),
    Following(Box<Follower>),
}

impl<E> core::fmt::Debug for Backup<E> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "backup in {}, {}", self.storage.name(), self.epoch)
    }
}

impl<E: Endpoint> Backup<E> {
    /// A backup that waits for the primary of this epoch, which fills it. `near` leads to the
    /// memory of this process in which it has its words; nobody else uses those: sessions of
    /// earlier primaries, that did, are fenced (F6). Zeros control words and rings; touches no
    /// file.
    ///
    /// Both sides have atomics on the epoch (RP8), so those of `near` have to be the ones that the
    /// primary's verbs are (F4): the processor's over `mem`, `shm` and `tcp`, and the device's,
    /// through its [loopback](farleaf_fabric::verbs::VerbsNode::loopback), over `verbs`. Else an
    /// old primary may acknowledge what a backup that was promoted has not.
    ///
    /// # Errors
    /// The words are not all there.
    pub fn new(
        near: E,
        layout: Layout,
        epoch: Epoch,
        (storage, options): (Arc<dyn Storage>, BackupOptions),
    ) -> Result<Self, ReplicaError> {
        let mut backup = Self {
            near,
            layout,
            epoch,
            storage,
            options,
            mailbox: Mailbox::new(layout.rings(), 0),
            batch: Batch::new(),
            bytes: Vec::new(),
            state: State::Waiting,
            failed: None,
            promoted_to: None,
            counts: BackupCounts::default(),
            scrub: Scrub::new(),
            shared: Arc::default(),
        };
        backup.batch.clear();
        // The last one ends where the words do.
        for (start, word_count) in layout.zeroed() {
            backup.batch.write(start, &vec![0; word_count]);
        }
        backup.execute()?;
        backup.begin_epoch()?;
        Ok(backup)
    }

    /// RP16: who writes the end of its log from another thread. `near` leads to the same memory as
    /// the one that it was made with.
    pub fn tail(&self, near: E) -> BackupTail<E> {
        BackupTail::new(near, self.layout, Arc::downgrade(&self.shared))
    }

    /// Executes the batch on this backup's own memory.
    fn execute(&mut self) -> Result<(), ReplicaError> {
        let executed = self.near.execute(&mut self.batch);
        block_on(executed, self.near.completions()).map_err(|error| failed_memory(&error))
    }

    /// Does what there is to do; false: nothing. Looks at words of its own memory, and then takes
    /// one segment of the log, or one request, or does one step of background work.
    ///
    /// # Errors
    /// [`ReplicaError::Failed`]: its disk, its memory, or what came, and so from then on. It can
    /// still be promoted if it was filled and its disk has not failed.
    pub fn serve(&mut self) -> Result<bool, ReplicaError> {
        if let Some(failed) = self.failed.clone() {
            return Err(failed.into());
        }
        let served = self.serve_one();
        if let Err(error) = &served {
            let is_disk = match error {
                ReplicaError::Engine(error) => !matches!(error, LsmError::CannotFollow { .. }),
                _ => false,
            };
            let failed = Failed {
                how: error.to_string(),
                is_disk,
                is_no_room: error.is_no_room(),
            };
            // RP6: its primary learns it with the next batch. If its own memory is gone, by that.
            let _ = self.tell_failed();
            self.failed = Some(failed.clone());
            return Err(failed.into());
        }
        served
    }

    /// How it is doing.
    ///
    /// # Errors
    /// Its memory cannot be read.
    pub fn status(&mut self) -> Result<BackupStatus, ReplicaError> {
        let epoch = self.current_epoch()?;
        let (log_end, _) = self.wishes()?;
        let (written_to, synced_to) = match &self.state {
            State::Following(it) => (it.written_to(), it.synced_to()),
            _ => (LogPosition(0), LogPosition(0)),
        };
        Ok(BackupStatus {
            epoch,
            is_filled: matches!(self.state, State::Following(_)),
            failed: self.failed.as_ref().map(|it| it.how.clone()),
            log_end: log_end.max(written_to),
            written_to,
            synced_to,
            scrub: self.scrub.counts(),
        })
    }

    /// SC7: looks at the next 2 MiB at the most of its directory for bits that have flipped;
    /// `None`: it does not have everything, or cannot go on. For when [`serve`](Self::serve) has
    /// nothing to do, and as often as whoever has it likes.
    ///
    /// # Errors
    /// [`ReplicaError::Engine`], of which the damage is [`LsmError::DamagedLog`] or
    /// [`LsmError::DamagedTree`]: it goes on as a backup, and whoever keeps the map has it
    /// replaced.
    pub fn scrub_step(&mut self) -> Result<Option<Scrubbed>, ReplicaError> {
        match &self.state {
            State::Following(follower) if self.failed.is_none() => {
                Ok(Some(follower.scrub(&mut self.scrub)?))
            }
            _ => Ok(None),
        }
    }

    /// What scrubbing has done since it had everything, and found.
    pub const fn scrub_counts(&self) -> ScrubCounts {
        self.scrub.counts()
    }

    /// Which byte of which file a damage that [`scrub_step`](Self::scrub_step) has told is at, in
    /// words, as far as that can be told.
    pub fn place_of_damage(&self, error: &LsmError) -> Option<String> {
        match &self.state {
            State::Following(follower) => follower.place_of_damage(error),
            _ => None,
        }
    }

    /// Whether its log has a segment; `None`: it does not have everything.
    pub fn has_log_segment(&self, number: LogNumber) -> Option<bool> {
        match &self.state {
            State::Following(follower) => Some(follower.has_log_segment(number)),
            _ => None,
        }
    }

    /// RP14: what was filled is the copy in force, durably, and the one before counts for nothing
    /// from now on: what that one alone had is free. Nothing happens if there is none.
    ///
    /// # Errors
    /// The disk: as those of [`Follower::release_previous`].
    pub fn note_in_force(&mut self) -> Result<(), ReplicaError> {
        if let State::Following(follower) = &mut self.state {
            follower.release_previous()?;
            self.options.previous = None;
        }
        Ok(())
    }

    /// What it has done.
    pub fn counts(&self) -> BackupCounts {
        let mut counts = self.counts.clone();
        if let State::Following(follower) = &self.state {
            counts.log_received_size_bytes += follower.intake().received_size_bytes();
            counts.work = follower.work();
            counts.feed_time_ns = follower.feed_time().as_nanos() as u64;
        }
        counts
    }

    /// Ends with everything on the device that was in the buffers, durable: what is there is a
    /// whole copy, for [`promote_directory`], if the backup was filled. The sessions of its primary
    /// are fenced before (F6), so that nothing is acknowledged that comes later. One write, one
    /// sync, and an edit that says so.
    ///
    /// # Errors
    /// The log cannot be written, or is none.
    pub fn retire(mut self) -> Result<(), ReplicaError> {
        self.take_log(Extent::All)?;
        if let State::Following(follower) = &mut self.state {
            follower.sync_log()?;
            // Nothing is lost without it (VL6).
            if let Err(error) = follower.say_synced() {
                tracing::warn!(%error, "its manifest does not say how far a backup's log is durable");
            }
        }
        Ok(())
    }

    /// RP7: becomes an engine that has everything its primary has acknowledged, and that primary
    /// acknowledges nothing any more (RP8). What is in the buffers goes to the device, and the log
    /// from the last flush on into L0.
    ///
    /// RP14: it is the copy in force from then on.
    ///
    /// Its words are used again only when the sessions of the old primary are fenced (F6).
    ///
    /// # Errors
    /// [`ReplicaError::NotPromotable`]: nothing was changed. Others: of the disk; the directory is
    /// a backup's still, for [`promote_directory`], or an engine's.
    pub fn promote(mut self, epoch: Epoch, options: EngineOptions) -> Result<Engine, ReplicaError> {
        self.prepare_promotion(epoch)?;
        let State::Following(follower) = self.state else {
            unreachable!("it was looked at");
        };
        Ok(follower.promote(options)?)
    }

    /// The part of a [promotion](Self::promote) that needs this backup's memory: when it is done,
    /// all that was acknowledged is on the device, durable. It can be done again, by `promote` as
    /// well: where the disk was full, nothing is lost, and it goes on when there is room.
    ///
    /// # Errors
    /// As those of [`promote`](Self::promote).
    pub fn prepare_promotion(&mut self, epoch: Epoch) -> Result<(), ReplicaError> {
        let not = |how: String| Err(ReplicaError::NotPromotable { how });
        if !matches!(self.state, State::Following(_)) {
            return not("it was not filled".to_owned());
        }
        if let Some(Failed { how, .. }) = self.failed.as_ref().filter(|it| it.is_disk) {
            return not(format!("its disk has failed: {how}"));
        }
        let is_not_later = |own: Epoch| not(format!("it is of {own}, and {epoch} is not later"));
        if self.promoted_to != Some(epoch) {
            if epoch <= self.epoch {
                return is_not_later(self.epoch);
            }
            // In this order: whoever has found an earlier epoch has written before.
            if let Swapped::Before(found) = self.swap_up_to(epoch)? {
                return is_not_later(found);
            }
            self.promoted_to = Some(epoch);
        }
        self.take_log(Extent::All)?;
        if let State::Following(follower) = &mut self.state {
            follower.sync_log()?;
        }
        Ok(())
    }
}

/// RP7: makes the directory of a backup whose process has ended an engine's, with what is on the
/// device: of what was acknowledged, what was as [`Sync`](farleaf_lsm::Durability::Sync).
///
/// # Errors
/// As those of [`Follower::open`] and [`Follower::promote`].
pub fn promote_directory(
    storage: Arc<dyn Storage>,
    options: EngineOptions,
) -> Result<Engine, ReplicaError> {
    Ok(Follower::open(storage)?.promote(options)?)
}

fn failed_memory(error: &BatchError) -> ReplicaError {
    ReplicaError::Failed {
        how: format!("its own memory: {error}"),
        is_no_room: false,
    }
}
