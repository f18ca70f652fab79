//! Checks of a scan: order, values, and completeness.

use std::sync::Arc;

use super::{Fault, Value, Verdict};
use crate::dataset::KeySet;
use crate::workload::InsertLedger;

/// Checks scans against the keys of a run. Shared by all threads.
#[derive(Debug)]
pub struct ScanChecker {
    keys: Arc<KeySet>,
    ledger: Arc<InsertLedger>,
    /// Insert keys, ascending, each with its insert index.
    inserts_by_key: Vec<(u64, u64)>,
}

/// State at the beginning of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct ScanStart {
    acknowledged_count: u64,
}

impl ScanChecker {
    /// Creates a checker for `keys`, with the `ledger` that hands out their inserts. 16 bytes per
    /// insert.
    pub fn new(keys: Arc<KeySet>, ledger: Arc<InsertLedger>) -> Self {
        let mut inserts_by_key: Vec<(u64, u64)> = keys.inserts().iter().copied().zip(0..).collect();
        inserts_by_key.sort_unstable();
        Self {
            keys,
            ledger,
            inserts_by_key,
        }
    }

    /// Returns the state before a scan; to be called just before it begins.
    pub fn begin(&self) -> ScanStart {
        ScanStart {
            acknowledged_count: self.ledger.acknowledged_count(),
        }
    }

    /// Checks a scan of `limit` entries from `from` on that returned `entries`:
    ///
    /// - at most `limit` entries, ascending, distinct, none below `from`;
    /// - every value belongs to its key, every key was loaded or its insert had started;
    /// - no loaded key, and no insert acknowledged before `start`, is missing between `from` and
    ///   the last entry; with fewer than `limit` entries, none up to the end of the domain.
    ///
    /// The verdict is the first fault in key order. Costs two binary searches and the entries.
    pub fn check_scan(
        &self,
        start: ScanStart,
        from: u64,
        limit: usize,
        entries: &[(u64, u64)],
    ) -> Verdict {
        let checked = self.find_fault(start, from, limit, entries);
        checked.err().unwrap_or(Verdict::Right)
    }

    fn find_fault(
        &self,
        start: ScanStart,
        from: u64,
        limit: usize,
        entries: &[(u64, u64)],
    ) -> Result<(), Verdict> {
        if entries.len() > limit {
            let count = entries.len();
            return Err(Verdict::Wrong(Fault::TooManyEntries { limit, count }));
        }
        let loaded = self.keys.loaded();
        let mut loaded = &loaded[loaded.partition_point(|key| *key < from)..];
        let mut inserts =
            &self.inserts_by_key[self.inserts_by_key.partition_point(|(key, _)| *key < from)..];
        let mut previous = None;
        for &(key, value) in entries {
            if key < from {
                return Err(Verdict::Wrong(Fault::BelowStart { start: from, key }));
            }
            if let Some(previous) = previous.filter(|previous| key <= *previous) {
                return Err(Verdict::Wrong(Fault::NotAscending { previous, key }));
            }
            previous = Some(key);
            let due_insert = self.skip_inserts(start, &mut inserts, |insert| insert < key);
            let due_loaded = loaded.first().copied().filter(|due| *due < key);
            if let Some(key) = earliest(due_insert, due_loaded) {
                return Err(Verdict::Missing { key });
            }
            if loaded.first() == Some(&key) {
                loaded = &loaded[1..];
            } else if inserts
                .first()
                .is_some_and(|&(insert, insert_index)| self.has_started(insert, insert_index, key))
            {
                inserts = &inserts[1..];
            } else {
                return Err(Verdict::Wrong(Fault::UnknownKey { key }));
            }
            Value::of(key, value).map_err(Verdict::Wrong)?;
        }
        if entries.len() == limit {
            return Ok(());
        }
        let due_insert = self.skip_inserts(start, &mut inserts, |_| true);
        match earliest(due_insert, loaded.first().copied()) {
            Some(key) => Err(Verdict::Missing { key }),
            None => Ok(()),
        }
    }

    /// Skips inserts at the front while `passed`; stops at the first that must not be missing.
    fn skip_inserts(
        &self,
        start: ScanStart,
        inserts: &mut &[(u64, u64)],
        passed: impl Fn(u64) -> bool,
    ) -> Option<u64> {
        while let Some((&(key, insert_index), rest)) = inserts.split_first() {
            if !passed(key) {
                return None;
            }
            let is_due = insert_index < start.acknowledged_count
                && !self
                    .ledger
                    .is_abandoned(self.keys.record_count() + insert_index);
            if is_due {
                return Some(key);
            }
            *inserts = rest;
        }
        None
    }

    /// Returns whether the insert is the one of `key` and was handed out, so that it may have taken
    /// effect.
    fn has_started(&self, insert: u64, insert_index: u64, key: u64) -> bool {
        insert == key && insert_index < self.ledger.taken_count()
    }
}

fn earliest(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    [a, b].into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    use super::super::loaded_value;
    use super::*;
    use crate::dataset::Dataset;

    /// Returns a checker of a thousand loaded keys and a hundred inserts, of which 60 are handed
    /// out, 40 acknowledged, and number 7 abandoned.
    fn checker() -> ScanChecker {
        let keys = KeySet::generate(&Dataset::Uniform, 1_000, 100, 3).expect("keys");
        let ledger = InsertLedger::new(1_000, 100);
        for _ in 0..60 {
            ledger.take().expect("keys left");
        }
        ledger.abandon(7);
        (0..40)
            .filter(|index| *index != 7)
            .for_each(|index| ledger.acknowledge(index));
        ScanChecker::new(Arc::new(keys), Arc::new(ledger))
    }

    /// Returns the answer of a correct store with the given inserts.
    fn scan(
        checker: &ScanChecker,
        inserts: impl Iterator<Item = usize>,
        from: u64,
        limit: usize,
    ) -> Vec<(u64, u64)> {
        let mut keys = checker.keys.loaded().to_vec();
        keys.extend(inserts.map(|index| checker.keys.inserts()[index]));
        keys.sort_unstable();
        let from = keys.iter().copied().filter(|key| *key >= from);
        from.take(limit)
            .map(|key| (key, loaded_value(key)))
            .collect()
    }

    /// Promise: a correct scan passes, with or without the inserts in flight, whatever its start
    /// and end.
    #[test]
    fn a_right_scan_passes() {
        let checker = checker();
        let due = || (0..40).filter(|index| *index != 7);
        for from in [
            0,
            checker.keys.loaded()[500],
            checker.keys.inserts()[50],
            u64::MAX - (1 << 58),
        ] {
            for limit in [0, 1, 100, 5_000] {
                for inserts in [
                    due().collect(),
                    due().chain([7, 41, 59]).collect::<Vec<_>>(),
                ] {
                    let entries = scan(&checker, inserts.into_iter(), from, limit);
                    let verdict = checker.check_scan(checker.begin(), from, limit, &entries);
                    assert_eq!(verdict, Verdict::Right, "{limit} from {from}");
                }
            }
        }
    }

    /// Promise: any missing entry is detected, and its key reported; also the last one before the
    /// end of the domain.
    #[test]
    fn every_gap_is_found() {
        let checker = checker();
        let right = scan(&checker, (0..40).filter(|index| *index != 7), 0, 5_000);
        assert_eq!(right.len(), 1_039);
        for left_out in 0..right.len() {
            let mut entries = right.clone();
            let (key, _) = entries.remove(left_out);
            let verdict = checker.check_scan(checker.begin(), 0, 5_000, &entries);
            assert_eq!(verdict, Verdict::Missing { key });
        }
    }

    /// Promise: a scan that stops early is detected, and an empty one too.
    #[test]
    fn an_early_end_is_found() {
        let checker = checker();
        let right = scan(&checker, (0..40).filter(|index| *index != 7), 0, 100);
        let verdict = checker.check_scan(checker.begin(), 0, 100, &right[..99]);
        assert_eq!(verdict, Verdict::Missing { key: right[99].0 });
        let verdict = checker.check_scan(checker.begin(), 0, 100, &[]);
        assert_eq!(verdict, Verdict::Missing { key: right[0].0 });
    }

    /// Promise: an insert acknowledged only after the scan began may be missing.
    #[test]
    fn an_insert_during_the_scan_may_be_missing() {
        let checker = checker();
        let start = checker.begin();
        let entries = scan(&checker, (0..40).filter(|index| *index != 7), 0, 5_000);
        checker.ledger.acknowledge(40);
        assert_eq!(
            checker.check_scan(start, 0, 5_000, &entries),
            Verdict::Right
        );
        let key = checker.keys.inserts()[40];
        let verdict = checker.check_scan(checker.begin(), 0, 5_000, &entries);
        assert_eq!(verdict, Verdict::Missing { key });
    }

    /// Promise: invalid entries of a scan are reported: too many, below the start, out of order,
    /// twice, unknown, not yet inserted, and with values of other keys.
    #[test]
    fn what_must_not_be_there_is_named() {
        let checker = checker();
        let start = checker.begin();
        let right = scan(&checker, (0..40).filter(|index| *index != 7), 0, 50);
        let check = |from, limit, entries: &[(u64, u64)]| match checker
            .check_scan(start, from, limit, entries)
        {
            Verdict::Wrong(fault) => fault,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            check(0, 49, &right),
            Fault::TooManyEntries {
                limit: 49,
                count: 50
            }
        );
        let (first, second) = (right[0].0, right[1].0);
        assert_eq!(
            check(second, 50, &right),
            Fault::BelowStart {
                start: second,
                key: first
            }
        );

        let mut twice = right.clone();
        twice[1] = right[0];
        assert_eq!(
            check(0, 50, &twice),
            Fault::NotAscending {
                previous: first,
                key: first
            }
        );
        let mut swapped = right.clone();
        swapped.swap(0, 1);
        assert!(!checker.check_scan(start, 0, 50, &swapped).is_right());

        let key = first + 1;
        let unknown = [right[0], (key, loaded_value(key))];
        assert_eq!(check(0, 2, &unknown), Fault::UnknownKey { key });
        let early = scan(&checker, (0..40).filter(|i| *i != 7).chain([60]), 0, 5_000);
        assert_eq!(
            check(0, 5_000, &early),
            Fault::UnknownKey {
                key: checker.keys.inserts()[60]
            }
        );

        let mut foreign = right.clone();
        foreign[3].1 = right[4].1;
        let fault = Fault::ForeignValue {
            key: right[3].0,
            value: right[4].1,
        };
        assert_eq!(check(0, 50, &foreign), fault);
    }
}
