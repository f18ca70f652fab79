//! Unneeded data becomes free, and needed data does not.

use std::time::Duration;

use super::{Engine, Model, assert_is, maintain_all, open, open_as, tiny, value_of};
use crate::engine::{Durability, EngineOptions};
use crate::storage::{CrashStorage, Storage};

/// Overwrites ten keys of 700 KB this many times, with all background work.
fn write_over(engine: &Engine, rounds: std::ops::Range<u64>) -> Model {
    let mut model = Model::new();
    for round in rounds {
        for key in 0..10_u8 {
            let value = value_of(round * 100 + u64::from(key), 700_000);
            engine.put(&[key], &value, Durability::Memory).expect("put");
            model.insert(vec![key], value);
        }
        engine.freeze();
        maintain_all(engine);
    }
    model
}

/// Promise: overwritten data is freed in the log and the trees, also in a reopened directory.
#[test]
fn what_was_written_over_is_free() {
    let storage = CrashStorage::new(1);
    let engine = open(&storage).expect("made");
    let model = write_over(&engine, 0..12);
    engine.merge_all().expect("merged");
    let counts = engine.counts();
    assert_eq!(counts.tree_segment_count, 1, "{counts:?}");
    // Ten values need 4 or 5 segments, 20 may be reserved, and one is open.
    assert!(counts.log_segment_count <= 26, "{counts:?}");
    drop(engine);
    let again = open(&storage).expect("whole");
    maintain_all(&again);
    assert!(
        again.counts().log_segment_count <= 6,
        "{:?}",
        again.counts()
    );
    assert_is(&again.snapshot(), &model, "after all");
}

/// Overwrites one key of 1 MiB this many times, with all background work; returns the number of
/// flushes.
fn write_one_over(engine: &Engine, count: u64) -> u64 {
    for round in 0..count {
        let value = value_of(round, 1 << 20);
        engine.put(b"one", &value, Durability::Memory).expect("put");
        maintain_all(engine);
        let counts = engine.counts();
        // Four trees of level 1 and L0 refer to one value each, or to later ones, each in its own
        // segment; 32 segments may be reserved.
        assert!(counts.log_segment_count <= 32 + 5 + 8, "{counts:?}");
    }
    engine.work().flush_count
}

fn tiny_by_log(l0_log_size_bytes_max: u64) -> EngineOptions {
    EngineOptions {
        l0_entry_count_max: 1_000,
        l0_log_size_bytes_max,
        ..tiny()
    }
}

/// Promise: overwritten values do not accumulate if there are too few keys to fill L0. It is frozen
/// when its records take too much of the log, and then dead data is freed. A reopened directory has
/// no more to read.
#[test]
fn few_large_values_do_not_pile_up() {
    let storage = CrashStorage::new(7);
    let engine = open_as(&storage, tiny_by_log(8 << 20)).expect("made");
    // Eight of them take a little more than 8 MiB.
    assert_eq!(write_one_over(&engine, 100), 100 / 8);
    engine.sync().expect("no fault is set");
    drop(engine);
    let again = open(&storage).expect("whole");
    let entry_count = again.core.version().active.entry_count();
    assert!(entry_count <= 8, "{entry_count} are read again");
    let value = again.get(b"one").expect("read");
    assert!(value == Some(value_of(99, 1 << 20)), "the newest one");
}

/// Promise: moved records do not count, so an occasional put during a merge freezes nothing. (When
/// the log's growth counted, each 8 MiB of moved records made a tree of one entry.)
#[test]
fn what_is_moved_freezes_nothing() {
    let options = EngineOptions {
        level_1_tree_count_max: 100,
        ..tiny_by_log(4 << 20)
    };
    let engine = open_as(&CrashStorage::new(8), options).expect("made");
    for round in 0..40_u64 {
        let stays = value_of(round, 600_000);
        engine
            .put(&round.to_le_bytes(), &stays, Durability::Memory)
            .expect("put");
        for hot in 0..2_u8 {
            let value = value_of(round, 700_000);
            engine.put(&[hot], &value, Durability::Memory).expect("put");
        }
    }
    engine.freeze();
    maintain_all(&engine);
    let before = engine.work();
    let version = engine.core.version();
    let mut merges = engine.core.merging.lock().expect("no panic");
    engine
        .core
        .begin_merge(&mut merges, &version, 1)
        .expect("begun");
    drop((version, merges));
    while engine.work().merge_count == before.merge_count {
        engine.put(b"now", b"", Durability::Memory).expect("put");
        engine.maintain().expect("no fault is set");
    }
    let after = engine.work();
    let moved = after.log.written - before.log.written;
    assert!(moved > 2 * (4 << 20), "{moved} bytes were moved");
    assert_eq!(after.flush_count, before.flush_count);
}

/// Promise: while a snapshot exists, its data stays, even if only an L0 referred to it that is
/// flushed by now; afterwards it is freed.
#[test]
fn a_snapshot_keeps_what_it_needs() {
    let storage = CrashStorage::new(2);
    let engine = open(&storage).expect("made");
    let mut model = write_over(&engine, 0..1);
    // So large that the next record begins a segment, which has nothing else.
    let large = value_of(1, 3 << 20);
    let put = |key: &[u8], value: &[u8]| {
        let put = engine.put(key, value, Durability::Memory);
        put.expect("no fault is set");
    };
    put(b"large", &large);
    put(b"in L0", b"old");
    model.insert(b"large".to_vec(), large.clone());
    model.insert(b"in L0".to_vec(), b"old".to_vec());
    let snapshot = engine.snapshot();
    put(b"large", &large);
    put(b"in L0", b"new");
    write_over(&engine, 1..12);
    engine.merge_all().expect("merged");
    assert_is(&snapshot, &model, "long after");
    let with = engine.counts();
    drop(snapshot);
    maintain_all(&engine);
    let without = engine.counts();
    assert!(without.log_segment_count + 4 <= with.log_segment_count);
    assert!(without.tree_segment_count < with.tree_segment_count);
}

/// Writes 30 keys that stay, each between values of 700 KB that are overwritten.
fn write_among(live_percent_min: u64) -> (CrashStorage, Engine) {
    let storage = CrashStorage::new(6);
    let options = EngineOptions {
        live_percent_min,
        ..tiny()
    };
    let shared: std::sync::Arc<dyn Storage> = std::sync::Arc::new(storage.clone());
    let engine = Engine::open(shared, options).expect("made");
    for round in 0..30_u64 {
        let stays = round.to_be_bytes();
        let value = value_of(round, 9_000);
        engine.put(&stays, &value, Durability::Memory).expect("put");
        for hot in 0..3_u8 {
            let value = value_of(round * 100 + u64::from(hot), 700_000);
            engine.put(&[hot], &value, Durability::Memory).expect("put");
        }
        if round % 5 == 4 {
            engine.freeze();
            maintain_all(&engine);
        }
    }
    engine.merge_all().expect("merged");
    (storage, engine)
}

/// Promise: live records in mostly dead segments are moved, and the segments are freed. Moved
/// records are present, also after reopening and further merges.
#[test]
fn mostly_dead_segments_are_collected() {
    let without = write_among(0).1.counts().log_segment_count;
    let (storage, engine) = write_among(50);
    let with = engine.counts().log_segment_count;
    assert!(without > 30 && with <= 26, "{without} without, {with} with");
    let assert_is_there = |engine: &Engine| {
        for round in 0..30_u64 {
            let found = engine.get(&round.to_be_bytes()).expect("read");
            assert!(found == Some(value_of(round, 9_000)), "{round}");
        }
    };
    assert_is_there(&engine);
    drop(engine);
    let again = open(&storage.lose_power(crate::storage::PowerLoss::Nothing)).expect("whole");
    assert_is_there(&again);
    write_over(&again, 0..5);
    again.merge_all().expect("merged");
    assert_is_there(&again);
}

/// Promise: after any history, each segment is free or used. A reopened directory uses the same
/// segments as before, except reserved ones.
#[test]
fn no_segment_is_lost() {
    let storage = CrashStorage::new(3);
    let engine = open(&storage).expect("made");
    write_over(&engine, 0..7);
    maintain_all(&engine);
    let before = engine.counts();
    drop(engine);
    let again = open(&storage).expect("whole");
    maintain_all(&again);
    let after = again.counts();
    assert_eq!(after.tree_segment_count, before.tree_segment_count);
    assert!(before.log_segment_count - after.log_segment_count <= 20);
    let size = |name: &str| storage.open(name).expect("there").size().expect("open");
    let sizes = (size("log"), size("trees"));
    write_over(&again, 7..14);
    assert!(size("log") <= 2 * sizes.0, "room is used again");
    assert!(size("trees") <= 2 * sizes.1);
}

/// Promise: writes are delayed more the larger the backlog is, and not at all without one.
#[test]
fn writes_wait_for_background_work() {
    let engine = open(&CrashStorage::new(4)).expect("made");
    assert_eq!(engine.write_delay(), Duration::ZERO);
    let options = EngineOptions {
        delay: Duration::from_micros(1),
        ..tiny()
    };
    let storage: std::sync::Arc<dyn Storage> = std::sync::Arc::new(CrashStorage::new(5));
    let engine = Engine::open(storage, options).expect("made");
    let mut delays = Vec::new();
    for number in 0..10 {
        engine.put(&[number], b"", Durability::Memory).expect("put");
        engine.freeze();
        delays.push(engine.write_delay().as_micros());
    }
    assert_eq!(delays, [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]);
    maintain_all(&engine);
    assert_eq!(engine.write_delay(), Duration::ZERO);
}
