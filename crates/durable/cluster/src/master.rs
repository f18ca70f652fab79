//! The master: the process that holds the key `master` reads, plans and writes (CONTROL-11).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::coordinator::{
    Bound, Compare, Coordinator, CoordinatorError, Revision, TransactionOutcome,
};
use crate::ids::{RegionId, ServerId};
use crate::lease::LeaseTerms;
use crate::leased_key::{LeasedKey, LeasedKeyChange};
use crate::omission::Check;
use crate::plan::{MasterPlan, PlanOptions, PlanStep, Waiting, plan};
use crate::record::{FORMAT_VERSION, MASTER_KEY, MasterRecord, Record};
use crate::view::{Mirror, View};
use farleaf_base::clock::Clock;

/// Number of leases for which a server gets no other backup of a region, after the primary could
/// not keep one there, unless there is no other server.
const AVOIDED_LEASE_COUNT: u32 = 6;

/// A candidate for master.
#[derive(Debug)]
pub struct Master<C: std::fmt::Debug> {
    coordinator: Bound<C>,
    clock: Arc<dyn Clock>,
    terms: LeaseTerms,
    options: PlanOptions,
    leased_key: LeasedKey,
    mirror: Mirror<Bound<C>>,
    /// Revision of the last write; no plan uses an older view.
    written: Revision,
    /// View and avoided servers for which the last plan was empty.
    idle_at: Option<(Revision, BTreeSet<(RegionId, ServerId)>)>,
    avoided_until: BTreeMap<(RegionId, ServerId), Duration>,
    waiting: Vec<Waiting>,
    /// Servers that refuse the records, as logged last.
    refusing: BTreeSet<ServerId>,
    /// Number of accepted losses that the master knows.
    accepted_loss_count: u64,
}

/// Result of a tick.
#[derive(Clone, Debug, Default)]
pub struct MasterTick {
    /// Whether this process is master, as far as it knows.
    pub is_master: bool,
    /// Steps that were executed.
    pub done: Vec<PlanStep>,
}

impl<C: Coordinator + Clone + std::fmt::Debug> Master<C> {
    /// Creates a candidate; `address` is shown to people.
    pub fn new(
        coordinator: Bound<C>,
        clock: Arc<dyn Clock>,
        terms: LeaseTerms,
        address: &str,
        options: PlanOptions,
    ) -> Self {
        let record = MasterRecord {
            version: FORMAT_VERSION,
            address: address.to_owned(),
        };
        let key = MASTER_KEY.to_owned();
        Self {
            leased_key: LeasedKey::new(key, record.encode(), terms, clock.clone()),
            mirror: Mirror::new(coordinator.clone(), ""),
            coordinator,
            clock,
            terms,
            options,
            written: Revision::NEVER,
            idle_at: None,
            avoided_until: BTreeMap::new(),
            waiting: Vec::new(),
            refusing: BTreeSet::new(),
            accepted_loss_count: 0,
        }
    }

    /// Returns the last view.
    pub fn view(&self) -> &View {
        self.mirror.view()
    }

    /// Returns whether the coordinator answered the last lease request.
    pub fn is_coordinator_reachable(&self) -> bool {
        self.leased_key.is_coordinator_reachable()
    }

    /// Returns what waits for servers, as of the last plan.
    pub fn waiting(&self) -> &[Waiting] {
        &self.waiting
    }

    /// Does what is due, and waits for a change at most for `timeout`. Call it repeatedly. Costs a
    /// few round trips if there is something to do, none otherwise.
    ///
    /// # Errors
    /// The errors of the coordinator; a later call continues.
    pub fn tick(&mut self, timeout: Duration) -> Result<MasterTick, CoordinatorError> {
        match self.leased_key.tick(&self.coordinator)? {
            LeasedKeyChange::Won(_) => {
                let since = self.leased_key.held_since().unwrap_or_default();
                tracing::info!("became the master at {since}");
            }
            LeasedKeyChange::Lost => {
                tracing::warn!("no longer the master: its lease was not renewed in time");
            }
            LeasedKeyChange::Unchanged => {}
        }
        let Some(election) = self.leased_key.held_since() else {
            return Ok(MasterTick::default());
        };
        self.mirror.refresh(timeout)?;
        self.reset_if_loss_accepted();
        let mut tick = MasterTick {
            is_master: true,
            done: Vec::new(),
        };
        let compares = !self.options.omission.skips_check(Check::RecordIsCompared);
        if self.mirror.view().revision < self.written && compares {
            return Ok(tick); // The same plan would be refused again.
        }
        self.note_avoided();
        self.log_refusals();
        let basis = (self.mirror.view().revision, self.options.avoided.clone());
        if self.idle_at.as_ref() == Some(&basis) {
            return Ok(tick);
        }
        let MasterPlan { steps, waiting } = plan(self.mirror.view(), &self.options);
        for waits in waiting.iter().filter(|it| !self.waiting.contains(it)) {
            tracing::warn!("{} waits for {}", waits.region, waits.what);
        }
        self.waiting = waiting;
        self.idle_at = steps.is_empty().then_some(basis);
        for step in steps {
            if !self.execute(election, &step)? {
                break;
            }
            tracing::info!("{step}");
            tick.done.push(step);
        }
        Ok(tick)
    }

    /// Discards remembered revisions after an operator accepted a loss: they mean nothing for the
    /// new records.
    fn reset_if_loss_accepted(&mut self) {
        let count = self.coordinator.accepted_loss_count();
        if count != self.accepted_loss_count {
            self.accepted_loss_count = count;
            self.written = Revision::NEVER;
            self.idle_at = None;
        }
    }

    /// Logs that nothing is planned because servers refuse the records, once for each set of
    /// servers.
    fn log_refusals(&mut self) {
        let refusing: BTreeSet<_> = self.mirror.view().refusals.keys().copied().collect();
        if refusing == self.refusing {
            return;
        }
        if let Some(first) = refusing.first() {
            tracing::error!(
                "the master has stopped promoting, moving and removing replicas: {first} refuses \
                 the coordinator's records (servers that refuse: {}); `farleaf cluster status` \
                 shows what to do",
                refusing.len()
            );
        }
        self.refusing = refusing;
    }

    /// Writes a step, if this process still is master and the records are those that the step was
    /// planned on.
    fn execute(&mut self, election: Revision, step: &PlanStep) -> Result<bool, CoordinatorError> {
        let mut transaction = step.transaction.clone();
        if !self.options.omission.skips_check(Check::MasterIsCompared) {
            transaction = transaction.when(Compare::Created(MASTER_KEY.to_owned(), election));
        }
        match self.coordinator.transact(&transaction)? {
            TransactionOutcome::Committed(revision) => {
                self.written = revision;
                Ok(true)
            }
            TransactionOutcome::Refused | TransactionOutcome::LeaseGone => Ok(false),
        }
    }

    /// Remembers where primaries could not keep backups.
    fn note_avoided(&mut self) {
        let now = self.clock.now();
        let until = now + self.terms.time_to_live * AVOIDED_LEASE_COUNT;
        let view = self.mirror.view();
        for seen in view.regions.values() {
            let record = &seen.record;
            let report = record.primary.and_then(|it| view.report(record.region, it));
            let Some(primary) = report.and_then(|it| it.primary.as_ref()) else {
                continue;
            };
            for backup in &record.backups {
                if primary.failed.contains(&backup.replica.number) {
                    let place = (record.region, backup.replica.server);
                    self.avoided_until.insert(place, until);
                }
            }
        }
        self.avoided_until.retain(|_, until| *until > now);
        self.options.avoided = self.avoided_until.keys().copied().collect();
    }

    /// Resigns, so that another candidate need not wait for the lease's end. Costs one round trip.
    ///
    /// # Errors
    /// The errors of the coordinator.
    pub fn resign(&mut self) -> Result<(), CoordinatorError> {
        self.leased_key.resign(&self.coordinator)
    }
}
