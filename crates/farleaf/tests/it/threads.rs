//! Several threads on one table.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use farleaf::{Pool, Swap, TableOptions};

const THREAD_COUNT: u64 = 4;

/// Promise: each thread owns the keys of its residue class and always finds what it wrote last,
/// while all split the same leaves.
#[test]
fn threads_that_split_the_same_leaves_lose_nothing() {
    for options in super::each_layer() {
        for pool in super::pools(64) {
            let session = pool.session().unwrap();
            let table = session.create_table("t", &options).unwrap();
            let loaded = (0..2000).map(|key| (key * 1000, key));
            table
                .bulk_load(loaded.filter(|(key, _)| key % 5 == 0), |_| {})
                .unwrap();
            std::thread::scope(|scope| {
                for thread in 0..THREAD_COUNT {
                    let pool = &pool;
                    scope.spawn(move || work(pool, thread));
                }
            });
            let stats = table.stats().unwrap();
            assert!(
                stats.sound && stats.locked_leaves == 0,
                "{options:?}: {stats:?}"
            );
            let count = table.range(..).map(Result::unwrap).count() as u64;
            let expected: u64 = (0..2000).filter(|key| key * 1000 % 5 == 0).count() as u64;
            assert_eq!(count, expected + THREAD_COUNT * 4000, "{options:?}");
        }
    }
}

fn work(pool: &Pool, thread: u64) {
    let session = pool.session().unwrap();
    let table = session.open_table("t").unwrap();
    let key_of = |index: u64| index * 500 + 1 + thread;
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

/// Promise: a counter that all threads advance by compare-and-swap counts every success once.
#[test]
fn compare_and_swap_is_atomic() {
    for pool in super::pools(8) {
        let session = pool.session().unwrap();
        let table = session.create_table("t", &TableOptions::default()).unwrap();
        table.put(9, 0).unwrap();
        let successes = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..THREAD_COUNT {
                scope.spawn(|| {
                    let session = pool.session().unwrap();
                    let table = session.open_table("t").unwrap();
                    let mut expected = 0;
                    for _ in 0..5000 {
                        match table.compare_and_swap(9, Some(expected), Some(expected + 1)) {
                            Ok(Swap::Swapped) => {
                                successes.fetch_add(1, Ordering::Relaxed);
                                expected += 1;
                            }
                            Ok(Swap::Differs(found)) => expected = found.unwrap(),
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
        });
        assert_eq!(table.get(9).unwrap(), Some(successes.into_inner()));
    }
}

/// Promise (LEAF-9): scans beside writers return every key that is there throughout, once, in
/// order.
#[test]
fn scans_beside_writers_miss_nothing_that_stays() {
    for options in super::each_layer() {
        for pool in super::mapped_pools(64) {
            let session = pool.session().unwrap();
            let table = session.create_table("t", &options).unwrap();
            table
                .bulk_load((0..20_000).map(|key| (key * 100, key)), |_| {})
                .unwrap();
            let started = Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let session = pool.session().unwrap();
                    let table = session.open_table("t").unwrap();
                    started.wait();
                    for index in 0..60_000_u64 {
                        let key = index.wrapping_mul(7919) % 2_000_000;
                        if key % 100 != 0 {
                            table.put(key, index).unwrap();
                        }
                    }
                });
                started.wait();
                for _ in 0..10 {
                    let keys: Vec<u64> = table.range(..).map(|record| record.unwrap().0).collect();
                    assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "{options:?}");
                    let stayed = keys.iter().filter(|key| *key % 100 == 0).count();
                    assert_eq!(stayed, 20_000, "{options:?}");
                }
            });
        }
    }
}

/// Promise: many concurrent operations of one session on one thread see each other's locks and
/// wait.
#[test]
fn operations_of_one_session_interleave() {
    let pool = Pool::open("mem:").unwrap();
    let session = pool.session().unwrap();
    let table = session.create_table("t", &TableOptions::default()).unwrap();
    let table = table.asynchronous();
    let all = async {
        for key in 0..1000 {
            table.put(key, key).await.unwrap();
        }
        table.scan_into(0, 2000, &mut Vec::new()).await.unwrap();
        table.multi_get(&[1, 2, 3]).await.unwrap()
    };
    assert_eq!(session.block_on(all), [Some(1), Some(2), Some(3)]);
}
