//! A key that is held by a lease: a server's registration (CP8), and the master's election (CP11).

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::coordinator::{
    Compare, Coordinator, CoordinatorError, KeepAlive, LeaseId, Revision, Transaction,
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

    /// Does what is due: asks for a lease, for the key, or for the lease to go on. No round trip if
    /// nothing is due, three at the most.
    ///
    /// # Errors
    /// Those of the coordinator: it is tried again by a later call.
    pub fn tick<C: Coordinator>(
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
            match coordinator.keep_alive(lease.id)? {
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
        let created = match coordinator.transact(&transaction)? {
            TransactionOutcome::Committed(revision) => revision,
            TransactionOutcome::LeaseGone => return Ok(self.lose()),
            TransactionOutcome::Refused => {
                // Somebody has it: oneself, if an earlier answer was lost.
                let snapshot = coordinator.range(&self.key)?;
                let entry = snapshot.entries.into_iter().find(|it| it.key == self.key);
                match entry.filter(|it| it.lease == Some(lease.id)) {
                    Some(own) => own.create_revision,
                    None => return Ok(TenureChange::Unchanged),
                }
            }
        };
        let usable_until = lease.asked_at + self.terms.usable(lease.time_to_live);
        let guard = LeaseGuard::new(self.clock.clone(), usable_until);
        self.held = Some((created, guard.clone()));
        Ok(TenureChange::Won(guard))
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
