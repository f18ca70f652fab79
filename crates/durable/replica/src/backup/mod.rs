//! A backup: the server's side of one replicated region (REPLICATION-3, REPLICATION-4,
//! REPLICATION-7).
//!
//! | module | contents |
//! |---|---|
//! | `buffers` | the log buffers |
//! | `log` | writes the log from the buffers to the device |
//! | `tail` | does the same from another thread, without a sync |
//! | `epoch` | the epoch word, and raising it |
//! | `serve` | requests of the primary |
//! | `counts` | counters of the backup's work |

mod buffers;
mod counts;
mod epoch;
mod log;
mod serve;
mod tail;

use std::sync::Arc;

use farleaf_executor::block_on;
use farleaf_fabric::message::Mailbox;
use farleaf_fabric::{Batch, BatchError, Endpoint};
use farleaf_lsm::follow::{Filling, Follower, WriteFault};
use farleaf_lsm::place::{LogNumber, LogPosition};
use farleaf_lsm::scrub::{Scrub, ScrubCounts, Scrubbed};
use farleaf_lsm::storage::Storage;
use farleaf_lsm::{Engine, EngineOptions, LsmError};

pub use counts::BackupCounts;
pub use tail::BackupTail;

use self::buffers::WriteExtent;
use self::epoch::RaiseOutcome;
use self::tail::SharedIntake;
use crate::error::{Epoch, ReplicaError};
use crate::layout::Layout;

/// Options of a backup.
#[derive(Clone, Debug, Default)]
pub struct BackupOptions {
    /// Engine options for building trees (Build-Index). The engine id in them is ignored.
    pub engine: EngineOptions,
    /// Whether any content of the directory may be replaced. Otherwise only an empty directory or
    /// that of a backup is filled.
    pub replaces: bool,
    /// The copy in force, in another directory that is open nowhere (REPLICATION-14). Pieces that
    /// it shares with the primary need not be sent. Call [`Backup::note_in_force`] when the new
    /// copy has taken its place.
    pub previous: Option<Arc<dyn Storage>>,
    /// A fault that a test injects.
    #[doc(hidden)]
    pub write_fault: WriteFault,
}

/// Status of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupStatus {
    /// Epoch of the backup, which its primary may have raised (REPLICATION-12).
    pub epoch: Epoch,
    /// Whether the backup was filled, so that it can be promoted.
    pub is_filled: bool,
    /// Reason why the backup has failed, if it has.
    pub failed: Option<String>,
    /// End of the log that the backup has. The promotable backup with the highest value has the
    /// newest data.
    pub log_end: LogPosition,
    /// Log position up to which the log is on the device.
    pub written_to: LogPosition,
    /// Log position up to which the log is durable.
    pub synced_to: LogPosition,
    /// Progress and findings of scrubbing since the backup was filled.
    pub scrub: ScrubCounts,
}

/// The backup of one region, for one primary. One thread uses it, and calls [`serve`](Self::serve)
/// as long as it is a backup.
pub struct Backup<E> {
    near: E,
    layout: Layout,
    epoch: Epoch,
    storage: Arc<dyn Storage>,
    options: BackupOptions,
    mailbox: Mailbox,
    batch: Batch,
    /// Buffer for bytes read from the log buffers, on machines with another byte order.
    bytes: Vec<u8>,
    state: BackupState,
    failed: Option<Failed>,
    /// The epoch of a promotion, from which on nothing of the old primary counts (REPLICATION-8).
    promoted_to: Option<Epoch>,
    counts: BackupCounts,
    scrub: Scrub,
    shared: Arc<SharedIntake>,
}

/// Reason why a backup has failed.
#[derive(Clone)]
struct Failed {
    how: String,
    /// Whether the disk may have lost written data.
    is_disk: bool,
    /// Whether the disk is full.
    is_out_of_space: bool,
}

impl From<Failed> for ReplicaError {
    fn from(failed: Failed) -> Self {
        Self::Failed {
            how: failed.how,
            is_out_of_space: failed.is_out_of_space,
        }
    }
}

enum BackupState {
    /// Waiting for a primary.
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
    /// Creates a backup that waits for the primary of this epoch, which fills it. Zeros control
    /// words and rings; accesses no file.
    ///
    /// `near` is an endpoint of this process's memory with the backup's words. Nothing else may use
    /// these words: sessions of earlier primaries must be fenced (FABRIC-6).
    ///
    /// Both sides have atomics on the epoch (REPLICATION-8). So the atomics of `near` must be
    /// executed by the same unit as the primary's verbs (FABRIC-4). This is the processor over
    /// `mem`, `shm` and `tcp`, and the device, through its
    /// [loopback](farleaf_fabric::verbs::VerbsNode::loopback), over `verbs`. Otherwise an old
    /// primary may acknowledge writes that a promoted backup lacks.
    ///
    /// # Errors
    /// If the memory does not contain all words of the layout.
    pub fn new(
        near: E,
        layout: Layout,
        epoch: Epoch,
        storage: Arc<dyn Storage>,
        options: BackupOptions,
    ) -> Result<Self, ReplicaError> {
        let (requests, replies) = layout.rings();
        let mut backup = Self {
            near,
            layout,
            epoch,
            storage,
            options,
            mailbox: Mailbox::new(requests, replies, 0),
            batch: Batch::new(),
            bytes: Vec::new(),
            state: BackupState::Waiting,
            failed: None,
            promoted_to: None,
            counts: BackupCounts::default(),
            scrub: Scrub::new(),
            shared: Arc::default(),
        };
        backup.batch.clear();
        // The last range ends at the end of the words.
        for (start, word_count) in layout.zeroed() {
            backup.batch.write(start, &vec![0; word_count]);
        }
        backup.execute()?;
        backup.begin_epoch()?;
        Ok(backup)
    }

    /// Returns a writer of the end of the log for another thread (REPLICATION-16). `near` must
    /// access the same memory as the endpoint that the backup was created with.
    pub fn tail(&self, near: E) -> BackupTail<E> {
        BackupTail::new(near, self.layout, Arc::downgrade(&self.shared))
    }

    /// Executes the batch on the backup's own memory.
    fn execute(&mut self) -> Result<(), ReplicaError> {
        let executed = self.near.execute(&mut self.batch);
        block_on(executed, self.near.completions()).map_err(|error| failed_memory(&error))
    }

    /// Does one step of work. It polls words of its own memory, and then writes one segment of the
    /// log, answers one request, or does one step of background work. Returns false if there was
    /// nothing to do.
    ///
    /// # Errors
    /// [`ReplicaError::Failed`]: the disk, the memory or the primary's input is at fault. All later
    /// calls return this error, too. The backup can still be promoted if it was filled and its disk
    /// has not failed.
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
                is_out_of_space: error.is_out_of_space(),
            };
            // The primary finds this with its next batch (REPLICATION-6). If the backup's own
            // memory failed, the batch fails.
            let _ = self.report_failure();
            self.failed = Some(failed.clone());
            return Err(failed.into());
        }
        served
    }

    /// Returns the backup's status.
    ///
    /// # Errors
    /// If the backup's memory cannot be read.
    pub fn status(&mut self) -> Result<BackupStatus, ReplicaError> {
        let epoch = self.current_epoch()?;
        let (log_end, _) = self.primary_words()?;
        let (written_to, synced_to) = match &self.state {
            BackupState::Following(it) => (it.written_to(), it.synced_to()),
            _ => (LogPosition(0), LogPosition(0)),
        };
        Ok(BackupStatus {
            epoch,
            is_filled: matches!(self.state, BackupState::Following(_)),
            failed: self.failed.as_ref().map(|it| it.how.clone()),
            log_end: log_end.max(written_to),
            written_to,
            synced_to,
            scrub: self.scrub.counts(),
        })
    }

    /// Scrubs the next piece of the directory, at most 2 MiB. Returns `None` if the backup is not
    /// filled or has failed. Call it when [`serve`](Self::serve) has nothing to do, at any rate.
    ///
    /// # Errors
    /// [`ReplicaError::Engine`]. Corruption is reported as [`LsmError::CorruptLog`] or
    /// [`LsmError::CorruptTree`]. The backup then continues, and the control plane is expected to
    /// replace it.
    pub fn scrub_step(&mut self) -> Result<Option<Scrubbed>, ReplicaError> {
        match &self.state {
            BackupState::Following(follower) if self.failed.is_none() => {
                Ok(Some(follower.scrub(&mut self.scrub)?))
            }
            _ => Ok(None),
        }
    }

    /// Returns progress and findings of scrubbing since the backup was filled.
    pub const fn scrub_counts(&self) -> ScrubCounts {
        self.scrub.counts()
    }

    /// Describes file and byte of corruption that [`scrub_step`](Self::scrub_step) reported, if
    /// they can be determined.
    pub fn corruption_place(&self, error: &LsmError) -> Option<String> {
        match &self.state {
            BackupState::Following(follower) => follower.corruption_place(error),
            _ => None,
        }
    }

    /// Returns whether the log has a segment; `None` if the backup is not filled.
    pub fn has_log_segment(&self, number: LogNumber) -> Option<bool> {
        match &self.state {
            BackupState::Following(follower) => Some(follower.has_log_segment(number)),
            _ => None,
        }
    }

    /// Notes that the filled copy is durably in force (REPLICATION-14). Space that only the
    /// previous copy used becomes free. Does nothing if there is no previous copy.
    ///
    /// # Errors
    /// Disk errors, as of [`Follower::release_previous`].
    pub fn note_in_force(&mut self) -> Result<(), ReplicaError> {
        if let BackupState::Following(follower) = &mut self.state {
            follower.release_previous()?;
            self.options.previous = None;
        }
        Ok(())
    }

    /// Returns counters of the work that the backup has done.
    pub fn counts(&self) -> BackupCounts {
        let mut counts = self.counts.clone();
        if let BackupState::Following(follower) = &self.state {
            counts.log_received_size_bytes += follower.intake().received_size_bytes();
            counts.work = follower.work();
            counts.feed_time_ns = follower.feed_time().as_nanos() as u64;
        }
        counts
    }

    /// Closes the backup with everything from the buffers durable on the device. If the backup was
    /// filled, the directory is then a complete copy for [`promote_directory`].
    ///
    /// The sessions of its primary must be fenced before (FABRIC-6), so that nothing is
    /// acknowledged that arrives later. Costs one write, one sync, and an edit with the durable
    /// end.
    ///
    /// # Errors
    /// If the log cannot be written, or is invalid.
    pub fn retire(mut self) -> Result<(), ReplicaError> {
        self.take_log(WriteExtent::All)?;
        if let BackupState::Following(follower) = &mut self.state {
            follower.sync_log()?;
            // A failure here loses nothing: recovery finds the end of the log without it.
            if let Err(error) = follower.record_durable_end() {
                tracing::warn!(%error, "cannot record the durable end of a backup's log");
            }
        }
        Ok(())
    }

    /// Promotes the backup to an engine that has everything its primary has acknowledged
    /// (REPLICATION-7). That primary acknowledges nothing any more (REPLICATION-8). Writes the
    /// buffers to the device, and inserts the log since the last flush into L0.
    ///
    /// The directory is the copy in force from then on (REPLICATION-14). The backup's words may be
    /// reused only when the sessions of the old primary are fenced (FABRIC-6).
    ///
    /// # Errors
    /// - [`ReplicaError::NotPromotable`]: nothing was changed.
    /// - Disk errors: the directory is still a backup's, for [`promote_directory`], or already an
    ///   engine's.
    pub fn promote(mut self, epoch: Epoch, options: EngineOptions) -> Result<Engine, ReplicaError> {
        self.prepare_promotion(epoch)?;
        let BackupState::Following(follower) = self.state else {
            unreachable!("it was looked at");
        };
        Ok(follower.promote(options)?)
    }

    /// Executes the part of a [promotion](Self::promote) that needs the backup's memory. Afterwards
    /// everything acknowledged is durable on the device. The call can be repeated, also by
    /// `promote`. So a promotion that found the disk full loses nothing and continues when there is
    /// space.
    ///
    /// # Errors
    /// The errors of [`promote`](Self::promote).
    pub fn prepare_promotion(&mut self, epoch: Epoch) -> Result<(), ReplicaError> {
        let not = |how: String| Err(ReplicaError::NotPromotable { how });
        if !matches!(self.state, BackupState::Following(_)) {
            return not("it has not caught up".to_owned());
        }
        if let Some(Failed { how, .. }) = self.failed.as_ref().filter(|it| it.is_disk) {
            return not(format!("its disk has failed: {how}"));
        }
        let is_not_later = |own: Epoch| not(format!("{epoch} is not later than its current {own}"));
        if self.promoted_to != Some(epoch) {
            if epoch <= self.epoch {
                return is_not_later(self.epoch);
            }
            // In this order: a primary that found an earlier epoch has completed its writes before.
            if let RaiseOutcome::Before(found) = self.swap_up_to(epoch)? {
                return is_not_later(found);
            }
            self.promoted_to = Some(epoch);
        }
        self.take_log(WriteExtent::All)?;
        if let BackupState::Following(follower) = &mut self.state {
            follower.sync_log()?;
        }
        Ok(())
    }
}

/// Turns the directory of a backup whose process has ended into an engine's (REPLICATION-7). The
/// engine has what is on the device: of the acknowledged writes, those with
/// [`Sync`](farleaf_lsm::Durability::Sync).
///
/// # Errors
/// The errors of [`Follower::open`] and [`Follower::promote`].
pub fn promote_directory(
    storage: Arc<dyn Storage>,
    options: EngineOptions,
) -> Result<Engine, ReplicaError> {
    Ok(Follower::open(storage)?.promote(options)?)
}

fn failed_memory(error: &BatchError) -> ReplicaError {
    ReplicaError::Failed {
        how: format!("cannot access its own memory: {error}"),
        is_out_of_space: false,
    }
}
