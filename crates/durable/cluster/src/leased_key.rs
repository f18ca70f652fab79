//! A key that is held by a lease: a server's registration (CP8), and the master's election (CP11).

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::coordinator::{
    Compare, Coordinator, CoordinatorError, Entry, KeepAlive, LeaseId, Revision, Transaction,
    TransactionOutcome,
};
use crate::lease::{LeaseGuard, LeaseTerms};
use crate::omission::{Check, Omission};

/// What a look at a tenure has changed.
#[derive(Clone, Debug)]
pub enum TenureChange {
    /// Nothing.
    Unchanged,
    /// The key is held from now on; whatever is done on its strength is done under this guard.
    Won(LeaseGuard),
    /// It is held no more; its guard says no.
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    id: LeaseId,
    time_to_live: Duration,
    /// When it was asked for last, by the own clock, and the coordinator said yes.
    asked_at: Duration,
}

/// Who holds a key that one waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rival {
    /// What the key has.
    pub value: Vec<u8>,
    /// Since when it is held.
    pub since: Revision,
    /// For how long it was seen to be, by the own clock, while the coordinator was reached. Time in
    /// which nobody looked does not count.
    pub waited: Duration,
    seen_at: Duration,
}

/// Tries to hold a key, and to keep it.
#[derive(Debug)]
pub struct Tenure {
    key: String,
    value: Vec<u8>,
    terms: LeaseTerms,
    clock: Arc<dyn Clock>,
    omission: Omission,
    lease: Option<Lease>,
    held: Option<(Revision, LeaseGuard)>,
    rival: Option<Rival>,
    is_in_touch: bool,
    next_try_at: Duration,
}

impl Tenure {
    /// One of a key, which is to have this value.
    pub fn new(key: String, value: Vec<u8>, terms: LeaseTerms, clock: Arc<dyn Clock>) -> Self {
        Self {
            key,
            value,
            terms,
            clock,
            omission: Omission::NONE,
            lease: None,
            held: None,
            rival: None,
            is_in_touch: false,
            next_try_at: Duration::ZERO,
        }
    }

    /// With a check left out, for tests of the tests.
    #[doc(hidden)]
    #[must_use]
    pub fn leaving_out(mut self, omission: Omission) -> Self {
        self.omission = omission;
        self
    }

    /// Since when the key is held, as far as is known.
    pub fn held_since(&self) -> Option<Revision> {
        self.held.as_ref().map(|(created, _)| *created)
    }

    /// The lease.
    pub fn lease(&self) -> Option<LeaseId> {
        self.lease.map(|lease| lease.id)
    }

    /// The guard, while the key is held as far as is known.
    pub fn guard(&self) -> Option<&LeaseGuard> {
        self.held.as_ref().map(|(_, guard)| guard)
    }

    /// Whether the coordinator has answered when it was asked last.
    pub fn is_in_touch(&self) -> bool {
        self.is_in_touch
    }

    /// Who holds the key, where somebody else does.
    pub fn rival(&self) -> Option<&Rival> {
        self.rival.as_ref()
    }

    /// Whether somebody else holds the key, and keeps its lease alive, which is so long, or as long
    /// as one's own is: if nobody kept it, it would have been over for long.
    pub fn rival_is_alive(&self, lease: Duration) -> bool {
        let own = self.lease.map_or(Duration::ZERO, |it| it.time_to_live);
        let time_to_live = self.terms.time_to_live.max(own).max(lease);
        let over_after = self.terms.surely_over(time_to_live);
        self.rival.as_ref().is_some_and(|it| it.waited > over_after)
    }

    /// Does what is due: asks for a lease, for the key, or for the lease to go on. No round trip if
    /// nothing is due, three at the most.
    ///
    /// # Errors
    /// Those of the coordinator: it is tried again by a later call.
    pub fn tick<C: Coordinator>(
        &mut self,
        coordinator: &C,
    ) -> Result<TenureChange, CoordinatorError> {
        let ticked = self.do_due(coordinator);
        if ticked.is_err() {
            self.is_in_touch = false;
            // When it is back, leases have their whole time again (CP6).
            self.rival = None;
        }
        ticked
    }

    fn do_due<C: Coordinator>(
        &mut self,
        coordinator: &C,
    ) -> Result<TenureChange, CoordinatorError> {
        let Some(lease) = self.lease else {
            if self.clock.now() < self.next_try_at {
                return Ok(TenureChange::Unchanged);
            }
            self.try_later();
            let asked_at = self.clock.now();
            let (id, granted) = coordinator.grant_lease(self.terms.time_to_live)?;
            self.lease = Some(Lease {
                id,
                time_to_live: granted,
                asked_at: self.asked_at(asked_at),
            });
            return self.take(coordinator);
        };
        let due_at = lease.asked_at + self.terms.keep_alive_interval();
        if self.clock.now() >= due_at.max(self.next_try_at) {
            self.try_later();
            let asked_at = self.clock.now();
            let kept = coordinator.keep_alive(lease.id)?;
            self.is_in_touch = true;
            match kept {
                KeepAlive::Gone => return Ok(self.lose()),
                KeepAlive::Alive(time_to_live) => {
                    let asked_at = self.asked_at(asked_at);
                    self.lease = Some(Lease {
                        time_to_live,
                        asked_at,
                        ..lease
                    });
                    if let Some((_, guard)) = &self.held {
                        guard.extend(asked_at + self.terms.usable(time_to_live));
                    }
                }
            }
        }
        if self.held.is_none() && self.clock.now() >= self.next_try_at {
            self.try_later();
            return self.take(coordinator);
        }
        Ok(TenureChange::Unchanged)
    }

    /// From when on a lease counts: from before it was asked for (CP9).
    fn asked_at(&self, before: Duration) -> Duration {
        if self.omission.leaves_out(Check::LeaseCountsFromRequest) {
            return self.clock.now();
        }
        before
    }

    /// After a failure, the next try is not at once.
    fn try_later(&mut self) {
        self.next_try_at = self.clock.now() + self.terms.keep_alive_interval() / 4;
    }

    fn take<C: Coordinator>(&mut self, coordinator: &C) -> Result<TenureChange, CoordinatorError> {
        let Some(lease) = self.lease else {
            return Ok(TenureChange::Unchanged);
        };
        let transaction = Transaction::new()
            .when(Compare::Created(self.key.clone(), Revision::NEVER))
            .put_leased(self.key.clone(), self.value.clone(), lease.id);
        let outcome = coordinator.transact(&transaction)?;
        self.is_in_touch = true;
        let created = match outcome {
            TransactionOutcome::Committed(revision) => revision,
            TransactionOutcome::LeaseGone => return Ok(self.lose()),
            TransactionOutcome::Refused => {
                // Somebody has it: oneself, if an earlier answer was lost.
                let snapshot = coordinator.range(&self.key)?;
                let entry = snapshot.entries.into_iter().find(|it| it.key == self.key);
                match entry {
                    Some(own) if own.lease == Some(lease.id) => own.create_revision,
                    other => {
                        self.note_rival(other);
                        return Ok(TenureChange::Unchanged);
                    }
                }
            }
        };
        self.rival = None;
        let usable_until = lease.asked_at + self.terms.usable(lease.time_to_live);
        let guard = LeaseGuard::new(self.clock.clone(), usable_until);
        self.held = Some((created, guard.clone()));
        Ok(TenureChange::Won(guard))
    }

    fn note_rival(&mut self, entry: Option<Entry>) {
        let now = self.clock.now();
        let looked_every = self.terms.keep_alive_interval();
        let before = self.rival.take();
        self.rival = entry.map(|entry| {
            let before = before.filter(|it| it.since == entry.create_revision);
            let waited = before.map_or(Duration::ZERO, |it| {
                it.waited + now.saturating_sub(it.seen_at).min(looked_every)
            });
            Rival {
                value: entry.value,
                since: entry.create_revision,
                waited,
                seen_at: now,
            }
        });
    }

    /// The lease is over, as the coordinator has said.
    pub fn lose(&mut self) -> TenureChange {
        self.lease = None;
        match self.held.take() {
            Some((_, guard)) => {
                guard.end();
                TenureChange::Lost
            }
            None => TenureChange::Unchanged,
        }
    }

    /// Gives the key back: others need not wait for the lease's end. One round trip.
    ///
    /// # Errors
    /// Those of the coordinator; the lease then ends by itself.
    pub fn resign<C: Coordinator>(&mut self, coordinator: &C) -> Result<(), CoordinatorError> {
        let lease = self.lease;
        self.lose();
        lease.map_or(Ok(()), |lease| coordinator.revoke_lease(lease.id))
    }
}
