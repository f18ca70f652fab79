//! State of the change: keys to put and delete, and keys that are known to exist.

use super::keys::{KeyPlan, value_of};
use super::{Change, TimelineConfig};
use crate::workload::InsertLedger;

/// State of all indexes, shared by the threads. Two bits for each index that is put or deleted.
#[derive(Debug)]
pub(super) struct ChangeState {
    pub(super) keys: KeyPlan,
    change: Change,
    puts: InsertLedger,
    deletes: InsertLedger,
}

/// One write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Write {
    /// Put of this index; `ticket` is the number of the put.
    Put { ticket: u64, index: u64 },
    /// Delete of this index.
    Delete { index: u64 },
}

/// Whether an index must exist at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Present,
    Absent,
    /// Put or delete of the index failed.
    Unknown,
}

impl ChangeState {
    pub(super) fn new(config: &TimelineConfig) -> Self {
        let change = config.change;
        Self {
            keys: KeyPlan::new(change, config.seed),
            change,
            puts: InsertLedger::new(change.load_count(), change.put_count()),
            deletes: InsertLedger::new(0, change.delete_count()),
        }
    }

    /// Returns the next put, to one thread only.
    pub(super) fn take_put(&self) -> Option<Write> {
        let ticket = self.puts.take()?;
        let index = self.change.load_count() + ticket;
        Some(Write::Put { ticket, index })
    }

    /// Returns the next delete, to one thread only.
    pub(super) fn take_delete(&self) -> Option<Write> {
        let index = self.deletes.take()?;
        Some(Write::Delete { index })
    }

    /// Returns whether all lower indexes have been put, or refused.
    pub(super) fn is_put(&self, index: u64) -> bool {
        index < self.puts.existing_count()
    }

    /// Returns whether the put of this index failed.
    pub(super) fn is_refused(&self, index: u64) -> bool {
        self.puts.is_abandoned(index)
    }

    /// Records that the write took effect.
    pub(super) fn acknowledge(&self, write: Write) {
        match write {
            Write::Put { ticket, .. } => self.puts.acknowledge(ticket),
            Write::Delete { index } => self.deletes.acknowledge(index),
        }
    }

    /// Records that the write failed, or that its outcome is unknown.
    pub(super) fn abandon(&self, write: Write) {
        match write {
            Write::Put { ticket, .. } => self.puts.abandon(ticket),
            Write::Delete { index } => self.deletes.abandon(index),
        }
    }

    /// Returns an index that is known to exist: `choose` picks one of the given number. `None` if
    /// there is none.
    pub(super) fn known_present(&self, choose: impl FnOnce(u64) -> u64) -> Option<u64> {
        let first = self.deletes.taken_count();
        let count = self.puts.existing_count().checked_sub(first)?;
        let index = first
            + if count == 0 {
                return None;
            } else {
                choose(count)
            };
        (!self.is_refused(index)).then_some(index)
    }

    /// Returns whether a delete of this index may have started.
    pub(super) fn may_be_deleted(&self, index: u64) -> bool {
        index < self.deletes.taken_count()
    }

    /// Returns the number of writes that were handed out.
    pub(super) fn taken_count(&self) -> u64 {
        self.puts.taken_count() + self.deletes.taken_count()
    }

    /// Returns whether this index must exist. To be called when all writes are done.
    pub(super) fn presence(&self, index: u64) -> Presence {
        if self.is_refused(index) || self.deletes.is_abandoned(index) {
            Presence::Unknown
        } else if self.may_be_deleted(index) || !self.is_put(index) {
            Presence::Absent
        } else {
            Presence::Present
        }
    }

    /// Returns the expected record of an index.
    pub(super) fn record(&self, index: u64) -> (u64, u64) {
        let key = self.keys.key(index);
        (key, value_of(key))
    }
}

#[cfg(test)]
mod tests {
    use super::Presence::{Absent, Present, Unknown};
    use super::*;
    use crate::timeline::KeyOrder;

    fn change_state(change: Change) -> ChangeState {
        let config = TimelineConfig {
            change,
            ..TimelineConfig::default()
        };
        ChangeState::new(&config)
    }

    /// Promise: the indexes known to exist are those whose puts are acknowledged and whose deletes
    /// are not handed out.
    #[test]
    fn known_is_what_is_acknowledged_and_not_deleted() {
        let change_state = change_state(Change::Window {
            keys: 2,
            inserts: 3,
        });
        let known = || -> Vec<u64> {
            let all =
                (0..8).map_while(|nth| change_state.known_present(|count| nth.min(count - 1)));
            let mut all: Vec<u64> = all.collect();
            all.dedup();
            all
        };
        assert_eq!(known(), [0, 1]);
        let put = change_state.take_put().expect("a put");
        assert_eq!(
            put,
            Write::Put {
                ticket: 0,
                index: 2
            }
        );
        assert_eq!((known(), change_state.is_put(2)), (vec![0, 1], false));
        change_state.acknowledge(put);
        assert_eq!((known(), change_state.is_put(2)), (vec![0, 1, 2], true));
        let delete = change_state.take_delete().expect("a delete");
        assert_eq!(delete, Write::Delete { index: 0 });
        assert_eq!(
            (known(), change_state.may_be_deleted(0)),
            (vec![1, 2], true)
        );
        change_state.abandon(delete);
        let refused = change_state.take_put().expect("a put");
        change_state.abandon(refused);
        assert_eq!(change_state.taken_count(), 3);
        let presences: Vec<Presence> = (0..5).map(|index| change_state.presence(index)).collect();
        assert_eq!(presences, [Unknown, Present, Present, Unknown, Absent]);
    }

    /// Promise: an empty table has no index to get.
    #[test]
    fn nothing_is_known_of_an_empty_table() {
        let (order, from, to) = (KeyOrder::Uniform, 0, 2);
        let change_state = change_state(Change::Growth { order, from, to });
        assert_eq!(change_state.known_present(|_| 0), None);
        let put = change_state.take_put().expect("a put");
        change_state.acknowledge(put);
        assert_eq!(change_state.known_present(|_| 0), Some(0));
        assert_eq!(change_state.take_delete(), None);
    }
}
