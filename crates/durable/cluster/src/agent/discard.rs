//! Giving up copies that nobody can want any more (CP18).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use super::Agent;
use super::given::Given;
use super::host::RegionHost;
use crate::admin;
use crate::coordinator::Coordinator;
use crate::ids::{RegionId, ReplicaNumber, ServerId};
use crate::record::{Phase, RegionRecord, ServerReport, report_key};

/// Where a member may lack what a copy has, its report is read again so much later.
const DOUBT_TIME: Duration = Duration::from_secs(1);

impl<C: Coordinator + Clone + Debug, H: RegionHost> Agent<C, H> {
    /// Gives up copies that nobody can want any more (CP18): those of replicas that the record does
    /// not name, while two members or more have everything; and those of regions that are gone.
    /// Whether they were found when this life began or are of replicas that broke since. Those of
    /// regions of which the coordinator has never heard stay (CP23).
    /// A copy that cannot be used stays, so that an operator can look at it. So does one that may
    /// have what a member lacks (RS8, RS14): while a member reports damage, is not verified, or
    /// reports nothing; or while another replica here is filled. One round trip for each server
    /// that has a member, if there is a copy to give up.
    pub(super) fn discard_copies(&mut self, given: &Given) {
        let view = self.mirror.view();
        let now = self.clock.now();
        if !view.damaged.is_empty() || now < self.discards_from {
            return;
        }
        let servers = self.servers.view();
        let is_being_made = |region: RegionId| {
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
        let mut is_kept = |region: RegionId, replica: ReplicaNumber| {
            let is_wanted = match view.regions.get(&region) {
                Some(seen) => {
                    let record = &seen.record;
                    let is_named = record.replicas().any(|it| it.number == replica);
                    let members = record.members();
                    let alive = members.filter(|it| !servers.is_over(*it));
                    is_named || record.is_unproven || alive.count() < 2
                }
                None => is_being_made(region) || given.have(region) != Some(true),
            };
            if is_wanted {
                return true;
            }
            let record = view.regions.get(&region).map(|seen| &seen.record);
            if record.is_some_and(|it| reports.may_lack_some(it)) {
                self.discards_from = now + DOUBT_TIME;
                return true;
            }
            let incarnation = record.and_then(|it| it.incarnation);
            host.discard_copy((region, replica), incarnation);
            false
        };
        let found = &mut self.found.copies;
        found.retain(|it| may_be_faulty(&it.region) || is_kept(it.region, it.replica));
        self.left.retain(|(region, replica), how| {
            (how.is_some() && may_be_faulty(region)) || is_kept(*region, *replica)
        });
    }
}

/// What servers report, each read once.
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

    /// Whether a member of a region may lack what another copy has, by what it reports.
    fn may_lack_some(&mut self, record: &RegionRecord) -> bool {
        record.members().any(|member| {
            let report = self.of(member.server);
            let told = report.and_then(|it| it.replica(record.region, member.number));
            told.is_none_or(|it| {
                let is_verified = it.verification.is_none_or(|it| it.is_finished);
                it.fault.is_some() || it.broken.is_some() || !is_verified
            })
        })
    }
}
