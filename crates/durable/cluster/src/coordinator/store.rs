//! The map of the embedded coordinator as a plain value: revisions, leases, the last changes. It
//! uses no clock, file or thread. Only [`Change`]s modify it, and equal changes produce equal maps.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Compare, CoordinatorError, Entry, Event, KeepAlive, LeaseId, Revision, Snapshot, Transaction,
    TransactionOutcome, Write,
};

/// Number of key changes that are kept for watches.
pub const HISTORY_EVENT_COUNT_MAX: usize = 100_000;

/// Revision of an empty map.
const FIRST_REVISION: Revision = Revision(1);

/// A change of the map, as written to the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// Writes of a transaction whose comparisons held, all at one revision.
    Write(Vec<KeyChange>),
    /// A new lease with this time to live in milliseconds; its number is the next one.
    Grant(u64),
    /// The end of a lease, by time or by revocation.
    End(LeaseId),
}

/// A written or deleted key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum KeyChange {
    /// Key, value, lease.
    Put(String, Vec<u8>, Option<LeaseId>),
    /// The key.
    Delete(String),
}

/// A lease: its time to live, and its end by the clock of the map's owner.
#[derive(Clone, Copy, Debug)]
struct Lease {
    time_to_live: Duration,
    ends_at: Duration,
}

impl Lease {
    fn granted(milliseconds: u64, now: Duration) -> Self {
        let time_to_live = Duration::from_millis(milliseconds);
        Self {
            time_to_live,
            ends_at: now.saturating_add(time_to_live),
        }
    }
}

/// The map.
#[derive(Debug)]
pub struct Store {
    revision: Revision,
    entries: BTreeMap<String, Entry>,
    leases: BTreeMap<LeaseId, Lease>,
    next_lease: u64,
    history: VecDeque<Event>,
    /// Revision up to which changes are not kept.
    compacted: Revision,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            revision: FIRST_REVISION,
            entries: BTreeMap::new(),
            leases: BTreeMap::new(),
            next_lease: 1,
            history: VecDeque::new(),
            compacted: FIRST_REVISION,
        }
    }
}

/// A key as it is written: key, value, created, modified, lease.
type EntryImage = (String, Vec<u8>, Revision, Revision, Option<LeaseId>);

/// The whole map as it is written, without the changes kept for watches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreImage {
    /// Revision of the last change.
    pub revision: Revision,
    /// Number of the next lease.
    pub next_lease: u64,
    /// Leases with their time to live in milliseconds.
    pub leases: Vec<(LeaseId, u64)>,
    /// Keys in order: key, value, created, modified, lease.
    pub entries: Vec<EntryImage>,
}

impl Store {
    /// Returns the revision of the last change.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Returns all keys with a prefix.
    pub fn range(&self, prefix: &str) -> Snapshot {
        let entries = self
            .entries
            .range(prefix.to_owned()..)
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(_, entry)| entry.clone())
            .collect();
        let identity = super::IDENTITY_KEYS.iter();
        Snapshot {
            revision: self.revision,
            entries,
            identity: identity
                .filter_map(|key| self.entries.get(*key).cloned())
                .collect(),
        }
    }

    /// Evaluates a transaction: the change to apply, or the reason why there is none.
    pub fn judge(&self, transaction: &Transaction) -> Result<Change, TransactionOutcome> {
        let holds = |compare: &Compare| {
            let entry = self.entries.get(compare.key());
            match compare {
                Compare::Created(_, at) => {
                    entry.map_or(Revision::NEVER, |it| it.create_revision) == *at
                }
                Compare::Modified(_, at) => {
                    entry.map_or(Revision::NEVER, |it| it.mod_revision) == *at
                }
                Compare::Holds(_, value) => entry.is_some_and(|it| it.value == *value),
            }
        };
        if !transaction.compares.iter().all(holds) {
            return Err(TransactionOutcome::Refused);
        }
        let mut changes = Vec::new();
        for write in &transaction.writes {
            match write {
                Write::Put(_, _, Some(lease)) if !self.leases.contains_key(lease) => {
                    return Err(TransactionOutcome::LeaseGone);
                }
                Write::Put(key, value, lease) => {
                    changes.push(KeyChange::Put(key.clone(), value.clone(), *lease));
                }
                Write::Delete(key) if self.entries.contains_key(key) => {
                    changes.push(KeyChange::Delete(key.clone()));
                }
                Write::Delete(_) => {}
            }
        }
        if changes.is_empty() {
            return Err(TransactionOutcome::Committed(self.revision));
        }
        Ok(Change::Write(changes))
    }

    /// Applies a change; new leases begin at `now`. An invalid change leaves the map unchanged.
    ///
    /// # Errors
    /// A description, if the change cannot have been written for this map.
    pub fn apply(&mut self, change: &Change, now: Duration) -> Result<(), String> {
        match change {
            Change::Write(changes) => self.write(changes),
            Change::Grant(milliseconds) => {
                let id = LeaseId(self.next_lease);
                let following = self.next_lease.checked_add(1);
                self.next_lease = following.ok_or("no lease ids are left")?;
                self.leases.insert(id, Lease::granted(*milliseconds, now));
                Ok(())
            }
            Change::End(lease) => {
                if !self.leases.contains_key(lease) {
                    return Err(format!("cannot end {lease}: it does not exist"));
                }
                let held: Vec<_> = (self.entries.values())
                    .filter(|entry| entry.lease == Some(*lease))
                    .map(|entry| KeyChange::Delete(entry.key.clone()))
                    .collect();
                if !held.is_empty() {
                    self.write(&held)?;
                }
                self.leases.remove(lease);
                Ok(())
            }
        }
    }

    fn write(&mut self, changes: &[KeyChange]) -> Result<(), String> {
        let revision = self.revision.0.checked_add(1).map(Revision);
        let revision = revision.ok_or("no revisions are left")?;
        for change in changes {
            match change {
                KeyChange::Put(key, _, Some(lease)) if !self.leases.contains_key(lease) => {
                    return Err(format!("key '{key}' has {lease}, which does not exist"));
                }
                KeyChange::Delete(key) if !self.entries.contains_key(key) => {
                    return Err(format!("cannot delete key '{key}': it does not exist"));
                }
                KeyChange::Put(..) | KeyChange::Delete(_) => {}
            }
        }
        self.revision = revision;
        for change in changes {
            let event = match change {
                KeyChange::Put(key, value, lease) => {
                    let before = self.entries.get(key);
                    let entry = Entry {
                        key: key.clone(),
                        value: value.clone(),
                        create_revision: before.map_or(revision, |it| it.create_revision),
                        mod_revision: revision,
                        lease: *lease,
                    };
                    self.entries.insert(key.clone(), entry.clone());
                    Event::Put(entry)
                }
                KeyChange::Delete(key) => {
                    self.entries.remove(key);
                    Event::Delete(key.clone(), revision)
                }
            };
            self.history.push_back(event);
        }
        self.forget_old();
        Ok(())
    }

    /// Trims the history to its limit, by whole revisions.
    fn forget_old(&mut self) {
        while self.history.len() > HISTORY_EVENT_COUNT_MAX {
            let oldest = self
                .history
                .front()
                .map_or(Revision::NEVER, Event::revision);
            self.compact(oldest);
        }
    }

    /// Discards the changes up to a revision.
    pub fn compact(&mut self, up_to: Revision) {
        while self
            .history
            .front()
            .is_some_and(|it| it.revision() <= up_to)
        {
            self.history.pop_front();
        }
        self.compacted = self.compacted.max(up_to.min(self.revision));
    }

    /// Skips lease numbers that another start of this coordinator may have assigned from data that
    /// no longer exist.
    pub fn skip_leases(&mut self, count: u64) {
        self.next_lease = self.next_lease.saturating_add(count);
    }

    /// Returns the number of the next lease.
    pub fn next_lease(&self) -> LeaseId {
        LeaseId(self.next_lease)
    }

    /// Reverts a [skip](Self::skip_leases).
    pub(super) fn set_next_lease(&mut self, next: LeaseId) {
        self.next_lease = next.0;
    }

    /// Extends a lease from `now` on, if it exists.
    pub fn keep_alive(&mut self, lease: LeaseId, now: Duration) -> KeepAlive {
        let Some(lease) = self.leases.get_mut(&lease) else {
            return KeepAlive::Gone;
        };
        lease.ends_at = now.saturating_add(lease.time_to_live);
        KeepAlive::Alive(lease.time_to_live)
    }

    /// Returns whether a lease exists.
    pub fn has_lease(&self, lease: LeaseId) -> bool {
        self.leases.contains_key(&lease)
    }

    /// Renews every lease for its whole time, as after a start.
    pub fn renew_all(&mut self, now: Duration) {
        for lease in self.leases.values_mut() {
            lease.ends_at = now.saturating_add(lease.time_to_live);
        }
    }

    /// Returns the first lease that is over at `now`.
    pub fn over(&self, now: Duration) -> Option<LeaseId> {
        let mut over = self.leases.iter().filter(|(_, lease)| lease.ends_at <= now);
        over.next().map(|(id, _)| *id)
    }

    /// Returns when the next lease ends without a keep-alive.
    pub fn next_end(&self) -> Option<Duration> {
        self.leases.values().map(|lease| lease.ends_at).min()
    }

    /// Returns the changes after a revision, of keys with a prefix.
    ///
    /// # Errors
    /// [`CoordinatorError::Compacted`].
    pub fn changes(&self, prefix: &str, after: Revision) -> Result<Vec<Event>, CoordinatorError> {
        if after < self.compacted {
            return Err(CoordinatorError::Compacted {
                oldest: self.compacted,
            });
        }
        let first = self.history.partition_point(|it| it.revision() <= after);
        let behind = self.history.range(first..);
        let wanted = behind.filter(|it| it.key().starts_with(prefix));
        Ok(wanted.cloned().collect())
    }

    /// Returns the image of the whole map.
    pub fn image(&self) -> StoreImage {
        let leases = self.leases.iter();
        let entries = self.entries.values().cloned();
        StoreImage {
            revision: self.revision,
            next_lease: self.next_lease,
            leases: leases
                .map(|(id, lease)| (*id, lease.time_to_live.as_millis() as u64))
                .collect(),
            entries: entries
                .map(|it| {
                    (
                        it.key,
                        it.value,
                        it.create_revision,
                        it.mod_revision,
                        it.lease,
                    )
                })
                .collect(),
        }
    }

    /// Creates the map of an image, with its leases as of `now`; no earlier changes are kept.
    ///
    /// # Errors
    /// A description of what is impossible in the image.
    pub fn from_image(image: StoreImage, now: Duration) -> Result<Self, String> {
        let mut store = Self {
            revision: image.revision,
            next_lease: image.next_lease,
            compacted: image.revision,
            ..Self::default()
        };
        if image.revision < FIRST_REVISION {
            return Err("invalid revision 0".to_owned());
        }
        for (id, milliseconds) in image.leases {
            if id.0 == 0 || id.0 >= image.next_lease {
                return Err(format!("{id} was never granted"));
            }
            store.leases.insert(id, Lease::granted(milliseconds, now));
        }
        for (key, value, create_revision, mod_revision, lease) in image.entries {
            let in_order = create_revision.0 > FIRST_REVISION.0
                && create_revision <= mod_revision
                && mod_revision <= image.revision;
            if !in_order || lease.is_some_and(|it| !store.has_lease(it)) {
                return Err(format!("invalid revisions or lease of key '{key}'"));
            }
            let entry = Entry {
                key: key.clone(),
                value,
                create_revision,
                mod_revision,
                lease,
            };
            if store.entries.insert(key.clone(), entry).is_some() {
                return Err(format!("duplicate key '{key}'"));
            }
        }
        Ok(store)
    }
}
