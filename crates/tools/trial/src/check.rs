//! Whether what was done with a key is linearizable: whether there is an order of all operations,
//! each at some moment between its begin and its end, in which each found what those before it
//! had left (after Wing and Gong, with what was tried before kept).

use std::collections::HashSet;

use crate::history::{Act, Operation, Value};

/// Where a search is: everything before `first` is in order, and these behind it; and the value.
type Place = (usize, Vec<usize>, Option<Value>);

/// So many operations before and behind the one that does not fit are told.
const NEAR_COUNT: usize = 12;

/// Has an operation take place; false: it cannot when the key has this value.
fn take_place(act: Act, value: &mut Option<Value>) -> bool {
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

/// Operations of one key, of which none was there in the beginning.
///
/// # Errors
/// The operation that fits into no order behind those before it.
pub fn check(operations: &[Operation]) -> Result<(), String> {
    let mut operations = operations.to_vec();
    operations.sort_by_key(|operation| operation.begun_ns);
    let mut seen: HashSet<Place> = HashSet::new();
    let mut stack: Vec<Place> = vec![(0, Vec::new(), None)];
    let mut farthest = 0;
    while let Some((first, behind, value)) = stack.pop() {
        let is_open = |index: &usize| !behind.contains(index);
        let open = (first..operations.len()).filter(is_open);
        // All that are known to have ended are in order.
        if open
            .clone()
            .all(|index| operations[index].ended_ns.is_none())
        {
            return Ok(());
        }
        farthest = farthest.max(first);
        let mut first_end = u64::MAX;
        for index in open.clone() {
            // Whatever begins behind that has ended later, too.
            if operations[index].begun_ns > first_end {
                break;
            }
            first_end = first_end.min(operations[index].ended_ns.unwrap_or(u64::MAX));
        }
        for index in open {
            let operation = operations[index];
            if operation.begun_ns > first_end {
                break;
            }
            let mut value = value;
            if !take_place(operation.act, &mut value) {
                continue;
            }
            let place = go_on(&operations, (first, &behind), index, value);
            if seen.insert(place.clone()) {
                stack.push(place);
            }
        }
        // One that may never have taken place, and would keep `first` where it is for ever.
        let skipped = operations.get(first);
        if skipped.is_some_and(|it| it.ended_ns.is_none()) && !behind.contains(&first) {
            let place = go_on(&operations, (first, &behind), first, value);
            if seen.insert(place.clone()) {
                stack.push(place);
            }
        }
    }
    let near = farthest.saturating_sub(NEAR_COUNT)..operations.len().min(farthest + NEAR_COUNT);
    Err(format!("{:?}", &operations[near]))
}

/// With one more operation in order, or left out.
fn go_on(
    operations: &[Operation],
    (first, behind): (usize, &[usize]),
    index: usize,
    value: Option<Value>,
) -> Place {
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

    fn operation(act: Act, begun_ns: u64, ended_ns: Option<u64>) -> Operation {
        Operation {
            act,
            begun_ns,
            ended_ns,
        }
    }

    /// Promise: what can be is right, and what cannot be is found.
    #[test]
    fn histories_are_told_apart() {
        let write = |value, begun, ended| operation(Act::Write(Some(value)), begun, Some(ended));
        let read = |value, begun, ended| operation(Act::Read(value), begun, Some(ended));
        let remove =
            |was_there, begun, ended| operation(Act::Remove(was_there), begun, Some(ended));
        let lost = |value, begun| operation(Act::Write(Some(value)), begun, None);
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
