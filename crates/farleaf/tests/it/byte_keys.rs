//! Loaded byte-string keys that are very similar: each is found, absent neighbors are not, and
//! scans of prefixes in both directions match a `BTreeMap`.

use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use farleaf::ByteTable;
use farleaf::key::KEY_SIZE_BYTES_MAX;
use flate2::read::MultiGzDecoder;

use crate::bytes::{Map, options, session};
use crate::bytes_scans::assert_scans;
use crate::mapped_pools;

const GZIP_MAGIC: [u8; 2] = [0x1F, 0x8B];

/// Returns the keys with their positions as values.
fn map_of(keys: impl IntoIterator<Item = Vec<u8>>) -> Map {
    let keys: BTreeSet<Vec<u8>> = keys.into_iter().collect();
    let record = |(place, key): (usize, Vec<u8>)| (key, place.to_string().into_bytes());
    keys.into_iter().enumerate().map(record).collect()
}

/// Loads a table with pages of this size, and compares all kinds of reads with the map.
fn check(map: &Map, page_size_bytes: u64, pool_size_mib: u64) {
    let pool = mapped_pools(pool_size_mib).swap_remove(0);
    let session = session(&pool);
    let table = session.create_byte_table("t", &options(page_size_bytes, 64));
    let table = table.expect("a table");
    table.bulk_load(map, |_| {}).expect("a load");
    for (key, value) in map {
        let found = table.get(key).expect("got");
        assert!(found.as_ref() == Some(value), "{}", key.escape_ascii());
        let (before, behind) = (
            &key[..key.len().saturating_sub(1)],
            [key, &b"\0"[..]].concat(),
        );
        for near in [before, &behind] {
            let found = table.get(near).expect("got");
            assert!(found.as_ref() == map.get(near), "{}", near.escape_ascii());
        }
    }
    assert_scans(&table, map);
    assert_prefixes(&table, map);
}

/// Promise: the records with a prefix, those from a key on, and those before it match the map,
/// ascending and descending.
fn assert_prefixes(table: &ByteTable, map: &Map) {
    let keys = |records: Vec<farleaf::Record>| -> Vec<Vec<u8>> {
        records.into_iter().map(|record| record.key).collect()
    };
    let some_keys = || map.keys().step_by(map.len() / 50 + 1);
    let prefixes = some_keys().flat_map(|key| {
        let size = key.len();
        let sizes = [1, 2, 3, size / 2, size.saturating_sub(1), size];
        sizes.map(|it| &key[..it.min(size)])
    });
    // Deduplicated, because many keys may share a prefix.
    for prefix in prefixes.collect::<BTreeSet<_>>() {
        let with = map.range(prefix.to_vec()..).map(|(key, _)| key);
        let with: Vec<_> = with.take_while(|key| key.starts_with(prefix)).collect();
        let found: Result<Vec<_>, _> = table.prefix(prefix).keys_only().collect();
        let shown = prefix.escape_ascii();
        assert!(
            keys(found.expect("a scan")).iter().eq(with.iter().copied()),
            "{shown}"
        );
        let found: Result<Vec<_>, _> = table.prefix(prefix).rev().keys_only().collect();
        let found = keys(found.expect("a scan"));
        assert!(
            found.iter().eq(with.iter().rev().copied()),
            "{shown}, descending"
        );
    }
    for key in some_keys() {
        let found = keys(table.scan(key, None, 20).expect("a scan"));
        assert!(
            found
                .iter()
                .eq(map.range(key.clone()..).map(|(key, _)| key).take(20))
        );
        let found = keys(table.scan_reverse(b"", Some(key), 20).expect("a scan"));
        assert!(
            found
                .iter()
                .eq(map.range(..key.clone()).rev().map(|(key, _)| key).take(20))
        );
    }
}

/// Promise: 100,000 keys that differ only in their last bytes are all distinguished.
#[test]
fn keys_that_differ_in_the_last_bytes_are_told_apart() {
    let key = |number: u32| [&[7; 40][..], &number.to_be_bytes()[1..]].concat();
    check(&map_of((0..100_000).map(key)), 1024, 128);
}

/// Promise: 1,000-byte common prefixes do not matter, on pages of all sizes; nor do keys of only
/// zeros or ones of many lengths, or the empty key.
#[test]
fn keys_with_a_long_beginning_in_common_are_told_apart() {
    let long = |number: u32| [&[b'x'; 1000][..], &(7 * number).to_be_bytes()].concat();
    let zeros = (0..300).map(|size| vec![0; 13 * size]);
    let ones = (1..300).map(|size| vec![0xFF; 13 * size]);
    let map = map_of((0..3_000).map(long).chain(zeros).chain(ones));
    for page_size_bytes in [512, 1024, 2048] {
        check(&map, page_size_bytes, 128);
    }
}

/// Promise: names of countries, regions and places, many of which share prefixes, are all
/// distinguished.
#[test]
fn names_of_places_are_told_apart() {
    let syllables = [
        "", "San ", "Neu", "burg", "Östra ", "ville", "-sur-", "stadt", "\u{4e0a}",
    ];
    let name = |number: usize| {
        let country = number * number % 61;
        let region = number * 7 % 23;
        let parts = [
            number % 9,
            number / 9 % 9,
            number / 81 % 9,
            number / 729 % 9,
        ];
        let name: String = parts.into_iter().map(|part| syllables[part]).collect();
        format!("{country:02}/Region {region}/{name}").into_bytes()
    };
    check(&map_of((0..40_000).map(name)), 1024, 128);
}

/// Promise: the file names of this machine are all distinguished.
#[test]
fn paths_of_this_machine_are_told_apart() {
    const COUNT_MAX: usize = 20_000;
    let mut folders = vec![PathBuf::from("/usr")];
    let mut paths = Vec::new();
    while let Some(folder) = folders.pop()
        && paths.len() < COUNT_MAX
    {
        // Unreadable directories are skipped.
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            }
            paths.push(entry.path().into_os_string().into_vec());
        }
    }
    if paths.is_empty() {
        eprintln!("skipped: there are no files under /usr");
        return;
    }
    paths.retain(|path| path.len() <= KEY_SIZE_BYTES_MAX);
    paths.truncate(COUNT_MAX);
    check(&map_of(paths), 1024, 64);
}

/// Promise: the keys in the file named by `FARLEAF_TEST_KEYS` are all distinguished.
#[test]
fn keys_of_a_file_are_told_apart() {
    let Some(path) = std::env::var_os("FARLEAF_TEST_KEYS") else {
        eprintln!("skipped: FARLEAF_TEST_KEYS names no file of keys");
        return;
    };
    let mut content = std::fs::read(path).expect("a file");
    if content.starts_with(&GZIP_MAGIC) {
        let packed = std::mem::take(&mut content);
        let mut unpacked = MultiGzDecoder::new(&packed[..]);
        unpacked.read_to_end(&mut content).expect("a file");
    }
    let lines = content.split(|byte| *byte == b'\n');
    let start = |line: &[u8]| line.split(|byte| *byte == b'\t').next().map(<[u8]>::to_vec);
    check(&map_of(lines.filter_map(start)), 1024, 512);
}
