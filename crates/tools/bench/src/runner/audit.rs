//! Final check: compares the table with its expected contents.

use super::ProgressSink;
use super::fault_counts::FaultCounts;
use super::subject::Subject;
use crate::verify::{Fault, ScanChecker, ScanStart, Verdict};

/// Records of one scan: large enough that a scan is mostly contiguous reading, small enough to stay
/// in a processor's cache while it is checked.
const PART_RECORD_COUNT: usize = 2_048;

/// Parts between two progress reports.
const PARTS_PER_REPORT: u64 = 32;

/// Reads the whole table and counts in `fault_counts` every key that is missing, wrong or
/// superfluous. Returns the number of records. No operation may be in flight. About 10 ns per
/// record.
pub(super) fn audit(
    table: &impl Subject,
    checker: &ScanChecker,
    fault_counts: &mut FaultCounts,
    progress: &dyn ProgressSink,
) -> u64 {
    let start = checker.begin();
    let mut entries = Vec::with_capacity(PART_RECORD_COUNT);
    let mut record_count = 0;
    let mut from = 0;
    for part in 1_u64.. {
        let scan = table.scan_into(from, PART_RECORD_COUNT, &mut entries);
        if let Err(error) = table.block_on(scan) {
            fault_counts.wrong(format_args!(
                "final check of all records stopped at key {from}: {error}"
            ));
            break;
        }
        check_part(checker, start, from, &entries, fault_counts);
        record_count += entries.len() as u64;
        if part % PARTS_PER_REPORT == 0 {
            progress.advance(record_count);
        }
        // An answer after which the scan cannot continue has been counted as wrong.
        let next = entries.last().and_then(|(key, _)| key.checked_add(1));
        match next.filter(|next| *next > from && entries.len() >= PART_RECORD_COUNT) {
            Some(next) => from = next,
            None => break,
        }
    }
    progress.advance(record_count);
    record_count
}

/// Counts all faults of one scan: the checker returns the first, and the count continues after
/// each.
fn check_part(
    checker: &ScanChecker,
    start: ScanStart,
    mut from: u64,
    mut entries: &[(u64, u64)],
    fault_counts: &mut FaultCounts,
) {
    let is_full = entries.len() >= PART_RECORD_COUNT;
    loop {
        // A scan that was not full must have reached the end of the table.
        let limit = if is_full {
            entries.len()
        } else {
            PART_RECORD_COUNT
        };
        let verdict = checker.check_scan(start, from, limit, entries);
        fault_counts.count_verdict(verdict);
        let behind = match verdict {
            Verdict::Right => return,
            Verdict::Missing { key } => {
                let passed = entries.partition_point(|(found, _)| *found <= key);
                key.checked_add(1).map(|next| (next, &entries[passed..]))
            }
            Verdict::Wrong(fault) => behind(fault, entries),
        };
        match behind {
            Some((next, rest)) if !(is_full && rest.is_empty()) => (from, entries) = (next, rest),
            _ => return,
        }
    }
}

/// Returns where to continue after a fault: the next key and the remaining entries.
fn behind(fault: Fault, entries: &[(u64, u64)]) -> Option<(u64, &[(u64, u64)])> {
    let place_of = |key| entries.iter().position(|(found, _)| *found == key);
    let (next, place) = match fault {
        Fault::ForeignValue { key, .. } | Fault::UnknownKey { key } => {
            (key.checked_add(1)?, place_of(key)?)
        }
        Fault::BelowStart { start, key } => (start, place_of(key)?),
        Fault::NotAscending { previous, key } => {
            let descent = entries.windows(2).position(|pair| pair[1].0 <= pair[0].0)?;
            (previous.max(key).checked_add(1)?, descent + 1)
        }
        _ => return None,
    };
    Some((next, &entries[place + 1..]))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::dataset::{Dataset, KeySet};
    use crate::verify::loaded_value;
    use crate::workload::InsertLedger;

    const RECORD_COUNT: u64 = 100;

    fn checker() -> ScanChecker {
        let keys = KeySet::generate(&Dataset::Sequential, RECORD_COUNT as usize, 0, 1);
        let ledger = InsertLedger::new(RECORD_COUNT, 0);
        ScanChecker::new(Arc::new(keys.expect("keys")), Arc::new(ledger))
    }

    fn counted(change: impl FnOnce(&mut Vec<(u64, u64)>)) -> (u64, u64) {
        let checker = checker();
        let mut entries: Vec<(u64, u64)> = (0..RECORD_COUNT)
            .map(|key| (key, loaded_value(key)))
            .collect();
        change(&mut entries);
        let mut fault_counts = FaultCounts::default();
        check_part(&checker, checker.begin(), 0, &entries, &mut fault_counts);
        (fault_counts.errors, fault_counts.missing)
    }

    /// Promise: a correct table has no faults.
    #[test]
    fn what_is_right_is_right() {
        assert_eq!(counted(|_| ()), (0, 0));
    }

    /// Promise: every missing key is counted, also at the ends and when none is left.
    #[test]
    fn every_missing_key_is_counted() {
        assert_eq!(
            counted(|entries| entries.retain(|(key, _)| *key > 0)),
            (0, 1)
        );
        assert_eq!(counted(|entries| entries.truncate(90)), (0, 10));
        assert_eq!(counted(|entries| drop(entries.drain(20..30))), (0, 10));
        assert_eq!(counted(Vec::clear), (0, RECORD_COUNT));
    }

    /// Promise: every wrong entry is counted once and hides none after it.
    #[test]
    fn every_wrong_entry_is_counted() {
        assert_eq!(counted(|entries| entries[5].1 = 7), (1, 0));
        assert_eq!(counted(|entries| entries[99].1 = 7), (1, 0));
        let many = |entries: &mut Vec<(u64, u64)>| {
            entries[5].1 = 7;
            entries[6].1 = 7;
            entries.push((1_000, 1));
            entries.remove(50);
        };
        assert_eq!(counted(many), (3, 1));
        // The same key twice is one too many; another key is late.
        assert_eq!(
            counted(|entries| entries.insert(3, (2, loaded_value(2)))),
            (1, 0)
        );
        assert_eq!(
            counted(|entries| entries.insert(9, (2, loaded_value(2)))),
            (1, 0)
        );
    }
}
