use super::*;
use std::sync::atomic::{AtomicU64, Ordering};

fn put<'a>(records: &ByteTableRecords, key: &'a [u8], value: &[u8]) -> Change<'a> {
    Change {
        key,
        condition: Condition::Always,
        value: Some(OfferedValue::new(value, records.memory_limit())),
        wants_previous: false,
        capacity_bytes: 100,
    }
}

fn delete(key: &[u8]) -> Change<'_> {
    Change {
        key,
        condition: Condition::Always,
        value: None,
        wants_previous: true,
        capacity_bytes: 100,
    }
}

fn find(records: &ByteTableRecords, key: &[u8]) -> Option<Vec<u8>> {
    let found = records.find(&[key], &mut Packing::new(1 << 20)).pop();
    let found = found.expect("there is room for one");
    found.map(|(value, _)| value.bytes().to_vec())
}

fn records_with(size_bytes_max: u64) -> (Arc<MemoryLimit>, ByteTableRecords) {
    let memory_limit = Arc::new(MemoryLimit::new(size_bytes_max));
    let records = ByteTableRecords::new(Arc::clone(&memory_limit));
    (memory_limit, records)
}

/// Promise: threads that change the same keys, by compare-and-swap and by writes of which only one
/// can succeed, lose no change, and all reserved memory is released in the end.
#[test]
fn threads_lose_nothing() {
    const THREAD_COUNT: u64 = 4;
    const TURN_COUNT: u64 = 5_000;
    let (memory_limit, records) = records_with(1 << 20);
    let won = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREAD_COUNT {
            let (records, won) = (&records, &won);
            scope.spawn(move || {
                for turn in 0..TURN_COUNT {
                    add_one(records, &[((thread + turn) % 3) as u8]);
                    let insert = Change {
                        condition: Condition::IfAbsent,
                        ..put(records, b"key", &[thread as u8; 100])
                    };
                    if records.change(insert).expect("room").is_done {
                        won.fetch_add(1, Ordering::Relaxed);
                    }
                    let deleted = records.change(delete(b"key")).expect("it needs no room");
                    if let Some(value) = deleted.previous {
                        assert!(value.bytes().iter().all(|byte| *byte == value.bytes()[0]));
                        won.fetch_sub(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(won.into_inner(), 0, "what was inserted was deleted once");
    let sum: u64 = (0..3_u8)
        .map(|key| {
            let value = find(&records, &[key]).expect("there");
            u64::from_le_bytes(value.try_into().expect("8 bytes"))
        })
        .sum();
    assert_eq!(sum, THREAD_COUNT * TURN_COUNT);
    assert_eq!(memory_limit.size_bytes(), 3 * (1 + 8 + RECORD_SIZE_BYTES));
    drop(records);
    assert_eq!(memory_limit.size_bytes(), 0);
}

fn add_one(records: &ByteTableRecords, key: &[u8]) {
    loop {
        let found = find(records, key);
        let number = found.as_deref().map_or(0, |value| {
            u64::from_le_bytes(value.try_into().expect("8 bytes"))
        });
        let swap = Change {
            condition: Condition::IfEqual(found.as_deref()),
            ..put(records, key, &(number + 1).to_le_bytes())
        };
        if records.change(swap).expect("room").is_done {
            return;
        }
    }
}

/// Promise: a replacing value takes over the share of the replaced one, unless a holder keeps that.
/// A held value counts until it is released. A refused write changes nothing.
#[test]
fn every_holder_of_a_value_counts() {
    let one = 1 + 1_000 + RECORD_SIZE_BYTES;
    let (memory_limit, records) = records_with(one + 500);
    records
        .change(put(&records, b"a", &[1; 1_000]))
        .expect("room");
    assert_eq!(memory_limit.size_bytes(), one);
    records
        .change(put(&records, b"a", &[2; 1_000]))
        .expect("in its place");
    let too_long = records.change(put(&records, b"a", &[3; 1_501]));
    assert!(matches!(too_long, Err(Failure::Full)));
    assert_eq!(find(&records, b"a"), Some(vec![2; 1_000]));
    let telling = Change {
        wants_previous: true,
        ..put(&records, b"a", &[3; 1_000])
    };
    let outcome = records.change(telling);
    assert!(matches!(outcome, Err(Failure::Full)), "both would be kept");
    let telling = Change {
        wants_previous: true,
        capacity_bytes: 1_100,
        ..put(&records, b"a", &[3; 1_000])
    };
    let outcome = records.change(telling).expect("it goes with the reply");
    drop(outcome);
    assert_eq!(memory_limit.size_bytes(), one);
    let held = records.find(&[b"a"], &mut Packing::new(1 << 20));
    let refused = records.change(put(&records, b"a", &[3; 1_000]));
    assert!(matches!(refused, Err(Failure::Full)), "it is held");
    let deleted = records.change(delete(b"a")).expect("it needs no room");
    assert!(deleted.is_done && deleted.was_present);
    drop(deleted);
    assert_eq!(memory_limit.size_bytes(), one, "it is held");
    drop(held);
    assert_eq!(memory_limit.size_bytes(), 0);
}

/// Promise: a scan returns the records of its range in its order, from either end, as many as
/// requested and as fit. Ranges without keys are accepted.
#[test]
fn scans_are_of_their_range() {
    let (_, records) = records_with(1 << 20);
    for key in 0..10_u8 {
        let value = vec![key; usize::from(key) * 10];
        records.change(put(&records, &[key], &value)).expect("room");
    }
    let scan = |start: u8, end: Option<u8>, descends: bool, limit: u32, capacity_bytes: usize| {
        let end = end.map(|end| [end]);
        let range = ByteRange {
            start: &[start],
            end: end.as_ref().map(|end| &end[..]),
            descends,
            of_keys: false,
            limit,
        };
        let scanned = records.scan(&range, &mut Packing::new(capacity_bytes));
        let keys: Vec<u8> = scanned.records.iter().map(|(key, _)| key[0]).collect();
        (keys, scanned.is_end)
    };
    assert_eq!(scan(2, Some(5), false, 9, 1 << 20), (vec![2, 3, 4], true));
    assert_eq!(scan(2, Some(5), true, 9, 1 << 20), (vec![4, 3, 2], true));
    assert_eq!(scan(2, Some(5), true, 2, 1 << 20), (vec![4, 3], false));
    assert_eq!(scan(2, Some(5), false, 3, 1 << 20), (vec![2, 3, 4], true));
    assert_eq!(scan(7, None, true, 9, 0), (vec![9], false), "one at least");
    assert_eq!(scan(7, None, false, 0, 1 << 20), (vec![], false));
    for (start, end) in [(5, 5), (5, 2), (10, 11)] {
        assert_eq!(scan(start, Some(end), false, 9, 1 << 20), (vec![], true));
        assert_eq!(scan(start, Some(end), true, 9, 1 << 20), (vec![], true));
    }
}
