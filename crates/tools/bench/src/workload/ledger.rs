//! Ledger of the existing records: inserts handed out to threads, and acknowledged ones.
//!
//! The semantics are those of YCSB's `AcknowledgedCounterGenerator`: a read requests only records
//! below the first insert that is not acknowledged. YCSB keeps a window of 2^20 flags and fails
//! when it overflows; here every possible insert has a bit, so nothing overflows.
//!
//! The bits follow this protocol (all atomics are sequentially consistent, which costs nothing on
//! reads). `acknowledge` sets the bit, then advances `prefix` over set bits, up to the first one
//! that is not set. If two threads acknowledge at once, the later one to set its bit sees the
//! other's. The thread that moves `prefix` to a position looks at the bit there afterwards.
//! Therefore `prefix` never stays in front of a set bit.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Inserts of a run, shared by its threads.
#[derive(Debug)]
pub struct InsertLedger {
    loaded_count: u64,
    insert_count: u64,
    /// Next insert to hand out.
    next: AtomicU64,
    /// Number of inserts, from the first on, that are settled without a gap: acknowledged or
    /// abandoned.
    prefix: AtomicU64,
    settled: Box<[AtomicU64]>,
    abandoned: Box<[AtomicU64]>,
    abandoned_count: AtomicU64,
}

impl InsertLedger {
    /// Creates a ledger for a store with `loaded_count` records and `insert_count` keys to insert.
    /// Two bits per insert.
    pub fn new(loaded_count: u64, insert_count: u64) -> Self {
        let bits = || {
            (0..insert_count.div_ceil(64))
                .map(|_| AtomicU64::new(0))
                .collect()
        };
        Self {
            loaded_count,
            insert_count,
            next: AtomicU64::new(0),
            prefix: AtomicU64::new(0),
            settled: bits(),
            abandoned: bits(),
            abandoned_count: AtomicU64::new(0),
        }
    }

    /// Returns the number of loaded records.
    pub fn loaded_count(&self) -> u64 {
        self.loaded_count
    }

    /// Returns the total number of inserts to hand out.
    pub fn insert_count(&self) -> u64 {
        self.insert_count
    }

    /// Hands out the next insert index, to one thread only; `None` when all are handed out.
    pub fn take(&self) -> Option<u64> {
        let insert_index = self.next.fetch_add(1, SeqCst);
        // Past the end the counter continues, which is harmless: it cannot wrap in any run that
        // ends.
        (insert_index < self.insert_count).then_some(insert_index)
    }

    /// Returns the number of inserts that are handed out: later ones cannot have started.
    pub fn taken_count(&self) -> u64 {
        self.next.load(SeqCst).min(self.insert_count)
    }

    /// Acknowledges an insert that took effect: from now on other threads may request the record.
    pub fn acknowledge(&self, insert_index: u64) {
        set_bit(&self.settled, insert_index);
        loop {
            let prefix = self.prefix.load(SeqCst);
            if prefix >= self.insert_count || !has_bit(&self.settled, prefix) {
                return;
            }
            let run = (self.settled[(prefix / 64) as usize].load(SeqCst) >> (prefix % 64))
                .trailing_ones();
            let advanced = prefix + u64::from(run);
            // Another thread advanced: look again.
            let _ = self
                .prefix
                .compare_exchange(prefix, advanced, SeqCst, SeqCst);
        }
    }

    /// Abandons an insert that failed or has an unknown outcome: the record may exist or not, and
    /// is never requested. (YCSB acknowledges failed inserts as well, and then counts reads of them
    /// as errors.)
    pub fn abandon(&self, insert_index: u64) {
        set_bit(&self.abandoned, insert_index);
        self.abandoned_count.fetch_add(1, SeqCst);
        self.acknowledge(insert_index);
    }

    /// Returns the number of inserts, from the first on, that are acknowledged or abandoned without
    /// a gap.
    #[inline]
    pub fn acknowledged_count(&self) -> u64 {
        self.prefix.load(SeqCst)
    }

    /// Returns the number of record indexes, from 0 on, that may be requested, except the abandoned
    /// ones among them.
    #[inline]
    pub fn existing_count(&self) -> u64 {
        self.loaded_count + self.acknowledged_count()
    }

    /// Returns whether the record at `index` is an abandoned insert.
    #[inline]
    pub fn is_abandoned(&self, index: u64) -> bool {
        self.abandoned_count.load(SeqCst) != 0
            && index
                .checked_sub(self.loaded_count)
                .is_some_and(|insert_index| has_bit(&self.abandoned, insert_index))
    }
}

fn set_bit(bits: &[AtomicU64], index: u64) {
    bits[(index / 64) as usize].fetch_or(1 << (index % 64), SeqCst);
}

fn has_bit(bits: &[AtomicU64], index: u64) -> bool {
    bits[(index / 64) as usize].load(SeqCst) >> (index % 64) & 1 == 1
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::*;
    use crate::distribution::numbered_stream;

    /// Promise: a record can be requested only when its insert and all before it are settled.
    #[test]
    fn the_count_waits_for_the_first_gap() {
        let ledger = InsertLedger::new(10, 200);
        let taken: Vec<u64> = (0..200)
            .map(|_| ledger.take().expect("keys left"))
            .collect();
        assert_eq!(taken, (0..200).collect::<Vec<u64>>());
        assert_eq!((ledger.take(), ledger.taken_count()), (None, 200));
        for insert_index in 1..150 {
            ledger.acknowledge(insert_index);
            assert_eq!(ledger.existing_count(), 10);
        }
        ledger.acknowledge(0);
        assert_eq!(ledger.existing_count(), 160);
        for insert_index in (150..200).rev() {
            ledger.acknowledge(insert_index);
        }
        assert_eq!(ledger.existing_count(), 210);
    }

    /// Promise: a failed insert does not block the others, and is recorded as failed.
    #[test]
    fn an_abandoned_insert_is_skipped_and_known() {
        let ledger = InsertLedger::new(10, 4);
        ledger.acknowledge(1);
        ledger.abandon(0);
        assert_eq!(ledger.existing_count(), 12);
        let abandoned: Vec<u64> = (0..14)
            .filter(|index| ledger.is_abandoned(*index))
            .collect();
        assert_eq!(abandoned, [10]);
    }

    /// Promise: when threads acknowledge concurrently in any order, no open insert is skipped, and
    /// none is left at the end.
    #[test]
    fn concurrent_acknowledgements_lose_nothing() {
        const THREADS: usize = 4;
        for seed in 0..20 {
            let ledger = InsertLedger::new(0, 4_001);
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let ledger = &ledger;
                    scope.spawn(move || {
                        let mut random = numbered_stream(seed, thread);
                        let mut open = Vec::new();
                        loop {
                            let taken = ledger.take();
                            open.extend(taken);
                            if open.len() > 8 || taken.is_none() {
                                if open.is_empty() {
                                    return;
                                }
                                let chosen = random.next_u64() as usize % open.len();
                                let insert_index = open.swap_remove(chosen);
                                assert!(ledger.acknowledged_count() <= insert_index);
                                ledger.acknowledge(insert_index);
                            }
                        }
                    });
                }
            });
            assert_eq!(ledger.acknowledged_count(), 4_001);
        }
    }
}
