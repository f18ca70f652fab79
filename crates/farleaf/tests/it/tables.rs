//! Creating, opening and dropping tables of a pool; and full pools.

use std::pin::pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use farleaf::{EmbeddedFabric, Error, ErrorKind, LayerKind, Pool, PoolOptions, TableOptions};
use farleaf_executor::block_on;
use farleaf_pool::PoolError;
use farleaf_pool::catalog::TABLE_COUNT_MAX;

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "{what} did not happen"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn tables_are_made_found_listed_and_dropped() {
    for pool in super::pools(16) {
        let session = pool.session().unwrap();
        for options in super::all_options() {
            let name = format!("{} {}", options.layer, options.slots);
            let table = session.create_table(&name, &options).unwrap();
            assert_eq!(table.info().options, options);
            table.put(1, options.slots).unwrap();
        }
        let other = pool.session().unwrap();
        let tables = other.list_tables().unwrap();
        assert_eq!(tables.len(), super::all_options().len());
        for options in super::all_options() {
            let table = other
                .open_table(&format!("{} {}", options.layer, options.slots))
                .unwrap();
            assert_eq!(table.get(1).unwrap(), Some(options.slots));
        }
        other.drop_table("rolex 16").unwrap();
        let left = super::all_options().len() - 1;
        assert_eq!(session.list_tables().unwrap().len(), left);
        let error = session.open_table("rolex 16").unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::TableNotFound { .. }),
            "{error}"
        );
    }
}

#[test]
fn a_name_is_taken_once_and_the_difference_is_told() {
    let pool = Pool::open("mem:").unwrap();
    let session = pool.session().unwrap();
    session.create_table("t", &TableOptions::default()).unwrap();
    let same = session
        .create_table("t", &TableOptions::default())
        .unwrap_err();
    assert!(same.to_string().contains("same options"), "{same}");
    let options = TableOptions {
        slots: 16,
        layer: LayerKind::Rolex,
        ..TableOptions::default()
    };
    let differs = session.create_table("t", &options).unwrap_err().to_string();
    assert!(
        differs.contains("slots 8 instead of the requested 16") && differs.contains("learned"),
        "{differs}"
    );
}

#[test]
fn absurd_options_and_names_are_refused() {
    let pool = Pool::open("mem:").unwrap();
    let session = pool.session().unwrap();
    let good = TableOptions::default();
    for options in [
        TableOptions { slots: 0, ..good },
        TableOptions { slots: 9, ..good },
        TableOptions {
            fill_percent: 24,
            ..good
        },
        TableOptions {
            fill_percent: 101,
            ..good
        },
        TableOptions {
            epsilon_keys: f64::NAN,
            ..good
        },
        TableOptions {
            epsilon_keys: 0.0,
            ..good
        },
        TableOptions {
            epsilon_keys: 1e9,
            ..good
        },
    ] {
        let error = session.create_table("t", &options).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::BadOption { .. }),
            "{error}"
        );
    }
    for name in ["", &"x".repeat(65), "a\nb"] {
        let error = session.create_table(name, &good).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::BadOption { .. }),
            "{error}"
        );
    }
    session.create_table(&"ü".repeat(32), &good).unwrap();
}

#[test]
fn addresses_that_are_none_are_refused() {
    for address in [
        "", "x", "mem", "mem:1", "tcp:host", "shm:", "shm:../x", "shm:a b",
    ] {
        let error = Pool::open(address).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::BadAddress { .. }),
            "{address}: {error}"
        );
    }
    let error = Pool::open("shm:nobody-serves-this").unwrap_err();
    assert!(error.to_string().contains("farleaf serve"), "{error}");
}

/// Promise (LEAF-7): sessions that have a dropped table open get an error, and its memory is soon
/// free, even if one of these sessions is idle.
#[test]
fn a_dropped_table_is_told_of_and_its_memory_comes_back() {
    for pool in super::pools(64) {
        let (session, idle) = (pool.session().unwrap(), pool.session().unwrap());
        let table = session.create_table("t", &TableOptions::default()).unwrap();
        let before = pool.usage().unwrap().used_bytes;
        table
            .bulk_load((0..100_000).map(|key| (key * 10, key)), |_| {})
            .unwrap();
        for key in 0..100_000 {
            table.put(key * 10 + 1, key).unwrap();
        }
        let idle_table = idle.open_table("t").unwrap();
        assert_eq!(idle_table.get(10).unwrap(), Some(1));
        idle.drop_table("t").unwrap();
        eventually("being told", || {
            table.get(10).is_err_and(
                |error| matches!(error.kind(), ErrorKind::TableDropped { name } if name == "t"),
            )
        });
        eventually("memory", || pool.usage().unwrap().used_bytes < before);
        let error = idle_table.put(1, 1).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::TableDropped { .. }),
            "{error}"
        );
        let again = session.create_table("t", &TableOptions::default()).unwrap();
        assert_eq!(again.range(..).count(), 0);
    }
}

/// Retries until dropped tables' memory is free.
fn when_there_is_space<T>(attempt: impl Fn() -> Result<T, Error>) -> T {
    let started = Instant::now();
    loop {
        match attempt() {
            // A session that calls the node needs a chunk for that, too.
            Err(error) if matches!(error.kind(), ErrorKind::Full(_) | ErrorKind::NoRings) => {
                assert!(started.elapsed() < Duration::from_secs(20), "{error}");
                std::thread::sleep(Duration::from_millis(5));
            }
            done => return done.unwrap(),
        }
    }
}

/// Returns how many entries of a full catalog belong to dropped tables, from the error.
fn dropped_count_when_full(error: &Error) -> u64 {
    match error.kind() {
        ErrorKind::Full(PoolError::CatalogFull { dropped_count, .. }) => *dropped_count,
        _ => panic!("{error}"),
    }
}

/// Promise: a full catalog rejects tables at once, and loses nothing. Clients that create and drop
/// tables faster than entries become free wait for them and do not fail. (They did: `node_death`
/// found it.)
#[test]
fn a_full_catalog_refuses_and_the_places_of_dropped_tables_are_waited_for() {
    for pool in super::pools(64) {
        let session = pool.session().unwrap();
        let create =
            |index: u64| session.create_table(&format!("t{index}"), &TableOptions::default());
        for index in 0..TABLE_COUNT_MAX {
            create(index).unwrap();
        }
        let started = Instant::now();
        let error = create(TABLE_COUNT_MAX).unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(1));
        assert_eq!(dropped_count_when_full(&error), 0);
        assert!(
            error.to_string().contains("; drop one; a table of byte"),
            "{error}"
        );
        for first in (0..TABLE_COUNT_MAX).step_by(64) {
            for index in first..first + 64 {
                session.drop_table(&format!("t{index}")).unwrap();
            }
            for index in first..first + 64 {
                create(index + TABLE_COUNT_MAX).unwrap();
            }
        }
        assert_eq!(session.list_tables().unwrap().len() as u64, TABLE_COUNT_MAX);
    }
}

/// Promise (LEAF-7): a stalled operation keeps the entries of tables dropped since it began in use,
/// and creating a table then returns an error after a while.
#[test]
fn a_catalog_that_waits_for_an_operation_says_so() {
    let options = PoolOptions {
        fabric: EmbeddedFabric::Tcp,
        size_bytes: 64 << 20,
        ..PoolOptions::default()
    };
    let pool = Pool::embedded(&options).unwrap();
    let (session, stalled_session) = (pool.session().unwrap(), pool.session().unwrap());
    let create = |index: u64| session.create_table(&format!("t{index}"), &TableOptions::default());
    for index in 0..TABLE_COUNT_MAX {
        create(index).unwrap();
    }
    let table = stalled_session.open_table("t1").unwrap();
    let mut stalled_get = pin!(table.asynchronous().get(1));
    let mut context = Context::from_waker(Waker::noop());
    assert!(stalled_get.as_mut().poll(&mut context).is_pending());
    session.drop_table("t0").unwrap();
    let error = create(TABLE_COUNT_MAX).unwrap_err();
    assert_eq!(dropped_count_when_full(&error), 1);
    assert!(error.to_string().contains("1 of them"), "{error}");
    assert_eq!(
        block_on(stalled_get, stalled_session.asynchronous().completions()).unwrap(),
        None
    );
    create(TABLE_COUNT_MAX).unwrap();
}

/// Promise: chunks move from table to table, also of other leaf sizes, any number of times.
#[test]
fn memory_is_used_again_and_again() {
    // Eight MiB besides the reserve for retraining.
    for pool in super::pools(9) {
        let session = pool.session().unwrap();
        for round in 0..30 {
            let all = super::all_options();
            let options = all[round % all.len()];
            let table = when_there_is_space(|| session.create_table("t", &options));
            when_there_is_space(|| table.bulk_load((0..40_000).map(|key| (key * 3, key)), |_| {}));
            for key in 0..2000 {
                table.put(key * 3 + 1, key).unwrap();
                assert_eq!(table.get(key * 3).unwrap(), Some(key));
            }
            session.drop_table("t").unwrap();
        }
    }
}

/// Promise: a full pool rejects only inserts that need a split; the table stays intact.
#[test]
fn a_full_pool_refuses_and_the_table_stays_whole() {
    for pool in super::mapped_pools(2) {
        let session = pool.session().unwrap();
        let table = session.create_table("t", &TableOptions::default()).unwrap();
        let mut written = Vec::new();
        let error = loop {
            let key = (written.len() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            match table.put(key, key) {
                Ok(_) => written.push(key),
                Err(error) => break error,
            }
        };
        assert!(matches!(error.kind(), ErrorKind::Full(_)), "{error}");
        assert!(error.to_string().contains("pool is full"), "{error}");
        assert!(written.len() > 5000, "{} written", written.len());
        for key in &written {
            assert_eq!(table.get(*key).unwrap(), Some(*key));
            assert_eq!(table.put(*key, !key).unwrap(), Some(*key));
        }
        written.sort_unstable();
        let found: Vec<u64> = table.range(..).map(|record| record.unwrap().0).collect();
        assert!(found == written);
        let stats = table.stats().unwrap();
        assert!(stats.sound && stats.locked_leaves == 0, "{stats:?}");
        table.delete(written[0]).unwrap();
        table.put(written[0], 1).unwrap();
    }
}

#[test]
fn sessions_end_and_their_numbers_are_used_again() {
    for pool in super::pools(8) {
        for _ in 0..3000 {
            pool.session().unwrap().close().unwrap();
        }
        eventually("closing", || pool.usage().unwrap().session_count <= 2);
    }
}
