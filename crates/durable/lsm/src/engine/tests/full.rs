//! An engine while its disk is full, and when there is space again.

use std::sync::Arc;

use super::crashes::{History, KEY_COUNT, found, is_of};
use super::{Engine, Model, any_options, assert_is, key_of, maintain_all, open, value_of};
use crate::engine::Durability;
use crate::error::LsmError;
use crate::storage::{CrashStorage, Fault, FaultyStorage, PowerLoss, Storage};
use crate::tree::{mix, random_numbers};

/// Writes while the disk may be full. The write succeeds, fails only for lack of space, or is
/// appended without becoming durable, which a get reveals.
fn write(engine: &Engine, history: &mut History, number: u64, context: &str) -> bool {
    let key = key_of(number >> 20, KEY_COUNT);
    let size_bytes = match number >> 8 & 31 {
        0 | 1 => 700_000,
        2 => 2_100_000 + (number >> 16 & 0x3f_ffff) as usize,
        3..=5 => 9_000,
        small => small as usize * 4,
    };
    let value = (number % 8 > 1).then(|| value_of(number, size_bytes));
    let is_synced = (number >> 60).is_multiple_of(4);
    let durability = if is_synced {
        Durability::Sync
    } else {
        Durability::Memory
    };
    let before = engine.get(&key).expect("reads go on");
    let written = match &value {
        Some(value) => engine.put(&key, value, durability),
        None => engine.delete(&key, durability),
    };
    let now = engine.get(&key).expect("reads go on");
    let is_done = written.is_ok();
    if let Err(error) = written {
        assert!(error.is_out_of_space(), "{context}: {error}");
        assert!(now == before || is_synced, "{context}: nothing was done");
    }
    if is_done || now != before {
        assert!(now == value, "{context}");
        history.writes.push((key, value));
    }
    if is_done && is_synced {
        history.acknowledged_count = history.writes.len();
    }
    is_done
}

/// Writes and works while the disk repeatedly fills up and has space again.
fn live(engine: &Engine, faulty: &FaultyStorage, seed: u64) -> (History, [u64; 2]) {
    let mut history = History {
        start: Some(Model::new()),
        ..History::default()
    };
    let mut counts = [0; 2];
    for number in random_numbers(seed).take(300) {
        let context = format!("seed {seed}, {number}");
        match number % 48 {
            0 => {
                let after_bytes = number >> 8 & 0x3f_ffff;
                faulty.set(Fault::Full { after_bytes });
            }
            1 => faulty.lift_all(),
            2 => engine.freeze(),
            3..=15 => {
                if let Err(error) = engine.maintain() {
                    assert!(error.is_out_of_space(), "{context}: {error}");
                }
            }
            _ => {
                let is_done = write(engine, &mut history, number >> 3, &context);
                counts[usize::from(is_done)] += 1;
            }
        }
    }
    (history, counts)
}

/// Promise: a full disk stops nothing permanently. A write without space is not done or, if it was
/// to be durable, may be present. Reads continue, and so do writes and background work when there
/// is space. Whenever power fails, acknowledged data is present.
#[test]
fn a_full_disk_is_waited_for() {
    let mut counts = [0; 2];
    for seed in 0..40 {
        let storage = CrashStorage::new(seed);
        let faulty = FaultyStorage::new(Arc::new(storage.clone()));
        let shared: Arc<dyn Storage> = Arc::new(faulty.clone());
        let engine = Engine::open(shared, any_options(mix(seed))).expect("there is room");
        let (mut history, more) = live(&engine, &faulty, seed);
        counts = [counts[0] + more[0], counts[1] + more[1]];
        let context = format!("seed {seed}, at the end");
        let model = found(&engine, &context);
        if seed % 2 == 0 {
            faulty.lift_all();
            engine.sync().expect("there is room");
            history.acknowledged_count = history.writes.len();
            maintain_all(&engine);
            engine.merge_all().expect("there is room");
            assert_is(&engine.snapshot(), &model, &context);
        }
        drop(engine);
        let left = storage.lose_power(PowerLoss::Any);
        let again = open(&left).expect("it is whole");
        let model = found(&again, &context);
        assert!(is_of(&model, &history), "{context}");
        again.merge_all().expect("no fault is set");
        assert_is(&again.snapshot(), &model, &context);
    }
    let [refused, done] = counts;
    assert!(
        refused > 300 && done > 3_000,
        "{refused} refused, {done} done"
    );
}

/// Promise: tries that fail for lack of space use none, neither on the disk nor segment numbers
/// that are never returned.
#[test]
fn tries_take_no_space() {
    let storage = CrashStorage::new(7);
    let faulty = FaultyStorage::new(Arc::new(storage.clone()));
    let shared: Arc<dyn Storage> = Arc::new(faulty.clone());
    let engine = Engine::open(shared, super::tiny()).expect("made");
    engine.put(b"key", b"value", Durability::Sync).expect("put");
    engine.freeze();
    faulty.set(Fault::Full { after_bytes: 0 });
    let before = engine.counts();
    let large_value = vec![1; 5 << 20];
    for _ in 0..50 {
        let worked = engine.maintain();
        assert!(worked.is_err_and(|error: LsmError| error.is_out_of_space()));
        let large = engine.put(b"large", &large_value, Durability::Memory);
        assert!(large.is_err_and(|error| error.is_out_of_space()));
    }
    assert_eq!(
        engine.counts().tree_segment_count,
        before.tree_segment_count
    );
    assert_eq!(engine.counts().log_segment_count, before.log_segment_count);
    faulty.lift_all();
    maintain_all(&engine);
    engine
        .put(b"large", &large_value, Durability::Sync)
        .expect("there is room");
    assert_eq!(engine.counts().tree_counts, [1]);
}

/// Promise: on a full disk freeing continues, since it makes space, even if log segments must be
/// reserved and do not fit.
#[test]
fn freeing_goes_on_where_segments_are_to_be_reserved() {
    let storage = CrashStorage::new(7);
    let faulty = FaultyStorage::new(Arc::new(storage.clone()));
    let shared: Arc<dyn Storage> = Arc::new(faulty.clone());
    let engine = Engine::open(shared, super::tiny()).expect("made");
    for round in 0..4_u32 {
        let put = engine.put(&round.to_be_bytes(), b"value", Durability::Sync);
        put.expect("there is room");
        engine.freeze();
        maintain_all(&engine);
    }
    let snapshot = engine.snapshot();
    engine.merge_all().expect("merged");
    let before = engine.counts().tree_segment_count;
    drop(snapshot);
    // So many log segments that more must be reserved.
    let large = vec![1; 2_000_000];
    for number in 0..13_u32 {
        let put = engine.put(&number.to_be_bytes(), &large, Durability::Memory);
        put.expect("there is room");
    }
    faulty.set(Fault::Full { after_bytes: 0 });
    let error = (0..20).find_map(|_| engine.maintain().err());
    assert!(error.is_some_and(|error| error.is_out_of_space()));
    let after = engine.counts().tree_segment_count;
    assert!(after < before, "{after} of {before} are used");
}
