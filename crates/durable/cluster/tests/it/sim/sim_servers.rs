//! Region servers with real logs and simulated replication in one step, crashes, and cut
//! connections between servers. They keep exactly the promises of a region host
//! (docs/reference/control-plane.md).

use std::collections::{BTreeMap, BTreeSet};

use farleaf_cluster::agent::host::{BackupOrder, RegionOrder};
use farleaf_cluster::client::Stale;
use farleaf_cluster::ids::{Epoch, RegionId, ReplicaNumber, ServerId, TableId};
use farleaf_cluster::lease::LeaseGuard;
use farleaf_cluster::record::VerificationReport;
use farleaf_cluster::record::region::Key;

/// A write in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogRecord {
    pub(crate) epoch: Epoch,
    pub(crate) key: u8,
    pub(crate) value: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct SimBackup {
    pub(crate) server: ServerId,
    /// Whether nothing is acknowledged without this backup.
    pub(crate) is_needed: bool,
    /// Number of consecutive failures to reach the backup.
    pub(crate) failure_count: u32,
    /// Whether the backup has the log at this epoch.
    pub(crate) is_level: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct SimPrimary {
    pub(crate) backups: BTreeMap<ReplicaNumber, SimBackup>,
    pub(crate) stopped: bool,
    pub(crate) split: Option<(RegionId, Key)>,
    pub(crate) prepared: Option<(RegionId, Vec<ReplicaNumber>)>,
    /// Number of records that are on every needed backup at this epoch, so that reads see them.
    pub(crate) committed: usize,
}

/// A replica, open or on the disk.
#[derive(Clone, Debug)]
pub(crate) struct SimReplica {
    pub(crate) table: TableId,
    pub(crate) number: ReplicaNumber,
    pub(crate) epoch: Epoch,
    pub(crate) from: Key,
    pub(crate) to: Option<Key>,
    /// State as primary; `None` for a backup or a copy.
    pub(crate) primary: Option<SimPrimary>,
    pub(crate) log: Vec<LogRecord>,
    /// Number of records that survive a crash.
    pub(crate) synced: usize,
    /// Regions prepared for a split.
    pub(crate) marks: BTreeMap<RegionId, Key>,
    /// Whether it found the disk full, has lost what was only in memory, and does nothing any more.
    pub(crate) lacks_space: bool,
}

impl SimReplica {
    pub(crate) fn new(order: &RegionOrder, log: Vec<LogRecord>) -> Self {
        Self {
            table: order.table,
            number: order.replica,
            epoch: order.epoch,
            from: order.from.clone(),
            to: order.to.clone(),
            primary: None,
            synced: log.len(),
            log,
            marks: BTreeMap::new(),
            lacks_space: false,
        }
    }

    /// Breaks the replica because of a full disk.
    pub(crate) fn run_out_of_space(&mut self) {
        self.log.truncate(self.synced);
        self.primary = None;
        self.lacks_space = true;
    }

    pub(crate) fn covers(&self, key: u8) -> bool {
        let key = Key(vec![key]);
        self.from <= key && self.to.as_ref().is_none_or(|to| key < *to)
    }

    /// Returns how new its log on the disk is.
    pub(crate) fn age(&self) -> (Epoch, usize) {
        let last = self.log[..self.synced].last();
        (last.map_or(Epoch(0), |it| it.epoch), self.synced)
    }

    fn child(&self, at: &Key) -> Self {
        let log: Vec<_> = (self.log.iter().copied())
            .filter(|it| Key(vec![it.key]) >= *at)
            .collect();
        Self {
            from: at.clone(),
            primary: None,
            synced: log.len(),
            log,
            marks: BTreeMap::new(),
            to: self.to.clone(),
            ..*self
        }
    }
}

/// Reason of a replica that breaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BreaksFor {
    #[default]
    SpaceState,
    Damage,
}

/// A server's process and its disk.
#[derive(Debug, Default)]
pub(crate) struct SimServer {
    pub(crate) is_up: bool,
    pub(crate) guard: Option<LeaseGuard>,
    pub(crate) open: BTreeMap<RegionId, SimReplica>,
    pub(crate) copies: BTreeMap<RegionId, SimReplica>,
    /// Former copies that the disk has lost.
    pub(crate) damaged: BTreeSet<(RegionId, ReplicaNumber)>,
    /// Number of orders that fail before orders succeed again.
    pub(crate) failing_order_count: u32,
    /// Whether an order has failed: broken replicas stay broken in this life.
    pub(crate) has_failed: bool,
    /// Reported free space of its disk.
    pub(crate) free_bytes: Option<u64>,
    /// Whether nothing that is opened finds space.
    pub(crate) is_full: bool,
    /// Reported reason of broken replicas.
    pub(crate) breaks_for: BreaksFor,
    /// Reported verification of its replicas.
    pub(crate) verification: Option<VerificationReport>,
}

impl SimServer {
    /// Turns prepared regions into copies of their own.
    pub(crate) fn keep_marks(&mut self, replica: &SimReplica) {
        for (child, at) in &replica.marks {
            let is_there = self.open.contains_key(child) || self.copies.contains_key(child);
            if !is_there {
                self.copies.insert(*child, replica.child(at));
            }
        }
    }

    /// Returns whether the disk fails now.
    pub(crate) fn fails(&mut self) -> bool {
        let fails = self.failing_order_count > 0;
        self.failing_order_count -= u32::from(fails);
        self.has_failed |= fails;
        fails
    }

    /// Fills the disk up: replicas that need space break.
    pub(crate) fn fill_up(&mut self, mut needs_space: impl FnMut() -> bool) {
        self.free_bytes = Some(0);
        self.is_full = true;
        for replica in self.open.values_mut().filter(|_| needs_space()) {
            replica.run_out_of_space();
        }
    }

    /// Makes space on the disk.
    pub(crate) fn make_space(&mut self) {
        self.free_bytes = None;
        self.is_full = false;
    }

    /// Makes the disk lose a copy.
    pub(crate) fn damage(&mut self, region: RegionId) {
        if let Some(copy) = self.copies.remove(&region) {
            self.damaged.insert((region, copy.number));
        }
    }

    /// Closes everything; what was only in memory is lost if the process is.
    pub(crate) fn close_all(&mut self, loses_memory: bool) {
        for (region, mut replica) in std::mem::take(&mut self.open) {
            if loses_memory {
                replica.log.truncate(replica.synced);
            }
            replica.synced = replica.log.len();
            self.keep_marks(&replica);
            replica.marks.clear();
            replica.primary = None;
            self.copies.insert(region, replica);
        }
        self.guard = None;
    }
}

/// Result of a client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Written,
    Read(u64),
    Stale(Stale),
    /// No reply; a write may have taken effect.
    Nothing,
}

/// All servers, and the connections between them.
#[derive(Debug, Default)]
pub(crate) struct SimServers {
    pub(crate) servers: BTreeMap<ServerId, SimServer>,
    pub(crate) cuts: BTreeSet<(ServerId, ServerId)>,
    /// Newest epoch at which something of a region was acknowledged.
    pub(crate) acknowledged: BTreeMap<RegionId, Epoch>,
    pub(crate) violations: Vec<String>,
    /// Whether clocks are worse than configured, so that only writes are judged.
    pub(crate) reads_may_be_old: bool,
}

impl SimServers {
    pub(crate) fn server(&mut self, server: ServerId) -> &mut SimServer {
        self.servers
            .get_mut(&server)
            .expect("it is one of the fleet")
    }

    fn is_cut(&self, one: ServerId, other: ServerId) -> bool {
        self.cuts.contains(&(one.min(other), one.max(other)))
    }

    /// Replicates a primary's log to the backups that it reaches.
    pub(crate) fn pump(&mut self, server: ServerId, region: RegionId, sync: bool) {
        let Some(own) = self.servers[&server].open.get(&region).cloned() else {
            return;
        };
        let Some(mut primary) = own.primary.clone() else {
            return;
        };
        if !self.servers[&server].is_up {
            return;
        }
        let mut prepared_on = Vec::new();
        let split = primary.split.clone();
        for (number, backup) in &mut primary.backups {
            let is_reached = !self.is_cut(server, backup.server)
                && self.servers[&backup.server].is_up
                // A backup has everything on its disk before it gets in sync.
                && self.replicate(
                    &own,
                    region,
                    *number,
                    backup.server,
                    split.as_ref(),
                    sync || !backup.is_needed,
                );
            backup.is_level = is_reached;
            if is_reached {
                backup.failure_count = 0;
                backup.is_needed = true;
                prepared_on.push(*number);
            } else {
                backup.failure_count += 1;
            }
        }
        let needed = primary.backups.values().filter(|it| it.is_needed);
        let is_level = needed.into_iter().all(|it| it.is_level);
        if is_level {
            primary.committed = own.log.len();
        }
        if let (Some((child, at)), true) = (primary.split.clone(), is_level) {
            primary.prepared = Some((child, prepared_on));
            let own = self
                .server(server)
                .open
                .get_mut(&region)
                .expect("it is open");
            own.marks.insert(child, at);
        }
        let own = self
            .server(server)
            .open
            .get_mut(&region)
            .expect("it is open");
        own.primary = Some(primary);
        if sync {
            own.synced = own.log.len();
        }
    }

    /// Replicates a primary's log to a backup. Returns false if the backup does not accept it.
    fn replicate(
        &mut self,
        own: &SimReplica,
        region: RegionId,
        number: ReplicaNumber,
        server: ServerId,
        split: Option<&(RegionId, Key)>,
        sync: bool,
    ) -> bool {
        let Some(backup) = self.server(server).open.get_mut(&region) else {
            return false;
        };
        let takes =
            backup.primary.is_none() && backup.number == number && backup.epoch <= own.epoch;
        if !takes || backup.lacks_space {
            return false;
        }
        let same = backup
            .log
            .iter()
            .zip(&own.log)
            .take_while(|(a, b)| a == b)
            .count();
        backup.epoch = own.epoch;
        // A sync that another primary has begun covers only its own log.
        backup.synced = backup.synced.min(same);
        backup.log.clone_from(&own.log);
        if sync || backup.synced < same {
            backup.synced = if sync { backup.log.len() } else { same };
        }
        if let Some((child, at)) = split {
            backup.marks.insert(*child, at.clone());
        }
        true
    }

    /// Executes a request, if this server is primary of that region at that epoch.
    pub(crate) fn execute(
        &mut self,
        server: ServerId,
        region: RegionId,
        epoch: Epoch,
        key: u8,
        write: Option<(u64, bool)>,
    ) -> Answer {
        let state = &self.servers[&server];
        if !state.is_up {
            return Answer::Nothing;
        }
        let own = state.open.get(&region);
        let known = own.map(|it| it.epoch);
        let is_served = own.is_some_and(|own| {
            let serves = own.primary.as_ref().is_some_and(|it| !it.stopped);
            serves && own.epoch == epoch && own.covers(key)
        });
        if !is_served {
            return Answer::Stale(Stale { epoch: known });
        }
        if let Some((value, _)) = write {
            let own = self
                .server(server)
                .open
                .get_mut(&region)
                .expect("it is served");
            own.log.push(LogRecord { epoch, key, value });
        }
        self.pump(server, region, write.is_some_and(|it| it.1));
        let state = &self.servers[&server];
        let own = &state.open[&region];
        let primary = own.primary.as_ref().expect("it is served");
        let is_level = primary.committed == own.log.len();
        let committed = &own.log[..primary.committed.min(own.log.len())];
        let read = committed
            .iter()
            .rev()
            .find(|it| it.key == key)
            .map_or(0, |it| it.value);
        let is_ready = if write.is_some() {
            is_level
        } else {
            primary.committed > 0 || is_level
        };
        // The guard is checked after everything else.
        let may = state
            .guard
            .as_ref()
            .is_some_and(LeaseGuard::may_acknowledge);
        if !is_ready || !may {
            return Answer::Nothing;
        }
        let newest = self.acknowledged.entry(region).or_insert(epoch);
        let is_judged = write.is_some() || !self.reads_may_be_old;
        if *newest > epoch && is_judged {
            let found = format!("{region} is acknowledged at {epoch}, after {newest}");
            self.violations.push(found);
        }
        *newest = epoch.max(*newest);
        write.map_or(Answer::Read(read), |_| Answer::Written)
    }

    /// Sets the ordered backups; needed ones stay needed.
    pub(crate) fn take_backups(primary: &mut SimPrimary, backups: &[BackupOrder]) {
        let before = std::mem::take(&mut primary.backups);
        for order in backups {
            let old = before.get(&order.replica);
            let backup = SimBackup {
                server: order.server,
                is_needed: order.in_sync || old.is_some_and(|it| it.is_needed),
                failure_count: old.map_or(0, |it| it.failure_count),
                is_level: old.is_some_and(|it| it.is_level),
            };
            primary.backups.insert(order.replica, backup);
        }
    }
}
