//! Records of one table of words in the node's own memory.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use farleaf_base::locks::{read, write};
use farleaf_index::operation::Decision;
use farleaf_index::rpc::{Change, Failure, WordReply};

use super::memory_limit::MemoryLimit;

/// Maximum bytes of the node's memory per record of a large table: a share of a node of the tree,
/// half of which may be unused, and of the nodes above it.
pub(super) const RECORD_SIZE_BYTES: u64 = 64;

/// Number of keys looked up under one lock.
const KEYS_PER_LOCK: usize = 64;

/// Records by key; values are changed in place.
pub(super) type Records = BTreeMap<u64, AtomicU64>;

/// All records of a table.
#[derive(Debug)]
pub(super) struct TableRecords {
    records: RwLock<Records>,
    memory_limit: Arc<MemoryLimit>,
}

impl Drop for TableRecords {
    fn drop(&mut self) {
        let size_bytes = read(&self.records).len() as u64 * RECORD_SIZE_BYTES;
        self.memory_limit.give(size_bytes);
    }
}

impl TableRecords {
    /// Creates an empty table.
    pub(super) fn new(memory_limit: Arc<MemoryLimit>) -> Self {
        Self {
            records: RwLock::default(),
            memory_limit,
        }
    }

    /// Returns the value of a key.
    pub(super) fn find(&self, key: u64) -> Option<u64> {
        found(&read(&self.records), key)
    }

    /// Returns the values of keys, in their order.
    pub(super) fn find_several(&self, keys: &[u64]) -> Vec<Option<u64>> {
        // In parts, so that writers do not wait for the whole lookup.
        let values = keys.chunks(KEYS_PER_LOCK).flat_map(|part| {
            let records = read(&self.records);
            let values = part.iter().map(|key| found(&records, *key));
            values.collect::<Vec<_>>()
        });
        values.collect()
    }

    /// Returns the first records from a key on, at most `count_max`.
    pub(super) fn scan(&self, from: u64, count_max: usize) -> Vec<(u64, u64)> {
        let records = read(&self.records);
        let range = records.range(from..).take(count_max);
        let range = range.map(|(key, value)| (*key, value.load(Ordering::Acquire)));
        range.collect()
    }

    /// Returns the last records up to a key in descending order, at most `count_max`.
    pub(super) fn scan_reverse(&self, from: u64, count_max: usize) -> Vec<(u64, u64)> {
        let records = read(&self.records);
        let range = records.range(..=from).rev().take(count_max);
        let range = range.map(|(key, value)| (*key, value.load(Ordering::Acquire)));
        range.collect()
    }

    /// Returns the number of records.
    pub(super) fn count(&self) -> u64 {
        read(&self.records).len() as u64
    }

    /// Executes a write.
    pub(super) fn change(&self, key: u64, change: Change) -> WordReply {
        if let Some(reply) = self.change_in_place(key, change) {
            return reply;
        }
        let mut records = write(&self.records);
        let entry = records.entry(key);
        // The key may have been inserted or deleted since it was looked up.
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
                if !self.memory_limit.take(RECORD_SIZE_BYTES) {
                    return WordReply::Failed(Failure::Full);
                }
                place.insert(AtomicU64::new(value));
            }
            (Decision::Remove, Entry::Occupied(record)) => {
                record.remove();
                self.memory_limit.give(RECORD_SIZE_BYTES);
            }
        }
        WordReply::Found(previous)
    }

    /// Executes a write that changes only a value, or nothing; `None` if it inserts or deletes a
    /// key.
    fn change_in_place(&self, key: u64, change: Change) -> Option<WordReply> {
        let records = read(&self.records);
        let Some(record) = records.get(&key) else {
            return matches!(change.decide(None), Decision::Keep | Decision::Remove)
                .then_some(WordReply::Found(None));
        };
        let mut previous = record.load(Ordering::Acquire);
        loop {
            let value = match change.decide(Some(previous)) {
                Decision::Keep => return Some(WordReply::Found(Some(previous))),
                Decision::Remove => return None,
                Decision::Set(value) => value,
            };
            // The decision depends on the value alone, so an equal value is as good as the same
            // one.
            let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
            match record.compare_exchange_weak(previous, value, set, fetch) {
                Ok(_) => return Some(WordReply::Found(Some(previous))),
                Err(now) => previous = now,
            }
        }
    }

    /// Adds the records of a load, if the table is empty.
    pub(super) fn take_over(&self, loaded: &mut Records) -> WordReply {
        let mut records = write(&self.records);
        if !records.is_empty() {
            return WordReply::Failed(Failure::NotEmpty);
        }
        *records = mem::take(loaded);
        WordReply::Count(records.len() as u64)
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
                WordReply::Found(found) if found == expected => break,
                WordReply::Found(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Promise: threads that change the same keys, by compare-and-swap and by writes of which only
    /// one can succeed, lose no change, while other keys are inserted and deleted.
    #[test]
    fn threads_lose_nothing() {
        const THREAD_COUNT: u64 = 4;
        const TURN_COUNT: u64 = 20_000;
        let records = TableRecords::new(Arc::new(MemoryLimit::new(1 << 20)));
        let (won, came) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..THREAD_COUNT {
                let (records, won, came) = (&records, &won, &came);
                scope.spawn(move || {
                    for turn in 0..TURN_COUNT {
                        add_one(records, (thread + turn) % 3);
                        if records.change(7, Change::Insert(thread)) == WordReply::Found(None) {
                            won.fetch_add(1, Ordering::Relaxed);
                        }
                        if matches!(records.change(7, Change::Delete), WordReply::Found(Some(_))) {
                            won.fetch_sub(1, Ordering::Relaxed);
                        }
                        // A key that is changed in place while it is deleted and inserted again.
                        if records.change(8, Change::Put(1)) == WordReply::Found(None) {
                            came.fetch_add(1, Ordering::Relaxed);
                        }
                        if turn % 3 == thread % 3
                            && matches!(
                                records.change(8, Change::Delete),
                                WordReply::Found(Some(_))
                            )
                        {
                            came.fetch_sub(1, Ordering::Relaxed);
                        }
                        let scanned = records.scan(0, 10);
                        assert!(scanned.is_sorted_by(|left, right| left.0 < right.0));
                    }
                });
            }
        });
        assert_eq!(records.change(7, Change::Delete), WordReply::Found(None));
        let is_left = matches!(records.change(8, Change::Delete), WordReply::Found(Some(_)));
        assert_eq!(
            came.into_inner(),
            u64::from(is_left),
            "it came as often as it went"
        );
        assert_eq!(won.into_inner(), 0, "what was inserted was deleted once");
        let sum: u64 = records.scan(0, 10).iter().map(|(_, value)| value).sum();
        assert_eq!(sum, THREAD_COUNT * TURN_COUNT);
        assert_eq!(
            records.memory_limit.size_bytes(),
            records.count() * RECORD_SIZE_BYTES
        );
    }

    /// Promise: records never exceed the memory limit, and a deleted record releases its share.
    #[test]
    fn memory_limit_holds() {
        let memory_limit = Arc::new(MemoryLimit::new(2 * RECORD_SIZE_BYTES));
        let records = TableRecords::new(Arc::clone(&memory_limit));
        for key in 0..2 {
            assert_eq!(
                records.change(key, Change::Put(key)),
                WordReply::Found(None)
            );
        }
        assert_eq!(
            records.change(2, Change::Put(2)),
            WordReply::Failed(Failure::Full)
        );
        assert_eq!(records.change(1, Change::Put(5)), WordReply::Found(Some(1)));
        assert_eq!(records.change(0, Change::Delete), WordReply::Found(Some(0)));
        assert_eq!(records.change(2, Change::Put(2)), WordReply::Found(None));
        assert_eq!(records.find_several(&[0, 1, 2]), [None, Some(5), Some(2)]);
        drop(records);
        assert_eq!(
            memory_limit.size_bytes(),
            0,
            "a table that is gone releases its bytes"
        );
    }
}
