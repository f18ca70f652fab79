//! Results of scans of tables of byte strings, compared with a `BTreeMap`.

use farleaf::{ByteTable, RecordBuffer};

use crate::bytes::Map;

fn map_of(
    records: impl Iterator<Item = Result<farleaf::Record, farleaf::Error>>,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let records = records.map(|record| record.expect("a record"));
    records.map(|record| (record.key, record.value)).collect()
}

/// Promise: scans of any range in either direction return the records of the map.
pub(crate) fn assert_scans(table: &ByteTable, map: &Map) {
    let all: Vec<_> = map.clone().into_iter().collect();
    let ascending = map_of(table.range(b"", None));
    let keys = |records: &[(Vec<u8>, Vec<u8>)]| -> Vec<Vec<u8>> {
        records.iter().map(|(key, _)| key.clone()).collect()
    };
    assert_eq!(keys(&ascending), keys(&all));
    assert!(ascending == all, "values");
    assert_scans_in_place(table, &all);
    let mut descending = map_of(table.range_reverse(b"", None));
    descending.reverse();
    assert_eq!(keys(&descending), keys(&all), "descending");
    assert!(descending == all, "values, descending");
    for prefix in [&b"user:001"[..], b"p", b"", b"\xFF", b"\x00", b"no such"] {
        let with = all.iter().filter(|(key, _)| key.starts_with(prefix));
        let with: Vec<_> = with.cloned().collect();
        let found = map_of(table.prefix(prefix));
        assert_eq!(keys(&found), keys(&with), "prefix {prefix:?}");
        let mut reversed = map_of(table.prefix(prefix).rev());
        reversed.reverse();
        assert_eq!(
            keys(&reversed),
            keys(&with),
            "prefix {prefix:?}, descending"
        );
    }
}

/// Promise: scans into a reused buffer, and in place, return the same, in either direction and for
/// any range.
fn assert_scans_in_place(table: &ByteTable, all: &[(Vec<u8>, Vec<u8>)]) {
    let mut scan = table.range(b"", None);
    for (key, value) in all {
        let found = scan.next_in_place().expect("one more").expect("a record");
        assert!(found == (&**key, &**value), "{}", key.escape_ascii());
    }
    assert!(scan.next_in_place().is_none() && scan.next().is_none());
    let mut records = RecordBuffer::new();
    let same = |records: &RecordBuffer, expected: &[(Vec<u8>, Vec<u8>)]| {
        let expected = expected.iter().map(|(key, value)| (&**key, &**value));
        assert!(records.iter().eq(expected), "a part");
    };
    let counts = [1, 9, 40].into_iter().cycle();
    for (index, count) in (0..all.len()).step_by(17).zip(counts) {
        let (start, part) = (&all[index].0, &all[index..all.len().min(index + count)]);
        let (last, before) = part.split_last().expect("there is a record");
        let scanned = table.scan_into(start, None, count, &mut records);
        scanned.expect("a scan");
        same(&records, part);
        let scanned = table.scan_into(start, Some(&last.0), count, &mut records);
        scanned.expect("a scan");
        same(&records, before);
        let scanned = table.scan_reverse_into(start, Some(&last.0), count, &mut records);
        scanned.expect("a scan");
        let descending: Vec<_> = before.iter().rev().cloned().collect();
        same(&records, &descending);
    }
}
