//! A primary: its engine, what it is ordered to have as backups, and whether it is open (RS4).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farleaf_cluster::agent::host::{BackupOrder, RegionOrder};
use farleaf_cluster::ids::ReplicaNumber;
use farleaf_cluster::record::{PrimaryReport, VerificationReport};
use farleaf_fabric::tcp::TcpEndpoint;
use farleaf_lsm::engine::Worked;
use farleaf_lsm::place::LogPosition;
use farleaf_lsm::{Durability, LsmError};
use farleaf_replica::{Primary, PrimaryWorked, ReplicaError};

use super::backup::{Opened, epoch_of};
use super::link::{Link, Stage};
use super::mismatches::Mismatches;
use super::tail::LogTail;
use super::verification::Verification;
use super::{GOES_ON, Replica};
use crate::context::Context;
use crate::error::ServerError;
use crate::peer::ReplicaName;
use crate::place::{Note, ReplicaPlace};
use crate::served::Served;

/// For how long operations that are under way may keep an engine open that is to be closed.
const CLOSE_PATIENCE: Duration = Duration::from_secs(20);

/// RS10: how often a primary whose disk is full looks whether there is room.
const ROOM_INTERVAL: Duration = Duration::from_millis(500);

/// How far backups are.
type Stages = BTreeMap<ReplicaNumber, Stage>;

/// A replica that is primary.
pub(super) struct PrimaryReplica {
    place: ReplicaPlace,
    pub(super) note: Note,
    primary: Primary<TcpEndpoint>,
    served: Arc<Served>,
    links: BTreeMap<ReplicaNumber, Link>,
    mismatches: Arc<Mismatches>,
    /// RS4: nobody is served before these have all.
    needed: BTreeSet<ReplicaNumber>,
    /// Of them, those that were lost before: nothing is brought to them (CP13).
    lost: BTreeSet<ReplicaNumber>,
    /// Threads of links that have ended: they have the engine until they see that.
    ending: Vec<JoinHandle<()>>,
    /// CP18: how far its log went when it was opened, if it may have lost what others have.
    reach: Option<LogPosition>,
    /// RS10: when it was last looked whether a disk that is full has room.
    looked_at: Instant,
    /// RS11.
    tail: LogTail,
    /// What is durable, and the manifest does not say so (VL6).
    unsaid: LogTail,
    /// RS8: background work has failed, so it rests: what it has begun it begins anew.
    has_failed: bool,
    verification: Verification,
}

impl PrimaryReplica {
    pub(super) fn new(
        place: ReplicaPlace,
        opened: Opened,
        (replica, context): (&Arc<Replica>, &Arc<Context>),
        order: &RegionOrder,
    ) -> Self {
        let Opened {
            engine,
            note,
            reach,
        } = opened;
        let epoch = epoch_of(order.epoch);
        let primary = Primary::new(engine, epoch, context.options.replication);
        let of = (replica.guard.clone(), replica.stripes(), context.server);
        let damage = Arc::clone(replica.damage());
        let served = Served::new(order.clone(), primary.clone(), of, damage);
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
            looked_at: Instant::now(),
            tail: LogTail::to_sync(),
            unsaid: LogTail::to_say(),
            has_failed: false,
            verification: Verification::new(note.is_verified),
        }
    }

    pub(super) fn served(&self) -> &Arc<Served> {
        &self.served
    }

    /// RS4: these are its backups from now on.
    pub(super) fn set_backups(
        &mut self,
        (replica, context): (&Arc<Replica>, &Arc<Context>),
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
                let of = (backup.server, name);
                let standing = (backup.in_sync, self.reach);
                Link::start((replica, context), &self.primary, of, standing)
            });
        }
        self.open_if_due(replica, &self.stages());
    }

    /// How far its backups are.
    fn stages(&self) -> Stages {
        let backups = self.primary.status().backups;
        for backup in &backups {
            let number = ReplicaNumber(backup.backup.0);
            if let (Some(found), Some(link)) = (&backup.mismatch, self.links.get(&number)) {
                let region = self.served.order.region;
                let of = (number, link.server());
                self.mismatches.note(region, of, found);
            }
        }
        let links = self.links.iter();
        links
            .map(|(number, link)| (*number, link.stage(&backups)))
            .collect()
    }

    /// RS6: goes on without some of them.
    fn remove_links(&mut self, is_gone: impl Fn(ReplicaNumber, &Stage) -> bool) {
        let stages = self.stages();
        let mut staying = stages.iter().filter(|it| !is_gone(*it.0, it.1));
        // RS2: before the last one goes, so that nobody acknowledges what is here alone.
        if !staying.any(|(_, stage)| *stage == Stage::InSync) {
            self.go_on_alone();
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

    /// RS2: without a backup that has all, what was acknowledged is in this memory alone; it is on
    /// the disk before this goes on, and so is all that is acknowledged later.
    fn go_on_alone(&self) {
        if self.served.is_alone() {
            return;
        }
        self.served.set_alone(true);
        if let Err(error) = self.primary.engine().sync() {
            self.served.note_engine(&error);
        }
    }

    /// RS9: as long as nobody has been told which backups have all, one that fails leaves.
    pub(super) fn prune(&mut self) {
        self.remove_links(|_, stage| matches!(stage, Stage::Failed(_)));
    }

    /// RS7: goes on as primary at a later epoch, or of another range, with the same engine and the
    /// same backups.
    pub(super) fn raise(
        &mut self,
        replica: &Arc<Replica>,
        order: &RegionOrder,
    ) -> Result<(), ServerError> {
        let epoch = order.epoch;
        // Those that are being filled are filled for an epoch that is over.
        self.remove_links(|_, stage| *stage == Stage::Filling);
        // RH5.
        let note = Note { epoch, ..self.note };
        self.note = self.place.put_in_force(&note)?;
        self.primary.raise(epoch_of(epoch))?;
        let of = (
            replica.guard.clone(),
            replica.stripes(),
            replica.context.server,
        );
        let damage = Arc::clone(replica.damage());
        let served = Served::new(order.clone(), self.primary.clone(), of, damage);
        // RS2: of what was acknowledged before, nothing has come to the disk by this.
        served.set_alone(self.served.is_alone());
        self.served = Arc::new(served);
        Ok(())
    }

    fn open_if_due(&self, replica: &Replica, stages: &Stages) {
        if replica.stage() != GOES_ON {
            return;
        }
        let is_there = |number| stages.get(number) == Some(&Stage::InSync);
        if self.needed.iter().all(is_there) {
            if !self.needed.is_empty() {
                self.served.set_alone(false);
            }
            self.served.open();
        }
    }

    /// What it says of its backups, and how many do not have all yet; and opens it, when those that
    /// are needed have.
    pub(super) fn report(&self, replica: &Replica) -> (PrimaryReport, usize) {
        let stages = self.stages();
        self.open_if_due(replica, &stages);
        let mut report = PrimaryReport::default();
        let mut filling_count = 0;
        for (number, stage) in stages {
            match stage {
                Stage::InSync => report.in_sync.push(number),
                Stage::Failed(_) => report.failed.push(number),
                Stage::Filling => filling_count += 1,
            }
        }
        // RS2. One that has been lost, and is a member still, keeps writes waiting.
        if !report.in_sync.is_empty() {
            self.served.set_alone(false);
        }
        self.mismatches.report(&mut report);
        (report, filling_count)
    }

    /// RS8: whether another replica has all: one in sync; or, before this one is open, one that the
    /// record says to be, as nothing was acknowledged that its old copy lacks (RS7).
    pub(super) fn has_other(&self, report: &PrimaryReport) -> bool {
        let is_opening = !self.served.has_opened();
        let mut living = self.needed.difference(&self.lost);
        !report.in_sync.is_empty() || (is_opening && living.next().is_some())
    }

    /// A step of what there is to do; false: there is nothing, or it cannot be done now. RS8:
    /// whoever can be read is closed when another one has all, and not before.
    pub(super) fn maintain(&mut self) -> bool {
        // CP18: until it is known that nobody has more, its copy stays as it was found: how far it
        // went cannot be told any more when it was flushed.
        if self.reach.is_some() && !self.served.has_opened() {
            return false;
        }
        let is_full = self.served.no_room().is_some();
        if (is_full || self.has_failed) && self.looked_at.elapsed() < ROOM_INTERVAL {
            return false;
        }
        self.looked_at = Instant::now();
        if is_full && let Err(error) = self.primary.engine().sync() {
            self.served.note_engine(&error);
            return false;
        }
        if !is_full {
            self.sync_tail();
            self.say_tail();
        }
        let worked = match self.primary.maintain() {
            Ok(worked) => worked != PrimaryWorked::Engine(Worked::Nothing),
            Err(error) if waits(&error) => false,
            Err(error) => {
                self.served.note(&error);
                self.has_failed = true;
                return false;
            }
        };
        self.has_failed = false;
        if is_full {
            self.served.note_room();
        }
        worked
    }

    /// RS11: has all disks have what was written a second ago.
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

    /// RS11: has the manifest say how far the log is durable when nothing has been synced for a
    /// while.
    fn say_tail(&mut self) {
        let engine = self.primary.engine();
        let due = self.unsaid.due(Instant::now(), || engine.unsaid_to());
        if due.is_none() {
            return;
        }
        match engine.say_synced() {
            // Nothing that is written needs it. It is tried again.
            Err(error) if error.is_no_room() => {
                tracing::debug!(%error, "no room to say how far a log is durable");
            }
            Err(error) => drop(self.served.note_engine(&error)),
            Ok(()) => {}
        }
    }

    /// RS10: whether what it has cannot be put on its disk, as that is full.
    pub(super) fn finds_no_room(&self) -> bool {
        let synced = self.primary.engine().sync();
        synced.is_err_and(|error| error.is_no_room())
    }

    /// RS8, RS14: reads a part of the disk, and compares it with the backups'. `Err`: what is here
    /// is damaged.
    pub(super) fn scrub(&mut self) -> Result<(), ReplicaError> {
        let stepped = self.primary.scrub_step();
        if self.verification.note_step(stepped.as_ref().copied()) {
            self.note_verified();
        }
        stepped.map(drop)
    }

    /// RS14: whether its copy is to be verified now: an older version has written it, and nobody
    /// has read all of it since. Not before it is open: what its backups lack comes first.
    pub(super) fn verifies_first(&self) -> bool {
        self.verification.is_first() && self.served.has_opened()
    }

    /// RS14: has the note say that the copy was verified. Nothing is wrong if it does not: the next
    /// process verifies it once more.
    fn note_verified(&mut self) {
        let note = Note {
            is_verified: true,
            ..self.note
        };
        match self.place.put_in_force(&note) {
            Ok(note) => self.note = note,
            Err(error) => tracing::warn!(%error, "that a copy was verified is not noted"),
        }
    }

    /// RS14: how far its files are verified.
    pub(super) fn verification(&mut self) -> VerificationReport {
        self.verification.report(self.primary.status().scrub)
    }

    pub(super) fn position_bytes(&self) -> u64 {
        self.primary.log_end().0
    }

    /// How much it has on its disk.
    pub(super) fn size_bytes(&self) -> u64 {
        let counts = self.primary.engine().counts();
        let segments = u64::from(counts.log_segment_count) + u64::from(counts.tree_segment_count);
        segments * farleaf_lsm::place::SEGMENT_SIZE_BYTES
    }

    /// Closes it: everything that it has is durable, and the directory is unlocked. Nothing is
    /// acknowledged any more.
    pub(super) fn close(self, replica: &Replica) -> Result<(), ServerError> {
        self.served.stop();
        replica.set_served(None);
        let mut ending = self.ending;
        ending.extend(self.links.into_values().filter_map(Link::end));
        // What is not durable is lost with this.
        let engine = self.primary.engine();
        let synced = engine.sync();
        if synced.is_ok()
            && let Err(error) = engine.say_synced()
        {
            // All is durable without it (VL6).
            tracing::warn!(%error, "its manifest does not say how far a log is durable");
        }
        drop(self.primary);
        let since = Instant::now();
        // Each has the engine, and so its directory, as long as it is there.
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

/// RP6, RP13: writes wait for a backup, and so does background work; or another epoch is to come.
const fn waits(error: &ReplicaError) -> bool {
    matches!(
        error,
        ReplicaError::Engine(LsmError::NotFollowed { .. })
            | ReplicaError::Deposed { .. }
            | ReplicaError::BackupLost { .. }
            | ReplicaError::Stopped
    )
}
