//! Tables with a tree that lose most of their records: leaves and inner nodes are merged and memory
//! is freed while clients continue.

use std::collections::BTreeMap;

use farleaf::{LayerKind, Pool, Session, Table, TableOptions};

use super::mapped_retraining_pools;
use super::retraining::eventually;

const COUNT: u64 = 40_000;
/// One in this many records stays.
const LEFT_SHARE: u64 = 20;
fn loaded(pool: &Pool, name: &str, layer: LayerKind) -> (Session, Table) {
    let options = TableOptions {
        layer,
        ..TableOptions::default()
    };
    let session = pool.session().unwrap();
    let table = session.create_table(name, &options).unwrap();
    let records = (0..COUNT).map(|key| (key * 1000, key));
    table.bulk_load(records, |_| {}).unwrap();
    (session, table)
}

/// Puts adjacent new keys behind one: leaves and inner nodes split there.
fn crowd(table: &Table, model: &mut BTreeMap<u64, u64>, behind: u64) {
    for key in behind + 1..behind + 800 {
        assert_eq!(table.put(key, !key).unwrap(), None);
        model.insert(key, !key);
    }
}

/// Promise: after deletes have emptied a table, it soon has a fifth of its leaves and memory.
/// Remaining records are found, also by sessions that were open all the time. These sessions then
/// split inner nodes of the new tree, without the memory that they leased for the old one and that
/// other tables have now.
#[test]
fn emptied_leaves_are_merged_and_memory_comes_back() {
    for layer in super::TREES {
        for pool in mapped_retraining_pools(64) {
            let (session, table) = loaded(&pool, "t", layer);
            let mut model: BTreeMap<u64, u64> = (0..COUNT).map(|key| (key * 1000, key)).collect();
            crowd(&table, &mut model, 10_000);
            let (leaf_count, bytes) =
                (table.stats().unwrap().leaves, table.memory_bytes().unwrap());
            let reader = pool.session().unwrap();
            let watching = reader.open_table("t").unwrap();
            assert_eq!(watching.get(1000).unwrap(), Some(1));

            let gone = model.keys().copied().filter(|key| key % LEFT_SHARE != 0);
            let gone: Vec<u64> = gone
                .chain(
                    (0..COUNT)
                        .filter(|key| key % LEFT_SHARE != 0)
                        .map(|key| key * 1000),
                )
                .collect();
            for key in gone {
                let value = model.remove(&key);
                assert_eq!(table.delete(key).unwrap(), value, "{layer}: {key}");
            }
            eventually(&pool, "merged", |_, _, stats| stats.leaves * 5 < leaf_count);
            for (key, value) in &model {
                assert_eq!(watching.get(*key).unwrap(), Some(*value), "{layer}: {key}");
            }
            crowd(&table, &mut model, 20_000_000);
            eventually(&pool, "memory", |_, table, _| {
                // Idle sessions delay nothing, and these two keep their leases.
                table.memory_bytes().unwrap() * 2 < bytes
            });
            session.close().unwrap();
            // Another table now uses the freed memory.
            let (_other, other) = loaded(&pool, "other", layer);
            let last = pool.session().unwrap();
            for table in [&watching, &last.open_table("t").unwrap()] {
                let found = table.range(..).map(Result::unwrap);
                assert!(
                    found.eq(model.iter().map(|(key, value)| (*key, *value))),
                    "{layer}"
                );
                let got = |key: &u64| table.get(*key).unwrap();
                assert!(model.iter().all(|(key, value)| got(key) == Some(*value)));
            }
            assert_eq!(other.range(..).count() as u64, COUNT, "{layer}");
        }
    }
}
