//! What is put and deleted, and what is known to be there.

use super::keys::{KeyPlan, value_of};
use super::{Change, TimelineConfig};
use crate::workload::InsertLedger;

/// The state of all indexes, shared by the threads. Two bits for each that is put or deleted.
#[derive(Debug)]
pub(super) struct Course {
    pub(super) keys: KeyPlan,
    change: Change,
    puts: InsertLedger,
    deletes: InsertLedger,
}

/// What one write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Write {
    /// Put this index, the how-manyeth put is `ticket`.
    Put { ticket: u64, index: u64 },
    /// Delete this index.
    Delete { index: u64 },
}

/// Whether an index must be there when all is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Present,
    Absent,
    /// Its put or its delete failed.
    Unknown,
}

impl Course {
    pub(super) fn new(config: &TimelineConfig) -> Self {
        let change = config.change;
        Self {
            keys: KeyPlan::new(change, config.seed),
            change,
            puts: InsertLedger::new(change.load_count(), change.put_count()),
            deletes: InsertLedger::new(0, change.delete_count()),
        }
    }

    /// The next put, to one thread only.
    pub(super) fn take_put(&self) -> Option<Write> {
        let ticket = self.puts.take()?;
        let index = self.change.load_count() + ticket;
        Some(Write::Put { ticket, index })
    }

    /// The next delete, to one thread only.
    pub(super) fn take_delete(&self) -> Option<Write> {
        let index = self.deletes.take()?;
        Some(Write::Delete { index })
    }

    /// Whether everything below this index has been put, or refused.
    pub(super) fn is_put(&self, index: u64) -> bool {
        index < self.puts.existing_count()
    }

    /// Whether the put of this index failed.
    pub(super) fn is_refused(&self, index: u64) -> bool {
        self.puts.is_abandoned(index)
    }

    /// The write took effect.
    pub(super) fn acknowledge(&self, write: Write) {
        match write {
            Write::Put { ticket, .. } => self.puts.acknowledge(ticket),
            Write::Delete { index } => self.deletes.acknowledge(index),
        }
    }

    /// The write failed, or nobody knows.
    pub(super) fn abandon(&self, write: Write) {
        match write {
            Write::Put { ticket, .. } => self.puts.abandon(ticket),
            Write::Delete { index } => self.deletes.abandon(index),
        }
    }

    /// An index that is known to be there: `choose` takes one of so many. `None` while there is
    /// none.
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

    /// Whether a delete of this index may have begun.
    pub(super) fn may_be_deleted(&self, index: u64) -> bool {
        index < self.deletes.taken_count()
    }

    /// Writes dealt out.
    pub(super) fn taken_count(&self) -> u64 {
        self.puts.taken_count() + self.deletes.taken_count()
    }

    /// Whether this index must be there. To be asked when all writes are done.
    pub(super) fn presence(&self, index: u64) -> Presence {
        if self.is_refused(index) || self.deletes.is_abandoned(index) {
            Presence::Unknown
        } else if self.may_be_deleted(index) || !self.is_put(index) {
            Presence::Absent
        } else {
            Presence::Present
        }
    }

    /// A record as it must be.
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

    fn course(change: Change) -> Course {
        let config = TimelineConfig {
            change,
            ..TimelineConfig::default()
        };
        Course::new(&config)
    }

    /// Promise: what is known to be there is what was acknowledged and not dealt out to be deleted.
    #[test]
    fn known_is_what_is_acknowledged_and_not_deleted() {
        let course = course(Change::Window {
            keys: 2,
            inserts: 3,
        });
        let known = || -> Vec<u64> {
            let all = (0..8).map_while(|nth| course.known_present(|count| nth.min(count - 1)));
            let mut all: Vec<u64> = all.collect();
            all.dedup();
            all
        };
        assert_eq!(known(), [0, 1]);
        let put = course.take_put().expect("a put");
        assert_eq!(
            put,
            Write::Put {
                ticket: 0,
                index: 2
            }
        );
        assert_eq!((known(), course.is_put(2)), (vec![0, 1], false));
        course.acknowledge(put);
        assert_eq!((known(), course.is_put(2)), (vec![0, 1, 2], true));
        let delete = course.take_delete().expect("a delete");
        assert_eq!(delete, Write::Delete { index: 0 });
        assert_eq!((known(), course.may_be_deleted(0)), (vec![1, 2], true));
        course.abandon(delete);
        let refused = course.take_put().expect("a put");
        course.abandon(refused);
        assert_eq!(course.taken_count(), 3);
        let presences: Vec<Presence> = (0..5).map(|index| course.presence(index)).collect();
        assert_eq!(presences, [Unknown, Present, Present, Unknown, Absent]);
    }

    /// Promise: an empty table has nothing to ask for.
    #[test]
    fn nothing_is_known_of_an_empty_table() {
        let (order, from, to) = (KeyOrder::Uniform, 0, 2);
        let course = course(Change::Growth { order, from, to });
        assert_eq!(course.known_present(|_| 0), None);
        let put = course.take_put().expect("a put");
        course.acknowledge(put);
        assert_eq!(course.known_present(|_| 0), Some(0));
        assert_eq!(course.take_delete(), None);
    }
}
