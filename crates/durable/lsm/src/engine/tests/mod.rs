//! Helpers for the engine's tests: engines with tiny levels, and keys of many kinds.

mod collecting;
mod crashes;
mod fixture;
mod forged;
mod full;
mod model;
mod opening;
mod pauses;
mod scans;
mod space;
mod steps;
mod threads;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::{Direction, Engine, EngineOptions, KeyRange, Snapshot, WorkDone};
use crate::error::LsmError;
use crate::log::record::EngineId;
use crate::storage::{CrashStorage, Storage};

pub(super) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

pub(super) const ALL: KeyRange<'static> = (Bound::Unbounded, Bound::Unbounded);

/// Returns options with levels that are due after a few dozen writes.
pub(crate) fn tiny() -> EngineOptions {
    EngineOptions {
        l0_entry_count_max: 24,
        level_1_tree_count_max: 2,
        growth_factor: 3,
        merge_step_entry_count: 20,
        delay: Duration::ZERO,
        ..EngineOptions::new().with_id(EngineId(77))
    }
}

pub(super) fn open(storage: &CrashStorage) -> Result<Engine, LsmError> {
    open_as(storage, tiny())
}

pub(super) fn open_as(storage: &CrashStorage, options: EngineOptions) -> Result<Engine, LsmError> {
    let storage: Arc<dyn Storage> = Arc::new(storage.clone());
    Engine::open(storage, options)
}

/// Returns one of many sets of options, all of which must give equal results.
pub(super) fn any_options(number: u64) -> EngineOptions {
    let one_of = |at: u32, values: [u64; 3]| values[(number >> at) as usize % 3];
    EngineOptions {
        l0_entry_count_max: one_of(0, [6, 24, 90]) as usize,
        l0_size_bytes_max: one_of(8, [1_000, 10_000, 1 << 20]) as usize,
        l0_log_size_bytes_max: one_of(56, [3_000, 1 << 20, 1 << 30]),
        level_1_tree_count_max: one_of(16, [1, 2, 5]) as usize,
        growth_factor: one_of(24, [2, 3, 8]),
        live_percent_min: one_of(32, [0, 50, 100]),
        merge_step_entry_count: one_of(48, [1, 30, 1 << 16]) as usize,
        cache_size_bytes: one_of(40, [0, 1 << 16, 1 << 24]) as usize,
        ..tiny()
    }
}

/// Returns one of `count` keys: some are short, and some differ only behind the part that trees
/// know.
pub(super) fn key_of(number: u64, count: u64) -> Vec<u8> {
    let number = number % count;
    match number % 4 {
        0 => number.to_string().into_bytes(),
        1 => format!("{}{number:05}", "-".repeat(40)).into_bytes(),
        2 => format!("{}{}{number}", number % 7, "+".repeat(300)).into_bytes(),
        _ => number.to_be_bytes()[6..].to_vec(),
    }
}

pub(super) fn value_of(number: u64, size_bytes: usize) -> Vec<u8> {
    let mut value = number.to_le_bytes().repeat(size_bytes / 8 + 1);
    value.truncate(size_bytes);
    value
}

pub(super) fn maintain_all(engine: &Engine) {
    while engine.maintain().expect("no fault is set") != WorkDone::Nothing {}
}

pub(super) fn scanned(
    snapshot: &Snapshot,
    range: KeyRange<'_>,
    direction: Direction,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let scan = snapshot.scan(range, direction).expect("it can be read");
    scan.map(|it| it.expect("it can be read")).collect()
}

/// Asserts that full scans in both directions equal the model.
pub(super) fn assert_is(snapshot: &Snapshot, model: &Model, context: &str) {
    let expected: Vec<_> = model.clone().into_iter().collect();
    let ascending = scanned(snapshot, ALL, Direction::Ascending);
    assert!(ascending == expected, "{context}: ascending");
    let mut descending = scanned(snapshot, ALL, Direction::Descending);
    descending.reverse();
    assert!(descending == expected, "{context}: descending");
}
