//! L0 compared with a map, and concurrent reads during writes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::*;
use crate::tree::{key_hash, random_numbers};

/// Returns short keys, keys that end with zeros, and keys that differ behind the head.
fn key_of(number: u64) -> Vec<u8> {
    let size_bytes = number as usize % 3 + 1;
    let mut key = format!("{:03}", number % 300).into_bytes()[..size_bytes].to_vec();
    match number >> 8 & 7 {
        0 => key.resize(size_bytes + 1 + number as usize % 20, 0),
        1 => drop(key.splice(..0, *b"sixteen in front")),
        2 => drop(key.splice(..0, [9; 30])),
        _ => {}
    }
    key
}

type Model = BTreeMap<Vec<u8>, (LogPosition, bool)>;

/// Creates a memtable with 3,000 versions of a few hundred keys; also returns the position after
/// half of them, and models of both states.
fn filled() -> (Memtable, LogPosition, [Model; 2]) {
    let memtable = Memtable::new(LogPosition(0));
    let mut models = [Model::new(), Model::new()];
    let half = LogPosition(1_500 * 10);
    for (index, number) in random_numbers(1).take(3_000).enumerate() {
        let position = LogPosition(index as u64 * 10);
        let (key, is_delete) = (key_of(number), number >> 20 & 3 == 3);
        memtable.insert(&key, position, number >> 50, is_delete);
        if position < half {
            models[0].insert(key.clone(), (position, is_delete));
        }
        models[1].insert(key, (position, is_delete));
    }
    (memtable, half, models)
}

fn at(cursor: &MemtableCursor<'_>) -> Option<(Vec<u8>, (LogPosition, bool))> {
    let entry = cursor.entry()?;
    assert!(!entry.key.continues);
    assert_eq!(entry.hash, key_hash(entry.key.bytes));
    let key = entry.key.bytes.to_vec();
    Some((key, (entry.position, entry.is_delete)))
}

fn cloned(
    pair: Option<(&Vec<u8>, &(LogPosition, bool))>,
) -> Option<(Vec<u8>, (LogPosition, bool))> {
    pair.map(|(key, value)| (key.clone(), *value))
}

/// Promise: as of any log position, the memtable equals a map of that moment. This holds for gets,
/// iteration in both directions, and seeks of present and absent keys.
#[test]
fn it_is_what_a_map_was() {
    let (memtable, half, models) = filled();
    for (bound, model) in [half, LogPosition::MAX].into_iter().zip(&models) {
        let mut cursor = MemtableCursor::new(&memtable, bound);
        cursor.seek_first();
        for (key, value) in model {
            assert_eq!(at(&cursor), Some((key.clone(), *value)));
            cursor.advance();
        }
        assert_eq!(at(&cursor), None);
        cursor.seek_last();
        for (key, value) in model.iter().rev() {
            assert_eq!(at(&cursor), Some((key.clone(), *value)));
            cursor.retreat();
        }
        assert_eq!(at(&cursor), None);
        for number in (0..2_000).chain(random_numbers(2).take(2_000)) {
            let mut key = key_of(number);
            if number % 5 == 0 {
                key.pop();
            }
            let found = memtable.get(&key, bound);
            let found = found.map(|it| (it.position, it.is_delete));
            assert_eq!(found, model.get(&key).copied(), "{key:?}");
            cursor.seek(&key);
            assert_eq!(at(&cursor), cloned(model.range(key.clone()..).next()));
            cursor.seek_back(&key);
            assert_eq!(at(&cursor), cloned(model.range(..=key).next_back()));
        }
    }
    assert_eq!(memtable.get(b"1", LogPosition(0)), None);
}

/// Promise: versions are counted, and memory as it is allocated: a leaf, and an entry's words.
#[test]
fn sizes_are_counted() {
    let memtable = Memtable::new(LogPosition(0));
    assert_eq!((memtable.entry_count(), memtable.size_bytes()), (0, 320));
    for index in 0..10 {
        memtable.insert(b"key", LogPosition(index), 5, false);
    }
    assert_eq!(memtable.entry_count(), 10);
    assert_eq!(memtable.size_bytes(), 320 + 10 * 16);
    memtable.insert(&[b'z'; 25], LogPosition(10), 5, false);
    assert_eq!(memtable.size_bytes(), 320 + 11 * 16 + 16);
    let mut cursor = MemtableCursor::new(&memtable, LogPosition::MAX);
    cursor.seek_first();
    assert_eq!(cursor.record_size_bytes(), 5);
    assert_eq!(cursor.entry().map(|it| it.position), Some(LogPosition(9)));
}

/// Returns the memory of L0 per record with a 24-byte key, inserted in this order.
fn assert_sorted(numbers: impl Iterator<Item = u64>) -> usize {
    let memtable = Memtable::new(LogPosition(0));
    let mut model = BTreeMap::new();
    for (index, number) in numbers.enumerate() {
        let key = format!("user{number:020}").into_bytes();
        let position = LogPosition(index as u64);
        memtable.insert(&key, position, 9, false);
        model.insert(key, (position, false));
    }
    let mut cursor = MemtableCursor::new(&memtable, LogPosition::MAX);
    cursor.seek_first();
    for (key, value) in &model {
        assert_eq!(at(&cursor), Some((key.clone(), *value)));
        assert!(memtable.get(key, LogPosition::MAX).is_some());
        cursor.advance();
    }
    assert_eq!(at(&cursor), None);
    cursor.seek_last();
    for (key, value) in model.iter().rev() {
        assert_eq!(at(&cursor), Some((key.clone(), *value)));
        cursor.retreat();
    }
    assert_eq!(at(&cursor), None);
    memtable.size_bytes() / memtable.entry_count()
}

/// Promise: in any order of insertion, with several levels, all keys are found in order. An entry
/// uses no more memory than documented, and much less if keys ascend.
#[test]
fn keys_may_come_in_any_order() {
    const COUNT: u64 = 60_000;
    let ascending = assert_sorted(0..COUNT);
    let descending = assert_sorted((0..COUNT).rev());
    let scattered = assert_sorted(random_numbers(3).take(COUNT as usize));
    let inwards = assert_sorted((0..COUNT).map(|it| if it % 2 == 0 { it } else { COUNT * 2 - it }));
    assert!(ascending < 60, "{ascending}");
    assert!(scattered < 150, "{scattered}");
    assert!(descending.max(inwards) < 200, "{descending} {inwards}");
}

/// Promise: descending keys between a full leaf and the next one share leaves, and so do versions
/// of one key there. They once had a leaf each, so that L0 was full four times as early.
#[test]
fn keys_behind_a_full_leaf_share_leaves() {
    const COUNT: u64 = 20_000;
    let downwards: Vec<u64> = (0..15).chain((16..COUNT).rev()).collect();
    let versions: Vec<u64> = (0..15).chain((0..COUNT).map(|_| 99)).collect();
    for numbers in [downwards, versions] {
        let memtable = Memtable::new(LogPosition(0));
        for (position, number) in (0..).zip(numbers) {
            let key = format!("user{number:020}");
            memtable.insert(key.as_bytes(), LogPosition(position), 9, false);
        }
        let size_bytes = memtable.size_bytes() / memtable.entry_count();
        assert!(size_bytes < 150, "{size_bytes}");
    }
}

/// Data written during reads: the key of each version, and the versions of each key.
struct Writes {
    keys: Vec<Vec<u8>>,
    versions: BTreeMap<Vec<u8>, Vec<u64>>,
}

impl Writes {
    fn new(count: usize) -> Self {
        let numbers = random_numbers(5).take(count);
        // Some keys ascend, which splits differently, and some repeat.
        let keys = numbers.enumerate().map(|(index, number)| match number % 4 {
            0 => format!("z{index:08}").into_bytes(),
            1 => key_of(number >> 2),
            _ => format!("user{:020}", number >> 45).into_bytes(),
        });
        let keys: Vec<_> = keys.collect();
        let mut versions = BTreeMap::<_, Vec<u64>>::new();
        for (index, key) in keys.iter().enumerate() {
            versions.entry(key.clone()).or_default().push(index as u64);
        }
        Self { keys, versions }
    }

    fn newest(versions: &[u64], bound: u64) -> Option<LogPosition> {
        let before = versions.partition_point(|position| *position < bound);
        Some(LogPosition(versions[before.checked_sub(1)?]))
    }

    /// Returns the keys from one on, ascending or descending, as of a position.
    fn from(&self, key: &[u8], is_back: bool, bound: u64) -> Vec<(&[u8], LogPosition)> {
        let seen = |(key, versions): (&'_ Vec<u8>, &'_ Vec<u64>)| {
            let newest = Self::newest(versions, bound)?;
            Some((self.versions.get_key_value(key)?.0.as_slice(), newest))
        };
        let key = key.to_vec();
        if is_back {
            let keys = self.versions.range(..=key).rev();
            keys.filter_map(seen).take(40).collect()
        } else {
            let keys = self.versions.range(key..);
            keys.filter_map(seen).take(40).collect()
        }
    }

    /// Reads any key and its neighbors, and checks the results.
    fn check(&self, memtable: &Memtable, bound: u64, number: u64) {
        let key = &self.keys[number as usize % self.keys.len()];
        let found = memtable.get(key, LogPosition(bound));
        let newest = Self::newest(&self.versions[key], bound);
        assert_eq!(found.map(|it| it.position), newest, "{key:?} at {bound}");
        for is_back in [false, true] {
            let mut cursor = MemtableCursor::new(memtable, LogPosition(bound));
            if is_back {
                cursor.seek_back(key);
            } else {
                cursor.seek(key);
            }
            for (key, position) in self.from(key, is_back, bound) {
                let entry = cursor.entry().expect("there is one");
                assert_eq!((entry.key.bytes, entry.position), (key, position));
                if is_back {
                    cursor.retreat();
                } else {
                    cursor.advance();
                }
            }
        }
    }
}

/// Promise: a reader during writes sees exactly the state at its bound, by gets and iteration in
/// both directions, whichever nodes are split meanwhile.
#[test]
fn readers_see_what_was_there() {
    let writes = Writes::new(150_000);
    let memtable = Memtable::new(LogPosition(0));
    let written = AtomicU64::new(0);
    let check_count = thread::scope(|scope| {
        let readers = [11, 12].map(|seed| {
            let (writes, memtable, written) = (&writes, &memtable, &written);
            scope.spawn(move || {
                let mut check_count = 0_u64;
                for number in random_numbers(seed) {
                    let bound = written.load(Ordering::Acquire);
                    writes.check(memtable, bound, number);
                    check_count += 1;
                    if bound == writes.keys.len() as u64 {
                        break;
                    }
                }
                check_count
            })
        });
        for (index, key) in writes.keys.iter().enumerate() {
            let position = index as u64;
            memtable.insert(key, LogPosition(position), 1, false);
            written.store(position + 1, Ordering::Release);
        }
        readers.map(|it| it.join().expect("it is as it was"))
    });
    assert!(check_count.iter().all(|it| *it > 10), "{check_count:?}");
}
