//! From records to calls of the host: whatever was missed in between, what is open becomes what
//! the newest records say.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::Agent;
use super::given::{FORGOTTEN, Given};
use super::host::{
    BackupOrder, Closing, HostError, RegionHost, RegionOrder, ReplicaFailure, ReplicaStatus, Source,
};
use crate::coordinator::{Coordinator, Revision};
use crate::ids::{Epoch, Life, RegionId, ReplicaNumber, ServerId, TableId};
use crate::omission::{Check, Omission};
use crate::record::server::{FAILURE_SIZE_BYTES_MAX, cut};
use crate::record::{Phase, RegionRecord, Replica, region_key};
use crate::view::View;

/// A replica as the host was told to have it.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) table: TableId,
    pub(super) replica: ReplicaNumber,
    pub(super) epoch: Epoch,
    /// The record that this is from.
    seen: Revision,
    pub(super) role: Role,
    /// It does nothing more, because of this (CP16).
    pub(super) broken: Option<ReplicaFailure>,
    /// The region that it was told to split off.
    splitting: Option<RegionId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Primary {
        backups: Vec<BackupOrder>,
        /// It acknowledges nothing more at this epoch (CP15).
        stopped: bool,
    },
    Backup {
        primary: ServerId,
    },
}

/// What a record wants of this server.
struct Order {
    region: RegionOrder,
    role: Role,
    /// Where the data are, if nothing is open.
    source: Source,
}

impl<C: Coordinator + Clone + Debug, H: RegionHost> Agent<C, H> {
    /// Has the host do what the records say that were seen last.
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
        let given = self.given();
        self.close_unwanted(&wanted, &given);
        for (record, seen, replica) in &wanted {
            self.follow_record(record, *seen, *replica);
        }
        self.stop_splitters();
        self.discard_copies(&given);
    }

    /// Replicas that the host cannot go on with are closed (CP16).
    fn note_failures(&mut self) {
        for status in self.host.status() {
            let Some(held) = self.held.get_mut(&status.region) else {
                continue;
            };
            if let Some(failure) = status.failure
                && held.broken.is_none()
                && held.replica == status.replica
            {
                self.host
                    .close(status.region, status.replica, Closing::Broken);
                held.broken = Some(told(failure));
            }
        }
    }

    /// Closes what no record names any more. A record that cannot be decoded changes nothing; of a
    /// region of which the coordinator has never heard, the copy stays, and where it does not say
    /// whether it has, all does (CP23).
    fn close_unwanted(&mut self, wanted: &[(RegionRecord, Revision, Replica)], given: &Given) {
        let numbers: BTreeMap<_, _> = wanted
            .iter()
            .map(|(record, _, replica)| (record.region, replica.number))
            .collect();
        let View {
            damaged, regions, ..
        } = self.mirror.view();
        let (host, left) = (&mut self.host, &mut self.left);
        self.held.retain(|region, held| {
            let is_wanted = numbers.get(region) == Some(&held.replica);
            if is_wanted || damaged.contains_key(&region_key(held.table, *region)) {
                return true;
            }
            let was_given = |region: RegionId| {
                let has_record = regions.contains_key(&region);
                has_record.then_some(true).or_else(|| given.have(region))
            };
            let child = held.splitting;
            let (Some(was_given), Some(child_was_given)) =
                (was_given(*region), child.map_or(Some(true), was_given))
            else {
                return true;
            };
            // One that was accepted is a region of its own, which may be this server's.
            if let Some(child) = child
                && child_was_given
                && !regions.contains_key(&child)
                && !damaged.contains_key(&region_key(held.table, child))
            {
                host.abandon_split(child);
            }
            match &held.broken {
                None if was_given => host.close(*region, held.replica, Closing::Removed),
                Some(failure) if was_given => {
                    let how = (!failure.lacked_room).then(|| failure.how.clone());
                    left.insert((*region, held.replica), how);
                }
                broken => {
                    if broken.is_none() {
                        host.close(*region, held.replica, Closing::Broken);
                    }
                    left.insert((*region, held.replica), Some(FORGOTTEN.to_owned()));
                }
            }
            false
        });
    }

    fn follow_record(&mut self, record: &RegionRecord, seen: Revision, replica: Replica) {
        let region = record.region;
        let before = self.held.get(&region).cloned();
        let is_again = before.as_ref().is_some_and(|held| {
            let omission = self.options.omission;
            is_opened_again(held, (record.epoch, replica), omission)
        });
        let before = before.filter(|_| !is_again);
        if before
            .as_ref()
            .is_some_and(|held| held.seen >= seen || held.broken.is_some())
        {
            return;
        }
        let order = self.order(record, replica, is_again);
        let opened = self.bring_about(before.as_ref(), &order);
        let mut held = Held {
            table: record.table,
            replica: replica.number,
            epoch: record.epoch,
            seen,
            role: order.role.clone(),
            broken: None,
            splitting: before.as_ref().and_then(|it| it.splitting),
        };
        if let (Some(before), Role::Primary { stopped, .. }) = (&before, &mut held.role) {
            // What has stopped at an epoch stays so (CP15).
            let was_stopped = matches!(before.role, Role::Primary { stopped: true, .. });
            *stopped = was_stopped && before.epoch == record.epoch;
        }
        let done = opened.and_then(|()| self.follow_phase(record, &order, &mut held));
        if let Err(error) = done {
            tracing::error!("{region} is broken on {}: {error}", self.options.server);
            self.host.close(region, replica.number, Closing::Broken);
            held.broken = Some(told(error.into()));
        }
        let of_region = self.found.copies.extract_if(.., |it| it.region == region);
        let numbers = of_region.map(|it| it.replica);
        let others = numbers.filter(|number| *number != replica.number);
        self.left
            .extend(others.map(|number| ((region, number), None)));
        self.held.insert(region, held);
    }

    /// `is_again`: it is opened again, from the copy that it had when it broke.
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
        let mut copies = self.found.copies.iter();
        let is_found = copies.any(|it| it.is_of(record) && it.replica == replica.number);
        let has_copy = is_found || is_again;
        // There may be none, and the host says so: nobody serves a region from nothing, or is said
        // to have everything.
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

    /// Has the host turn what is open into what is ordered.
    fn bring_about(&mut self, before: Option<&Held>, wanted: &Order) -> Result<(), HostError> {
        let Order {
            region: order,
            role,
            source,
        } = wanted;
        match (role, before) {
            (Role::Primary { backups, .. }, None) => {
                self.host.open_as_primary(order, backups, *source)
            }
            (Role::Primary { backups, .. }, Some(held)) => {
                let was_primary = matches!(held.role, Role::Primary { .. });
                if was_primary && held.epoch == order.epoch {
                    self.host.set_backups(order, backups)
                } else {
                    self.host.promote(order, backups)
                }
            }
            (Role::Backup { primary }, None) => self.host.open_as_backup(order, *primary, *source),
            (Role::Backup { primary }, Some(held)) => {
                let is_same = held.epoch == order.epoch && held.role == *role;
                if is_same {
                    return Ok(());
                }
                self.host.follow(order, *primary)
            }
        }
    }

    /// Stops, or prepares a split, if the record says so.
    fn follow_phase(
        &mut self,
        record: &RegionRecord,
        order: &Order,
        held: &mut Held,
    ) -> Result<(), HostError> {
        let child = match &record.phase {
            Phase::Splitting { child, .. } => Some(*child),
            _ => None,
        };
        if let Some(abandoned) = held.splitting.filter(|it| Some(*it) != child) {
            held.splitting = None;
            if !self.mirror.view().regions.contains_key(&abandoned) {
                self.host.abandon_split(abandoned);
            }
        }
        let Role::Primary { stopped, .. } = &mut held.role else {
            return Ok(());
        };
        match &record.phase {
            Phase::HandingOver { .. } if !*stopped => {
                *stopped = true;
                self.host.stop(record.region, record.epoch)
            }
            Phase::Splitting { at, child } => {
                held.splitting = Some(*child);
                self.host.prepare_split(&order.region, at, *child)
            }
            _ => Ok(()),
        }
    }

    /// Stops primaries that have prepared a split (CP17).
    fn stop_splitters(&mut self) {
        for status in self.host.status() {
            let Some(held) = self.held.get_mut(&status.region) else {
                continue;
            };
            let is_ready = held.splitting.is_some() && prepared(&status) == held.splitting;
            let is_current = held.broken.is_none() && held.epoch == status.epoch;
            let Role::Primary { stopped, .. } = &mut held.role else {
                continue;
            };
            if !is_ready || !is_current || *stopped {
                continue;
            }
            *stopped = true;
            if let Err(error) = self.host.stop(status.region, status.epoch) {
                self.host
                    .close(status.region, held.replica, Closing::Broken);
                held.broken = Some(told(error.into()));
            }
        }
    }
}

/// CP16: whether a record has a replica opened again that broke for want of room, or for damage: it
/// says so by the epoch at which that is, so no other record does, however many were missed in
/// between.
fn is_opened_again(held: &Held, (epoch, replica): (Epoch, Replica), omission: Omission) -> bool {
    let broken = held.broken.as_ref();
    let can_go_on = broken.is_some_and(ReplicaFailure::can_go_on_again);
    let is_any_enough = omission.leaves_out(Check::OpenedAgainIsNamed);
    let is_named = replica.opened_again > held.epoch || (is_any_enough && epoch > held.epoch);
    can_go_on && held.replica == replica.number && is_named
}

/// A failure as it is reported.
fn told(failure: ReplicaFailure) -> ReplicaFailure {
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
