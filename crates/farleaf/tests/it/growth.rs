//! Tables that grow without retraining: every order of inserts, no limit on synonyms.

use farleaf::{Insertion, LayerKind, OperationKind, TableOptions};
use rand::seq::SliceRandom;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

const COUNT: u64 = 20_000;

fn orders() -> Vec<(&'static str, Vec<u64>)> {
    let spread = |index: u64| index.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut shuffled: Vec<u64> = (0..COUNT).collect();
    shuffled.shuffle(&mut Xoshiro256PlusPlus::seed_from_u64(7));
    vec![
        ("ascending", (0..COUNT).collect()),
        ("descending", (0..COUNT).rev().collect()),
        ("shuffled", shuffled),
        ("random", (0..COUNT).map(spread).collect()),
        (
            "from the top",
            (0..COUNT).map(|index| u64::MAX - index).collect(),
        ),
    ]
}

#[test]
fn a_table_grows_from_empty_in_any_order() {
    for options in super::leaf_options() {
        for (order, keys) in orders() {
            let pool = farleaf::Pool::open("mem:").unwrap();
            let session = pool.session().unwrap();
            let table = session.create_table("t", &options).unwrap();
            for key in &keys {
                assert_eq!(table.insert(*key, !key).unwrap(), Insertion::Inserted);
            }
            let mut expected: Vec<_> = keys.iter().map(|key| (*key, !key)).collect();
            expected.sort_unstable();
            let found: Vec<_> = table.range(..).map(Result::unwrap).collect();
            assert!(found == expected, "{order}, {options:?}");
            let stats = table.stats().unwrap();
            assert!(stats.sound, "{order}, {options:?}: {stats:?}");
            if order == "ascending" {
                assert!(stats.fill > 0.99, "appends leave full leaves: {stats:?}");
            }
        }
    }
}

/// Promise: a session that has seen none of the splits finds everything, and learns where it is.
#[test]
fn another_session_finds_what_splits_moved() {
    for options in super::leaf_options() {
        for pool in super::mapped_pools(64) {
            let session = pool.session().unwrap();
            let table = session.create_table("t", &options).unwrap();
            table
                .bulk_load((0..COUNT).map(|key| (key * 1000, key)), |_| {})
                .unwrap();
            for key in 0..COUNT * 4 {
                table.put(key * 250 + 7, key).unwrap();
            }
            let other_session = pool.session().unwrap();
            let other = other_session.open_table("t").unwrap();
            for key in 0..COUNT * 4 {
                assert_eq!(other.get(key * 250 + 7).unwrap(), Some(key));
                assert_eq!(other.get(key * 250 + 9).unwrap(), None);
            }
            let before = other_session.counters(OperationKind::Get).cost.round_trips;
            for key in 0..COUNT * 4 {
                other.get(key * 250 + 7).unwrap();
            }
            let trips = other_session.counters(OperationKind::Get).cost.round_trips - before;
            let per_get = match options.layer {
                // The root, one or two more levels, and the leaf: nothing is cached.
                LayerKind::Fg => 4,
                // The lowest inner node, which a session does not cache, and the leaf.
                LayerKind::Cell => 2,
                _ => 1,
            };
            assert!(
                trips * 100 <= COUNT * 4 * per_get * 101,
                "{options:?}: {trips} round trips"
            );
        }
    }
}

#[test]
fn the_estimate_of_the_length_is_near() {
    for pool in super::pools(64) {
        let session = pool.session().unwrap();
        let table = session.create_table("t", &TableOptions::default()).unwrap();
        assert_eq!(table.len_estimate().unwrap(), 0);
        table
            .bulk_load((0..COUNT).map(|key| (key << 40, key)), |_| {})
            .unwrap();
        let check = |expected: u64| {
            let estimate = table.len_estimate().unwrap();
            let error = estimate.abs_diff(expected) as f64 / expected as f64;
            assert!(error < 0.1, "{estimate} where there are {expected}");
        };
        check(COUNT);
        for key in 0..COUNT {
            table.put((key << 40) + (1 << 39), key).unwrap();
        }
        check(COUNT * 2);
    }
}
