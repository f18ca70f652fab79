//! Statistics of a table of byte strings.

use farleaf::{PageOptions, Pool, Session, TableKind, TableOptions};

use crate::pools;

fn session(pool: &Pool) -> Session {
    pool.session().expect("a session")
}

/// Promise: statistics count records, pages and strings in value blocks of a new table, a loaded
/// one, and one that has been written to since, and find it sound. The estimate is the number of
/// records at the last training.
#[test]
fn stats_count_what_is_there() {
    for pool in pools(32) {
        let session = session(&pool);
        let options = TableOptions {
            kind: TableKind::Bytes(PageOptions {
                page_size_bytes: 512,
                inline_value_size_bytes: 100,
            }),
            ..TableOptions::bytes()
        };
        let table = session.create_byte_table("t", &options).expect("a table");
        let empty = table.stats().expect("stats");
        assert_eq!((empty.records, empty.pages, empty.value_blocks), (0, 1, 0));
        assert!(empty.sound && empty.generation == 0, "{empty:?}");
        assert_eq!(table.len_estimate(), 0);
        let value = |number: u32| vec![b'v'; if number.is_multiple_of(10) { 101 } else { 20 }];
        let records = (0..2_000_u32).map(|number| (format!("key-{number:06}"), value(number)));
        table.bulk_load(records, |_| ()).expect("loaded");
        let loaded = table.stats().expect("stats");
        assert_eq!((loaded.records, loaded.value_blocks), (2_000, 200));
        assert_eq!(
            (loaded.trained_records, loaded.trained_pages),
            (2_000, loaded.pages)
        );
        assert_eq!(table.len_estimate(), 2_000);
        assert!(loaded.sound && loaded.generation > 0, "{loaded:?}");
        assert!((0.6..0.8).contains(&loaded.fill), "{loaded:?}");
        assert!(loaded.pages > 50 && loaded.models > 0 && loaded.metadata_bytes > 0);
        assert!(loaded.memory_bytes >= loaded.pages * 512, "{loaded:?}");
        for number in 0..2_000 {
            let key = format!("key-{number:06}-more");
            table.put(key.as_bytes(), &value(1)).expect("put");
        }
        let grown = table.stats().expect("stats");
        assert_eq!((grown.records, grown.value_blocks), (4_000, 200));
        assert!(
            grown.pages > grown.trained_pages && grown.sound,
            "{grown:?}"
        );
        assert_eq!(table.delete_prefix(b"key-0010").expect("removed"), 200);
        let shrunk = table.stats().expect("stats");
        assert_eq!((shrunk.records, shrunk.value_blocks), (3_800, 190));
        assert!(shrunk.sound && shrunk.locked_pages == 0, "{shrunk:?}");
    }
}
