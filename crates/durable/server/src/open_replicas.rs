//! The replicas that are open, and those that are prepared for a split (RS9).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;

use farleaf_cluster::agent::host::{Closing, RegionOrder, Source};
use farleaf_cluster::ids::RegionId;
use farleaf_cluster::lease::LeaseGuard;
use farleaf_cluster::record::region::Key;

use crate::context::Context;
use crate::peer::{PeerReply, ReplicaName};
use crate::replica::{Ending, Replica, Wanted};

/// The replicas that are open, for whoever answers requests; those of regions that are being split
/// off among them (RS9).
pub(crate) struct OpenReplicas {
    context: Arc<Context>,
    by_region: RwLock<BTreeMap<RegionId, Arc<Replica>>>,
    prepared: Mutex<Prepared>,
}

/// Replicas of regions that are not there yet, and the life in which they were made.
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

    /// What is prepared from now on is done under this guard.
    pub(crate) fn begin_life(&self, guard: LeaseGuard) {
        self.prepared().guard = Some(guard);
    }

    /// A life has ended: what was prepared in it ends, too. The threads that do it.
    pub(crate) fn end_life(&self) -> Vec<JoinHandle<()>> {
        let prepared = std::mem::take(&mut *self.prepared());
        let ended = prepared.by_region.into_iter();
        let ended = ended.map(|(region, (replica, thread))| {
            self.set(region, None);
            replica.end(Ending::LifeOver);
            thread
        });
        ended.collect()
    }

    /// What was prepared of a region, which is a replica as others are from now on.
    pub(crate) fn take_prepared(&self, region: RegionId) -> Option<(Arc<Replica>, JoinHandle<()>)> {
        self.prepared().by_region.remove(&region)
    }

    fn prepared(&self) -> MutexGuard<'_, Prepared> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// RS9: opens a replica of a region that is being split off; if there is one, it stays.
    pub(crate) fn prepare(&self, wanted: Wanted, parent: &Replica) -> Result<Arc<Replica>, String> {
        let child = wanted.order.region;
        let mut prepared = self.prepared();
        if let Some((replica, _)) = prepared.by_region.get(&child) {
            return Ok(Arc::clone(replica));
        }
        let guard = prepared.guard.clone().ok_or("no life has begun")?;
        let made = Replica::prepare(&self.context, (guard, parent.stripes()), wanted);
        let (replica, thread) = made.map_err(|error| error.to_string())?;
        self.set(child, Some(Arc::clone(&replica)));
        let kept = (Arc::clone(&replica), thread);
        prepared.by_region.insert(child, kept);
        Ok(replica)
    }

    /// RS9: the backup of a region that is being split off, asked for by its primary.
    pub(crate) fn prepare_backup(
        &self,
        of: ReplicaName,
        (child, from, to): (RegionId, Key, Option<Key>),
    ) -> PeerReply {
        let parent = self.get(of.region).filter(|it| it.number == of.replica);
        let Some(parent) = parent else {
            return PeerReply::NotYet("this server does not have the replica".to_owned());
        };
        if parent.shown().ordered != Some(of.epoch) || parent.served().is_some() {
            return PeerReply::Refused("it is no backup at this epoch".to_owned());
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
        // It has nothing yet.
        let source = Source::Primary(of.primary);
        match self.prepare(Wanted::backup(&order, (of.primary, source)), &parent) {
            Ok(_) => PeerReply::Prepared,
            Err(how) => PeerReply::Refused(how),
        }
    }

    /// RS9: what was prepared for a region that never came into being goes.
    /// The thread that does it, if there was anything.
    pub(crate) fn abandon(&self, child: RegionId) -> Option<JoinHandle<()>> {
        let prepared = self.prepared().by_region.remove(&child);
        let (replica, thread) = prepared?;
        self.unset(child, &replica);
        replica.end(Ending::Closed(Closing::Removed));
        Some(thread)
    }

    pub(crate) fn get(&self, region: RegionId) -> Option<Arc<Replica>> {
        let by_region = self.by_region.read();
        let by_region = by_region.unwrap_or_else(PoisonError::into_inner);
        by_region.get(&region).cloned()
    }

    /// It is not there any more; another one of the region may be.
    fn unset(&self, region: RegionId, replica: &Arc<Replica>) {
        let by_region = self.by_region.write();
        let mut by_region = by_region.unwrap_or_else(PoisonError::into_inner);
        if by_region
            .get(&region)
            .is_some_and(|it| Arc::ptr_eq(it, replica))
        {
            by_region.remove(&region);
        }
    }

    /// All that are open, and those that are prepared.
    pub(crate) fn all(&self) -> Vec<Arc<Replica>> {
        let by_region = self.by_region.read();
        let by_region = by_region.unwrap_or_else(PoisonError::into_inner);
        by_region.values().cloned().collect()
    }

    /// From now on this is what is open of a region, if anything is.
    pub(crate) fn set(&self, region: RegionId, replica: Option<Arc<Replica>>) {
        let by_region = self.by_region.write();
        let mut by_region = by_region.unwrap_or_else(PoisonError::into_inner);
        match replica {
            Some(replica) => by_region.insert(region, replica),
            None => by_region.remove(&region),
        };
    }
}
