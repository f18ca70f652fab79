//! The primary: an engine and its backups.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farleaf_fabric::Endpoint;
use farleaf_lsm::engine::{Snapshot, WorkDone};
use farleaf_lsm::follow::{Follow, IndexKind};
use farleaf_lsm::place::LogPosition;
use farleaf_lsm::scrub::{Scrub, ScrubCounts, Scrubbed, VerifiedPiece};
use farleaf_lsm::{Durability, Engine};

use crate::backup_entry::LinkStatus;
use crate::compare::ComparisonCounts;
use crate::error::{BackupId, Epoch, ReplicaError};
use crate::fill::BackupConnections;
use crate::links::BackupLinks;

/// Configuration of a region's replication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicationOptions {
    /// Whether backups receive finished trees (Send-Index) or build their own (Build-Index).
    pub index: IndexKind,
    /// Highest number of edits that a backup may lack before flushes and merges wait
    /// (REPLICATION-9).
    pub behind_count_max: usize,
}

impl ReplicationOptions {
    /// Returns the defaults: trees are sent, and background work waits while a backup lacks more
    /// than 8 edits.
    pub const fn new() -> Self {
        Self {
            index: IndexKind::Sent,
            behind_count_max: 8,
        }
    }
}

impl Default for ReplicationOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Status of a primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrimaryStatus {
    /// Epoch of the primary.
    pub epoch: Epoch,
    /// Whether the primary is stopped and acknowledges nothing (REPLICATION-13).
    pub is_stopped: bool,
    /// End of the primary's log.
    pub log_end: LogPosition,
    /// Log position up to which all backups have the log.
    pub replicated_to: LogPosition,
    /// Log position that waiting threads need on all backups; 0 if no thread waits.
    pub replicating_to: LogPosition,
    /// Log position that is to be durable on all replicas.
    pub sync_wanted: LogPosition,
    /// Status of each backup, including those being filled.
    pub backups: Vec<LinkStatus>,
    /// Progress and findings of scrubbing.
    pub scrub: ScrubCounts,
    /// Results of comparisons with the backups.
    pub comparison: ComparisonCounts,
}

/// Work done by one step of a primary's background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrimaryWorkDone {
    /// The step of the engine, or nothing.
    Engine(WorkDone),
    /// An edit was sent to a backup.
    Shipped,
}

/// An engine whose writes are acknowledged when all of its backups have them.
///
/// Any number of threads may use a primary. Clones share it.
#[derive(Debug)]
pub struct Primary<E> {
    engine: Engine,
    links: Arc<BackupLinks<E>>,
    options: ReplicationOptions,
    scrubbing: Arc<Scrubbing>,
}

/// Position of the scrub, which one thread at a time uses, and its counts, which are read without
/// waiting.
#[derive(Debug, Default)]
struct Scrubbing {
    scrub: Mutex<Scrub>,
    counts: Mutex<(ScrubCounts, ComparisonCounts)>,
}

impl Scrubbing {
    fn counts(&self) -> MutexGuard<'_, (ScrubCounts, ComparisonCounts)> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E> Clone for Primary<E> {
    fn clone(&self) -> Self {
        Self {
            engine: self.engine.clone(),
            links: Arc::clone(&self.links),
            options: self.options,
            scrubbing: Arc::clone(&self.scrubbing),
        }
    }
}

impl<E: Endpoint + Send + 'static> Primary<E> {
    /// Creates a primary without backups from an engine that was opened or promoted and has no
    /// other user. No primary of this region may ever have had this epoch or a higher one
    /// (REPLICATION-8); the control plane ensures that.
    ///
    /// # Panics
    /// If the engine already has a follower.
    pub fn new(engine: Engine, epoch: Epoch, options: ReplicationOptions) -> Self {
        let log = Arc::clone(engine.log());
        let links = Arc::new(BackupLinks::new(log, epoch, options.index));
        engine.set_follow(Arc::clone(&links) as Arc<dyn Follow>);
        Self {
            engine,
            links,
            options,
            scrubbing: Arc::default(),
        }
    }

    /// Fills a backup with all data and makes writes wait for it from then on. Returns when the
    /// backup has everything; the primary serves meanwhile. Costs two WRITEs and a call for each 2
    /// MiB. The backup must be newly created ([`Backup::new`](crate::Backup::new)) and not filled
    /// since.
    ///
    /// # Errors
    /// - [`ReplicaError::WrongBackup`]: a backup with this number exists.
    /// - [`ReplicaError::NotFilled`] or [`ReplicaError::Mismatch`]: the primary continues without
    ///   the backup.
    /// - [`ReplicaError::Deposed`], [`ReplicaError::Stopped`].
    /// - The engine's error if its files cannot be read.
    pub fn add_backup(
        &self,
        id: BackupId,
        connections: BackupConnections<E>,
    ) -> Result<(), ReplicaError> {
        self.links.fill(&self.engine, id, connections)
    }

    /// Removes a backup; the primary continues without it (REPLICATION-6). The control plane must
    /// first remove it from the map of regions, so that it is never promoted.
    ///
    /// # Errors
    /// [`ReplicaError::WrongBackup`]: no backup has this number.
    pub fn remove_backup(&self, id: BackupId) -> Result<(), ReplicaError> {
        self.links.remove(id)
    }

    /// Declares a backup lost that has not failed but makes no progress any more (REPLICATION-6).
    /// Threads that wait for it stop waiting. Does nothing if no backup has this number.
    pub fn lose_backup(&self, id: BackupId, how: &str) {
        self.links.lose(id, how);
    }

    /// Sets a key's value. Returns when all backups have the record in their buffers. This costs
    /// one round trip to all of them in parallel, which all waiting threads share, and no processor
    /// time of theirs. With [`Durability::Sync`], returns when the record is also on all devices.
    ///
    /// # Errors
    /// The errors of [`Engine::put`]; [`ReplicaError::Deposed`], [`ReplicaError::BackupLost`],
    /// [`ReplicaError::Stopped`]: the write may or may not have taken effect.
    pub fn put(
        &self,
        key: &[u8],
        value: &[u8],
        durability: Durability,
    ) -> Result<(), ReplicaError> {
        self.write(key, Some(value), durability)
    }

    /// Deletes a key. Costs as much as [`Self::put`].
    ///
    /// # Errors
    /// The errors of [`Self::put`].
    pub fn delete(&self, key: &[u8], durability: Durability) -> Result<(), ReplicaError> {
        self.write(key, None, durability)
    }

    fn write(
        &self,
        key: &[u8],
        value: Option<&[u8]>,
        durability: Durability,
    ) -> Result<(), ReplicaError> {
        self.check()?;
        let end = self.append(key, value)?;
        self.wait_for(end, durability)
    }

    /// Checks that writes can be acknowledged, as far as is known. A write that is not made because
    /// of this error was never in the log.
    ///
    /// # Errors
    /// [`ReplicaError::Deposed`], [`ReplicaError::BackupLost`], [`ReplicaError::Stopped`].
    pub fn check(&self) -> Result<(), ReplicaError> {
        self.links.check()
    }

    /// Appends a record without waiting and returns its end in the log. The record is not visible
    /// and not acknowledged until [`wait_for`](Self::wait_for) has returned. So several writes can
    /// wait once.
    ///
    /// # Errors
    /// The errors of [`Engine::put`].
    pub fn append(&self, key: &[u8], value: Option<&[u8]>) -> Result<LogPosition, ReplicaError> {
        Ok(self.engine.append(key, value)?)
    }

    /// Waits until everything before a log position is replicated (REPLICATION-5).
    ///
    /// # Errors
    /// The errors of [`Self::put`].
    pub fn wait_for(&self, end: LogPosition, durability: Durability) -> Result<(), ReplicaError> {
        let is_synced = durability == Durability::Sync && self.links.sync_alone(end)?;
        if !is_synced {
            self.links.replicate_to(end)?;
            if durability == Durability::Sync {
                self.links.sync_to(end)?;
            }
        }
        self.links.check_not_stopped()
    }

    /// Returns the current end of the log.
    pub fn log_end(&self) -> LogPosition {
        self.links.log.end()
    }

    /// Returns the end of the writes that are not known to be durable on the primary and all
    /// backups; `None` if all are durable.
    ///
    /// Marks that a sync itself appends do not count. After [`wait_for`](Self::wait_for) that
    /// position with [`Durability::Sync`], the result is `None` until the next write. One
    /// exception: a mark at the beginning of a segment can count once. Costs two locks; writers
    /// take one of them.
    pub fn unsynced_to(&self) -> Option<LogPosition> {
        self.links.unsynced_to()
    }

    /// Reads a key's replicated value (REPLICATION-5). Costs as much as [`Engine::get`], and no
    /// network access.
    ///
    /// As long as no other primary has taken over, the value is that of some moment during the call
    /// (REPLICATION-8).
    ///
    /// # Errors
    /// The errors of [`Engine::get`]; [`ReplicaError::Stopped`]; [`ReplicaError::Deposed`], if that
    /// is known.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReplicaError> {
        self.links.check_leads()?;
        let bound = self.links.replicated_to();
        let value = self.engine.get_before(key, bound)?;
        self.links.check_not_stopped()?;
        Ok(value)
    }

    /// Returns a snapshot of all replicated keys and values (REPLICATION-5), for scans. A caller
    /// that replies with data from the snapshot must call [`Self::check_leads`] after reading.
    ///
    /// # Errors
    /// [`ReplicaError::Stopped`]; [`ReplicaError::Deposed`], if that is known.
    pub fn snapshot(&self) -> Result<Snapshot, ReplicaError> {
        self.links.check_leads()?;
        let bound = self.links.replicated_to();
        Ok(self.engine.snapshot_before(bound))
    }

    /// Checks that the primary has not stopped and is not known to be deposed (REPLICATION-13).
    /// Costs no network access.
    ///
    /// # Errors
    /// [`ReplicaError::Stopped`], [`ReplicaError::Deposed`].
    pub fn check_leads(&self) -> Result<(), ReplicaError> {
        self.links.check_leads()
    }

    /// Confirms that no other primary had taken over at some moment during the call
    /// (REPLICATION-8). Costs one round trip.
    ///
    /// # Errors
    /// [`ReplicaError::Deposed`], [`ReplicaError::BackupLost`], [`ReplicaError::Stopped`].
    pub fn confirm(&self) -> Result<(), ReplicaError> {
        self.links.confirm()?;
        self.links.check_not_stopped()
    }

    /// Continues at a later epoch with the same backups, which keep all their data, also after a
    /// [`stop`](Self::stop) (REPLICATION-12).
    ///
    /// The control plane must have given this primary the new epoch and all epochs since its
    /// current one. A backup may be raised before or after
    /// ([`Backup::raise`](crate::Backup::raise)). Costs one round trip to all backups in parallel,
    /// after the batches in progress have completed.
    ///
    /// When the call returns, everything is acknowledged at the new epoch. An unreachable backup is
    /// lost (REPLICATION-6); [`Self::status`] and the next write report that.
    ///
    /// # Errors
    /// - [`ReplicaError::NotLater`]: nothing was changed.
    /// - [`ReplicaError::Deposed`]: a backup has a foreign epoch, and nothing is acknowledged any
    ///   more.
    pub fn raise(&self, epoch: Epoch) -> Result<(), ReplicaError> {
        self.links.raise(epoch)
    }

    /// Stops the primary: it acknowledges no write, sync or read until [`raise`](Self::raise)
    /// reaches the epoch `before` (REPLICATION-13).
    ///
    /// An operation in progress either passed its check before this returns, or ends with an error,
    /// even if it waits for a backup that hangs. Nothing changes if the primary already has that
    /// epoch. The call does not wait. Background work continues, except for data that is not
    /// replicated.
    pub fn stop(&self, before: Epoch) {
        self.links.stop(before);
    }

    /// Makes all writes that have taken effect durable on all replicas.
    ///
    /// # Errors
    /// The errors of [`Self::put`].
    pub fn sync(&self) -> Result<(), ReplicaError> {
        self.links.sync_to(self.links.log.end())?;
        self.links.check_not_stopped()
    }

    /// Does the next step of background work. Steps of the engine alternate with edits sent to
    /// backups while there are both. Any thread may call it.
    ///
    /// # Errors
    /// The errors of [`Engine::maintain`]. A backup that rejects an edit is not an error here: it
    /// is lost (REPLICATION-6).
    pub fn maintain(&self) -> Result<PrimaryWorkDone, ReplicaError> {
        if self.links.behind_count() > self.options.behind_count_max {
            if self.links.ship_next()? {
                return Ok(PrimaryWorkDone::Shipped);
            }
            return Ok(PrimaryWorkDone::Engine(WorkDone::Nothing));
        }
        match self.engine.maintain()? {
            WorkDone::Nothing if self.links.ship_next()? => Ok(PrimaryWorkDone::Shipped),
            worked => Ok(PrimaryWorkDone::Engine(worked)),
        }
    }

    /// Scrubs the next piece of the primary's directory, at most 2 MiB, while it serves. Any thread
    /// may call it at any time; concurrent calls take turns.
    ///
    /// Then compares the valid pieces with each backup (REPLICATION-17). This costs a call to each
    /// backup, which reads as much of its own disk. A backup whose disk differs is lost
    /// (REPLICATION-6).
    ///
    /// # Errors
    /// [`ReplicaError::Engine`]. Corruption is reported as
    /// [`CorruptLog`](farleaf_lsm::LsmError::CorruptLog) or
    /// [`CorruptTree`](farleaf_lsm::LsmError::CorruptTree). The primary then continues, and the
    /// control plane is expected to replace it.
    pub fn scrub_step(&self) -> Result<Scrubbed, ReplicaError> {
        let scrub = self.scrubbing.scrub.lock();
        let mut scrub = scrub.unwrap_or_else(PoisonError::into_inner);
        // Pieces left by the previous step: a large record has several.
        if let Some(piece) = scrub.take_verified() {
            self.compare(&piece)?;
            return Ok(Scrubbed {
                read_size_bytes: 0,
                is_round_over: false,
            });
        }
        scrub.set_comparing(self.links.has_comparable());
        let scrubbed = self.engine.scrub(&mut scrub);
        self.scrubbing.counts().0 = scrub.counts();
        let scrubbed = scrubbed?;
        if let Some(piece) = scrub.take_verified() {
            self.compare(&piece)?;
        }
        Ok(scrubbed)
    }

    fn compare(&self, piece: &VerifiedPiece) -> Result<(), ReplicaError> {
        let compared = self.links.compare(&self.engine, piece)?;
        let (_, counts) = &mut *self.scrubbing.counts();
        counts.equal_count += compared.equal_count;
        counts.mismatch_count += compared.mismatch_count;
        Ok(())
    }

    /// Returns the primary's engine. Writes made directly to the engine are replicated only with
    /// the next write through the primary.
    pub const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the primary's status.
    pub fn status(&self) -> PrimaryStatus {
        let (scrub, comparison) = *self.scrubbing.counts();
        PrimaryStatus {
            epoch: self.links.epoch(),
            is_stopped: self.links.check_not_stopped().is_err(),
            log_end: self.links.log.end(),
            replicated_to: self.links.replicated_to(),
            replicating_to: self.links.replicating_to(),
            sync_wanted: self.links.sync_wanted(),
            backups: self
                .links
                .backup_entries()
                .values()
                .map(|it| it.status())
                .collect(),
            scrub,
            comparison,
        }
    }
}
