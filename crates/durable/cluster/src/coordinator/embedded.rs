//! A coordinator within one process: a map behind a lock, a clock, and a journal if it is to be
//! there after the process.

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
use crate::clock::{Clock, SystemClock};

/// A coordinator for one process. Clones are the same one.
///
/// Calls take no round trip, and wait for a sync of the journal where there is one. Leases run by
/// its clock; after a start all have their whole time again, as etcd's have after an election.
#[derive(Clone, Debug)]
pub struct Embedded {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    store: Store,
    journal: Option<Journal>,
    stopped: Option<Stop>,
}

/// Why nothing is done any more.
#[derive(Clone, Debug)]
enum Stop {
    /// The first failure.
    Failed(String),
    /// CJ4.
    Displaced(Displacement),
}

impl Default for Embedded {
    fn default() -> Self {
        Self::in_memory(Arc::new(SystemClock))
    }
}

impl Embedded {
    /// An empty one, which is gone with the process.
    pub fn in_memory(clock: Arc<dyn Clock>) -> Self {
        let mut store = Store::default();
        store.skip_leases(drawn_lease_count().unwrap_or_default());
        Self::new(clock, store, None)
    }

    /// One in memory that begins with what this one has now, as a copy of its directory does; for
    /// tests of such copies.
    #[doc(hidden)]
    #[must_use]
    pub fn copy(&self, clock: Arc<dyn Clock>) -> Self {
        let image = self.shared.lock().store.image();
        let store = Store::from_image(image, clock.now());
        let mut store = store.expect("it is the image of a map");
        store.skip_leases(drawn_lease_count().unwrap_or_default());
        Self::new(clock, store, None)
    }

    /// Whether a directory has a coordinator's data. Nothing is made.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn is_in(directory: &Path) -> std::io::Result<bool> {
        journal::is_there(directory)
    }

    /// Removes the access of other users from a coordinator's directory and its files, and logs a
    /// warning if there was any. Other files in the directory are left as they are.
    pub fn tighten(directory: &Path) {
        private::tighten_files(directory, &journal::FILES).warn();
    }

    /// The one of a directory, which is made if there is none.
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

    /// The one of a directory of the operating system, which has to stay where it is: when its
    /// journal is removed or replaced, all is refused from then on (CJ4).
    ///
    /// # Errors
    /// As of [`open`](Self::open), and [`CoordinatorError::Displaced`];
    /// [`CoordinatorError::Damaged`] also where the journal's name has a directory.
    pub fn open_directory(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, CoordinatorError> {
        let failed = |action| {
            move |source| CoordinatorError::Storage {
                action,
                file: "the directory".to_owned(),
                directory: path.display().to_string(),
                source,
            }
        };
        let place = std::path::absolute(path).map_err(failed("find"))?;
        let storage = DirectoryStorage::open(&place).map_err(failed("open"))?;
        journal::check_is_file(&place)?;
        let (mut journal, store) = Journal::open(Arc::new(storage), clock.now())?;
        journal.watch_place(place, clock.now())?;
        Ok(Self::new(clock, store, Some(journal)))
    }

    fn new(clock: Arc<dyn Clock>, mut store: Store, journal: Option<Journal>) -> Self {
        store.renew_all(clock.now());
        let state = State {
            store,
            journal,
            stopped: None,
        };
        let shared = Shared {
            clock,
            state: Mutex::new(state),
            changed: Condvar::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Gives every lease its whole time again, and that from so much later on, as one that is away
    /// for so long does when it is back (CP6).
    pub fn renew_all_leases_after(&self, away: Duration) {
        let now = self.shared.clock.now().saturating_add(away);
        self.shared.lock().store.renew_all(now);
    }

    /// Forgets the changes up to now: watches that want older ones are told so.
    pub fn compact(&self) {
        let mut state = self.shared.lock();
        let revision = state.store.revision();
        state.store.compact(revision);
    }

    /// The state with all leases ended that are over.
    fn current(&self) -> Result<MutexGuard<'_, State>, CoordinatorError> {
        let mut state = self.shared.lock();
        self.shared.end_leases(&mut state)?;
        Ok(state)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_leases(&self, state: &mut State) -> Result<(), CoordinatorError> {
        state.check(self.clock.now())?;
        while let Some(lease) = state.store.over(self.clock.now()) {
            self.apply(state, &Change::End(lease))?;
        }
        Ok(())
    }

    /// Writes a change, and then does it (CJ1).
    fn apply(&self, state: &mut State, change: &Change) -> Result<(), CoordinatorError> {
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
        let State { store, journal, .. } = state;
        let tidied = journal.as_mut().map_or(Ok(()), |it| it.tidy(store));
        state.note(&tidied);
        // The change is in force; that the journal cannot be written anew stops what comes next.
        Ok(())
    }
}

impl State {
    /// CP5: after a failure nobody knows what is in force, unless there was no room to write it.
    fn note(&mut self, result: &Result<(), CoordinatorError>) {
        let Err(error) = result else { return };
        if error.is_no_room() || self.stopped.is_some() {
            return;
        }
        tracing::error!("the coordinator of this process stops: {error}");
        self.stopped = Some(match error {
            CoordinatorError::Displaced(how) => Stop::Displaced(how.clone()),
            other => Stop::Failed(other.to_string()),
        });
    }

    fn check(&mut self, now: Duration) -> Result<(), CoordinatorError> {
        match self.stopped.clone() {
            Some(Stop::Failed(first)) => return Err(CoordinatorError::Stopped { first }),
            Some(Stop::Displaced(how)) => return Err(CoordinatorError::Displaced(how)),
            None => {}
        }
        let journal = self.journal.as_mut();
        let placed = journal.map_or(Ok(()), |journal| journal.check_place(now));
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
                what: format!("a lease of {time_to_live:?} is longer than there can be"),
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

/// How many numbers of leases a start leaves out. So a lease of another coordinator, or of data
/// that were lost, is not alive here (ID2).
pub(super) fn drawn_lease_count() -> std::io::Result<u64> {
    let mut bytes = [0; 5];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    let mut number = [0; 8];
    number[..5].copy_from_slice(&bytes);
    Ok(u64::from_le_bytes(number))
}

#[derive(Debug)]
struct EmbeddedWatch {
    shared: Arc<Shared>,
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
            // No later than the next lease's end, which nobody else may look at.
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
