//! A coordinator as the members and clients of one cluster use it (ID2, ID5): what it says counts
//! only if it has that cluster, and has not lost what was seen of it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{
    Compare, Coordinator, CoordinatorError, Entry, Event, KeepAlive, LeaseId, Revision, Snapshot,
    Transaction, TransactionOutcome, Watch,
};
use crate::ids::{ClusterId, StartNonce};
use crate::omission::{Check, Omission};
use crate::record::start::{Forgiven, Start, forgiven_key};
use crate::record::{CLUSTER_KEY, Cluster, Record, START_KEY, START_PREFIX};

/// What a member has seen of its coordinator last (ID5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenStart {
    /// Which start of the coordinator it was.
    pub nonce: StartNonce,
    /// The revision of that start.
    pub first: Revision,
    /// The newest revision that was seen since.
    pub revision: Revision,
    /// Whether the coordinator presented this start again at an older revision. Its later
    /// revisions prove nothing, because they rise past `revision` with other records. Only an
    /// operator who accepts the loss ends that.
    pub is_cut: bool,
}

/// A handle of a coordinator that belongs to one cluster. Clones are the same one.
///
/// The check is made on every contact, and by what each reply says itself:
///
/// - a range presents the cluster, and the coordinator's start, in the same reply, as of the same
///   revision;
/// - a transaction compares the records of both, so a coordinator that has another cluster, or an
///   older copy of its data, does nothing;
/// - what is said of a lease is believed when the coordinator has presented both afterwards;
/// - a watch is used when the coordinator has presented both after it was opened. What it tells
///   later comes from the same process.
///
/// If the coordinator has another cluster, or none, calls return
/// [`CoordinatorError::OtherCluster`]; if it was rolled back,
/// [`CoordinatorError::RolledBack`]; for as long as it is so.
#[derive(Clone)]
pub struct Bound<C> {
    inner: C,
    known: Arc<Mutex<Known>>,
    omission: Omission,
}

#[derive(Debug, Default)]
struct Known {
    /// None: nothing was seen yet, and nobody said which cluster is expected.
    cluster: Option<ClusterId>,
    /// The cluster's record, as this process saw it last.
    record: Option<Vec<u8>>,
    /// The record of the coordinator's start, as this process saw it last.
    start: Option<Vec<u8>>,
    /// What was seen last, by this process or an earlier one.
    seen: Option<SeenStart>,
    /// The newest revision that a watch has told, of this start or of the next one.
    watched: Revision,
    /// Whether its records were refused when they were looked at last (ID5).
    is_refused: bool,
    /// How often older records were taken because an operator accepted the loss.
    accepted_loss_count: u64,
}

impl<C: fmt::Debug> fmt::Debug for Bound<C> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(formatter)
    }
}

impl<C: Coordinator> Bound<C> {
    /// A handle for members of this cluster.
    pub fn to(inner: C, cluster: ClusterId) -> Self {
        Self::new(inner, Some(cluster))
    }

    /// A handle for clients, which do not know a cluster yet: it belongs to the first one that it
    /// sees.
    pub fn to_first_seen(inner: C) -> Self {
        Self::new(inner, None)
    }

    fn new(inner: C, cluster: Option<ClusterId>) -> Self {
        if let Some(cluster) = cluster {
            inner.expect(cluster);
        }
        let known = Known {
            cluster,
            ..Known::default()
        };
        Self {
            inner,
            known: Arc::new(Mutex::new(known)),
            omission: Omission::NONE,
        }
    }

    /// With what an earlier process of the same member has seen.
    #[must_use]
    pub fn having_seen(self, seen: Option<SeenStart>) -> Self {
        self.known().seen = seen;
        self
    }

    /// Leaves a check out, for tests of the tests.
    #[doc(hidden)]
    #[must_use]
    pub fn leaving_out(mut self, omission: Omission) -> Self {
        self.omission = omission;
        self
    }

    /// The coordinator itself, without the check.
    pub fn inner(&self) -> &C {
        &self.inner
    }

    /// The cluster that this handle belongs to, if that is known yet.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.known().cluster
    }

    /// What was seen of the coordinator last: a member keeps it for its next process.
    pub fn seen(&self) -> Option<SeenStart> {
        self.known().seen
    }

    /// How often older records were taken because an operator accepted the loss (ID5): what a
    /// member found out by the newer ones is of no use then.
    pub fn accepted_loss_count(&self) -> u64 {
        self.known().accepted_loss_count
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest revision that was seen before a call, so that later replies are not older.
    fn revision(&self) -> Revision {
        let known = self.known();
        let seen = known.seen.map_or(Revision::NEVER, |seen| seen.revision);
        seen.max(known.watched)
    }

    /// Asks the coordinator what it is. One round trip.
    fn look(&self) -> Result<(), CoordinatorError> {
        if self.is_omitted() {
            return Ok(());
        }
        let before = self.revision();
        self.judge(&self.inner.range(CLUSTER_KEY)?, before)
    }

    /// Looks at the coordinator first, if its records were refused: while they are, it shall not
    /// take this member for alive.
    fn look_if_refused(&self) -> Result<(), CoordinatorError> {
        if self.known().is_refused {
            self.look()?;
        }
        Ok(())
    }

    /// The planted bug: only the first contact is checked.
    fn is_omitted(&self) -> bool {
        let is_left_out = self.omission.leaves_out(Check::ClusterIsCompared);
        is_left_out && self.known().record.is_some()
    }

    /// Checks what a reply presents; `before` is what was seen before it was asked for.
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
                // A record that cannot be decoded says of no start that it was seen.
                let _ = known.take_start(start, snapshot.revision);
                Ok(())
            }
            (None, None) => Ok(()),
            (Some(seen), _) => {
                if is_same {
                    // What a watch has told is of this start, too.
                    seen.revision = seen.revision.max(before);
                }
                let seen = *seen;
                drop(known);
                self.judge_start(seen)
            }
        }
    }

    /// ID5: checks that the coordinator's history has all that was seen of it before. Two round
    /// trips at the most.
    fn judge_start(&self, seen: SeenStart) -> Result<(), CoordinatorError> {
        let starts = self.inner.range(START_PREFIX)?;
        let lack = lacks(&starts, seen);
        let how = lack.or_else(|| seen.is_cut.then_some(CUT));
        if let Some(how) = how {
            if !self.is_forgiven(seen.nonce)? {
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
            // Another thread has gone on to a later start meanwhile.
            return Ok(());
        }
        known.is_refused = false;
        known.accepted_loss_count += u64::from(how.is_some());
        let start = starts.identity.iter().find(|it| it.key == START_KEY);
        let taken = start.and_then(|start| known.take_start(start, starts.revision));
        taken.ok_or_else(|| known.rolled_back(seen, UNNAMED))
    }

    /// Whether an operator accepted that a start is lost.
    fn is_forgiven(&self, nonce: StartNonce) -> Result<bool, CoordinatorError> {
        let found = self.inner.range(&forgiven_key(nonce))?.entries;
        let decodes = |it: &Entry| Forgiven::decode(&it.key, &it.value).is_ok();
        Ok(found.iter().any(decodes))
    }

    /// What transactions compare: the records of the cluster and of the start.
    fn compares(&self) -> Result<Vec<Compare>, CoordinatorError> {
        if !self.known().is_checked() {
            self.look()?;
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

/// The coordinator presents the start that was seen last, at an older revision.
const BEHIND: &str = "it has not come to that revision";
/// It did so once.
const CUT: &str = "it presented that start at an older revision since then";
const UNNAMED: &str = "it does not say which start this is";

/// What the history of starts lacks of what was seen.
fn lacks(starts: &Snapshot, seen: SeenStart) -> Option<&'static str> {
    let decoded = starts.entries.iter().filter_map(|entry| {
        let start = Start::decode(&entry.key, &entry.value).ok()?;
        Some((start.nonce, entry.create_revision))
    });
    let mut firsts: Vec<_> = decoded.collect();
    firsts.sort_by_key(|(_, first)| *first);
    let Some(own) = firsts.iter().position(|(nonce, _)| *nonce == seen.nonce) else {
        return Some("its history does not have that start");
    };
    let next = firsts.get(own + 1).map(|(_, first)| *first);
    if next.is_some_and(|next| next <= seen.revision) {
        return Some("its next start came before that revision");
    }
    if starts.revision < seen.revision {
        return Some(BEHIND);
    }
    None
}

fn other(own: ClusterId, found: String) -> CoordinatorError {
    CoordinatorError::OtherCluster { own, found }
}

impl Known {
    /// Whether this process has compared what there is to compare.
    fn is_checked(&self) -> bool {
        let is_cut = self.seen.is_some_and(|seen| seen.is_cut);
        self.record.is_some() && (self.start.is_some() || self.seen.is_none()) && !is_cut
    }

    /// Takes the start that a reply of this revision presents as the one that was seen last. None:
    /// the record cannot be decoded.
    fn take_start(&mut self, entry: &Entry, revision: Revision) -> Option<()> {
        let presented = Start::decode(&entry.key, &entry.value).ok()?;
        self.start = Some(entry.value.clone());
        // What a watch told may be of lost records.
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
        // While the records are refused, what is refused stays the same.
        let seen = self.seen.as_mut().filter(|_| !self.is_refused);
        if let Some(seen) = seen.filter(|seen| !seen.is_cut) {
            seen.revision = seen.revision.max(revision);
        }
    }

    /// ID5: from now on this start's revisions prove nothing.
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

    /// Takes a record of the cluster that was not seen before, if it is of the same cluster.
    fn take(&mut self, entry: &Entry) -> Result<(), CoordinatorError> {
        let found = match (Cluster::decode(&entry.key, &entry.value), self.cluster) {
            (Ok(found), _) => found,
            (Err(error), Some(own)) => {
                let found = format!("no cluster that can be read ({error})");
                return Err(other(own, found));
            }
            // Whoever reads it is told.
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
                        // It was done in an older copy of the same start.
                        self.look()?;
                    }
                    // Another start that it recorded is one that this handle has not seen yet.
                    if transaction.writes.iter().all(|it| it.key() != START_KEY) {
                        self.note(revision);
                    }
                }
                TransactionOutcome::LeaseGone => {}
                // Because of the cluster or the start, or of what else was compared.
                TransactionOutcome::Refused => {
                    self.look()?;
                    if self.compares()? != compares {
                        continue;
                    }
                }
            }
            return Ok(outcome);
        }
    }

    fn grant_lease(&self, time_to_live: Duration) -> Result<(LeaseId, Duration), CoordinatorError> {
        self.look_if_refused()?;
        let granted = self.inner.grant_lease(time_to_live)?;
        self.look()?;
        Ok(granted)
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<KeepAlive, CoordinatorError> {
        self.look_if_refused()?;
        let kept = self.inner.keep_alive(lease)?;
        self.look()?;
        Ok(kept)
    }

    fn revoke_lease(&self, lease: LeaseId) -> Result<(), CoordinatorError> {
        self.inner.revoke_lease(lease)
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, CoordinatorError> {
        let watch = self.inner.watch(prefix, after)?;
        self.look()?;
        Ok(Box::new(BoundWatch {
            watch,
            known: Arc::clone(&self.known),
        }))
    }

    fn expect(&self, cluster: ClusterId) {
        self.inner.expect(cluster);
    }
}

/// A watch that remembers how far it has come: what it tells may be of a later start than the one
/// that was seen last.
struct BoundWatch {
    watch: Box<dyn Watch>,
    known: Arc<Mutex<Known>>,
}

impl Watch for BoundWatch {
    fn next(&mut self, timeout: Duration) -> Result<Vec<Event>, CoordinatorError> {
        let events = self.watch.next(timeout)?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = known.seen.filter(|seen| seen.is_cut) {
            // What comes may be of older records: whoever watches has to look at everything again.
            return Err(known.rolled_back(seen, CUT));
        }
        if let Some(last) = events.last().map(Event::revision) {
            // Of which start it is shows when the coordinator is looked at next.
            known.watched = known.watched.max(last);
        }
        Ok(events)
    }
}
