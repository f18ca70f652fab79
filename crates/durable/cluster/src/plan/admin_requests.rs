//! Requests of administrators: started, or refused with the reason.

use super::{Action, PlanStep, Planner, load};
use crate::coordinator::{Compare, Transaction};
use crate::ids::ServerId;
use crate::record::region::{Key, REPLICA_COUNT_MAX};
use crate::record::server::{FAILURE_SIZE_BYTES_MAX, cut};
use crate::record::space::low_below_bytes;
use crate::record::{
    AdminReply, AdminRequest, AdminRequestKind, Phase, Record, RegionRecord, SpaceState,
    admin_request_key,
};
use crate::view::RevisionedRecord;

/// Maximum number of replies that are kept; the oldest are deleted first, read or not.
const REPLY_COUNT_MAX: usize = 64;

/// Decision on a request: the record to write with more writes, or the reason of a refusal.
type Decision = Result<(Action, RegionRecord, Transaction), String>;

impl Planner<'_> {
    /// Decides all requests without a reply.
    pub(super) fn admin_requests(&mut self) {
        for (number, admin_request) in &self.view.admin_requests {
            if admin_request.record.answer.is_none() {
                self.admin_request(*number, admin_request);
            }
        }
        self.remove_old_replies();
    }

    /// Deletes the oldest replies that were not read.
    fn remove_old_replies(&mut self) {
        let admin_requests = self.view.admin_requests.iter();
        let mut answered: Vec<_> = admin_requests
            .filter(|(_, it)| it.record.answer.is_some())
            .collect();
        answered.sort_by_key(|(_, admin_request)| admin_request.modified);
        let surplus = answered.len().saturating_sub(REPLY_COUNT_MAX);
        for (number, admin_request) in answered.into_iter().take(surplus) {
            let (table, region) = admin_request.record.kind.region();
            let key = admin_request_key(*number);
            self.plan.steps.push(PlanStep {
                action: Action::RemoveReply,
                table,
                region: Some(region),
                transaction: Transaction::new()
                    .when(Compare::Modified(key.clone(), admin_request.modified))
                    .delete(key),
            });
        }
    }

    fn admin_request(&mut self, number: u64, admin_request: &RevisionedRecord<AdminRequest>) {
        let (table, region) = admin_request.record.kind.region();
        if self.busy.contains(&region) {
            return; // The next plan decides it.
        }
        let current = self.view.regions.get(&region);
        let Some(current) = current.filter(|it| it.record.table == table) else {
            return self.refuse(number, admin_request, format!("{table} has no {region}"));
        };
        let is_dropping = (self.view.tables.get(&table)).is_some_and(|table| table.record.dropping);
        if is_dropping {
            return self.refuse(number, admin_request, format!("{table} is being dropped"));
        }
        match self.begin(&admin_request.record.kind, &current.record) {
            Err(why) => self.refuse(number, admin_request, why),
            Ok((action, record, more)) => {
                let answered = answer(number, admin_request, AdminReply::Begun, more);
                self.step_with(action, current, &record, answered);
            }
        }
    }

    fn refuse(&mut self, number: u64, admin_request: &RevisionedRecord<AdminRequest>, why: String) {
        let why = cut(why, FAILURE_SIZE_BYTES_MAX);
        let (table, region) = admin_request.record.kind.region();
        let refused = AdminReply::Refused(why.clone());
        let transaction = answer(number, admin_request, refused, Transaction::new());
        self.plan.steps.push(PlanStep {
            action: Action::Refuse(why),
            table,
            region: Some(region),
            transaction,
        });
    }

    fn begin(&mut self, kind: &AdminRequestKind, record: &RegionRecord) -> Decision {
        if let AdminRequestKind::GiveUp { servers, .. } = kind {
            let record = self.given_up(record, servers)?;
            return Ok((Action::GiveUp, record, Transaction::new()));
        }
        if record.phase != Phase::Steady {
            return Err(format!("another change is in progress: {}", record.phase));
        }
        if self.primary_report(record).is_none() {
            return Err(not_served(record));
        }
        let opened = RegionRecord {
            is_new: false,
            ..record.clone()
        };
        match kind {
            AdminRequestKind::Split { at, .. } => self.begin_split(opened, at),
            AdminRequestKind::Move { from, to, .. } => self.begin_move(opened, *from, *to),
            AdminRequestKind::GiveUp { .. } => unreachable!("it is done above"),
        }
    }

    fn begin_split(&self, mut record: RegionRecord, at: &Key) -> Decision {
        if *at <= record.from || !record.covers(&at.0) {
            return Err(format!(
                "split key {at} is not within the region, after its first key"
            ));
        }
        let (child, more) = self.draw_region()?;
        record.phase = Phase::Splitting {
            at: at.clone(),
            child,
        };
        Ok((Action::BeginSplit, record, more))
    }

    fn begin_move(&mut self, mut record: RegionRecord, from: ServerId, to: ServerId) -> Decision {
        let leaving = record
            .replica_on(from)
            .ok_or_else(|| format!("{from} has no replica of the region"))?;
        if let Some(there) = record.replica_on(to) {
            let is_primary = record.primary == Some(leaving);
            let in_sync = record.backup(there.number).is_some_and(|it| it.in_sync);
            if !is_primary {
                return Err(format!("{to} already has a replica of {}", record.region));
            }
            if !in_sync {
                return Err(format!(
                    "{to} has a replica of {} that is not in sync yet; retry when `farleaf cluster \
                     status` shows it in sync",
                    record.region
                ));
            }
            if !self.is_usable(&record, there) {
                return Err(format!("{to} is lost, so it cannot become the primary"));
            }
            if self.view.space_of(to) == SpaceState::Full {
                return Err(self.no_space_reason(to));
            }
            record.phase = Phase::HandingOver {
                to: there.number,
                old_leaves: false,
            };
            return Ok((Action::BeginHandOver, record, Transaction::new()));
        }
        if self.view.drains.contains(&to) || !self.view.servers.contains_key(&to) {
            return Err(format!("{to} is not registered, or is being drained"));
        }
        if record.replicas().count() >= REPLICA_COUNT_MAX {
            return Err(format!(
                "the region already has {REPLICA_COUNT_MAX} replicas, the limit"
            ));
        }
        if !self
            .loads
            .has_space(to, load::size_bytes(self.view, &record))
        {
            return Err(self.no_space_reason(to));
        }
        let arriving = self.add_backup_on(&mut record, to);
        let arriving = arriving.ok_or_else(|| format!("{to} is not running"))?;
        record.phase = Phase::Moving {
            leaving: leaving.number,
            arriving: arriving.number,
        };
        let size_bytes = load::size_bytes(self.view, &record);
        tracing::debug!(size_bytes, "moving {} from {from} to {to}", record.region);
        Ok((Action::BeginMove(to), record, Transaction::new()))
    }

    /// Returns why a server gets no replicas for lack of space (CONTROL-22).
    fn no_space_reason(&self, server: ServerId) -> String {
        let report = self.view.server_report(server);
        let capacity = report.map_or(0, |report| report.capacity_bytes);
        let free = report.and_then(|report| report.free_bytes).unwrap_or(0);
        format!(
            "{server} has too little free space: {free} of {capacity} bytes are free, and {} must \
             remain free; free space on its disk, or enlarge it",
            low_below_bytes(capacity)
        )
    }
}

/// Adds the reply to a request to a transaction, on the condition that the request has none yet.
fn answer(
    number: u64,
    admin_request: &RevisionedRecord<AdminRequest>,
    answer: AdminReply,
    more: Transaction,
) -> Transaction {
    let answered = AdminRequest {
        answer: Some(answer),
        ..admin_request.record.clone()
    };
    more.when(Compare::Modified(
        admin_request_key(number),
        admin_request.modified,
    ))
    .put(admin_request_key(number), answered.encode())
}

/// Returns why a region without a serving primary is not changed.
fn not_served(record: &RegionRecord) -> String {
    let why = match record.primary {
        Some(primary) => format!(
            "its primary on {} does not report as serving",
            primary.server
        ),
        None => "it has no primary".to_owned(),
    };
    format!(
        "{} is not served now: {why}; retry when `farleaf cluster status` shows it as served",
        record.region
    )
}
