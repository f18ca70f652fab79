//! A directory written by an earlier build with this format version, from
//! `crates/durable/lsm/fixtures`.
//!
//! Large files are stored without holes: `trees@2097152` has the contents of `trees` from that byte
//! on. Bytes in between are zeros.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Engine, Model, assert_is, key_of, maintain_all, open_as, tiny, value_of};
use crate::engine::{Durability, EngineOptions};
use crate::log::record::EngineId;
use crate::storage::{CrashStorage, DirectoryStorage, Storage};

/// Name of the fixture: its format version.
const FIXTURE: &str = "version-2";
/// Minimum size in bytes of zeros that are omitted.
const HOLE_SIZE_BYTES: usize = 512;
/// Maximum size in bytes of a fixture's files together.
const SIZE_BYTES_MAX: usize = 64 << 10;
const REGENERATE: &str = "cargo test -p farleaf-lsm regenerate -- --ignored";

fn folder() -> PathBuf {
    let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    package.join("fixtures").join(FIXTURE)
}

fn options() -> EngineOptions {
    EngineOptions {
        live_percent_min: 50,
        ..tiny().with_id(EngineId(0x0fa2_1eaf_0000_0002))
    }
}

/// Writes the fixture and returns its contents. It has keys of all kinds, in trees of two levels,
/// only in the log, and in both. It has deletes and values that are large, moved, or empty, and a
/// log that recovery ended and that was freed in part.
fn write(storage: &CrashStorage) -> Model {
    let mut model = Model::new();
    let mut put = |engine: &Engine, key: Vec<u8>, value: Vec<u8>| {
        let put = engine.put(&key, &value, Durability::Memory);
        put.expect("no fault is set");
        model.insert(key, value);
    };
    let engine = open_as(storage, options()).expect("made");
    for number in 0..60 {
        put(&engine, key_of(number, 60), value_of(number, 9));
    }
    // The first one fills segments in which almost nothing lives then, so the rest is moved.
    for round in 0..2 {
        put(&engine, b"large".to_vec(), vec![0; 5 << 20]);
        put(&engine, b"mostly".to_vec(), vec![0; 1_900_000]);
        let key = format!("beside the large one {round}");
        put(&engine, key.into_bytes(), value_of(round, 30));
        engine.freeze();
        maintain_all(&engine);
    }
    put(&engine, b"large".to_vec(), vec![0; 3 << 20]);
    put(&engine, b"mostly".to_vec(), b"small".to_vec());
    engine.merge_all().expect("no fault is set");
    engine.sync().expect("synced");
    drop(engine);
    let engine = open_as(storage, options()).expect("whole");
    for number in 50..70 {
        put(&engine, key_of(number, 70), value_of(number, 700));
    }
    put(&engine, b"nothing".to_vec(), Vec::new());
    for number in (0..60).step_by(7) {
        let key = key_of(number, 60);
        let deleted = engine.delete(&key, Durability::Memory);
        deleted.expect("no fault is set");
        model.remove(&key);
    }
    engine.freeze();
    maintain_all(&engine);
    for number in (0..9).chain([65]) {
        let key = key_of(number * 3, 70);
        let value = value_of(number, 20);
        let put = engine.put(&key, &value, Durability::Memory);
        put.expect("no fault is set");
        model.insert(key, value);
    }
    let deleted = engine.delete(b"nothing", Durability::Sync);
    deleted.expect("no fault is set");
    model.remove(&b"nothing"[..]);
    let counts = engine.counts();
    assert_eq!(counts.tree_counts, [2, 1], "{counts:?}");
    model
}

/// Returns the runs of bytes without holes, and the last bytes, which determine the length.
fn pieces(bytes: &[u8]) -> Vec<(usize, &[u8])> {
    let last = bytes.len().saturating_sub(1) / HOLE_SIZE_BYTES;
    let is_kept = |index: usize, part: &[u8]| index == last || part.iter().any(|it| *it != 0);
    let mut found: Vec<(usize, &[u8])> = Vec::new();
    for (index, part) in bytes.chunks(HOLE_SIZE_BYTES).enumerate() {
        if !is_kept(index, part) {
            continue;
        }
        let start = index * HOLE_SIZE_BYTES;
        match found.last_mut() {
            Some((first, piece)) if *first + piece.len() == start => {
                *piece = &bytes[*first..start + part.len()];
            }
            _ => found.push((start, part)),
        }
    }
    found
}

/// Writes the fixture's files into a directory.
fn load(storage: &dyn Storage) {
    let entries = fs::read_dir(folder());
    let entries = entries.unwrap_or_else(|_| {
        panic!("no {FIXTURE} is kept: make it, and keep those before it: {REGENERATE}")
    });
    for entry in entries {
        let entry = entry.expect("it is listed");
        let name = entry.file_name().into_string().expect("a plain name");
        let bytes = fs::read(entry.path()).expect("it is a file");
        let (name, offset) = name.split_once('@').unwrap_or((&name, "0"));
        let file = storage.open(name).or_else(|_| storage.create(name));
        let offset = offset.parse().expect("a number");
        let written = file.and_then(|file| file.write_at(&bytes, offset));
        written.expect("there is room");
    }
}

/// Promise: this build opens a directory of this format version, finds all its contents, continues
/// with it, and reopens it. If this fails, the format has changed, and needs a new version and
/// fixture.
#[test]
fn the_fixture_is_read() {
    let model = write(&CrashStorage::new(1));
    let directory = tempfile::tempdir().expect("there is room");
    let storage = || {
        let storage = DirectoryStorage::open(directory.path()).expect("it is there");
        Arc::new(storage)
    };
    load(&*storage());
    let engine = Engine::open(storage(), options()).expect("this version reads it");
    assert_is(&engine.snapshot(), &model, "as it was written");
    for (key, value) in &model {
        let found = engine.get(key).expect("it can be read");
        assert!(found.as_ref() == Some(value), "{key:?}");
    }
    engine
        .put(b"more", b"value", Durability::Sync)
        .expect("there is room");
    engine.merge_all().expect("there is room");
    drop(engine);
    let engine = Engine::open(storage(), options()).expect("whole");
    let mut model = model;
    model.insert(b"more".to_vec(), b"value".to_vec());
    assert_is(&engine.snapshot(), &model, "merged");
}

/// Writes the fixture of a new version. An existing one is never replaced: only an earlier build
/// can have written it.
#[test]
#[ignore = "it writes into the source tree"]
fn regenerate() {
    let storage = CrashStorage::new(1);
    write(&storage);
    let folder = folder();
    let made = fs::create_dir(&folder);
    made.expect("it is not there: one that is was written by an earlier build, and stays");
    let mut size_bytes = 0;
    for name in storage.list().expect("listed") {
        let file = storage.open(&name).expect("there");
        let mut bytes = vec![0; file.size().expect("open") as usize];
        file.read_at(&mut bytes, 0).expect("read");
        let is_device = ["log", "trees"].contains(&&*name);
        let all = vec![(0, &bytes[..])];
        for (start, piece) in if is_device { pieces(&bytes) } else { all } {
            let piece_name = if is_device {
                format!("{name}@{start}")
            } else {
                name.clone()
            };
            fs::write(folder.join(piece_name), piece).expect("written");
            size_bytes += piece.len();
        }
    }
    assert!(size_bytes < SIZE_BYTES_MAX, "{size_bytes} bytes");
}
