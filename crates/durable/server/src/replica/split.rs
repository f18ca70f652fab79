//! A region being split off another one. Its engine is filled here, and its backups from it, while
//! the other region is served; all writes go to both (docs/explanation/persistent-tables.md,
//! *Splits*).

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farleaf_cluster::agent::host::BackupOrder;
use farleaf_cluster::ids::{Epoch, RegionId, ReplicaNumber};
use farleaf_cluster::record::region::Key;
use farleaf_lsm::Durability;
use farleaf_lsm::engine::Direction;

use super::handle::Replica;
use super::order::PublishedStatus;
use crate::context::Context;
use crate::error::ServerError;
use crate::peer::{self, PeerReply, PeerRequest, ReplicaName};
use crate::served::{ServedRegion, ServingState, SplitTarget};
use crate::sync::lock;

/// Time after which a failed split is started again.
const RETRY_AFTER: Duration = Duration::from_secs(3);
const REST: Duration = Duration::from_millis(5);
/// Time to wait for the new region to open; longer than its backups may take to fail.
const OPEN_PATIENCE: Duration = Duration::from_secs(20);

/// A split that is being prepared, or is prepared.
pub(crate) struct Split {
    pub(crate) child: RegionId,
    at: Key,
    /// Epoch of the order.
    epoch: Epoch,
    /// The new region's replica here, which serves nothing yet.
    replica: Arc<Replica>,
    backups: Vec<BackupOrder>,
    is_over: AtomicBool,
    prepared: Mutex<Option<Vec<ReplicaNumber>>>,
    /// Time of the failure; the split is started again later.
    failed_at: Mutex<Option<Instant>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Split {
    /// Begins to prepare a split of the served region, from a key on.
    pub(crate) fn start(
        parent: &Arc<Replica>,
        context: &Arc<Context>,
        child: RegionId,
        at: Key,
        epoch: Epoch,
        replica: Arc<Replica>,
        backups: Vec<BackupOrder>,
    ) -> Result<Arc<Self>, ServerError> {
        let split = Arc::new(Self {
            child,
            at,
            epoch,
            replica,
            backups,
            is_over: AtomicBool::new(false),
            prepared: Mutex::default(),
            failed_at: Mutex::default(),
            thread: Mutex::default(),
        });
        let (of, parent, context) = (split.clone(), Arc::clone(parent), Arc::clone(context));
        let thread = thread::Builder::new().name(format!("split-{}", child.0));
        let spawned = thread.spawn(move || {
            if let Err(how) = of.prepare(&parent, &context) {
                tracing::warn!("cannot split off {child}: {how}");
                let mut failed_at = lock(&of.failed_at);
                *failed_at = Some(Instant::now());
            }
        });
        *lock(&split.thread) = Some(spawned.map_err(|source| ServerError::NoResource {
            what: "thread",
            source,
        })?);
        Ok(split)
    }

    /// Returns the backups that have the new region, once it is prepared; from then on these do not
    /// change.
    pub(crate) fn prepared(&self) -> Option<Vec<ReplicaNumber>> {
        lock(&self.prepared).clone()
    }

    /// Reports to the servers of backups that the region was never created. A server that cannot be
    /// reached keeps its replica until its life ends.
    pub(crate) fn abandon(&self, context: &Context, parent: RegionId) {
        self.end();
        for backup in &self.backups {
            let of = ReplicaName {
                region: parent,
                replica: backup.replica,
                epoch: self.epoch,
                primary: context.server,
            };
            let request = PeerRequest::Abandon {
                of,
                child: self.child,
            };
            if let Err(how) = peer::ask(context, backup.server, &request) {
                tracing::debug!(
                    "{} did not discard the data prepared for a split: {how}",
                    backup.server
                );
            }
        }
    }

    /// Returns whether the split failed some time ago, and is to be started again.
    pub(crate) fn is_retry_due(&self) -> bool {
        let failed_at = lock(&self.failed_at);
        let is_wanted = !self.is_over.load(Ordering::Acquire);
        is_wanted && failed_at.is_some_and(|at| at.elapsed() > RETRY_AFTER)
    }

    /// Returns the first key of the new region.
    pub(crate) fn at(&self) -> &Key {
        &self.at
    }

    /// Ends the thread soon: the split is no longer ordered, or the region is an ordinary one.
    pub(crate) fn give_up(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Ends the thread and waits for it.
    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = lock(&self.thread).take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that prepares {} panicked", self.child);
        }
    }

    fn check(&self, parent: &ServedRegion) -> Result<(), String> {
        if self.is_over.load(Ordering::Acquire) || parent.serving_state() == ServingState::Stopped {
            return Err("the split was canceled".to_owned());
        }
        Ok(())
    }

    /// Waits until the region to split is open at the epoch of the order.
    fn wait_parent(&self, parent: &Replica) -> Result<Arc<ServedRegion>, String> {
        while !self.is_over.load(Ordering::Acquire) {
            let served = parent.served().filter(|it| it.epoch() == self.epoch);
            if let Some(served) = served.filter(|it| it.serving_state() == ServingState::Open) {
                return Ok(served);
            }
            thread::sleep(REST);
        }
        Err("the split was canceled".to_owned())
    }

    fn prepare(&self, parent: &Replica, context: &Context) -> Result<(), String> {
        let parent = &self.wait_parent(parent)?;
        self.prepare_backups(parent, context);
        let child = self.wait_opened(parent)?;
        parent.set_split(Some(SplitTarget {
            at: self.at.clone(),
            child: Arc::clone(&child),
        }));
        let filled = self.fill(parent, &child);
        if filled.is_err() {
            parent.set_split(None);
        }
        filled
    }

    /// Makes the servers of the region's backups open the new region's, in parallel.
    fn prepare_backups(&self, parent: &ServedRegion, context: &Context) {
        thread::scope(|scope| {
            for backup in &self.backups {
                let of = ReplicaName {
                    region: parent.order.region,
                    replica: backup.replica,
                    epoch: parent.epoch(),
                    primary: context.server,
                };
                let request = PeerRequest::Prepare {
                    of,
                    child: self.child,
                    from: self.at.clone(),
                    to: parent.order.to.clone(),
                };
                let server = backup.server;
                scope.spawn(move || {
                    let how = match peer::ask(context, server, &request) {
                        Ok((PeerReply::Prepared, _)) => return,
                        Ok((other, _)) => other.to_string(),
                        Err(how) => how,
                    };
                    // The backup will not be filled, and the region begins without it.
                    tracing::warn!("{server} did not prepare a split: {how}");
                });
            }
        });
    }

    fn wait_opened(&self, parent: &ServedRegion) -> Result<Arc<ServedRegion>, String> {
        let since = Instant::now();
        loop {
            self.check(parent)?;
            if let Some(served) = self.replica.served() {
                return Ok(served);
            }
            let status = self.replica.status();
            if let Some(failure) = status.failure {
                return Err(failure.how);
            }
            if since.elapsed() > OPEN_PATIENCE {
                return Err("timed out opening the engine of the new region".to_owned());
            }
            thread::sleep(REST);
        }
    }

    /// Copies the keys of a snapshot from before writes went to both. Each key is copied with its
    /// newest value, under its stripe, so writes of a key have the same order in both regions.
    fn fill(&self, parent: &ServedRegion, child: &ServedRegion) -> Result<(), String> {
        let text = |error: farleaf_lsm::LsmError| error.to_string();
        let engine = parent.primary.engine();
        let snapshot = engine.snapshot();
        let lower = Bound::Included(self.at.0.as_slice());
        let upper = match &parent.order.to {
            Some(to) => Bound::Excluded(to.0.as_slice()),
            None => Bound::Unbounded,
        };
        let keys = snapshot.scan((lower, upper), Direction::Ascending);
        for record in keys.map_err(text)? {
            self.check(parent)?;
            let (key, _) = record.map_err(text)?;
            let _stripe = parent.stripe(&key);
            let value = engine.get(&key).map_err(text)?;
            let appended = child.primary.append(&key, value.as_deref());
            appended.map_err(|error| error.to_string())?;
        }
        self.wait_backups(parent)?;
        // Durable writes must be on every member's disk. A lost backup is removed, and then this
        // continues without it.
        let end = child.primary.log_end();
        while let Err(error) = child.primary.wait_for(end, Durability::Sync) {
            self.check(parent)?;
            tracing::debug!("{} is not durable yet: {error}", self.child);
            thread::sleep(REST);
        }
        let in_sync = self.freeze(parent)?;
        *lock(&self.prepared) = Some(in_sync);
        Ok(())
    }

    /// Waits until each backup has everything, or has failed.
    fn wait_backups(&self, parent: &ServedRegion) -> Result<(), String> {
        let is_filled =
            |status: PublishedStatus| status.primary.is_some() && status.filling_count == 0;
        self.poll_status(parent, |status| is_filled(status).then_some(()))
    }

    /// Freezes the complete backups: they are needed from now on, even if they fail.
    fn freeze(&self, parent: &ServedRegion) -> Result<Vec<ReplicaNumber>, String> {
        self.replica.freeze();
        let frozen = |status: PublishedStatus| status.primary.filter(|_| status.is_frozen);
        let report = self.poll_status(parent, frozen)?;
        Ok(report.in_sync)
    }

    /// Polls the status of the new region's replica until `result` returns a value.
    fn poll_status<T>(
        &self,
        parent: &ServedRegion,
        result: impl Fn(PublishedStatus) -> Option<T>,
    ) -> Result<T, String> {
        loop {
            self.check(parent)?;
            let mut status = self.replica.status();
            if let Some(failure) = status.failure.take() {
                return Err(failure.how);
            }
            if let Some(result) = result(status) {
                return Ok(result);
            }
            thread::sleep(REST);
        }
    }
}
