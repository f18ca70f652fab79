//! Merges are done in steps, and frozen L0s do not wait for them.

use std::sync::Arc;

use super::{Engine, Model, assert_is, key_of, maintain_all, open, open_as, tiny, value_of};
use crate::engine::{Durability, EngineOptions, WorkDone};
use crate::storage::{CrashStorage, Fault, FaultyStorage, Operation, Storage};

fn put(engine: &Engine, model: &mut Model, number: u64) {
    let (key, value) = (key_of(number, 5_000), value_of(number, 50));
    let put = engine.put(&key, &value, Durability::Memory);
    put.expect("no fault is set");
    model.insert(key, value);
}

fn options() -> EngineOptions {
    EngineOptions {
        l0_entry_count_max: 10_000,
        merge_step_entry_count: 100,
        ..tiny()
    }
}

/// Writes three trees of 1,000 entries each to level 1; one more makes it due.
fn filled(engine: &Engine, model: &mut Model) {
    for tree in 0..3 {
        for number in 0..1_000 {
            put(engine, model, tree * 700 + number);
        }
        engine.freeze();
        // The two steps for this tree, and none of a merge.
        while engine.counts().frozen_count > 0 {
            engine.maintain().expect("no fault is set");
        }
    }
}

/// Promise: an L0 frozen during a merge is flushed by the next step, whatever the merge has left to
/// do, with one thread for both. A step of a merge takes no more entries than the limit.
#[test]
fn a_flush_waits_for_one_step_at_the_most() {
    let engine = open_as(&CrashStorage::new(1), options()).expect("made");
    let mut model = Model::new();
    filled(&engine, &mut model);
    let entry_count: u64 = engine.counts().entry_counts.iter().sum();
    let mut step_count = 0;
    loop {
        match engine.maintain().expect("no fault is set") {
            WorkDone::Merging(1) => step_count += 1,
            WorkDone::Merged(1) => break,
            WorkDone::Reserved | WorkDone::Freed => continue,
            other => panic!("{other:?} after {step_count} steps"),
        }
        if step_count % 5 == 0 {
            put(&engine, &mut model, 10_000 + step_count);
            engine.freeze();
            assert_eq!(engine.counts().frozen_count, 1);
            assert_eq!(engine.maintain().expect("no fault"), WorkDone::Flushed);
            assert_eq!(engine.counts().frozen_count, 0);
        }
    }
    let distinct = 2_400;
    assert_eq!(engine.counts().entry_counts, [step_count / 5, distinct]);
    assert!(entry_count == 3_000 && step_count >= distinct / 100);
    assert_is(&engine.snapshot(), &model, "merged");
    maintain_all(&engine);
    assert_is(&engine.snapshot(), &model, "at the end");
}

/// Promise: an unfinished merge changes nothing: an engine dropped in the middle leaves the old
/// contents, and none of the merge's segments.
#[test]
fn a_merge_can_be_left() {
    let storage = CrashStorage::new(2);
    let mut model = Model::new();
    let engine = open_as(&storage, options()).expect("made");
    filled(&engine, &mut model);
    engine.sync().expect("synced");
    let before = engine.counts();
    for _ in 0..4 {
        let worked = engine.maintain().expect("no fault is set");
        assert_eq!(worked, WorkDone::Merging(1));
    }
    assert_eq!(engine.counts(), before, "nothing is there yet");
    drop(engine);
    let engine = open_as(&storage, options()).expect("whole");
    assert_eq!(engine.counts().tree_counts, before.tree_counts);
    assert_is(&engine.snapshot(), &model, "left in the middle");
    assert_eq!(engine.maintain().expect("no fault"), WorkDone::Merging(1));
    engine.merge_all().expect("it is finished first");
    assert_eq!(engine.counts().tree_counts.last(), Some(&1));
    assert_eq!(engine.counts().tree_segment_count, 1);
    assert_is(&engine.snapshot(), &model, "merged");
}

/// Promise: a failed step abandons the merge and frees its segments; the next one starts over.
#[test]
fn a_merge_that_fails_begins_anew() {
    let storage = CrashStorage::new(3);
    let faulty = FaultyStorage::new(Arc::new(storage));
    let shared: Arc<dyn Storage> = Arc::new(faulty.clone());
    let mut model = Model::new();
    let engine = Engine::open(shared, options()).expect("made");
    filled(&engine, &mut model);
    let before = engine.counts().tree_segment_count;
    for operation in [&[Operation::Read], &[Operation::Write]] {
        faulty.set(Fault::Fail {
            operations: operation,
            file: Some("trees".to_owned()),
            nth: 4,
            times: 1,
        });
        let failed = (0..100).find_map(|_| engine.maintain().err());
        if operation[0] == Operation::Read {
            assert!(failed.is_some(), "reads of a merge are many");
        }
        assert!(engine.counts().tree_segment_count <= before);
        assert_is(&engine.snapshot(), &model, "after a failure");
    }
    maintain_all(&engine);
    assert_eq!(engine.counts().tree_counts, [0, 1]);
    assert_is(&engine.snapshot(), &model, "merged");
    drop(engine);
}

/// Promise: deletes that are dropped are passed in steps, too, however many there are.
#[test]
fn deletes_are_passed_in_steps() {
    let engine = open(&CrashStorage::new(4)).expect("made");
    for number in 0..400 {
        let deleted = engine.delete(&key_of(number, 400), Durability::Memory);
        deleted.expect("no fault is set");
    }
    engine.freeze();
    let mut in_a_row = 0;
    loop {
        match engine.maintain().expect("no fault is set") {
            WorkDone::Merging(_) => in_a_row += 1,
            WorkDone::Nothing => break,
            _ => {}
        }
    }
    assert_eq!(in_a_row, 20, "20 entries at a time");
    engine.merge_all().expect("merged");
    assert_eq!(engine.counts().tree_segment_count, 0);
}
