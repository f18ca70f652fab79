//! Tables that the memory node stores: every operation is a call.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use farleaf_executor::TaskSet;

use farleaf::{
    EmbeddedFabric, Error, ErrorKind, LayerKind, LoadError, OperationKind, Pool, PoolOptions, Swap,
    Table, TableOptions,
};

const SMALL_SIZE_BYTES: u64 = 2 << 20;

fn remote() -> TableOptions {
    TableOptions {
        layer: LayerKind::Rpc,
        ..TableOptions::default()
    }
}

/// Returns a pool whose node has memory for few records.
fn small_pool() -> Pool {
    let options = PoolOptions {
        size_bytes: SMALL_SIZE_BYTES,
        ..PoolOptions::default()
    };
    Pool::embedded(&options).unwrap()
}

/// Returns pools on all fabrics, because each polls for replies in its own way.
fn pools() -> Vec<Pool> {
    let tcp = super::pools_over([EmbeddedFabric::Tcp], 32, 1);
    super::pools(32).into_iter().chain(tcp).collect()
}

/// Promise: each kind of write returns the previous value and has the right effect.
#[test]
fn writes_are_decided_by_the_node() {
    for pool in pools() {
        let session = pool.session().unwrap();
        let table = session.create_table("t", &remote()).unwrap();
        super::check_writes(&table);
    }
}

/// Promise: results that are too long for one reply arrive by several calls, complete and in order:
/// all values of a `multi_get`, all records of a scan.
#[test]
fn long_answers_come_in_parts() {
    for pool in pools() {
        let session = pool.session().unwrap();
        let table = session.create_table("t", &remote()).unwrap();
        let records: Vec<(u64, u64)> = (0..20_000).map(|key| (key * 3, !key)).collect();
        let loaded = table.bulk_load(records.iter().copied(), |_| {}).unwrap();
        assert_eq!(loaded.record_count, 20_000);
        assert_eq!(super::records_of(&table), records);
        let mut scanned = Vec::new();
        table.scan_into(29_998, 9_000, &mut scanned).unwrap();
        assert_eq!(scanned, records[10_000..19_000]);
        let keys: Vec<u64> = (0..5_000).collect();
        let values = table.multi_get(&keys).unwrap();
        let expected = keys
            .iter()
            .map(|key| key.is_multiple_of(3).then(|| !(key / 3)));
        assert_eq!(values, expected.collect::<Vec<_>>());
        assert_eq!(table.len_estimate().unwrap(), 20_000);
        assert_eq!(table.stats().unwrap().records, 20_000);
    }
}

/// Promise: a load takes effect completely or not at all, only on an empty table. Errors are the
/// same as for other tables.
#[test]
fn loads_are_whole_or_nothing() {
    for pool in pools() {
        let session = pool.session().unwrap();
        let table = session.create_table("t", &remote()).unwrap();
        let descending = (0..2_000).map(|key| if key == 1_500 { (3, 0) } else { (key, key) });
        let error = table.bulk_load(descending, |_| {}).unwrap_err();
        assert!(
            matches!(
                error.kind(),
                ErrorKind::Load(LoadError::NotAscending {
                    index: 1_500,
                    key: 3,
                    previous: 1_499
                })
            ),
            "{error}"
        );
        assert_eq!(super::records_of(&table), []);
        table.bulk_load([], |_| {}).unwrap();
        table.bulk_load([(1, 2), (3, 4)], |_| {}).unwrap();
        let error = table.bulk_load([(5, 6)], |_| {}).unwrap_err();
        let is_not_empty = matches!(error.kind(), ErrorKind::Load(LoadError::TableNotEmpty));
        assert!(is_not_empty, "{error}");
        assert_eq!(super::records_of(&table), [(1, 2), (3, 4)]);
    }
}

/// Promise (LEAF-9): concurrent writers do not lose updates, whichever keys they share.
#[test]
fn writers_lose_nothing() {
    const THREAD_COUNT: u64 = 4;
    const ADDED_COUNT: u64 = 400;
    for pool in pools() {
        let session = pool.session().unwrap();
        let table = session.create_table("t", &remote()).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREAD_COUNT {
                let pool = &pool;
                scope.spawn(move || {
                    let session = pool.session().unwrap();
                    let table = session.open_table("t").unwrap();
                    for added in 0..ADDED_COUNT {
                        let key = (thread + added) % 3;
                        loop {
                            let found = table.get(key).unwrap();
                            let next = Some(found.unwrap_or(0) + 1);
                            let swap = table.compare_and_swap(key, found, next);
                            if swap.unwrap() == Swap::Swapped {
                                break;
                            }
                        }
                    }
                });
            }
        });
        let sum: u64 = super::records_of(&table)
            .iter()
            .map(|(_, value)| value)
            .sum();
        assert_eq!(sum, THREAD_COUNT * ADDED_COUNT);
    }
}

/// Promise: a dropped table's records are gone, sessions that have it open get an error, and a new
/// table of the same name is empty.
#[test]
fn a_dropped_table_is_forgotten() {
    for pool in pools() {
        let (session, other) = (pool.session().unwrap(), pool.session().unwrap());
        let table = session.create_table("t", &remote()).unwrap();
        table.put(1, 2).unwrap();
        let open = other.open_table("t").unwrap();
        assert_eq!(open.get(1).unwrap(), Some(2));
        session.drop_table("t").unwrap();
        let started_at = Instant::now();
        loop {
            match open.get(1) {
                Err(error) if matches!(error.kind(), ErrorKind::TableDropped { .. }) => break,
                Ok(_) if started_at.elapsed() < Duration::from_secs(20) => {}
                found => panic!("{found:?}"),
            }
        }
        let table = session.create_table("t", &remote()).unwrap();
        assert_eq!(table.get(1).unwrap(), None);
    }
}

/// Promise: a session's rings are freed when it ends, and the next session's rings start empty.
#[test]
fn rings_come_back() {
    for pool in pools() {
        let session = pool.session().unwrap();
        let table = session.create_table("t", &remote()).unwrap();
        let used = pool.usage().unwrap().used_bytes;
        table.put(1, 2).unwrap();
        assert!(pool.usage().unwrap().used_bytes > used, "rings are memory");
        drop((table, session));
        for round in 0..3 {
            let session = pool.session().unwrap();
            let table = session.open_table("t").unwrap();
            for key in 0..600 {
                assert_eq!(
                    table.put(key, round).unwrap().is_some(),
                    round > 0 || key == 1
                );
            }
        }
        let started_at = Instant::now();
        while pool.usage().unwrap().used_bytes > used {
            assert!(
                started_at.elapsed() < Duration::from_secs(20),
                "they come back"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Promise: with workers, some of them asleep, every one of many concurrent calls is answered
/// within bounded time.
#[test]
fn workers_answer_everybody() {
    for worker_count in [1, 3] {
        let pool = Pool::embedded(&PoolOptions {
            size_bytes: 32 << 20,
            call_worker_count: Some(worker_count),
            ..PoolOptions::default()
        });
        let pool = pool.unwrap();
        pool.session()
            .unwrap()
            .create_table("t", &remote())
            .unwrap();
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let pool = &pool;
                scope.spawn(move || {
                    let session = pool.session().unwrap();
                    let table = session.open_table("t").unwrap();
                    for burst in 0..20_u64 {
                        let mut tasks = TaskSet::with_capacity(64);
                        let table = table.asynchronous();
                        for key in 0..64 {
                            let put = async move { table.put(thread << 32 | key, burst).await };
                            let spawned = tasks.spawn(put);
                            assert!(matches!(spawned, Ok(None | Some(Ok(_)))));
                        }
                        tasks.drain(session.completions(), |done| {
                            assert_eq!(done.unwrap(), burst.checked_sub(1));
                        });
                        // Long enough for all workers to fall asleep.
                        std::thread::sleep(Duration::from_millis(burst % 3));
                    }
                });
            }
        });
        let session = pool.session().unwrap();
        let records = super::records_of(&session.open_table("t").unwrap());
        assert_eq!(records.len(), 3 * 64);
        assert!(records.iter().all(|(_, value)| *value == 19));
    }
}

/// Promise (FABRIC-9): in shared memory a call is one round trip, which writes one segment.
#[test]
fn a_call_costs_one_round_trip() {
    for pool in super::mapped_pools(32) {
        let session = pool.session().unwrap();
        let table = session.create_table("t", &remote()).unwrap();
        for key in 0..100 {
            table.put(key, key).unwrap();
            table.get(key).unwrap();
        }
        for kind in [OperationKind::Put, OperationKind::Get] {
            let cost = session.counters(kind).cost;
            let counted = (cost.round_trips, cost.bytes_written, cost.bytes_read);
            // Messages of one segment never skip the end of the ring.
            assert_eq!(counted, (100, 100 * 128, 0), "{kind:?}");
        }
    }
}

/// Promise: a session that could not get rings because the pool was full gets them when memory is
/// free.
#[test]
fn rings_are_given_when_there_is_space() {
    let pool = small_pool();
    let session = pool.session().unwrap();
    session.create_table("t", &remote()).unwrap();
    let filled = session.create_table("u", &TableOptions::default()).unwrap();
    let is_refused = |error: &Error| matches!(error.kind(), ErrorKind::NoRings);
    let mut keys = 0..1_000_000;
    // A retraining that finds no room frees what it had claimed, after `put` has said that the
    // pool is full. Sessions that are given rings keep that memory, until one is refused.
    let mut sessions_with_rings = Vec::new();
    let refused_session = loop {
        let full = keys.find_map(|key| filled.put(key, key).err());
        assert!(matches!(full.unwrap().kind(), ErrorKind::Full(_)));
        let other = pool.session().unwrap();
        match other.open_table("t").unwrap().put(1, 1) {
            Ok(_) => sessions_with_rings.push(other),
            Err(error) if is_refused(&error) => break other,
            Err(error) => panic!("{error}"),
        }
    };
    let table = refused_session.open_table("t").unwrap();
    session.drop_table("u").unwrap();
    let started_at = Instant::now();
    while let Err(error) = table.put(1, 1) {
        assert!(is_refused(&error), "{error}");
        assert!(started_at.elapsed() < Duration::from_secs(20), "{error}");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(table.get(1).unwrap(), Some(1));
}

/// Promise: records that do not fit the node's memory are rejected, without loss.
#[test]
fn a_node_without_space_says_so() {
    let pool = small_pool();
    let session = pool.session().unwrap();
    let table = session.create_table("t", &remote()).unwrap();
    // 64 bytes per record.
    let most = SMALL_SIZE_BYTES / 64;
    let is_full = |error: &Error| matches!(error.kind(), ErrorKind::NodeFull);
    let error = table.bulk_load((0..=most).map(|key| (key, key)), |_| {});
    let error = error.unwrap_err();
    assert!(is_full(&error), "{error}");
    table
        .bulk_load((0..most).map(|key| (key, key)), |_| {})
        .unwrap();
    let error = table.put(most, 1).unwrap_err();
    assert!(is_full(&error), "{error}");
    assert_eq!(table.put(5, 6).unwrap(), Some(5), "it is there already");
    assert_eq!(table.delete(7).unwrap(), Some(7));
    assert_eq!(table.put(most, 1).unwrap(), None);
    assert_eq!(table.len_estimate().unwrap(), most);
}

/// Promise: after any operations, the table matches a map.
#[test]
fn it_is_a_map() {
    for pool in super::mapped_pools(32) {
        let session = pool.session().unwrap();
        let table = session.create_table("t", &remote()).unwrap();
        let mut model = BTreeMap::new();
        let mut state = 88_172_645_463_325_252_u64;
        for step in 0..20_000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let key = state >> 40 & 0x1FF;
            match state % 5 {
                0 => assert_eq!(table.delete(key).unwrap(), model.remove(&key)),
                1 => assert_eq!(table.get(key).unwrap(), model.get(&key).copied()),
                2 => {
                    let mut records = Vec::new();
                    table.scan_into(key, 5, &mut records).unwrap();
                    let expected = model.range(key..).take(5);
                    let expected = expected.map(|(key, value)| (*key, *value));
                    assert_eq!(records, expected.collect::<Vec<_>>());
                }
                _ => assert_eq!(table.put(key, step).unwrap(), model.insert(key, step)),
            }
        }
    }
}

/// Promise: data of cancelled loads does not use memory forever: a session has few loads at a time,
/// and later ones replace them.
#[test]
fn cut_off_loads_make_space_for_others() {
    let pool = small_pool();
    let session = pool.session().unwrap();
    let table = session.create_table("t", &remote()).unwrap();
    // A sixth of what fits the node's memory.
    let count = SMALL_SIZE_BYTES / 64 / 6;
    for _ in 0..20 {
        let records = (0..=count).map(|key| {
            assert!(key < count, "the caller's iterator fails");
            (key, key)
        });
        let load = std::panic::AssertUnwindSafe(|| table.bulk_load(records, |_| {}));
        assert!(std::panic::catch_unwind(load).is_err());
    }
    let loaded = table.bulk_load((0..count).map(|key| (key, key)), |_| {});
    assert_eq!(loaded.unwrap().record_count, count);
}

/// Promise: a load into a table that is dropped meanwhile returns an error.
#[test]
fn a_load_into_a_dropped_table_is_none() {
    for pool in super::mapped_pools(32) {
        let (session, other) = (pool.session().unwrap(), pool.session().unwrap());
        let table = session.create_table("t", &remote()).unwrap();
        let records = (0..5_000).map(|key| {
            if key == 4_000 {
                other.drop_table("t").unwrap();
            }
            (key, key)
        });
        let error = table.bulk_load(records, |_| {}).unwrap_err();
        let is_dropped = matches!(error.kind(), ErrorKind::TableDropped { .. });
        assert!(is_dropped, "{error}");
    }
}

/// Promise: a load that later ones of its session displace returns an error, and leaves nothing.
#[test]
fn a_load_that_is_pushed_out_says_so() {
    let pool = Pool::open("mem:").unwrap();
    let session = pool.session().unwrap();
    let tables: Vec<Table> = (0..5)
        .map(|number| {
            session
                .create_table(&format!("t{number}"), &remote())
                .unwrap()
        })
        .collect();
    let records = (0..2_000).map(|key| {
        if key == 1_000 {
            // Four loads are cancelled after a part was sent, so that the first one is displaced.
            for table in &tables[1..] {
                let cut = (0..1_000).map(|key| {
                    assert!(key < 999, "the caller's iterator fails");
                    (key, key)
                });
                let load = std::panic::AssertUnwindSafe(|| table.bulk_load(cut, |_| {}));
                assert!(std::panic::catch_unwind(load).is_err());
            }
        }
        (key, key)
    });
    let error = tables[0].bulk_load(records, |_| {}).unwrap_err();
    let is_given_up = matches!(error.kind(), ErrorKind::LoadDiscarded { .. });
    assert!(is_given_up, "{error}");
    assert_eq!(super::records_of(&tables[0]), []);
}
