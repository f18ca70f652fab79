//! Operations on records, cut off everywhere.

use farleaf_index::LayerKind;
use farleaf_index::operation::Decision;

use crate::catalog::{Shape, find};
use crate::crash::{Case, Tables, loaded, only_records, sample};
use crate::pool::Client;

const RECORD_COUNT: u64 = 64;

const LEARNED: Shape = Shape {
    kind: LayerKind::Learned,
    slots: 8,
    fill_percent: 100,
};
const ROLEX: Shape = Shape {
    kind: LayerKind::Rolex,
    ..LEARNED
};

/// Writes, one after the other, by one session; a last step gives its leaves back.
fn writes_survive_a_crash(shape: Shape, record_count: u64, writes: &[(u64, Decision)]) {
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

/// D2: the value, or the one before.
#[test]
fn an_update_is_there_or_not() {
    for shape in [LEARNED, ROLEX] {
        writes_survive_a_crash(shape, RECORD_COUNT, &[(3300, Decision::Set(5))]);
    }
}

/// D2: a record in a free slot is there or not.
#[test]
fn an_insert_into_a_free_slot_is_there_or_not() {
    for shape in [LEARNED, ROLEX] {
        let shape = Shape {
            fill_percent: 75,
            ..shape
        };
        writes_survive_a_crash(shape, RECORD_COUNT, &[(3350, Decision::Set(5))]);
    }
}

/// D2: a record that is removed is there or not.
#[test]
fn a_delete_has_happened_or_not() {
    for shape in [LEARNED, ROLEX] {
        writes_survive_a_crash(shape, RECORD_COUNT, &[(3300, Decision::Remove)]);
    }
}

/// A compare-and-swap that finds another value locks and unlocks, and nothing else.
#[test]
fn a_compare_and_swap_that_does_not_match_changes_nothing() {
    for shape in [LEARNED, ROLEX] {
        writes_survive_a_crash(shape, RECORD_COUNT, &[(3300, Decision::Keep)]);
    }
}

/// D3: with the lease of a chunk before it, and the announcement behind it.
#[test]
fn a_split_for_a_key_that_belongs_right_is_whole_or_not_at_all() {
    for shape in [
        LEARNED,
        ROLEX,
        Shape {
            slots: 16,
            ..LEARNED
        },
    ] {
        writes_survive_a_crash(shape, RECORD_COUNT, &[(3950, Decision::Set(5))]);
    }
}

/// D3: the insert is a change of its own, after the split's.
#[test]
fn a_split_for_a_key_that_belongs_left_keeps_every_record() {
    for shape in [
        LEARNED,
        ROLEX,
        Shape {
            slots: 16,
            ..LEARNED
        },
    ] {
        writes_survive_a_crash(shape, RECORD_COUNT, &[(3350, Decision::Set(5))]);
    }
}

/// Ascending inserts at the end of a table.
#[test]
fn an_append_is_whole_or_not_at_all() {
    for shape in [LEARNED, ROLEX] {
        writes_survive_a_crash(shape, RECORD_COUNT, &[(u64::MAX, Decision::Set(5))]);
        writes_survive_a_crash(shape, RECORD_COUNT, &[(1 << 50, Decision::Set(5))]);
    }
}

/// A leaf that a split made is split itself, and the one beside it, from leaves leased before.
#[test]
fn splits_of_splits_are_whole_or_not_at_all() {
    let keys = (3301..3320).map(|key| (key, Decision::Set(key)));
    let writes: Vec<_> = keys.collect();
    writes_survive_a_crash(LEARNED, RECORD_COUNT, &writes);
}

/// A table that was never loaded: its first leaf splits, and shares its chunk with the siblings.
#[test]
fn a_table_that_was_never_loaded_keeps_what_was_acknowledged() {
    let keys = (1..=10).map(|key| (key * 10, Decision::Set(key)));
    let writes: Vec<_> = keys.collect();
    writes_survive_a_crash(LEARNED, 0, &writes);
}
