//! Turns records into calls of the host. What is open becomes what the newest records say, whatever
//! was missed in between.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::Agent;
use super::assigned::{AssignedNumbers, NEVER_ASSIGNED};
use super::host::{
    BackupOrder, Closing, HostError, RegionHost, RegionOrder, ReplicaFailure, ReplicaStatus, Source,
};
use crate::coordinator::{Coordinator, Revision};
use crate::ids::{Epoch, Life, RegionId, ReplicaNumber, ServerId, TableId};
use crate::omission::{Check, Omission};
use crate::record::server::{FAILURE_SIZE_BYTES_MAX, cut};
use crate::record::{Phase, RegionRecord, Replica, region_key};
use crate::view::View;

/// A replica as last ordered from the host.
#[derive(Clone, Debug)]
pub(super) struct OrderedReplica {
    pub(super) table: TableId,
    pub(super) replica: ReplicaNumber,
    pub(super) epoch: Epoch,
    /// Revision of the record of that order.
    seen: Revision,
    pub(super) role: Role,
    /// Failure that closed the replica (CONTROL-16).
    pub(super) broken: Option<ReplicaFailure>,
    /// Region that it was ordered to split off.
    splitting: Option<RegionId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Primary {
        backups: Vec<BackupOrder>,
        /// Whether it acknowledges nothing more at this epoch (CONTROL-15).
        stopped: bool,
    },
    Backup {
        primary: ServerId,
    },
}

/// Order of a record to this server.
struct Order {
    region: RegionOrder,
    role: Role,
    /// Origin of the data, if nothing is open.
    source: Source,
}

impl<C: Coordinator + Clone + Debug, H: RegionHost> Agent<C, H> {
    /// Makes the host do what the last seen records say.
    pub(super) fn reconcile(&mut self, life: Life) {
        self.note_failures();
        let regions = self.mirror.view().regions.values();
        let wanted: Vec<_> = regions
            .filter_map(|seen| {
                let replica = seen.record.replica_on(self.options.server)?;
                let is_own = replica.life == life;
                is_own.then(|| (seen.record.clone(), seen.modified, replica))
            })
            .collect();
        let assigned = self.assigned();
        self.close_unwanted(&wanted, &assigned);
        for (record, seen, replica) in &wanted {
            self.follow_record(record, *seen, *replica);
        }
        self.stop_splitters();
        self.discard_copies(&assigned);
    }

    /// Closes replicas that the host cannot continue (CONTROL-16).
    fn note_failures(&mut self) {
        for status in self.host.status() {
            let Some(ordered) = self.ordered.get_mut(&status.region) else {
                continue;
            };
            if let Some(failure) = status.failure
                && ordered.broken.is_none()
                && ordered.replica == status.replica
            {
                self.host
                    .close(status.region, status.replica, Closing::Broken);
                ordered.broken = Some(truncated_failure(failure));
            }
        }
    }

    /// Closes replicas that no record names any more. A record that cannot be decoded changes
    /// nothing. If the region's number was never assigned, the copy stays; if the coordinator does
    /// not answer, all copies stay (CONTROL-23).
    fn close_unwanted(
        &mut self,
        wanted: &[(RegionRecord, Revision, Replica)],
        assigned: &AssignedNumbers,
    ) {
        let numbers: BTreeMap<_, _> = wanted
            .iter()
            .map(|(record, _, replica)| (record.region, replica.number))
            .collect();
        let View {
            damaged, regions, ..
        } = self.mirror.view();
        let (host, abandoned) = (&mut self.host, &mut self.abandoned);
        self.ordered.retain(|region, ordered| {
            let is_wanted = numbers.get(region) == Some(&ordered.replica);
            if is_wanted || damaged.contains_key(&region_key(ordered.table, *region)) {
                return true;
            }
            let was_assigned = |region: RegionId| {
                let has_record = regions.contains_key(&region);
                has_record.then_some(true).or_else(|| assigned.have(region))
            };
            let child = ordered.splitting;
            let (Some(was_assigned), Some(child_was_assigned)) = (
                was_assigned(*region),
                child.map_or(Some(true), was_assigned),
            ) else {
                return true;
            };
            // A prepared region that was accepted has its own record, which may name this server.
            if let Some(child) = child
                && child_was_assigned
                && !regions.contains_key(&child)
                && !damaged.contains_key(&region_key(ordered.table, child))
            {
                host.abandon_split(child);
            }
            match &ordered.broken {
                None if was_assigned => host.close(*region, ordered.replica, Closing::Removed),
                Some(failure) if was_assigned => {
                    let how = (!failure.lacked_space).then(|| failure.how.clone());
                    abandoned.insert((*region, ordered.replica), how);
                }
                broken => {
                    if broken.is_none() {
                        host.close(*region, ordered.replica, Closing::Broken);
                    }
                    abandoned.insert((*region, ordered.replica), Some(NEVER_ASSIGNED.to_owned()));
                }
            }
            false
        });
    }

    fn follow_record(&mut self, record: &RegionRecord, seen: Revision, replica: Replica) {
        let region = record.region;
        let before = self.ordered.get(&region).cloned();
        let is_again = before.as_ref().is_some_and(|ordered| {
            let omission = self.options.omission;
            is_reopened(ordered, record.epoch, replica, omission)
        });
        let before = before.filter(|_| !is_again);
        if before
            .as_ref()
            .is_some_and(|ordered| ordered.seen >= seen || ordered.broken.is_some())
        {
            return;
        }
        let order = self.order(record, replica, is_again);
        let opened = self.execute_order(before.as_ref(), &order);
        let mut ordered = OrderedReplica {
            table: record.table,
            replica: replica.number,
            epoch: record.epoch,
            seen,
            role: order.role.clone(),
            broken: None,
            splitting: before.as_ref().and_then(|it| it.splitting),
        };
        if let (Some(before), Role::Primary { stopped, .. }) = (&before, &mut ordered.role) {
            // A replica that has stopped at an epoch stays stopped (CONTROL-15).
            let was_stopped = matches!(before.role, Role::Primary { stopped: true, .. });
            *stopped = was_stopped && before.epoch == record.epoch;
        }
        let followed = opened.and_then(|()| self.follow_phase(record, &order, &mut ordered));
        if let Err(error) = followed {
            tracing::error!("{region} is broken on {}: {error}", self.options.server);
            self.host.close(region, replica.number, Closing::Broken);
            ordered.broken = Some(truncated_failure(error.into()));
        }
        let of_region = self
            .disk_copies
            .copies
            .extract_if(.., |it| it.region == region);
        let numbers = of_region.map(|it| it.replica);
        let others = numbers.filter(|number| *number != replica.number);
        self.abandoned
            .extend(others.map(|number| ((region, number), None)));
        self.ordered.insert(region, ordered);
    }

    /// Returns the order of a record. `is_again`: the replica is reopened from the copy that it had
    /// when it broke.
    fn order(&self, record: &RegionRecord, replica: Replica, is_again: bool) -> Order {
        let region = record.region;
        let order = RegionOrder {
            table: record.table,
            incarnation: record.incarnation,
            region,
            from: record.from.clone(),
            to: record.to.clone(),
            epoch: record.epoch,
            replica: replica.number,
            is_unproven: record.is_unproven,
        };
        let mut copies = self.disk_copies.copies.iter();
        let is_found = copies.any(|it| it.is_of(record) && it.replica == replica.number);
        let has_copy = is_found || is_again;
        // If the copy is missing, the host reports that. A region is never served from nothing, nor
        // such a replica reported as complete.
        let split = record.split_from.filter(|_| !has_copy);
        let own = split.map_or(Source::Copy, Source::Split);
        match (record.backup(replica.number), record.primary) {
            (Some(backup), Some(primary)) => Order {
                region: order,
                role: Role::Backup {
                    primary: primary.server,
                },
                source: if backup.in_sync {
                    own
                } else {
                    Source::Primary(primary.server)
                },
            },
            _ => Order {
                region: order,
                role: Role::Primary {
                    backups: backup_orders(record),
                    stopped: false,
                },
                source: if record.is_new && own == Source::Copy && !has_copy {
                    Source::Empty
                } else {
                    own
                },
            },
        }
    }

    /// Makes the host turn what is open into what is ordered.
    fn execute_order(
        &mut self,
        before: Option<&OrderedReplica>,
        wanted: &Order,
    ) -> Result<(), HostError> {
        let Order {
            region: order,
            role,
            source,
        } = wanted;
        match (role, before) {
            (Role::Primary { backups, .. }, None) => {
                self.host.open_as_primary(order, backups, *source)
            }
            (Role::Primary { backups, .. }, Some(ordered)) => {
                let was_primary = matches!(ordered.role, Role::Primary { .. });
                if was_primary && ordered.epoch == order.epoch {
                    self.host.set_backups(order, backups)
                } else {
                    self.host.promote(order, backups)
                }
            }
            (Role::Backup { primary }, None) => self.host.open_as_backup(order, *primary, *source),
            (Role::Backup { primary }, Some(ordered)) => {
                let is_same = ordered.epoch == order.epoch && ordered.role == *role;
                if is_same {
                    return Ok(());
                }
                self.host.follow(order, *primary)
            }
        }
    }

    /// Stops the primary, or prepares a split, if the record's phase says so.
    fn follow_phase(
        &mut self,
        record: &RegionRecord,
        order: &Order,
        ordered: &mut OrderedReplica,
    ) -> Result<(), HostError> {
        let child = match &record.phase {
            Phase::Splitting { child, .. } => Some(*child),
            _ => None,
        };
        if let Some(abandoned) = ordered.splitting.filter(|it| Some(*it) != child) {
            ordered.splitting = None;
            if !self.mirror.view().regions.contains_key(&abandoned) {
                self.host.abandon_split(abandoned);
            }
        }
        let Role::Primary { stopped, .. } = &mut ordered.role else {
            return Ok(());
        };
        match &record.phase {
            Phase::HandingOver { .. } if !*stopped => {
                *stopped = true;
                self.host.stop(record.region, record.epoch)
            }
            Phase::Splitting { at, child } => {
                ordered.splitting = Some(*child);
                self.host.prepare_split(&order.region, at, *child)
            }
            _ => Ok(()),
        }
    }

    /// Stops primaries that have prepared a split (CONTROL-17).
    fn stop_splitters(&mut self) {
        for status in self.host.status() {
            let Some(ordered) = self.ordered.get_mut(&status.region) else {
                continue;
            };
            let is_ready = ordered.splitting.is_some() && prepared(&status) == ordered.splitting;
            let is_current = ordered.broken.is_none() && ordered.epoch == status.epoch;
            let Role::Primary { stopped, .. } = &mut ordered.role else {
                continue;
            };
            if !is_ready || !is_current || *stopped {
                continue;
            }
            *stopped = true;
            if let Err(error) = self.host.stop(status.region, status.epoch) {
                self.host
                    .close(status.region, ordered.replica, Closing::Broken);
                ordered.broken = Some(truncated_failure(error.into()));
            }
        }
    }
}

/// Returns whether a record reopens a replica that broke because of a full disk or damage
/// (CONTROL-16). The record names the epoch of the reopening. So no other record matches, however
/// many were missed in between.
fn is_reopened(
    ordered: &OrderedReplica,
    epoch: Epoch,
    replica: Replica,
    omission: Omission,
) -> bool {
    let broken = ordered.broken.as_ref();
    let can_continue = broken.is_some_and(ReplicaFailure::can_continue);
    let is_any_enough = omission.skips_check(Check::OpenedAgainIsNamed);
    let is_named = replica.opened_again > ordered.epoch || (is_any_enough && epoch > ordered.epoch);
    can_continue && ordered.replica == replica.number && is_named
}

/// Truncates a failure for the report.
fn truncated_failure(failure: ReplicaFailure) -> ReplicaFailure {
    ReplicaFailure {
        how: cut(failure.how, FAILURE_SIZE_BYTES_MAX),
        ..failure
    }
}

fn prepared(status: &ReplicaStatus) -> Option<RegionId> {
    let (child, _) = status.primary.as_ref()?.prepared.as_ref()?;
    Some(*child)
}

fn backup_orders(record: &RegionRecord) -> Vec<BackupOrder> {
    let backups = record.backups.iter().map(|backup| BackupOrder {
        replica: backup.replica.number,
        server: backup.replica.server,
        in_sync: backup.in_sync,
        is_lost: backup.is_lost,
    });
    backups.collect()
}
