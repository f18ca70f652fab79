//! Tables of byte strings whose records are deleted: pages are merged, and their memory is freed.

use std::time::{Duration, Instant};

use farleaf::{ByteTable, ErrorKind};

use crate::bytes::{Map, options, session};
use crate::bytes_scans::assert_scans;
use crate::mapped_retraining_pools;

fn key(number: u32) -> Vec<u8> {
    format!("key/{:07}", number * 7).into_bytes()
}

/// Waits until the table takes at most this many bytes; its session keeps working meanwhile.
fn wait_until_smaller(table: &ByteTable, bytes_max: u64) {
    let started_at = Instant::now();
    loop {
        let stats = table.stats().expect("seen");
        if stats.memory_bytes <= bytes_max {
            return;
        }
        assert!(started_at.elapsed().as_secs() < 60, "{stats:?}");
        // Makes the session publish that it has caught up (LEAF-7).
        table.get(b"key/").expect("got");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Promise: when nearly all records of a table are deleted, in any order, nearly all memory is
/// freed while the table is in use. The remaining records are found, and other tables can use the
/// memory.
#[test]
fn memory_of_deleted_records_comes_back() {
    for pool in mapped_retraining_pools(64) {
        let session = session(&pool);
        let table = session.create_byte_table("t", &options(512, 128));
        let table = table.expect("a table");
        let all: Vec<_> = (0..40_000).map(|it| (key(it), vec![5; 40])).collect();
        let records = all.iter().map(|(key, value)| (&key[..], &value[..]));
        table.bulk_load(records, |_| {}).expect("loaded");
        let full = table.stats().expect("seen");
        assert!(full.sound && full.memory_bytes > 3 << 20, "{full:?}");
        let mut map: Map = all.iter().cloned().collect();
        let scattered = (0..all.len()).map(|number| number * 7919 % all.len());
        for number in scattered.filter(|number| number % 97 != 0) {
            let (key, _) = &all[number];
            assert!(table.delete(key).expect("deleted"));
            map.remove(key);
        }
        wait_until_smaller(&table, full.memory_bytes / 3);
        let stats = table.stats().expect("seen");
        assert!(
            stats.sound && stats.records == map.len() as u64,
            "{stats:?}"
        );
        assert!(stats.pages < full.pages / 8, "{stats:?}");
        assert_scans(&table, &map);
        for (key, value) in &map {
            assert_eq!(table.get(key).expect("got").as_ref(), Some(value));
        }
        // The table can grow to its old size again.
        for (key, value) in &all {
            table.put(key, value).expect("put");
        }
        assert_eq!(table.stats().expect("seen").records, all.len() as u64);
    }
}

/// Promise: if splits have filled a pool to the last page and the records are deleted, nearly all
/// memory is freed for other tables. (New pages had taken all memory and left none for the
/// snapshot, and pages that became underfull meanwhile were not counted.)
#[test]
fn a_full_pool_that_is_emptied_has_space() {
    for pool in mapped_retraining_pools(16) {
        let session = session(&pool);
        let table = session.create_byte_table("t", &options(1024, 128));
        let table = table.expect("a table");
        let scattered =
            |number: u64| format!("{:016x}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let full =
            (0..1 << 20).find(
                |number| match table.put(scattered(*number).as_bytes(), &[1; 100]) {
                    Ok(_) => false,
                    Err(error) => {
                        assert!(matches!(error.kind(), ErrorKind::Full { .. }), "{error}");
                        true
                    }
                },
            );
        let count = full.expect("it is full in the end");
        assert!(count > 30_000, "{count} records");
        for number in 0..count {
            assert!(table.delete(scattered(number).as_bytes()).expect("deleted"));
        }
        wait_until_smaller(&table, 1 << 20);
        let stats = table.stats().expect("seen");
        assert!(stats.sound && stats.records == 0, "{stats:?}");
        let other = session.create_byte_table("other", &options(1024, 128));
        let other = other.expect("another table");
        let records = (0..30_000).map(|number| (key(number), [1; 100]));
        other.bulk_load(records, |_| {}).expect("there is room");
    }
}
