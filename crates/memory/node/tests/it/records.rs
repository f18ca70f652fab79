//! Interrupts operations on records at every possible place.

use farleaf_index::LayerKind;
use farleaf_index::operation::Decision;

use crate::catalog::{TableShape, find};
use crate::crash::{Case, Tables, loaded, only_records, sample};
use crate::pool::Client;

const RECORD_COUNT: u64 = 64;

const LEARNED: TableShape = TableShape {
    kind: LayerKind::Learned,
    slots: 8,
    fill_percent: 100,
};
const ROLEX: TableShape = TableShape {
    kind: LayerKind::Rolex,
    ..LEARNED
};

/// Runs writes of one session, one after the other; a last step gives its leaves back.
fn writes_survive_a_crash(shape: TableShape, record_count: u64, writes: &[(u64, Decision)]) {
    let mut states = vec![only_records(sample(record_count))];
    for (key, decision) in writes {
        let mut tables = states[states.len() - 1].clone();
        let model = tables.get_mut("records").expect("it is there");
        match decision {
            Decision::Keep => {}
            Decision::Set(value) => {
                model.insert(*key, *value);
            }
            Decision::Remove => {
                model.remove(key);
            }
        }
        states.push(tables);
    }
    states.push(states[states.len() - 1].clone());
    let case = Case {
        setup: &|| loaded(shape, record_count),
        operation: &|pool, endpoint, owner| {
            let entry = find(pool, "records").expect("it is there");
            let client = Client::open(endpoint, &pool.layout, owner, &entry);
            let mut client = client.expect("opening writes nothing");
            let mut acknowledged = 0;
            for (key, decision) in writes {
                if client.modify(*key, |_| (*decision, ())).is_err() {
                    return acknowledged;
                }
                acknowledged += 1;
            }
            acknowledged + usize::from(client.give_back().is_ok())
        },
        states,
        near: writes[0].0,
        afterwards: &|_, _: &mut Tables| (),
        is_gradual: false,
        cut_count_max: 120,
    };
    assert!(case.run() > 2, "there is something to cut off");
}

/// Promise (LEAF-2): after a crash a key has the new value, or the old one.
#[test]
fn an_update_is_there_or_not() {
    for shape in [LEARNED, ROLEX] {
        writes_survive_a_crash(shape, RECORD_COUNT, &[(3300, Decision::Set(5))]);
    }
}

/// Promise (LEAF-2): a record in a free slot was inserted or not.
#[test]
fn an_insert_into_a_free_slot_is_there_or_not() {
    for shape in [LEARNED, ROLEX] {
        let shape = TableShape {
            fill_percent: 75,
            ..shape
        };
        writes_survive_a_crash(shape, RECORD_COUNT, &[(3350, Decision::Set(5))]);
    }
}

/// Promise (LEAF-2): a record was deleted or not.
#[test]
fn a_delete_has_happened_or_not() {
    for shape in [LEARNED, ROLEX] {
        writes_survive_a_crash(shape, RECORD_COUNT, &[(3300, Decision::Remove)]);
    }
}

/// Promise: a compare-and-swap that finds another value locks and unlocks, and changes nothing.
#[test]
fn a_compare_and_swap_that_does_not_match_changes_nothing() {
    for shape in [LEARNED, ROLEX] {
        writes_survive_a_crash(shape, RECORD_COUNT, &[(3300, Decision::Keep)]);
    }
}

/// Promise (LEAF-3): a split is complete or not there, with the lease of a chunk before it and the
/// announcement after it.
#[test]
fn a_split_for_a_key_that_belongs_right_is_whole_or_not_at_all() {
    for shape in [
        LEARNED,
        ROLEX,
        TableShape {
            slots: 16,
            ..LEARNED
        },
    ] {
        writes_survive_a_crash(shape, RECORD_COUNT, &[(3950, Decision::Set(5))]);
    }
}

/// Promise (LEAF-3): the insert is a separate change after the split.
#[test]
fn a_split_for_a_key_that_belongs_left_keeps_every_record() {
    for shape in [
        LEARNED,
        ROLEX,
        TableShape {
            slots: 16,
            ..LEARNED
        },
    ] {
        writes_survive_a_crash(shape, RECORD_COUNT, &[(3350, Decision::Set(5))]);
    }
}

/// Promise: ascending inserts at the end of a table are complete or not there.
#[test]
fn an_append_is_whole_or_not_at_all() {
    for shape in [LEARNED, ROLEX] {
        writes_survive_a_crash(shape, RECORD_COUNT, &[(u64::MAX, Decision::Set(5))]);
        writes_survive_a_crash(shape, RECORD_COUNT, &[(1 << 50, Decision::Set(5))]);
    }
}

/// Promise: splits of a leaf that a split created, and of the one beside it, with leaves leased
/// before, are complete or not there.
#[test]
fn splits_of_splits_are_whole_or_not_at_all() {
    let keys = (3301..3320).map(|key| (key, Decision::Set(key)));
    let writes: Vec<_> = keys.collect();
    writes_survive_a_crash(LEARNED, RECORD_COUNT, &writes);
}

/// Promise: in a table that was never loaded, the first leaf splits, and shares its chunk with the
/// siblings.
#[test]
fn a_table_that_was_never_loaded_keeps_what_was_acknowledged() {
    let keys = (1..=10).map(|key| (key * 10, Decision::Set(key)));
    let writes: Vec<_> = keys.collect();
    writes_survive_a_crash(LEARNED, 0, &writes);
}
