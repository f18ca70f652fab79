//! The master: whoever holds the key `master` looks, plans, and writes (CP11).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::coordinator::{
    Bound, Compare, Coordinator, CoordinatorError, Revision, TransactionOutcome,
};
use crate::ids::{RegionId, ServerId};
use crate::lease::LeaseTerms;
use crate::omission::Check;
use crate::plan::{Plan, PlanOptions, Step, Waiting, plan};
use crate::record::{FORMAT_VERSION, MASTER_KEY, MasterRecord, Record};
use crate::tenure::{Tenure, TenureChange};
use crate::view::{Mirror, View};

/// So many leases long a server gets no other backup of a region whose primary could not keep one
/// there, unless there is no other server.
const AVOIDED_LEASE_COUNT: u32 = 6;

/// One of those who would be master.
#[derive(Debug)]
pub struct Master<C: std::fmt::Debug> {
    coordinator: Bound<C>,
    clock: Arc<dyn Clock>,
    terms: LeaseTerms,
    options: PlanOptions,
    tenure: Tenure,
    mirror: Mirror<Bound<C>>,
    /// The revision of what was written last: nothing is planned on a view from before.
    written: Revision,
    /// The view and what was avoided that nothing is to be done for.
    idle_at: Option<(Revision, BTreeSet<(RegionId, ServerId)>)>,
    avoided_until: BTreeMap<(RegionId, ServerId), Duration>,
    waiting: Vec<Waiting>,
    /// Which servers refuse the records, as was logged last.
    refusing: BTreeSet<ServerId>,
    /// How many accepted losses it knows of (ID5).
    accepted_loss_count: u64,
}

/// What came of a look of the master.
#[derive(Clone, Debug, Default)]
pub struct MasterTick {
    /// Whether it is master, as far as it knows.
    pub is_master: bool,
    /// What it has done.
    pub done: Vec<Step>,
}

impl<C: Coordinator + Clone + std::fmt::Debug> Master<C> {
    /// One that can be asked at this address, in words for people.
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
            tenure: Tenure::new(key, record.encode(), terms, clock.clone()),
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

    /// What it saw last.
    pub fn view(&self) -> &View {
        self.mirror.view()
    }

    /// Whether the coordinator has answered when the lease was asked for last.
    pub fn is_in_touch(&self) -> bool {
        self.tenure.is_in_touch()
    }

    /// What waits for servers, as of the last look.
    pub fn waiting(&self) -> &[Waiting] {
        &self.waiting
    }

    /// Does what is due, and waits for a change to look at, for so long at the most. To be called
    /// again and again; a few round trips if something is to be done, none if not.
    ///
    /// # Errors
    /// Those of the coordinator: a later call goes on.
    pub fn tick(&mut self, timeout: Duration) -> Result<MasterTick, CoordinatorError> {
        match self.tenure.tick(&self.coordinator)? {
            TenureChange::Won(_) => {
                let since = self.tenure.held_since().unwrap_or_default();
                tracing::info!("master since {since}");
            }
            TenureChange::Lost => tracing::warn!("master no more: the lease was not kept"),
            TenureChange::Unchanged => {}
        }
        let Some(election) = self.tenure.held_since() else {
            return Ok(MasterTick::default());
        };
        self.mirror.refresh(timeout)?;
        self.forget_if_lost();
        let mut tick = MasterTick {
            is_master: true,
            done: Vec::new(),
        };
        let compares = !self.options.omission.leaves_out(Check::RecordIsCompared);
        if self.mirror.view().revision < self.written && compares {
            return Ok(tick); // It would plan the same again, and be refused.
        }
        self.note_avoided();
        self.tell_refusals();
        let seen = (self.mirror.view().revision, self.options.avoided.clone());
        if self.idle_at.as_ref() == Some(&seen) {
            return Ok(tick);
        }
        let Plan { steps, waiting } = plan(self.mirror.view(), &self.options);
        for waits in waiting.iter().filter(|it| !self.waiting.contains(it)) {
            tracing::warn!("{} waits for {}", waits.region, waits.what);
        }
        self.waiting = waiting;
        self.idle_at = steps.is_empty().then_some(seen);
        for step in steps {
            if !self.execute(election, &step)? {
                break;
            }
            tracing::info!("{step}");
            tick.done.push(step);
        }
        Ok(tick)
    }

    /// ID5: after an operator accepted a loss, revisions of the newer records say nothing.
    fn forget_if_lost(&mut self) {
        let count = self.coordinator.accepted_loss_count();
        if count != self.accepted_loss_count {
            self.accepted_loss_count = count;
            self.written = Revision::NEVER;
            self.idle_at = None;
        }
    }

    /// Logs that nothing is planned because servers refuse the records (ID5), once for these.
    fn tell_refusals(&mut self) {
        let refusing: BTreeSet<_> = self.mirror.view().refusals.keys().copied().collect();
        if refusing == self.refusing {
            return;
        }
        if let Some(first) = refusing.first() {
            tracing::error!(
                "the master promotes, moves and removes no replica: {first} refuses the \
                 coordinator's records ({} in all do); `farleaf cluster status` says what to do",
                refusing.len()
            );
        }
        self.refusing = refusing;
    }

    /// Writes a step, if it still is master and the records are those that the step was made for.
    fn execute(&mut self, election: Revision, step: &Step) -> Result<bool, CoordinatorError> {
        let mut transaction = step.transaction.clone();
        if !self.options.omission.leaves_out(Check::MasterIsCompared) {
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

    /// Stops being master at once, so that another one need not wait for the lease's end. One
    /// round trip.
    ///
    /// # Errors
    /// Those of the coordinator.
    pub fn resign(&mut self) -> Result<(), CoordinatorError> {
        self.tenure.resign(&self.coordinator)
    }
}
