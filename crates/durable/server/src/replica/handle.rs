//! A replica as all threads but its own see it: they give orders and read its status.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use farleaf_cluster::ids::{RegionId, ReplicaNumber, TableId, TableIncarnation};

use super::log_end::LogEnd;
use super::mismatches::Mismatches;
use super::order::{Ending, OrderSlot, PeerCall, PublishedStatus, Role, Wanted};
use super::split::Split;
use crate::context::Context;
use crate::damage::SharedDamage;
use crate::peer::{PeerReply, PeerRequest};
use crate::served::{ReplicaShared, ServedRegion, Stripes};
use crate::sync::{change_state, lock};

/// Stage of a replica of a region being split off: failed backups are removed.
pub(super) const PREPARING: u8 = 0;
/// Stage of such a replica: complete backups stay, even if they fail.
pub(super) const FROZEN: u8 = 1;
/// Stage of an ordinary replica.
pub(super) const ORDINARY: u8 = 2;

/// An open replica, as all threads but its own see it.
pub(crate) struct Replica {
    pub(crate) table: TableId,
    pub(crate) incarnation: Option<TableIncarnation>,
    pub(crate) region: RegionId,
    pub(crate) number: ReplicaNumber,
    pub(super) context: Arc<Context>,
    pub(super) shared: ReplicaShared,
    pub(super) order_slot: Mutex<OrderSlot>,
    pub(super) changed: Condvar,
    pub(super) status: Mutex<PublishedStatus>,
    pub(super) served: Mutex<Option<Arc<ServedRegion>>>,
    pub(super) mismatches: Arc<Mismatches>,
    pub(super) stage: AtomicU8,
    /// Split of this region in progress.
    pub(super) split: Mutex<Option<Arc<Split>>>,
    /// Writer of the log's end.
    pub(super) log_end: Mutex<LogEnd>,
}

impl Replica {
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

    pub(super) fn stage(&self) -> u8 {
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

    pub(super) fn set_served(&self, served: Option<Arc<ServedRegion>>) {
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
    pub(super) fn mismatches(&self) -> &Arc<Mismatches> {
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
