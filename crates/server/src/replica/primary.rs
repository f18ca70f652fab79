//! A primary: its engine, what it is ordered to have as backups, and whether it is open (RS4).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farleaf_cluster::agent::host::{BackupOrder, RegionOrder};
use farleaf_cluster::ids::ReplicaNumber;
use farleaf_cluster::record::PrimaryReport;
use farleaf_fabric::tcp::TcpEndpoint;
use farleaf_lsm::Engine;
use farleaf_lsm::engine::Worked;
use farleaf_replica::{Primary, PrimaryWorked};

use super::Replica;
use super::backup::epoch_of;
use super::link::{Link, Stage};
use crate::context::Context;
use crate::peer::ReplicaName;
use crate::place::{Note, ReplicaPlace};
use crate::served::Served;

/// For how long operations that are under way may keep an engine open that is to be closed.
const CLOSE_PATIENCE: Duration = Duration::from_secs(20);

/// A replica that is primary.
pub(super) struct PrimaryReplica {
    place: ReplicaPlace,
    pub(super) note: Note,
    primary: Primary<TcpEndpoint>,
    served: Arc<Served>,
    links: BTreeMap<ReplicaNumber, Link>,
    /// RS4: nobody is served before these have all.
    needed: BTreeSet<ReplicaNumber>,
}

impl PrimaryReplica {
    pub(super) fn new(
        (place, note): (ReplicaPlace, Note),
        engine: Engine,
        (replica, context): (&Arc<Replica>, &Arc<Context>),
        order: &RegionOrder,
    ) -> Self {
        let epoch = epoch_of(order.epoch);
        let primary = Primary::new(engine, epoch, context.options.replication);
        let served = Served::new(order.clone(), primary.clone(), replica.guard.clone());
        Self {
            place,
            note,
            primary,
            served: Arc::new(served),
            links: BTreeMap::new(),
            needed: BTreeSet::new(),
        }
    }

    pub(super) fn served(&self) -> &Arc<Served> {
        &self.served
    }

    /// RS4: these are its backups from now on.
    pub(super) fn set_backups(
        &mut self,
        (replica, context): (&Arc<Replica>, &Arc<Context>),
        backups: &[BackupOrder],
    ) {
        let listed: BTreeSet<ReplicaNumber> = backups.iter().map(|it| it.replica).collect();
        let gone: Vec<ReplicaNumber> = self.links.keys().copied().collect();
        for number in gone.into_iter().filter(|it| !listed.contains(it)) {
            if let Some(link) = self.links.remove(&number) {
                link.end();
            }
        }
        self.needed.retain(|number| listed.contains(number));
        for backup in backups {
            if backup.in_sync {
                self.needed.insert(backup.replica);
            }
            self.links.entry(backup.replica).or_insert_with(|| {
                let name = ReplicaName {
                    region: replica.region,
                    replica: backup.replica,
                    epoch: self.served.epoch(),
                    primary: context.server,
                };
                Link::start((replica, context), &self.primary, (backup.server, name))
            });
        }
        self.open_if_due();
    }

    /// RS7: goes on as primary at a later epoch, or of another range, with the same engine and the
    /// same backups.
    pub(super) fn raise(
        &mut self,
        replica: &Arc<Replica>,
        order: &RegionOrder,
    ) -> Result<(), String> {
        let epoch = order.epoch;
        // Those that are being filled are filled for an epoch that is over.
        let filling: Vec<ReplicaNumber> = self
            .links
            .iter()
            .filter(|(_, link)| link.stage() == Stage::Filling)
            .map(|(number, _)| *number)
            .collect();
        for number in filling {
            if let Some(link) = self.links.remove(&number) {
                link.end();
            }
        }
        // RH5.
        let note = Note { epoch, ..self.note };
        let put = self.place.put_in_force(&note);
        put.map_err(|error| error.to_string())?;
        self.note = note;
        let raised = self.primary.raise(epoch_of(epoch));
        raised.map_err(|error| error.to_string())?;
        let served = Served::new(order.clone(), self.primary.clone(), replica.guard.clone());
        self.served = Arc::new(served);
        Ok(())
    }

    fn open_if_due(&self) {
        let is_there = |number| {
            let link = self.links.get(number);
            link.is_some_and(|link| link.stage() == Stage::InSync)
        };
        if self.needed.iter().all(is_there) {
            self.served.open();
        }
    }

    /// What it says of its backups; and opens it, when those that are needed have all.
    pub(super) fn report(&self) -> PrimaryReport {
        self.open_if_due();
        let mut report = PrimaryReport::default();
        for (number, link) in &self.links {
            match link.stage() {
                Stage::InSync => report.in_sync.push(*number),
                Stage::Failed(_) => report.failed.push(*number),
                Stage::Filling => {}
            }
        }
        report
    }

    /// A step of what there is to do; false: nothing.
    pub(super) fn maintain(&self) -> Result<bool, String> {
        let worked = self.primary.maintain();
        let worked = worked.map_err(|error| error.to_string())?;
        Ok(worked != PrimaryWorked::Engine(Worked::Nothing))
    }

    pub(super) fn position_bytes(&self) -> u64 {
        self.primary.log_end().0
    }

    /// How much it has on its disk.
    pub(super) fn size_bytes(&self) -> u64 {
        let counts = self.primary.engine().counts();
        let segments = u64::from(counts.log_segment_count) + u64::from(counts.tree_segment_count);
        segments * farleaf_lsm::place::SEGMENT_SIZE_BYTES
    }

    /// Closes it: everything that it has is durable, and the directory is unlocked. Nothing is
    /// acknowledged any more.
    pub(super) fn close(self, replica: &Replica) -> Result<(), String> {
        self.served.stop();
        replica.set_served(None);
        for link in self.links.into_values() {
            link.end();
        }
        // What is not durable is lost with this.
        let synced = self.primary.engine().sync();
        drop(self.primary);
        let since = Instant::now();
        while Arc::strong_count(&self.served) > 1 && since.elapsed() < CLOSE_PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        synced.map_err(|error| error.to_string())
    }
}
