//! Gets that complete at once: blocking calls and futures, on tables with outdated hints, and on
//! tables that are dropped meanwhile.

use std::time::{Duration, Instant};

use farleaf::{Error, ErrorKind, KindCounters, OperationKind, Pool, Session, Table, TableOptions};
use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

const LOADED_COUNT: u64 = 3000;
const DISTANCE: u64 = 1000;
/// Records put between two loaded ones: every loaded leaf splits several times.
const BETWEEN_COUNT: u64 = 4;
/// Distance between adjacent keys in the end.
const GRID: u64 = DISTANCE / (BETWEEN_COUNT + 1);

/// Returns the value of a key in the table, if it is present.
fn value(key: u64) -> Option<u64> {
    let is_there = key < LOADED_COUNT * DISTANCE && (key % DISTANCE).is_multiple_of(GRID);
    is_there.then_some(!key)
}

/// Loads a table, calls `open` to open it, and then splits its leaves through another session.
fn split_since<R>(pool: &Pool, options: &TableOptions, open: impl FnOnce() -> R) -> R {
    let writer = pool.session().unwrap();
    let table = writer.create_table("t", options).unwrap();
    let loaded = (0..LOADED_COUNT).map(|index| index * DISTANCE);
    table
        .bulk_load(loaded.map(|key| (key, !key)), |_| {})
        .unwrap();
    let opened = open();
    for step in 0..LOADED_COUNT * (BETWEEN_COUNT + 1) {
        let key = step * GRID;
        table.put(key, !key).unwrap();
    }
    let stats = table.stats().unwrap();
    assert!(stats.leaves > 2 * stats.trained_leaves, "{stats:?}");
    opened
}

/// Returns keys from 0 to somewhat beyond the last one, half of them present.
fn asked(seed: u64) -> Vec<u64> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    (0..15_000)
        .map(|_| {
            let near = random.random_range(0..(LOADED_COUNT + 2) * DISTANCE);
            if random.random() {
                near / GRID * GRID
            } else {
                near
            }
        })
        .collect()
}

struct Reader {
    session: Session,
    table: Table,
}

impl Reader {
    fn new(pool: &Pool) -> Self {
        let session = pool.session().unwrap();
        let table = session.open_table("t").unwrap();
        Self { session, table }
    }

    fn counters(&self) -> [KindCounters; 2] {
        [OperationKind::Get, OperationKind::MultiGet].map(|kind| self.session.counters(kind))
    }

    /// Gets the keys one by one, then in groups, by blocking calls if `is_blocking`, else by
    /// futures.
    fn read(&self, keys: &[u64], is_blocking: bool) -> Vec<Option<u64>> {
        let future = self.table.asynchronous();
        let get = |key: &u64| {
            if is_blocking {
                self.table.get(*key)
            } else {
                self.session.block_on(future.get(*key))
            }
        };
        let multi_get = |keys: &[u64]| {
            if is_blocking {
                self.table.multi_get(keys)
            } else {
                self.session.block_on(future.multi_get(keys))
            }
        };
        let (ones, groups) = keys.split_at(keys.len() / 3);
        let mut found: Vec<_> = ones.iter().map(|key| get(key).unwrap()).collect();
        // More than one batch of 1024, and fewer.
        let (large, small) = groups.split_at(groups.len() / 2);
        for group in large.chunks(2500).chain(small.chunks(100)) {
            found.extend(multi_get(group).unwrap());
        }
        found
    }
}

/// Promise: on a table that another session has split heavily, blocking calls and futures return
/// the same, correct results and have the same costs, including all counters, on both fabrics.
#[test]
fn blocking_gets_and_futures_answer_and_cost_the_same() {
    for options in super::leaf_options() {
        if options.layer.has_tree() {
            continue;
        }
        let mut of_fabrics = Vec::new();
        for pool in super::mapped_pools(64) {
            let open = || (Reader::new(&pool), Reader::new(&pool));
            let (blocking, futures) = split_since(&pool, &options, open);
            let keys = asked(options.slots);
            let expected: Vec<_> = keys.iter().map(|key| value(*key)).collect();
            assert!(blocking.read(&keys, true) == expected, "{options:?}");
            assert!(futures.read(&keys, false) == expected, "{options:?}");
            let counters = blocking.counters();
            assert_eq!(counters, futures.counters(), "{options:?}");
            let [gets, multi_gets] = counters;
            assert_eq!(gets.operations, keys.len() as u64 / 3);
            let extra = gets.cost.round_trips - gets.operations;
            assert!(extra > 500, "hints were stale, {options:?}: {gets:?}");
            assert!(multi_gets.cost.leaves_read > 10_000, "{multi_gets:?}");
            of_fabrics.push(counters);
        }
        assert_eq!(of_fabrics[0], of_fabrics[1], "{options:?}, mem and shm");
    }
}

/// Promise: a session whose hints are right needs one round trip and one leaf per get, and one
/// round trip per 1024 keys.
#[test]
fn right_hints_cost_one_leaf_each() {
    for pool in super::pools(64) {
        let session = pool.session().unwrap();
        let table = session.create_table("t", &TableOptions::default()).unwrap();
        // Evenly spaced keys make all hints right.
        let records = (0..20_000).map(|key| (key * 8, key));
        table.bulk_load(records, |_| {}).unwrap();
        let keys: Vec<u64> = (0..20_000).map(|key| key * 8).collect();
        let reader = Reader::new(&pool);
        for key in &keys {
            reader.table.get(*key).unwrap();
        }
        reader.table.multi_get(&keys).unwrap();
        let [gets, multi_gets] = reader.counters();
        assert_eq!(
            (gets.operations, gets.one_leaf_operations),
            (20_000, 20_000)
        );
        let [get, multi_get] = [gets.cost, multi_gets.cost];
        assert_eq!((get.round_trips, get.leaves_read), (20_000, 20_000));
        assert_eq!((get.bytes_read, get.bytes_written), (20_000 * 160, 0));
        assert_eq!((get.verbs, get.atomics, get.retries), (20_000, 0, 0));
        assert_eq!((multi_get.round_trips, multi_get.leaves_read), (20, 20_000));
        assert_eq!(
            (multi_gets.operations, multi_get.bytes_read),
            (1, get.bytes_read)
        );
    }
}

/// Promise: a session that only gets learns by every kind of get that its table was dropped. Until
/// then it reads the table's records and nothing else.
#[test]
fn readers_are_told_that_the_table_was_dropped() {
    type Read = fn(&Reader, &[u64]) -> Result<Vec<Option<u64>>, Error>;
    let kinds: [Read; 4] = [
        |it, keys| keys.iter().map(|key| it.table.get(*key)).collect(),
        |it, keys| it.table.multi_get(keys),
        |it, keys| {
            let table = it.table.asynchronous();
            let gets = keys.iter().map(|key| it.session.block_on(table.get(*key)));
            gets.collect()
        },
        |it, keys| it.session.block_on(it.table.asynchronous().multi_get(keys)),
    ];
    for options in super::leaf_options() {
        for pool in super::mapped_pools(64) {
            let open = || kinds.map(|kind| (Reader::new(&pool), kind));
            let readers = split_since(&pool, &options, open);
            let dropper = pool.session().unwrap();
            dropper.drop_table("t").unwrap();
            for (index, (reader, read)) in readers.iter().enumerate() {
                let mut groups = asked(index as u64).into_iter().cycle();
                let started = Instant::now();
                let error = loop {
                    let keys: Vec<u64> = groups.by_ref().take(64).collect();
                    let expected: Vec<_> = keys.iter().map(|key| value(*key)).collect();
                    match read(reader, &keys) {
                        Ok(found) => assert_eq!(found, expected, "{options:?}"),
                        Err(error) => break error,
                    }
                    assert!(started.elapsed() < Duration::from_secs(20), "nobody tells");
                };
                let assert_dropped = |error: &Error| {
                    assert!(
                        matches!(error.kind(), ErrorKind::TableDropped { name } if name == "t"),
                        "{error}"
                    );
                };
                assert_dropped(&error);
                assert_dropped(&read(reader, &[0]).unwrap_err());
            }
        }
    }
}
