//! Open replicas, and those prepared for a split.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, RwLock};
use std::thread::JoinHandle;

use farleaf_cluster::agent::host::{Closing, RegionOrder, Source};
use farleaf_cluster::ids::RegionId;
use farleaf_cluster::lease::LeaseGuard;
use farleaf_cluster::record::region::Key;

use crate::context::Context;
use crate::peer::{PeerReply, ReplicaName};
use crate::replica::{Ending, Replica, Wanted};
use crate::sync::{lock, read, write};

/// Open replicas for the threads that answer requests, including replicas of regions being split
/// off.
pub(crate) struct OpenReplicas {
    context: Arc<Context>,
    by_region: RwLock<BTreeMap<RegionId, Arc<Replica>>>,
    prepared: Mutex<Prepared>,
}

/// Replicas of regions that do not exist yet, and the life in which they were created.
#[derive(Default)]
struct Prepared {
    guard: Option<LeaseGuard>,
    by_region: BTreeMap<RegionId, (Arc<Replica>, JoinHandle<()>)>,
}

impl OpenReplicas {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            by_region: RwLock::default(),
            prepared: Mutex::default(),
        }
    }

    /// Begins a life: replicas are prepared under this guard from now on.
    pub(crate) fn begin_life(&self, guard: LeaseGuard) {
        lock(&self.prepared).guard = Some(guard);
    }

    /// Ends a life and closes what was prepared in it. Returns the threads that do so.
    pub(crate) fn end_life(&self) -> Vec<JoinHandle<()>> {
        let prepared = std::mem::take(&mut *lock(&self.prepared));
        let ended = prepared.by_region.into_iter();
        let ended = ended.map(|(region, (replica, thread))| {
            self.set(region, None);
            replica.end(Ending::LifeOver);
            thread
        });
        ended.collect()
    }

    /// Returns the replica prepared for a region, which is an ordinary one from now on.
    pub(crate) fn take_prepared(&self, region: RegionId) -> Option<(Arc<Replica>, JoinHandle<()>)> {
        lock(&self.prepared).by_region.remove(&region)
    }

    /// Opens a replica of a region being split off, or returns the existing one.
    pub(crate) fn prepare(&self, wanted: Wanted, parent: &Replica) -> Result<Arc<Replica>, String> {
        let child = wanted.order.region;
        let mut prepared = lock(&self.prepared);
        if let Some((replica, _)) = prepared.by_region.get(&child) {
            return Ok(Arc::clone(replica));
        }
        let guard = prepared.guard.clone().ok_or("this server has no lease")?;
        let opened = Replica::prepare(&self.context, guard, parent.stripes(), wanted);
        let (replica, thread) = opened.map_err(|error| error.to_string())?;
        self.set(child, Some(Arc::clone(&replica)));
        let entry = (Arc::clone(&replica), thread);
        prepared.by_region.insert(child, entry);
        Ok(replica)
    }

    /// Opens a backup of a region being split off, requested by its primary.
    pub(crate) fn prepare_backup(
        &self,
        of: ReplicaName,
        child: RegionId,
        from: Key,
        to: Option<Key>,
    ) -> PeerReply {
        let parent = self.get(of.region).filter(|it| it.number == of.replica);
        let Some(parent) = parent else {
            return PeerReply::NotYet("this server does not have the replica".to_owned());
        };
        if parent.status().ordered != Some(of.epoch) || parent.served().is_some() {
            return PeerReply::Refused("the replica is not a backup at this epoch".to_owned());
        }
        let order = RegionOrder {
            table: parent.table,
            incarnation: parent.incarnation,
            region: child,
            from,
            to,
            epoch: of.epoch.next(),
            replica: of.replica,
            is_unproven: false,
        };
        // The replica has no data yet.
        let source = Source::Primary(of.primary);
        match self.prepare(Wanted::backup(&order, of.primary, source), &parent) {
            Ok(_) => PeerReply::Prepared,
            Err(how) => PeerReply::Refused(how),
        }
    }

    /// Removes what was prepared for a region that was never created. Returns the thread that does
    /// so, if there was anything.
    pub(crate) fn abandon(&self, child: RegionId) -> Option<JoinHandle<()>> {
        let prepared = lock(&self.prepared).by_region.remove(&child);
        let (replica, thread) = prepared?;
        self.unset(child, &replica);
        replica.end(Ending::Closed(Closing::Removed));
        Some(thread)
    }

    pub(crate) fn get(&self, region: RegionId) -> Option<Arc<Replica>> {
        let by_region = read(&self.by_region);
        by_region.get(&region).cloned()
    }

    /// Removes a replica from the open ones, unless another one of the region has replaced it.
    fn unset(&self, region: RegionId, replica: &Arc<Replica>) {
        let mut by_region = write(&self.by_region);
        if by_region
            .get(&region)
            .is_some_and(|it| Arc::ptr_eq(it, replica))
        {
            by_region.remove(&region);
        }
    }

    /// Returns all open and prepared replicas.
    pub(crate) fn all(&self) -> Vec<Arc<Replica>> {
        let by_region = read(&self.by_region);
        by_region.values().cloned().collect()
    }

    /// Sets or removes the open replica of a region.
    pub(crate) fn set(&self, region: RegionId, replica: Option<Arc<Replica>>) {
        let mut by_region = write(&self.by_region);
        match replica {
            Some(replica) => by_region.insert(region, replica),
            None => by_region.remove(&region),
        };
    }
}
