//! The map of the embedded coordinator as a plain value: revisions, leases, the last changes. It
//! knows no clock, no file and no thread; what changes it is a [`Change`], and the same changes
//! make the same map.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Compare, CoordinatorError, Entry, Event, KeepAlive, LeaseId, Revision, Snapshot, Transaction,
    TransactionOutcome, Write,
};

/// The last so many changes of keys are kept for watches.
pub const HISTORY_EVENT_COUNT_MAX: usize = 100_000;

/// The revision of an empty map.
const FIRST_REVISION: Revision = Revision(1);

/// What changes a map, and is all that is written of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// Writes of a transaction whose compares held, all at one revision.
    Write(Vec<KeyChange>),
    /// A lease of so many milliseconds; its number is the next one.
    Grant(u64),
    /// The end of a lease, by time or by wish.
    End(LeaseId),
}

/// A key that is written, or goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum KeyChange {
    /// Key, value, lease.
    Put(String, Vec<u8>, Option<LeaseId>),
    /// The key.
    Delete(String),
}

/// A lease: how long it is, and when it ends by the clock of whoever keeps the map.
#[derive(Clone, Copy, Debug)]
struct Lease {
    time_to_live: Duration,
    ends_at: Duration,
}

/// The map.
#[derive(Debug)]
pub struct Store {
    revision: Revision,
    entries: BTreeMap<String, Entry>,
    leases: BTreeMap<LeaseId, Lease>,
    next_lease: u64,
    history: VecDeque<Event>,
    /// Changes up to here are not kept.
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

/// A map as it is written whole: all but the changes that watches may want.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// The revision of the last change.
    pub revision: Revision,
    /// The number of the next lease.
    pub next_lease: u64,
    /// Leases, with how long each is in milliseconds.
    pub leases: Vec<(LeaseId, u64)>,
    /// Keys in their order: key, value, created, modified, lease.
    pub entries: Vec<EntryImage>,
}

impl Store {
    /// The revision of the last change.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// All keys that begin so.
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

    /// What a transaction would come to: the change to apply, or why there is none.
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
                Write::Put {
                    lease: Some(lease), ..
                } if !self.leases.contains_key(lease) => {
                    return Err(TransactionOutcome::LeaseGone);
                }
                Write::Put { key, value, lease } => {
                    changes.push(KeyChange::Put(key.clone(), value.clone(), *lease));
                }
                Write::Delete { key } if self.entries.contains_key(key) => {
                    changes.push(KeyChange::Delete(key.clone()));
                }
                Write::Delete { .. } => {}
            }
        }
        if changes.is_empty() {
            return Err(TransactionOutcome::Committed(self.revision));
        }
        Ok(Change::Write(changes))
    }

    /// Does what a change says; leases that begin do so at `now`. Says what cannot be, and leaves
    /// the map as it was then.
    ///
    /// # Errors
    /// A change that this map cannot have been written for.
    pub fn apply(&mut self, change: &Change, now: Duration) -> Result<(), String> {
        match change {
            Change::Write(changes) => self.write(changes),
            Change::Grant(milliseconds) => {
                let id = LeaseId(self.next_lease);
                let following = self.next_lease.checked_add(1);
                self.next_lease = following.ok_or("no number is left for a lease")?;
                let time_to_live = Duration::from_millis(*milliseconds);
                let ends_at = now.saturating_add(time_to_live);
                self.leases.insert(
                    id,
                    Lease {
                        time_to_live,
                        ends_at,
                    },
                );
                Ok(())
            }
            Change::End(lease) => {
                if !self.leases.contains_key(lease) {
                    return Err(format!("{lease} ends, and there is none"));
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
        let revision = revision.ok_or("no revision is left")?;
        for change in changes {
            match change {
                KeyChange::Put(key, _, Some(lease)) if !self.leases.contains_key(lease) => {
                    return Err(format!("{key} goes with {lease}, and there is none"));
                }
                KeyChange::Delete(key) if !self.entries.contains_key(key) => {
                    return Err(format!("{key} goes, and is not there"));
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
                    Event::Delete {
                        key: key.clone(),
                        revision,
                    }
                }
            };
            self.history.push_back(event);
        }
        self.forget_old();
        Ok(())
    }

    /// Keeps the history within its limit, by whole revisions.
    fn forget_old(&mut self) {
        while self.history.len() > HISTORY_EVENT_COUNT_MAX {
            let oldest = self
                .history
                .front()
                .map_or(Revision::NEVER, Event::revision);
            self.compact(oldest);
        }
    }

    /// Keeps no changes up to this revision.
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

    /// Leaves numbers of leases out: those that another start of this coordinator may have given,
    /// from data that are not there any more (ID2).
    pub fn skip_leases(&mut self, count: u64) {
        self.next_lease = self.next_lease.saturating_add(count);
    }

    /// The number that the next lease has.
    pub fn next_lease(&self) -> LeaseId {
        LeaseId(self.next_lease)
    }

    /// Takes a [skip](Self::skip_leases) back.
    pub(super) fn set_next_lease(&mut self, next: LeaseId) {
        self.next_lease = next.0;
    }

    /// Has a lease go on from `now`, if it is there.
    pub fn keep_alive(&mut self, lease: LeaseId, now: Duration) -> KeepAlive {
        let Some(lease) = self.leases.get_mut(&lease) else {
            return KeepAlive::Gone;
        };
        lease.ends_at = now.saturating_add(lease.time_to_live);
        KeepAlive::Alive(lease.time_to_live)
    }

    /// Whether there is such a lease.
    pub fn has_lease(&self, lease: LeaseId) -> bool {
        self.leases.contains_key(&lease)
    }

    /// Gives every lease its whole time again, as after a start.
    pub fn renew_all(&mut self, now: Duration) {
        for lease in self.leases.values_mut() {
            lease.ends_at = now.saturating_add(lease.time_to_live);
        }
    }

    /// The first lease that is over at `now`.
    pub fn over(&self, now: Duration) -> Option<LeaseId> {
        let mut over = self.leases.iter().filter(|(_, lease)| lease.ends_at <= now);
        over.next().map(|(id, _)| *id)
    }

    /// When the next lease is over, if none goes on.
    pub fn next_end(&self) -> Option<Duration> {
        self.leases.values().map(|lease| lease.ends_at).min()
    }

    /// The changes behind a revision, of keys that begin so.
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

    /// The map as it is written whole.
    pub fn image(&self) -> Image {
        let leases = self.leases.iter();
        let entries = self.entries.values().cloned();
        Image {
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

    /// The map of an image, its leases as of `now`; no changes up to then are kept.
    ///
    /// # Errors
    /// What in the image cannot be.
    pub fn from_image(image: Image, now: Duration) -> Result<Self, String> {
        let mut store = Self {
            revision: image.revision,
            next_lease: image.next_lease,
            compacted: image.revision,
            ..Self::default()
        };
        if image.revision < FIRST_REVISION {
            return Err("its revision is 0".to_owned());
        }
        for (id, milliseconds) in image.leases {
            if id.0 == 0 || id.0 >= image.next_lease {
                return Err(format!("{id} was never granted"));
            }
            let time_to_live = Duration::from_millis(milliseconds);
            let ends_at = now.saturating_add(time_to_live);
            store.leases.insert(
                id,
                Lease {
                    time_to_live,
                    ends_at,
                },
            );
        }
        for (key, value, create_revision, mod_revision, lease) in image.entries {
            let in_order = create_revision.0 > FIRST_REVISION.0
                && create_revision <= mod_revision
                && mod_revision <= image.revision;
            if !in_order || lease.is_some_and(|it| !store.has_lease(it)) {
                return Err(format!("the revisions or the lease of {key} cannot be"));
            }
            let entry = Entry {
                key: key.clone(),
                value,
                create_revision,
                mod_revision,
                lease,
            };
            if store.entries.insert(key.clone(), entry).is_some() {
                return Err(format!("{key} is there twice"));
            }
        }
        Ok(store)
    }
}
