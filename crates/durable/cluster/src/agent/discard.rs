//! Deletion of copies that no region needs any more (CONTROL-18).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use super::Agent;
use super::assigned::AssignedNumbers;
use super::host::RegionHost;
use crate::admin;
use crate::coordinator::Coordinator;
use crate::ids::{RegionId, ReplicaNumber, ServerId};
use crate::record::{Phase, RegionRecord, ServerReport, report_key};

/// Interval after which the report of a member that may lack data is read again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

impl<C: Coordinator + Clone + Debug, H: RegionHost> Agent<C, H> {
    /// Deletes copies that are no longer needed (CONTROL-18). These are copies of replicas that the
    /// record does not name, while at least two members have everything, and copies of removed
    /// regions. They were found when this life began, or belong to replicas that broke since.
    /// Copies of regions whose numbers were never assigned stay (CONTROL-23).
    ///
    /// A copy that cannot be used stays, so that an operator can look at it. A copy that may have
    /// data that a member lacks stays, too: while a member reports damage, is not verified, or
    /// reports nothing, or while another replica on this server is catching up. Costs one round
    /// trip for each server with a member, if there is a copy to delete.
    pub(super) fn discard_copies(&mut self, assigned: &AssignedNumbers) {
        let view = self.mirror.view();
        let now = self.clock.now();
        if !view.damaged.is_empty() || now < self.discards_from {
            return;
        }
        let servers = self.servers.view();
        let is_being_created = |region: RegionId| {
            let mut phases = view.regions.values().map(|seen| &seen.record.phase);
            phases.any(|phase| matches!(phase, Phase::Splitting { child, .. } if *child == region))
        };
        let (coordinator, host) = (&self.coordinator, &mut self.host);
        let statuses = host.status().into_iter();
        let faulty: BTreeSet<RegionId> = statuses
            .filter(|it| it.fault.is_some())
            .map(|it| it.region)
            .collect();
        let own = self.options.server;
        let may_be_faulty = |region: &RegionId| {
            let record = view.regions.get(region).map(|seen| &seen.record);
            let mut backups = record.map_or(&[][..], |it| &it.backups).iter();
            let is_filled = backups.any(|it| it.replica.server == own && !it.in_sync);
            is_filled || faulty.contains(region)
        };
        let mut reports = Reports::new(coordinator);
        let mut is_needed = |region: RegionId, replica: ReplicaNumber| {
            let is_wanted = match view.regions.get(&region) {
                Some(seen) => {
                    let record = &seen.record;
                    let is_named = record.replicas().any(|it| it.number == replica);
                    let members = record.members();
                    let alive = members.filter(|it| !servers.is_over(*it));
                    is_named || record.is_unproven || alive.count() < 2
                }
                None => is_being_created(region) || assigned.have(region) != Some(true),
            };
            if is_wanted {
                return true;
            }
            let record = view.regions.get(&region).map(|seen| &seen.record);
            if record.is_some_and(|it| reports.may_lack_some(it)) {
                self.discards_from = now + RECHECK_INTERVAL;
                return true;
            }
            let incarnation = record.and_then(|it| it.incarnation);
            host.discard_copy(region, replica, incarnation);
            false
        };
        let copies = &mut self.disk_copies.copies;
        copies.retain(|it| may_be_faulty(&it.region) || is_needed(it.region, it.replica));
        self.abandoned.retain(|(region, replica), how| {
            (how.is_some() && may_be_faulty(region)) || is_needed(*region, *replica)
        });
    }
}

/// Reports of servers, each read once.
struct Reports<'c, C> {
    coordinator: &'c C,
    read: BTreeMap<ServerId, Option<ServerReport>>,
}

impl<'c, C: Coordinator> Reports<'c, C> {
    fn new(coordinator: &'c C) -> Self {
        let read = BTreeMap::new();
        Self { coordinator, read }
    }

    fn of(&mut self, server: ServerId) -> Option<&ServerReport> {
        let read = || {
            let report = admin::read::<ServerReport>(self.coordinator, &report_key(server));
            Some(report.ok()??.record)
        };
        self.read.entry(server).or_insert_with(read).as_ref()
    }

    /// Returns whether a member of a region may lack data that another copy has, according to its
    /// report.
    fn may_lack_some(&mut self, record: &RegionRecord) -> bool {
        record.members().any(|member| {
            let report = self.of(member.server);
            let reported = report.and_then(|it| it.replica(record.region, member.number));
            reported.is_none_or(|it| {
                let is_verified = it.verification.is_none_or(|it| it.is_finished);
                it.fault.is_some() || it.broken.is_some() || !is_verified
            })
        })
    }
}
