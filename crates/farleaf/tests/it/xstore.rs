//! Tables whose leaves the memory node changes and whose models it trains.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use farleaf::{
    EmbeddedFabric, ErrorKind, LayerKind, ModelCache, OperationKind, Pool, PoolOptions, Session,
    SessionOptions, Table, TableOptions, Update,
};

fn xstore() -> TableOptions {
    TableOptions {
        layer: LayerKind::Xstore,
        ..TableOptions::default()
    }
}

/// Returns pools on all fabrics, each of which reads in another way, and one of several nodes, all
/// of which have leaves.
fn pools() -> Vec<Pool> {
    let tcp = super::pools_over([EmbeddedFabric::Tcp], 32, 1);
    super::pools(32).into_iter().chain(tcp).collect()
}

fn session_with(pool: &Pool, model_cache: ModelCache) -> Session {
    let options = SessionOptions {
        model_cache,
        ..SessionOptions::default()
    };
    pool.session_with(&options).expect("a session")
}

/// Gets keys until the node is no longer needed: then its models are trained and cached.
fn warm_up(table: &Table, keys: &[u64]) {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let before = table.hint_counters().fallback_count;
        for key in keys {
            table.get(*key).expect("a get");
        }
        if table.hint_counters().fallback_count == before {
            return;
        }
        assert!(
            Instant::now() < until,
            "models still do not lead to all keys"
        );
    }
}

/// Promise: each kind of write returns the previous value and has the right effect.
#[test]
fn writes_are_the_nodes() {
    for pool in pools() {
        let session = pool.session().unwrap();
        let table = session.create_table("t", &xstore()).unwrap();
        super::check_writes(&table);
    }
}

/// Promise: an empty table grows by inserts, is loaded, and matches a `BTreeMap` for two sessions,
/// whichever models they cache. In the end none of its gets needs the node.
#[test]
fn it_is_an_ordered_map() {
    for pool in pools() {
        for (name, loaded_count) in [("grown", 0), ("loaded", 5_000)] {
            let session = pool.session().unwrap();
            let table = session.create_table(name, &xstore()).unwrap();
            let mut model: BTreeMap<u64, u64> =
                (0..loaded_count).map(|key| (key * 9, key)).collect();
            table
                .bulk_load(model.iter().map(|(key, value)| (*key, *value)), |_| {})
                .unwrap();
            let caches = ModelCache::ALL.map(|cache| session_with(&pool, cache));
            let readers: Vec<Table> = caches
                .iter()
                .map(|session| session.open_table(name).unwrap())
                .collect();
            let mut state = 7_u64;
            for step in 0..700_u64 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let key = (state >> 33) % 50_000;
                let expected = model.get(&key).copied();
                if step % 7 == 0 {
                    assert_eq!(table.delete(key).unwrap(), expected);
                    model.remove(&key);
                } else {
                    assert_eq!(table.put(key, step).unwrap(), expected);
                    model.insert(key, step);
                }
                let reader = &readers[step as usize % readers.len()];
                assert_eq!(reader.get(key).unwrap(), model.get(&key).copied());
                let near = key + 1;
                assert_eq!(reader.get(near).unwrap(), model.get(&near).copied());
                if step % 100 == 0 {
                    let mut found = Vec::new();
                    reader.scan_into(key, 50, &mut found).unwrap();
                    let expected = model.range(key..).take(50);
                    let expected: Vec<_> = expected.map(|(key, value)| (*key, *value)).collect();
                    assert_eq!(found, expected);
                }
            }
            let all: Vec<(u64, u64)> = model.iter().map(|(key, value)| (*key, *value)).collect();
            let keys: Vec<u64> = (0..50_100).collect();
            for reader in &readers {
                assert_eq!(super::records_of(reader), all);
                let values = reader.multi_get(&keys).unwrap();
                let expected: Vec<_> = keys.iter().map(|key| model.get(key).copied()).collect();
                assert_eq!(values, expected);
                assert_eq!(reader.len_estimate().unwrap(), model.len() as u64);
                warm_up(reader, &keys[..500]);
            }
        }
    }
}

/// Promise: with all models cached a get is one round trip, a scan of 100 records too, and a write
/// is one call. Without translation tables a get takes two round trips, with only the top model
/// three.
#[test]
fn round_trips_are_those_of_the_design() {
    let pools = super::pools_over([EmbeddedFabric::Mem], 64, 1);
    let pool = &pools[0];
    let session = pool.session().unwrap();
    let table = session.create_table("t", &xstore()).unwrap();
    let records = (0..100_000_u64).map(|key| (key * 10, key));
    table.bulk_load(records, |_| {}).unwrap();
    let keys: Vec<u64> = (0..1_000).map(|index| index * 997 % 100_000 * 10).collect();
    for (cache, trips) in [
        (ModelCache::All, 1),
        (ModelCache::Models, 2),
        (ModelCache::Top, 3),
    ] {
        let session = session_with(pool, cache);
        let table = session.open_table("t").unwrap();
        warm_up(&table, &keys);
        let before = session.counters(OperationKind::Get);
        for key in &keys {
            assert_eq!(table.get(*key).unwrap(), Some(key / 10));
        }
        let after = session.counters(OperationKind::Get);
        assert_eq!(after.operations - before.operations, 1_000);
        assert_eq!(
            after.cost.round_trips - before.cost.round_trips,
            1_000 * trips,
            "{cache}"
        );
    }
}

/// Promise: keys in dense, distant clusters, and keys between these, are found without the node, in
/// as many round trips as others, whichever models a session caches.
#[test]
fn clusters_are_read_by_models() {
    let pools = super::pools_over([EmbeddedFabric::Mem], 64, 1);
    let pool = &pools[0];
    let session = pool.session().unwrap();
    let table = session.create_table("t", &xstore()).unwrap();
    let clusters = (0..60_u64).map(|cluster| cluster * cluster << 50);
    let keys: Vec<u64> = clusters
        .flat_map(|from| (0..1_500).map(move |step| from + step * 3))
        .collect();
    table
        .bulk_load(keys.iter().map(|key| (*key, !key)), |_| {})
        .unwrap();
    let asked: Vec<(u64, Option<u64>)> = keys
        .iter()
        .step_by(7)
        .flat_map(|key| [(*key, Some(!key)), (key + 1, None), (key | 1 << 45, None)])
        .collect();
    let asked_keys: Vec<u64> = asked.iter().map(|(key, _)| *key).collect();
    for (cache, trips) in [
        (ModelCache::All, 1),
        (ModelCache::Models, 2),
        (ModelCache::Top, 3),
    ] {
        let session = session_with(pool, cache);
        let table = session.open_table("t").unwrap();
        warm_up(&table, &asked_keys);
        let before = session.counters(OperationKind::Get);
        for (key, found) in &asked {
            assert_eq!(table.get(*key).unwrap(), *found, "{key}");
        }
        let after = session.counters(OperationKind::Get);
        assert_eq!(
            after.cost.round_trips - before.cost.round_trips,
            asked.len() as u64 * trips,
            "{cache}"
        );
    }
}

/// Promise: the memory of a dropped table, including leaves that workers leased and models, is
/// freed while the node runs, and no operation reads from it.
#[test]
fn what_a_dropped_table_took_comes_back() {
    for pool in pools() {
        let session = pool.session().unwrap();
        let used = |pool: &Pool| pool.usage().unwrap().used_bytes;
        let before = used(&pool);
        for round in 0..3 {
            let table = session.create_table("t", &xstore()).unwrap();
            let records = (0..20_000_u64).map(|key| (key * 5, round));
            table.bulk_load(records, |_| {}).unwrap();
            for key in 0..200 {
                table.put(key * 501 + 1, round).unwrap();
            }
            warm_up(&table, &[5, 501, 99_995]);
            assert!(used(&pool) > before);
            session.drop_table("t").unwrap();
            let until = Instant::now() + Duration::from_secs(20);
            while used(&pool) > before + RINGS_SIZE_BYTES {
                assert!(Instant::now() < until, "{} B are still used", used(&pool));
                if let Ok(found) = table.get(5) {
                    assert_eq!(found, Some(round));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(table.put(5, 5).is_err());
        }
    }
}

/// Bytes of a session's rings, which it keeps.
const RINGS_SIZE_BYTES: u64 = 64 << 10;

/// Promise: when the pool is full a write returns an error and changes nothing, and everything else
/// continues.
#[test]
fn a_full_pool_loses_nothing() {
    let options = PoolOptions {
        size_bytes: 3 << 20,
        ..PoolOptions::default()
    };
    let pool = Pool::embedded(&options).unwrap();
    let session = pool.session().unwrap();
    let table = session.create_table("t", &xstore()).unwrap();
    let mut model = BTreeMap::new();
    let mut refused_count = 0;
    for step in 0..200_000_u64 {
        let key = step.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        match table.put(key, step) {
            Ok(previous) => assert_eq!(model.insert(key, step), previous),
            Err(error) => {
                assert!(
                    matches!(error.kind(), ErrorKind::PoolFullForLeaf { .. }),
                    "{error}"
                );
                refused_count += 1;
                if refused_count == 100 {
                    break;
                }
            }
        }
    }
    assert_eq!(refused_count, 100, "3 MiB are full some time");
    let all: Vec<(u64, u64)> = model.iter().map(|(key, value)| (*key, *value)).collect();
    assert_eq!(super::records_of(&table), all);
    for (key, value) in all.iter().take(100) {
        assert_eq!(table.update(*key, !value).unwrap(), Update::Updated(*value));
    }
}
