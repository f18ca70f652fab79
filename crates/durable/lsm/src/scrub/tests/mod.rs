//! Scrubbing finds flipped bits and nothing else. Module `segments` tests single segments, and
//! larger records.

mod segments;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::Scrub;
use crate::engine::tests::tiny;
use crate::engine::{Direction, WorkDone};
use crate::log::record::{RecordHeader, RecordKind};
use crate::place::{BLOCK_SIZE_BYTES, SEGMENT_SIZE_BLOCKS, SEGMENT_SIZE_BYTES, SegmentId};
use crate::storage::{CrashStorage, Fault, FaultyStorage, PowerLoss, Storage};
use crate::tree::{mix, random_numbers};
use crate::{Durability, Engine, EngineOptions, LsmError};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Returns the findings of a round.
fn round(engine: &Engine) -> Vec<LsmError> {
    let (mut scrub, mut found) = (Scrub::new(), Vec::new());
    loop {
        match engine.scrub(&mut scrub) {
            Ok(scrubbed) if scrubbed.is_round_over => break,
            Ok(scrubbed) => assert!(scrubbed.read_size_bytes <= SEGMENT_SIZE_BYTES),
            Err(error) => found.push(error),
        }
    }
    let counts = scrub.counts();
    assert_eq!(
        (counts.damaged_count, counts.round_count),
        (found.len() as u64, 1)
    );
    found
}

fn key_of(number: u64) -> Vec<u8> {
    match number % 3 {
        0 => format!("{}", number % 40).into_bytes(),
        1 => format!("{}{}", "long".repeat(40), number % 40).into_bytes(),
        _ => (number % 40).to_be_bytes().to_vec(),
    }
}

/// Does one of many operations of an engine.
fn step(engine: &Engine, model: &mut Model, number: u64) {
    let key = key_of(number >> 40);
    match number % 16 {
        0..=8 => {
            let size_bytes = match number >> 8 & 127 {
                0 => 5 << 20,
                1..=4 => 700_000,
                small => small as usize * 3,
            };
            let mut value = number.to_le_bytes().repeat(size_bytes / 8 + 1);
            value.truncate(size_bytes);
            let durability = if (number >> 16).is_multiple_of(4) {
                Durability::Sync
            } else {
                Durability::Memory
            };
            engine.put(&key, &value, durability).expect("put");
            model.insert(key, value);
        }
        9..=11 => {
            engine.delete(&key, Durability::Memory).expect("deleted");
            model.remove(&key);
        }
        12 => engine.freeze(),
        _ => {
            engine.maintain().expect("no fault is set");
        }
    }
}

/// Asserts that every read is right or an error; returns true if none was an error.
fn reads_are_right(engine: &Engine, model: &Model, context: &str) -> bool {
    let mut is_whole = true;
    for number in 0..120 {
        let key = key_of(number);
        match engine.get(&key) {
            Ok(value) => assert_eq!(value.as_ref(), model.get(&key), "{context}: {number}"),
            Err(error) => {
                assert!(error.is_corruption(), "{context}: {error}");
                is_whole = false;
            }
        }
    }
    let range = (Bound::Unbounded, Bound::Unbounded);
    let snapshot = engine.snapshot();
    let scan = snapshot.scan(range, Direction::Ascending);
    let scan = scan.and_then(Iterator::collect::<Result<Model, _>>);
    match scan {
        Ok(found) => assert!(found == *model, "{context}: a scan"),
        Err(error) => {
            assert!(error.is_corruption(), "{context}: {error}");
            is_whole = false;
        }
    }
    is_whole
}

/// Returns the end of the records in a segment with these bytes; `None` if the last record
/// continues in others.
fn end_of_records(bytes: &[u8]) -> Option<usize> {
    let mut at = 32;
    while at + 12 <= bytes.len() {
        let (_, header) = RecordHeader::decode(bytes[at..].first_chunk()?)?;
        at += header.record_size_bytes();
        if header.kind == RecordKind::End {
            break;
        }
    }
    (at <= bytes.len()).then_some(at)
}

/// Returns true if a byte of the log file is in a segment to which trees refer, before the end of
/// its records; `None` if that is not known.
fn is_referenced(
    engine: &Engine,
    file: &dyn crate::storage::StorageFile,
    offset: u64,
) -> Option<bool> {
    let segment = SegmentId((offset / SEGMENT_SIZE_BYTES) as u32);
    let segments = engine.log().segments();
    let trees = engine.live_trees();
    let rows = trees.iter().flat_map(|it| it.references().iter());
    let mut places = rows.map(|(number, _)| segments.place(number).expect("it is there"));
    if !places.any(|it| it == segment) {
        return None;
    }
    let mut bytes = vec![0; SEGMENT_SIZE_BYTES as usize];
    file.read_at(&mut bytes, segment.offset()).ok()?;
    let end = end_of_records(&bytes)?;
    Some(offset - segment.offset() < end as u64)
}

fn is_of_a_tree(engine: &Engine, offset: u64) -> bool {
    let segment = SegmentId((offset / SEGMENT_SIZE_BYTES) as u32);
    let block = (offset % SEGMENT_SIZE_BYTES / BLOCK_SIZE_BYTES as u64) as usize;
    engine.live_trees().iter().any(|tree| {
        let entry = tree.entry();
        let index = entry.segments.iter().position(|it| *it == segment);
        let first = |index| index * SEGMENT_SIZE_BLOCKS as usize;
        index.is_some_and(|it| first(it) + block < entry.shape.block_count as usize)
    })
}

/// Promise: for bits flipped anywhere in the files, a round finds each one that a read can hit. It
/// finds all in blocks of trees and in records of segments to which trees refer, and none behind
/// them. A get or a scan that hits one returns an error, and never a wrong value.
#[test]
fn every_flip_that_a_read_meets_is_found() {
    let (mut found_counts, mut met_count, mut passed_count) = ([0, 0], 0, 0);
    for seed in 0..3_u64 {
        let storage = FaultyStorage::new(Arc::new(CrashStorage::new(seed)));
        let shared: Arc<dyn Storage> = Arc::new(storage.clone());
        let options = EngineOptions {
            cache_size_bytes: 0,
            ..tiny()
        };
        let engine = Engine::open(Arc::clone(&shared), options).expect("made");
        let mut model = Model::new();
        for number in random_numbers(mix(seed)).take(260) {
            step(&engine, &mut model, number);
        }
        engine.sync().expect("synced");
        assert!(round(&engine).is_empty() && reads_are_right(&engine, &model, "before"));
        let mut numbers = random_numbers(mix(!seed));
        for (which, name) in [(0, "log"), (1, "trees")] {
            let file = shared.open(name).expect("there");
            let size_bytes = file.size().expect("known");
            for flip in 0..60 {
                let number = numbers.next().expect("endless");
                let mut offset = number % size_bytes;
                if flip % 3 > 0 {
                    // Segments of small trees, and the open one, are mostly empty.
                    offset = offset / SEGMENT_SIZE_BYTES * SEGMENT_SIZE_BYTES + number % 9_000;
                }
                let offset = offset.min(size_bytes - 1);
                let must = match which {
                    0 => is_referenced(&engine, &*file, offset),
                    _ => Some(is_of_a_tree(&engine, offset)),
                };
                let fault = storage.set(Fault::FlipBit {
                    file: name.to_owned(),
                    offset,
                    bit: (number >> 60) as u8 % 8,
                    stays: true,
                });
                let context = format!("seed {seed}, {name} at {offset}");
                let found = round(&engine);
                let is_met = !reads_are_right(&engine, &model, &context);
                storage.lift(fault);
                assert!(
                    found.iter().all(LsmError::is_corruption),
                    "{context}: {found:?}"
                );
                assert!(!found.is_empty() || !is_met, "{context}: it was met");
                if let Some(must) = must {
                    assert_eq!(!found.is_empty(), must, "{context}: {found:?}");
                }
                found_counts[which] += u32::from(!found.is_empty());
                met_count += u32::from(is_met);
                passed_count += u32::from(found.is_empty());
            }
        }
        assert!(round(&engine).is_empty());
    }
    assert!(
        found_counts[0] > 30 && found_counts[1] > 30,
        "{found_counts:?}"
    );
    assert!(
        met_count > 30 && passed_count > 30,
        "{met_count} {passed_count}"
    );
}

/// Promise: on intact devices nothing is found, whatever is flushed, merged, moved, freed, kept by
/// snapshots, or reopened between the steps. Data torn by a power failure is not reported.
#[test]
fn nothing_is_found_where_nothing_is_damaged() {
    let (mut round_count, mut freed_count) = (0, 0);
    for seed in 0..12_u64 {
        let mut storage = CrashStorage::new(seed);
        let mut numbers = random_numbers(mix(seed * 7));
        let mut model = Model::new();
        for generation in 0..3 {
            let number = numbers.next().expect("endless");
            let options = EngineOptions {
                live_percent_min: [0, 50, 100][number as usize % 3],
                merge_step_entry_count: [1, 30, 1 << 16][(number >> 8) as usize % 3],
                ..tiny()
            };
            let shared: Arc<dyn Storage> = Arc::new(storage.clone());
            let engine = Engine::open(shared, options).expect("it opens");
            let (mut scrub, mut snapshot) = (Scrub::new(), None);
            for number in numbers.by_ref().take(160) {
                step(&engine, &mut model, number);
                match number >> 52 & 31 {
                    0 => snapshot = Some(engine.snapshot()),
                    1 => snapshot = None,
                    _ => {}
                }
                let before = engine.counts().log_segment_count;
                if (number >> 58).is_multiple_of(8) {
                    while engine.maintain().expect("no fault is set") != WorkDone::Nothing {}
                }
                freed_count += u32::from(engine.counts().log_segment_count < before);
                if number >> 48 & 1 == 0 {
                    let scrubbed = engine.scrub(&mut scrub);
                    scrubbed.unwrap_or_else(|error| panic!("{seed}, {generation}: {error}"));
                }
            }
            drop(snapshot);
            let found = round(&engine);
            assert!(found.is_empty(), "{seed}, {generation}: {found:?}");
            round_count += scrub.counts().round_count;
            drop(engine);
            if seed % 2 == 0 {
                storage = storage.lose_power(PowerLoss::Any);
            }
        }
    }
    assert!(
        round_count > 30 && freed_count > 15,
        "{round_count} {freed_count}"
    );
}

/// Promise: the same holds while other threads write and work.
#[test]
fn nothing_is_found_while_others_work() {
    let storage: Arc<dyn Storage> = Arc::new(CrashStorage::new(1));
    let engine = Engine::open(storage, tiny()).expect("made");
    let worker = engine.start_worker();
    let is_over = AtomicBool::new(false);
    let counts = thread::scope(|scope| {
        let scrubbing = scope.spawn(|| {
            let mut scrub = Scrub::new();
            while !is_over.load(Ordering::Acquire) || scrub.counts().round_count < 3 {
                engine.scrub(&mut scrub).expect("nothing is damaged");
            }
            scrub.counts()
        });
        for number in random_numbers(5).take(4_000) {
            let key = key_of(number >> 40);
            let size_bytes = if number.is_multiple_of(400) {
                3 << 20
            } else {
                number as usize % 20_000
            };
            let durability = if number.is_multiple_of(50) {
                Durability::Sync
            } else {
                Durability::Memory
            };
            engine
                .put(&key, &vec![3; size_bytes], durability)
                .expect("put");
        }
        is_over.store(true, Ordering::Release);
        scrubbing.join().expect("it has found nothing")
    });
    drop(worker);
    assert!(counts.round_count >= 3, "{counts:?}");
}
