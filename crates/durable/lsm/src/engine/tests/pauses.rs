//! Merges that hit corruption: the log does not grow with their retries, and other work continues.

use std::time::Duration;

use super::{Engine, Model, assert_is, maintain_all, open_as, tiny};
use crate::engine::{Durability, EngineOptions, WorkDone};
use crate::error::LsmError;
use crate::place::{LogPosition, SEGMENT_SIZE_BYTES};
use crate::storage::{CrashStorage, Storage};

const RECORD_COUNT: usize = 600;
/// The last key in order. No tree knows it completely: if two trees have it, a merge reads it from
/// the log, whether it moves anything or not.
const LONG_KEY: [u8; 400] = [b'z'; 400];

fn key_of(index: usize) -> Vec<u8> {
    format!("key {index:06}").into_bytes()
}

/// Returns options without memory for log or blocks, and with this pause of merges.
fn options(merge_pause: Duration) -> EngineOptions {
    EngineOptions {
        l0_entry_count_max: 2_000,
        level_1_tree_count_max: 1,
        log_memory_size_bytes: 0,
        cache_size_bytes: 0,
        merge_pause,
        merge_pause_max: merge_pause,
        ..tiny()
    }
}

/// Engine with 6 MB in log segments of which three tenths live, a due merge of level 1, and a model
/// of its contents.
struct Filled {
    storage: CrashStorage,
    engine: Engine,
    model: Model,
}

impl Filled {
    fn new(merge_pause: Duration) -> Self {
        let storage = CrashStorage::new(1);
        let engine = open_as(&storage, options(merge_pause)).expect("made");
        let mut filled = Self {
            storage,
            engine,
            model: Model::new(),
        };
        filled.put(&LONG_KEY, 1);
        // In the same leaf, which would otherwise know the long key completely, as its prefix.
        filled.put(&[b'y'; 400], 1);
        (0..RECORD_COUNT).for_each(|index| filled.put(&key_of(index), 1));
        filled.engine.merge_all().expect("merged");
        let most = (0..RECORD_COUNT).filter(|it| it % 10 < 7);
        most.for_each(|index| filled.put(&key_of(index), 2));
        filled.engine.merge_all().expect("merged");
        filled.put(&LONG_KEY, 3);
        filled.flush();
        filled.put(&key_of(RECORD_COUNT), 3);
        filled.flush();
        filled
    }

    fn put(&mut self, key: &[u8], round: u8) {
        let value = vec![round; 10_000];
        let put = self.engine.put(key, &value, Durability::Memory);
        put.expect("no fault is set");
        self.model.insert(key.to_vec(), value);
    }

    /// Flushes L0, and does nothing of a due merge.
    fn flush(&self) {
        self.engine.freeze();
        while self.engine.counts().frozen_count > 0 {
            let worked = self.engine.maintain().expect("no fault is set");
            assert!(matches!(worked, WorkDone::Flushed | WorkDone::Reserved));
        }
    }

    /// Flips a bit in the first record of a key; a second call restores it.
    fn flip(&self, key: &[u8]) {
        let file = self.storage.open("log").expect("there");
        let mut bytes = vec![0; 7 << 20];
        file.read_at(&mut bytes, 0).expect("read");
        let offset = bytes.windows(key.len()).position(|it| it == key);
        let offset = offset.expect("it was put") + key.len() + 5_000;
        file.write_at(&[bytes[offset] ^ 4], offset as u64)
            .expect("written");
    }

    /// Flips a bit in the second leaf of the last level's tree; a second call restores it.
    fn flip_leaf(&self) {
        let version = self.engine.core.version();
        let tree = version.trees().last().expect("there");
        let begin = u64::from(tree.entry().segments[0].0) * SEGMENT_SIZE_BYTES;
        let file = self.storage.open("trees").expect("there");
        let mut byte = [0];
        file.read_at(&mut byte, begin + 4096 + 100).expect("read");
        file.write_at(&[byte[0] ^ 4], begin + 4096 + 100)
            .expect("written");
    }

    /// Works until a try hits corruption.
    fn try_until_damage(&self) {
        loop {
            match self.engine.maintain() {
                Ok(WorkDone::Nothing) => panic!("the merge is due"),
                Ok(_) => {}
                Err(LsmError::CorruptLog { .. } | LsmError::CorruptTree { .. }) => return,
                Err(other) => panic!("{other}"),
            }
        }
    }

    fn log_end(&self) -> LogPosition {
        self.engine.log().end()
    }

    /// Asserts that the next merge moves live records out of mostly dead segments.
    fn assert_next_merge_moves(&mut self) {
        self.put(b"one more", 4);
        let before = self.log_end();
        self.engine.merge_all().expect("merged");
        let grown = self.log_end().0 - before.0;
        assert!(grown > 1_000_000, "it moved {grown} bytes");
        assert_is(&self.engine.snapshot(), &self.model, "moved");
    }
}

/// Promise: however often a merge hits corruption, its moved records are in the log only once.
/// Frozen L0s are flushed between tries. After the corruption is repaired, everything is present,
/// and the next merge moves records again.
#[test]
fn tries_of_a_merge_that_meets_damage_let_no_log_grow() {
    let mut filled = Filled::new(Duration::ZERO);
    filled.flip(&LONG_KEY);
    let before = filled.log_end();
    filled.try_until_damage();
    let first = (filled.log_end(), filled.engine.counts().log_segment_count);
    let moved = first.0.0 - before.0;
    assert!(moved > 1_000_000, "the first try moved {moved} bytes");
    for _ in 0..9 {
        filled.try_until_damage();
    }
    let tenth = (filled.log_end(), filled.engine.counts().log_segment_count);
    assert!(
        tenth == first,
        "{first:?} after one try, {tenth:?} after ten"
    );
    for round in 0..3 {
        filled.put(&key_of(round), 5);
        filled.flush();
        filled.try_until_damage();
    }
    filled.flip(&LONG_KEY);
    maintain_all(&filled.engine);
    assert_eq!(filled.engine.counts().tree_counts, [0, 1]);
    assert_is(&filled.engine.snapshot(), &filled.model, "put right");
    filled.assert_next_merge_moves();
}

/// Promise: corruption in a record that a merge would only move ends one try. The next try leaves
/// the record where it is, and succeeds.
#[test]
fn damage_that_is_only_moved_ends_one_try() {
    let filled = Filled::new(Duration::ZERO);
    // One of the live records that were put only once.
    filled.flip(&key_of(399));
    filled.try_until_damage();
    let first = filled.log_end();
    maintain_all(&filled.engine);
    assert_eq!(filled.engine.counts().tree_counts, [0, 1]);
    assert_eq!(filled.log_end(), first);
    let damaged = filled.engine.get(&key_of(399));
    assert!(matches!(damaged, Err(LsmError::CorruptLog { .. })));
    filled.flip(&key_of(399));
    assert_is(&filled.engine.snapshot(), &filled.model, "put right");
}

/// Promise: while a merge pauses, only other work is done: flushes continue, and writes are delayed
/// as usual. `merge_all` retries the merge at once, and success ends the pause.
#[test]
fn all_else_goes_on_while_a_merge_rests() {
    let mut filled = Filled::new(Duration::from_hours(1));
    filled.flip(&LONG_KEY);
    filled.try_until_damage();
    for round in 0..5 {
        maintain_all(&filled.engine);
        filled.put(&key_of(round), 6);
        filled.engine.freeze();
        maintain_all(&filled.engine);
        let counts = filled.engine.counts();
        assert_eq!(counts.frozen_count, 0, "it was flushed");
        assert_eq!(counts.tree_counts, [3 + round, 1], "and not merged");
    }
    let delay = filled.engine.write_delay();
    assert_eq!(delay, Duration::ZERO, "that of the options");
    let first = filled.log_end();
    for _ in 0..3 {
        let tried = filled.engine.merge_all();
        assert!(matches!(tried, Err(LsmError::CorruptLog { .. })));
        maintain_all(&filled.engine);
    }
    assert_eq!(filled.log_end(), first, "it moved nothing");

    filled.flip(&LONG_KEY);
    maintain_all(&filled.engine);
    assert_eq!(filled.engine.counts().tree_counts, [7, 1], "it rests");
    filled.engine.merge_all().expect("merged");
    assert_is(&filled.engine.snapshot(), &filled.model, "put right");
    for round in 0..2 {
        filled.put(&key_of(round), 7);
        filled.flush();
    }
    maintain_all(&filled.engine);
    assert_eq!(filled.engine.counts().tree_counts, [0, 1], "it is merged");
    assert_is(&filled.engine.snapshot(), &filled.model, "at the end");
}

/// Promise: the same holds if a tree is corrupted.
#[test]
fn a_merge_of_a_damaged_tree_rests() {
    let filled = Filled::new(Duration::from_hours(1));
    filled.flip_leaf();
    filled.try_until_damage();
    maintain_all(&filled.engine);
    let first = filled.log_end();
    for _ in 0..10 {
        let tried = filled.engine.merge_all();
        assert!(matches!(tried, Err(LsmError::CorruptTree { .. })));
    }
    assert_eq!(filled.log_end(), first, "it moved nothing");
    filled.flip_leaf();
    filled.engine.merge_all().expect("merged");
    assert_is(&filled.engine.snapshot(), &filled.model, "put right");
}
