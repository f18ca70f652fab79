//! Linearizability check of one key's operations. It searches an order in which each operation
//! takes effect between its begin and its end, and sees the effects of those before it. The
//! algorithm is that of Wing and Gong, with memoization.

use std::collections::HashSet;

use crate::history::{Act, Operation, Value};

/// State of the search: all operations before `first` and those listed are ordered; and the key's
/// value.
type SearchState = (usize, Vec<usize>, Option<Value>);

/// Operations before and after the one that does not fit that an error shows.
const NEAR_COUNT: usize = 12;

/// Applies an operation to the value; returns false if it is impossible with this value.
fn apply(act: Act, value: &mut Option<Value>) -> bool {
    match act {
        Act::Write(new) => {
            *value = new;
            true
        }
        Act::Remove(was_there) => value.take().is_some() == was_there,
        Act::Read(found) => found == *value,
        Act::Swap(expected, new, true) => {
            let is_right = expected == *value;
            *value = new;
            is_right
        }
        Act::Swap(expected, _, false) => expected != *value,
    }
}

/// Checks the operations of one key, which was absent at first.
///
/// # Errors
/// The operation that fits no order after those before it.
pub fn check(operations: &[Operation]) -> Result<(), String> {
    let mut operations = operations.to_vec();
    operations.sort_by_key(|operation| operation.started_ns);
    let mut seen: HashSet<SearchState> = HashSet::new();
    let mut stack: Vec<SearchState> = vec![(0, Vec::new(), None)];
    let mut farthest = 0;
    while let Some((first, behind, value)) = stack.pop() {
        let is_open = |index: &usize| !behind.contains(index);
        let open = (first..operations.len()).filter(is_open);
        // All operations that are known to have ended are ordered.
        if open
            .clone()
            .all(|index| operations[index].ended_ns.is_none())
        {
            return Ok(());
        }
        farthest = farthest.max(first);
        let mut first_end = u64::MAX;
        for index in open.clone() {
            // Operations that begin later have also ended later.
            if operations[index].started_ns > first_end {
                break;
            }
            first_end = first_end.min(operations[index].ended_ns.unwrap_or(u64::MAX));
        }
        for index in open {
            let operation = operations[index];
            if operation.started_ns > first_end {
                break;
            }
            let mut value = value;
            if !apply(operation.act, &mut value) {
                continue;
            }
            let place = next_state(&operations, first, &behind, index, value);
            if seen.insert(place.clone()) {
                stack.push(place);
            }
        }
        // Skips an operation that may never have taken effect, because it would keep `first` in
        // place forever.
        let skipped = operations.get(first);
        if skipped.is_some_and(|it| it.ended_ns.is_none()) && !behind.contains(&first) {
            let place = next_state(&operations, first, &behind, first, value);
            if seen.insert(place.clone()) {
                stack.push(place);
            }
        }
    }
    let near = farthest.saturating_sub(NEAR_COUNT)..operations.len().min(farthest + NEAR_COUNT);
    Err(format!("{:?}", &operations[near]))
}

/// Returns the state with one more operation ordered or skipped.
fn next_state(
    operations: &[Operation],
    first: usize,
    behind: &[usize],
    index: usize,
    value: Option<Value>,
) -> SearchState {
    let mut behind = behind.to_vec();
    behind.push(index);
    behind.sort_unstable();
    let mut first = first;
    while first < operations.len() && behind.first() == Some(&first) {
        behind.remove(0);
        first += 1;
    }
    (first, behind, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(act: Act, started_ns: u64, ended_ns: Option<u64>) -> Operation {
        Operation {
            act,
            started_ns,
            ended_ns,
        }
    }

    /// Promise: linearizable histories pass, and others are detected.
    #[test]
    fn histories_are_told_apart() {
        let write =
            |value, started, ended| operation(Act::Write(Some(value)), started, Some(ended));
        let read = |value, started, ended| operation(Act::Read(value), started, Some(ended));
        let remove =
            |was_there, started, ended| operation(Act::Remove(was_there), started, Some(ended));
        let lost = |value, started| operation(Act::Write(Some(value)), started, None);
        let right = [
            vec![write(1, 0, 1), read(Some(1), 2, 3)],
            vec![write(1, 0, 5), read(None, 1, 2), read(Some(1), 3, 4)],
            vec![lost(1, 0), read(None, 1, 2), read(Some(1), 3, 4)],
            vec![lost(1, 0), read(None, 1, 2), read(None, 3, 4)],
            vec![lost(1, 0), remove(true, 1, 2), remove(false, 3, 4)],
            vec![
                write(1, 0, 1),
                operation(Act::Swap(Some(1), Some(2), true), 2, Some(3)),
                operation(Act::Swap(Some(1), Some(3), false), 4, Some(5)),
                read(Some(2), 6, 7),
            ],
        ];
        for history in right {
            assert_eq!(check(&history), Ok(()), "{history:?}");
        }
        let wrong = [
            vec![write(1, 0, 1), read(None, 2, 3)],
            vec![write(1, 0, 1), write(2, 2, 3), read(Some(1), 4, 5)],
            vec![lost(1, 0), read(Some(1), 1, 2), read(None, 3, 4)],
            vec![write(1, 5, 6), read(Some(1), 1, 2)],
            vec![write(1, 0, 1), remove(false, 2, 3)],
            vec![write(1, 0, 1), remove(true, 2, 3), remove(true, 4, 5)],
            vec![
                write(1, 0, 1),
                read(Some(1), 2, 3),
                lost(2, 1),
                read(Some(2), 4, 5),
                read(Some(1), 6, 7),
            ],
            vec![operation(Act::Swap(Some(1), Some(2), true), 0, Some(1))],
        ];
        for history in wrong {
            assert!(check(&history).is_err(), "{history:?}");
        }
    }
}
