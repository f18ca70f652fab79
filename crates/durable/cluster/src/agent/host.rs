//! Interface between an agent and its region server, with the server's promises.

use thiserror::Error;

use crate::ids::{Epoch, RegionId, ReplicaNumber, ServerId, TableId, TableIncarnation};
use crate::lease::LeaseGuard;
use crate::record::region::Key;
use crate::record::{CopyReport, Orphan, PrimaryReport, UnusableCopy, VerificationReport};

/// The parts of a region's record that a replica needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionOrder {
    /// The table.
    pub table: TableId,
    /// Incarnation of the table.
    pub incarnation: Option<TableIncarnation>,
    /// The region.
    pub region: RegionId,
    /// First key of the region.
    pub from: Key,
    /// First key after the region.
    pub to: Option<Key>,
    /// Epoch of the region.
    pub epoch: Epoch,
    /// Number of the ordered replica.
    pub replica: ReplicaNumber,
    /// Whether the members have only what was found on their disks, and may have lost its end
    /// (CONTROL-18). Then the member with the longest log is to become primary.
    pub is_unproven: bool,
}

/// A backup that a primary needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupOrder {
    /// Number of the backup.
    pub replica: ReplicaNumber,
    /// Server of the backup.
    pub server: ServerId,
    /// Whether the backup has everything; otherwise it is to be filled.
    pub in_sync: bool,
    /// Whether the backup was lost before the current primary was promoted. As with other in-sync
    /// backups, nothing is acknowledged without it until it is no longer listed. But it does not
    /// count as another complete replica, and nothing is sent to it.
    pub is_lost: bool,
}

/// Origin of a new replica's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// No data: no server has served the region before.
    Empty,
    /// The copy of this replica that was found on the disk, or that it had when it broke. A backup
    /// keeps it until its primary has filled another copy, which may share its pieces.
    Copy,
    /// Data prepared when this region was split off (CONTROL-17).
    Split(RegionId),
    /// The primary, which fills the replica. Pieces of an earlier replica's copy on the disk may be
    /// reused.
    Primary(ServerId),
}

/// Reason for closing a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// The record no longer has the replica: its data can be deleted.
    Removed,
    /// The replica failed: its data stay until they are no longer needed
    /// ([`discard_copy`](RegionHost::discard_copy)).
    Broken,
}

/// Reason why a replica is broken (CONTROL-16).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaFailure {
    /// Description of the failure.
    pub how: String,
    /// Whether the disk was full, and nothing else is wrong. Then the copy can continue when there
    /// is space ([`reopenable_copy`](RegionHost::reopenable_copy)).
    pub lacked_space: bool,
    /// Whether the replica was open and found damage in its data. Then the copy can continue if no
    /// other replica does.
    pub is_damaged: bool,
}

impl ReplicaFailure {
    /// Returns whether the copy can be opened again in this life, if all members of the region are
    /// lost.
    pub fn can_continue(&self) -> bool {
        self.lacked_space || self.is_damaged
    }
}

/// Status of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// The region.
    pub region: RegionId,
    /// Number of the replica.
    pub replica: ReplicaNumber,
    /// Epoch at which the replica is open.
    pub epoch: Epoch,
    /// State of the backups, if the replica is primary. The agent sets `stopped` itself.
    pub primary: Option<PrimaryReport>,
    /// Reason why the replica cannot continue, if it cannot.
    pub failure: Option<ReplicaFailure>,
    /// Whether the replica cannot carry out its order because its disk is full, and will when there
    /// is space.
    pub waits_for_space: bool,
    /// Description of a problem despite which the replica continues: no other replica has the data
    /// that it lacks.
    pub fault: Option<String>,
    /// Progress of the verification of the replica's files; `None` if unknown yet.
    pub verification: Option<VerificationReport>,
    /// Size of the replica, in bytes.
    pub size_bytes: u64,
    /// Executed operations per second.
    pub operations_per_second: u64,
    /// End of the replica's log, in bytes.
    pub position_bytes: u64,
}

/// Copies on a disk of replicas that are not open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskCopies {
    /// Usable copies.
    pub copies: Vec<CopyReport>,
    /// Copies that cannot be used.
    pub unusable: Vec<UnusableCopy>,
}

/// Reason why a host cannot carry out an order: the replica is then broken (CONTROL-16).
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct HostError(pub String);

impl From<String> for ReplicaFailure {
    /// Creates an error that is not caused by a full disk.
    fn from(how: String) -> Self {
        Self {
            how,
            lacked_space: false,
            is_damaged: false,
        }
    }
}

impl From<HostError> for ReplicaFailure {
    fn from(HostError(how): HostError) -> Self {
        how.into()
    }
}

/// A region server, as its agent uses it. Calls return soon; long work continues in the background,
/// and [`status`](Self::status) reports its progress.
///
/// A host makes these promises, on which docs/reference/control-plane.md relies:
///
/// - **Acknowledgement.** A primary acknowledges an operation only under three conditions. It is
///   open as primary at the request's epoch; every in-sync backup has the operation at that epoch;
///   and the guard of this life holds after it took effect. Reads check the guard, too, after
///   reading.
/// - **Needed backups.** A primary needs a backup from when an order, or its own status, first
///   lists it as in sync, until an order no longer lists it. A primary that cannot reach such a
///   backup waits, and reports it as `failed`.
/// - **Lower epochs.** A backup accepts nothing of an epoch below its own. Its own epoch never
///   falls, and is at least that of its newest order. At a new epoch it first drops what the
///   primary of that epoch does not have.
/// - **Stopping.** When `stop`, `close` or `end_life` has returned, nothing more is acknowledged:
///   at that epoch forever, for that region until the next order, or in that life, respectively.
/// - **Copies on disk.** A copy is on disk with the newest replica number and epoch that it was
///   opened with, before anything of it is acknowledged. For a split, the prepared data are on disk
///   before they are reported.
/// - **Durability.** A write acknowledged as durable is on the disk of every member: a backup is in
///   sync only when all that it was filled with is on its disk. If members that have later writes
///   only in memory are all lost, these writes are lost.
pub trait RegionHost {
    /// Begins a life: all following orders are executed under this guard.
    fn begin_life(&mut self, guard: LeaseGuard);

    /// Ends a life: all replicas are closed and become copies.
    fn end_life(&mut self);

    /// Opens a region as its primary.
    ///
    /// # Errors
    /// If that is impossible; the replica is then closed as broken.
    fn open_as_primary(
        &mut self,
        order: &RegionOrder,
        backups: &[BackupOrder],
        source: Source,
    ) -> Result<(), HostError>;

    /// Promotes an open replica to primary, or continues a primary at another epoch or with another
    /// range.
    ///
    /// # Errors
    /// The errors of [`open_as_primary`](Self::open_as_primary).
    fn promote(&mut self, order: &RegionOrder, backups: &[BackupOrder]) -> Result<(), HostError>;

    /// Replaces the backups of a primary by these.
    ///
    /// # Errors
    /// The errors of [`open_as_primary`](Self::open_as_primary).
    fn set_backups(
        &mut self,
        order: &RegionOrder,
        backups: &[BackupOrder],
    ) -> Result<(), HostError>;

    /// Opens a region as a backup.
    ///
    /// # Errors
    /// The errors of [`open_as_primary`](Self::open_as_primary).
    fn open_as_backup(
        &mut self,
        order: &RegionOrder,
        primary: ServerId,
        source: Source,
    ) -> Result<(), HostError>;

    /// Makes an open replica a backup of this primary, at this epoch.
    ///
    /// # Errors
    /// The errors of [`open_as_primary`](Self::open_as_primary).
    fn follow(&mut self, order: &RegionOrder, primary: ServerId) -> Result<(), HostError>;

    /// Stops a primary: it acknowledges nothing more at this epoch.
    ///
    /// # Errors
    /// The errors of [`open_as_primary`](Self::open_as_primary).
    fn stop(&mut self, region: RegionId, epoch: Epoch) -> Result<(), HostError>;

    /// Begins to prepare a region of its own for the keys from `at` on, here and on the in-sync
    /// backups, while the primary serves. The status reports when that is done. Repeated calls do
    /// nothing.
    ///
    /// # Errors
    /// The errors of [`open_as_primary`](Self::open_as_primary).
    fn prepare_split(
        &mut self,
        order: &RegionOrder,
        at: &Key,
        child: RegionId,
    ) -> Result<(), HostError>;

    /// Removes what was prepared for a region that was never created.
    fn abandon_split(&mut self, child: RegionId);

    /// Closes a replica.
    fn close(&mut self, region: RegionId, replica: ReplicaNumber, why: Closing);

    /// Returns the status of all open replicas.
    fn status(&mut self) -> Vec<ReplicaStatus>;

    /// Returns the copies on the disk of replicas that are not open.
    fn copies(&mut self) -> DiskCopies;

    /// Returns the copy of a replica that was closed as broken because of a full disk or damage
    /// ([`ReplicaFailure::can_continue`]). `None` until there is space and nothing has the copy
    /// open any more. The result is what [`copies`](Self::copies) would report in another life, and
    /// the copy can be opened ([`Source::Copy`]).
    fn reopenable_copy(&mut self, region: RegionId, replica: ReplicaNumber) -> Option<CopyReport>;

    /// Deletes a copy that is no longer needed. `incarnation` is that of the region's table, if the
    /// region has a record: a copy of another table is kept.
    fn discard_copy(
        &mut self,
        region: RegionId,
        replica: ReplicaNumber,
        incarnation: Option<TableIncarnation>,
    );

    /// Returns files that were moved aside because nothing proves that they can be deleted.
    fn orphans(&mut self) -> Vec<Orphan> {
        Vec::new()
    }

    /// Returns the capacity of the disk, in bytes; 0 if unknown.
    fn capacity_bytes(&self) -> u64;

    /// Returns the free space of the disk, in bytes; `None` if unknown.
    fn free_bytes(&self) -> Option<u64>;
}
