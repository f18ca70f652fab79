//! A key held with a lease: a server's registration (CONTROL-8), and the master's election
//! (CONTROL-11).

use std::sync::Arc;
use std::time::Duration;

use crate::coordinator::{
    Compare, Coordinator, CoordinatorError, Entry, KeepAlive, LeaseId, Revision, Transaction,
    TransactionOutcome,
};
use crate::lease::{LeaseGuard, LeaseTerms};
use crate::omission::{Check, Omission};
use farleaf_base::clock::Clock;

/// Result of a tick.
#[derive(Clone, Debug)]
pub enum LeasedKeyChange {
    /// Nothing has changed.
    Unchanged,
    /// The key is held from now on. Everything done on its strength is done under this guard.
    Won(LeaseGuard),
    /// The key is no longer held; its guard fails.
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    id: LeaseId,
    time_to_live: Duration,
    /// Time of the last successful request for the lease, by the own clock.
    asked_at: Duration,
}

/// Another holder of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherHolder {
    /// Value of the key.
    pub value: Vec<u8>,
    /// Revision since which the key is held.
    pub since: Revision,
    /// Time for which the holder was seen, by the own clock, while the coordinator was reachable.
    /// Time without checks does not count.
    pub waited: Duration,
    seen_at: Duration,
}

/// Acquires a key and keeps holding it.
#[derive(Debug)]
pub struct LeasedKey {
    key: String,
    value: Vec<u8>,
    terms: LeaseTerms,
    clock: Arc<dyn Clock>,
    omission: Omission,
    lease: Option<Lease>,
    held: Option<(Revision, LeaseGuard)>,
    other_holder: Option<OtherHolder>,
    is_coordinator_reachable: bool,
    next_try_at: Duration,
}

impl LeasedKey {
    /// Creates the state for a key that is to have this value.
    pub fn new(key: String, value: Vec<u8>, terms: LeaseTerms, clock: Arc<dyn Clock>) -> Self {
        Self {
            key,
            value,
            terms,
            clock,
            omission: Omission::NONE,
            lease: None,
            held: None,
            other_holder: None,
            is_coordinator_reachable: false,
            next_try_at: Duration::ZERO,
        }
    }

    /// Leaves a check out, so that tests can verify that they notice.
    #[doc(hidden)]
    #[must_use]
    pub fn leaving_out(mut self, omission: Omission) -> Self {
        self.omission = omission;
        self
    }

    /// Returns the revision since which the key is held, as far as is known.
    pub fn held_since(&self) -> Option<Revision> {
        self.held.as_ref().map(|(created, _)| *created)
    }

    /// Returns the lease.
    pub fn lease(&self) -> Option<LeaseId> {
        self.lease.map(|lease| lease.id)
    }

    /// Returns the guard, while the key is held as far as is known.
    pub fn guard(&self) -> Option<&LeaseGuard> {
        self.held.as_ref().map(|(_, guard)| guard)
    }

    /// Returns whether the coordinator answered the last request.
    pub fn is_coordinator_reachable(&self) -> bool {
        self.is_coordinator_reachable
    }

    /// Returns the other holder of the key, if there is one.
    pub fn other_holder(&self) -> Option<&OtherHolder> {
        self.other_holder.as_ref()
    }

    /// Returns whether another holder was seen for longer than its lease lasts without keep-alives.
    /// `lease` is the length of its lease; the own one counts if that is longer.
    pub fn other_holder_is_alive(&self, lease: Duration) -> bool {
        let own = self.lease.map_or(Duration::ZERO, |it| it.time_to_live);
        let time_to_live = self.terms.time_to_live.max(own).max(lease);
        let over_after = self.terms.surely_over(time_to_live);
        self.other_holder
            .as_ref()
            .is_some_and(|it| it.waited > over_after)
    }

    /// Does what is due: requests the lease, the key, or an extension of the lease. Costs no round
    /// trip if nothing is due, at most three otherwise.
    ///
    /// # Errors
    /// The errors of the coordinator; a later call retries.
    pub fn tick<C: Coordinator>(
        &mut self,
        coordinator: &C,
    ) -> Result<LeasedKeyChange, CoordinatorError> {
        let ticked = self.do_due(coordinator);
        if ticked.is_err() {
            self.is_coordinator_reachable = false;
            // When the coordinator is back, leases have their whole time again (CONTROL-6).
            self.other_holder = None;
        }
        ticked
    }

    fn do_due<C: Coordinator>(
        &mut self,
        coordinator: &C,
    ) -> Result<LeasedKeyChange, CoordinatorError> {
        let Some(lease) = self.lease else {
            if self.clock.now() < self.next_try_at {
                return Ok(LeasedKeyChange::Unchanged);
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
            let outcome = coordinator.keep_alive(lease.id)?;
            self.is_coordinator_reachable = true;
            match outcome {
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
        Ok(LeasedKeyChange::Unchanged)
    }

    /// Returns the time from which a lease counts: before its request (CONTROL-9).
    fn asked_at(&self, before: Duration) -> Duration {
        if self.omission.skips_check(Check::LeaseCountsFromRequest) {
            return self.clock.now();
        }
        before
    }

    /// Delays the next attempt after a failure.
    fn try_later(&mut self) {
        self.next_try_at = self.clock.now() + self.terms.keep_alive_interval() / 4;
    }

    fn take<C: Coordinator>(
        &mut self,
        coordinator: &C,
    ) -> Result<LeasedKeyChange, CoordinatorError> {
        let Some(lease) = self.lease else {
            return Ok(LeasedKeyChange::Unchanged);
        };
        let transaction = Transaction::new()
            .when(Compare::Created(self.key.clone(), Revision::NEVER))
            .put_leased(self.key.clone(), self.value.clone(), lease.id);
        let outcome = coordinator.transact(&transaction)?;
        self.is_coordinator_reachable = true;
        let created = match outcome {
            TransactionOutcome::Committed(revision) => revision,
            TransactionOutcome::LeaseGone => return Ok(self.lose()),
            TransactionOutcome::Refused => {
                // The key exists. If an earlier reply was lost, this process holds it.
                let snapshot = coordinator.range(&self.key)?;
                let entry = snapshot.entries.into_iter().find(|it| it.key == self.key);
                match entry {
                    Some(own) if own.lease == Some(lease.id) => own.create_revision,
                    other => {
                        self.note_other_holder(other);
                        return Ok(LeasedKeyChange::Unchanged);
                    }
                }
            }
        };
        self.other_holder = None;
        let usable_until = lease.asked_at + self.terms.usable(lease.time_to_live);
        let guard = LeaseGuard::new(self.clock.clone(), usable_until);
        self.held = Some((created, guard.clone()));
        Ok(LeasedKeyChange::Won(guard))
    }

    fn note_other_holder(&mut self, entry: Option<Entry>) {
        let now = self.clock.now();
        let check_interval = self.terms.keep_alive_interval();
        let before = self.other_holder.take();
        self.other_holder = entry.map(|entry| {
            let before = before.filter(|it| it.since == entry.create_revision);
            let waited = before.map_or(Duration::ZERO, |it| {
                it.waited + now.saturating_sub(it.seen_at).min(check_interval)
            });
            OtherHolder {
                value: entry.value,
                since: entry.create_revision,
                waited,
                seen_at: now,
            }
        });
    }

    /// Loses the key because the coordinator reported the lease as over.
    pub fn lose(&mut self) -> LeasedKeyChange {
        self.lease = None;
        match self.held.take() {
            Some((_, guard)) => {
                guard.end();
                LeasedKeyChange::Lost
            }
            None => LeasedKeyChange::Unchanged,
        }
    }

    /// Releases the key, so that others need not wait for the lease's end. Costs one round trip.
    ///
    /// # Errors
    /// The errors of the coordinator; the lease then ends by itself.
    pub fn resign<C: Coordinator>(&mut self, coordinator: &C) -> Result<(), CoordinatorError> {
        let lease = self.lease;
        self.lose();
        lease.map_or(Ok(()), |lease| coordinator.revoke_lease(lease.id))
    }
}
