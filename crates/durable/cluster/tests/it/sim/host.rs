//! A simulated server, as its agent sees it.

use std::sync::{Arc, Mutex};

use farleaf_cluster::agent::host::{
    BackupOrder, Closing, DiskCopies, HostError, RegionHost, RegionOrder, ReplicaFailure,
    ReplicaStatus, Source,
};
use farleaf_cluster::ids::{Epoch, RegionId, ReplicaNumber, ServerId, TableIncarnation};
use farleaf_cluster::lease::LeaseGuard;
use farleaf_cluster::record::region::Key;
use farleaf_cluster::record::{CopyReport, PrimaryReport, UnusableCopy};

use super::sim_servers::{BreaksFor, SimPrimary, SimReplica, SimServer, SimServers};

/// Number of consecutive failures after which a backup is reported as failed.
const FAILURE_COUNT_MAX: u32 = 4;

#[derive(Clone, Debug)]
pub(crate) struct SimHost {
    pub(crate) server: ServerId,
    pub(crate) sim_servers: Arc<Mutex<SimServers>>,
}

impl SimHost {
    fn with<T>(&self, body: impl FnOnce(&mut SimServer) -> T) -> T {
        body(
            self.sim_servers
                .lock()
                .expect("one thread")
                .server(self.server),
        )
    }

    fn open(&self, order: &RegionOrder, source: Source) -> Result<SimReplica, HostError> {
        self.with(|server| {
            if server.fails() {
                return Err(HostError("the disk fails".to_owned()));
            }
            let copy = server.copies.remove(&order.region);
            // A prepared replica that broke with the region it was split off is broken.
            let is_left = matches!(source, Source::Split(_))
                && copy.as_ref().is_some_and(|it| it.lacks_space);
            let log = match source {
                Source::Empty | Source::Primary(_) => Vec::new(),
                Source::Copy => {
                    let same = copy.filter(|it| it.number == order.replica);
                    same.ok_or_else(|| HostError("there is no copy".to_owned()))?
                        .log
                }
                Source::Split(parent) => match server.open.get_mut(&parent) {
                    Some(open) if open.marks.contains_key(&order.region) => {
                        open.marks.remove(&order.region);
                        let log = open.log.iter().copied();
                        log.filter(|it| Key(vec![it.key]) >= order.from).collect()
                    }
                    _ => {
                        copy.ok_or_else(|| HostError("nothing is prepared".to_owned()))?
                            .log
                    }
                },
            };
            let mut replica = SimReplica::new(order, log);
            if server.is_full || is_left {
                replica.run_out_of_space();
            }
            Ok(replica)
        })
    }

    fn put(&self, region: RegionId, replica: SimReplica) {
        self.with(|server| server.open.insert(region, replica));
    }

    fn change(
        &self,
        order: &RegionOrder,
        change: impl FnOnce(&mut SimReplica),
    ) -> Result<(), HostError> {
        if self.with(SimServer::fails) {
            return Err(HostError("the disk fails".to_owned()));
        }
        self.with(|server| match server.open.get_mut(&order.region) {
            Some(replica) if replica.number == order.replica => {
                if replica.epoch > order.epoch {
                    return Err(HostError(format!("it is at {} already", replica.epoch)));
                }
                if replica.lacks_space {
                    return Ok(()); // Its status reports that.
                }
                replica.epoch = order.epoch;
                replica.from = order.from.clone();
                replica.to.clone_from(&order.to);
                change(replica);
                Ok(())
            }
            _ => Err(HostError("it is not open".to_owned())),
        })
    }
}

/// Describes a copy for a report.
fn copy_report(region: RegionId, copy: &SimReplica) -> CopyReport {
    CopyReport {
        table: copy.table,
        region,
        replica: copy.number,
        epoch: copy.age().0,
        position_bytes: copy.synced as u64,
        incarnation: None,
    }
}

fn as_primary(backups: &[BackupOrder]) -> SimPrimary {
    let mut primary = SimPrimary::default();
    SimServers::take_backups(&mut primary, backups);
    primary
}

impl RegionHost for SimHost {
    fn begin_life(&mut self, guard: LeaseGuard) {
        self.with(|server| server.guard = Some(guard));
    }

    fn end_life(&mut self) {
        self.with(|server| server.close_all(false));
    }

    fn open_as_primary(
        &mut self,
        order: &RegionOrder,
        backups: &[BackupOrder],
        source: Source,
    ) -> Result<(), HostError> {
        let mut replica = self.open(order, source)?;
        if !replica.lacks_space {
            replica.primary = Some(as_primary(backups));
        }
        self.put(order.region, replica);
        Ok(())
    }

    fn promote(&mut self, order: &RegionOrder, backups: &[BackupOrder]) -> Result<(), HostError> {
        self.change(order, |replica| {
            let mut primary = as_primary(backups);
            if let Some(before) = replica.primary.take() {
                // The backup stays needed across epochs, too.
                for (number, backup) in before.backups {
                    if let Some(now) = primary.backups.get_mut(&number) {
                        now.is_needed |= backup.is_needed;
                    }
                }
            }
            replica.primary = Some(primary);
        })
    }

    fn set_backups(
        &mut self,
        order: &RegionOrder,
        backups: &[BackupOrder],
    ) -> Result<(), HostError> {
        self.change(order, |replica| {
            let primary = replica.primary.get_or_insert_with(SimPrimary::default);
            SimServers::take_backups(primary, backups);
        })
    }

    fn open_as_backup(
        &mut self,
        order: &RegionOrder,
        _: ServerId,
        source: Source,
    ) -> Result<(), HostError> {
        let replica = self.open(order, source)?;
        self.put(order.region, replica);
        Ok(())
    }

    fn follow(&mut self, order: &RegionOrder, _: ServerId) -> Result<(), HostError> {
        // Its primary may have been first, at a later epoch; then this order is outdated.
        let is_old = self.with(|server| {
            let open = server.open.get(&order.region);
            open.is_some_and(|it| it.number == order.replica && it.epoch > order.epoch)
        });
        if is_old {
            return Ok(());
        }
        self.change(order, |replica| replica.primary = None)
    }

    fn stop(&mut self, region: RegionId, epoch: Epoch) -> Result<(), HostError> {
        self.with(|server| {
            let open = server.open.get_mut(&region);
            if open.as_ref().is_some_and(|it| it.lacks_space) {
                return Ok(());
            }
            let replica = open.filter(|it| it.epoch == epoch);
            let primary = replica.and_then(|it| it.primary.as_mut());
            primary
                .ok_or_else(|| HostError("it is not primary".to_owned()))?
                .stopped = true;
            Ok(())
        })
    }

    fn prepare_split(
        &mut self,
        order: &RegionOrder,
        at: &Key,
        child: RegionId,
    ) -> Result<(), HostError> {
        self.change(order, |replica| {
            if let Some(primary) = &mut replica.primary {
                primary.split = Some((child, at.clone()));
            }
        })
    }

    fn abandon_split(&mut self, child: RegionId) {
        self.with(|server| {
            server.copies.remove(&child);
            for replica in server.open.values_mut() {
                replica.marks.remove(&child);
                if let Some(primary) = &mut replica.primary {
                    primary.split.take_if(|it| it.0 == child);
                    primary.prepared.take_if(|it| it.0 == child);
                }
            }
        });
    }

    fn close(&mut self, region: RegionId, replica: ReplicaNumber, why: Closing) {
        self.with(|server| {
            let Some(mut open) = server.open.remove(&region) else {
                return;
            };
            assert_eq!(open.number, replica);
            server.keep_marks(&open);
            open.primary = None;
            open.marks.clear();
            if why == Closing::Broken {
                server.copies.insert(region, open);
            }
        });
    }

    fn status(&mut self) -> Vec<ReplicaStatus> {
        self.with(|server| {
            let is_damaged = server.breaks_for == BreaksFor::Damage;
            let open = server.open.iter();
            open.map(|(region, replica)| {
                let primary = replica.primary.as_ref().map(|primary| {
                    let numbers = |is: fn(&super::sim_servers::SimBackup) -> bool| {
                        let backups = primary.backups.iter().filter(|it| is(it.1));
                        backups.map(|(number, _)| *number).collect()
                    };
                    PrimaryReport {
                        in_sync: numbers(|it| it.is_needed),
                        failed: numbers(|it| it.failure_count >= FAILURE_COUNT_MAX),
                        stopped: false,
                        prepared: primary.prepared.clone(),
                        ..PrimaryReport::default()
                    }
                });
                ReplicaStatus {
                    region: *region,
                    replica: replica.number,
                    epoch: replica.epoch,
                    primary,
                    failure: replica.lacks_space.then(|| ReplicaFailure {
                        how: "its disk is full".to_owned(),
                        lacked_space: !is_damaged,
                        is_damaged,
                    }),
                    waits_for_space: false,
                    fault: None,
                    verification: server.verification,
                    size_bytes: replica.log.len() as u64 * 20_000_000,
                    operations_per_second: replica.log.len() as u64,
                    position_bytes: replica.log.len() as u64,
                }
            })
            .collect()
        })
    }

    fn copies(&mut self) -> DiskCopies {
        self.with(|server| {
            let copies = server.copies.iter();
            let copies = copies.map(|(region, copy)| copy_report(*region, copy));
            let damaged = server.damaged.iter().map(|(region, replica)| UnusableCopy {
                region: *region,
                replica: *replica,
                is_damaged: true,
                how: "it is torn".to_owned(),
            });
            DiskCopies {
                copies: copies.collect(),
                unusable: damaged.collect(),
            }
        })
    }

    fn reopenable_copy(&mut self, region: RegionId, replica: ReplicaNumber) -> Option<CopyReport> {
        self.with(|server| {
            let copy = server.copies.get(&region).filter(|_| !server.is_full);
            let own = copy.filter(|it| it.number == replica);
            own.map(|copy| copy_report(region, copy))
        })
    }

    fn discard_copy(
        &mut self,
        region: RegionId,
        replica: ReplicaNumber,
        _: Option<TableIncarnation>,
    ) {
        self.with(|server| {
            let is_same = server
                .copies
                .get(&region)
                .is_some_and(|it| it.number == replica);
            if is_same {
                server.copies.remove(&region);
            }
        });
    }

    fn capacity_bytes(&self) -> u64 {
        0
    }

    fn free_bytes(&self) -> Option<u64> {
        self.with(|server| server.free_bytes)
    }
}
