//! Tables of byte strings whose pages are split and replaced while others read.

use farleaf::{ErrorKind, TableOptions};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::bytes::{Map, key, options, session, value};
use crate::bytes_scans::assert_scans;
use crate::{mapped_pools, pools};

/// Found by the simulator's profile `bytes`: a descending scan looped and then reported corruption
/// when a page of a load was replaced by others.
#[test]
fn scans_downwards_pass_pages_that_were_replaced() {
    let key = |group: u64, number: u64| {
        let beginning = format!("{group:02}{}", "p".repeat(100));
        format!("{beginning}{number:03}").into_bytes()
    };
    for pool in mapped_pools(64) {
        let (writer, reader) = (session(&pool), session(&pool));
        let table = writer
            .create_byte_table("t", &options(512, 16))
            .expect("a table");
        let all = (0..40).flat_map(|group| (0..16).map(move |number| (group, number)));
        let mut map: Map = all
            .clone()
            .filter(|(_, number)| number % 4 == 0)
            .map(|(group, number)| (key(group, number), vec![1; 20]))
            .collect();
        table.bulk_load(&map, |_| {}).expect("a load");
        let read = reader.open_byte_table("t").expect("opened");
        assert_scans(&read, &map);
        for (group, number) in all {
            let (key, value) = (key(group, number), vec![number as u8; 24]);
            table.put(&key, &value).expect("put");
            map.insert(key, value);
            if number == 15 && group % 8 == 0 {
                // One session knows all splits, one some of them, and one none.
                let third = session(&pool);
                let fresh = third.open_byte_table("t").expect("opened");
                for table in [&table, &read, &fresh] {
                    assert_scans(table, &map);
                }
            }
        }
    }
}

/// Found by the simulator's profile `bytes`: a descending scan that follows links reported
/// corruption if a page begins right before a key and the next page right behind it.
#[test]
fn scans_downwards_pass_a_page_of_one_key() {
    for pool in mapped_pools(64) {
        let (writer, reader) = (session(&pool), session(&pool));
        let table = writer
            .create_byte_table("t", &options(512, 224))
            .expect("a table");
        let read = reader.open_byte_table("t").expect("opened");
        // Each record fills a page. The second one makes the first one's page begin right before
        // it, the third one makes the next page begin right behind it.
        for key in ["b", "a", "c", "d"] {
            table.put(key.as_bytes(), &[7; 224]).expect("put");
        }
        assert_eq!(table.stats().expect("statistics").pages, 4);
        let keys = read.range_reverse(b"", None);
        let keys = keys.map(|record| record.expect("a record").key);
        assert_eq!(keys.collect::<Vec<_>>(), [b"d", b"c", b"b", b"a"]);
    }
}

/// Promise: a session that opens the table after others have split pages learns of these from
/// announcements: it follows one link, and then none for these pages, also if pages were replaced
/// by others.
#[test]
fn sessions_catch_up_with_announced_splits() {
    for (page_size, long, end) in [(1024, 0, 1000), (512, 90, 6000)] {
        let key = |number: u32| {
            let tail = "z".repeat(long);
            format!("user:{number:08}{tail}").into_bytes()
        };
        for pool in mapped_pools(64) {
            let writer = session(&pool);
            let options = options(page_size, 128);
            let table = writer.create_byte_table("t", &options).expect("a table");
            let records = (0..6000).step_by(3).map(|number| (key(number), [7; 40]));
            table.bulk_load(records, |_| {}).expect("a load");
            let is_new = |number: u32| number % 3 == 1 && number < end;
            for number in (0..6000).filter(|number| is_new(*number)) {
                table.put(&key(number), &[8; 40]).expect("put");
            }
            let reader = session(&pool);
            let read = reader.open_byte_table("t").expect("opened");
            for number in (0..6000).filter(|number| number % 3 == 0 || is_new(*number)) {
                let found = read.get(&key(number)).expect("got");
                assert_eq!(found, Some(vec![7 + u8::from(is_new(number)); 40]));
            }
            let hints = read.hint_counters();
            assert!(hints.catch_up_count > 0, "{hints:?}");
            let stats = read.stats().expect("statistics");
            let made = stats.pages - stats.trained_pages;
            let links = hints.synonym_count + hints.stale_count;
            assert!(
                made > 20 && links < made / 4,
                "{hints:?}, {made} pages made"
            );
        }
    }
}

/// Promise: many records are written as if one after the other; if one is invalid, none is written.
#[test]
fn many_records_are_written_at_once() {
    for pool in pools(64) {
        let session = session(&pool);
        let table = session
            .create_byte_table("t", &options(512, 32))
            .expect("a table");
        let mut random = Xoshiro256PlusPlus::seed_from_u64(5);
        let mut map = Map::new();
        for _ in 0..4 {
            let records: Vec<_> = (0..300)
                .map(|_| (key(&mut random), value(&mut random)))
                .collect();
            let mut present = 0;
            for (key, value) in &records {
                present += u64::from(map.insert(key.clone(), value.clone()).is_some());
            }
            assert_eq!(table.multi_put(&records).expect("written"), present);
            assert_scans(&table, &map);
        }
        let long = [(b"new".to_vec(), vec![]), (vec![1; 4097], vec![])];
        let error = table.multi_put(&long).expect_err("too long");
        assert!(error.to_string().contains("4097 bytes"), "{error}");
        assert_eq!(table.get(b"new").expect("got"), None);
        assert_eq!(table.multi_put::<&[u8], &[u8]>(&[]).expect("none"), 0);
    }
}

/// Found by the simulator's profile `bytes`: a session that has several tables open gets an error
/// for one that another session has dropped; it panicked.
#[test]
fn a_table_that_another_session_drops_is_dropped() {
    for pool in mapped_pools(64) {
        let (one, other) = (session(&pool), session(&pool));
        let table = one
            .create_byte_table("t", &TableOptions::bytes())
            .expect("a table");
        let other_table = one
            .create_byte_table("kept", &TableOptions::bytes())
            .expect("a table");
        table.put(b"key", &[7; 3000]).expect("put");
        other.drop_table("t").expect("dropped");
        let error = (0..1000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            table.get(b"key").err()
        });
        let error = error.expect("the session follows within five seconds");
        assert!(
            matches!(error.kind(), ErrorKind::TableDropped { .. }),
            "{error}"
        );
        other_table
            .put(b"key", b"value")
            .expect("the other one stays");
        let next = one.create_byte_table("t", &TableOptions::bytes());
        assert_eq!(next.expect("made").get(b"key").expect("got"), None);
    }
}
