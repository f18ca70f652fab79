//! Every map against a `BTreeMap` without a lock around it.

use std::collections::BTreeMap;

use farleaf_bench_peers::peer::{Client, Peer, Work};
use farleaf_bench_peers::peers::{
    BTreeMapPeer, CongeePeer, FarleafPeer, LmdbPeer, MasstreePeer, SkipListPeer,
};
use farleaf_bench_peers::requests::first_value;

/// Both ends of the key domain, and 998 keys between.
fn keys() -> Vec<u64> {
    let between = (1..999_u64).map(|rank| rank * 0x0040_1003_0020_1005);
    let mut keys: Vec<u64> = [0, u64::MAX].into_iter().chain(between).collect();
    keys.sort_unstable();
    keys
}

fn check(peer: &impl Peer) {
    let keys = keys();
    let mut model: BTreeMap<u64, u64> = keys.iter().map(|key| (*key, first_value(*key))).collect();
    check_reads(peer, &model, &keys);
    let mut writer = peer.client(Work::Put).expect("a client");
    for (position, key) in keys.iter().enumerate().step_by(3) {
        let value = u64::MAX - position as u64;
        writer.put(*key, value).expect("put");
        model.insert(*key, value);
        writer.pause();
    }
    // A key that was not there.
    writer.put(1, 17).expect("put");
    model.insert(1, 17);
    assert_eq!(writer.get(1).expect("get"), Some(17));
    drop(writer);
    check_reads(peer, &model, &keys);
}

fn check_reads(peer: &impl Peer, model: &BTreeMap<u64, u64>, keys: &[u64]) {
    let mut reader = peer.client(Work::Get).expect("a client");
    let near = |key: &u64| [key.wrapping_sub(1), *key, key.wrapping_add(1)];
    let asked: Vec<u64> = keys.iter().flat_map(near).collect();
    for key in &asked {
        let found = reader.get(*key).expect("get");
        assert_eq!(found, model.get(key).copied(), "{key}");
    }
    let mut values = vec![Some(0)];
    for group in asked.chunks(16) {
        reader.multi_get(group, &mut values).expect("multi_get");
        let expected: Vec<_> = group.iter().map(|key| model.get(key).copied()).collect();
        assert_eq!(values, expected);
    }
    let mut records = vec![(0, 0)];
    for from in &asked {
        for limit in [1, 7, 100] {
            reader.scan(*from, limit, &mut records).expect("scan");
            let expected = model.range(from..).take(limit);
            let expected: Vec<_> = expected.map(|(key, value)| (*key, *value)).collect();
            assert_eq!(records, expected, "from {from}, limit {limit}");
        }
    }
}

/// Promise: gets, absent gets, multi-gets, puts and scans of Farleaf are those of a `BTreeMap`,
/// with every number of slots.
#[test]
fn farleaf_answers_as_a_btree_map_does() {
    for slots in [8, 12, 16] {
        check(&FarleafPeer::load(&keys(), slots).expect("loaded"));
    }
}

/// Promise: the same for the map behind a lock.
#[test]
fn the_locked_map_answers_as_a_btree_map_does() {
    check(&BTreeMapPeer::load(&keys()));
}

/// Promise: the same for crossbeam-skiplist.
#[test]
fn the_skip_list_answers_as_a_btree_map_does() {
    check(&SkipListPeer::load(&keys()));
}

/// Promise: the same for congee.
#[test]
fn congee_answers_as_a_btree_map_does() {
    check(&CongeePeer::load(&keys()).expect("loaded"));
}

/// Promise: the same for masstree.
#[test]
fn masstree_answers_as_a_btree_map_does() {
    check(&MasstreePeer::load(&keys()));
}

/// Promise: the same for LMDB.
#[test]
fn lmdb_answers_as_a_btree_map_does() {
    check(&LmdbPeer::load(&keys()).expect("loaded"));
}
