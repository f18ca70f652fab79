//! The records of one table that the node holds (J5).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use farleaf_index::operation::Decision;
use farleaf_index::rpc::{Change, Failure, Reply};

use super::room::Room;

/// What a record of a large table takes of the node's memory at the most: a share of a node of the
/// tree, of which half may be empty, and of those above it.
pub(super) const RECORD_SIZE_BYTES: u64 = 64;

/// Keys that are looked up under one lock.
const KEYS_PER_LOCK: usize = 64;

/// A record's value is changed in place (J5).
pub(super) type Records = BTreeMap<u64, AtomicU64>;

/// A table's records.
#[derive(Debug)]
pub(super) struct TableRecords {
    records: RwLock<Records>,
    room: Arc<Room>,
}

impl Drop for TableRecords {
    fn drop(&mut self) {
        let size_bytes = self.records().len() as u64 * RECORD_SIZE_BYTES;
        self.room.give(size_bytes);
    }
}

impl TableRecords {
    /// None yet.
    pub(super) fn new(room: Arc<Room>) -> Self {
        Self {
            records: RwLock::default(),
            room,
        }
    }

    /// The value of a key.
    pub(super) fn find(&self, key: u64) -> Option<u64> {
        found(&self.records(), key)
    }

    /// The values of keys, in their order.
    pub(super) fn find_several(&self, keys: &[u64]) -> Vec<Option<u64>> {
        // Part by part: who waits to add a record does not wait for all of them.
        let values = keys.chunks(KEYS_PER_LOCK).flat_map(|part| {
            let records = self.records();
            let values = part.iter().map(|key| found(&records, *key));
            values.collect::<Vec<_>>()
        });
        values.collect()
    }

    /// The first records from a key on, so many at the most.
    pub(super) fn scan(&self, from: u64, count_max: usize) -> Vec<(u64, u64)> {
        let records = self.records();
        let range = records.range(from..).take(count_max);
        let range = range.map(|(key, value)| (*key, value.load(Ordering::Acquire)));
        range.collect()
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.records().len() as u64
    }

    /// J5.
    pub(super) fn change(&self, key: u64, change: Change) -> Reply {
        if let Some(reply) = self.change_in_place(key, change) {
            return reply;
        }
        let records = self.records.write();
        let mut records = records.unwrap_or_else(PoisonError::into_inner);
        let entry = records.entry(key);
        // It may have come, or gone, since it was looked for.
        let previous = match &entry {
            Entry::Occupied(record) => Some(record.get().load(Ordering::Acquire)),
            Entry::Vacant(_) => None,
        };
        match (change.decide(previous), entry) {
            (Decision::Keep, _) | (Decision::Remove, Entry::Vacant(_)) => {}
            (Decision::Set(value), Entry::Occupied(record)) => {
                record.get().store(value, Ordering::Release);
            }
            (Decision::Set(value), Entry::Vacant(place)) => {
                if !self.room.take(RECORD_SIZE_BYTES) {
                    return Reply::Failed(Failure::Full);
                }
                place.insert(AtomicU64::new(value));
            }
            (Decision::Remove, Entry::Occupied(record)) => {
                record.remove();
                self.room.give(RECORD_SIZE_BYTES);
            }
        }
        Reply::Found(previous)
    }

    /// J5: a change that changes a value, or nothing; `None`: it is another.
    fn change_in_place(&self, key: u64, change: Change) -> Option<Reply> {
        let records = self.records();
        let Some(record) = records.get(&key) else {
            return matches!(change.decide(None), Decision::Keep | Decision::Remove)
                .then_some(Reply::Found(None));
        };
        let mut previous = record.load(Ordering::Acquire);
        loop {
            let value = match change.decide(Some(previous)) {
                Decision::Keep => return Some(Reply::Found(Some(previous))),
                Decision::Remove => return None,
                Decision::Set(value) => value,
            };
            // What is decided depends on the value alone, so an equal one is as good as the same.
            let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
            match record.compare_exchange_weak(previous, value, set, fetch) {
                Ok(_) => return Some(Reply::Found(Some(previous))),
                Err(now) => previous = now,
            }
        }
    }

    /// What a load brought is the table's, if that is empty.
    pub(super) fn take_over(&self, loaded: &mut Records) -> Reply {
        let records = self.records.write();
        let mut records = records.unwrap_or_else(PoisonError::into_inner);
        if !records.is_empty() {
            return Reply::Failed(Failure::NotEmpty);
        }
        *records = mem::take(loaded);
        Reply::Count(records.len() as u64)
    }

    fn records(&self) -> RwLockReadGuard<'_, Records> {
        self.records.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn found(records: &Records, key: u64) -> Option<u64> {
    let record = records.get(&key);
    record.map(|value| value.load(Ordering::Acquire))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add_one(records: &TableRecords, key: u64) {
        loop {
            let expected = records.find(key);
            let new = Some(expected.unwrap_or(0) + 1);
            let change = Change::CompareSwap { expected, new };
            match records.change(key, change) {
                Reply::Found(found) if found == expected => break,
                Reply::Found(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Promise (J5): threads that change the same keys, by compare-and-swap and by writes that only
    /// one of them can win, lose nothing, while others come and go beside these.
    #[test]
    fn threads_lose_nothing() {
        const THREAD_COUNT: u64 = 4;
        const TURN_COUNT: u64 = 20_000;
        let records = TableRecords::new(Arc::new(Room::new(1 << 20)));
        let (won, came) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..THREAD_COUNT {
                let (records, won, came) = (&records, &won, &came);
                scope.spawn(move || {
                    for turn in 0..TURN_COUNT {
                        add_one(records, (thread + turn) % 3);
                        if records.change(7, Change::Insert(thread)) == Reply::Found(None) {
                            won.fetch_add(1, Ordering::Relaxed);
                        }
                        if matches!(records.change(7, Change::Delete), Reply::Found(Some(_))) {
                            won.fetch_sub(1, Ordering::Relaxed);
                        }
                        // A key that is changed in place while it goes and comes again.
                        if records.change(8, Change::Put(1)) == Reply::Found(None) {
                            came.fetch_add(1, Ordering::Relaxed);
                        }
                        if turn % 3 == thread % 3
                            && matches!(records.change(8, Change::Delete), Reply::Found(Some(_)))
                        {
                            came.fetch_sub(1, Ordering::Relaxed);
                        }
                        let scanned = records.scan(0, 10);
                        assert!(scanned.is_sorted_by(|left, right| left.0 < right.0));
                    }
                });
            }
        });
        assert_eq!(records.change(7, Change::Delete), Reply::Found(None));
        let is_left = matches!(records.change(8, Change::Delete), Reply::Found(Some(_)));
        assert_eq!(
            came.into_inner(),
            u64::from(is_left),
            "it came as often as it went"
        );
        assert_eq!(won.into_inner(), 0, "what was inserted was deleted once");
        let sum: u64 = records.scan(0, 10).iter().map(|(_, value)| value).sum();
        assert_eq!(sum, THREAD_COUNT * TURN_COUNT);
        assert_eq!(
            records.room.size_bytes(),
            records.count() * RECORD_SIZE_BYTES
        );
    }

    /// Promise: there are never more records than there is room for, and one that is gone makes
    /// room.
    #[test]
    fn room_is_kept() {
        let room = Arc::new(Room::new(2 * RECORD_SIZE_BYTES));
        let records = TableRecords::new(Arc::clone(&room));
        for key in 0..2 {
            assert_eq!(records.change(key, Change::Put(key)), Reply::Found(None));
        }
        assert_eq!(
            records.change(2, Change::Put(2)),
            Reply::Failed(Failure::Full)
        );
        assert_eq!(records.change(1, Change::Put(5)), Reply::Found(Some(1)));
        assert_eq!(records.change(0, Change::Delete), Reply::Found(Some(0)));
        assert_eq!(records.change(2, Change::Put(2)), Reply::Found(None));
        assert_eq!(records.find_several(&[0, 1, 2]), [None, Some(5), Some(2)]);
        drop(records);
        assert_eq!(room.size_bytes(), 0, "a table that is gone makes room");
    }
}
