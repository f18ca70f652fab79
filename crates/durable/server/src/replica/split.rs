//! A region that is being split off another one (RS9): its engine is filled here, and its backups
//! from it, while the other region is served; all writes go to both.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farleaf_cluster::agent::host::BackupOrder;
use farleaf_cluster::ids::{Epoch, RegionId, ReplicaNumber};
use farleaf_cluster::record::region::Key;
use farleaf_lsm::Durability;
use farleaf_lsm::engine::Direction;

use super::Replica;
use crate::context::Context;
use crate::error::ServerError;
use crate::peer::{self, PeerReply, PeerRequest, ReplicaName};
use crate::served::{Served, SplitTarget, Standing};

/// A split that could not be prepared is begun again so long later.
const AGAIN_AFTER: Duration = Duration::from_secs(3);
const REST: Duration = Duration::from_millis(5);
/// For how long the new region is waited for; longer than its backups may take to fail.
const OPEN_PATIENCE: Duration = Duration::from_secs(20);

/// A split that is being prepared, or is.
pub(crate) struct Split {
    pub(crate) child: RegionId,
    at: Key,
    /// At which it was ordered.
    epoch: Epoch,
    /// The new region's replica here, which nobody is served by yet.
    replica: Arc<Replica>,
    backups: Vec<BackupOrder>,
    is_over: AtomicBool,
    prepared: Mutex<Option<Vec<ReplicaNumber>>>,
    /// When it could not be prepared: it is begun again a while later.
    failed_at: Mutex<Option<Instant>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Split {
    /// Begins to prepare it: of the region that is served, from a key on.
    pub(crate) fn start(
        (parent, context): (&Arc<Replica>, &Arc<Context>),
        (child, at, epoch): (RegionId, Key, Epoch),
        (replica, backups): (Arc<Replica>, Vec<BackupOrder>),
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
                tracing::warn!("{child} is not split off: {how}");
                let mut failed_at = of.failed_at.lock().unwrap_or_else(PoisonError::into_inner);
                *failed_at = Some(Instant::now());
            }
        });
        *split.thread() = Some(spawned.map_err(|source| ServerError::NoResource {
            what: "thread",
            source,
        })?);
        Ok(split)
    }

    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The backups that have it, once it is prepared: those, and no others, from then on.
    pub(crate) fn prepared(&self) -> Option<Vec<ReplicaNumber>> {
        let prepared = self.prepared.lock();
        prepared.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells the servers of backups that it never came into being. What cannot be reached keeps it
    /// until its life ends.
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
                tracing::debug!("{} keeps what it has prepared: {how}", backup.server);
            }
        }
    }

    /// Whether it could not be prepared, a while ago, and where it is to be.
    pub(crate) fn is_to_be_begun_again(&self) -> bool {
        let failed_at = self
            .failed_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_wanted = !self.is_over.load(Ordering::Acquire);
        is_wanted && failed_at.is_some_and(|at| at.elapsed() > AGAIN_AFTER)
    }

    /// From which key on.
    pub(crate) fn at(&self) -> &Key {
        &self.at
    }

    /// It is not wanted any more, or is a region of its own: its thread ends soon.
    pub(crate) fn give_up(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// The same, and waits for it.
    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that prepares {} has panicked", self.child);
        }
    }

    fn check(&self, parent: &Served) -> Result<(), String> {
        if self.is_over.load(Ordering::Acquire) || parent.standing() == Standing::Stopped {
            return Err("it is not wanted any more".to_owned());
        }
        Ok(())
    }

    /// The region that is split, when it is open at the epoch at which that was ordered.
    fn wait_parent(&self, parent: &Replica) -> Result<Arc<Served>, String> {
        while !self.is_over.load(Ordering::Acquire) {
            let served = parent.served().filter(|it| it.epoch() == self.epoch);
            if let Some(served) = served.filter(|it| it.standing() == Standing::Open) {
                return Ok(served);
            }
            thread::sleep(REST);
        }
        Err("it is not wanted any more".to_owned())
    }

    fn prepare(&self, parent: &Replica, context: &Context) -> Result<(), String> {
        let parent = &self.wait_parent(parent)?;
        self.prepare_backups(parent, context);
        let child = self.wait_opened(parent)?;
        parent.set_split(Some(SplitTarget {
            at: self.at.clone(),
            child: Arc::clone(&child),
        }));
        let done = self.fill(parent, &child);
        if done.is_err() {
            parent.set_split(None);
        }
        done
    }

    /// Has the servers of the parent's backups open the child's, all at once.
    fn prepare_backups(&self, parent: &Served, context: &Context) {
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
                    // It will not be filled, and the region begins without it.
                    tracing::warn!("{server} does not prepare a split: {how}");
                });
            }
        });
    }

    fn wait_opened(&self, parent: &Served) -> Result<Arc<Served>, String> {
        let since = Instant::now();
        loop {
            self.check(parent)?;
            if let Some(served) = self.replica.served() {
                return Ok(served);
            }
            let shown = self.replica.shown();
            if let Some(failure) = shown.failure {
                return Err(failure.how);
            }
            if since.elapsed() > OPEN_PATIENCE {
                return Err("its engine is not opened".to_owned());
            }
            thread::sleep(REST);
        }
    }

    /// Copies what there was before writes went to both. A key that has been written since is
    /// copied as it is then: under its stripe, so the two never differ in their order.
    fn fill(&self, parent: &Served, child: &Served) -> Result<(), String> {
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
        // RH6. A backup that is lost leaves, and then this goes on without it.
        let end = child.primary.log_end();
        while let Err(error) = child.primary.wait_for(end, Durability::Sync) {
            self.check(parent)?;
            tracing::debug!("{} is not durable yet: {error}", self.child);
            thread::sleep(REST);
        }
        let in_sync = self.freeze(parent)?;
        *self.prepared.lock().unwrap_or_else(PoisonError::into_inner) = Some(in_sync);
        Ok(())
    }

    /// Waits until each backup has everything, or has failed.
    fn wait_backups(&self, parent: &Served) -> Result<(), String> {
        loop {
            self.check(parent)?;
            let shown = self.replica.shown();
            if let Some(failure) = shown.failure {
                return Err(failure.how);
            }
            if shown.primary.is_some() && shown.filling_count == 0 {
                return Ok(());
            }
            thread::sleep(REST);
        }
    }

    /// RS9: from now on the backups that have everything are needed, whatever becomes of them.
    fn freeze(&self, parent: &Served) -> Result<Vec<ReplicaNumber>, String> {
        self.replica.freeze();
        loop {
            self.check(parent)?;
            let shown = self.replica.shown();
            if let Some(failure) = shown.failure {
                return Err(failure.how);
            }
            if let Some(report) = shown.primary.filter(|_| shown.is_frozen) {
                return Ok(report.in_sync);
            }
            thread::sleep(REST);
        }
    }
}
