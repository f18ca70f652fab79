//! A coordinator within one process: a map behind a lock, a clock, and a journal if it is to
//! survive the process.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farleaf_lsm::storage::{DirectoryStorage, Storage, private};

use super::journal::{self, Journal};
use super::store::{Change, Store};
use super::{
    Coordinator, CoordinatorError, Displacement, Event, KeepAlive, LeaseId, Revision, Snapshot,
    Transaction, TransactionOutcome, Watch,
};
use farleaf_base::clock::{Clock, SystemClock};

/// A coordinator for one process. Clones share it.
///
/// Calls take no round trip; they wait for a sync of the journal if there is one. Leases run by the
/// coordinator's clock. After a start all leases have their whole time again, as with etcd after an
/// election.
#[derive(Clone, Debug)]
pub struct Embedded {
    shared: Arc<EmbeddedShared>,
}

#[derive(Debug)]
struct EmbeddedShared {
    clock: Arc<dyn Clock>,
    state: Mutex<EmbeddedState>,
    changed: Condvar,
}

#[derive(Debug)]
struct EmbeddedState {
    store: Store,
    journal: Option<Journal>,
    stopped: Option<StopReason>,
}

/// Reason why the coordinator refuses everything.
#[derive(Clone, Debug)]
enum StopReason {
    /// The first failure.
    Failed(String),
    /// The journal was removed, moved or replaced.
    Displaced(Displacement),
}

impl Default for Embedded {
    fn default() -> Self {
        Self::in_memory(Arc::new(SystemClock))
    }
}

impl Embedded {
    /// Creates an empty coordinator that ends with the process.
    pub fn in_memory(clock: Arc<dyn Clock>) -> Self {
        let mut store = Store::default();
        store.skip_leases(drawn_lease_count().unwrap_or_default());
        Self::new(clock, store, None)
    }

    /// Creates a coordinator in memory with a copy of the current data, as a copy of its directory
    /// would have. For tests of such copies.
    #[doc(hidden)]
    #[must_use]
    pub fn copy(&self, clock: Arc<dyn Clock>) -> Self {
        let image = self.shared.lock().store.image();
        let store = Store::from_image(image, clock.now());
        let mut store = store.expect("it is the image of a map");
        store.skip_leases(drawn_lease_count().unwrap_or_default());
        Self::new(clock, store, None)
    }

    /// Returns whether a directory has a coordinator's data. Creates nothing.
    ///
    /// # Errors
    /// If the file system cannot be read.
    pub fn is_in(directory: &Path) -> std::io::Result<bool> {
        journal::is_there(directory)
    }

    /// Removes the access of other users from a coordinator's directory and its files, and logs a
    /// warning if there was any. Other files in the directory are not changed.
    pub fn tighten(directory: &Path) {
        private::tighten_files(directory, &journal::FILES).warn();
    }

    /// Opens the coordinator of a directory, or creates one there.
    ///
    /// # Errors
    /// [`CoordinatorError::Locked`], [`Damaged`](CoordinatorError::Damaged),
    /// [`Newer`](CoordinatorError::Newer), [`Storage`](CoordinatorError::Storage).
    pub fn open(
        storage: Arc<dyn Storage>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, CoordinatorError> {
        let (journal, store) = Journal::open(storage, clock.now())?;
        Ok(Self::new(clock, store, Some(journal)))
    }

    /// Opens the coordinator of a directory of the operating system. If its journal is removed,
    /// moved or replaced later, the coordinator refuses everything from then on.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open), and [`CoordinatorError::Displaced`];
    /// [`CoordinatorError::Damaged`] also if the journal's name is a directory.
    pub fn open_directory(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, CoordinatorError> {
        let failed = |action| {
            move |source| CoordinatorError::Storage {
                action,
                file: "the coordinator".to_owned(),
                directory: path.display().to_string(),
                source,
            }
        };
        let place = std::path::absolute(path).map_err(failed("locate"))?;
        let storage = DirectoryStorage::open(&place).map_err(failed("open"))?;
        journal::check_is_file(&place)?;
        let (mut journal, store) = Journal::open(Arc::new(storage), clock.now())?;
        journal.watch_path(place, clock.now())?;
        Ok(Self::new(clock, store, Some(journal)))
    }

    fn new(clock: Arc<dyn Clock>, mut store: Store, journal: Option<Journal>) -> Self {
        store.renew_all(clock.now());
        let state = EmbeddedState {
            store,
            journal,
            stopped: None,
        };
        let shared = EmbeddedShared {
            clock,
            state: Mutex::new(state),
            changed: Condvar::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Renews every lease as of `away` from now, as after an outage of that length (CONTROL-6).
    pub fn renew_all_leases_after(&self, away: Duration) {
        let now = self.shared.clock.now().saturating_add(away);
        self.shared.lock().store.renew_all(now);
    }

    /// Discards the changes up to now: watches from earlier revisions get an error.
    pub fn compact(&self) {
        let mut state = self.shared.lock();
        let revision = state.store.revision();
        state.store.compact(revision);
    }

    /// Returns the state after ending all expired leases.
    fn current(&self) -> Result<MutexGuard<'_, EmbeddedState>, CoordinatorError> {
        let mut state = self.shared.lock();
        self.shared.end_leases(&mut state)?;
        Ok(state)
    }
}

impl EmbeddedShared {
    fn lock(&self) -> MutexGuard<'_, EmbeddedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_leases(&self, state: &mut EmbeddedState) -> Result<(), CoordinatorError> {
        state.check(self.clock.now())?;
        while let Some(lease) = state.store.over(self.clock.now()) {
            self.apply(state, &Change::End(lease))?;
        }
        Ok(())
    }

    /// Writes a change to the journal and syncs it before it takes effect.
    fn apply(&self, state: &mut EmbeddedState, change: &Change) -> Result<(), CoordinatorError> {
        let written = match &mut state.journal {
            Some(journal) => journal.append(change),
            None => Ok(()),
        };
        state.note(&written);
        written.map_err(|error| match error {
            // If the directory comes back, the change is in it.
            CoordinatorError::Displaced(_) => CoordinatorError::OutcomeUnknown {
                name: "of this process".to_owned(),
                how: error.to_string(),
            },
            other => other,
        })?;
        (state.store)
            .apply(change, self.clock.now())
            .map_err(|what| CoordinatorError::Invalid { what })?;
        self.changed.notify_all();
        let EmbeddedState { store, journal, .. } = state;
        let tidied = journal.as_mut().map_or(Ok(()), |it| it.tidy(store));
        state.note(&tidied);
        // The change is in force. A failed rewrite of the journal stops only later changes.
        Ok(())
    }
}

impl EmbeddedState {
    /// Notes a result. After a failure it is unknown what is in force, unless the disk was full
    /// (CONTROL-5).
    fn note(&mut self, result: &Result<(), CoordinatorError>) {
        let Err(error) = result else { return };
        if error.is_out_of_space() || self.stopped.is_some() {
            return;
        }
        tracing::error!("the coordinator of this process has stopped: {error}");
        self.stopped = Some(match error {
            CoordinatorError::Displaced(how) => StopReason::Displaced(how.clone()),
            other => StopReason::Failed(other.to_string()),
        });
    }

    fn check(&mut self, now: Duration) -> Result<(), CoordinatorError> {
        match self.stopped.clone() {
            Some(StopReason::Failed(first)) => return Err(CoordinatorError::Stopped { first }),
            Some(StopReason::Displaced(how)) => return Err(CoordinatorError::Displaced(how)),
            None => {}
        }
        let journal = self.journal.as_mut();
        let placed = journal.map_or(Ok(()), |journal| journal.check_path(now));
        self.note(&placed);
        placed
    }
}

impl Coordinator for Embedded {
    fn range(&self, prefix: &str) -> Result<Snapshot, CoordinatorError> {
        Ok(self.current()?.store.range(prefix))
    }

    fn transact(&self, transaction: &Transaction) -> Result<TransactionOutcome, CoordinatorError> {
        transaction.check()?;
        let mut state = self.current()?;
        match state.store.judge(transaction) {
            Err(outcome) => Ok(outcome),
            Ok(change) => {
                self.shared.apply(&mut state, &change)?;
                Ok(TransactionOutcome::Committed(state.store.revision()))
            }
        }
    }

    fn grant_lease(&self, time_to_live: Duration) -> Result<(LeaseId, Duration), CoordinatorError> {
        let milliseconds = time_to_live.as_nanos().div_ceil(1_000_000).max(1);
        let Ok(milliseconds) = u64::try_from(milliseconds) else {
            return Err(CoordinatorError::Invalid {
                what: format!("a lease of {time_to_live:?} is too long"),
            });
        };
        let mut state = self.current()?;
        let lease = state.store.next_lease();
        self.shared
            .apply(&mut state, &Change::Grant(milliseconds))?;
        Ok((lease, Duration::from_millis(milliseconds)))
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<KeepAlive, CoordinatorError> {
        let now = self.shared.clock.now();
        Ok(self.current()?.store.keep_alive(lease, now))
    }

    fn revoke_lease(&self, lease: LeaseId) -> Result<(), CoordinatorError> {
        let mut state = self.current()?;
        if state.store.has_lease(lease) {
            self.shared.apply(&mut state, &Change::End(lease))?;
        }
        Ok(())
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, CoordinatorError> {
        Ok(Box::new(EmbeddedWatch {
            shared: self.shared.clone(),
            prefix: prefix.to_owned(),
            after,
        }))
    }
}

/// Draws the number of lease ids that a start skips. So a lease of another coordinator, or of lost
/// data, is not alive here.
pub(super) fn drawn_lease_count() -> std::io::Result<u64> {
    let mut bytes = [0; 5];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    let mut number = [0; 8];
    number[..5].copy_from_slice(&bytes);
    Ok(u64::from_le_bytes(number))
}

#[derive(Debug)]
struct EmbeddedWatch {
    shared: Arc<EmbeddedShared>,
    prefix: String,
    after: Revision,
}

impl Watch for EmbeddedWatch {
    fn next(&mut self, timeout: Duration) -> Result<Vec<Event>, CoordinatorError> {
        let start = std::time::Instant::now();
        let mut state = self.shared.lock();
        loop {
            self.shared.end_leases(&mut state)?;
            let events = state.store.changes(&self.prefix, self.after)?;
            self.after = state.store.revision().max(self.after);
            let left = timeout.saturating_sub(start.elapsed());
            if !events.is_empty() || left.is_zero() {
                return Ok(events);
            }
            // Sleeps at most until the next lease ends; no other thread ends it.
            let end = state.store.next_end();
            let until_end = end.map_or(left, |it| it.saturating_sub(self.shared.clock.now()));
            let wait = left.min(until_end.max(Duration::from_millis(1)));
            let (guard, _) = (self.shared.changed)
                .wait_timeout(state, wait)
                .unwrap_or_else(PoisonError::into_inner);
            state = guard;
        }
    }
}
