//! Which records exist: inserts dealt out to threads, and those that are acknowledged.
//!
//! The semantics are those of YCSB's `AcknowledgedCounterGenerator`: a read asks only for records
//! below the first one whose insert is not acknowledged. YCSB keeps a window of 2^20 flags and
//! fails when it overflows; here there is one bit for every insert that can come, so nothing
//! overflows.
//!
//! Rules of the bits (all atomics sequentially consistent, which costs nothing on reads):
//! 1. `acknowledge` sets the bit, then advances `prefix` over bits that are set, until the one at
//!    `prefix` is not.
//! 2. So of two threads that acknowledge at once, the later one to set its bit sees the other's,
//!    and whoever moves `prefix` to a place looks at the bit there afterwards: `prefix` never
//!    stays in front of a bit that is set.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The inserts of a run, shared by its threads.
#[derive(Debug)]
pub struct InsertLedger {
    loaded_count: u64,
    insert_count: u64,
    /// The next insert to deal out.
    next: AtomicU64,
    /// All inserts below are settled: acknowledged or abandoned.
    prefix: AtomicU64,
    settled: Box<[AtomicU64]>,
    abandoned: Box<[AtomicU64]>,
    abandoned_count: AtomicU64,
}

impl InsertLedger {
    /// A ledger for a store with `loaded_count` records and `insert_count` keys to insert.
    /// Two bits an insert.
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

    /// How many records were loaded.
    pub fn loaded_count(&self) -> u64 {
        self.loaded_count
    }

    /// How many inserts there are to deal out in all.
    pub fn insert_count(&self) -> u64 {
        self.insert_count
    }

    /// Deals out the next insert index, to one thread only; `None` when all are dealt out.
    pub fn take(&self) -> Option<u64> {
        let insert_index = self.next.fetch_add(1, SeqCst);
        // Past the end the counter goes on, harmlessly: it cannot wrap in any run that ends.
        (insert_index < self.insert_count).then_some(insert_index)
    }

    /// How many inserts are dealt out: none from here on can have been begun.
    pub fn taken_count(&self) -> u64 {
        self.next.load(SeqCst).min(self.insert_count)
    }

    /// The insert took effect: from now on others may ask for the record.
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
            // Losing the race means that someone else advanced: look again.
            let _ = self
                .prefix
                .compare_exchange(prefix, advanced, SeqCst, SeqCst);
        }
    }

    /// The insert failed, or nobody knows: the record may exist or not, and is never asked for.
    /// (YCSB acknowledges failed inserts as well, and then counts reads of them as errors.)
    pub fn abandon(&self, insert_index: u64) {
        set_bit(&self.abandoned, insert_index);
        self.abandoned_count.fetch_add(1, SeqCst);
        self.acknowledge(insert_index);
    }

    /// How many inserts, from the first on, are acknowledged or abandoned without a gap.
    #[inline]
    pub fn acknowledged_count(&self) -> u64 {
        self.prefix.load(SeqCst)
    }

    /// How many record indexes, from 0 on, may be asked for, less those abandoned.
    #[inline]
    pub fn existing_count(&self) -> u64 {
        self.loaded_count + self.acknowledged_count()
    }

    /// Whether the record at `index` is an abandoned insert.
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

    /// Promise: a record can be asked for only when its insert and all before it are settled.
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

    /// Promise: a failed insert does not hold up the others, and is known as such.
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

    /// Promise: with threads acknowledging at once in any order, nothing is skipped while it is
    /// open, and nothing stays behind at the end.
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
