//! Scans that hit corruption: they return everything before it, then the error, then nothing.

use std::ops::Bound;

use super::{Direction, Engine, open_as, tiny};
use crate::engine::{Durability, EngineOptions};
use crate::error::LsmError;
use crate::storage::{CrashStorage, Storage};

const RECORD_COUNT: usize = 1_000;
const VALUE: [u8; 40] = [b'v'; 40];

fn key_of(index: usize) -> Vec<u8> {
    format!("key {index:06}").into_bytes()
}

/// Returns options for a tree of several leaves, whose log is on the device and not in memory.
fn options() -> EngineOptions {
    EngineOptions {
        l0_entry_count_max: 2 * RECORD_COUNT,
        log_memory_size_bytes: 0,
        cache_size_bytes: 0,
        ..tiny()
    }
}

fn filled() -> CrashStorage {
    let storage = CrashStorage::new(1);
    let engine = open_as(&storage, options()).expect("made");
    for index in 0..RECORD_COUNT {
        let put = engine.put(&key_of(index), &VALUE, Durability::Memory);
        put.expect("no fault is set");
    }
    engine.freeze();
    engine.maintain().expect("flushed");
    // So that the segment with the records is no longer the open one.
    let put = engine.put(b"large", &vec![0; 3 << 20], Durability::Sync);
    put.expect("no fault is set");
    storage
}

fn flip(storage: &CrashStorage, file: &str, offset: u64) {
    let file = storage.open(file).expect("there");
    let mut byte = [0];
    file.read_at(&mut byte, offset).expect("read");
    file.write_at(&[byte[0] ^ 4], offset).expect("written");
}

/// Returns the offset of a record's key in the log file.
fn offset_of(storage: &CrashStorage, index: usize) -> u64 {
    let file = storage.open("log").expect("there");
    let mut bytes = vec![0; 256 << 10];
    file.read_at(&mut bytes, 0).expect("read");
    let key = key_of(index);
    let offset = bytes.windows(key.len()).position(|it| it == key);
    offset.expect("it was put") as u64
}

/// Returns the records of a scan, from one on until the expected error.
fn until_damage(engine: &Engine, from: usize, direction: Direction) -> Vec<usize> {
    let snapshot = engine.snapshot();
    let key = key_of(from);
    let range = match direction {
        Direction::Ascending => (Bound::Included(&key[..]), Bound::Unbounded),
        Direction::Descending => (Bound::Unbounded, Bound::Included(&key[..])),
    };
    let mut scan = snapshot.scan(range, direction).expect("it can be read");
    let mut given = Vec::new();
    loop {
        match scan.next().expect("it does not end before the damage") {
            Ok((key, value)) => {
                assert_eq!(value, VALUE);
                let index = String::from_utf8_lossy(&key[4..]).parse();
                given.push(index.expect("a key that was put"));
            }
            Err(LsmError::CorruptTree { .. } | LsmError::CorruptLog { .. }) => break,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(scan.next().is_none(), "after an error it has ended");
    given
}

/// Promise: wherever a record is corrupted, a scan in either direction returns everything before it
/// and then the error, although it reads ahead.
#[test]
fn what_is_before_a_damaged_record_is_given() {
    for damaged in [
        0,
        1,
        2,
        3,
        4,
        7,
        8,
        15,
        16,
        31,
        47,
        48,
        400,
        RECORD_COUNT - 1,
    ] {
        let storage = filled();
        flip(&storage, "log", offset_of(&storage, damaged));
        let engine = open_as(&storage, options()).expect("it is not read for that");
        for distance in [0, 1, 2, 3, 14, 15, 16, 17, 30, 50, 200] {
            if let Some(from) = damaged.checked_sub(distance) {
                let given = until_damage(&engine, from, Direction::Ascending);
                assert!(given.iter().copied().eq(from..damaged), "{given:?}");
            }
            let from = damaged + distance;
            if from < RECORD_COUNT {
                let given = until_damage(&engine, from, Direction::Descending);
                let expected = (damaged + 1..=from).rev();
                assert!(given.iter().copied().eq(expected), "{given:?}");
            }
        }
    }
}

/// Promise: wherever a scan begins, it returns everything before a corrupted leaf, and then the
/// error.
#[test]
fn what_is_before_a_damaged_leaf_is_given() {
    let storage = filled();
    // The second leaf.
    flip(&storage, "trees", 4096 + 100);
    let engine = open_as(&storage, options()).expect("it is not read for that");
    let whole = until_damage(&engine, 0, Direction::Ascending);
    assert!(whole.len() > 100, "a leaf has more entries");
    for count in 1..70 {
        let from = whole.len() - count;
        let given = until_damage(&engine, from, Direction::Ascending);
        assert!(given.iter().copied().eq(from..whole.len()), "{given:?}");
    }
}

/// Promise: after an error a scan has ended, even if it had already found another one.
#[test]
fn after_an_error_nothing_comes() {
    let storage = filled();
    flip(&storage, "trees", 4096 + 100);
    let engine = open_as(&storage, options()).expect("it is not read for that");
    let count = until_damage(&engine, 0, Direction::Ascending).len();
    flip(&storage, "log", offset_of(&storage, count - 2));
    let given = until_damage(&engine, count - 3, Direction::Ascending);
    assert_eq!(given, [count - 3]);
}
