//! A primary: its engine, its ordered backups, and the condition for opening it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farleaf_cluster::agent::host::{BackupOrder, RegionOrder};
use farleaf_cluster::ids::ReplicaNumber;
use farleaf_cluster::record::{PrimaryReport, VerificationReport};
use farleaf_fabric::tcp::TcpEndpoint;
use farleaf_lsm::engine::WorkDone;
use farleaf_lsm::place::LogPosition;
use farleaf_lsm::{Durability, LsmError};
use farleaf_replica::{Primary, PrimaryWorkDone, ReplicaError};

use super::backup::{OpenedCopy, epoch_of};
use super::handle::{ORDINARY, Replica};
use super::link::{Link, LinkStage};
use super::mismatches::Mismatches;
use super::tail::LogTail;
use super::verification::Verification;
use crate::context::Context;
use crate::error::ServerError;
use crate::peer::ReplicaName;
use crate::place::{ReplicaNote, ReplicaStore};
use crate::served::ServedRegion;

/// Time for which operations in progress may keep an engine open that is to be closed.
const CLOSE_PATIENCE: Duration = Duration::from_secs(20);

/// Interval at which a primary on a full disk checks for space.
const SPACE_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Progress of the backups.
type LinkStages = BTreeMap<ReplicaNumber, LinkStage>;

/// A replica that is primary.
pub(super) struct PrimaryReplica {
    place: ReplicaStore,
    pub(super) note: ReplicaNote,
    primary: Primary<TcpEndpoint>,
    served: Arc<ServedRegion>,
    links: BTreeMap<ReplicaNumber, Link>,
    mismatches: Arc<Mismatches>,
    /// Backups that must be complete before anything is served.
    needed: BTreeSet<ReplicaNumber>,
    /// Needed backups that were lost before: nothing is sent to them (CONTROL-13).
    lost: BTreeSet<ReplicaNumber>,
    /// Threads of ended links, which hold the engine until they notice.
    ending: Vec<JoinHandle<()>>,
    /// End of its log when it was opened, if it may lack what others have (CONTROL-18).
    reach: Option<LogPosition>,
    /// Time of the last check of a full disk for space.
    checked_at: Instant,
    /// Schedule of background syncs.
    tail: LogTail,
    /// Schedule of recording the durable end in the manifest.
    unrecorded: LogTail,
    /// Whether background work has failed, so that it pauses: it would repeat the same work.
    has_failed: bool,
    verification: Verification,
}

impl PrimaryReplica {
    pub(super) fn new(
        place: ReplicaStore,
        opened: OpenedCopy,
        replica: &Arc<Replica>,
        context: &Arc<Context>,
        order: &RegionOrder,
    ) -> Self {
        let OpenedCopy {
            engine,
            note,
            reach,
        } = opened;
        let epoch = epoch_of(order.epoch);
        let primary = Primary::new(engine, epoch, context.options.replication);
        let served = ServedRegion::new(order, &primary, &replica.shared);
        Self {
            place,
            note,
            primary,
            served: Arc::new(served),
            links: BTreeMap::new(),
            mismatches: Arc::clone(replica.mismatches()),
            needed: BTreeSet::new(),
            lost: BTreeSet::new(),
            ending: Vec::new(),
            reach,
            checked_at: Instant::now(),
            tail: LogTail::to_sync(),
            unrecorded: LogTail::to_record(),
            has_failed: false,
            verification: Verification::new(note.is_verified),
        }
    }

    pub(super) fn served(&self) -> &Arc<ServedRegion> {
        &self.served
    }

    /// Sets its backups.
    pub(super) fn set_backups(
        &mut self,
        replica: &Arc<Replica>,
        context: &Arc<Context>,
        backups: &[BackupOrder],
    ) {
        let listed: BTreeSet<ReplicaNumber> = backups.iter().map(|it| it.replica).collect();
        self.remove_links(|number, _| !listed.contains(&number));
        self.needed.retain(|number| listed.contains(number));
        self.mismatches.note_ordered(listed.iter().copied());
        for backup in backups {
            if backup.in_sync {
                self.needed.insert(backup.replica);
            }
            if backup.is_lost {
                self.lost.insert(backup.replica);
                continue;
            }
            self.links.entry(backup.replica).or_insert_with(|| {
                let name = ReplicaName {
                    region: replica.region,
                    replica: backup.replica,
                    epoch: self.served.epoch(),
                    primary: context.server,
                };
                Link::start(
                    replica,
                    context,
                    &self.primary,
                    backup.server,
                    name,
                    backup.in_sync,
                    self.reach,
                )
            });
        }
        self.open_if_due(replica, &self.stages());
    }

    /// Returns the progress of its backups.
    fn stages(&self) -> LinkStages {
        let backups = self.primary.status().backups;
        for backup in &backups {
            let number = ReplicaNumber(backup.backup.0);
            if let (Some(found), Some(link)) = (&backup.mismatch, self.links.get(&number)) {
                let region = self.served.order.region;
                self.mismatches.note(region, number, link.server(), found);
            }
        }
        let links = self.links.iter();
        links
            .map(|(number, link)| (*number, link.stage(&backups)))
            .collect()
    }

    /// Continues without some backups.
    fn remove_links(&mut self, is_gone: impl Fn(ReplicaNumber, &LinkStage) -> bool) {
        let stages = self.stages();
        let mut staying = stages.iter().filter(|it| !is_gone(*it.0, it.1));
        // Before the last complete backup is removed, so that nothing is acknowledged that is only
        // in memory here.
        if !staying.any(|(_, stage)| *stage == LinkStage::InSync) {
            self.continue_alone();
        }
        for (number, stage) in stages {
            if is_gone(number, &stage)
                && let Some(link) = self.links.remove(&number)
            {
                self.ending.retain(|thread| !thread.is_finished());
                self.ending.extend(link.end());
            }
        }
    }

    /// Continues without a complete backup. Acknowledged writes are then only in this memory. So
    /// everything is put on the disk first, and later writes before they are acknowledged.
    fn continue_alone(&self) {
        if self.served.is_alone() {
            return;
        }
        self.served.set_alone(true);
        if let Err(error) = self.primary.engine().sync() {
            self.served.note_engine(&error);
        }
    }

    /// Removes failed backups, as long as complete ones were not reported for a split.
    pub(super) fn prune(&mut self) {
        self.remove_links(|_, stage| matches!(stage, LinkStage::Failed(_)));
    }

    /// Continues as primary at a later epoch, or with another range, with the same engine and the
    /// same backups.
    pub(super) fn raise(
        &mut self,
        replica: &Arc<Replica>,
        order: &RegionOrder,
    ) -> Result<(), ServerError> {
        let epoch = order.epoch;
        // Backups being filled are filled for an epoch that is over.
        self.remove_links(|_, stage| *stage == LinkStage::Filling);
        // Nothing is acknowledged at the new epoch before the note names it.
        let note = ReplicaNote { epoch, ..self.note };
        self.note = self.place.put_in_force(&note)?;
        self.primary.raise(epoch_of(epoch))?;
        let served = ServedRegion::new(order, &self.primary, &replica.shared);
        // A new epoch does not put writes acknowledged before on the disk.
        served.set_alone(self.served.is_alone());
        self.served = Arc::new(served);
        Ok(())
    }

    fn open_if_due(&self, replica: &Replica, stages: &LinkStages) {
        if replica.stage() != ORDINARY {
            return;
        }
        let is_there = |number| stages.get(number) == Some(&LinkStage::InSync);
        if self.needed.iter().all(is_there) {
            if !self.needed.is_empty() {
                self.served.set_alone(false);
            }
            self.served.open();
        }
    }

    /// Returns its report about backups, and the number of incomplete ones. Opens the region when
    /// all needed backups are complete.
    pub(super) fn report(&self, replica: &Replica) -> (PrimaryReport, usize) {
        let stages = self.stages();
        self.open_if_due(replica, &stages);
        let mut report = PrimaryReport::default();
        let mut filling_count = 0;
        for (number, stage) in stages {
            match stage {
                LinkStage::InSync => report.in_sync.push(number),
                LinkStage::Failed(_) => report.failed.push(number),
                LinkStage::Filling => filling_count += 1,
            }
        }
        // A lost backup that is still a member keeps writes waiting.
        if !report.in_sync.is_empty() {
            self.served.set_alone(false);
        }
        self.mismatches.report(&mut report);
        (report, filling_count)
    }

    /// Returns whether another replica has everything: one in sync, or, before this one is open,
    /// one that the record lists as such. Nothing was acknowledged that the old copy of that one
    /// lacks.
    pub(super) fn has_other(&self, report: &PrimaryReport) -> bool {
        let is_opening = !self.served.has_opened();
        let mut living = self.needed.difference(&self.lost);
        !report.in_sync.is_empty() || (is_opening && living.next().is_some())
    }

    /// Does a step of the pending work; returns false if there is none, or it cannot be done now.
    /// After corruption, the primary continues until another replica has everything.
    pub(super) fn maintain(&mut self) -> bool {
        // Until it is known that no copy has more, its copy stays as found: after a flush
        // the end of its log would be unknown (CONTROL-18).
        if self.reach.is_some() && !self.served.has_opened() {
            return false;
        }
        let is_full = self.served.out_of_space().is_some();
        if (is_full || self.has_failed) && self.checked_at.elapsed() < SPACE_CHECK_INTERVAL {
            return false;
        }
        self.checked_at = Instant::now();
        if is_full && let Err(error) = self.primary.engine().sync() {
            self.served.note_engine(&error);
            return false;
        }
        if !is_full {
            self.sync_tail();
            self.record_tail();
        }
        let worked = match self.primary.maintain() {
            Ok(worked) => worked != PrimaryWorkDone::Engine(WorkDone::Nothing),
            Err(error) if waits(&error) => false,
            Err(error) => {
                self.served.note(&error);
                self.has_failed = true;
                return false;
            }
        };
        self.has_failed = false;
        if is_full {
            self.served.note_space();
        }
        worked
    }

    /// Syncs the log on all disks when its schedule is due.
    fn sync_tail(&mut self) {
        let primary = &self.primary;
        let due = self.tail.due(Instant::now(), || primary.unsynced_to());
        let Some(end) = due else {
            return;
        };
        let since = Instant::now();
        if let Err(error) = self.primary.wait_for(end, Durability::Sync)
            && !waits(&error)
        {
            self.served.note(&error);
        }
        self.tail.note_synced(since.elapsed());
    }

    /// Records the durable end of the log in the manifest when nothing was synced for a while.
    fn record_tail(&mut self) {
        let engine = self.primary.engine();
        let due = self
            .unrecorded
            .due(Instant::now(), || engine.unrecorded_end());
        if due.is_none() {
            return;
        }
        match engine.record_durable_end() {
            // Recovery does not need the edit; it is retried.
            Err(error) if error.is_out_of_space() => {
                tracing::debug!(%error, "disk full: cannot record the durable end of a log");
            }
            Err(error) => drop(self.served.note_engine(&error)),
            Ok(()) => {}
        }
    }

    /// Returns whether its data cannot be written because the disk is full.
    pub(super) fn lacks_space(&self) -> bool {
        let synced = self.primary.engine().sync();
        synced.is_err_and(|error| error.is_out_of_space())
    }

    /// Reads a part of the disk, and compares it with the backups'. Returns `Err` if the own data
    /// are damaged.
    pub(super) fn scrub(&mut self) -> Result<(), ReplicaError> {
        let stepped = self.primary.scrub_step();
        if self.verification.note_step(stepped.as_ref().copied()) {
            self.note_verified();
        }
        stepped.map(drop)
    }

    /// Returns whether its copy is to be verified now: an older version has written it, and it was
    /// not read completely since. Not before the region is open: filling backups comes first.
    pub(super) fn verifies_first(&self) -> bool {
        self.verification.is_first() && self.served.has_opened()
    }

    /// Records in the note that the copy is verified. If that fails, the next process verifies it
    /// once more.
    fn note_verified(&mut self) {
        let note = ReplicaNote {
            is_verified: true,
            ..self.note
        };
        match self.place.put_in_force(&note) {
            Ok(note) => self.note = note,
            Err(error) => tracing::warn!(%error, "cannot record that a copy was verified"),
        }
    }

    /// Returns the progress of the verification of its files.
    pub(super) fn verification(&mut self) -> VerificationReport {
        self.verification.report(self.primary.status().scrub)
    }

    pub(super) fn position_bytes(&self) -> u64 {
        self.primary.log_end().0
    }

    /// Returns the size of its data on the disk, in bytes.
    pub(super) fn size_bytes(&self) -> u64 {
        let counts = self.primary.engine().counts();
        let segments = u64::from(counts.log_segment_count) + u64::from(counts.tree_segment_count);
        segments * farleaf_lsm::place::SEGMENT_SIZE_BYTES
    }

    /// Closes it: all data are durable, the directory is unlocked, and nothing is acknowledged any
    /// more.
    pub(super) fn close(self, replica: &Replica) -> Result<(), ServerError> {
        self.served.stop();
        replica.set_served(None);
        let mut ending = self.ending;
        ending.extend(self.links.into_values().filter_map(Link::end));
        // Data that are not durable would be lost here.
        let engine = self.primary.engine();
        let synced = engine.sync();
        if synced.is_ok()
            && let Err(error) = engine.record_durable_end()
        {
            // Recovery finds all durable data without it.
            tracing::warn!(%error, "cannot record the durable end of a log in its manifest");
        }
        drop(self.primary);
        let since = Instant::now();
        // Each of them holds the engine, and so its directory.
        let is_held = || {
            let at_work = ending.iter().any(|thread| !thread.is_finished());
            at_work || Arc::strong_count(&self.served) > 1
        };
        while is_held() && since.elapsed() < CLOSE_PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(synced?)
    }
}

/// Returns whether an error only means waiting: writes and background work wait for a backup, or
/// another epoch is to come (REPLICATION-6, REPLICATION-13).
const fn waits(error: &ReplicaError) -> bool {
    matches!(
        error,
        ReplicaError::Engine(LsmError::NotFollowed { .. })
            | ReplicaError::Deposed { .. }
            | ReplicaError::BackupLost { .. }
            | ReplicaError::Stopped
    )
}
