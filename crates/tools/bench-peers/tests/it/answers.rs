//! Tests of every map against a `BTreeMap` without a lock around it.

use std::collections::BTreeMap;

use farleaf_bench_peers::peer::{Client, Peer, Work};
use farleaf_bench_peers::peers::LmdbPeer;
use farleaf_bench_peers::peers::words::{
    BTreeMapPeer, CongeePeer, FarleafPeer, MasstreePeer, SkipListPeer,
};
use farleaf_bench_peers::records::{Sink, WordRecords};

/// Returns both ends of the key domain, and 998 keys between.
fn keys() -> Vec<u64> {
    let between = (1..999_u64).map(|rank| rank * 0x0040_1003_0020_1005);
    let mut keys: Vec<u64> = [0, u64::MAX].into_iter().chain(between).collect();
    keys.sort_unstable();
    keys
}

fn records() -> WordRecords {
    WordRecords::new(keys())
}

/// Results of reads.
#[derive(Default)]
struct ReadResults {
    values: Vec<Option<u64>>,
    records: Vec<(u64, u64)>,
}

impl Sink<WordRecords> for ReadResults {
    fn value(&mut self, value: Option<u64>) {
        self.values.push(value);
    }

    fn record(&mut self, key: u64, value: u64) {
        self.records.push((key, value));
    }
}

fn check(peer: &impl Peer<WordRecords>) {
    let keys = keys();
    let mut model: BTreeMap<u64, u64> = records().first().collect();
    check_reads(peer, &model, &keys);
    let mut writer = peer.client(Work::Put).expect("a client");
    for (position, key) in keys.iter().enumerate().step_by(3) {
        let value = u64::MAX - position as u64;
        writer.put(*key, value).expect("put");
        model.insert(*key, value);
        writer.pause().expect("a pause");
    }
    // A key that was absent.
    writer.put(1, 17).expect("put");
    model.insert(1, 17);
    let mut found = ReadResults::default();
    writer.get(1, &mut found).expect("get");
    assert_eq!(found.values, [Some(17)]);
    drop(writer);
    check_reads(peer, &model, &keys);
}

fn check_reads(peer: &impl Peer<WordRecords>, model: &BTreeMap<u64, u64>, keys: &[u64]) {
    let mut reader = peer.client(Work::Get).expect("a client");
    let near = |key: &u64| [key.wrapping_sub(1), *key, key.wrapping_add(1)];
    let asked: Vec<u64> = keys.iter().flat_map(near).collect();
    let expected: Vec<_> = asked.iter().map(|key| model.get(key).copied()).collect();
    let (mut one_by_one, mut in_groups) = (ReadResults::default(), ReadResults::default());
    for key in &asked {
        reader.get(*key, &mut one_by_one).expect("get");
    }
    for group in asked.chunks(16) {
        reader.multi_get(group, &mut in_groups).expect("multi_get");
    }
    assert_eq!(one_by_one.values, expected);
    assert_eq!(in_groups.values, expected);
    for from in &asked {
        for limit in [1, 7, 100] {
            let mut found = ReadResults::default();
            reader.scan(*from, limit, &mut found).expect("scan");
            let expected = model.range(from..).take(limit);
            let expected: Vec<_> = expected.map(|(key, value)| (*key, *value)).collect();
            assert_eq!(found.records, expected, "from {from}, limit {limit}");
        }
    }
}

/// Promise: gets, absent gets, multi-gets, puts and scans of Farleaf return the same as a
/// `BTreeMap`, with every number of slots.
#[test]
fn farleaf_answers_as_a_btree_map_does() {
    for slots in [8, 12, 16] {
        check(&FarleafPeer::load(&records(), slots).expect("loaded"));
    }
}

/// Promise: the locked map returns the same as a `BTreeMap`.
#[test]
fn the_locked_map_answers_as_a_btree_map_does() {
    check(&BTreeMapPeer::load(&records()));
}

/// Promise: crossbeam-skiplist returns the same as a `BTreeMap`.
#[test]
fn the_skip_list_answers_as_a_btree_map_does() {
    check(&SkipListPeer::load(&records()));
}

/// Promise: congee returns the same as a `BTreeMap`.
#[test]
fn congee_answers_as_a_btree_map_does() {
    check(&CongeePeer::load(&records()).expect("loaded"));
}

/// Promise: masstree returns the same as a `BTreeMap`.
#[test]
fn masstree_answers_as_a_btree_map_does() {
    check(&MasstreePeer::load(&records()));
}

/// Promise: LMDB returns the same as a `BTreeMap`.
#[test]
fn lmdb_answers_as_a_btree_map_does() {
    check(&LmdbPeer::load(&records(), 16_000).expect("loaded"));
}
