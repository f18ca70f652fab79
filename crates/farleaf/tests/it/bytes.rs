//! Tables of byte strings compared with a `BTreeMap`.

use std::collections::BTreeMap;
use std::time::Instant;

use farleaf::{
    ByteInsertion, ByteSwap, ByteTable, ErrorKind, OperationKind, PageOptions, Pool, Session,
    TableKind, TableOptions,
};
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::bytes_scans::assert_scans;
use crate::{NODES, mapped_pools, mapped_retraining_pools, pools, pools_over};

pub(crate) type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Returns options of tables with pages and inline values of these sizes.
pub(crate) fn options(page_size_bytes: u64, inline_value_size_bytes: u64) -> TableOptions {
    TableOptions {
        kind: TableKind::Bytes(PageOptions {
            page_size_bytes,
            inline_value_size_bytes,
        }),
        ..TableOptions::default()
    }
}

const SHAPES: [(u64, u64); 4] = [(512, 32), (512, 0), (1024, 128), (2048, 1184)];

/// Returns keys of all kinds: short and long ones, shared prefixes, some too long for a page.
pub(crate) fn key(random: &mut Xoshiro256PlusPlus) -> Vec<u8> {
    let number = random.random_range(0..400_u32);
    match random.random_range(0..10) {
        0 => vec![[0, 1, 0xFF][random.random_range(0..3)]; number as usize % 5],
        1 => [vec![b'p'; 1000], number.to_be_bytes().to_vec()].concat(),
        2 => vec![number as u8; 1 + number as usize * 10],
        3 => format!("{number:b}").into_bytes(),
        _ => format!("user:{number:05}").into_bytes(),
    }
}

/// Returns values of all sizes: mostly short, some of several chunks.
pub(crate) fn value(random: &mut Xoshiro256PlusPlus) -> Vec<u8> {
    let size_bytes = match random.random_range(0..100) {
        0 => random.random_range(60_000..200_000),
        1..5 => random.random_range(1_000..20_000),
        5..20 => random.random_range(100..1_000),
        _ => random.random_range(0..100),
    };
    let mut value = vec![0; size_bytes];
    random.fill_bytes(&mut value);
    value
}

pub(crate) fn work(
    table: &ByteTable,
    map: &mut Map,
    random: &mut Xoshiro256PlusPlus,
    count: usize,
) {
    for _ in 0..count {
        let key = key(random);
        match random.random_range(0..20) {
            0..9 => {
                let value = value(random);
                let before = map.insert(key.clone(), value.clone());
                assert_eq!(table.put(&key, &value).expect("put"), before.is_some());
            }
            9..12 => {
                let before = map.remove(&key);
                assert_eq!(table.take(&key).expect("taken"), before);
            }
            12 => {
                let value = value(random);
                let inserted = table.insert(&key, &value).expect("inserted");
                if let Some(found) = map.get(&key) {
                    assert_eq!(inserted, ByteInsertion::AlreadyPresent(found.clone()));
                } else {
                    assert_eq!(inserted, ByteInsertion::Inserted);
                    map.insert(key, value);
                }
            }
            13 => {
                let value = value(random);
                let is_there = table.update(&key, &value).expect("updated");
                assert_eq!(is_there, map.contains_key(&key));
                if is_there {
                    map.insert(key, value);
                }
            }
            14 => {
                let (found, new) = (map.get(&key).cloned(), value(random));
                let guess = if random.random_bool(0.7) {
                    found.clone()
                } else {
                    Some(b"?".to_vec())
                };
                let new = random.random_bool(0.8).then_some(new);
                let swap = table.compare_and_swap(&key, guess.as_deref(), new.as_deref());
                if guess == found {
                    assert_eq!(swap.expect("swapped"), ByteSwap::Swapped);
                    match new {
                        Some(new) => map.insert(key, new),
                        None => map.remove(&key),
                    };
                } else {
                    assert_eq!(swap.expect("not swapped"), ByteSwap::Differs(found));
                }
            }
            _ => assert_eq!(table.get(&key).expect("got"), map.get(&key).cloned()),
        }
    }
}

pub(crate) fn session(pool: &Pool) -> Session {
    pool.session().expect("a session")
}

/// Promise: after any operations, first by one session and then by a new one, a new table with
/// these options matches a map, with keys and values of all sizes. Calls `check` with the table
/// each time.
pub(crate) fn assert_agrees(
    pool: &Pool,
    options: &TableOptions,
    seed: u64,
    round_count: usize,
    count: usize,
    check: impl Fn(&ByteTable, &Map),
) {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let (first, mut map) = (session(pool), Map::new());
    let table = first.create_byte_table("t", options).expect("a table");
    for _ in 0..round_count {
        work(&table, &mut map, &mut random, count);
        assert_scans(&table, &map);
        let other = session(pool);
        let other = other.open_byte_table("t").expect("open");
        work(&other, &mut map, &mut random, 500);
        assert_scans(&other, &map);
        let keys: Vec<Vec<u8>> = map.keys().cloned().chain([b"absent".to_vec()]).collect();
        let values = other.multi_get(&keys).expect("many");
        let expected: Vec<_> = keys.iter().map(|key| map.get(key).cloned()).collect();
        assert!(values == expected, "many keys at once");
        check(&other, &map);
    }
}

/// Promise: tables with pages of all sizes match maps ([`assert_agrees`]).
#[test]
fn tables_agree_with_maps() {
    for (seed, (page_size, inline_size)) in (1..).zip(SHAPES) {
        for pool in mapped_pools(96) {
            let options = options(page_size, inline_size);
            assert_agrees(&pool, &options, seed, 3, 1_500, |_, _| {});
        }
    }
}

/// Promise: tables match maps if pages and value blocks are on three nodes.
#[test]
fn tables_over_several_nodes_agree_with_maps() {
    for pool in pools_over([NODES], 64, 0) {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(9);
        let (session, mut map) = (session(&pool), Map::new());
        let table = session
            .create_byte_table("t", &options(512, 64))
            .expect("a table");
        work(&table, &mut map, &mut random, 1_000);
        assert_scans(&table, &map);
    }
}

/// Promise: a table that grows only by puts is retrained while it grows and always matches the map.
/// In the end a new session finds nearly every key with one page read.
#[test]
fn tables_that_grow_are_retrained() {
    for pool in mapped_retraining_pools(64) {
        let writer = session(&pool);
        let table = writer
            .create_byte_table("t", &options(512, 64))
            .expect("a table");
        let mut map = loaded(8_000, 20);
        for (key, value) in &map {
            assert!(!table.put(key, value).expect("put"));
        }
        let mut random = Xoshiro256PlusPlus::seed_from_u64(5);
        work(&table, &mut map, &mut random, 1_000);
        let started_at = Instant::now();
        loop {
            let reader = session(&pool);
            let fresh = reader.open_byte_table("t").expect("open");
            let before = reader.counters(OperationKind::Get).cost.round_trips;
            for (key, value) in map.iter().filter(|(key, _)| key.starts_with(b"user")) {
                assert_eq!(fresh.get(key).expect("got").as_ref(), Some(value));
            }
            let round_trips = reader.counters(OperationKind::Get).cost.round_trips - before;
            if round_trips < map.len() as u64 * 13 / 10 {
                break;
            }
            assert!(
                started_at.elapsed().as_secs() < 60,
                "{round_trips} of {}",
                map.len()
            );
        }
        assert_scans(&table, &map);
        let report = pool.retraining().expect("a tally");
        assert!(report.tally.model_count > 0, "{report:?}");
    }
}

/// Returns the records of a load: YCSB's keys, each with a value derived from its key.
pub(crate) fn loaded(count: u64, value_size_bytes: usize) -> Map {
    let hash = |number: u64| {
        let bytes = number.to_le_bytes();
        bytes.iter().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
        })
    };
    let record = |number: u64| {
        let key = format!("user{}", hash(number));
        let value = key.bytes().cycle().take(value_size_bytes).collect();
        (key.into_bytes(), value)
    };
    (0..count).map(record).collect()
}

/// Promise: loaded records are found and absent keys are not. A get takes one round trip if values
/// are in pages and two if not, and the table then works like any other.
#[test]
fn loads_are_found_with_one_look() {
    for (page_size, inline_size, value_size) in [
        (1024, 128, 100),
        (512, 128, 100),
        (2048, 1184, 1000),
        (1024, 128, 1000),
    ] {
        for pool in mapped_pools(128) {
            let session = session(&pool);
            let options = options(page_size, inline_size);
            let table = session.create_byte_table("t", &options).expect("a table");
            let mut map = loaded(8_000, value_size);
            let summary = table.bulk_load(&map, |_| {}).expect("a load");
            assert_eq!(summary.record_count, 8_000);
            let before = session.counters(OperationKind::Get);
            for (key, value) in &map {
                let found = table.get(key).expect("got");
                assert!(found.as_ref() == Some(value), "{}", key.escape_ascii());
            }
            let after = session.counters(OperationKind::Get);
            let round_trips = after.cost.round_trips - before.cost.round_trips;
            let least = if value_size as u64 <= inline_size {
                8_000
            } else {
                16_000
            };
            let most = least + least / 50;
            assert!(
                (least..=most).contains(&round_trips),
                "{round_trips} of {least}"
            );
            let metadata = table.metadata_bytes() as f64 / 8_000.0;
            assert!(metadata < 0.8, "{metadata} bytes a key");
            for key in map.keys().step_by(100) {
                let absent = [key, &b"!"[..]].concat();
                assert_eq!(table.get(&absent).expect("got"), None);
            }
            assert_scans(&table, &map);
            let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
            work(&table, &mut map, &mut random, 500);
            assert_scans(&table, &map);
        }
    }
}

/// Promise: keys that differ only at the end, long common prefixes, zeros, ones and the empty key
/// are found, loaded or put.
#[test]
fn strange_keys_are_keys() {
    let mut map = Map::new();
    for number in 0..3_000_u32 {
        let value = number.to_string().into_bytes();
        map.insert(
            [vec![b'x'; 1000], number.to_be_bytes().to_vec()].concat(),
            value.clone(),
        );
        map.insert(vec![0; number as usize % 600], value.clone());
        map.insert(vec![0xFF; number as usize % 600], value.clone());
        map.insert(format!("{:0>900}", number / 7).into_bytes(), value);
    }
    for (page_size, inline_size) in [(512, 16), (2048, 64)] {
        for pool in mapped_pools(128) {
            let session = session(&pool);
            let options = options(page_size, inline_size);
            let loaded = session
                .create_byte_table("loaded", &options)
                .expect("a table");
            loaded.bulk_load(&map, |_| {}).expect("a load");
            assert_scans(&loaded, &map);
            let put = session.create_byte_table("put", &options).expect("a table");
            for (key, value) in map.iter().rev() {
                assert!(!put.put(key, value).expect("put"));
            }
            assert_scans(&put, &map);
            for (key, value) in &map {
                assert_eq!(loaded.get(key).expect("got").as_ref(), Some(value));
                assert_eq!(put.get(key).expect("got").as_ref(), Some(value));
            }
            for absent in map.keys().map(|key| [key, &b"\x01"[..]].concat()) {
                if !map.contains_key(&absent) {
                    assert_eq!(loaded.get(&absent).expect("got"), None);
                    assert_eq!(put.get(&absent).expect("got"), None);
                }
            }
        }
    }
}

/// Promise: too long keys and values are rejected with their sizes, and so are tables of the other
/// kind, unsorted loads and invalid options; nothing changes.
#[test]
fn what_cannot_be_is_refused() {
    for pool in pools(64) {
        let session = session(&pool);
        let table = session
            .create_byte_table("t", &TableOptions::bytes())
            .expect("a table");
        let longest = vec![1; 4096];
        table.put(&longest, b"there").expect("the longest key");
        for error in [
            table.put(&[1; 4097], b"").expect_err("too long"),
            table.get(&[1; 4097]).expect_err("too long"),
        ] {
            assert_eq!(
                error.to_string(),
                "the key has 4097 bytes; a key can have at most 4096 bytes"
            );
        }
        let error = session.open_table("t").expect_err("of bytes");
        assert!(
            matches!(error.kind(), ErrorKind::TableOfOtherKind { .. }),
            "{error}"
        );
        session
            .create_table("words", &TableOptions::default())
            .expect("a table");
        let error = session.open_byte_table("words").expect_err("of words");
        assert_eq!(
            error.to_string(),
            "table 'words' has keys and values of kind 'words', but 'bytes' was requested"
        );
        let other = session
            .create_byte_table("other", &TableOptions::bytes())
            .expect("a table");
        let error = other.bulk_load([(b"b", b"1"), (b"a", b"2")], |_| {});
        let error = error.expect_err("not ascending");
        assert_eq!(
            error.to_string(),
            "record 1 of the load has key 'a', which is not greater than the previous key, 'b'; a \
             bulk load takes each key once, in ascending order"
        );
        assert_eq!(other.scan(b"", None, 10).expect("empty"), []);
        assert_eq!(table.scan(b"", None, 10).expect("one").len(), 1);
        for (page_size, inline_size, what) in [
            (
                1000,
                0,
                "page size is 1000 bytes; a page has 512, 1024 or 2048 bytes, not 1000",
            ),
            (
                512,
                300,
                "inline value size is 300 bytes; a page of 512 bytes has space for values of up to \
                 224 bytes",
            ),
        ] {
            let refused = session.create_byte_table("no", &options(page_size, inline_size));
            assert_eq!(refused.expect_err("refused").to_string(), what);
        }
    }
}

/// Promise: removing a range or a prefix removes all its keys and no others.
#[test]
fn ranges_are_removed() {
    for pool in mapped_pools(64) {
        let session = session(&pool);
        let table = session
            .create_byte_table("t", &options(512, 16))
            .expect("a table");
        let mut map = loaded(5_000, 30);
        table.bulk_load(&map, |_| {}).expect("a load");
        let gone: Vec<_> = map
            .keys()
            .filter(|key| key.starts_with(b"user12"))
            .cloned()
            .collect();
        assert_eq!(
            table.delete_prefix(b"user12").expect("removed"),
            gone.len() as u64
        );
        map.retain(|key, _| !key.starts_with(b"user12"));
        assert_scans(&table, &map);
        let remaining = map.split_off(&b"user5"[..]);
        assert_eq!(
            table.delete_range(b"", Some(b"user5")).expect("removed"),
            map.len() as u64
        );
        assert_scans(&table, &remaining);
    }
}

/// Promise: a value of maximum size can be read, replaced and removed; a larger one is rejected.
#[test]
fn the_largest_value_comes_back() {
    let pool = mapped_pools(256).swap_remove(0);
    let session = session(&pool);
    let table = session
        .create_byte_table("t", &TableOptions::bytes())
        .expect("a table");
    let largest: Vec<u8> = (0..64_u32 << 20)
        .map(|byte| (byte * 7 >> 3) as u8)
        .collect();
    assert!(!table.put(b"large", &largest).expect("put"));
    assert!(table.get(b"large").expect("got").as_ref() == Some(&largest));
    assert!(table.put(b"large", &largest[1..]).expect("put"));
    let found = table.get(b"large").expect("got").expect("there");
    assert!(found == largest[1..]);
    let error = table
        .put(b"larger", &vec![0; (64 << 20) + 1])
        .expect_err("too long");
    assert_eq!(
        error.to_string(),
        "the value has 67108865 bytes; a value can have at most 67108864 bytes (64 MiB)"
    );
    assert!(table.delete(b"large").expect("removed"));
    assert_eq!(table.get(b"large").expect("got"), None);
}

/// Promise: a session that has a table open which another session drops soon gets an error, and the
/// memory is reused: tables are created, filled and dropped more often than the pool has space for.
#[test]
fn dropped_tables_are_told_and_leave_nothing() {
    let pool = mapped_pools(16).swap_remove(0);
    let (one, other) = (session(&pool), session(&pool));
    for round in 0..30_u8 {
        let table = one
            .create_byte_table("t", &TableOptions::bytes())
            .expect("room");
        let open = other.open_byte_table("t").expect("open");
        open.put(b"key", &[round; 300]).expect("put");
        table.put(b"large", &vec![round; 1 << 20]).expect("put");
        one.drop_table("t").expect("dropped");
        let started_at = Instant::now();
        let error = loop {
            assert!(
                started_at.elapsed().as_secs() < 20,
                "the drop is not reported"
            );
            match open.get(b"key") {
                Ok(_) => std::thread::sleep(std::time::Duration::from_millis(2)),
                Err(error) => break error,
            }
        };
        assert_eq!(error.to_string(), "table 't' was dropped");
    }
}

/// Promise: value blocks that updates unlink are reused: a pool with space for a few of them
/// accepts any number of updates, by several sessions in turn.
#[test]
fn value_blocks_are_used_again() {
    let pool = mapped_pools(32).swap_remove(0);
    let sessions = [session(&pool), session(&pool)];
    let tables = sessions.each_ref().map(|session| {
        let made = session.create_byte_table("t", &TableOptions::bytes());
        made.or_else(|_| session.open_byte_table("t"))
            .expect("a table")
    });
    for round in 0..6_000_u32 {
        let value = [&round.to_le_bytes()[..], &[7; 9_000]].concat();
        let table = &tables[round as usize % 2];
        table.put(&[(round % 5) as u8], &value).expect("room");
        let found = table.get(&[(round % 5) as u8]).expect("got");
        assert!(found.as_ref() == Some(&value), "round {round}");
    }
}
