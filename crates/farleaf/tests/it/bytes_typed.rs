//! Tables of byte strings with typed keys and values.

use std::collections::BTreeMap;

use farleaf::key::decode_value;
use farleaf::{ErrorKind, LayerKind, Pool, TableOptions, TypedTable};

use crate::bytes::session;
use crate::mapped_pools;

type Names = BTreeMap<(i64, String), String>;

/// Promise: typed keys sort like their type, and can be looked up by borrowed forms.
#[test]
fn typed_tables_are_maps_of_their_types() {
    for pool in mapped_pools(64) {
        let session = session(&pool);
        let options = TableOptions::bytes();
        let table = session.create_typed_table::<(i64, String), f64>("t", &options);
        let table = table.expect("a table");
        let mut map = BTreeMap::new();
        for number in (-300_i64..300).rev() {
            let key = (number / 3, format!("{:x}", number.unsigned_abs()));
            table
                .put(&(key.0, key.1.as_str()), &(number as f64 / 7.0))
                .expect("put");
            map.insert(key, number as f64 / 7.0);
        }
        let all: Vec<_> = table
            .range(..)
            .expect("a range")
            .map(|it| it.expect("got"))
            .collect();
        let expected: Vec<_> = map.clone().into_iter().collect();
        assert_eq!(all, expected);
        let reversed = table.range_reverse(..).expect("a range");
        assert!(
            reversed
                .map(|it| it.expect("got"))
                .eq(expected.into_iter().rev())
        );
        assert_eq!(table.get(&(-1, "3")).expect("got"), Some(-3.0 / 7.0));
        assert_eq!(table.delete(&(-1, "3")).expect("removed"), Some(-3.0 / 7.0));
        assert_eq!(table.get(&(-1, "3")).expect("got"), None);
        let words = session.open_typed_table::<u64, f64>("t").expect("open");
        let error = words
            .range(..)
            .expect("a range")
            .next()
            .expect("one")
            .expect_err("no u64");
        assert!(
            matches!(error.kind(), ErrorKind::Decode { what: "key", .. }),
            "{error}"
        );
    }
}

/// Returns names, some of which are so long that they are stored outside their pages.
fn names() -> Names {
    let name = |number: i64| {
        let letter = char::from(b'a' + number.unsigned_abs() as u8 % 26);
        let size = if number % 7 == 0 { 700 } else { 7 };
        (
            (number / 3, format!("{number:x}")),
            letter.to_string().repeat(size),
        )
    };
    (-200..200).map(name).collect()
}

/// Returns pools, with options of tables that clients change and of one that the memory node
/// stores.
fn places() -> Vec<(Pool, TableOptions)> {
    let layers = [LayerKind::Learned, LayerKind::Rpc];
    let options = layers.map(|layer| TableOptions {
        layer,
        ..TableOptions::bytes()
    });
    mapped_pools(64).into_iter().zip(options).collect()
}

/// Promise: reads pass values as they are stored, in the page or outside; absent keys are reported;
/// a buffer is appended to.
fn assert_reads(table: &TypedTable<(i64, String), String>, map: &Names) {
    let mut buffer = b"before".to_vec();
    for (key, value) in map {
        let size_bytes = buffer.len();
        assert!(table.get_into(key, &mut buffer).expect("got"));
        assert_eq!(&buffer[size_bytes..], value.as_bytes());
        let is_equal = table.get_with(key, |found| found == Some(value.as_bytes()));
        assert!(is_equal.expect("got"), "{key:?}");
        let decoded = table.get_with(key, |found| found.map(decode_value::<String>));
        let decoded = decoded.expect("got").expect("there");
        assert_eq!(decoded.as_ref(), Ok(value));
    }
    let buffer_before = buffer.clone();
    let absent = (7, "absent");
    assert!(!table.get_into(&absent, &mut buffer).expect("got"));
    assert_eq!(buffer, buffer_before);
    assert!(
        table
            .get_with(&absent, |found| found.is_none())
            .expect("got")
    );
    let all = table.range(..).expect("a range");
    let all: Result<Vec<_>, _> = all.collect();
    let expected: Vec<_> = map.clone().into_iter().collect();
    assert_eq!(all.expect("a scan"), expected);
}

/// Promise: many records can be put at once, also borrowed values, and the number of those that
/// were present is returned.
#[test]
fn many_records_are_put() {
    for (pool, options) in places() {
        let session = session(&pool);
        let table = session.create_typed_table("t", &options).expect("a table");
        let mut map = names();
        assert_eq!(table.multi_put(&map).expect("put"), 0);
        assert_reads(&table, &map);
        let none: [(&(i64, &str), &str); 0] = [];
        assert_eq!(table.multi_put(none).expect("put"), 0);
        let others = [((1, "3"), "three"), ((9, "new"), ""), ((9, "new"), "last")];
        let records = others.iter().map(|(key, value)| (key, *value));
        assert_eq!(table.multi_put(records).expect("put"), 2);
        for ((number, text), value) in others {
            map.insert((number, text.to_owned()), value.to_owned());
        }
        assert_reads(&table, &map);
        let long = "k".repeat(5000);
        let records = [(&(0, "written"), "not"), (&(0, long.as_str()), "long")];
        let error = table
            .multi_put(records)
            .expect_err("a key that is too long");
        assert!(matches!(error.kind(), ErrorKind::KeyTooLong(_)), "{error}");
        assert_reads(&table, &map);
    }
}

/// Promise: a sequence in the order of its type is loaded, owned or borrowed. One that does not
/// ascend, or has a key that is too long, leaves the table unchanged.
#[test]
fn sequences_are_loaded() {
    for (pool, options) in places() {
        let session = session(&pool);
        let map = names();
        let table = session.create_typed_table("t", &options).expect("a table");
        let backwards = table.bulk_load(map.iter().rev(), |_| {});
        let error = backwards.expect_err("a sequence that descends");
        assert!(matches!(error.kind(), ErrorKind::ByteLoad(_)), "{error}");
        let long = "k".repeat(5000);
        let records = [((0, "a"), "short"), ((0, long.as_str()), "long")];
        let error = table
            .bulk_load(records, |_| {})
            .expect_err("a key that is too long");
        assert!(matches!(error.kind(), ErrorKind::ByteLoad(_)), "{error}");
        assert!(error.to_string().contains("has 5008 bytes"), "{error}");
        assert!(table.range(..).expect("a range").next().is_none());
        let loaded = table.bulk_load(&map, |_| {}).expect("a load");
        assert_eq!(loaded.record_count, map.len() as u64);
        assert_reads(&table, &map);
        let owned = session
            .create_typed_table("owned", &options)
            .expect("a table");
        owned.bulk_load(map.clone(), |_| {}).expect("a load");
        assert_reads(&owned, &map);
    }
}
