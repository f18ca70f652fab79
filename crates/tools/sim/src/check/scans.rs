//! Checks each scan by itself (LEAF-9).
//!
//! The check that a scan misses no key that was there throughout, and returns none that never was,
//! treats it as reads of each key: see [`linearizability`](super::linearizability).

use super::Violation;
use crate::history::{Answer, History, Operation};

/// Checks that every scan's keys ascend, or descend, from its start, and that it returned as many
/// as requested, unless the table ended.
pub fn check(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    for event in &history.events {
        let Some(Answer::Records(records, is_end)) = &event.answer else {
            continue;
        };
        let first = records.first();
        let (from, limit, is_in_order, starts_right) = match &event.operation {
            Operation::Scan(from, limit) => {
                let ascends = records.is_sorted_by(|left, right| left.0 < right.0);
                (
                    from,
                    limit,
                    ascends,
                    first.is_none_or(|(key, _)| key >= from),
                )
            }
            Operation::ScanReverse(to, limit) => {
                let descends = records.is_sorted_by(|left, right| left.0 > right.0);
                (to, limit, descends, first.is_none_or(|(key, _)| key < to))
            }
            _ => continue,
        };
        let is_enough = records.len() == *limit || *is_end && records.len() < *limit;
        if !is_in_order || !starts_right || !is_enough {
            let how = format!("a scan of {limit} from {from:#x} returned {records:x?}");
            violations.push(Violation::new("scan", how));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scanned(from: u64, limit: usize, records: &[(u64, u64)]) -> usize {
        let mut history = History::default();
        let call = history.call(0, Operation::Scan(from, limit), Some(1), None);
        history.answer(call, Answer::Records(records.to_vec(), false));
        check(&history).len()
    }

    #[test]
    fn downwards_too() {
        let scanned = |to, limit, records: &[(u64, u64)]| {
            let mut history = History::default();
            let call = history.call(0, Operation::ScanReverse(to, limit), Some(1), None);
            history.answer(call, Answer::Records(records.to_vec(), false));
            check(&history).len()
        };
        assert_eq!(scanned(7, 2, &[(6, 1), (5, 1)]), 0);
        assert_eq!(scanned(7, 2, &[(5, 1), (6, 1)]), 1, "ascending");
        assert_eq!(scanned(6, 2, &[(6, 1), (5, 1)]), 1, "not below the start");
    }

    #[test]
    fn order_start_and_limit_are_checked() {
        assert_eq!(scanned(5, 3, &[(5, 1), (6, 1), (9, 1)]), 0);
        assert_eq!(scanned(5, 3, &[(5, 1)]), 1, "too few");
        assert_eq!(scanned(5, 2, &[(5, 1), (5, 1)]), 1, "twice");
        assert_eq!(scanned(5, 2, &[(6, 1), (5, 1)]), 1, "descending");
        assert_eq!(scanned(5, 1, &[(4, 1)]), 1, "before the start");
        assert_eq!(scanned(5, 1, &[(5, 1), (6, 1)]), 1, "too many");
    }
}
