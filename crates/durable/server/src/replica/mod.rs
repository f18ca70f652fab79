//! A replica: its order, its status, and its thread.
//!
//! The replica's thread reads its newest order and carries it out, however long that takes, and
//! does background work in between. Giving an order does not wait, with two exceptions: a stop
//! takes effect at once ([`ServedRegion::stop`]), and the end of a life waits for the thread.
//!
//! | module | contents |
//! |---|---|
//! | `actor` | the thread: turns orders into what is open |
//! | `primary` | the engine of a primary, and its backups |
//! | `link` | a primary's backup: attached, filled, put in force |
//! | `backup` | a backup: memory that its primary writes, and the copy in force |
//! | `mismatches` | backups that did not write what their primary wrote |
//! | `memory` | a backup's memory, and access to it |
//! | `tail` | schedule of background syncs of a primary's log |
//! | `verification` | progress of the verification of a replica's files |
//! | `split` | a region being split off another one |

mod actor;
mod backup;
mod link;
mod memory;
mod mismatches;
mod primary;
mod split;
mod tail;
mod verification;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farleaf_cluster::agent::host::{BackupOrder, Closing, RegionOrder, ReplicaFailure, Source};
use farleaf_cluster::ids::{Epoch, RegionId, ReplicaNumber, ServerId, TableId, TableIncarnation};
use farleaf_cluster::lease::LeaseGuard;
use farleaf_cluster::record::{PrimaryReport, VerificationReport};

use self::actor::Actor;
use self::mismatches::Mismatches;
pub(crate) use self::split::Split;
use crate::context::Context;
use crate::damage::SharedDamage;
use crate::error::ServerError;
use crate::log_ends::LogEnd;
use crate::peer::{PeerReply, PeerRequest};
use crate::served::{ReplicaShared, ServedRegion, Stripes};
use crate::sync::{change_state, lock};

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
struct OrderSlot {
    wanted: Option<Wanted>,
    ending: Option<Ending>,
    peer_calls: VecDeque<PeerCall>,
    /// Whether something else may have changed: a backup was filled, or is lost.
    is_woken: bool,
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

/// Stage of a replica of a region being split off: failed backups are removed.
const PREPARING: u8 = 0;
/// Stage of such a replica: complete backups stay, even if they fail.
const FROZEN: u8 = 1;
/// Stage of an ordinary replica.
const ORDINARY: u8 = 2;

/// An open replica, as all threads but its own see it.
pub(crate) struct Replica {
    pub(crate) table: TableId,
    pub(crate) incarnation: Option<TableIncarnation>,
    pub(crate) region: RegionId,
    pub(crate) number: ReplicaNumber,
    context: Arc<Context>,
    shared: ReplicaShared,
    order_slot: Mutex<OrderSlot>,
    changed: Condvar,
    status: Mutex<PublishedStatus>,
    served: Mutex<Option<Arc<ServedRegion>>>,
    mismatches: Arc<Mismatches>,
    stage: AtomicU8,
    /// Split of this region in progress.
    split: Mutex<Option<Arc<Split>>>,
    /// Writer of the log's end.
    log_end: Mutex<LogEnd>,
}

impl Replica {
    /// Opens a replica. Its thread begins with this order, or the newest one at that time.
    pub(crate) fn open(
        context: &Arc<Context>,
        guard: LeaseGuard,
        wanted: Wanted,
        begins_at: Instant,
    ) -> Result<(Arc<Self>, JoinHandle<()>), ServerError> {
        let stripes = Arc::default();
        Self::open_at(context, guard, stripes, wanted, ORDINARY, begins_at)
    }

    /// Opens a replica of a region that does not exist yet, with the stripes of the region that it
    /// is split off.
    pub(crate) fn prepare(
        context: &Arc<Context>,
        guard: LeaseGuard,
        stripes: Arc<Stripes>,
        wanted: Wanted,
    ) -> Result<(Arc<Self>, JoinHandle<()>), ServerError> {
        Self::open_at(context, guard, stripes, wanted, PREPARING, Instant::now())
    }

    fn open_at(
        context: &Arc<Context>,
        guard: LeaseGuard,
        stripes: Arc<Stripes>,
        wanted: Wanted,
        stage: u8,
        begins_at: Instant,
    ) -> Result<(Arc<Self>, JoinHandle<()>), ServerError> {
        let order = &wanted.order;
        let shared = ReplicaShared {
            server: context.server,
            guard,
            stripes,
            damage: Arc::default(),
        };
        let replica = Arc::new(Self {
            table: order.table,
            incarnation: order.incarnation,
            region: order.region,
            number: order.replica,
            context: Arc::clone(context),
            shared,
            order_slot: Mutex::default(),
            changed: Condvar::new(),
            status: Mutex::default(),
            served: Mutex::default(),
            mismatches: Arc::default(),
            stage: AtomicU8::new(stage),
            split: Mutex::default(),
            log_end: Mutex::default(),
        });
        let name = format!("region-{}-{}", order.region.0, order.replica.0);
        replica.order(wanted);
        let actor = Actor::new(Arc::clone(&replica));
        let thread = std::thread::Builder::new().name(name);
        let thread = thread.spawn(move || actor.run(begins_at));
        let thread = thread.map_err(|source| ServerError::NoResource {
            what: "thread",
            source,
        })?;
        Ok((replica, thread))
    }

    /// Turns the prepared replica into an ordinary one, with the order of its region's record.
    pub(crate) fn become_ordinary(&self, wanted: Wanted) {
        self.stage.store(ORDINARY, Ordering::SeqCst);
        self.order(wanted);
    }

    /// Freezes complete backups, so that they are no longer removed; [`PublishedStatus::is_frozen`]
    /// reports when that is done.
    pub(crate) fn freeze(&self) {
        // An ordinary region already has its backups from the record.
        change_state(&self.stage, PREPARING, FROZEN);
        self.wake();
    }

    fn stage(&self) -> u8 {
        self.stage.load(Ordering::SeqCst)
    }

    /// Returns the split of this region in progress.
    pub(crate) fn split(&self) -> MutexGuard<'_, Option<Arc<Split>>> {
        lock(&self.split)
    }

    /// Returns the present status.
    pub(crate) fn status(&self) -> PublishedStatus {
        let mut status = lock(&self.status).clone();
        let served = self.served();
        if let (Some(report), Some(split)) = (&mut status.primary, &*self.split()) {
            report.prepared = split.prepared().map(|on| (split.child, on));
        }
        match served.as_ref().and_then(|served| served.failure()) {
            Some((failure, true)) if status.has_other => {
                status.failure.get_or_insert_with(|| failure.into());
            }
            // The damaged data do not exist any more.
            Some((failure, _)) if self.shared.damage.is_collected(failure.segment) => {
                status.fault = self.shared.damage.text();
            }
            // While no other replica has everything, or the data that this one lacks, all readable
            // data are served.
            Some((failure, _)) => status.fault = Some(failure.how),
            None => status.fault = self.shared.damage.text(),
        }
        status
    }

    /// Writes the end of the log to the disk, without a sync, if that is due. Bytes of a primary's
    /// log pass through `buffer`.
    pub(crate) fn write_log_end(&self, buffer: &mut Vec<u8>) {
        let served = self.served();
        if let Err(error) = lock(&self.log_end).write(served.as_deref(), buffer) {
            // The replica's own thread gets the same error, or succeeds in writing.
            tracing::debug!(%error, "cannot write the end of a log of {}", self.region);
            if !error.is_out_of_space() {
                self.wake();
            }
        }
    }

    /// Returns whether an order cannot be carried out yet because the disk is full.
    pub(crate) fn waits_for_space(&self) -> bool {
        lock(&self.status).waits_for_space
    }

    /// Returns the region as clients see it, if this is its primary.
    pub(crate) fn served(&self) -> Option<Arc<ServedRegion>> {
        lock(&self.served).clone()
    }

    fn set_served(&self, served: Option<Arc<ServedRegion>>) {
        let mut current = lock(&self.served);
        if let Some(before) = current.take() {
            before.stop();
        }
        *current = served;
    }

    /// Gives a new order. A primary stops at once if its role or epoch changes.
    pub(crate) fn order(&self, wanted: Wanted) {
        let is_same_primary = |served: &Arc<ServedRegion>| {
            served.epoch() == wanted.order.epoch && matches!(wanted.role, Role::Primary { .. })
        };
        if let Some(served) = self.served().filter(|served| !is_same_primary(served)) {
            served.stop();
            // The thread may wait for a backup that hangs, and must read this order
            // (REPLICATION-13). The same order may be repeated while the thread continues at this
            // epoch, or has just done so.
            let before = match wanted.role {
                Role::Primary { .. } => wanted.order.epoch.0,
                Role::Backup { .. } => wanted.order.epoch.0 + 1,
            };
            served.primary.stop(farleaf_replica::Epoch(before));
        }
        lock(&self.status).ordered = Some(wanted.order.epoch);
        lock(&self.order_slot).wanted = Some(wanted);
        self.changed.notify_all();
    }

    /// Stops a primary: it acknowledges nothing more at this epoch. Waits a short time for
    /// operations in progress.
    pub(crate) fn stop(&self) {
        if let Some(served) = self.served() {
            served.drain();
        }
    }

    /// Begins to stop: operations in progress are still acknowledged, and no others begin.
    pub(crate) fn begin_stop(&self) {
        if let Some(served) = self.served() {
            served.begin_stop();
        }
    }

    /// Returns whether operations are in progress.
    pub(crate) fn has_running_operations(&self) -> bool {
        self.served()
            .is_some_and(|served| served.has_running_operations())
    }

    /// Returns the damage that all copies have.
    pub(crate) fn damage(&self) -> &Arc<SharedDamage> {
        &self.shared.damage
    }

    /// Returns the mismatches of this primary's backups.
    fn mismatches(&self) -> &Arc<Mismatches> {
        &self.mismatches
    }

    pub(crate) fn stripes(&self) -> Arc<Stripes> {
        Arc::clone(&self.shared.stripes)
    }

    /// Ends the thread soon. Nothing more is acknowledged from now on, and no thread waits for a
    /// backup any more (REPLICATION-13).
    pub(crate) fn end(&self, ending: Ending) {
        if let Some(served) = self.served() {
            served.stop();
            served.primary.stop(farleaf_replica::Epoch(u64::MAX));
        }
        lock(&self.order_slot).ending = Some(ending);
        self.changed.notify_all();
    }

    /// Wakes the thread up.
    pub(crate) fn wake(&self) {
        lock(&self.order_slot).is_woken = true;
        self.changed.notify_all();
    }

    /// Passes another server's request to the thread and returns its reply. If the thread is busy
    /// for longer than `timeout`, the reply asks to retry.
    pub(crate) fn answer(&self, request: PeerRequest, timeout: Duration) -> PeerReply {
        let (reply, answer) = std::sync::mpsc::sync_channel(1);
        lock(&self.order_slot)
            .peer_calls
            .push_back(PeerCall { request, reply });
        self.changed.notify_all();
        let answer = answer.recv_timeout(timeout);
        answer.unwrap_or_else(|_| PeerReply::NotYet("the replica is busy".to_owned()))
    }
}
