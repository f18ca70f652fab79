//! Manifests with valid checksums and inconsistent contents.

use serde_json::{Number, Value, json};

use super::{Engine, key_of, maintain_all, open, tiny, value_of};
use crate::engine::{Direction, Durability, EngineOptions};
use crate::error::LsmError;
use crate::manifest::chain;
use crate::storage::{CrashStorage, Storage};
use crate::tree::random_numbers;

const MANIFEST: &str = "MANIFEST-1";
/// Boundaries of valid ranges.
const NUMBERS: [u64; 19] = [
    0,
    1,
    31,
    64,
    (2 << 20) - 1,
    2 << 20,
    (2 << 20) + 1,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    (1 << 33) - 1,
    1 << 33,
    1 << 52,
    (1 << 54) - 1,
    1 << 54,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX,
];

/// Creates a directory with trees in two levels and a log of several segments, some of them freed
/// and one ended by recovery.
fn filled() -> CrashStorage {
    let storage = CrashStorage::new(1);
    let options = EngineOptions {
        live_percent_min: 100,
        ..tiny()
    };
    for round in 0..2 {
        let engine = super::open_as(&storage, options.clone()).expect("whole");
        for number in 0..150 {
            let value = value_of(number, 9_000);
            let key = key_of(number * 7 + round, 60);
            let put = engine.put(&key, &value, Durability::Memory);
            put.expect("there is room");
            if number % 25 == 0 {
                engine.freeze();
                maintain_all(&engine);
            }
        }
        engine.sync().expect("synced");
    }
    storage
}

fn read(storage: &dyn Storage) -> Vec<Value> {
    let file = storage.open(MANIFEST).expect("there");
    let mut bytes = vec![0; file.size().expect("open") as usize];
    file.read_at(&mut bytes, 0).expect("read");
    let text = String::from_utf8(bytes).expect("it is text");
    let contents = text.lines().map(|line| &line[18..]);
    contents
        .map(|it| serde_json::from_str(it).expect("JSON"))
        .collect()
}

fn write(storage: &dyn Storage, edits: &[Value]) {
    let contents: Vec<String> = edits.iter().map(Value::to_string).collect();
    let file = storage.create(MANIFEST).expect("there");
    file.write_at(&chain(&contents), 0).expect("written");
}

fn copy_of(storage: &CrashStorage) -> CrashStorage {
    let copy = CrashStorage::new(2);
    for name in storage.list().expect("listed") {
        let file = storage.open(&name).expect("there");
        let mut bytes = vec![0; file.size().expect("open") as usize];
        file.read_at(&mut bytes, 0).expect("read");
        let other = copy.create(&name).expect("made");
        other.write_at(&bytes, 0).expect("written");
    }
    copy
}

/// Collects all values inside one that are numbers, lists, or maps with numeric keys.
fn places<'v>(value: &'v mut Value, found: &mut Vec<&'v mut Value>) {
    let has_places = match value {
        Value::Number(_) => false,
        Value::Array(items) => items.iter().all(Value::is_number),
        Value::Object(entries) => entries.keys().any(|key| key.parse::<u64>().is_ok()),
        _ => return,
    };
    if value.is_number() || has_places {
        return found.push(value);
    }
    match value {
        Value::Array(items) => items.iter_mut().for_each(|it| places(it, found)),
        Value::Object(entries) => entries.values_mut().for_each(|it| places(it, found)),
        _ => {}
    }
}

/// Changes a number, a list of them, or a map of them.
fn forge(value: &mut Value, random: u64) {
    let number = NUMBERS[(random >> 8) as usize % NUMBERS.len()];
    let pick = (random >> 16) as usize;
    match value {
        Value::Number(old) => {
            let old = old.as_u64().unwrap_or(0);
            *value = match random % 5 {
                0 => json!(old.wrapping_add(1)),
                1 => json!(old.wrapping_sub(1)),
                2 => Value::Number(Number::from(-1)),
                _ => json!(number),
            };
        }
        Value::Array(items) if !items.is_empty() => {
            let index = pick % items.len();
            match random % 4 {
                0 => items.push(items[index].clone()),
                1 => drop(items.remove(index)),
                2 => items.swap(0, index),
                _ => items[index] = json!(number),
            }
        }
        Value::Object(entries) => {
            let keys: Vec<String> = entries.keys().cloned().collect();
            if let Some(entry) = entries.remove(&keys[pick % keys.len()])
                && random & 3 != 0
            {
                entries.insert(number.to_string(), entry);
            }
        }
        _ => {}
    }
}

/// Uses a directory in all ways. Any error is fine, but no panic.
fn use_it(storage: &CrashStorage) -> Result<(), LsmError> {
    let engine: Engine = open(storage)?;
    for number in 0..10 {
        engine.get(&key_of(number * 13, 60))?;
    }
    let snapshot = engine.snapshot();
    let scan = snapshot.scan(super::ALL, Direction::Ascending)?;
    scan.take(100).collect::<Result<Vec<_>, _>>()?;
    drop(snapshot);
    engine.put(b"key", b"value", Durability::Sync)?;
    engine.merge_all()?;
    drop(engine);
    open(storage)?.get(b"key").map(|_| ())
}

/// Promise: whatever numbers a manifest with valid checksums has, the directory opens, or is
/// refused with an error that gives the place and the remedy. Nothing panics, and no allocation is
/// as large as a forged number.
#[test]
fn forged_manifests_are_no_danger() {
    let storage = filled();
    let all = read(&storage);
    // As written, edit by edit, and as one edit with all contents, as if rewritten.
    let engine = open(&storage).expect("whole");
    let state = engine.core.manifest.state();
    let anew = vec![json!([{ "all": state }])];
    drop(engine);
    let mut random = random_numbers(11);
    let mut draw = || random.next().expect("without end");
    let (mut opened, mut refused) = (0, 0);
    for case in 0..4_000 {
        let mut edits = if draw() % 2 == 0 {
            all.clone()
        } else {
            anew.clone()
        };
        for _ in 0..=draw() % 2 {
            if draw() % 16 == 0 {
                let (from, to) = (draw() as usize, draw() as usize);
                let edit = edits[from % edits.len()].clone();
                edits.insert(to % (edits.len() + 1), edit);
            } else {
                let mut found = Vec::new();
                for edit in &mut edits {
                    places(edit, &mut found);
                }
                let index = draw() as usize % found.len();
                forge(found[index], draw());
            }
        }
        println!("case {case}");
        write(&storage, &edits);
        match crate::manifest::Manifest::open(std::sync::Arc::new(storage.clone())) {
            Ok(_) if opened < 50 => {
                opened += 1;
                let copy = copy_of(&storage);
                // Errors are ignored; only a panic fails the test.
                drop(use_it(&copy));
            }
            Ok(_) => {}
            Err(error @ LsmError::CorruptManifest { .. }) => {
                refused += 1;
                let text = error.to_string();
                assert!(
                    text.contains(": line ") && text.contains("restore"),
                    "{text}"
                );
            }
            Err(LsmError::NewerVersion { .. } | LsmError::OlderVersion { .. }) => {
                refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(opened == 50 && refused > 1_000, "{opened}, {refused}");
}
