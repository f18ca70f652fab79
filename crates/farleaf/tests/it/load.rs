//! Bulk loads.

use farleaf::OperationKind::{self, Get, MultiGet, Put, Scan};
use farleaf::{Error, ErrorKind, LayerKind, LoadError, Pool, TableOptions};
use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

fn random_keys(count: usize) -> Vec<u64> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(42);
    let mut keys: Vec<u64> = (0..count).map(|_| random.random()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Promise: after a load, a get reads one leaf in one round trip, with a quarter of a byte of
/// metadata per key.
#[test]
fn a_loaded_table_answers_with_one_leaf_per_get() {
    let keys = random_keys(200_000);
    for pool in super::mapped_pools(128) {
        let session = pool.session().unwrap();
        let table = session.create_table("t", &TableOptions::default()).unwrap();
        let mut last = 0;
        let summary = table.bulk_load(keys.iter().map(|key| (*key, !key)), |done| last = done);
        assert_eq!(summary.unwrap().record_count, keys.len() as u64);
        assert_eq!(last, keys.len() as u64);
        for key in &keys {
            assert_eq!(table.get(*key).unwrap(), Some(!key));
            assert_eq!(table.get(key.wrapping_add(1)).unwrap(), None);
            assert_eq!(table.get(key.wrapping_sub(1)).unwrap(), None);
        }
        let gets = session.counters(OperationKind::Get);
        let one_leaf = gets.one_leaf_operations as f64 / gets.operations as f64;
        assert!(one_leaf > 0.995, "{gets:?}");
        let bytes = gets.cost.bytes_read as f64 / gets.operations as f64;
        assert!(bytes < 165.0, "{bytes} bytes per get");
        let metadata = table.metadata_bytes() as f64 / keys.len() as f64;
        assert!(metadata < 0.25, "{metadata} bytes per key");
    }
}

/// Promise: with every layer and leaf size, for every distribution of keys, all keys are found,
/// absent neighbors are not, and scans are exact.
#[test]
fn loads_of_any_shape_are_found() {
    let dense = |from: u64| (0..3000).map(|key| from + key).collect::<Vec<u64>>();
    let mut shapes = vec![
        vec![0],
        vec![u64::MAX],
        vec![0, u64::MAX],
        vec![1, 2, 3],
        dense(0),
        dense(1 << 62),
        dense(u64::MAX - 2999),
        (0..3000).map(|key| key * key * key).collect(),
        (0..64).map(|bit| 1 << bit).collect(),
        random_keys(20_000),
    ];
    shapes.push([dense(5), dense(1 << 40), dense(1 << 63)].concat());
    for options in super::all_options() {
        for fill_percent in [25, 75, 100] {
            for keys in &shapes {
                let pool = Pool::open("mem:").unwrap();
                let session = pool.session().unwrap();
                let options = TableOptions {
                    fill_percent,
                    ..options
                };
                let table = session.create_table("t", &options).unwrap();
                table
                    .bulk_load(keys.iter().map(|key| (*key, key ^ 5)), |_| {})
                    .unwrap();
                for key in keys {
                    assert_eq!(table.get(*key).unwrap(), Some(key ^ 5), "{options:?}");
                    for near in [key.wrapping_sub(1), key.wrapping_add(1)] {
                        let expected = keys.binary_search(&near).is_ok().then_some(near ^ 5);
                        assert_eq!(table.get(near).unwrap(), expected, "{options:?}");
                    }
                }
                let scanned: Vec<u64> = table.range(..).map(|record| record.unwrap().0).collect();
                assert!(scanned == *keys, "{options:?}");
                assert!(table.stats().unwrap().sound);
            }
        }
    }
}

#[test]
fn a_load_that_does_not_ascend_changes_nothing() {
    for keys in [[1, 1], [2, 1]] {
        let pool = Pool::open("mem:").unwrap();
        let session = pool.session().unwrap();
        let table = session.create_table("t", &TableOptions::default()).unwrap();
        let used = pool.usage().unwrap().used_bytes;
        let records = (0..100_000).chain(keys.map(|key| key + 200_000));
        let error = table
            .bulk_load(records.map(|key| (key, 0)), |_| {})
            .unwrap_err();
        let ErrorKind::Load(LoadError::NotAscending {
            index, previous, ..
        }) = error.kind()
        else {
            panic!("{error}");
        };
        assert_eq!((*index, *previous), (100_001, keys[0] + 200_000));
        assert_eq!(
            pool.usage().unwrap().used_bytes,
            used,
            "its chunks are given back"
        );
        assert_eq!(table.range(..).count(), 0);
        table.bulk_load([(3, 4)], |_| {}).unwrap();
        assert_eq!(table.get(3).unwrap(), Some(4));
    }
}

#[test]
fn only_a_table_without_records_can_be_loaded() {
    let pool = Pool::open("mem:").unwrap();
    let session = pool.session().unwrap();
    let table = session.create_table("t", &TableOptions::default()).unwrap();
    assert_eq!(table.bulk_load([], |_| {}).unwrap().record_count, 0);
    table.put(1, 2).unwrap();
    let error = table.bulk_load([(5, 6)], |_| {}).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Load(LoadError::TableNotEmpty)),
        "{error}"
    );
    table.delete(1).unwrap();
    table.bulk_load([(5, 6)], |_| {}).unwrap();
    let error = table.bulk_load([(7, 8)], |_| {}).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Load(LoadError::TableNotEmpty)),
        "{error}"
    );
    assert_eq!(
        table.range(..).map(Result::unwrap).collect::<Vec<_>>(),
        [(5, 6)]
    );
}

/// Promise: a session that had the table open before another one loaded it takes the new directory
/// at once instead of following links through the new leaves.
#[test]
fn sessions_that_were_open_follow_a_load_in_a_few_round_trips() {
    for layer in LayerKind::OF_LEAVES {
        for first in 0..6 {
            let options = TableOptions {
                layer,
                ..TableOptions::default()
            };
            let pool = Pool::open("mem:").unwrap();
            let (loader, other) = (pool.session().unwrap(), pool.session().unwrap());
            let table = loader.create_table("t", &options).unwrap();
            let open = other.open_table("t").unwrap();
            assert_eq!(open.get(77).unwrap(), None);
            let records = (0..100_000).map(|key| (key, key));
            table.bulk_load(records, |_| {}).unwrap();
            let key = 99_000;
            let mut records = Vec::new();
            match first {
                0 => assert_eq!(open.get(key).unwrap(), Some(key)),
                1 => assert_eq!(open.put(key, 5).unwrap(), Some(key)),
                2 => assert_eq!(open.multi_get(&[key, 3]).unwrap(), [Some(key), Some(3)]),
                3 => open.scan_into(key, 2, &mut records).unwrap(),
                4 => assert!(open.len_estimate().unwrap().abs_diff(100_000) < 5000),
                _ => assert_eq!(open.stats().unwrap().records, 100_000),
            }
            let kinds = [Get, Put, MultiGet, Scan].map(|kind| other.counters(kind).cost);
            let trips: u64 = kinds.iter().map(|cost| cost.round_trips).sum();
            assert!(trips <= 10, "{layer}, {first}: {trips} round trips");
            for key in (0..100_000).filter(|other| *other != key) {
                assert_eq!(open.get(key).unwrap(), Some(key));
            }
            let gets = other.counters(Get);
            let per_get = match layer {
                // Three levels of inner nodes, and the leaf.
                LayerKind::Fg => 4,
                // The lowest of them, and the leaf.
                LayerKind::Cell => 2,
                _ => 1,
            };
            assert!(gets.cost.round_trips < 105_000 * per_get, "{gets:?}");
        }
    }
}

/// Promise: a load whose input panics leaves nothing behind once its session is gone.
#[test]
fn a_load_that_panics_leaves_nothing_behind() {
    for pool in super::pools(32) {
        let session = pool.session().unwrap();
        session.create_table("t", &TableOptions::default()).unwrap();
        let used = pool.usage().unwrap().used_bytes;
        let panicked = std::thread::scope(|scope| {
            let loader = scope.spawn(|| {
                let session = pool.session().unwrap();
                let table = session.open_table("t").unwrap();
                let records = (0..200_000).map(|key| {
                    assert!(key < 100_000, "the caller's iterator fails");
                    (key, key)
                });
                table.bulk_load(records, |_| {}).unwrap();
            });
            loader.join().is_err()
        });
        assert!(panicked);
        let started = std::time::Instant::now();
        while pool.usage().unwrap().used_bytes > used {
            assert!(
                started.elapsed().as_secs() < 20,
                "its chunks are given back"
            );
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let table = session.open_table("t").unwrap();
        table.bulk_load([(1, 2)], |_| {}).unwrap();
        assert_eq!(table.get(1).unwrap(), Some(2));
    }
}

/// Promise: the cost of a scan depends on its limit, not on how far the table has grown. (While
/// leaves are being moved, it also reads some that have been moved.)
#[test]
fn short_scans_of_grown_tables_read_few_leaves() {
    for layer in LayerKind::OF_LEAVES {
        let options = TableOptions {
            layer,
            ..TableOptions::default()
        };
        for pool in super::mapped_pools(64) {
            let session = pool.session().unwrap();
            let table = session.create_table("t", &options).unwrap();
            for key in 0..50_000_u64 {
                table
                    .put(key.wrapping_mul(0x9E37_79B9_7F4A_7C15), key)
                    .unwrap();
            }
            let mut records = Vec::new();
            for step in 0..100 {
                table.scan_into(step << 57, 10, &mut records).unwrap();
            }
            let scans = session.counters(Scan);
            let leaves = scans.cost.leaves_read / scans.operations;
            assert!(leaves <= 8, "{layer}: {leaves} leaves for ten records");
        }
    }
}

#[test]
fn a_load_beyond_the_pool_is_an_error_and_gives_everything_back() {
    for pool in super::pools(4) {
        let session = pool.session().unwrap();
        let table = session.create_table("t", &TableOptions::default()).unwrap();
        let used = pool.usage().unwrap().used_bytes;
        let error = table
            .bulk_load((0..10_000_000).map(|key| (key, 0)), |_| {})
            .unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Full(_)), "{error}");
        assert_eq!(pool.usage().unwrap().used_bytes, used);
        table
            .bulk_load((0..10_000).map(|key| (key, 0)), |_| {})
            .unwrap();
        assert!(table.stats().unwrap().sound);
    }
}

fn assert_dropped(error: &Error) {
    assert!(
        matches!(error.kind(), ErrorKind::TableDropped { name } if name == "t"),
        "{error}"
    );
}

/// Promise: a load into a table that another session drops returns an error, even if this session
/// has not noticed yet. The drop may be before the load or during it, and the load may be small or
/// large. Its memory is freed, and the name is free.
#[test]
fn a_load_into_a_dropped_table_says_so() {
    for options in super::leaf_options() {
        for pool in super::pools(32) {
            let (session, other) = (pool.session().unwrap(), pool.session().unwrap());
            for (record_count, dropped_at) in [
                (1, None),
                (50_000, None),
                (1, Some(0)),
                (50_000, Some(25_000)),
            ] {
                let used = pool.usage().unwrap().used_bytes;
                let table = session.create_table("t", &options).unwrap();
                if dropped_at.is_none() {
                    other.drop_table("t").unwrap();
                }
                let records = (0..record_count).map(|key| {
                    if dropped_at == Some(key) {
                        other.drop_table("t").unwrap();
                    }
                    (key, key)
                });
                assert_dropped(&table.bulk_load(records, |_| {}).unwrap_err());
                // The name belongs to another table now, which the old handle must not touch.
                let next = session.create_table("t", &options).unwrap();
                assert_dropped(&table.bulk_load([(1, 1)], |_| {}).unwrap_err());
                assert_eq!(next.bulk_load([(1, 2)], |_| {}).unwrap().record_count, 1);
                assert_eq!(next.get(1).unwrap(), Some(2));
                session.drop_table("t").unwrap();
                let started = std::time::Instant::now();
                while pool.usage().unwrap().used_bytes > used {
                    assert!(started.elapsed().as_secs() < 20, "its memory comes back");
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            }
        }
    }
}
