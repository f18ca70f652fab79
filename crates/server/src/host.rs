//! From the agent's orders to replicas.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farleaf_cluster::agent::host::{
    BackupOrder, Closing, HostError, RegionHost, RegionOrder, ReplicaStatus, Source,
};
use farleaf_cluster::ids::{Epoch, RegionId, ReplicaNumber, ServerId};
use farleaf_cluster::lease::LeaseGuard;
use farleaf_cluster::record::CopyReport;
use farleaf_cluster::record::region::Key;

use crate::context::Context;
use crate::place::{ReplicaPlace, copies};
use crate::replica::{Ending, Replica, Role, Wanted};

/// The replicas that are open, for whoever answers requests.
#[derive(Default)]
pub(crate) struct OpenReplicas {
    by_region: RwLock<BTreeMap<RegionId, Arc<Replica>>>,
}

impl OpenReplicas {
    pub(crate) fn get(&self, region: RegionId) -> Option<Arc<Replica>> {
        let by_region = self.by_region.read();
        let by_region = by_region.unwrap_or_else(PoisonError::into_inner);
        by_region.get(&region).cloned()
    }

    fn set(&self, region: RegionId, replica: Option<Arc<Replica>>) {
        let by_region = self.by_region.write();
        let mut by_region = by_region.unwrap_or_else(PoisonError::into_inner);
        match replica {
            Some(replica) => by_region.insert(region, replica),
            None => by_region.remove(&region),
        };
    }
}

/// What the host has of a replica.
struct Open {
    replica: Arc<Replica>,
    thread: JoinHandle<()>,
    rate: Rate,
}

/// How long a region that has failed here is let alone: at first, and at the most. Each failure
/// doubles it, until none has come for long.
const LET_ALONE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(8));
const FORGIVEN: Duration = Duration::from_mins(1);

/// When a region has failed here, and for how long it is let alone.
struct Failed {
    at: Instant,
    rest: Duration,
}

/// How many operations are executed in a second.
struct Rate {
    since: Instant,
    operation_count: u64,
    per_second: u64,
}

/// The host of a region server.
pub(crate) struct Host {
    context: Arc<Context>,
    replicas: Arc<OpenReplicas>,
    guard: Option<LeaseGuard>,
    open: BTreeMap<RegionId, Open>,
    /// Threads of replicas that are being closed.
    closing: Vec<JoinHandle<()>>,
    failed: BTreeMap<RegionId, Failed>,
}

impl Host {
    pub(crate) fn new(context: Arc<Context>, replicas: Arc<OpenReplicas>) -> Self {
        Self {
            context,
            replicas,
            guard: None,
            open: BTreeMap::new(),
            closing: Vec::new(),
            failed: BTreeMap::new(),
        }
    }

    /// A disk that fails is not tried all the time: each time the coordinator writes, and the
    /// primary reads.
    fn note_broken(&mut self, region: RegionId) {
        let at = Instant::now();
        let before = self.failed.get(&region);
        let before = before.filter(|it| at - it.at < FORGIVEN);
        let rest = before.map_or(LET_ALONE.0, |it| (it.rest * 2).min(LET_ALONE.1));
        self.failed.insert(region, Failed { at, rest });
    }

    fn open(&mut self, wanted: Wanted) -> Result<(), HostError> {
        let guard = self.guard.clone();
        let guard = guard.ok_or_else(|| HostError("no life has begun".to_owned()))?;
        let region = wanted.order.region;
        // Who is to be primary has all that there is, and nobody else can do it.
        let is_backup = matches!(wanted.role, Role::Backup { .. });
        let failed = self.failed.get(&region).filter(|_| is_backup);
        let begins_at = failed.map_or_else(Instant::now, |it| it.at + it.rest);
        let opened = Replica::open(&self.context, guard, (wanted, begins_at));
        let (replica, thread) = opened.map_err(|error| HostError(error.to_string()))?;
        self.replicas.set(region, Some(Arc::clone(&replica)));
        let rate = Rate {
            since: Instant::now(),
            operation_count: 0,
            per_second: 0,
        };
        self.open.insert(
            region,
            Open {
                replica,
                thread,
                rate,
            },
        );
        Ok(())
    }

    fn change(&mut self, wanted: Wanted) -> Result<(), HostError> {
        match self.open.get(&wanted.order.region) {
            Some(open) if open.replica.number == wanted.order.replica => {
                open.replica.order(wanted);
                Ok(())
            }
            _ => Err(HostError("it is not open".to_owned())),
        }
    }

    fn end(&mut self, region: RegionId, ending: Ending) {
        self.replicas.set(region, None);
        if let Some(open) = self.open.remove(&region) {
            open.replica.end(ending);
            self.closing.push(open.thread);
        }
        self.closing.retain(|thread| !thread.is_finished());
    }
}

fn primary(order: &RegionOrder, backups: &[BackupOrder], source: Source) -> Wanted {
    Wanted {
        order: order.clone(),
        role: Role::Primary {
            backups: backups.to_vec(),
            source,
        },
    }
}

fn backup(order: &RegionOrder, primary: ServerId) -> Wanted {
    Wanted {
        order: order.clone(),
        role: Role::Backup { primary },
    }
}

impl RegionHost for Host {
    fn begin_life(&mut self, guard: LeaseGuard) {
        self.guard = Some(guard);
    }

    fn end_life(&mut self) {
        let regions: Vec<RegionId> = self.open.keys().copied().collect();
        // All at once: none waits for another one's disk.
        for region in regions {
            self.end(region, Ending::LifeOver);
        }
        for thread in self.closing.drain(..) {
            if thread.join().is_err() {
                tracing::error!("the thread of a replica has panicked");
            }
        }
        self.guard = None;
    }

    fn open_as_primary(
        &mut self,
        order: &RegionOrder,
        backups: &[BackupOrder],
        source: Source,
    ) -> Result<(), HostError> {
        self.open(primary(order, backups, source))
    }

    fn promote(&mut self, order: &RegionOrder, backups: &[BackupOrder]) -> Result<(), HostError> {
        self.change(primary(order, backups, Source::Copy))
    }

    fn set_backups(
        &mut self,
        order: &RegionOrder,
        backups: &[BackupOrder],
    ) -> Result<(), HostError> {
        self.change(primary(order, backups, Source::Copy))
    }

    fn open_as_backup(
        &mut self,
        order: &RegionOrder,
        primary: ServerId,
        _: Source,
    ) -> Result<(), HostError> {
        self.open(backup(order, primary))
    }

    fn follow(&mut self, order: &RegionOrder, primary: ServerId) -> Result<(), HostError> {
        self.change(backup(order, primary))
    }

    fn stop(&mut self, region: RegionId, _: Epoch) -> Result<(), HostError> {
        let open = self.open.get(&region);
        let open = open.ok_or_else(|| HostError("it is not open".to_owned()))?;
        open.replica.stop();
        Ok(())
    }

    fn prepare_split(
        &mut self,
        order: &RegionOrder,
        at: &Key,
        _: RegionId,
    ) -> Result<(), HostError> {
        // It serves on, and never says that it has prepared it: the wish waits.
        tracing::warn!(
            "{} cannot be split at {at}: this server does not split regions yet",
            order.region
        );
        Ok(())
    }

    fn abandon_split(&mut self, _: RegionId) {}

    fn close(&mut self, region: RegionId, replica: ReplicaNumber, why: Closing) {
        let is_same = |open: &Open| open.replica.number == replica;
        if self.open.get(&region).is_some_and(is_same) {
            if why == Closing::Broken {
                self.note_broken(region);
            }
            self.end(region, Ending::Closed(why));
        }
    }

    fn status(&mut self) -> Vec<ReplicaStatus> {
        let open = self.open.iter_mut();
        open.map(|(region, open)| {
            let shown = open.replica.shown();
            let served = open.replica.served();
            let count = served.map_or(0, |it| it.operation_count.load(Ordering::Relaxed));
            ReplicaStatus {
                region: *region,
                replica: open.replica.number,
                // It is open at none until its thread has followed the order.
                epoch: shown.epoch.unwrap_or(Epoch(0)),
                primary: shown.primary,
                failure: shown.failure,
                size_bytes: shown.size_bytes,
                operations_per_second: open.rate.look(count),
                position_bytes: shown.position_bytes,
            }
        })
        .collect()
    }

    fn copies(&mut self) -> Vec<CopyReport> {
        copies(&self.context.regions, &self.context.open_storage)
    }

    fn discard_copy(&mut self, region: RegionId, replica: ReplicaNumber) {
        let open_storage = self.context.open_storage.clone();
        let place = ReplicaPlace::new(&self.context.regions, (region, replica), open_storage);
        if let Err(error) = place.remove() {
            tracing::warn!(%error, "a copy that nobody needs stays on the disk");
        }
    }

    fn capacity_bytes(&self) -> u64 {
        let stat = rustix::fs::statvfs(&self.context.regions);
        stat.map_or(0, |stat| stat.f_blocks.saturating_mul(stat.f_frsize))
    }
}

impl Rate {
    /// The rate of the last second or so.
    fn look(&mut self, operation_count: u64) -> u64 {
        let elapsed = self.since.elapsed();
        if elapsed.as_millis() >= 1000 {
            // A region that is served at another epoch counts anew.
            let done = operation_count.saturating_sub(self.operation_count);
            self.per_second = (done as f64 / elapsed.as_secs_f64()) as u64;
            self.since = Instant::now();
            self.operation_count = operation_count;
        }
        self.per_second
    }
}
