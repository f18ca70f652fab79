//! Tests of every map of byte strings against a `BTreeMap` without a lock around it.

use std::collections::BTreeMap;

use farleaf::PageOptions;
use farleaf_bench_peers::peer::{Client, Peer, Work};
use farleaf_bench_peers::peers::LmdbPeer;
use farleaf_bench_peers::peers::strings::{
    FarleafStringPeer, MasstreeStringPeer, RedbPeer, RedisPeer,
};
use farleaf_bench_peers::records::{Records, Sink, StringRecords};

use crate::redis;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Returns records with numbers up to 2^64, about thirty for each of their first four digits, so
/// that many keys share a prefix.
fn records(key_size_bytes: usize, value_size_bytes: usize) -> StringRecords {
    let numbers: Vec<u64> = (0..60_000).map(|rank| rank * (u64::MAX / 60_000)).collect();
    StringRecords::new(&numbers, key_size_bytes, value_size_bytes)
}

/// Results of reads.
#[derive(Default)]
struct ReadResults {
    values: Vec<Option<Vec<u8>>>,
    records: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Sink<StringRecords> for ReadResults {
    fn value(&mut self, value: Option<&[u8]>) {
        self.values.push(value.map(<[u8]>::to_vec));
    }

    fn record(&mut self, key: &[u8], value: &[u8]) {
        self.records.push((key.to_vec(), value.to_vec()));
    }
}

fn model_of(records: &StringRecords) -> Model {
    let mut buffer = Vec::new();
    let record = |rank| {
        let key = records.key(rank);
        (key.to_vec(), records.value(key, 0, &mut buffer).to_vec())
    };
    (0..records.count()).map(record).collect()
}

fn check(records: &StringRecords, peer: &impl Peer<StringRecords>, does_scan: bool) {
    let mut model = model_of(records);
    check_reads(peer, &model, does_scan);
    let mut writer = peer.client(Work::Put).expect("a client");
    let mut buffer = Vec::new();
    for rank in (0..records.count()).step_by(3) {
        let key = records.key(rank);
        let value = records.value(key, 7, &mut buffer);
        writer.put(key, value).expect("put");
        model.insert(key.to_vec(), value.to_vec());
        writer.pause().expect("a pause");
    }
    // A key that was absent, with a value of another size.
    writer.put(b"user\r\nx", b"$-1\r\n").expect("put");
    model.insert(b"user\r\nx".to_vec(), b"$-1\r\n".to_vec());
    let mut found = ReadResults::default();
    writer.get(b"user\r\nx", &mut found).expect("get");
    assert_eq!(found.values, [Some(b"$-1\r\n".to_vec())]);
    drop(writer);
    check_reads(peer, &model, does_scan);
}

fn check_reads(peer: &impl Peer<StringRecords>, model: &Model, does_scan: bool) {
    let mut reader = peer.client(Work::Get).expect("a client");
    let near = |key: &Vec<u8>| {
        [
            key[..key.len() - 1].to_vec(),
            key.clone(),
            [key, &b"!"[..]].concat(),
        ]
    };
    let asked: Vec<Vec<u8>> = model.keys().flat_map(near).collect();
    let asked: Vec<&[u8]> = asked.iter().map(Vec::as_slice).collect();
    let expected: Vec<_> = asked.iter().map(|key| model.get(*key).cloned()).collect();
    let (mut one_by_one, mut in_groups) = (ReadResults::default(), ReadResults::default());
    for key in &asked {
        reader.get(key, &mut one_by_one).expect("get");
    }
    for group in asked.chunks(16) {
        reader.multi_get(group, &mut in_groups).expect("multi_get");
    }
    assert!(one_by_one.values == expected && in_groups.values == expected);
    for from in asked.iter().step_by(61).filter(|_| does_scan) {
        for limit in [1, 7, 100] {
            let mut found = ReadResults::default();
            reader.scan(from, limit, &mut found).expect("scan");
            let expected = model.range(from.to_vec()..).take(limit);
            let expected = expected.map(|(key, value)| (key.clone(), value.clone()));
            assert!(
                found.records.into_iter().eq(expected),
                "{}",
                from.escape_ascii()
            );
        }
    }
}

/// Promise: gets, absent gets, multi-gets, puts and scans of Farleaf return the same as a
/// `BTreeMap`, with values in pages and outside.
#[test]
fn farleaf_answers_as_a_btree_map_does() {
    for value_size_bytes in [100, 300] {
        let records = records(24, value_size_bytes);
        let peer = FarleafStringPeer::load(&records, PageOptions::default()).expect("loaded");
        check(&records, &peer, true);
    }
}

/// Promise: masstree returns the same as a `BTreeMap`.
#[test]
fn masstree_answers_as_a_btree_map_does() {
    let records = records(24, 100);
    check(
        &records,
        &MasstreeStringPeer::load(&records).expect("loaded"),
        true,
    );
}

/// Promise: LMDB returns the same as a `BTreeMap`.
#[test]
fn lmdb_answers_as_a_btree_map_does() {
    let records = records(24, 100);
    let peer = LmdbPeer::load(&records, records.size_bytes()).expect("loaded");
    check(&records, &peer, true);
}

/// Promise: redb returns the same as a `BTreeMap`.
#[test]
fn redb_answers_as_a_btree_map_does() {
    let records = records(24, 100);
    check(&records, &RedbPeer::load(&records).expect("loaded"), true);
}

/// Promise: Redis returns the same, except for scans, also with values that take several reads.
#[test]
fn redis_answers_as_a_map_does() {
    let Some(program) = redis() else { return };
    for value_size_bytes in [100, 20_000] {
        let numbers: Vec<u64> = (0..1_000_000 / value_size_bytes as u64).collect();
        let records = StringRecords::new(&numbers, 24, value_size_bytes);
        let peer = RedisPeer::load(&records, &program).expect("loaded");
        check(&records, &peer, false);
    }
}
