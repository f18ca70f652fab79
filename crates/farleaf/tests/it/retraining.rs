//! Tables that are retrained while in use: no record is lost, and gets return to one leaf each.

use std::cell::Cell;
use std::time::{Duration, Instant};

use farleaf::{
    ErrorKind, LayerKind, OperationKind, Pool, Session, Table, TableOptions, TableStats,
};

use super::{mapped_retraining_pools, retraining_pools, trained_options};

/// The node never takes longer, except on a very busy host.
const TIME_MAX: Duration = Duration::from_mins(1);

fn scattered(index: u64) -> u64 {
    index.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Waits until a new session finds that the table meets a condition.
pub(super) fn eventually(
    pool: &Pool,
    what: &str,
    is_so: impl Fn(&Session, &Table, &TableStats) -> bool,
) {
    let started_at = Instant::now();
    loop {
        let session = pool.session().unwrap();
        let table = session.open_table("t").unwrap();
        let stats = table.stats().unwrap();
        assert!(stats.sound, "{what}: {stats:?}");
        if is_so(&session, &table, &stats) {
            return;
        }
        let report = pool.retraining().unwrap();
        assert!(
            started_at.elapsed() < TIME_MAX,
            "{what}: {stats:?} {report:?}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the round trips per get of present keys.
fn round_trips(session: &Session, table: &Table, keys: impl Iterator<Item = u64>) -> f64 {
    let before = session.counters(OperationKind::Get);
    for key in keys {
        assert_eq!(table.get(key).unwrap(), Some(!key), "key {key}");
    }
    let after = session.counters(OperationKind::Get);
    let count = after.operations - before.operations;
    (after.cost.round_trips - before.cost.round_trips) as f64 / count as f64
}

/// Puts keys in this order into an empty table, and checks that gets return to one round trip.
fn grow(pool: &Pool, options: &TableOptions, keys: impl Iterator<Item = u64> + Clone) {
    let session = pool.session().unwrap();
    let table = session.create_table("t", options).unwrap();
    for key in keys.clone() {
        assert_eq!(table.put(key, !key).unwrap(), None);
    }
    eventually(pool, "one round trip per get", |session, table, _| {
        round_trips(session, table, keys.clone()) < 1.05
    });
    let mut sorted: Vec<u64> = keys.collect();
    sorted.sort_unstable();
    let records = table.range(..).map(Result::unwrap);
    assert!(records.eq(sorted.iter().map(|key| (*key, !*key))));
    eventually(pool, "retrained", |session, _, _| {
        session.pool().retraining().unwrap().tally.retraining_count > 0
    });
}

/// Promise: tables grow from empty by random, ascending and descending keys, with every kind of
/// leaf and layer.
#[test]
fn tables_grow_from_empty_in_any_order() {
    const COUNT: u64 = 6000;
    for options in trained_options() {
        for pool in mapped_retraining_pools(32) {
            grow(&pool, &options, (0..COUNT).map(scattered));
        }
        for pool in mapped_retraining_pools(32) {
            grow(&pool, &options, (0..COUNT).map(|key| key * 77));
        }
        for pool in mapped_retraining_pools(32) {
            grow(&pool, &options, (0..COUNT).rev().map(|key| key * 77));
        }
    }
}

/// Promise: after a table has grown and retraining has ended, a short scan reads few leaves.
#[test]
fn short_scans_read_few_leaves_at_rest() {
    for layer in [LayerKind::Learned, LayerKind::Rolex] {
        let options = TableOptions {
            layer,
            ..TableOptions::default()
        };
        for pool in mapped_retraining_pools(64) {
            let session = pool.session().unwrap();
            let table = session.create_table("t", &options).unwrap();
            for index in 0..50_000 {
                table.put(scattered(index), index).unwrap();
            }
            let what = format!("{layer}: few leaves for ten records");
            eventually(&pool, &what, |session, table, _| {
                let mut records = Vec::new();
                for step in 0..100 {
                    table.scan_into(step << 57, 10, &mut records).unwrap();
                }
                let scans = session.counters(OperationKind::Scan);
                scans.cost.leaves_read / scans.operations <= 8
            });
        }
    }
}

/// Promise: ascending or descending keys make full leaves.
#[test]
fn keys_in_order_make_full_leaves() {
    for is_descending in [false, true] {
        for pool in retraining_pools(32) {
            let session = pool.session().unwrap();
            let table = session.create_table("t", &TableOptions::default()).unwrap();
            for index in 0..20_000 {
                let index = if is_descending { 20_000 - index } else { index };
                table.put(index * 9, index).unwrap();
            }
            let fill = table.stats().unwrap().fill;
            assert!(fill > 0.9, "{fill}, descending: {is_descending}");
        }
    }
}

/// Promise: sessions that insert ascending keys together are seldom in order, and a key that
/// arrives after its successor does not halve a full leaf. (With two threads and no gets between, a
/// moving window had half-full leaves, and took more than twice its memory.)
#[test]
fn keys_that_come_a_little_late_make_full_leaves_too() {
    for pool in retraining_pools(32) {
        let session = pool.session().unwrap();
        let table = session.create_table("t", &TableOptions::default()).unwrap();
        for pair in 0..10_000 {
            for index in [2 * pair + 1, 2 * pair] {
                table.put(index * 9, index).unwrap();
            }
        }
        let fill = table.stats().unwrap().fill;
        assert!(fill > 0.9, "{fill}");
    }
}

/// Promise: after descending keys have been retrained, the next ones are put where they are
/// predicted: a line from 0 to the first existing key would lead them to another leaf.
#[test]
fn keys_below_all_others_are_put_without_a_detour() {
    const FIRST: u64 = u64::MAX / 2;
    for pool in retraining_pools(32) {
        let session = pool.session().unwrap();
        let table = session.create_table("t", &TableOptions::default()).unwrap();
        for index in 0..20_000 {
            table.put(FIRST - index * 9, index).unwrap();
        }
        // One leaf that was split after the last retraining does not cause another one; ten leaves
        // do, after which the table settles.
        let (next, grown_at) = (Cell::new(20_000), Cell::new(None));
        eventually(&pool, "every leaf is trained", |_, table, stats| {
            let is_trained = stats.leaves == stats.trained_leaves;
            let rests = |at: Instant| at.elapsed() < Duration::from_secs(15);
            if !is_trained && !grown_at.get().is_some_and(rests) {
                for index in next.get()..next.get() + 80 {
                    table.put(FIRST - index * 9, index).unwrap();
                }
                next.set(next.get() + 80);
                grown_at.set(Some(Instant::now()));
            }
            is_trained
        });
        let session = pool.session().unwrap();
        let table = session.open_table("t").unwrap();
        for index in next.get()..next.get() + 40 {
            table.put(FIRST - index * 9, index).unwrap();
        }
        let puts = session.counters(OperationKind::Put);
        let (round_trips, hints) = (puts.cost.round_trips, table.hint_counters());
        assert!(round_trips < 40 * 2 + 20, "{puts:?} {hints:?}");
        assert_eq!((hints.stale_count, hints.left_count), (0, 0), "{hints:?}");
    }
}

/// Promise: leaves that deletes leave underfull are merged, and their memory is freed.
#[test]
fn deleted_keys_give_their_memory_back() {
    const COUNT: u64 = 60_000;
    for pool in retraining_pools(64) {
        let session = pool.session().unwrap();
        let table = session.create_table("t", &TableOptions::default()).unwrap();
        table
            .bulk_load((0..COUNT).map(|key| (key * 1000, key)), |_| {})
            .unwrap();
        let before = table.stats().unwrap();
        for key in (0..COUNT).filter(|key| key % 10 != 0) {
            assert_eq!(table.delete(key * 1000).unwrap(), Some(key));
        }
        eventually(&pool, "few leaves and little memory", |_, _, stats| {
            stats.leaves * 10 < before.leaves * 3 && stats.memory_bytes * 2 < before.memory_bytes
        });
        let left = (0..COUNT).step_by(10).map(|key| (key * 1000, key));
        assert!(table.range(..).map(Result::unwrap).eq(left));
    }
}

/// Promise: small full pools have free memory again after most records are deleted, at least three
/// of four. Retraining takes as much memory as there is, and what it frees is reused however often
/// it has failed before. All pools keep every record. (For pools without free memory see *A full
/// pool* in docs/explanation/retraining.md.)
#[test]
fn full_pools_have_space_again() {
    let pools: Vec<_> = [6, 6]
        .into_iter()
        .flat_map(mapped_retraining_pools)
        .collect();
    let filled: Vec<_> = pools.iter().map(fill_and_delete).collect();
    let has_space =
        |(pool, (_, used)): (&Pool, &(_, u64))| pool.usage().unwrap().used_bytes * 2 < *used;
    let started_at = Instant::now();
    while pools
        .iter()
        .zip(&filled)
        .filter(|full| has_space(*full))
        .count()
        + 1
        < pools.len()
    {
        let reports: Vec<_> = pools
            .iter()
            .map(|pool| pool.retraining().unwrap())
            .collect();
        assert!(
            started_at.elapsed() < TIME_MAX,
            "half of the pool is free: {reports:?}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    for (pool, (left, _)) in pools.iter().zip(filled) {
        let table = pool.session().unwrap().open_table("t").unwrap();
        let records = table.range(..).map(Result::unwrap);
        assert!(records.eq(left.into_iter().map(|key| (key, !key))));
    }
}

/// Fills a pool with a table and deletes nine tenths of it. Returns the remaining keys, in order,
/// and the bytes that were in use.
fn fill_and_delete(pool: &Pool) -> (Vec<u64>, u64) {
    let session = pool.session().unwrap();
    let table = session.create_table("t", &TableOptions::default()).unwrap();
    let mut keys = Vec::new();
    for index in 0.. {
        let key = scattered(index);
        match table.insert(key, !key) {
            Ok(_) => keys.push(key),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Full(_)), "{error}");
                break;
            }
        }
    }
    let used = pool.usage().unwrap().used_bytes;
    let mut left = keys.split_off(keys.len() / 10 * 9);
    for key in keys {
        assert_eq!(table.delete(key).unwrap(), Some(!key));
    }
    left.sort_unstable();
    (left, used)
}

/// Promise: a scan that pauses between two records continues where it was, even if the leaf that it
/// would have read next has been moved and its memory reused.
#[test]
fn a_scan_goes_on_after_its_leaves_were_moved() {
    const COUNT: u64 = 30_000;
    for pool in mapped_retraining_pools(64) {
        let (session, other) = (pool.session().unwrap(), pool.session().unwrap());
        let table = session.create_table("t", &TableOptions::default()).unwrap();
        let records = (0..COUNT).map(|key| (key * 1000, key));
        table.bulk_load(records.clone(), |_| {}).unwrap();
        let writing = other.open_table("t").unwrap();
        let mut scan = table.range(..);
        let mut found = Vec::new();
        let mut step = 0;
        while found.len() < COUNT as usize / 2 {
            found.extend(scan.by_ref().take(1500).map(Result::unwrap));
            step += 1;
            let before = pool.retraining().unwrap().tally.reclaimed_bytes;
            for key in 0..COUNT {
                writing.put(key * 1000 + step, u64::MAX).unwrap();
            }
            for key in 0..COUNT {
                assert_eq!(writing.delete(key * 1000 + step).unwrap(), Some(u64::MAX));
            }
            eventually(&pool, "memory is reused", |session, _, _| {
                let tally = session.pool().retraining().unwrap().tally;
                tally.reclaimed_bytes > before + (1 << 20)
            });
        }
        found.extend(scan.map(Result::unwrap));
        assert!(found.into_iter().eq(records));
    }
}

/// Promise: a moving window of keys does not take more and more memory.
#[test]
fn a_moving_window_does_not_grow() {
    const WINDOW: u64 = 20_000;
    for pool in mapped_retraining_pools(64) {
        let session = pool.session().unwrap();
        let table = session.create_table("t", &TableOptions::default()).unwrap();
        table
            .bulk_load((0..WINDOW).map(|key| (key * 10, key)), |_| {})
            .unwrap();
        let before = table.memory_bytes().unwrap();
        for key in WINDOW..8 * WINDOW {
            assert_eq!(table.put(key * 10, key).unwrap(), None);
            let gone = key - WINDOW;
            assert_eq!(table.delete(gone * 10).unwrap(), Some(gone));
        }
        eventually(&pool, "not more memory", |_, _, stats| {
            stats.memory_bytes <= 2 * before
        });
        let left = (7 * WINDOW..8 * WINDOW).map(|key| (key * 10, key));
        assert!(table.range(..).map(Result::unwrap).eq(left));
    }
}

/// Promise: several threads that split, read and delete in the same leaves while these are moved
/// see all their own writes.
#[test]
fn threads_are_not_disturbed() {
    const THREAD_COUNT: u64 = 3;
    for options in trained_options() {
        for pool in retraining_pools(64) {
            let session = pool.session().unwrap();
            let table = session.create_table("t", &options).unwrap();
            std::thread::scope(|scope| {
                for thread in 0..THREAD_COUNT {
                    let pool = &pool;
                    scope.spawn(move || work(pool, thread));
                }
            });
            eventually(&pool, "no lock is held", |_, _, stats| {
                stats.records == THREAD_COUNT * 4000 && stats.locked_leaves == 0
            });
            let count = table.range(..).map(Result::unwrap).count() as u64;
            assert_eq!(count, THREAD_COUNT * 4000, "{options:?}");
        }
    }
}

fn work(pool: &Pool, thread: u64) {
    let session = pool.session().unwrap();
    let table = session.open_table("t").unwrap();
    let key_of = |index: u64| scattered(index) / 4 * 4 + thread;
    for index in 0..4000 {
        assert_eq!(table.put(key_of(index), index).unwrap(), None);
        let earlier = index / 2;
        assert_eq!(table.get(key_of(earlier)).unwrap(), Some(earlier));
        if index % 7 == 0 {
            assert_eq!(table.delete(key_of(earlier)).unwrap(), Some(earlier));
            assert_eq!(table.get(key_of(earlier)).unwrap(), None);
            assert_eq!(table.put(key_of(earlier), earlier).unwrap(), None);
        }
    }
}

/// Promise: a node without retraining retrains nothing, and too many threads are an error.
#[test]
fn retraining_can_be_switched_off() {
    for pool in super::pools(32) {
        let session = pool.session().unwrap();
        let table = session.create_table("t", &TableOptions::default()).unwrap();
        for index in 0..5000 {
            table.put(scattered(index), index).unwrap();
        }
        assert_eq!(pool.retraining().unwrap().tally.retraining_count, 0);
        assert_eq!(table.stats().unwrap().trained_leaves, 1);
    }
    let error = farleaf::retrain_policy(2).unwrap_err().to_string();
    assert!(
        error.contains("retrain-threads") && error.contains('2'),
        "{error}"
    );
}
