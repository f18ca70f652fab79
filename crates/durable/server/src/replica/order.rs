//! Orders of a replica, requests of other servers, and the status that its thread publishes.

use std::collections::VecDeque;
use std::sync::mpsc::SyncSender;

use farleaf_cluster::agent::host::{BackupOrder, Closing, RegionOrder, ReplicaFailure, Source};
use farleaf_cluster::ids::{Epoch, ServerId};
use farleaf_cluster::record::{PrimaryReport, VerificationReport};

use crate::peer::{PeerReply, PeerRequest};

/// Ordered role of a replica.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    Primary {
        backups: Vec<BackupOrder>,
        source: Source,
    },
    Backup {
        primary: ServerId,
        source: Source,
    },
}

/// Order for a replica.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) order: RegionOrder,
    pub(crate) role: Role,
}

impl Wanted {
    /// Creates the order for the primary of a region, with these backups.
    pub(crate) fn primary(order: &RegionOrder, backups: &[BackupOrder], source: Source) -> Self {
        Self {
            order: order.clone(),
            role: Role::Primary {
                backups: backups.to_vec(),
                source,
            },
        }
    }

    /// Creates the order for a backup of a primary on this server.
    pub(crate) fn backup(order: &RegionOrder, primary: ServerId, source: Source) -> Self {
        Self {
            order: order.clone(),
            role: Role::Backup { primary, source },
        }
    }
}

/// Reason why the thread is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The life is over: the copy stays.
    LifeOver,
    /// The agent has closed the replica.
    Closed(Closing),
}

/// Request of another server, with the channel for the reply.
pub(crate) struct PeerCall {
    pub(crate) request: PeerRequest,
    pub(crate) reply: SyncSender<PeerReply>,
}

/// Newest order and pending requests, shared with the thread.
#[derive(Default)]
pub(super) struct OrderSlot {
    pub(super) wanted: Option<Wanted>,
    pub(super) ending: Option<Ending>,
    pub(super) peer_calls: VecDeque<PeerCall>,
    /// Whether something else may have changed: a backup was filled, or is lost.
    pub(super) is_woken: bool,
}

/// Status of a replica, updated by its thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct PublishedStatus {
    /// Newest ordered epoch.
    pub(crate) ordered: Option<Epoch>,
    /// Epoch at which the replica is open.
    pub(crate) epoch: Option<Epoch>,
    pub(crate) primary: Option<PrimaryReport>,
    /// Whether another replica has everything, so that this primary can give up.
    pub(crate) has_other: bool,
    pub(crate) failure: Option<ReplicaFailure>,
    /// Whether an order cannot be carried out yet because the disk is full.
    pub(crate) waits_for_space: bool,
    /// Description of a problem despite which the replica continues, since no other replica is
    /// better.
    pub(crate) fault: Option<String>,
    pub(crate) verification: Option<VerificationReport>,
    pub(crate) size_bytes: u64,
    pub(crate) position_bytes: u64,
    /// Number of a primary's backups that are not complete yet.
    pub(crate) filling_count: usize,
    /// Whether complete backups are frozen for a split, so that they stay.
    pub(crate) is_frozen: bool,
}
