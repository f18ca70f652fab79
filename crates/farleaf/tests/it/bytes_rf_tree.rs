//! Tables of byte strings with search layer `rf-tree`, whose pages are listed.

use std::time::{Duration, Instant};

use farleaf::{
    ByteTable, EmbeddedFabric, ErrorKind, LayerKind, OperationKind, Pool, PoolOptions,
    SessionOptions, TableOptions,
};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::bytes::{Map, assert_agrees, loaded, options, session, work};
use crate::bytes_scans::assert_scans;
use crate::mapped_pools;

fn listed(page_size_bytes: u64, inline_value_size_bytes: u64) -> TableOptions {
    TableOptions {
        layer: LayerKind::RfTree,
        ..options(page_size_bytes, inline_value_size_bytes)
    }
}

/// Promise: tables whose pages are found by their listing match maps ([`assert_agrees`]).
#[test]
fn tables_agree_with_maps() {
    for (seed, (page_size, inline_size)) in (1..).zip([(512, 32), (1024, 128)]) {
        for pool in mapped_pools(96) {
            let options = listed(page_size, inline_size);
            assert_agrees(&pool, &options, seed, 3, 1_500, |_, _| {});
        }
    }
}

/// Promise: the cache alone leads to every loaded key, and to absent ones: one page, one round
/// trip. The cache counts as metadata.
#[test]
fn loads_are_found_with_one_page() {
    for pool in mapped_pools(128) {
        let loader = session(&pool);
        let table = loader.create_byte_table("t", &listed(1024, 128));
        let table = table.expect("a table");
        let mut map = loaded(20_000, 100);
        table.bulk_load(&map, |_| {}).expect("a load");
        for other in [&loader, &session(&pool)] {
            let table = other.open_byte_table("t").expect("open");
            let before = other.counters(OperationKind::Get).cost;
            for (key, value) in &map {
                assert!(table.get(key).expect("got").as_ref() == Some(value));
                let absent = [key, &b"!"[..]].concat();
                assert_eq!(table.get(&absent).expect("got"), None);
            }
            let after = other.counters(OperationKind::Get).cost;
            assert_eq!(after.round_trips - before.round_trips, 40_000);
            assert_eq!(after.leaves_read - before.leaves_read, 40_000);
            let pages = table.stats().expect("statistics").pages;
            let metadata = table.metadata_bytes();
            assert!(
                (8 * pages..32 * pages).contains(&metadata),
                "{metadata} of {pages}"
            );
        }
        let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
        work(&table, &mut map, &mut random, 500);
        assert_scans(&table, &map);
    }
}

/// Promise: sessions list the pages that their splits create. An older session takes a newer cache
/// once it has followed more links than allowed, and follows none after that; a later session
/// follows none at all.
#[test]
fn pages_that_splits_make_are_listed() {
    let key = |number: u32| format!("user:{number:08}").into_bytes();
    for pool in mapped_pools(64) {
        let writer = session(&pool);
        let table = writer.create_byte_table("t", &listed(512, 128));
        let table = table.expect("a table");
        let records = (0..6000).step_by(3).map(|number| (key(number), [7; 40]));
        table.bulk_load(records, |_| {}).expect("a load");
        let early = pool.session_with(&SessionOptions {
            link_count_max: Some(0),
            ..SessionOptions::default()
        });
        let early = early.expect("a session");
        let early = early.open_byte_table("t").expect("opened");
        let put_cost = writer.counters(OperationKind::Put).cost;
        for number in (0..6000).filter(|number| number % 3 == 1) {
            table.put(&key(number), &[8; 40]).expect("put");
        }
        let put_cost = writer.counters(OperationKind::Put).cost.round_trips - put_cost.round_trips;
        assert!(
            put_cost < 2_000 * 3,
            "lists are not counted as puts: {put_cost}"
        );
        let stats = table.stats().expect("statistics");
        assert!(stats.pages > 300, "{stats:?}");
        let read_all = |table: &ByteTable| {
            for number in (0..6000).filter(|number| number % 3 < 2) {
                let expected = Some(vec![7 + (number % 3) as u8; 40]);
                assert_eq!(table.get(&key(number)).expect("got"), expected);
            }
            let hints = table.hint_counters();
            (hints.synonym_count, hints.stale_count, hints.refresh_count)
        };
        assert_eq!(read_all(&early), (1, 0, 1));
        let late = session(&pool);
        let late = late.open_byte_table("t").expect("opened");
        assert_eq!(read_all(&late), (0, 0, 0));
    }
}

/// Promise: a listing is invisible to users: it is not in the list of tables, cannot be opened, and
/// is dropped with its table. Tables are created and dropped more often than the catalog has
/// entries, and their memory is reused.
#[test]
fn listings_come_and_go_with_their_tables() {
    let pool = mapped_pools(32).swap_remove(0);
    let (one, other) = (session(&pool), session(&pool));
    // Each table takes two of 256 entries.
    for round in 0..140_u8 {
        let table = one.create_byte_table("t", &listed(512, 64));
        let table = table.expect("room");
        let names: Vec<String> = one
            .list_tables()
            .expect("a list")
            .into_iter()
            .map(|info| info.name)
            .collect();
        assert_eq!(names, ["t"]);
        let hidden = format!("\u{1}pages of table {}", table.info().id);
        let error = one.open_byte_table(&hidden).expect_err("no table");
        assert!(
            matches!(error.kind(), ErrorKind::TableNotFound { .. }),
            "{error}"
        );
        let open = other.open_byte_table("t").expect("open");
        let records = (0..1_000_u32).map(|number| (number.to_be_bytes(), [round; 40]));
        table.bulk_load(records, |_| {}).expect("a load");
        open.put(b"key", &[round; 300]).expect("put");
        one.drop_table("t").expect("dropped");
        let started_at = Instant::now();
        while open.get(b"key").is_ok() {
            assert!(
                started_at.elapsed().as_secs() < 20,
                "the drop is not reported"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Promise: a failed load leaves the table unchanged; after the next one each key is found with one
/// page.
#[test]
fn a_load_that_fails_leaves_the_table_as_it_was() {
    let pool = mapped_pools(16).swap_remove(0);
    let session = session(&pool);
    let table = session.create_byte_table("t", &listed(512, 64));
    let table = table.expect("a table");
    let too_many = (0..400_000_u32).map(|number| (number.to_be_bytes(), [1; 40]));
    let error = table.bulk_load(too_many, |_| {}).expect_err("no room");
    assert!(matches!(error.kind(), ErrorKind::Full { .. }), "{error}");
    assert_eq!(table.get(&5_u32.to_be_bytes()).expect("got"), None);
    let descending = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")];
    table.bulk_load(descending, |_| {}).expect_err("descending");
    let map: Map = loaded(2_000, 40);
    table.bulk_load(&map, |_| {}).expect("a load");
    assert_scans(&table, &map);
    let before = session.counters(OperationKind::Get).cost.round_trips;
    for (key, value) in &map {
        assert!(table.get(key).expect("got").as_ref() == Some(value));
    }
    let after = session.counters(OperationKind::Get).cost.round_trips;
    assert_eq!(after - before, 2_000);
}

/// Promise: of two concurrent loads, the one that finds the other's records returns an error and
/// has listed nothing: a process that opens the table afterwards finds each key with one page.
#[test]
fn the_later_of_two_loads_lists_nothing() {
    let name = format!("farleaf-two-loads-{}", std::process::id());
    let pool = Pool::embedded(&PoolOptions {
        fabric: EmbeddedFabric::Shm {
            name: Some(name.clone()),
        },
        size_bytes: 64 << 20,
        ..PoolOptions::default()
    });
    let pool = pool.expect("a pool in shared memory");
    let sessions = [session(&pool), session(&pool)];
    let [first, second] = &sessions;
    let first = first.create_byte_table("t", &listed(512, 64));
    let first = first.expect("a table");
    let second = second.open_byte_table("t").expect("open");
    let map = loaded(3_000, 40);
    let records = map.iter().enumerate().map(|(index, record)| {
        if index + 1 == map.len() {
            first.bulk_load(&map, |_| {}).expect("the first load");
        }
        record
    });
    let error = second.bulk_load(records, |_| {}).expect_err("it is later");
    let error = error.to_string();
    assert!(error.contains("never held a record"), "{error}");
    let other = Pool::open(&format!("shm:{name}")).expect("the same pool");
    let session = session(&other);
    let table = session.open_byte_table("t").expect("open");
    for (key, value) in &map {
        assert!(table.get(key).expect("got").as_ref() == Some(value));
    }
    let round_trips = session.counters(OperationKind::Get).cost.round_trips;
    assert_eq!(round_trips, 3_000);
}
