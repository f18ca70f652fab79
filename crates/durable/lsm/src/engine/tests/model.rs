//! An engine behaves like a map.

use std::ops::Bound;

use super::{
    Direction, Engine, Model, any_options, assert_is, key_of, maintain_all, open, open_as, scanned,
    tiny,
};
use super::{Snapshot, value_of};
use crate::engine::Durability;
use crate::storage::CrashStorage;
use crate::tree::{mix, random_numbers};

const KEY_COUNT: u64 = 400;

fn bound(number: u64) -> (Vec<u8>, u64) {
    let mut key = key_of(number >> 8, KEY_COUNT);
    if number.is_multiple_of(3) {
        key.pop();
    }
    (key, number >> 4 & 3)
}

fn as_bound((key, kind): &(Vec<u8>, u64)) -> Bound<&[u8]> {
    match kind {
        0 => Bound::Unbounded,
        1 => Bound::Excluded(key),
        _ => Bound::Included(key),
    }
}

/// Asserts that scans of a range in both directions equal the model.
fn assert_range(snapshot: &Snapshot, model: &Model, one: u64, other: u64) {
    let mut bounds = [bound(one), bound(other)];
    bounds.sort();
    let range = (as_bound(&bounds[0]), as_bound(&bounds[1]));
    // `BTreeMap::range` panics for this empty range.
    let is_empty = bounds[0].0 == bounds[1].0 && bounds.iter().any(|it| it.1 == 1);
    let mut expected: Vec<_> = if is_empty && bounds.iter().all(|it| it.1 != 0) {
        Vec::new()
    } else {
        let all = model.range::<[u8], _>(range);
        all.map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    };
    let ascending = scanned(snapshot, range, Direction::Ascending);
    assert!(ascending == expected, "{range:?}");
    expected.reverse();
    let descending = scanned(snapshot, range, Direction::Descending);
    assert!(descending == expected, "{range:?}");
}

fn assert_gets(engine: &Engine, model: &Model) {
    for number in 0..KEY_COUNT {
        let mut key = key_of(number, KEY_COUNT);
        assert!(engine.get(&key).expect("read") == model.get(&key).cloned());
        key.push(b'!');
        assert_eq!(engine.get(&key).expect("read"), None);
    }
}

/// Promise: with any options, and any sequence of writes, flushes, merges, freeing and reopening,
/// gets and scans equal those of a map. Those of a snapshot equal those of the map at its time.
#[test]
fn it_is_what_a_map_is() {
    let mut deepest = 0;
    for seed in 0..12 {
        let storage = CrashStorage::new(seed);
        let mut engine = open_as(&storage, any_options(mix(seed))).expect("made");
        let mut model = Model::new();
        let mut snapshots: Vec<(Snapshot, Model)> = Vec::new();
        let mut numbers = random_numbers(seed);
        let mut next = || numbers.next().expect("endless");
        for step in 0..2_500 {
            let number = next();
            let key = key_of(number >> 20, KEY_COUNT);
            match number % 64 {
                0..=39 => {
                    let value = value_of(number, (number >> 40) as usize % 300);
                    engine.put(&key, &value, Durability::Memory).expect("put");
                    model.insert(key, value);
                }
                40..=51 => {
                    engine.delete(&key, Durability::Memory).expect("deleted");
                    model.remove(&key);
                }
                52..=56 => {
                    engine.maintain().expect("no fault is set");
                }
                57 => engine.freeze(),
                58 => snapshots.push((engine.snapshot(), model.clone())),
                59 if !snapshots.is_empty() => {
                    let (snapshot, then) = snapshots.swap_remove(step % snapshots.len());
                    assert_is(&snapshot, &then, "a snapshot");
                    let found = snapshot.get(&key).expect("read");
                    assert!(found == then.get(&key).cloned());
                }
                60 => assert_range(&engine.snapshot(), &model, next(), next()),
                61 => assert!(engine.get(&key).expect("read") == model.get(&key).cloned()),
                62 if step % 11 == 0 => engine.merge_all().expect("merged"),
                63 if step % 5 == 0 => {
                    engine.sync().expect("synced");
                    snapshots.clear();
                    drop(engine);
                    engine = open_as(&storage, any_options(next())).expect("whole");
                }
                _ => {}
            }
        }
        assert_gets(&engine, &model);
        assert_is(&engine.snapshot(), &model, "at the end");
        maintain_all(&engine);
        assert_gets(&engine, &model);
        deepest = deepest.max(engine.counts().tree_counts.len());
        engine.merge_all().expect("merged");
        assert_gets(&engine, &model);
        let entry_count: u64 = engine.counts().entry_counts.iter().sum();
        assert_eq!(entry_count, model.len() as u64, "each key once, no deletes");
        for (snapshot, then) in &snapshots {
            assert_is(snapshot, then, "a snapshot at the end");
        }
    }
    assert!(deepest >= 3, "levels were merged into others: {deepest}");
}

/// Promise: level 1 is due when it has more trees than its limit. A level is due when its entries
/// exceed L0's limit times the growth factor to the power of its number. One step is done at a
/// time.
#[test]
fn levels_are_merged_when_they_are_due() {
    let storage = CrashStorage::new(1);
    let engine = open(&storage).expect("made");
    let fill = |from: u64| {
        for number in from..from + 24 {
            let key = number.to_be_bytes();
            engine.put(&key, b"v", Durability::Memory).expect("put");
        }
        maintain_all(&engine);
    };
    fill(0);
    fill(24);
    assert_eq!(engine.counts().tree_counts, [2]);
    fill(48);
    assert_eq!(engine.counts().tree_counts, [0, 1]);
    assert_eq!(engine.counts().entry_counts, [0, 72]);
    // Level 2 has up to 24 * 3 * 3 entries.
    for from in 3..9 {
        fill(from * 24);
    }
    assert_eq!(engine.counts().entry_counts, [0, 24 * 9]);
    for from in 9..12 {
        fill(from * 24);
    }
    assert_eq!(engine.counts().entry_counts, [0, 0, 24 * 12]);
    assert_eq!(tiny().level_1_tree_count_max, 2);
}

/// Promise: keys and values up to the limits are accepted; larger ones are refused without effect.
#[test]
fn sizes_have_limits() {
    let engine = open(&CrashStorage::new(1)).expect("made");
    let sync = Durability::Sync;
    let (key, value) = (vec![b'k'; 4096], value_of(1, 64 << 20));
    engine.put(&key, &value, sync).expect("put");
    engine.put(b"", b"", sync).expect("put");
    let long_key = vec![b'k'; 4097];
    let refused = engine
        .put(&long_key, b"", sync)
        .map_err(|it| it.to_string());
    assert!(refused.expect_err("too long").contains("4097 bytes"));
    let refused = engine.delete(&long_key, sync);
    assert!(refused.is_err());
    let long_value = vec![0; (64 << 20) + 1];
    let refused = engine
        .put(b"k", &long_value, sync)
        .map_err(|it| it.to_string());
    assert!(refused.expect_err("too long").contains("67108865 bytes"));
    engine.freeze();
    maintain_all(&engine);
    assert!(engine.get(&key).expect("read") == Some(value));
    assert_eq!(engine.get(b"").expect("read"), Some(Vec::new()));
    assert_eq!(engine.get(b"k").expect("read"), None);
}
