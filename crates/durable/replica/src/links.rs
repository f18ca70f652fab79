//! Connections from a primary to all its backups: group commit (REPLICATION-5), syncs, and the
//! engine's follower interface.

use core::fmt;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_executor::block_on;
use farleaf_fabric::Endpoint;
use farleaf_lsm::LsmError;
use farleaf_lsm::follow::{Edit, Follow, IndexKind};
use farleaf_lsm::log::ValueLog;
use farleaf_lsm::place::{LogNumber, LogPosition};

use crate::all_connections::for_all;
use crate::backup_entry::BackupEntry;
use crate::epoch_state::EpochState;
use crate::error::{BackupId, Epoch, ReplicaError, WriteFailure};
use crate::log_connection::{LogConnection, LogConnectionError, LogSendState};

/// Shortest sleep between two polls of backups that sync; `backoff` handles shorter waits.
const POLL_WAIT_MIN: Duration = Duration::from_micros(100);
/// Longest sleep between two polls of backups that sync.
const POLL_WAIT_MAX: Duration = Duration::from_millis(5);

/// Connections to all backups. They hold no reference that keeps the engine open.
pub(crate) struct BackupLinks<E> {
    pub(crate) log: Arc<ValueLog>,
    pub(crate) epoch_state: Arc<EpochState>,
    pub(crate) index: IndexKind,
    /// Log connections of the backups that writes wait for; locked by the thread that replicates.
    connections: Mutex<Vec<LogConnection<E>>>,
    /// Number of these log connections, readable without waiting for the lock.
    pub(crate) connection_count: AtomicUsize,
    /// All backups, including those being filled.
    backup_entries: Mutex<BTreeMap<BackupId, Arc<BackupEntry<E>>>>,
    /// Log position before which everything is on all backups.
    replicated_to: AtomicU64,
    /// Log position that a waiting thread needs on all backups, by the batches in progress; 0 if no
    /// thread waits.
    replicating_to: AtomicU64,
    replicating: GroupCommit,
    /// Log position before which everything is durable on the primary and all backups.
    synced_to: AtomicU64,
    syncing: GroupCommit,
    /// Highest log position whose durability a thread has waited for.
    sync_wanted: AtomicU64,
    failure: Mutex<Option<WriteFailure>>,
}

impl<E> fmt::Debug for BackupLinks<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "connections of a primary of {}",
            self.epoch_state.epoch()
        )
    }
}

/// Group commit: one thread does the work of all waiting threads.
#[derive(Debug, Default)]
struct GroupCommit {
    is_busy: Mutex<bool>,
    is_over: Condvar,
}

/// The right to do the work; held until dropped.
struct CommitTurn<'t>(&'t GroupCommit);

impl GroupCommit {
    /// Waits until `is_done` holds, or until it is the caller's turn to do the work.
    fn wait(&self, is_done: impl Fn() -> bool) -> Option<CommitTurn<'_>> {
        let mut is_busy = self.is_busy.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if is_done() {
                return None;
            }
            if !*is_busy {
                *is_busy = true;
                return Some(CommitTurn(self));
            }
            let waited = self.is_over.wait(is_busy);
            is_busy = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for CommitTurn<'_> {
    fn drop(&mut self) {
        let is_busy = self.0.is_busy.lock();
        *is_busy.unwrap_or_else(PoisonError::into_inner) = false;
        self.0.is_over.notify_all();
    }
}

impl<E: Endpoint + Send> BackupLinks<E> {
    /// Creates the links without backups: everything in the log counts as replicated.
    pub(crate) fn new(log: Arc<ValueLog>, epoch: Epoch, index: IndexKind) -> Self {
        let (end, synced_to) = (log.end(), log.synced_to());
        Self {
            log,
            epoch_state: Arc::new(EpochState::new(epoch)),
            index,
            connections: Mutex::default(),
            connection_count: AtomicUsize::new(0),
            backup_entries: Mutex::default(),
            replicated_to: AtomicU64::new(end.0),
            replicating_to: AtomicU64::new(0),
            replicating: GroupCommit::default(),
            synced_to: AtomicU64::new(synced_to.0),
            syncing: GroupCommit::default(),
            sync_wanted: AtomicU64::new(0),
            failure: Mutex::new(None),
        }
    }

    pub(crate) fn connections(&self) -> MutexGuard<'_, Vec<LogConnection<E>>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn backup_entries(&self) -> MutexGuard<'_, BTreeMap<BackupId, Arc<BackupEntry<E>>>> {
        self.backup_entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn failure(&self) -> MutexGuard<'_, Option<WriteFailure>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that writes can be acknowledged (REPLICATION-6, REPLICATION-8, REPLICATION-13).
    pub(crate) fn check(&self) -> Result<(), ReplicaError> {
        self.check_not_stopped()?;
        self.failure().clone().map_or(Ok(()), |it| Err(it.into()))
    }

    /// Checks that the primary has not stopped and is not known to be deposed (REPLICATION-8,
    /// REPLICATION-13).
    pub(crate) fn check_leads(&self) -> Result<(), ReplicaError> {
        self.check_not_stopped()?;
        match &*self.failure() {
            Some(failure @ WriteFailure::Deposed { .. }) => Err(failure.clone().into()),
            _ => Ok(()),
        }
    }

    /// Returns the highest log position whose durability a thread has waited for.
    pub(crate) fn sync_wanted(&self) -> LogPosition {
        LogPosition(self.sync_wanted.load(Ordering::Relaxed))
    }

    /// Returns the end of the writes that are not known to be durable on all replicas, if there are
    /// any. Marks of syncs do not count.
    pub(crate) fn unsynced_to(&self) -> Option<LogPosition> {
        let synced_to = LogPosition(self.synced_to.load(Ordering::Acquire));
        let end = self.log.written_end();
        (end > synced_to).then_some(end)
    }

    /// Returns the log position that a waiting thread needs on all backups, by the batches in
    /// progress.
    pub(crate) fn replicating_to(&self) -> LogPosition {
        LogPosition(self.replicating_to.load(Ordering::Relaxed))
    }

    /// Returns the log position before which everything is on all backups.
    pub(crate) fn replicated_to(&self) -> LogPosition {
        LogPosition(self.replicated_to.load(Ordering::Acquire))
    }

    /// Waits until all backups have the log up to `end` (REPLICATION-5). Sends one batch to each
    /// backup for all waiting threads.
    pub(crate) fn replicate_to(&self, end: LogPosition) -> Result<(), ReplicaError> {
        let is_done = || self.replicated_to() >= end || self.check().is_err();
        while self.replicated_to() < end {
            self.check()?;
            let Some(_turn) = self.replicating.wait(is_done) else {
                continue;
            };
            self.check()?;
            let target = self.log.end();
            self.replicating_to.store(target.0, Ordering::Relaxed);
            let mut connections = self.connections();
            let sent = for_all(&mut connections, |sender, endpoint| {
                sender.send_to(endpoint, target)
            });
            self.replicating_to.store(0, Ordering::Relaxed);
            sent.map_err(|(backup, error)| self.note(backup, error))?;
            // Reads see this from now on. A backup being added has it before.
            self.replicated_to.fetch_max(target.0, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Makes the log durable up to `end` before reads can see it, if there are no backups
    /// (REPLICATION-5). Otherwise a crash of this process could lose a value that was already read.
    /// Returns false if there are backups.
    pub(crate) fn sync_alone(&self, end: LogPosition) -> Result<bool, ReplicaError> {
        self.check()?;
        // A thread holds the connections for a whole round trip.
        if self.connection_count.load(Ordering::Acquire) > 0 {
            return Ok(false);
        }
        self.log.sync_to(end)?;
        // A thread that fills a backup holds them until writes wait for the backup.
        let connections = self.connections();
        if !connections.is_empty() {
            return Ok(false);
        }
        self.replicated_to.fetch_max(end.0, Ordering::AcqRel);
        self.synced_to.fetch_max(end.0, Ordering::AcqRel);
        Ok(true)
    }

    /// Waits until the log up to `end` is durable here and on all backups. One sync of each serves
    /// all waiting threads.
    pub(crate) fn sync_to(&self, end: LogPosition) -> Result<(), ReplicaError> {
        let synced_to = || LogPosition(self.synced_to.load(Ordering::Acquire));
        let is_done = || synced_to() >= end || self.check().is_err();
        while synced_to() < end {
            self.check()?;
            let Some(_turn) = self.syncing.wait(is_done) else {
                continue;
            };
            let target = self.log.end();
            self.replicate_to(target)?;
            self.sync_wanted.fetch_max(target.0, Ordering::Relaxed);
            for_all(&mut self.connections(), |sender, endpoint| {
                sender.ask_for_sync(endpoint, target)
            })
            .map_err(|(backup, error)| self.note(backup, error))?;
            self.log.sync_to(target)?;
            self.wait_for_syncs(target)?;
            self.synced_to.fetch_max(target.0, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Polls the backups until they have synced. Other threads can replicate between two polls.
    fn wait_for_syncs(&self, target: LogPosition) -> Result<(), ReplicaError> {
        let is_synced = |connection: &LogConnection<E>| connection.sender.synced_to() >= target;
        let since = Instant::now();
        for attempt in 0_u32.. {
            self.check_not_stopped()?;
            let mut connections = self.connections();
            if !connections.iter().all(is_synced) {
                let poll_result = for_all(&mut connections, LogSendState::poll);
                poll_result.map_err(|(backup, error)| self.note(backup, error))?;
            }
            if connections.iter().all(is_synced) {
                break;
            }
            for connection in &*connections {
                connection.endpoint.poll_completions();
            }
            drop(connections);
            wait_before_poll(attempt, since.elapsed());
        }
        Ok(())
    }

    /// Confirms that no other primary had taken over at some moment during the call
    /// (REPLICATION-8). Costs one round trip.
    pub(crate) fn confirm(&self) -> Result<(), ReplicaError> {
        self.check()?;
        let mut connections = self.connections();
        let poll_result = for_all(&mut connections, LogSendState::poll);
        poll_result.map_err(|(backup, error)| self.note(backup, error))
    }

    /// Records what a failure means for all writers. The caller holds the connections.
    pub(crate) fn note(&self, backup: BackupId, error: LogConnectionError) -> ReplicaError {
        let failure = match error {
            LogConnectionError::Own(error) => return error.into(),
            LogConnectionError::Stopped => return ReplicaError::Stopped,
            LogConnectionError::Deposed(found) => WriteFailure::Deposed {
                own: self.epoch(),
                found,
            },
            lost => WriteFailure::Lost {
                backup,
                how: lost.to_string(),
            },
        };
        self.fail(failure)
    }

    /// Stops acknowledging writes because of a failure.
    pub(crate) fn fail(&self, failure: WriteFailure) -> ReplicaError {
        let backup_entries = self.backup_entries();
        let counts = match &failure {
            WriteFailure::Deposed { .. } => true,
            WriteFailure::Lost { backup, how } => {
                let backup_entry = backup_entries.get(backup);
                backup_entry.inspect(|it| it.note_lost(how)).is_some()
            }
        };
        let mut first = self.failure();
        let is_worse = matches!(failure, WriteFailure::Deposed { .. });
        // A backup that was removed meanwhile must not block writes.
        if counts && (first.is_none() || is_worse) {
            *first = Some(failure.clone());
        }
        failure.into()
    }

    /// Declares a backup that hangs lost (REPLICATION-6).
    pub(crate) fn lose(&self, backup: BackupId, how: &str) {
        let backup_entry = self.backup_entries().get(&backup).map(Arc::clone);
        let Some(backup_entry) = backup_entry else {
            return;
        };
        let how = how.to_owned();
        tracing::warn!("{backup} is lost: {how}");
        // In this order: threads that wait for the backup must find it lost, not removed.
        drop(self.fail(WriteFailure::Lost { backup, how }));
        backup_entry.give_up();
    }

    /// Removes a backup, or ends its filling (REPLICATION-6).
    pub(crate) fn remove(&self, backup: BackupId) -> Result<(), ReplicaError> {
        let backup_entry = self.backup_entries().remove(&backup);
        let Some(backup_entry) = backup_entry else {
            let is = "does not exist on this primary";
            return Err(ReplicaError::WrongBackup { backup, is });
        };
        // A thread that waits for the backup holds the connections until it sees this.
        backup_entry.give_up();
        let mut connections = self.connections();
        connections.retain(|connection| connection.sender.backup_entry.id != backup);
        self.connection_count
            .store(connections.len(), Ordering::Release);
        drop(connections);
        self.check_for_lost();
        Ok(())
    }

    /// Removes a backup that was not filled.
    pub(crate) fn forget(&self, backup_entry: &Arc<BackupEntry<E>>) {
        let mut backup_entries = self.backup_entries();
        // Another backup of this number may have existed before.
        if backup_entries
            .get(&backup_entry.id)
            .is_some_and(|it| Arc::ptr_eq(it, backup_entry))
        {
            backup_entries.remove(&backup_entry.id);
        }
        drop(backup_entries);
        self.check_for_lost();
    }

    /// Checks whether one of the remaining backups is lost (REPLICATION-6).
    fn check_for_lost(&self) {
        let backup_entries = self.backup_entries();
        let mut others = backup_entries.values();
        let lost = others.find_map(|it| Some((it.id, it.lost()?.to_owned())));
        let mut failure = self.failure();
        if matches!(&*failure, Some(WriteFailure::Lost { .. })) {
            *failure = lost.map(|(backup, how)| WriteFailure::Lost { backup, how });
        }
    }
}

/// Sleeps before the next poll of backups whose syncs have been awaited for `elapsed`.
///
/// A poll costs a round trip, and writers wait for it. So the sleep grows with the time of the
/// syncs: their end is noticed about an eighth of that time late.
fn wait_before_poll(attempt: u32, elapsed: Duration) {
    let wait = elapsed / 8;
    if wait < POLL_WAIT_MIN {
        block_on(farleaf_executor::backoff(attempt), || 0);
    } else {
        thread::sleep(wait.min(POLL_WAIT_MAX));
    }
}

impl<E: Endpoint + Send> Follow for BackupLinks<E> {
    fn reach(&self, end: LogPosition) -> Result<(), LsmError> {
        self.replicate_to(end).map_err(|error| match error {
            ReplicaError::Engine(error) => error,
            other => LsmError::NotFollowed {
                end,
                how: other.to_string(),
            },
        })
    }

    fn needed_from(&self) -> LogNumber {
        let backup_entries = self.backup_entries();
        let followers = backup_entries.values().filter(|it| it.lost().is_none());
        let needed = followers.map(|backup_entry| backup_entry.needed_from());
        needed.min().unwrap_or(LogNumber(u64::MAX))
    }

    fn takes_trees(&self) -> bool {
        let backup_entries = self.backup_entries();
        self.index == IndexKind::Sent && backup_entries.values().any(|it| it.lost().is_none())
    }

    fn edited(&self, edit: Edit) {
        if self.index == IndexKind::Built {
            return;
        }
        let edit = Arc::new(edit);
        for backup_entry in self.backup_entries().values() {
            if backup_entry.lost().is_some() {
                // The backup will be filled from scratch, so nothing is kept for it
                // (REPLICATION-6).
                backup_entry.edits().clear();
                continue;
            }
            backup_entry.edits().push_back(Arc::clone(&edit));
        }
    }
}
