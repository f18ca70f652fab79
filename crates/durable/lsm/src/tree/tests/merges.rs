//! Merges return the newest entries, in order.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;

use super::keys::{equal_heads, kinds, random_numbers, user_keys};
use super::model::assert_is;
use super::{MemoryLog, Model, ModelEntries, rebuilt, tree_of, written};
use crate::tree::{Deletes, EntrySource, Merge, Tree, TreeEntries, key_hash};

/// Creates models, newest first, each with some of the keys.
fn layers(keys: &BTreeSet<Vec<u8>>, count: u64, log: &MemoryLog) -> Vec<Model> {
    let mut layers: Vec<Model> = (0..count)
        .map(|layer| {
            let numbers = random_numbers(layer);
            let some = keys.iter().zip(numbers).filter(|(_, it)| it % 5 < 2);
            let entry =
                |(key, number): (&Vec<u8>, u64)| (key.clone(), (log.put(key), number / 5 % 4 == 0));
            some.map(entry).collect()
        })
        .collect();
    layers.reverse();
    layers
}

fn expected(layers: &[Model], deletes: Deletes) -> Model {
    let mut all = Model::new();
    for layer in layers.iter().rev() {
        all.extend(layer.iter().map(|(key, it)| (key.clone(), *it)));
    }
    if deletes == Deletes::Omit {
        all.retain(|_, it| !it.1);
    }
    all
}

fn assert_merges(
    name: &str,
    mut merge: Merge<Box<dyn EntrySource + '_>, &MemoryLog>,
    model: &Model,
) {
    for (key, value) in model {
        let entry = merge.entry().unwrap();
        assert_eq!((entry.position, entry.is_delete), *value, "{name}: {key:?}");
        assert!(key.starts_with(entry.key.bytes));
        assert_eq!(entry.hash, key_hash(key));
        merge.advance().unwrap();
    }
    assert_eq!(merge.entry(), None, "{name}");
    merge.advance().unwrap();
    assert_eq!(merge.entry(), None, "{name}");
}

fn sources<'m>(trees: &[Arc<Tree>]) -> Vec<Box<dyn EntrySource + 'm>> {
    let source = |it: &Arc<Tree>| {
        Box::new(TreeEntries::new(Arc::clone(it)).unwrap()) as Box<dyn EntrySource>
    };
    trees.iter().map(source).collect()
}

/// Promise: a merge returns the newest entry of each key in order, with deletes or without. It has
/// any number of sources, which are trees with heads or models with whole keys.
#[test]
fn merges_keep_the_newest() {
    for (name, keys) in kinds() {
        let keys: BTreeSet<Vec<u8>> = keys.into_iter().take(4_000).collect();
        let log = MemoryLog::default();
        for count in [1, 2, 5] {
            let layers = layers(&keys, count, &log);
            for deletes in [Deletes::Keep, Deletes::Omit] {
                let model = expected(&layers, deletes);
                let whole = layers
                    .iter()
                    .map(|it| Box::new(ModelEntries::new(it)) as Box<dyn EntrySource>);
                let merge = Merge::new(whole.collect(), deletes, &log).unwrap();
                assert_merges(name, merge, &model);
                let filled = layers.iter().filter(|it| !it.is_empty());
                let trees: Vec<_> = (1..)
                    .zip(filled)
                    .map(|(id, it)| tree_of(id, it, &log))
                    .collect();
                let merge = Merge::new(sources(&trees), deletes, &log).unwrap();
                assert_merges(name, merge, &model);
            }
        }
    }
}

/// Promise: a merge of updates reads no keys from the log if they are known completely: any 16-byte
/// keys, and those of YCSB.
#[test]
fn updates_of_keys_that_are_known_are_merged_without_the_log() {
    let words = || random_numbers(7).zip(random_numbers(8)).take(20_000);
    let binary = words().map(|(one, two)| [one.to_be_bytes(), two.to_be_bytes()].concat());
    let digits = words().map(|(number, _)| format!("{number:016x}").into_bytes());
    for keys in [binary.collect(), digits.collect(), user_keys(1, 20_000)] {
        let log = MemoryLog::default();
        let layer = |step: usize| -> Model {
            let some = keys.iter().step_by(step);
            some.map(|key: &Vec<u8>| (key.clone(), (log.put(key), false)))
                .collect()
        };
        let updates = rebuilt(2, &tree_of(1, &layer(3), &log), &log);
        let all = rebuilt(4, &tree_of(3, &layer(1), &log), &log);
        let mut merge = Merge::new(sources(&[updates, all]), Deletes::Omit, &log).unwrap();
        let mut count = 0;
        while merge.entry().is_some() {
            count += 1;
            merge.advance().unwrap();
        }
        assert_eq!((count, log.read_count()), (keys.len(), 0));
    }
}

/// Promise: trees with different keys are merged without reading keys, if heads distinguish them.
/// The merge returns keys that it has read as whole keys.
#[test]
fn keys_are_read_only_where_heads_do_not_tell() {
    let log = MemoryLog::default();
    let layer = |keys: BTreeSet<Vec<u8>>| -> Model {
        keys.into_iter()
            .map(|key| (key.clone(), (log.put(&key), false)))
            .collect()
    };
    let trees = [
        tree_of(1, &layer(user_keys(1, 20_000)), &log),
        tree_of(2, &layer(user_keys(2, 20_000)), &log),
        tree_of(3, &layer(user_keys(3, 20_000)), &log),
    ];
    let mut merge = Merge::new(sources(&trees), Deletes::Omit, &log).unwrap();
    let mut count = 0;
    while merge.entry().is_some() {
        count += 1;
        merge.advance().unwrap();
    }
    assert_eq!((count, log.read_count()), (60_000, 0));

    let trees = [
        tree_of(4, &layer(equal_heads(500)), &log),
        tree_of(5, &layer(equal_heads(500)), &log),
    ];
    let before = log.read_count();
    let mut merge = Merge::new(sources(&trees), Deletes::Keep, &log).unwrap();
    while let Some(entry) = merge.entry() {
        assert!(!entry.key.continues);
        merge.advance().unwrap();
    }
    assert_eq!(
        log.read_count() - before,
        1_000,
        "each key of each tree once"
    );
}

/// Returns keys that are often prefixes of others, and often equal for more than a head's size.
fn any_key() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        Just(b"a".to_vec()),
        Just(b"\0".to_vec()),
        Just(vec![b'm'; 21]),
        Just(vec![0xff; 150]),
        prop::collection::vec(any::<u8>(), 0..3),
    ];
    prop::collection::vec(part, 0..5).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..Default::default()
    })]

    /// Promise: a tree of all writes, made from trees that were made from trees, equals a map.
    #[test]
    fn a_tree_of_trees_is_what_a_map_is(
        layers in prop::collection::vec(
            prop::collection::btree_map(any_key(), any::<bool>(), 1..400), 1..5),
    ) {
        let log = MemoryLog::default();
        let put = |(key, is_delete): (Vec<u8>, bool)| (key.clone(), (log.put(&key), is_delete));
        let layers: Vec<Model> =
            layers.into_iter().map(|it| it.into_iter().map(put).collect()).collect();
        let trees = layers.iter().map(|it| rebuilt(2, &tree_of(1, it, &log), &log));
        let trees: Vec<_> = trees.collect();
        for deletes in [Deletes::Keep, Deletes::Omit] {
            let model = expected(&layers, deletes);
            let merge = Merge::new(sources(&trees), deletes, &log).unwrap();
            match written(3, model.len() as u64, merge, &log).unwrap() {
                Some(tree) => assert_is("merged", &tree, &model, &log),
                None => prop_assert!(model.is_empty()),
            }
        }
    }
}
