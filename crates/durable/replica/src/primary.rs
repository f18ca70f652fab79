//! The primary: an engine, and its backups.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farleaf_fabric::Endpoint;
use farleaf_lsm::engine::{Snapshot, Worked};
use farleaf_lsm::follow::{Follow, IndexKind};
use farleaf_lsm::place::LogPosition;
use farleaf_lsm::scrub::{Scrub, ScrubCounts, Scrubbed, VerifiedPiece};
use farleaf_lsm::{Durability, Engine};

use crate::compare::ComparisonCounts;
use crate::error::{BackupId, Epoch, ReplicaError};
use crate::fill::BackupWays;
use crate::links::Links;
use crate::member::LinkStatus;

/// How a region is replicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicationOptions {
    /// Whether its backups get trees ready made (Send-Index) or make them themselves (Build-Index).
    pub index: IndexKind,
    /// RP9: flushes and merges wait while a backup lacks more edits.
    pub behind_count_max: usize,
}

impl ReplicationOptions {
    /// Trees are sent; background work waits while a backup lacks more than 8 edits.
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

/// How a primary is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrimaryStatus {
    /// Which primary it is.
    pub epoch: Epoch,
    /// RP13: it acknowledges nothing.
    pub is_stopped: bool,
    /// The end of its log;
    pub log_end: LogPosition,
    /// and how much of it all backups have;
    pub replicated_to: LogPosition,
    /// is to be had by all, as somebody waits for that now (0: nobody does);
    pub replicating_to: LogPosition,
    /// and is to be durable on all.
    pub sync_wanted: LogPosition,
    /// Its backups, and those that are being filled.
    pub backups: Vec<LinkStatus>,
    /// What scrubbing has done, and found.
    pub scrub: ScrubCounts,
    /// What comparing with its backups has found.
    pub comparison: ComparisonCounts,
}

/// What a step of a primary's background work did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrimaryWorked {
    /// The engine's, or nothing.
    Engine(Worked),
    /// An edit was brought to a backup.
    Shipped,
}

/// An engine whose writes are acknowledged when all of its backups have them.
///
/// Any number of threads may use it. Clones are the same one.
#[derive(Debug)]
pub struct Primary<E> {
    engine: Engine,
    links: Arc<Links<E>>,
    options: ReplicationOptions,
    scrubbing: Arc<Scrubbing>,
}

/// Where scrubbing is, for one thread at a time; and what it has done, which nobody waits for.
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
    /// Of an engine that was opened, or promoted, and that nobody else uses: without backups. No
    /// primary of this region ever had this epoch, or a higher one (RP8); who keeps the region's
    /// map sees to that.
    ///
    /// # Panics
    /// Somebody follows the engine already.
    pub fn new(engine: Engine, epoch: Epoch, options: ReplicationOptions) -> Self {
        let log = Arc::clone(engine.log());
        let links = Arc::new(Links::new(log, epoch, options.index));
        engine.set_follow(Arc::clone(&links) as Arc<dyn Follow>);
        Self {
            engine,
            links,
            options,
            scrubbing: Arc::default(),
        }
    }

    /// Fills a backup with all that there is, and has writes wait for it from then on. Returns when
    /// it has everything; meanwhile the primary serves. Two WRITEs and a call for each 2 MiB. The
    /// backup has begun ([`Backup::new`](crate::Backup::new)) since anybody last filled it.
    ///
    /// # Errors
    /// [`ReplicaError::WrongBackup`]: there is one of this number. [`ReplicaError::NotFilled`]: the
    /// primary goes on without it. [`ReplicaError::Deposed`], [`ReplicaError::Stopped`]. Or this
    /// engine cannot be read.
    pub fn add_backup(&self, id: BackupId, ways: BackupWays<E>) -> Result<(), ReplicaError> {
        self.links.fill(&self.engine, id, ways)
    }

    /// RP6: goes on without a backup. Whoever keeps the region's map has taken it out there first,
    /// so that it will never be promoted.
    ///
    /// # Errors
    /// [`ReplicaError::WrongBackup`]: there is none of this number.
    pub fn remove_backup(&self, id: BackupId) -> Result<(), ReplicaError> {
        self.links.remove(id)
    }

    /// RP6: a backup that has not failed, and does nothing any more, counts as lost; whoever waits
    /// for it waits no longer. Nothing happens if there is none of this number.
    pub fn lose_backup(&self, id: BackupId, how: &str) {
        self.links.lose(id, how);
    }

    /// Gives a key a value. Returns when all backups have it in their buffers: one round trip to
    /// all of them at once, which all who wait share, and no processor of theirs. With
    /// [`Durability::Sync`], when it is on the devices of all, too.
    ///
    /// # Errors
    /// Those of [`Engine::put`]; [`ReplicaError::Deposed`], [`ReplicaError::BackupLost`],
    /// [`ReplicaError::Stopped`]: it may be there or not.
    pub fn put(
        &self,
        key: &[u8],
        value: &[u8],
        durability: Durability,
    ) -> Result<(), ReplicaError> {
        self.write(key, Some(value), durability)
    }

    /// Takes a key's value away. Costs as [`Self::put`] does.
    ///
    /// # Errors
    /// As those of [`Self::put`].
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

    /// That writes can be acknowledged, as far as is known. What is not written because of this was
    /// never in the log.
    ///
    /// # Errors
    /// [`ReplicaError::Deposed`], [`ReplicaError::BackupLost`].
    pub fn check(&self) -> Result<(), ReplicaError> {
        self.links.check()
    }

    /// Writes a record that nobody sees, and that is not acknowledged, until
    /// [`wait_for`](Self::wait_for) has returned: for several writes that wait once. Where its
    /// record ends in the log.
    ///
    /// # Errors
    /// Those of [`Engine::put`].
    pub fn append(&self, key: &[u8], value: Option<&[u8]>) -> Result<LogPosition, ReplicaError> {
        Ok(self.engine.append(key, value)?)
    }

    /// Returns when everything before a place in the log is replicated (RP5).
    ///
    /// # Errors
    /// As those of [`Self::put`].
    pub fn wait_for(&self, end: LogPosition, durability: Durability) -> Result<(), ReplicaError> {
        let is_synced = durability == Durability::Sync && self.links.sync_alone(end)?;
        if !is_synced {
            self.links.replicate_to(end)?;
            if durability == Durability::Sync {
                self.links.sync_to(end)?;
            }
        }
        self.links.check_goes_on()
    }

    /// Where the log ends now.
    pub fn log_end(&self) -> LogPosition {
        self.links.log.end()
    }

    /// Up to where something has been written that is not known to be durable on this and on all
    /// backups; none: all of it is. What a sync itself puts into the log does not count: when
    /// [`wait_for`](Self::wait_for) that place has returned, with [`Durability::Sync`], it is none
    /// until somebody writes, but for a mark that begins a segment, which can count once. Costs two
    /// locks, one of which writers take.
    pub fn unsynced_to(&self) -> Option<LogPosition> {
        self.links.unsynced_to()
    }

    /// The value of a key, of what all backups have (RP5). Costs as [`Engine::get`] does, and
    /// nothing of the network.
    ///
    /// As long as no other primary has taken over, it is the value at some moment while this runs
    /// (RP8).
    ///
    /// # Errors
    /// Those of [`Engine::get`]; [`ReplicaError::Stopped`]; [`ReplicaError::Deposed`], if that is
    /// known.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReplicaError> {
        self.links.check_leads()?;
        let bound = self.links.replicated_to();
        let value = self.engine.get_before(key, bound)?;
        self.links.check_goes_on()?;
        Ok(value)
    }

    /// All keys and values, of what all backups have (RP5), to be scanned. Who answers with what a
    /// scan of it has read asks [`Self::check_leads`] then.
    ///
    /// # Errors
    /// [`ReplicaError::Stopped`]; [`ReplicaError::Deposed`], if that is known.
    pub fn snapshot(&self) -> Result<Snapshot, ReplicaError> {
        self.links.check_leads()?;
        let bound = self.links.replicated_to();
        Ok(self.engine.snapshot_before(bound))
    }

    /// RP13: that it has not stopped, and is not known to be deposed. Costs nothing of the network.
    ///
    /// # Errors
    /// [`ReplicaError::Stopped`], [`ReplicaError::Deposed`].
    pub fn check_leads(&self) -> Result<(), ReplicaError> {
        self.links.check_leads()
    }

    /// RP8: that no other primary had taken over at some moment while this runs. One round trip.
    ///
    /// # Errors
    /// [`ReplicaError::Deposed`], [`ReplicaError::BackupLost`], [`ReplicaError::Stopped`].
    pub fn confirm(&self) -> Result<(), ReplicaError> {
        self.links.confirm()?;
        self.links.check_goes_on()
    }

    /// RP12: goes on at a later epoch with the same backups, which keep all that they have, also
    /// after a [`stop`](Self::stop). Who keeps the map has given that epoch, and all between it and
    /// the one before, to this primary. A backup may have been raised before
    /// ([`Backup::raise`](crate::Backup::raise)), or is later. One round trip to all of them at
    /// once, when those that were under way are done.
    ///
    /// When it returns, all that is acknowledged is at the new epoch. A backup that was not reached
    /// is lost (RP6), as [`Self::status`] and the next write say.
    ///
    /// # Errors
    /// [`ReplicaError::NotLater`]: nothing was changed. [`ReplicaError::Deposed`]: a backup is of
    /// another epoch, and nothing is acknowledged any more.
    pub fn raise(&self, epoch: Epoch) -> Result<(), ReplicaError> {
        self.links.raise(epoch)
    }

    /// RP13: no write, sync or read is acknowledged any more, before [`raise`](Self::raise): what
    /// is under way has been found to be acknowledged before this returns, or ends with an error,
    /// also if it waits for a backup that hangs. Waits for nobody. Background work goes on, but for
    /// what is not replicated.
    pub fn stop(&self) {
        self.links.stop();
    }

    /// Makes all writes durable on all that have taken effect.
    ///
    /// # Errors
    /// As those of [`Self::put`].
    pub fn sync(&self) -> Result<(), ReplicaError> {
        self.links.sync_to(self.links.log.end())?;
        self.links.check_goes_on()
    }

    /// Does the step of background work that is next: the engine's, and bringing edits to backups,
    /// in turn while there are both. Any thread may call it.
    ///
    /// # Errors
    /// Those of [`Engine::maintain`]. A backup that takes nothing in is no error here: it is lost
    /// (RP6).
    pub fn maintain(&self) -> Result<PrimaryWorked, ReplicaError> {
        if self.links.behind_count() > self.options.behind_count_max {
            if self.links.ship_next()? {
                return Ok(PrimaryWorked::Shipped);
            }
            return Ok(PrimaryWorked::Engine(Worked::Nothing));
        }
        match self.engine.maintain()? {
            Worked::Nothing if self.links.ship_next()? => Ok(PrimaryWorked::Shipped),
            worked => Ok(PrimaryWorked::Engine(worked)),
        }
    }

    /// SC7: looks at the next 2 MiB at the most of its directory for bits that have flipped, while
    /// it serves. Any thread may call it, as often as it likes; two at once take turns.
    ///
    /// RP17: then compares what it has found to be valid with each backup: a call to each, for
    /// which that one reads as much of its own disk. A backup whose disk has something else is lost
    /// (RP6).
    ///
    /// # Errors
    /// [`ReplicaError::Engine`], of which the damage is
    /// [`DamagedLog`](farleaf_lsm::LsmError::DamagedLog) or
    /// [`DamagedTree`](farleaf_lsm::LsmError::DamagedTree): it goes on, and whoever keeps the map
    /// has it replaced.
    pub fn scrub_step(&self) -> Result<Scrubbed, ReplicaError> {
        let scrub = self.scrubbing.scrub.lock();
        let mut scrub = scrub.unwrap_or_else(PoisonError::into_inner);
        // What the step before has left: a large record has several pieces.
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

    /// Its engine, whose own writes would not be replicated before the next write here is.
    pub const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// How it is doing.
    pub fn status(&self) -> PrimaryStatus {
        let (scrub, comparison) = *self.scrubbing.counts();
        PrimaryStatus {
            epoch: self.links.epoch(),
            is_stopped: self.links.check_goes_on().is_err(),
            log_end: self.links.log.end(),
            replicated_to: self.links.replicated_to(),
            replicating_to: self.links.replicating_to(),
            sync_wanted: self.links.sync_wanted(),
            backups: self
                .links
                .members()
                .values()
                .map(|it| it.status())
                .collect(),
            scrub,
            comparison,
        }
    }
}
