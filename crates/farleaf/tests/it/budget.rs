//! Sessions with a metadata budget: slower, never wrong, never above the budget.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use farleaf::{
    ErrorKind, LayerKind, OperationKind, Pool, PoolOptions, Session, SessionOptions, Table,
    TableOptions, TableStats,
};
use proptest::prelude::*;
use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use super::model::{apply, steps_on};

/// Number of keys of the loaded tables.
const COUNT: u64 = 60_000;

/// Returns pseudorandom keys without duplicates: each step is invertible (the mixer of
/// `SplitMix64`).
fn key_of(index: u64) -> u64 {
    let mut key = index.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    key = (key ^ (key >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    key = (key ^ (key >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    key ^ (key >> 31)
}

/// Creates a table whose directory has many pages of both kinds.
fn loaded(pool: &Pool) -> Session {
    loaded_with(pool, 2.0)
}

fn loaded_with(pool: &Pool, epsilon_keys: f64) -> Session {
    let session = pool.session().unwrap();
    let options = TableOptions {
        epsilon_keys,
        ..TableOptions::default()
    };
    let table = session.create_table("t", &options).unwrap();
    let mut keys: Vec<u64> = (0..COUNT).map(key_of).collect();
    keys.sort_unstable();
    let records = keys.iter().map(|key| (*key, !key));
    table.bulk_load(records, |_| {}).unwrap();
    session
}

/// Returns a pool without retraining, so that costs are predictable.
fn pool() -> Pool {
    pool_with(0)
}

fn pool_with(retrain_thread_count: u32) -> Pool {
    let options = PoolOptions {
        size_bytes: 128 << 20,
        retrain_thread_count,
        ..PoolOptions::default()
    };
    Pool::embedded(&options).unwrap()
}

fn budgeted(pool: &Pool, bytes: u64) -> (Session, Table) {
    let options = SessionOptions {
        metadata_budget_bytes: Some(bytes),
        ..SessionOptions::default()
    };
    let session = pool.session_with(&options).unwrap();
    let table = session.open_table("t").unwrap();
    (session, table)
}

fn full_bytes(session: &Session) -> u64 {
    session.open_table("t").unwrap().metadata_bytes()
}

/// Returns budgets from the smallest to more than the whole metadata.
fn budgets(full: u64) -> [u64; 7] {
    let part = |percent: u64| (full * percent / 100).max(1024);
    [
        1024,
        part(5),
        part(20),
        part(40),
        part(70),
        part(100),
        full * 2,
    ]
}

/// Promise: gets, multi-gets and scans of a loaded table return the same under any budget, and the
/// session never holds more than its budget.
#[test]
fn reads_are_right_under_any_budget_which_is_kept() {
    let pool = pool();
    let session = loaded(&pool);
    let full = full_bytes(&session);
    let all: BTreeMap<u64, u64> = (0..COUNT)
        .map(|index| (key_of(index), !key_of(index)))
        .collect();
    for budget in budgets(full) {
        let (_session, table) = budgeted(&pool, budget);
        let held = || {
            let held = table.metadata_bytes();
            assert!(held <= budget, "{held} bytes of {budget}");
        };
        let mut random = Xoshiro256PlusPlus::seed_from_u64(budget);
        for _ in 0..3_000 {
            let key = key_of(random.random_range(0..COUNT)).wrapping_add(random.random_range(0..2));
            assert_eq!(table.get(key).unwrap(), all.get(&key).copied());
            held();
        }
        for count in [1, 30, 3_000] {
            let keys: Vec<u64> = (0..count)
                .map(|_| key_of(random.random_range(0..COUNT * 2)))
                .collect();
            let expected: Vec<_> = keys.iter().map(|key| all.get(key).copied()).collect();
            assert_eq!(table.multi_get(&keys).unwrap(), expected);
            held();
        }
        for _ in 0..30 {
            let (from, limit) = (random.random(), random.random_range(1..2_000));
            let mut records = Vec::new();
            table.scan_into(from, limit, &mut records).unwrap();
            let expected = all
                .range(from..)
                .take(limit)
                .map(|(key, value)| (*key, *value));
            assert!(
                records.iter().copied().eq(expected),
                "a scan of {limit} from {from}"
            );
            held();
            let down = all.range(..=from).rev().take(limit.min(50));
            let down: Vec<_> = down.map(|(key, value)| (*key, *value)).collect();
            let mut records = Vec::new();
            let scan = table.scan_reverse_into(from, limit.min(50), &mut records);
            scan.unwrap();
            assert_eq!(records, down, "a scan of {limit} from {from} down");
            held();
        }
        assert!(table.range(..).map(Result::unwrap).eq(all.clone()));
        held();
    }
}

/// Returns the round trips and leaves of repeated gets of the same key.
fn cost_of_gets(session: &Session, table: &Table, key: u64) -> Vec<(u64, u64)> {
    let gets = (0..4).map(|_| {
        table.get(key).unwrap();
        let cost = session.last_cost();
        (cost.round_trips, cost.leaves_read)
    });
    gets.collect()
}

/// Promise: a get without cached models takes one more round trip, one without residuals none, but
/// more leaves; with both cached it reads one leaf. A write without both takes two more round
/// trips.
#[test]
fn what_is_missing_costs_what_is_promised() {
    let pool = pool();
    let full = full_bytes(&loaded_with(&pool, 16.0));
    let key = key_of(COUNT / 2);
    let (session, table) = budgeted(&pool, full * 2);
    let costs = cost_of_gets(&session, &table, key);
    assert_eq!(costs[0].0, 2, "{costs:?}");
    assert!(costs[0].1 > 1, "{costs:?}");
    assert_eq!(costs[1..], [(1, 1); 3]);
    let (session, table) = budgeted(&pool, full * 2);
    table.put(key, 1).unwrap();
    assert_eq!(session.last_cost().round_trips, 4);
    assert_eq!(session.last_cost().leaves_read, 1);
    table.put(key, !key).unwrap();
    assert_eq!(session.last_cost().round_trips, 2);
    // With space for residuals but not for models, each get fetches the models.
    let (session, table) = budgeted(&pool, 1024);
    let costs = cost_of_gets(&session, &table, key);
    assert!(costs[0].0 == 2 && costs[0].1 > 1, "{costs:?}");
    assert_eq!(costs[1..], [(2, 1); 3]);
}

/// Promise: with a budget for everything, every page is fetched once. Then every get takes one
/// round trip and nearly always one leaf, as without a budget.
#[test]
fn a_large_budget_ends_as_no_budget() {
    let pool = pool();
    let full = full_bytes(&loaded(&pool));
    let (session, table) = budgeted(&pool, full * 2);
    let get_all = || {
        let before = session.counters(OperationKind::Get).cost;
        for index in 0..COUNT {
            assert_eq!(table.get(key_of(index)).unwrap(), Some(!key_of(index)));
        }
        let after = session.counters(OperationKind::Get).cost;
        (
            after.round_trips - before.round_trips,
            after.leaves_read - before.leaves_read,
        )
    };
    get_all();
    let fetched = table.partial_counts().unwrap();
    let (round_trips, leaves) = get_all();
    assert!(
        round_trips * 1000 <= COUNT * 1002,
        "{round_trips} round trips"
    );
    assert!(leaves * 1000 <= COUNT * 1002, "{leaves} leaves");
    assert_eq!(table.partial_counts().unwrap(), fetched);
    assert_eq!(fetched.pages_evicted, 0);
}

/// Promise: a larger budget does not cost more bytes or round trips, except by chance.
#[test]
fn more_memory_makes_gets_cheaper() {
    let pool = pool();
    let full = full_bytes(&loaded(&pool));
    let mut last = (f64::INFINITY, f64::INFINITY);
    for budget in budgets(full) {
        let (session, table) = budgeted(&pool, budget);
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        for _ in 0..40_000 {
            table.get(key_of(random.random_range(0..COUNT))).unwrap();
        }
        let cost = session.counters(OperationKind::Get).cost;
        let now = (cost.round_trips as f64, cost.bytes_read as f64);
        assert!(
            now.0 <= last.0 * 1.02 && now.1 <= last.1 * 1.02,
            "{budget}: {last:?}, {now:?}"
        );
        last = now;
    }
}

/// Promise: sessions with and without budgets grow one table concurrently while it is retrained,
/// and each finds the records of all.
#[test]
fn budgets_hold_while_others_grow_the_table() {
    let pool = pool_with(1);
    let full = full_bytes(&loaded(&pool));
    let budgets = [Some(1024), Some(full / 20), Some(full / 3), None];
    std::thread::scope(|scope| {
        for (number, budget) in (0..).zip(budgets) {
            let pool = pool.clone();
            scope.spawn(move || {
                let options = SessionOptions {
                    metadata_budget_bytes: budget,
                    ..SessionOptions::default()
                };
                let session = pool.session_with(&options).unwrap();
                let table = session.open_table("t").unwrap();
                for index in 0..6_000_u64 {
                    // Dense around some of the loaded keys, so that leaves split repeatedly.
                    let key = key_of(index % 40 * 1_000).wrapping_add(index * 4 + number + 1);
                    assert_eq!(table.put(key, index).unwrap(), None);
                    assert_eq!(table.get(key).unwrap(), Some(index));
                    let held = table.metadata_bytes();
                    assert!(
                        budget.is_none_or(|budget| held <= budget),
                        "{held} of {budget:?}"
                    );
                }
            });
        }
    });
    for budget in [1024, full / 20, full * 4] {
        let (_session, table) = budgeted(&pool, budget);
        for number in 0..4 {
            for index in 0..6_000 {
                let key = key_of(index % 40 * 1_000).wrapping_add(index * 4 + number + 1);
                assert_eq!(table.get(key).unwrap(), Some(index));
            }
        }
        assert!(table.metadata_bytes() <= budget);
        let stats = settled_stats(&table);
        assert!(stats.sound && stats.locked_leaves == 0, "{stats:?}");
        assert_eq!(stats.records, COUNT + 4 * 6_000);
    }
}

/// Returns the table's statistics when the memory node, which may still be moving leaves, holds
/// none of their locks. Locks that stay remain visible.
fn settled_stats(table: &Table) -> TableStats {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let stats = table.stats().unwrap();
        if stats.locked_leaves == 0 || Instant::now() > deadline {
            return stats;
        }
    }
}

/// Promise: sessions with and without a budget return the same statistics.
#[test]
fn stats_and_estimates_are_the_same() {
    let pool = pool();
    let session = loaded(&pool);
    let full = session.open_table("t").unwrap();
    for index in 0..5_000 {
        full.put(key_of(index) ^ 1, 0).unwrap();
    }
    let mut expected = full.stats().unwrap();
    for budget in [1024, 3_000, expected.metadata_bytes * 2] {
        let (_session, table) = budgeted(&pool, budget);
        let stats = table.stats().unwrap();
        expected.metadata_bytes = stats.metadata_bytes;
        assert_eq!(stats, expected);
        assert_eq!(table.len_estimate().unwrap(), full.len_estimate().unwrap());
    }
}

/// Promise: a session that has an empty table open takes the new root when another session loads
/// it.
#[test]
fn a_load_by_another_session_is_followed() {
    let pool = pool();
    let other = pool.session().unwrap();
    let loader = other.create_table("t", &TableOptions::default()).unwrap();
    let (_session, table) = budgeted(&pool, 2_000);
    assert_eq!(table.get(7).unwrap(), None);
    loader
        .bulk_load((0..COUNT).map(|key| (key * 9, key)), |_| {})
        .unwrap();
    for key in 0..COUNT {
        assert_eq!(table.get(key * 9).unwrap(), Some(key));
    }
    assert!(table.metadata_bytes() <= 2_000);
}

/// Promise: a budget below the minimum, or for a search layer that needs all its metadata, is
/// rejected, and the error gives the allowed values.
#[test]
fn budgets_that_cannot_be_kept_are_refused() {
    let pool = pool();
    let session = pool.session().unwrap();
    let rolex = TableOptions {
        layer: LayerKind::Rolex,
        ..TableOptions::default()
    };
    session.create_table("rolex", &rolex).unwrap();
    session
        .create_table("learned", &TableOptions::default())
        .unwrap();
    for (bytes, name) in [(1023, "learned"), (0, "learned"), (1 << 30, "rolex")] {
        let options = SessionOptions {
            metadata_budget_bytes: Some(bytes),
            ..SessionOptions::default()
        };
        let session = pool.session_with(&options).unwrap();
        let error = session.open_table(name).unwrap_err();
        let is_named = matches!(
            error.kind(),
            ErrorKind::BadOption { option: "metadata budget", given, .. }
                if given.contains(&bytes.to_string())
        );
        assert!(is_named, "{error}");
    }
}

/// Returns keys around the loaded ones of the model test: hits, near misses, and the smallest and
/// largest keys.
fn key() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => (0_u64..9_000).prop_map(|index| index * 1_000_003),
        2 => (0_u64..9_000, 0_u64..4).prop_map(|(index, near)| index * 1_000_003 + near),
        1 => (0_u64..20).prop_map(|offset| u64::MAX - offset),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Promise: with any budget and after any operations, a table has the contents of a map.
    #[test]
    fn a_table_is_a_map_under_any_budget(
        budget in prop_oneof![1024_u64..1500, 1024_u64..8_000, 4_000_u64..60_000],
        epsilon in prop_oneof![Just(0.5), Just(2.0), Just(16.0), Just(600.0)],
        slots in prop_oneof![Just(8_u64), Just(16)],
        share in 1_u64..9,
        steps in proptest::collection::vec(steps_on(key), 1..500),
    ) {
        let pool = Pool::open("mem:").unwrap();
        let options = TableOptions { slots, epsilon_keys: epsilon, ..TableOptions::default() };
        let owner = pool.session().unwrap();
        let table = owner.create_table("t", &options).unwrap();
        let mut model: BTreeMap<u64, u64> =
            (0..9_000)
                .filter(|index| index % 9 < share)
                .map(|index| (index * 1_000_003, index))
                .collect();
        table.bulk_load(model.clone(), |_| {}).unwrap();
        let (_session, table) = budgeted(&pool, budget);
        for step in steps {
            apply(&table, &mut model, step);
            prop_assert!(table.metadata_bytes() <= budget);
        }
        let all: Vec<_> = table.range(..).map(Result::unwrap).collect();
        prop_assert_eq!(all, model.into_iter().collect::<Vec<_>>());
        let stats = table.stats().unwrap();
        prop_assert!(stats.sound && stats.locked_leaves == 0, "{:?}", stats);
    }
}
