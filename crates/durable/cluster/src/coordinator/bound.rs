//! Checks that a coordinator belongs to the expected cluster and has not lost records that were
//! seen. All members and clients of a cluster use coordinators through this module. See
//! docs/reference/control-plane.md, *Where the id is stored and checked* and *Older copies of the
//! coordinator's data*.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{
    Compare, Coordinator, CoordinatorError, Entry, Event, KeepAlive, LeaseId, Revision, Snapshot,
    Transaction, TransactionOutcome, Watch,
};
use crate::ids::{ClusterId, StartNonce};
use crate::omission::{Check, Omission};
use crate::record::start::{AcceptedLoss, Start, accepted_loss_key};
use crate::record::{CLUSTER_KEY, Cluster, Record, START_KEY, START_PREFIX};

/// The newest state of a coordinator that a member has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenStart {
    /// The coordinator's start.
    pub nonce: StartNonce,
    /// Revision of that start.
    pub first: Revision,
    /// Newest revision seen since that start.
    pub revision: Revision,
    /// Whether the coordinator presented this start again at an older revision. Its later revisions
    /// prove nothing, because they rise past `revision` with other records. Only an operator who
    /// accepts the loss ends this state.
    pub is_cut: bool,
}

/// Handle of a coordinator that checks its identity. Clones share their state.
///
/// Every call is checked by its own reply:
///
/// - A range returns the records of the cluster and of the coordinator's start, as of the same
///   revision.
/// - A transaction compares both records, so a coordinator of another cluster, or with an older
///   copy of its data, does nothing.
/// - A reply about a lease counts once the coordinator has presented both records afterwards.
/// - A watch is used once the coordinator has presented both records after it was opened. Later
///   events come from the same process.
///
/// While the coordinator has another cluster, or none, calls return
/// [`CoordinatorError::OtherCluster`]. While it is rolled back, they return
/// [`CoordinatorError::RolledBack`].
#[derive(Clone)]
pub struct Bound<C> {
    inner: C,
    known: Arc<Mutex<SeenState>>,
    omission: Omission,
}

#[derive(Debug, Default)]
struct SeenState {
    /// The expected cluster; `None` until one was seen or specified.
    cluster: Option<ClusterId>,
    /// The cluster's record, as this process saw it last.
    record: Option<Vec<u8>>,
    /// The record of the coordinator's start, as this process saw it last.
    start: Option<Vec<u8>>,
    /// The newest state seen, by this process or an earlier one.
    seen: Option<SeenStart>,
    /// The newest revision that a watch has returned, of this start or of the next one.
    watched: Revision,
    /// Whether the records were refused at the last check as an older copy.
    is_refused: bool,
    /// Number of times that older records were taken because an operator accepted the loss.
    accepted_loss_count: u64,
}

impl<C: fmt::Debug> fmt::Debug for Bound<C> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(formatter)
    }
}

impl<C: Coordinator> Bound<C> {
    /// Creates a handle for members of a cluster.
    pub fn to(inner: C, cluster: ClusterId) -> Self {
        Self::new(inner, Some(cluster))
    }

    /// Creates a handle for clients that do not know a cluster yet. It belongs to the first cluster
    /// that it sees.
    pub fn to_first_seen(inner: C) -> Self {
        Self::new(inner, None)
    }

    fn new(inner: C, cluster: Option<ClusterId>) -> Self {
        if let Some(cluster) = cluster {
            inner.expect(cluster);
        }
        let known = SeenState {
            cluster,
            ..SeenState::default()
        };
        Self {
            inner,
            known: Arc::new(Mutex::new(known)),
            omission: Omission::NONE,
        }
    }

    /// Adds the state that an earlier process of the same member has seen.
    #[must_use]
    pub fn having_seen(self, seen: Option<SeenStart>) -> Self {
        self.known().seen = seen;
        self
    }

    /// Leaves a check out, so that tests can verify that they notice.
    #[doc(hidden)]
    #[must_use]
    pub fn leaving_out(mut self, omission: Omission) -> Self {
        self.omission = omission;
        self
    }

    /// Returns the coordinator without the checks.
    pub fn inner(&self) -> &C {
        &self.inner
    }

    /// Returns the cluster that this handle belongs to, if known yet.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.known().cluster
    }

    /// Returns the newest state seen. A member stores it for its next process.
    pub fn seen(&self) -> Option<SeenStart> {
        self.known().seen
    }

    /// Returns the number of times that older records were taken because an operator accepted the
    /// loss. After that, a member discards what it derived from newer records.
    pub fn accepted_loss_count(&self) -> u64 {
        self.known().accepted_loss_count
    }

    fn known(&self) -> MutexGuard<'_, SeenState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the newest revision seen before a call; later replies must not be older.
    fn revision(&self) -> Revision {
        let known = self.known();
        let seen = known.seen.map_or(Revision::NEVER, |seen| seen.revision);
        seen.max(known.watched)
    }

    /// Reads and checks the coordinator's identity. Costs one round trip.
    fn read_identity(&self) -> Result<(), CoordinatorError> {
        if self.is_omitted() {
            return Ok(());
        }
        let before = self.revision();
        self.judge(&self.inner.range(CLUSTER_KEY)?, before)
    }

    /// Checks the coordinator first if its records were refused. While they are, it must not
    /// consider this member alive.
    fn recheck_if_refused(&self) -> Result<(), CoordinatorError> {
        if self.known().is_refused {
            self.read_identity()?;
        }
        Ok(())
    }

    /// Returns whether the planted bug is active: only the first contact is checked.
    fn is_omitted(&self) -> bool {
        let is_left_out = self.omission.skips_check(Check::ClusterIsCompared);
        is_left_out && self.known().record.is_some()
    }

    /// Checks the identity in a reply. `before` is the newest revision seen before the request.
    fn judge(&self, snapshot: &Snapshot, before: Revision) -> Result<(), CoordinatorError> {
        if self.is_omitted() {
            return Ok(());
        }
        let presented = |key| snapshot.identity.iter().find(|it| it.key == key);
        let mut known = self.known();
        match presented(CLUSTER_KEY) {
            Some(entry) if known.record.as_ref() == Some(&entry.value) => {}
            Some(entry) => {
                known.take(entry)?;
                if let Some(cluster) = known.cluster {
                    self.inner.expect(cluster);
                }
            }
            None => match known.cluster {
                Some(own) => return Err(other(own, "no cluster".to_owned())),
                None => return Ok(()),
            },
        }
        let start = presented(START_KEY);
        let is_same = known.start.as_ref() == start.map(|it| &it.value);
        match (&mut known.seen, start) {
            (Some(seen), Some(_)) if is_same && !seen.is_cut && snapshot.revision >= before => {
                seen.revision = seen.revision.max(snapshot.revision);
                Ok(())
            }
            (None, Some(start)) => {
                // A record that cannot be decoded does not count as a seen start.
                let _ = known.take_start(start, snapshot.revision);
                Ok(())
            }
            (None, None) => Ok(()),
            (Some(seen), _) => {
                if is_same {
                    // The revisions from watches belong to this start, too.
                    seen.revision = seen.revision.max(before);
                }
                let seen = *seen;
                drop(known);
                self.judge_start(seen)
            }
        }
    }

    /// Checks that the coordinator's history of starts contains what was seen. Costs at most two
    /// round trips.
    fn judge_start(&self, seen: SeenStart) -> Result<(), CoordinatorError> {
        let starts = self.inner.range(START_PREFIX)?;
        let lack = lacks(&starts, seen);
        let how = lack.or_else(|| seen.is_cut.then_some(CUT));
        if let Some(how) = how {
            if !self.is_loss_accepted(seen.nonce)? {
                let mut known = self.known();
                if lack == Some(BEHIND) {
                    known.cut(seen.nonce);
                }
                known.is_refused = true;
                return Err(known.rolled_back(seen, how));
            }
            tracing::warn!(
                "using older records: an operator accepted the loss of {} (first {})",
                seen.nonce,
                seen.first
            );
        }
        let mut known = self.known();
        if known.seen.is_none_or(|now| now.nonce != seen.nonce) {
            // Another thread has taken a later start meanwhile.
            return Ok(());
        }
        known.is_refused = false;
        known.accepted_loss_count += u64::from(how.is_some());
        let start = starts.identity.iter().find(|it| it.key == START_KEY);
        let taken = start.and_then(|start| known.take_start(start, starts.revision));
        taken.ok_or_else(|| known.rolled_back(seen, UNNAMED))
    }

    /// Returns whether an operator accepted the loss of a start.
    fn is_loss_accepted(&self, nonce: StartNonce) -> Result<bool, CoordinatorError> {
        let accepted = self.inner.range(&accepted_loss_key(nonce))?.entries;
        let decodes = |it: &Entry| AcceptedLoss::decode(&it.key, &it.value).is_ok();
        Ok(accepted.iter().any(decodes))
    }

    /// Returns the comparisons of each transaction: the records of the cluster and of the start.
    fn compares(&self) -> Result<Vec<Compare>, CoordinatorError> {
        if !self.known().is_checked() {
            self.read_identity()?;
        }
        let known = self.known();
        let record = (CLUSTER_KEY, known.record.clone());
        let start = (START_KEY, known.start.clone());
        let compares = [record, start].into_iter();
        let compares = compares.filter_map(|(key, value)| Some((key.to_owned(), value?)));
        Ok(compares
            .map(|(key, value)| Compare::Holds(key, value))
            .collect())
    }

    fn note(&self, revision: Revision) {
        self.known().note(revision);
    }
}

/// Reason: the coordinator presents the last seen start at an older revision.
const BEHIND: &str = "its current revision is lower";
/// Reason: it did so once, since that start.
const CUT: &str = "it has since presented that start at a lower revision";
const UNNAMED: &str = "its record of the current start is missing or invalid";

/// Returns what is missing in the history of starts, if anything.
fn lacks(starts: &Snapshot, seen: SeenStart) -> Option<&'static str> {
    let decoded = starts.entries.iter().filter_map(|entry| {
        let start = Start::decode(&entry.key, &entry.value).ok()?;
        Some((start.nonce, entry.create_revision))
    });
    let mut firsts: Vec<_> = decoded.collect();
    firsts.sort_by_key(|(_, first)| *first);
    let Some(own) = firsts.iter().position(|(nonce, _)| *nonce == seen.nonce) else {
        return Some("its history lacks that start");
    };
    let next = firsts.get(own + 1).map(|(_, first)| *first);
    if next.is_some_and(|next| next <= seen.revision) {
        return Some("its next start was recorded before that revision");
    }
    if starts.revision < seen.revision {
        return Some(BEHIND);
    }
    None
}

fn other(own: ClusterId, found: String) -> CoordinatorError {
    CoordinatorError::OtherCluster { own, found }
}

impl SeenState {
    /// Returns whether this process has checked the coordinator's identity.
    fn is_checked(&self) -> bool {
        let is_cut = self.seen.is_some_and(|seen| seen.is_cut);
        self.record.is_some() && (self.start.is_some() || self.seen.is_none()) && !is_cut
    }

    /// Takes the start in a reply of this revision as the last seen one. Returns `None` if the
    /// record cannot be decoded.
    fn take_start(&mut self, entry: &Entry, revision: Revision) -> Option<()> {
        let presented = Start::decode(&entry.key, &entry.value).ok()?;
        self.start = Some(entry.value.clone());
        // Revisions from a watch may be of lost records.
        self.watched = Revision::NEVER;
        self.seen = Some(SeenStart {
            nonce: presented.nonce,
            first: entry.mod_revision,
            revision,
            is_cut: false,
        });
        Some(())
    }

    fn note(&mut self, revision: Revision) {
        // While the records are refused, the state that they are compared with does not change.
        let seen = self.seen.as_mut().filter(|_| !self.is_refused);
        if let Some(seen) = seen.filter(|seen| !seen.is_cut) {
            seen.revision = seen.revision.max(revision);
        }
    }

    /// Marks that this start's revisions prove nothing from now on.
    fn cut(&mut self, nonce: StartNonce) {
        if let Some(seen) = self.seen.as_mut().filter(|seen| seen.nonce == nonce) {
            seen.is_cut = true;
        }
    }

    fn rolled_back(&self, seen: SeenStart, how: &'static str) -> CoordinatorError {
        CoordinatorError::RolledBack {
            cluster: self.cluster.unwrap_or(ClusterId(0)),
            seen: Box::new(seen),
            how,
        }
    }

    /// Takes a cluster record that was not seen before, if it is of the same cluster.
    fn take(&mut self, entry: &Entry) -> Result<(), CoordinatorError> {
        let found = match (Cluster::decode(&entry.key, &entry.value), self.cluster) {
            (Ok(found), _) => found,
            (Err(error), Some(own)) => {
                let found = format!("an unreadable cluster record ({error})");
                return Err(other(own, found));
            }
            // Reads of the record report the error.
            (Err(_), None) => return Ok(()),
        };
        let is_same = |own| found.cluster == own || found.formerly == Some(own);
        if let Some(own) = self.cluster
            && !is_same(own)
        {
            return Err(other(own, found.cluster.to_string()));
        }
        self.cluster = Some(found.cluster);
        self.record = Some(entry.value.clone());
        Ok(())
    }
}

impl<C: Coordinator> Coordinator for Bound<C> {
    fn range(&self, prefix: &str) -> Result<Snapshot, CoordinatorError> {
        let before = self.revision();
        let snapshot = self.inner.range(prefix)?;
        self.judge(&snapshot, before)?;
        Ok(snapshot)
    }

    fn transact(&self, transaction: &Transaction) -> Result<TransactionOutcome, CoordinatorError> {
        loop {
            let before = self.revision();
            let compares = self.compares()?;
            let mut bound = transaction.clone();
            if !self.is_omitted() {
                bound.compares.extend(compares.iter().cloned());
            }
            let outcome = self.inner.transact(&bound)?;
            match outcome {
                TransactionOutcome::Committed(revision) => {
                    if revision < before {
                        // The transaction was done in an older copy of the same start.
                        self.read_identity()?;
                    }
                    // If the transaction records another start, this handle has not seen that one
                    // yet.
                    if transaction.writes.iter().all(|it| it.key() != START_KEY) {
                        self.note(revision);
                    }
                }
                TransactionOutcome::LeaseGone => {}
                // The comparison of the cluster, of the start, or of the transaction itself failed.
                TransactionOutcome::Refused => {
                    self.read_identity()?;
                    if self.compares()? != compares {
                        continue;
                    }
                }
            }
            return Ok(outcome);
        }
    }

    fn grant_lease(&self, time_to_live: Duration) -> Result<(LeaseId, Duration), CoordinatorError> {
        self.recheck_if_refused()?;
        let granted = self.inner.grant_lease(time_to_live)?;
        self.read_identity()?;
        Ok(granted)
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<KeepAlive, CoordinatorError> {
        self.recheck_if_refused()?;
        let outcome = self.inner.keep_alive(lease)?;
        self.read_identity()?;
        Ok(outcome)
    }

    fn revoke_lease(&self, lease: LeaseId) -> Result<(), CoordinatorError> {
        self.inner.revoke_lease(lease)
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, CoordinatorError> {
        let watch = self.inner.watch(prefix, after)?;
        self.read_identity()?;
        Ok(Box::new(BoundWatch {
            watch,
            known: Arc::clone(&self.known),
        }))
    }

    fn expect(&self, cluster: ClusterId) {
        self.inner.expect(cluster);
    }
}

/// A watch that records its newest revision. Its events may be of a later start than the last seen
/// one.
struct BoundWatch {
    watch: Box<dyn Watch>,
    known: Arc<Mutex<SeenState>>,
}

impl Watch for BoundWatch {
    fn next(&mut self, timeout: Duration) -> Result<Vec<Event>, CoordinatorError> {
        let events = self.watch.next(timeout)?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = known.seen.filter(|seen| seen.is_cut) {
            // Events may be of older records, so the watcher has to read everything again.
            return Err(known.rolled_back(seen, CUT));
        }
        if let Some(last) = events.last().map(Event::revision) {
            // The next check of the coordinator shows which start the events belong to.
            known.watched = known.watched.max(last);
        }
        Ok(events)
    }
}
