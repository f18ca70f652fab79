//! Concurrent threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{ALL, Direction, Engine, key_of, open, scanned, tiny};
use crate::engine::Durability;
use crate::storage::{CrashStorage, Storage};

/// Promise: with two workers, writers see their own writes at once, and values of a key only grow
/// for a reader. A snapshot has a prefix of each writer's writes.
#[test]
fn threads_share_an_engine() {
    let storage = CrashStorage::new(1);
    let engine = open(&storage).expect("made");
    let workers = [engine.start_worker(), engine.start_worker()];
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in 0..2 {
            let (engine, is_over) = (&engine, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Acquire) {
                    assert_reads(engine, reader);
                }
            });
        }
        let writers: Vec<_> = (0..3_u8)
            .map(|writer| {
                let engine = &engine;
                scope.spawn(move || write(engine, writer))
            })
            .collect();
        for writer in writers {
            writer.join().expect("it has not panicked");
        }
        is_over.store(true, Ordering::Release);
    });
    drop(workers);
    let snapshot = engine.snapshot();
    assert_eq!(scanned(&snapshot, ALL, Direction::Ascending).len(), 3 * 40);
}

fn write(engine: &Engine, writer: u8) {
    for number in 0..1_200_u32 {
        let mut key = vec![writer];
        key.extend(key_of(u64::from(number), 40));
        let durability = if number % 100 == 0 {
            Durability::Sync
        } else {
            Durability::Memory
        };
        // Large values fill segments, which are freed when they are overwritten.
        let mut value = number.to_be_bytes().to_vec();
        value.resize(if number % 7 == 0 { 60_000 } else { 4 }, writer);
        engine.put(&key, &value, durability).expect("put");
        assert!(engine.get(&key).expect("read") == Some(value));
    }
}

/// Asserts that a snapshot has 40 consecutive numbers of each writer, or all from 0.
fn assert_reads(engine: &Engine, reader: u8) {
    let snapshot = engine.snapshot();
    let direction = if reader == 0 {
        Direction::Ascending
    } else {
        Direction::Descending
    };
    let pairs = scanned(&snapshot, ALL, direction);
    for writer in 0..3 {
        let of = pairs.iter().filter(|(key, _)| key[0] == writer);
        let mut numbers: Vec<u32> = of
            .map(|(_, value)| u32::from_be_bytes(*value.first_chunk().expect("a number")))
            .collect();
        numbers.sort_unstable();
        let in_row = numbers.windows(2).all(|it| it[1] == it[0] + 1);
        assert!(in_row, "writer {writer}: {numbers:?}");
        let first = numbers.first().copied().unwrap_or(0);
        assert!(numbers.len() == 40 || first == 0, "writer {writer}");
    }
}

/// Promise: a worker flushes frozen L0s by itself, and stops when it is dropped.
#[test]
fn a_worker_works() {
    let storage: Arc<dyn Storage> = Arc::new(CrashStorage::new(2));
    let engine = Engine::open(Arc::clone(&storage), tiny()).expect("made");
    let worker = engine.start_worker();
    engine
        .put(b"key", b"value", Durability::Memory)
        .expect("put");
    engine.freeze();
    let started = Instant::now();
    while engine.counts().tree_counts != [1] {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "it does nothing"
        );
        thread::sleep(Duration::from_millis(1));
    }
    drop(worker);
    engine.freeze();
    drop(engine);
    Engine::open(storage, tiny()).expect("nobody has it");
}
