//! Checks that every key behaves like one register: translates a history into effects per key, and
//! looks for an order that explains them.

mod register;

use core::ops::RangeBounds;
use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use crate::history::{Answer, Event, History, Operation, Refusal};
pub use register::{Attempt, Effect, KeyEvent, is_linearizable};

/// Checks every key of a history. `initial` is the content of the table before it.
pub fn check(history: &History, initial: &BTreeMap<u64, u64>, keys: &[u64]) -> Vec<Violation> {
    let mut by_key: BTreeMap<u64, Vec<KeyEvent>> = BTreeMap::new();
    for event in &history.events {
        for (key, effect) in effects(event, keys) {
            let answered = match effect {
                Effect::Perhaps(_) => u64::MAX,
                _ => event.answered_by(),
            };
            by_key.entry(key).or_default().push(KeyEvent {
                called: event.called,
                answered,
                effect,
            });
        }
    }
    let broken = by_key
        .iter()
        .filter(|(key, events)| !is_linearizable(events, initial.get(key).copied()));
    broken
        .map(|(key, events)| {
            let how = format!(
                "the operations on key {key:#x} are not linearizable:{}",
                describe(events)
            );
            Violation::new("linearizability", how)
        })
        .collect()
}

fn describe(events: &[KeyEvent]) -> String {
    let lines = events.iter().map(|event| {
        let answered = match event.answered {
            u64::MAX => "-".to_owned(),
            moment => moment.to_string(),
        };
        format!("\n      {}..{answered} {:x?}", event.called, event.effect)
    });
    lines.collect()
}

/// Returns the effect of an event on each key. `keys` are all keys that any operation touches,
/// ascending; a scan reads each of them that is in its range.
fn effects(event: &Event, keys: &[u64]) -> Vec<(u64, Effect)> {
    let attempt = |key: u64, attempt: Attempt| match &event.answer {
        Some(Answer::Changed { from, to }) => {
            let (from, to) = (*from, *to);
            vec![(key, Effect::Change { from, to })]
        }
        Some(Answer::Wrote { was_present, to }) => {
            let (was_present, to) = (*was_present, *to);
            vec![(key, Effect::Wrote { was_present, to })]
        }
        Some(Answer::Nothing(_)) => Vec::new(),
        _ => vec![(key, Effect::Perhaps(attempt))],
    };
    let read = |keys: &[u64]| match &event.answer {
        Some(Answer::Values(values)) => {
            let values = values.iter().map(|value| Effect::Read(*value));
            keys.iter().copied().zip(values).collect()
        }
        _ => Vec::new(),
    };
    match &event.operation {
        Operation::Get(key) => read(&[*key]),
        Operation::MultiGet(keys) => read(keys),
        Operation::Put(key, value) => attempt(*key, Attempt::Put(*value)),
        Operation::Insert(key, value) => attempt(*key, Attempt::Insert(*value)),
        Operation::Update(key, value) => attempt(*key, Attempt::Update(*value)),
        Operation::Delete(key) => attempt(*key, Attempt::Delete),
        Operation::CompareSwap(key, new) => attempt(
            *key,
            Attempt::Swap {
                expected: event.expected,
                new: *new,
            },
        ),
        Operation::Scan(from, _) => scanned(event, keys, |last| *from..=last.unwrap_or(u64::MAX)),
        Operation::ScanReverse(to, _) => scanned(event, keys, |last| last.unwrap_or(0)..*to),
        Operation::DeleteRange(from, to) => {
            // Where a range delete failed, some of the keys may be deleted.
            let effect = match &event.answer {
                Some(Answer::Cleared(_)) => Effect::Cleared,
                _ => Effect::Perhaps(Attempt::Delete),
            };
            let range = keys.iter().filter(|key| (from..to).contains(key));
            range.map(|key| (*key, effect)).collect()
        }
        // Operations on the catalog, or not unwrapped: see `History::of_table`.
        Operation::Create(_)
        | Operation::Drop
        | Operation::Open
        | Operation::List
        | Operation::Other(_) => Vec::new(),
        Operation::Load(records) => {
            let loaded = |value: u64| match &event.answer {
                Some(Answer::Loaded) => Some(Effect::Change {
                    from: None,
                    to: Some(value),
                }),
                // A put into a table that was dropped meanwhile may still have taken effect.
                Some(Answer::Nothing(refusal)) if *refusal != Refusal::TableDropped => None,
                _ => Some(Effect::Perhaps(Attempt::Insert(value))),
            };
            let records = records.iter();
            records
                .filter_map(|(key, value)| Some((*key, loaded(*value)?)))
                .collect()
        }
    }
}

/// Returns the effects of a scan on every key of its range: keys that it did not return were
/// absent. Returned keys count even if no operation is known to touch them. `range` returns the
/// range, from the last key that was returned, or `None` if the scan reached the end of the table.
fn scanned<R: RangeBounds<u64>>(
    event: &Event,
    keys: &[u64],
    range: impl Fn(Option<u64>) -> R,
) -> Vec<(u64, Effect)> {
    let Some(Answer::Records(records, is_end)) = &event.answer else {
        return Vec::new();
    };
    let last = records.last().map(|(key, _)| *key).filter(|_| !is_end);
    if last.is_none() && !is_end {
        return Vec::new();
    }
    let range = range(last);
    read_all(records, keys.iter().filter(|key| range.contains(*key)))
}

/// Returns the reads of all these keys and of those that were found.
fn read_all<'k>(
    records: &[(u64, u64)],
    covered: impl Iterator<Item = &'k u64>,
) -> Vec<(u64, Effect)> {
    let found: BTreeMap<u64, u64> = records.iter().copied().collect();
    let read: BTreeSet<u64> = covered.copied().chain(found.keys().copied()).collect();
    let effects = read.into_iter();
    effects
        .map(|key| (key, Effect::Read(found.get(&key).copied())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: keys of a deleted range are absent and those beside it are not; those of a range
    /// deletion that was cut off may be absent.
    #[test]
    fn what_was_cleared_is_gone() {
        let reads = |answer: Option<Answer>, found: [Option<u64>; 2]| {
            let mut history = History::default();
            let call = history.call(0, Operation::DeleteRange(0, 2), Some(1), None);
            if let Some(answer) = answer {
                history.answer(call, answer);
            }
            let call = history.call(0, Operation::MultiGet(vec![1, 2]), Some(1), None);
            history.answer(call, Answer::Values(found.to_vec()));
            let initial = BTreeMap::from([(1, 10), (2, 20)]);
            check(&history, &initial, &[1, 2]).is_empty()
        };
        let cleared = || Some(Answer::Cleared(1));
        assert!(reads(cleared(), [None, Some(20)]));
        assert!(!reads(cleared(), [Some(10), Some(20)]));
        assert!(!reads(cleared(), [None, None]));
        assert!(reads(None, [None, Some(20)]) && reads(None, [Some(10), Some(20)]));
    }

    /// Promise: a history with one operation of each kind gives the expected effects for its keys.
    #[test]
    fn every_kind_of_operation_counts() {
        let broken = |operation: Operation, answer: Answer| {
            let mut history = History::default();
            let call = history.call(0, operation, Some(1), None);
            history.answer(call, answer);
            let initial = BTreeMap::from([(1, 10), (2, 20)]);
            !check(&history, &initial, &[1, 2, 3]).is_empty()
        };
        let values = |values: &[Option<u64>]| Answer::Values(values.to_vec());
        let records = |records: &[(u64, u64)], is_end| Answer::Records(records.to_vec(), is_end);
        let changed = |from, to| Answer::Changed { from, to };
        assert!(!broken(Operation::Get(1), values(&[Some(10)])));
        assert!(broken(Operation::Get(1), values(&[None])));
        assert!(broken(
            Operation::MultiGet(vec![1, 2]),
            values(&[Some(10), Some(10)])
        ));
        assert!(!broken(Operation::Put(1, 5), changed(Some(10), Some(5))));
        assert!(broken(Operation::Put(1, 5), changed(None, Some(5))));
        assert!(broken(Operation::Insert(3, 5), changed(Some(1), Some(1))));
        assert!(broken(Operation::Update(1, 5), changed(None, None)));
        assert!(broken(Operation::Delete(2), changed(None, None)));
        assert!(broken(
            Operation::CompareSwap(2, None),
            changed(Some(10), None)
        ));
        assert!(!broken(Operation::Load(vec![(3, 1)]), Answer::Loaded));
        assert!(broken(Operation::Load(vec![(2, 1)]), Answer::Loaded));
        let wrote = |was_present, to| Answer::Wrote { was_present, to };
        assert!(!broken(Operation::Put(1, 5), wrote(true, Some(5))));
        assert!(broken(Operation::Put(3, 5), wrote(true, Some(5))));
        let reverse = |to| Operation::ScanReverse(to, 9);
        assert!(!broken(reverse(9), records(&[(2, 20), (1, 10)], true)));
        assert!(!broken(reverse(2), records(&[(1, 10)], true)));
        assert!(broken(reverse(9), records(&[(2, 20)], true)), "1 was there");
        assert!(!broken(reverse(9), records(&[(2, 20)], false)));
        let scan = || Operation::Scan(0, 9);
        assert!(!broken(scan(), records(&[(1, 10), (2, 20)], true)));
        assert!(broken(scan(), records(&[(2, 20)], true)), "1 was there");
        assert!(broken(scan(), records(&[(1, 10)], true)), "2 was there");
        assert!(
            broken(scan(), records(&[(1, 10), (7, 99)], false)),
            "7 never was"
        );
    }
}
