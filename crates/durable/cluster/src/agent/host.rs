//! What a region server does for its agent, and what it must promise.

use thiserror::Error;

use crate::ids::{Epoch, RegionId, ReplicaNumber, ServerId, TableId, TableIncarnation};
use crate::lease::LeaseGuard;
use crate::record::region::Key;
use crate::record::{CopyReport, Orphan, PrimaryReport, UnusableCopy, VerificationReport};

/// A region, as far as it matters to whoever has a replica of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionOrder {
    /// Of which table.
    pub table: TableId,
    /// Which creation of a table that is (ID4).
    pub incarnation: Option<TableIncarnation>,
    /// Which region.
    pub region: RegionId,
    /// The first key.
    pub from: Key,
    /// The first key behind it.
    pub to: Option<Key>,
    /// At which epoch.
    pub epoch: Epoch,
    /// Which replica is ordered.
    pub replica: ReplicaNumber,
    /// Whether the members have what was found on their disks, and may have lost the end of it
    /// (CP18): then the one whose log goes furthest is to be primary.
    pub is_unproven: bool,
}

/// A backup that a primary has to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupOrder {
    /// Which one.
    pub replica: ReplicaNumber,
    /// On which server.
    pub server: ServerId,
    /// Whether it has everything; else it is to be filled.
    pub in_sync: bool,
    /// Whether it was lost before the primary became that. Nothing is acknowledged without it, as
    /// of others in sync, until it is listed no more; but it is no other that has everything, and
    /// nothing is brought to it.
    pub is_lost: bool,
}

/// Where the data of a replica that begins are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// There are none: nobody has served the region before.
    Empty,
    /// In the copy of this replica that was found on the disk, or that it had when it broke. A
    /// backup keeps that until its primary has filled another one, of which it may be a part.
    Copy,
    /// In what was prepared when this region was split (CP17).
    Split(RegionId),
    /// On the primary, which fills it. What the disk has of an earlier replica may be of use.
    Primary(ServerId),
}

/// Why a replica is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// It is no replica any more: its data can go.
    Removed,
    /// It failed: its data stay until nobody needs them
    /// ([`discard_copy`](RegionHost::discard_copy)).
    Broken,
}

/// Why a replica is broken (CP16).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaFailure {
    /// In words.
    pub how: String,
    /// Whether there was no room for what it had to write, and nothing else is wrong: then its copy
    /// can go on when there is ([`copy_again`](RegionHost::copy_again)).
    pub lacked_room: bool,
    /// Whether it could go on, and something of what it has is damaged: then its copy can go on if
    /// no other replica does.
    pub is_damaged: bool,
}

impl ReplicaFailure {
    /// Whether its copy can be opened again in this life, if all members of the region are lost.
    pub fn can_go_on_again(&self) -> bool {
        self.lacked_room || self.is_damaged
    }
}

/// A replica as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Of which region.
    pub region: RegionId,
    /// Which one.
    pub replica: ReplicaNumber,
    /// The epoch that it is open at.
    pub epoch: Epoch,
    /// If it is primary: its backups (`stopped` is the agent's, whatever is said here).
    pub primary: Option<PrimaryReport>,
    /// Why it cannot go on, if it cannot.
    pub failure: Option<ReplicaFailure>,
    /// It is not yet what was ordered, as its disk is full, and will be when there is room.
    pub waits_for_room: bool,
    /// What is wrong with it, while it goes on: no other replica has what it lacks.
    pub fault: Option<String>,
    /// How far its files are verified; none: that is not known yet.
    pub verification: Option<VerificationReport>,
    /// How much it has, in bytes.
    pub size_bytes: u64,
    /// How many operations it executes in a second.
    pub operations_per_second: u64,
    /// Up to where its log goes, in bytes.
    pub position_bytes: u64,
}

/// What a disk has of replicas that are not open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskCopies {
    /// The copies.
    pub copies: Vec<CopyReport>,
    /// What would be copies if it could be used.
    pub unusable: Vec<UnusableCopy>,
}

/// Why a host does not do what it is told: the replica is broken then (CP16).
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct HostError(pub String);

impl From<String> for ReplicaFailure {
    /// One that has nothing to do with room.
    fn from(how: String) -> Self {
        Self {
            how,
            lacked_room: false,
            is_damaged: false,
        }
    }
}

impl From<HostError> for ReplicaFailure {
    fn from(HostError(how): HostError) -> Self {
        how.into()
    }
}

/// What a region server does. Calls return soon: long work goes on in the background, and
/// [`status`](Self::status) tells how far it is.
///
/// The promises, on which the argument of `docs/cluster.md` stands:
///
/// - **RH1.** As primary it acknowledges an operation only if it is open as primary at the
///   request's epoch, every backup that is in sync has it at that epoch, and then, after it took
///   effect, the guard of this life says yes. A read, too, looks at the guard after it has read.
/// - **RH2.** A backup is in sync from when an order says so, or its own status first did, until an
///   order no longer lists it. A primary that cannot reach it waits, and says `failed`.
/// - **RH3.** A backup takes nothing of an epoch below its own, and its own never falls; it is at
///   least that of its newest order. At a new epoch it first drops what the primary of that epoch
///   does not have.
/// - **RH4.** When `stop`, `close` or `end_life` has returned, nothing more is acknowledged: of
///   the region until the next order; for ever at that epoch; in that life.
/// - **RH5.** A copy is known on the disk by the newest replica number and epoch that it was opened
///   with, before anything of it is acknowledged; what was prepared for a split, too, before it is
///   said to be.
/// - **RH6.** What was acknowledged as durable is on the disk of every member: a backup is in sync
///   only when all that it was filled with is on its disk. (Members that are in sync in memory
///   alone, and lose it together, lose what others on disk have: the record names those no more.)
pub trait RegionHost {
    /// A life begins: everything ordered from now on is done under this guard.
    fn begin_life(&mut self, guard: LeaseGuard);

    /// A life has ended: all replicas are closed, and are copies from now on.
    fn end_life(&mut self);

    /// Opens a region as its primary.
    ///
    /// # Errors
    /// Why it cannot be: then it is closed as broken.
    fn open_as_primary(
        &mut self,
        order: &RegionOrder,
        backups: &[BackupOrder],
        source: Source,
    ) -> Result<(), HostError>;

    /// An open replica becomes primary, or goes on as primary at another epoch or of another range.
    ///
    /// # Errors
    /// As of [`open_as_primary`](Self::open_as_primary).
    fn promote(&mut self, order: &RegionOrder, backups: &[BackupOrder]) -> Result<(), HostError>;

    /// The backups of a primary are these from now on (RH2).
    ///
    /// # Errors
    /// As of [`open_as_primary`](Self::open_as_primary).
    fn set_backups(
        &mut self,
        order: &RegionOrder,
        backups: &[BackupOrder],
    ) -> Result<(), HostError>;

    /// Opens a region as a backup.
    ///
    /// # Errors
    /// As of [`open_as_primary`](Self::open_as_primary).
    fn open_as_backup(
        &mut self,
        order: &RegionOrder,
        primary: ServerId,
        source: Source,
    ) -> Result<(), HostError>;

    /// An open replica is a backup of this primary from now on, at this epoch.
    ///
    /// # Errors
    /// As of [`open_as_primary`](Self::open_as_primary).
    fn follow(&mut self, order: &RegionOrder, primary: ServerId) -> Result<(), HostError>;

    /// A primary acknowledges nothing more at this epoch (RH4).
    ///
    /// # Errors
    /// As of [`open_as_primary`](Self::open_as_primary).
    fn stop(&mut self, region: RegionId, epoch: Epoch) -> Result<(), HostError>;

    /// A primary begins to prepare that the keys from `at` on be a region of their own, here and on
    /// its backups in sync, and serves on. Its status tells when that is done. Called again, it
    /// does nothing.
    ///
    /// # Errors
    /// As of [`open_as_primary`](Self::open_as_primary).
    fn prepare_split(
        &mut self,
        order: &RegionOrder,
        at: &Key,
        child: RegionId,
    ) -> Result<(), HostError>;

    /// What was prepared for a region that never came into being can go.
    fn abandon_split(&mut self, child: RegionId);

    /// Closes a replica.
    fn close(&mut self, region: RegionId, replica: ReplicaNumber, why: Closing);

    /// All open replicas.
    fn status(&mut self) -> Vec<ReplicaStatus>;

    /// What the disk has of replicas that are not open.
    fn copies(&mut self) -> DiskCopies;

    /// The copy that a replica has left which was closed as broken for want of room, or for damage
    /// ([`ReplicaFailure::can_go_on_again`]), when there is room for it, and nobody has it open any
    /// more. None: not yet. It is what [`copies`](Self::copies) would say of it in another life,
    /// and can be opened ([`Source::Copy`]).
    fn copy_again(&mut self, region: RegionId, replica: ReplicaNumber) -> Option<CopyReport>;

    /// Nobody needs a copy any more. `incarnation` is that of the region's table, if the region has
    /// a record: a copy of another table is kept.
    fn discard_copy(
        &mut self,
        copy: (RegionId, ReplicaNumber),
        incarnation: Option<TableIncarnation>,
    );

    /// What the disk has that cannot be proved to be garbage, and was moved aside (ID3).
    fn orphans(&mut self) -> Vec<Orphan> {
        Vec::new()
    }

    /// How much the disk can hold, in bytes; 0: it does not say.
    fn capacity_bytes(&self) -> u64;

    /// How much of that is free, in bytes; none: it does not say.
    fn free_bytes(&self) -> Option<u64>;
}
