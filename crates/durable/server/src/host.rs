//! Turns the agent's orders into replicas.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Instant;

use farleaf_cluster::agent::host::{
    BackupOrder, Closing, DiskCopies, HostError, RegionHost, RegionOrder, ReplicaStatus, Source,
};
use farleaf_cluster::ids::{ClusterId, Epoch, RegionId, ReplicaNumber, ServerId, TableIncarnation};
use farleaf_cluster::lease::LeaseGuard;
use farleaf_cluster::record::region::Key;
use farleaf_cluster::record::{CopyReport, Orphan, SpaceState};

use crate::broken::BrokenReplicas;
use crate::context::Context;
use crate::open_replicas::OpenReplicas;
use crate::open_storage::DiskSpace;
use crate::orphans::Orphans;
use crate::place::copies;
use crate::replica::{Ending, Replica, Role, Split, Wanted};
use crate::served::{DRAIN_REST, DRAIN_TIME_MAX};

/// An open replica.
struct HostEntry {
    replica: Arc<Replica>,
    thread: JoinHandle<()>,
    rate: Rate,
    /// Backups of a primary.
    backups: Vec<BackupOrder>,
}

/// A thread that holds a replica's directory open until it ends. The replica is `None` if it was
/// prepared for a split: nothing waits for its directory.
type ClosingThread = (Option<(RegionId, ReplicaNumber)>, JoinHandle<()>);

/// Unit of reported free space, which changes all the time.
const FREE_UNIT_BYTES: u64 = 1 << 20;

/// Operations per second.
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
    open: BTreeMap<RegionId, HostEntry>,
    /// Threads of replicas that are being closed, or whose directories are being removed.
    closing: Vec<ClosingThread>,
    broken: BrokenReplicas,
    /// Files moved aside, as listed last.
    orphans: Orphans,
    /// Splits to begin again, by region: the order, the key, and the thread of the first attempt
    /// until it ends.
    again: BTreeMap<RegionId, (RegionOrder, Key, Option<JoinHandle<()>>)>,
}

impl Host {
    pub(crate) fn new(context: Arc<Context>, replicas: Arc<OpenReplicas>) -> Self {
        Self {
            context,
            replicas,
            guard: None,
            open: BTreeMap::new(),
            closing: Vec::new(),
            broken: BrokenReplicas::default(),
            orphans: Orphans::default(),
            again: BTreeMap::new(),
        }
    }

    /// Adopts the new identifier of the cluster; nothing is open yet.
    pub(crate) fn adopt_cluster(&self, cluster: ClusterId) {
        self.context.adopt(cluster);
    }

    fn open(&mut self, wanted: Wanted) -> Result<(), HostError> {
        let guard = self.guard.clone();
        let guard = guard.ok_or_else(|| HostError("this server has no lease".to_owned()))?;
        let region = wanted.order.region;
        // A future primary does not wait: it has everything, and no other replica can take its
        // place.
        let is_backup = matches!(wanted.role, Role::Backup { .. });
        let backoff_until = self.broken.backoff_until(region).filter(|_| is_backup);
        let begins_at = backoff_until.unwrap_or_else(Instant::now);
        self.broken.forget_copies(region);
        let opened = Replica::open(&self.context, guard, wanted, begins_at);
        let (replica, thread) = opened.map_err(|error| HostError(error.to_string()))?;
        self.replicas.set(region, Some(Arc::clone(&replica)));
        self.keep(region, replica, thread);
        Ok(())
    }

    fn keep(&mut self, region: RegionId, replica: Arc<Replica>, thread: JoinHandle<()>) {
        let rate = Rate {
            since: Instant::now(),
            operation_count: 0,
            per_second: 0,
        };
        let open = HostEntry {
            replica,
            thread,
            rate,
            backups: Vec::new(),
        };
        self.open.insert(region, open);
    }

    /// Makes the replica prepared by a split an ordinary one.
    fn adopt(&mut self, wanted: Wanted) -> Result<(), HostError> {
        let region = wanted.order.region;
        let prepared = self.replicas.take_prepared(region);
        let (replica, thread) = prepared
            .filter(|(replica, _)| replica.number == wanted.order.replica)
            .ok_or_else(|| HostError("the region was not prepared here".to_owned()))?;
        replica.become_ordinary(wanted);
        self.keep(region, replica, thread);
        Ok(())
    }

    /// Records the backups of a primary.
    fn note_backups(&mut self, region: RegionId, backups: &[BackupOrder]) {
        if let Some(open) = self.open.get_mut(&region) {
            open.backups = backups.to_vec();
        }
    }

    fn change(&mut self, wanted: Wanted) -> Result<(), HostError> {
        match self.open.get(&wanted.order.region) {
            Some(open) if open.replica.number == wanted.order.replica => {
                open.replica.order(wanted);
                Ok(())
            }
            _ => Err(HostError("the region is not open".to_owned())),
        }
    }

    /// Begins failed splits again, when the first attempt's thread has ended and as long as the
    /// region is at the epoch of the order. Backups keep what they have prepared, and it is filled
    /// again.
    fn retry_splits(&mut self) {
        let mut again = Vec::new();
        for open in self.open.values() {
            let Some(served) = open.replica.served() else {
                continue;
            };
            let mut split = open.replica.split();
            if let Some(failed) = split.take_if(|split| split.is_retry_due()) {
                failed.give_up();
                again.push((served.order.clone(), failed.at().clone(), failed.child));
            }
        }
        for (order, at, child) in again {
            let ending = self.replicas.abandon(child);
            self.again.insert(child, (order, at, ending));
        }
        let is_gone = |ending: &Option<JoinHandle<()>>| {
            let thread = ending.as_ref();
            thread.is_none_or(JoinHandle::is_finished)
        };
        let due = self
            .again
            .extract_if(.., |_, (_, _, ending)| is_gone(ending));
        let due: Vec<_> = due.collect();
        for (child, (order, at, _)) in due {
            if let Err(HostError(how)) = self.prepare_split(&order, &at, child) {
                tracing::warn!("cannot retry the split into {child}: {how}");
            }
        }
    }

    /// Ends a split: the new region has its own record.
    fn end_split(&mut self, parent: RegionId) {
        let open = self.open.get(&parent);
        if let Some(split) = open.and_then(|open| open.replica.split().take()) {
            split.give_up();
        }
    }

    fn disk_space(&self) -> std::io::Result<DiskSpace> {
        let Context {
            options, regions, ..
        } = &*self.context;
        options.storage.disk_space(regions)
    }

    fn end(&mut self, region: RegionId, ending: Ending) {
        self.replicas.set(region, None);
        if let Some(open) = self.open.remove(&region) {
            open.replica.end(ending);
            let id = (region, open.replica.number);
            self.closing.push((Some(id), open.thread));
            // The thread may wait for other servers; this thread does not wait for it.
            if let Some(split) = open.replica.split().take() {
                split.give_up();
            }
        }
        self.closing.retain(|(_, thread)| !thread.is_finished());
    }
}

impl RegionHost for Host {
    fn begin_life(&mut self, guard: LeaseGuard) {
        self.replicas.begin_life(guard.clone());
        self.guard = Some(guard);
    }

    fn end_life(&mut self) {
        self.again.clear();
        self.broken.forget_all_copies();
        let prepared = self.replicas.end_life().into_iter();
        self.closing.extend(prepared.map(|thread| (None, thread)));
        let regions: Vec<RegionId> = self.open.keys().copied().collect();
        // All at once: none waits for another one's operations or disk.
        self.open
            .values()
            .for_each(|open| open.replica.begin_stop());
        let since = Instant::now();
        while self
            .open
            .values()
            .any(|open| open.replica.has_running_operations())
            && since.elapsed() < DRAIN_TIME_MAX
        {
            std::thread::sleep(DRAIN_REST);
        }
        for region in regions {
            self.end(region, Ending::LifeOver);
        }
        for (_, thread) in self.closing.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a replica thread panicked");
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
        let wanted = Wanted::primary(order, backups, source);
        match source {
            Source::Split(parent) => {
                self.adopt(wanted)?;
                self.end_split(parent);
            }
            _ => self.open(wanted)?,
        }
        self.note_backups(order.region, backups);
        Ok(())
    }

    fn promote(&mut self, order: &RegionOrder, backups: &[BackupOrder]) -> Result<(), HostError> {
        self.change(Wanted::primary(order, backups, Source::Copy))?;
        self.note_backups(order.region, backups);
        Ok(())
    }

    fn set_backups(
        &mut self,
        order: &RegionOrder,
        backups: &[BackupOrder],
    ) -> Result<(), HostError> {
        self.promote(order, backups)
    }

    fn open_as_backup(
        &mut self,
        order: &RegionOrder,
        primary: ServerId,
        source: Source,
    ) -> Result<(), HostError> {
        let wanted = Wanted::backup(order, primary, source);
        match source {
            Source::Split(_) => self.adopt(wanted),
            _ => self.open(wanted),
        }
    }

    fn follow(&mut self, order: &RegionOrder, primary: ServerId) -> Result<(), HostError> {
        let wanted = Wanted::backup(order, primary, Source::Primary(primary));
        self.change(wanted)
    }

    fn stop(&mut self, region: RegionId, _: Epoch) -> Result<(), HostError> {
        let open = self.open.get(&region);
        let open = open.ok_or_else(|| HostError("the region is not open".to_owned()))?;
        open.replica.stop();
        Ok(())
    }

    fn prepare_split(
        &mut self,
        order: &RegionOrder,
        at: &Key,
        child: RegionId,
    ) -> Result<(), HostError> {
        let open = self.open.get(&order.region);
        let open = open.ok_or_else(|| HostError("the region is not open".to_owned()))?;
        let mut split = open.replica.split();
        if split.as_ref().is_some_and(|split| split.child == child) {
            return Ok(());
        }
        // Only these may be members of the new region from the start.
        let in_sync = open.backups.iter().filter(|backup| backup.in_sync);
        let backups: Vec<BackupOrder> = in_sync
            .map(|backup| BackupOrder {
                in_sync: false,
                ..*backup
            })
            .collect();
        let of_child = RegionOrder {
            region: child,
            from: at.clone(),
            epoch: order.epoch.next(),
            ..order.clone()
        };
        let wanted = Wanted::primary(&of_child, &backups, Source::Empty);
        let replica = self.replicas.prepare(wanted, &open.replica);
        let replica = replica.map_err(HostError)?;
        let started = Split::start(
            &open.replica,
            &self.context,
            child,
            at.clone(),
            order.epoch,
            replica,
            backups,
        );
        *split = Some(started.map_err(|error| HostError(error.to_string()))?);
        Ok(())
    }

    fn abandon_split(&mut self, child: RegionId) {
        self.again.remove(&child);
        for (region, open) in &self.open {
            let mut split = open.replica.split();
            if let Some(split) = split.take_if(|split| split.child == child) {
                if let Some(served) = open.replica.served() {
                    served.set_split(None);
                }
                // This thread never waits for other servers.
                let (context, region) = (Arc::clone(&self.context), *region);
                let thread = std::thread::Builder::new().name(format!("abandon-{}", child.0));
                if let Err(error) = thread.spawn(move || split.abandon(&context, region)) {
                    tracing::warn!(%error, "cannot start a thread; backups keep a split's data");
                }
            }
        }
        let thread = self.replicas.abandon(child);
        self.closing.extend(thread.map(|thread| (None, thread)));
    }

    fn close(&mut self, region: RegionId, replica: ReplicaNumber, why: Closing) {
        let is_same = |open: &HostEntry| open.replica.number == replica;
        if self.open.get(&region).is_some_and(is_same) {
            if why == Closing::Broken {
                self.broken.note(region);
            }
            self.end(region, Ending::Closed(why));
        }
    }

    fn status(&mut self) -> Vec<ReplicaStatus> {
        self.retry_splits();
        let open = self.open.iter_mut();
        open.map(|(region, open)| {
            let status = open.replica.status();
            let served = open.replica.served();
            let count = served.map_or(0, |it| it.operation_count.load(Ordering::Relaxed));
            ReplicaStatus {
                region: *region,
                replica: open.replica.number,
                // The replica is open at no epoch until its thread has carried out the order.
                epoch: status.epoch.unwrap_or(Epoch(0)),
                primary: status.primary,
                // A replica whose thread has panicked does nothing any more.
                failure: status.failure.or_else(|| {
                    let is_over = open.thread.is_finished();
                    is_over.then(|| "the replica thread ended unexpectedly".to_owned().into())
                }),
                waits_for_space: status.waits_for_space,
                fault: status.fault,
                verification: status.verification,
                size_bytes: status.size_bytes,
                operations_per_second: open.rate.current_rate(count),
                position_bytes: status.position_bytes,
            }
        })
        .collect()
    }

    fn copies(&mut self) -> DiskCopies {
        let context = &self.context;
        copies(
            &context.regions,
            context.cluster(),
            &context.options.storage,
        )
    }

    fn orphans(&mut self) -> Vec<Orphan> {
        self.orphans.list_if_due(&self.context.regions)
    }

    fn reopenable_copy(&mut self, region: RegionId, replica: ReplicaNumber) -> Option<CopyReport> {
        let id = Some((region, replica));
        let mut closing = self.closing.iter();
        let is_closing = closing.any(|(of, thread)| *of == id && !thread.is_finished());
        let until = self.broken.backoff_until(region);
        let rests = until.is_some_and(|until| Instant::now() < until);
        // A replica of this region that is open by now is a newer one, and must not be disturbed.
        if is_closing || rests || self.open.contains_key(&region) {
            return None;
        }
        if SpaceState::of(self.capacity_bytes(), self.free_bytes()) == SpaceState::Full {
            return None;
        }
        let place = self.context.replica_store(region, replica);
        self.broken.copy(region, replica, &place)
    }

    fn discard_copy(
        &mut self,
        region: RegionId,
        replica: ReplicaNumber,
        incarnation: Option<TableIncarnation>,
    ) {
        self.broken.forget_copies(region);
        let place = self
            .context
            .replica_store(region, replica)
            .of_table(incarnation);
        // The copy may be large, or not closed yet, and the calling thread renews the lease.
        let thread = std::thread::Builder::new().name(format!("discard-{}", region.0));
        let id = Some((region, replica));
        let closing = self.closing.extract_if(.., |it| it.0 == id);
        let closing: Vec<ClosingThread> = closing.collect();
        let removing = thread.spawn(move || {
            for (_, thread) in closing {
                // A panic was already reported by its thread.
                let _ = thread.join();
            }
            if let Err(error) = place.remove() {
                tracing::warn!(%error, "cannot remove an unneeded copy from the disk");
            }
        });
        match removing {
            Ok(thread) => self.closing.push((id, thread)),
            Err(error) => {
                tracing::warn!(%error, "cannot start a thread to remove an unneeded copy");
            }
        }
    }

    fn capacity_bytes(&self) -> u64 {
        self.disk_space().map_or(0, |it| it.capacity_bytes)
    }

    fn free_bytes(&self) -> Option<u64> {
        // For example, the file system does not report what a quota leaves.
        let mut open = self.open.values().map(|open| &open.replica);
        let finds_none = |replica: &Arc<Replica>| {
            let served = replica.served();
            replica.waits_for_space() || served.is_some_and(|it| it.out_of_space().is_some())
        };
        if open.any(finds_none) {
            return Some(0);
        }
        let free_bytes = self.disk_space().ok()?.free_bytes;
        Some(free_bytes / FREE_UNIT_BYTES * FREE_UNIT_BYTES)
    }
}

impl Rate {
    /// Returns the rate of the last second or so.
    fn current_rate(&mut self, operation_count: u64) -> u64 {
        let elapsed = self.since.elapsed();
        if elapsed.as_millis() >= 1000 {
            // The count starts anew when a region is served at another epoch.
            let executed = operation_count.saturating_sub(self.operation_count);
            self.per_second = (executed as f64 / elapsed.as_secs_f64()) as u64;
            self.since = Instant::now();
            self.operation_count = operation_count;
        }
        self.per_second
    }
}
