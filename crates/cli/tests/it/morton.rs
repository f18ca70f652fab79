//! Tests with realistic key files: Morton keys, whose order keeps spatial neighbors close. Such
//! keys come in bursts, with gaps of all sizes between them, and use all 64 bits.

use std::collections::BTreeSet;
use std::io::Write;

use farleaf_base::random::Random;
use flate2::{Compression, write::GzEncoder};

use crate::pool::{Place, lines};

/// Number of clusters of records.
const CLUSTER_COUNT: u64 = 60;
const KEY_COUNT: usize = 30_000;
/// Number of keys in one `get`, far below the limit of a command line.
const GET_COUNT: usize = 3000;

/// Returns the bits of a coordinate, with a bit of the other coordinate's after each.
fn spread(coordinate: u32) -> u64 {
    (0..32).fold(0, |key, bit| {
        key | u64::from(coordinate >> bit & 1) << (2 * bit)
    })
}

fn morton(x: u32, y: u32) -> u64 {
    spread(x) | spread(y) << 1
}

/// Returns the keys in the order in which records were taken: cluster after cluster, back and
/// forth. Each burst is a walk of small steps. The corners of the plane are included.
fn keys() -> Vec<u64> {
    let mut random = Random::new(1);
    let centres: Vec<(u32, u32, u32)> = (0..CLUSTER_COUNT)
        .map(|_| {
            let width = 1 << random.below(20);
            (random.bits() as u32, random.bits() as u32, width)
        })
        .collect();
    let corners = [(0, 0), (0, u32::MAX), (u32::MAX, 0), (u32::MAX, u32::MAX)];
    let mut keys: Vec<u64> = corners.iter().map(|(x, y)| morton(*x, *y)).collect();
    let mut seen: BTreeSet<u64> = keys.iter().copied().collect();
    while keys.len() < KEY_COUNT {
        let (mut x, mut y, width) = centres[random.below(CLUSTER_COUNT) as usize];
        for _ in 0..random.below(400) {
            let mut step = || random.below(2 * u64::from(width) + 1) as u32;
            x = x.wrapping_add(step()).wrapping_sub(width);
            y = y.wrapping_add(step()).wrapping_sub(width);
            let key = morton(x, y);
            if seen.insert(key) {
                keys.push(key);
            }
        }
    }
    keys.truncate(KEY_COUNT);
    keys
}

/// Returns the keys that a table has, looked up with `get`, and checks their values.
fn found(place: &Place, asked: &[u64]) -> Vec<u64> {
    let mut found = Vec::new();
    for part in asked.chunks(GET_COUNT) {
        let mut arguments = vec!["get".to_owned()];
        arguments.extend(part.iter().map(u64::to_string));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        for line in place.farleaf(&arguments).stdout.lines() {
            let (key, value) = line.split_once('\t').expect("key and value");
            assert_eq!(key, value, "a key alone gets itself as its value");
            found.push(key.parse().expect("a key"));
        }
    }
    found
}

/// Promise: after loading such keys, in the order in which they were taken, every key is found. Of
/// the keys beside them exactly those in the file are found, and a scan returns the sorted file.
/// That holds for both search layers, plain and packed.
#[test]
fn morton_keys_are_found_and_their_neighbours_are_not() {
    let keys = keys();
    let sorted: BTreeSet<u64> = keys.iter().copied().collect();
    assert!(sorted.contains(&0) && sorted.contains(&u64::MAX));
    let high_count = keys.iter().filter(|key| **key >= 1 << 63).count();
    assert!(high_count > 1000, "{high_count} keys from 2^63 on");
    assert!(!keys.is_sorted());
    let near = |key: &u64| [key.checked_sub(1), key.checked_add(1)];
    let neighbours: BTreeSet<u64> = sorted.iter().flat_map(near).flatten().collect();
    let near: Vec<u64> = neighbours.iter().copied().collect();
    let near_found: Vec<u64> = neighbours.intersection(&sorted).copied().collect();
    assert!(near_found.len() > 100 && near_found.len() < near.len() / 2);
    let text = lines(&keys);
    for (index, slots, is_packed) in [("learned", "8", false), ("rolex", "16", true)] {
        let place = Place::new();
        let _server = place.serve(&["--size", "32MiB"]);
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(text.as_bytes()).expect("in memory");
        let packed = packed.finish().expect("in memory");
        place.file("keys", if is_packed { &packed } else { text.as_bytes() });
        let load = [
            "load", "keys", "--create", "--index", index, "--slots", slots,
        ];
        let loaded = place.farleaf(&load).quietly();
        assert!(
            loaded.starts_with("loaded 30,000 records of keys"),
            "{loaded}"
        );
        assert_eq!(found(&place, &keys), keys, "{index}");
        assert_eq!(found(&place, &near), near_found, "{index}");
        let scanned = place.farleaf(&["scan", "--limit", "0"]).quietly();
        let expected = lines(sorted.iter().map(|key| format!("{key}\t{key}")));
        assert!(
            scanned == expected,
            "{index}: the scan is not the file, sorted"
        );
        let stats = place.farleaf(&["stats", "-o", "json"]).quietly();
        assert!(stats.contains("\"sound\":true"), "{stats}");
    }
}
