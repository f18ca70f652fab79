//! All ways from a primary to its backups: group commit (RP5), syncs, and what is told to who
//! follows the engine.

use core::fmt;
use core::future::{Future, poll_fn};
use core::task::Poll;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use farleaf_executor::block_on;
use farleaf_fabric::Endpoint;
use farleaf_lsm::LsmError;
use farleaf_lsm::follow::{Edit, Follow, IndexKind};
use farleaf_lsm::log::ValueLog;
use farleaf_lsm::place::{LogNumber, LogPosition};

use crate::error::{BackupId, Epoch, Failure, ReplicaError};
use crate::log_way::{LogWay, Sender, WayError};
use crate::member::Member;
use crate::standing::Standing;

/// The ways to all backups. Nothing in here keeps the engine open.
pub(crate) struct Links<E> {
    pub(crate) log: Arc<ValueLog>,
    pub(crate) standing: Arc<Standing>,
    pub(crate) index: IndexKind,
    /// Those that writes wait for; whoever replicates has it.
    ways: Mutex<Vec<LogWay<E>>>,
    /// How many those are, for who does not wait for them.
    pub(crate) way_count: AtomicUsize,
    /// Those, and those that are being filled.
    members: Mutex<BTreeMap<BackupId, Arc<Member<E>>>>,
    /// Everything before this place in the log is on all backups.
    replicated_to: AtomicU64,
    /// Somebody waits until it is up to this one, by what goes to backups now; 0: nobody does.
    replicating_to: AtomicU64,
    replicating: Turns,
    /// And durable on all, the primary among them.
    synced_to: AtomicU64,
    syncing: Turns,
    /// Up to where somebody waits for that.
    sync_wanted: AtomicU64,
    failure: Mutex<Option<Failure>>,
}

impl<E> fmt::Debug for Links<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the ways of a primary of {}", self.standing.epoch())
    }
}

/// One does the work of all who wait.
#[derive(Debug, Default)]
struct Turns {
    is_busy: Mutex<bool>,
    is_over: Condvar,
}

/// It is somebody's turn until this is dropped.
struct Turn<'t>(&'t Turns);

impl Turns {
    /// Waits until something is so, or it is the caller's turn to see to that.
    fn wait(&self, is_done: impl Fn() -> bool) -> Option<Turn<'_>> {
        let mut is_busy = self.is_busy.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if is_done() {
                return None;
            }
            if !*is_busy {
                *is_busy = true;
                return Some(Turn(self));
            }
            let waited = self.is_over.wait(is_busy);
            is_busy = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let is_busy = self.0.is_busy.lock();
        *is_busy.unwrap_or_else(PoisonError::into_inner) = false;
        self.0.is_over.notify_all();
    }
}

impl<E: Endpoint + Send> Links<E> {
    /// Without backups: everything that the log has counts as replicated.
    pub(crate) fn new(log: Arc<ValueLog>, epoch: Epoch, index: IndexKind) -> Self {
        let (end, synced_to) = (log.end(), log.synced_to());
        Self {
            log,
            standing: Arc::new(Standing::new(epoch)),
            index,
            ways: Mutex::default(),
            way_count: AtomicUsize::new(0),
            members: Mutex::default(),
            replicated_to: AtomicU64::new(end.0),
            replicating_to: AtomicU64::new(0),
            replicating: Turns::default(),
            synced_to: AtomicU64::new(synced_to.0),
            syncing: Turns::default(),
            sync_wanted: AtomicU64::new(0),
            failure: Mutex::new(None),
        }
    }

    pub(crate) fn ways(&self) -> MutexGuard<'_, Vec<LogWay<E>>> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn members(&self) -> MutexGuard<'_, BTreeMap<BackupId, Arc<Member<E>>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn failure(&self) -> MutexGuard<'_, Option<Failure>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// RP6, RP8, RP13: that writes can be acknowledged.
    pub(crate) fn check(&self) -> Result<(), ReplicaError> {
        self.check_goes_on()?;
        self.failure().clone().map_or(Ok(()), |it| Err(it.into()))
    }

    /// RP8, RP13: that nobody is known to have taken over, and it has not stopped.
    pub(crate) fn check_leads(&self) -> Result<(), ReplicaError> {
        self.check_goes_on()?;
        match &*self.failure() {
            Some(failure @ Failure::Deposed { .. }) => Err(failure.clone().into()),
            _ => Ok(()),
        }
    }

    /// Up to where the log is to be durable, as far as anybody has waited for that.
    pub(crate) fn sync_wanted(&self) -> LogPosition {
        LogPosition(self.sync_wanted.load(Ordering::Relaxed))
    }

    /// Up to where something has been written that is not known to be durable on all, if there is
    /// anything. What syncs have marked is nothing.
    pub(crate) fn unsynced_to(&self) -> Option<LogPosition> {
        let synced_to = LogPosition(self.synced_to.load(Ordering::Acquire));
        let end = self.log.written_end();
        (end > synced_to).then_some(end)
    }

    /// Up to where the log is being brought to backups, if somebody waits for that now.
    pub(crate) fn replicating_to(&self) -> LogPosition {
        LogPosition(self.replicating_to.load(Ordering::Relaxed))
    }

    /// Everything before this place is on all backups.
    pub(crate) fn replicated_to(&self) -> LogPosition {
        LogPosition(self.replicated_to.load(Ordering::Acquire))
    }

    /// RP5: returns when all backups have the log up to a place. One batch to each of them, for all
    /// who wait.
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
            let mut ways = self.ways();
            let sent = for_all(&mut ways, |sender, endpoint| {
                sender.send_to(endpoint, target)
            });
            self.replicating_to.store(0, Ordering::Relaxed);
            sent.map_err(|error| self.note(error))?;
            // Those who read see it from now on, and a backup that comes has it before.
            self.replicated_to.fetch_max(target.0, Ordering::AcqRel);
        }
        Ok(())
    }

    /// RP5: without backups, has the log up to a place durable before anybody reads it: who did,
    /// and then finds it gone with this process, has seen what never was. False: there are backups.
    pub(crate) fn sync_alone(&self, end: LogPosition) -> Result<bool, ReplicaError> {
        self.check()?;
        // Whoever has the ways has them for as long as a round trip.
        if self.way_count.load(Ordering::Acquire) > 0 {
            return Ok(false);
        }
        self.log.sync_to(end)?;
        // Who fills a backup has them until writes wait for it.
        let ways = self.ways();
        if !ways.is_empty() {
            return Ok(false);
        }
        self.replicated_to.fetch_max(end.0, Ordering::AcqRel);
        self.synced_to.fetch_max(end.0, Ordering::AcqRel);
        Ok(true)
    }

    /// Returns when the log up to a place is durable here and on all backups. A sync of each, for
    /// all who wait.
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
            for_all(&mut self.ways(), |sender, endpoint| {
                sender.ask_for_sync(endpoint, target)
            })
            .map_err(|error| self.note(error))?;
            self.log.sync_to(target)?;
            self.wait_for_syncs(target)?;
            self.synced_to.fetch_max(target.0, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Others replicate between two looks.
    fn wait_for_syncs(&self, target: LogPosition) -> Result<(), ReplicaError> {
        for attempt in 0_u32.. {
            self.check_goes_on()?;
            let mut ways = self.ways();
            if ways.iter().all(|way| way.sender.synced_to() >= target) {
                break;
            }
            let looked = for_all(&mut ways, Sender::look);
            looked.map_err(|error| self.note(error))?;
            for way in &*ways {
                way.endpoint.poll_completions();
            }
            drop(ways);
            block_on(farleaf_executor::backoff(attempt), || 0);
        }
        Ok(())
    }

    /// RP8: that no other primary has taken over, at some moment while this runs. One round trip.
    pub(crate) fn confirm(&self) -> Result<(), ReplicaError> {
        self.check()?;
        let mut ways = self.ways();
        let looked = for_all(&mut ways, Sender::look);
        looked.map_err(|error| self.note(error))
    }

    /// What a failure means for all who write. Whoever calls it has the ways.
    pub(crate) fn note(&self, (backup, error): (BackupId, WayError)) -> ReplicaError {
        let failure = match error {
            WayError::Own(error) => return error.into(),
            WayError::Stopped => return ReplicaError::Stopped,
            WayError::Deposed(found) => Failure::Deposed {
                own: self.epoch(),
                found,
            },
            lost => Failure::Lost {
                backup,
                how: lost.to_string(),
            },
        };
        self.fail(failure)
    }

    /// Writes are not acknowledged any more.
    pub(crate) fn fail(&self, failure: Failure) -> ReplicaError {
        let members = self.members();
        let counts = match &failure {
            Failure::Deposed { .. } => true,
            Failure::Lost { backup, how } => {
                let member = members.get(backup);
                member.inspect(|it| it.note_lost(how)).is_some()
            }
        };
        let mut first = self.failure();
        let is_worse = matches!(failure, Failure::Deposed { .. });
        // One that was removed meanwhile keeps nobody from writing.
        if counts && (first.is_none() || is_worse) {
            *first = Some(failure.clone());
        }
        failure.into()
    }

    /// RP6: a backup that hangs is lost.
    pub(crate) fn lose(&self, backup: BackupId, how: &str) {
        let member = self.members().get(&backup).map(Arc::clone);
        let Some(member) = member else {
            return;
        };
        let how = how.to_owned();
        tracing::warn!("{backup} is lost: {how}");
        // In this order: whoever waits for it finds that it is lost, and not that it was removed.
        drop(self.fail(Failure::Lost { backup, how }));
        member.give_up();
    }

    /// RP6: goes on without a backup, or does not fill it any more.
    pub(crate) fn remove(&self, backup: BackupId) -> Result<(), ReplicaError> {
        let member = self.members().remove(&backup);
        let Some(member) = member else {
            let is = "is none of this primary's";
            return Err(ReplicaError::WrongBackup { backup, is });
        };
        // Whoever waits for it has the ways until it sees this.
        member.give_up();
        let mut ways = self.ways();
        ways.retain(|way| way.sender.member.id != backup);
        self.way_count.store(ways.len(), Ordering::Release);
        drop(ways);
        self.look_for_lost();
        Ok(())
    }

    /// Takes a member out that was not filled.
    pub(crate) fn forget(&self, member: &Arc<Member<E>>) {
        let mut members = self.members();
        // There may have been another one of its number before.
        if members
            .get(&member.id)
            .is_some_and(|it| Arc::ptr_eq(it, member))
        {
            members.remove(&member.id);
        }
        drop(members);
        self.look_for_lost();
    }

    /// RP6: of those that are left, whether one is lost.
    fn look_for_lost(&self) {
        let members = self.members();
        let mut others = members.values();
        let lost = others.find_map(|it| Some((it.id, it.lost()?.to_owned())));
        let mut failure = self.failure();
        if matches!(&*failure, Some(Failure::Lost { .. })) {
            *failure = lost.map(|(backup, how)| Failure::Lost { backup, how });
        }
    }
}

/// Does the same on all ways at once; the failure that counts most, if there is one.
pub(crate) fn for_all<'w, E: Endpoint, F>(
    ways: &'w mut [LogWay<E>],
    act: impl Fn(&'w mut Sender<E>, &'w E) -> F,
) -> Result<(), (BackupId, WayError)>
where
    F: Future<Output = Result<(), WayError>>,
{
    let failures = for_each(ways, act).into_iter();
    // Of those that count as much, the first.
    let worst = failures.rev().max_by_key(|(_, error)| error.weight());
    worst.map_or(Ok(()), Err)
}

/// Does the same on all ways at once; all failures.
pub(crate) fn for_each<'w, E: Endpoint, F>(
    ways: &'w mut [LogWay<E>],
    act: impl Fn(&'w mut Sender<E>, &'w E) -> F,
) -> Vec<(BackupId, WayError)>
where
    F: Future<Output = Result<(), WayError>>,
{
    let mut endpoints = Vec::with_capacity(ways.len());
    let mut acts = Vec::with_capacity(ways.len());
    for way in ways {
        let LogWay { endpoint, sender } = way;
        let (id, endpoint) = (sender.member.id, &*endpoint);
        endpoints.push(endpoint);
        acts.push((id, Box::pin(act(sender, endpoint)), None));
    }
    let all = poll_fn(|context| {
        let mut is_over = true;
        for (_, future, output) in &mut acts {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(done) => *output = Some(done),
                    Poll::Pending => is_over = false,
                }
            }
        }
        if is_over {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    });
    block_on(all, || {
        endpoints.iter().map(|it| it.poll_completions()).sum()
    });
    let failed = |output: Option<Result<(), WayError>>| output?.err();
    let outputs = acts.into_iter();
    let failures = outputs.filter_map(|(id, _, output)| Some((id, failed(output)?)));
    failures.collect()
}

impl<E: Endpoint + Send> Follow for Links<E> {
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
        let members = self.members();
        let followers = members.values().filter(|it| it.lost().is_none());
        let needed = followers.map(|member| member.needed_from());
        needed.min().unwrap_or(LogNumber(u64::MAX))
    }

    fn takes_trees(&self) -> bool {
        let members = self.members();
        self.index == IndexKind::Sent && members.values().any(|it| it.lost().is_none())
    }

    fn edited(&self, edit: Edit) {
        if self.index == IndexKind::Built {
            return;
        }
        let edit = Arc::new(edit);
        for member in self.members().values() {
            if member.lost().is_some() {
                // RP6: it will be filled anew, and nothing is to stay for it.
                member.edits().clear();
                continue;
            }
            member.edits().push_back(Arc::clone(&edit));
        }
    }
}
