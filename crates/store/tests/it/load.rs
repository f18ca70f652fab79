//! Bulk loads.

use farleaf::{ErrorKind, LayerKind, LoadError, OperationKind, Pool, TableOptions};
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

/// The whole point: one leaf, one round trip, a quarter of a byte per key.
#[test]
fn a_loaded_table_answers_with_one_leaf_per_get() {
    let keys = random_keys(200_000);
    for pool in super::pools(128) {
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

/// Every layer and leaf size on every shape of data: all found, neighbours absent, scans exact.
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

/// Sessions that had the table open before it was loaded see the load, by the retired first leaf.
#[test]
fn sessions_that_were_open_follow_a_load() {
    for layer in [LayerKind::Learned, LayerKind::Rolex] {
        let options = TableOptions {
            layer,
            ..TableOptions::default()
        };
        let pool = Pool::open("mem:").unwrap();
        let (loader, reader) = (pool.session().unwrap(), pool.session().unwrap());
        let table = loader.create_table("t", &options).unwrap();
        let open = reader.open_table("t").unwrap();
        assert_eq!(open.get(77).unwrap(), None);
        table
            .bulk_load((0..100_000).map(|key| (key, key)), |_| {})
            .unwrap();
        for key in 0..100_000 {
            assert_eq!(open.get(key).unwrap(), Some(key));
        }
        let gets = reader.counters(OperationKind::Get);
        assert!(
            gets.cost.round_trips < gets.operations + 100_000 / 20,
            "{gets:?}"
        );
        open.put(5, 6).unwrap();
        assert_eq!(table.get(5).unwrap(), Some(6));
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
