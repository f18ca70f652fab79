//! Tables of byte strings under a metadata budget: slower, never wrong, never above the budget.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use farleaf::{
    ByteTable, EmbeddedFabric, LayerKind, OperationKind, Pool, Session, SessionOptions,
    TableOptions,
};
use futures_util::future::{Either, join, select};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::bytes::{Map, loaded, options, session, work};
use crate::bytes_scans::assert_scans;
use crate::{mapped_pools, mapped_retraining_pools, pools_over};

fn budgeted(pool: &Pool, bytes: u64) -> (Session, ByteTable) {
    let session = pool.session_with(&SessionOptions {
        metadata_budget_bytes: Some(bytes),
        ..SessionOptions::default()
    });
    let session = session.expect("a session");
    let table = session.open_byte_table("t").expect("opened");
    (session, table)
}

/// Returns numeric keys, for linear models, and paths, for front-coded ones.
fn keys_and_paths(count: u64) -> Map {
    let mut map = loaded(count, 200);
    for number in 0..count {
        let (folder, file) = (number * number % 977, number.wrapping_mul(0x9E37_79B9) >> 8);
        let path = format!("/srv/data/{folder:x}/part-{}/{file:x}.bin", number % 7);
        map.insert(path.into_bytes(), vec![number as u8; 200]);
    }
    map
}

/// Creates a table of such keys; returns also the metadata bytes of a session without a budget.
fn filled(pool: &Pool, page_size_bytes: u64, count: u64) -> (Session, Map, u64) {
    let session = session(pool);
    let table = session.create_byte_table("t", &options(page_size_bytes, 224));
    let table = table.expect("a table");
    let map = keys_and_paths(count);
    table.bulk_load(&map, |_| {}).expect("a load");
    let full = table.metadata_bytes();
    (session, map, full)
}

/// Returns budgets from the smallest to more than the whole metadata.
fn budgets(full: u64) -> [u64; 6] {
    let part = |percent: u64| (full * percent / 100).max(1024);
    [1024, part(5), part(20), part(50), part(100), full * 3]
}

/// Promise: gets, also of absent keys, multi-gets, and scans in both directions match the map under
/// any budget, and the session never holds more than its budget.
#[test]
fn reads_are_right_under_any_budget_which_is_kept() {
    let pool = mapped_pools(64).swap_remove(0);
    let (_loader, map, full) = filled(&pool, 512, 6_000);
    let all: Vec<&Vec<u8>> = map.keys().collect();
    for budget in budgets(full) {
        let (_session, table) = budgeted(&pool, budget);
        let held = || {
            let held = table.metadata_bytes();
            assert!(held <= budget, "{held} bytes of {budget}");
        };
        let mut random = Xoshiro256PlusPlus::seed_from_u64(budget);
        let mut draw = || {
            let mut key = all[random.random_range(0..all.len())].clone();
            if random.random_bool(0.2) {
                key.push(b'!');
            }
            key
        };
        for _ in 0..1_000 {
            let key = draw();
            assert_eq!(table.get(&key).expect("got"), map.get(&key).cloned());
            held();
        }
        for count in [1, 30, 700] {
            let keys: Vec<Vec<u8>> = (0..count).map(|_| draw()).collect();
            let expected: Vec<_> = keys.iter().map(|key| map.get(key).cloned()).collect();
            assert!(table.multi_get(&keys).expect("many") == expected);
            held();
        }
        assert_scans(&table, &map);
        held();
        let counts = table.part_counts().expect("it has a budget");
        assert!(counts.parts_fetched > 0);
        assert_eq!(counts.synonyms_evicted, 0, "nothing has split");
        match budget {
            _ if budget > full => assert_eq!(counts.parts_evicted, 0),
            _ if budget > full / 10 => assert!(counts.parts_evicted > 0),
            // Most of the metadata does not fit.
            _ => {}
        }
    }
}

/// Promise: a get whose metadata is cached is one round trip. Missing metadata costs one more, also
/// for many keys at once, however many pieces they need. A session with space for everything reads
/// each piece once.
#[test]
fn a_missing_part_costs_one_round_trip() {
    let pool = mapped_pools(64).swap_remove(0);
    let (_loader, map, full) = filled(&pool, 512, 6_000);
    let trips = |session: &Session, kind| session.counters(kind).cost.round_trips;
    let (session, table) = budgeted(&pool, full * 3);
    for key in map.keys() {
        assert!(table.get(key).expect("got").is_some());
    }
    let fetched = table.part_counts().expect("it has a budget").parts_fetched;
    let gets = trips(&session, OperationKind::Get) - fetched;
    let count = map.len() as u64;
    assert!(
        (count..count * 102 / 100).contains(&gets),
        "{gets} for {count}"
    );
    for key in map.keys() {
        assert!(table.get(key).expect("got").is_some());
    }
    assert_eq!(
        table.part_counts().expect("a budget").parts_fetched,
        fetched
    );
    // The smallest budget fits no piece: each get reads the one that it needs.
    let (session, table) = budgeted(&pool, 1024);
    for key in map.keys() {
        assert!(table.get(key).expect("got").is_some());
    }
    let gets = trips(&session, OperationKind::Get);
    assert!(
        (2 * count..count * 204 / 100).contains(&gets),
        "{gets} for {count}"
    );
    let keys: Vec<&Vec<u8>> = map.keys().step_by(48).take(256).collect();
    let values = table.multi_get(&keys).expect("many");
    assert!(values.iter().all(Option::is_some));
    let multi_get = trips(&session, OperationKind::MultiGet);
    assert!((2..12).contains(&multi_get), "{multi_get} for 256 keys");
}

/// Promise: after any operations by sessions with the smallest budget, a larger one and none, the
/// table matches the map, including splits that the other sessions meet. Budgets are kept.
#[test]
fn tables_agree_with_maps_under_any_budget() {
    for (seed, (page_size, count)) in (1..).zip([(512, 0), (512, 1_500), (1024, 300)]) {
        let pool = mapped_pools(96).swap_remove(0);
        let (whole, mut map, _) = filled(&pool, page_size, count);
        let whole = whole.open_byte_table("t").expect("opened");
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let sessions = [1024, 6_000].map(|budget| (budget, budgeted(&pool, budget)));
        for _ in 0..3 {
            for (budget, (_, table)) in &sessions {
                work(table, &mut map, &mut random, 700);
                assert!(table.metadata_bytes() <= *budget);
                assert_scans(table, &map);
                assert!(table.metadata_bytes() <= *budget);
            }
            work(&whole, &mut map, &mut random, 300);
            assert_scans(&whole, &map);
        }
        for (_, (_, table)) in &sessions {
            let (seen, by_whole) = (table.stats(), whole.stats());
            let (mut seen, by_whole) = (seen.expect("seen"), by_whole.expect("seen"));
            assert!(seen.sound);
            // Each session caches its own metadata.
            seen.metadata_bytes = by_whole.metadata_bytes;
            seen.front_coded_models = by_whole.front_coded_models;
            assert_eq!(seen, by_whole);
        }
    }
}

/// Promise: splits by a session with a budget are counted, so that the table is retrained, and
/// sessions with budgets take the new roots. In the end a new one finds nearly every key with one
/// page, and the budgets are kept.
#[test]
fn retrained_tables_are_followed_under_a_budget() {
    for pool in mapped_retraining_pools(64) {
        let loader = session(&pool);
        let table = loader.create_byte_table("t", &options(512, 64));
        table.expect("a table");
        let (_writing, writer) = budgeted(&pool, 3_000);
        let (_reading, reader) = budgeted(&pool, 1024);
        let mut map = Map::new();
        for (key, value) in keys_and_paths(4_000) {
            assert!(!writer.put(&key, &value).expect("put"));
            map.insert(key, value);
        }
        let started_at = Instant::now();
        loop {
            let (session, fresh) = budgeted(&pool, 1 << 20);
            for (key, value) in &map {
                assert_eq!(fresh.get(key).expect("got").as_ref(), Some(value));
            }
            let read = session.counters(OperationKind::Get).cost.leaves_read;
            if read < map.len() as u64 * 13 / 10 {
                break;
            }
            assert!(
                started_at.elapsed().as_secs() < 60,
                "{read} of {}",
                map.len()
            );
        }
        assert_scans(&reader, &map);
        assert_scans(&writer, &map);
        assert!(writer.stats().expect("seen").trained_pages > 300);
        assert!(writer.metadata_bytes() <= 3_000 && reader.metadata_bytes() <= 1024);
    }
}

/// Promise: concurrent operations find the metadata that they need while others evict it. With
/// space for no piece at all, many concurrent puts take effect and each of their splits is counted,
/// so that the table is retrained. A scan beside endless gets completes.
#[test]
fn operations_side_by_side_keep_what_they_need() {
    let pool = mapped_retraining_pools(64).swap_remove(0);
    let (_loader, mut map, _) = filled(&pool, 512, 1_500);
    let (session, table) = budgeted(&pool, 1024);
    let new = |number: u64| (format!("user{}", number * 7_919).into_bytes(), vec![9; 200]);
    let records: Vec<(Vec<u8>, Vec<u8>)> = (0..6_000).map(new).collect();
    for part in records.chunks(500) {
        let present = table.multi_put(part).expect("put");
        assert_eq!(present, 0);
        assert!(table.metadata_bytes() <= 1024);
    }
    map.extend(records);
    let started_at = Instant::now();
    while pool.retraining().expect("a tally").tally.model_count == 0 {
        assert!(started_at.elapsed().as_secs() < 60, "nothing was due");
        std::thread::sleep(Duration::from_millis(10));
    }
    let keys: Vec<&Vec<u8>> = map.keys().collect();
    let (is_over, table) = (Cell::new(false), table.asynchronous());
    let getting = async {
        let mut number = 0;
        while !is_over.get() {
            number = (number + 7_001) % keys.len();
            assert!(table.get(keys[number]).await.expect("got").is_some());
        }
    };
    let scanning = async {
        let scanned = table.scan(b"", None, usize::MAX).await;
        is_over.set(true);
        scanned.expect("a scan").len()
    };
    let (scanned, ()) = session.block_on(join(scanning, getting));
    assert_eq!(scanned, map.len());
}

/// Promise: a get that is dropped while it uses a piece that does not fit releases it.
#[test]
fn what_is_dropped_lets_go() {
    let pool = pools_over([EmbeddedFabric::Tcp], 64, 0).swap_remove(0);
    let (_loader, map, _) = filled(&pool, 512, 1_500);
    let (session, table) = budgeted(&pool, 1024);
    let mut dropped_count = 0;
    for key in map.keys().step_by(100) {
        let get = pin!(table.asynchronous().get(key));
        let has_part = pin!(poll_fn(|context| {
            if table.metadata_bytes() > 1024 {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        }));
        // The get is polled first, and dropped with this.
        if let Either::Right(_) = session.block_on(select(get, has_part)) {
            dropped_count += 1;
        }
    }
    assert!(dropped_count > 0, "something was in hand");
    assert!(table.metadata_bytes() <= 1024);
}

/// Promise: if the table of pieces alone exceeds the budget, the session uses one head for all of
/// it, and works.
#[test]
fn heads_with_long_fences_are_thinned() {
    let pool = mapped_pools(96).swap_remove(0);
    let loader = session(&pool);
    let table = loader
        .create_byte_table("t", &options(512, 64))
        .expect("a table");
    let key = |number: u32| {
        let long = vec![b'a' + (number % 20) as u8; 1_000];
        [
            &*format!("{:02}", number / 60).into_bytes(),
            &long,
            &number.to_be_bytes(),
        ]
        .concat()
    };
    let map: Map = (0..3_000)
        .map(|number| (key(number), vec![7; 20]))
        .collect();
    table.bulk_load(&map, |_| {}).expect("a load");
    let (_session, table) = budgeted(&pool, 1024);
    for (key, value) in &map {
        assert_eq!(table.get(key).expect("got").as_ref(), Some(value));
    }
    assert_scans(&table, &map);
}

/// Promise: for a search layer that needs all its metadata a budget is rejected, and the error
/// lists the layers that support one; so is a budget that is too small.
#[test]
fn other_layers_refuse_budgets() {
    let pool = mapped_pools(64).swap_remove(0);
    for layer in [LayerKind::RfTree, LayerKind::Rpc] {
        let loader = session(&pool);
        let options = TableOptions {
            layer,
            ..options(512, 64)
        };
        loader.create_byte_table("t", &options).expect("a table");
        let with = |bytes| {
            let session = pool.session_with(&SessionOptions {
                metadata_budget_bytes: Some(bytes),
                ..SessionOptions::default()
            });
            let session = session.expect("a session");
            let error = session.open_byte_table("t").expect_err("refused");
            error.to_string()
        };
        let refused = with(1 << 20);
        assert!(refused.contains("metadata budget"), "{refused}");
        assert!(refused.contains("'learned'"), "{refused}");
        let refused = with(1_000);
        assert!(refused.contains("at least 1024 bytes"), "{refused}");
        loader.drop_table("t").expect("dropped");
    }
}
