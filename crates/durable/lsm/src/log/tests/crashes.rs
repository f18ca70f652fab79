//! Guarantees of the log when power fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::{RecoveredRecord, open, seen};
use crate::log::FILE;
use crate::place::LogNumber;
use crate::storage::{CrashStorage, DirectoryStorage, PowerLoss, Storage};
use crate::tree::random_numbers;

/// One generation of a log: records found at opening, appended records, and the number of
/// acknowledged ones.
#[derive(Default)]
struct Generation {
    is_open: bool,
    records: Vec<RecoveredRecord>,
    found_count: usize,
    acknowledged_count: usize,
    /// Key of the record whose append failed; it may be present or not.
    failed: Option<Vec<u8>>,
}

/// Appends until power fails, or 40 records are appended.
fn live(storage: &CrashStorage, seed: u64) -> Generation {
    let shared: Arc<dyn Storage> = Arc::new(storage.clone());
    let mut life = Generation::default();
    let Ok(log) = open(&shared) else {
        return life;
    };
    life.is_open = true;
    life.records.clone_from(&log.replayed);
    life.found_count = log.replayed.len();
    life.acknowledged_count = life.found_count;
    for (index, number) in random_numbers(seed).take(40).enumerate() {
        let key = format!("{seed}-{index}");
        let size_bytes = match number % 16 {
            0..=9 => number as usize >> 8 & 127,
            10..=12 => number as usize >> 8 & 0xfff,
            13 | 14 => number as usize >> 8 & 0xf_ffff,
            _ => number as usize >> 8 & 0x3f_ffff,
        };
        let is_delete = (number >> 40).is_multiple_of(8);
        let appended = if is_delete {
            log.delete(key.as_bytes())
        } else {
            log.put(key.as_bytes(), size_bytes)
        };
        let Ok(appended) = appended else {
            life.failed = Some(key.into_bytes());
            return life;
        };
        let value_bytes = if is_delete { 0 } else { size_bytes };
        let record = seen(appended, key.as_bytes(), is_delete, value_bytes);
        life.records.push(record);
        if (number >> 54).is_multiple_of(3) && log.log.write_tail(&mut Vec::new()).is_err() {
            return life;
        }
        if (number >> 50).is_multiple_of(4) {
            if log.log.sync_to(appended.end).is_err() {
                return life;
            }
            life.acknowledged_count = life.records.len();
        }
    }
    life
}

/// Promise: whenever power fails, and whatever survives, recovery returns appended records in
/// order, including all acknowledged ones. The same holds after a second and a third failure.
/// Segment numbers are never reused.
#[test]
fn nothing_that_was_acknowledged_is_lost() {
    let (mut kept_count, mut lost_count) = (0, 0);
    for seed in 0..30 {
        let mut storage = CrashStorage::new(seed);
        let mut before: Vec<RecoveredRecord> = Vec::new();
        let mut failed: Option<Vec<u8>> = None;
        let mut acknowledged_count = 0;
        let mut highest: Option<LogNumber> = None;
        let mut numbers = random_numbers(!seed);
        for generation in 0..4 {
            let cut = numbers.next().expect("endless") % 70 + 1;
            if generation < 3 {
                storage.cut_power_at(cut);
            }
            let life = live(&storage, seed * 10 + generation);
            let context = format!("seed {seed}, generation {generation}, cut {cut}");
            assert!(generation < 3 || life.is_open, "{context}: it opens");
            if life.is_open {
                let found = &life.records[..life.found_count];
                assert!(found.len() >= acknowledged_count, "{context}: some is lost");
                let (known, more) = found.split_at(found.len().min(before.len()));
                assert_eq!(known, &before[..known.len()], "{context}");
                let more: Vec<_> = more.iter().map(|(_, key, ..)| key.clone()).collect();
                assert!(
                    more.is_empty() || Some(&more[..]) == failed.as_ref().map(std::slice::from_ref),
                    "{context}: {more:?}"
                );
                kept_count += found.len() - acknowledged_count;
                lost_count += before.len() - known.len();
                let first = life.records.get(life.found_count);
                let first = first.map(|(position, ..)| position.number());
                assert!(
                    first.is_none() || first > highest,
                    "{context}: a number is used again"
                );
                let ends = life.records.iter();
                let ends = ends.map(|(position, .., size)| position.plus(*size).number());
                highest = ends.max().max(highest);
                acknowledged_count = life.acknowledged_count;
                (before, failed) = (life.records, life.failed);
            }
            storage = storage.lose_power(PowerLoss::Any);
        }
    }
    assert!(
        kept_count > 20 && lost_count > 20,
        "{kept_count} kept, {lost_count} lost"
    );
}

/// Promise: records that were not synced when the process ended, and that recovery finds, are
/// durable from then on.
#[test]
fn what_was_found_is_durable() {
    let storage = CrashStorage::new(9);
    let shared: Arc<dyn Storage> = Arc::new(storage.clone());
    let log = open(&shared).expect("made");
    // Full segments are written, but not synced.
    for index in 0..4 {
        log.put(&[index], 1 << 20).expect("written");
    }
    drop(log);
    let again = open(&shared).expect("it is whole");
    assert_eq!(again.replayed.len(), 3, "the last one was in memory");
    let left: Arc<dyn Storage> = Arc::new(storage.lose_power(PowerLoss::Nothing));
    assert_eq!(open(&left).expect("whole").replayed, again.replayed);
}

/// Promise: `write_tail` preserves all records when the process ends; a second call writes nothing.
#[test]
fn what_was_written_out_outlives_the_process() {
    let storage = CrashStorage::new(10);
    let shared: Arc<dyn Storage> = Arc::new(storage.clone());
    let mut buffer = Vec::new();
    for life in 0..3_u8 {
        let log = open(&shared).expect("it is whole");
        assert_eq!(log.replayed.len(), usize::from(life) * 20);
        assert!(!log.log.write_tail(&mut buffer).expect("written"));
        for index in 0..20 {
            log.put(&[life, index], 300_000).expect("appended");
            if index % 3 == 1 {
                assert!(log.log.write_tail(&mut buffer).expect("written"));
            }
        }
        log.log.write_tail(&mut buffer).expect("written");
        assert!(!log.log.write_tail(&mut buffer).expect("written"));
    }
    assert_eq!(open(&shared).expect("it is whole").replayed.len(), 60);
}

/// Promise: concurrent appends, syncs and `write_tail` calls, bypassing the page cache, do not undo
/// each other's writes. All records are present when the process ends without a last sync.
#[test]
fn writing_out_undoes_nothing() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let storage = DirectoryStorage::open(folder.path()).expect("there");
    let shared: Arc<dyn Storage> = Arc::new(storage.with_direct_io(&[FILE]));
    let log = open(&shared).expect("made");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = Vec::new();
            while !is_over.load(Ordering::Acquire) {
                log.log.write_tail(&mut buffer).expect("written");
            }
        });
        for (index, number) in (0..20_000_u32).zip(random_numbers(11)) {
            let size_bytes = number as usize % 700;
            let appended = log.put(&index.to_le_bytes(), size_bytes);
            let appended = appended.expect("appended");
            if index % 500 == 499 {
                log.log.sync_to(appended.end).expect("synced");
            }
        }
        is_over.store(true, Ordering::Release);
    });
    log.log.write_tail(&mut Vec::new()).expect("written");
    drop(log);
    assert_eq!(open(&shared).expect("it is whole").replayed.len(), 20_000);
}
