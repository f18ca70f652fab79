//! Random operations compared with a `BTreeMap`.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

use farleaf::{
    Error, Insertion, LayerKind, PartitionedTable, Pool, PoolOptions, Swap, Table, TableOptions,
    Update,
};
use proptest::prelude::*;

/// Table of any kind.
pub(super) trait OrderedMap {
    fn get(&self, key: u64) -> Result<Option<u64>, Error>;
    fn multi_get(&self, keys: &[u64]) -> Result<Vec<Option<u64>>, Error>;
    fn put(&self, key: u64, value: u64) -> Result<Option<u64>, Error>;
    fn insert(&self, key: u64, value: u64) -> Result<Insertion, Error>;
    fn update(&self, key: u64, value: u64) -> Result<Update, Error>;
    fn delete(&self, key: u64) -> Result<Option<u64>, Error>;
    fn compare_and_swap(
        &self,
        key: u64,
        expected: Option<u64>,
        new: Option<u64>,
    ) -> Result<Swap, Error>;
    fn scan_into(
        &self,
        from: u64,
        limit: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), Error>;
    fn scan(&self, from: u64, limit: usize) -> impl Iterator<Item = Result<(u64, u64), Error>>;
    fn range(
        &self,
        range: impl RangeBounds<u64>,
    ) -> impl Iterator<Item = Result<(u64, u64), Error>>;
    fn scan_reverse(
        &self,
        from: u64,
        limit: usize,
    ) -> impl Iterator<Item = Result<(u64, u64), Error>>;
    fn range_reverse(
        &self,
        range: impl RangeBounds<u64>,
    ) -> impl Iterator<Item = Result<(u64, u64), Error>>;
    fn floor(&self, key: u64) -> Result<Option<(u64, u64)>, Error>;
    fn ceiling(&self, key: u64) -> Result<Option<(u64, u64)>, Error>;
}

macro_rules! ordered_map {
    ($table:ty) => {
        impl OrderedMap for $table {
            fn get(&self, key: u64) -> Result<Option<u64>, Error> {
                <$table>::get(self, key)
            }
            fn multi_get(&self, keys: &[u64]) -> Result<Vec<Option<u64>>, Error> {
                <$table>::multi_get(self, keys)
            }
            fn put(&self, key: u64, value: u64) -> Result<Option<u64>, Error> {
                <$table>::put(self, key, value)
            }
            fn insert(&self, key: u64, value: u64) -> Result<Insertion, Error> {
                <$table>::insert(self, key, value)
            }
            fn update(&self, key: u64, value: u64) -> Result<Update, Error> {
                <$table>::update(self, key, value)
            }
            fn delete(&self, key: u64) -> Result<Option<u64>, Error> {
                <$table>::delete(self, key)
            }
            fn compare_and_swap(
                &self,
                key: u64,
                expected: Option<u64>,
                new: Option<u64>,
            ) -> Result<Swap, Error> {
                <$table>::compare_and_swap(self, key, expected, new)
            }
            fn scan_into(
                &self,
                from: u64,
                limit: usize,
                records: &mut Vec<(u64, u64)>,
            ) -> Result<(), Error> {
                <$table>::scan_into(self, from, limit, records)
            }
            fn scan(
                &self,
                from: u64,
                limit: usize,
            ) -> impl Iterator<Item = Result<(u64, u64), Error>> {
                <$table>::scan(self, from, limit)
            }
            fn range(
                &self,
                range: impl RangeBounds<u64>,
            ) -> impl Iterator<Item = Result<(u64, u64), Error>> {
                <$table>::range(self, range)
            }
            fn scan_reverse(
                &self,
                from: u64,
                limit: usize,
            ) -> impl Iterator<Item = Result<(u64, u64), Error>> {
                <$table>::scan_reverse(self, from, limit)
            }
            fn range_reverse(
                &self,
                range: impl RangeBounds<u64>,
            ) -> impl Iterator<Item = Result<(u64, u64), Error>> {
                <$table>::range_reverse(self, range)
            }
            fn floor(&self, key: u64) -> Result<Option<(u64, u64)>, Error> {
                <$table>::floor(self, key)
            }
            fn ceiling(&self, key: u64) -> Result<Option<(u64, u64)>, Error> {
                <$table>::ceiling(self, key)
            }
        }
    };
}

ordered_map!(Table);
ordered_map!(PartitionedTable);

#[derive(Clone, Debug)]
pub(super) enum Step {
    Get(u64),
    MultiGet(Vec<u64>),
    Put(u64, u64),
    Insert(u64, u64),
    Update(u64, u64),
    Delete(u64),
    CompareSwap(u64, Option<u64>, Option<u64>),
    Scan(u64, usize),
    Range(u64, u64),
    ScanReverse(u64, usize),
    RangeReverse(u64, u64),
    FloorAndCeiling(u64),
}

/// Returns few different keys, so that operations conflict, including the smallest and largest
/// keys.
fn key() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0_u64..200,
        2 => (0_u64..200).prop_map(|offset| (1 << 63) + offset * 1_000_003),
        1 => (0_u64..20).prop_map(|offset| u64::MAX - offset),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    steps_on(key)
}

/// Returns operations on keys of a strategy.
pub(super) fn steps_on<S: Strategy<Value = u64> + 'static>(
    key: fn() -> S,
) -> impl Strategy<Value = Step> {
    let value = 0_u64..4;
    prop_oneof![
        1 => key().prop_map(Step::Get),
        1 => proptest::collection::vec(key(), 0..40).prop_map(Step::MultiGet),
        1 => (key(), value.clone()).prop_map(|(key, value)| Step::Put(key, value)),
        4 => (key(), value.clone()).prop_map(|(key, value)| Step::Insert(key, value)),
        1 => (key(), value.clone()).prop_map(|(key, value)| Step::Update(key, value)),
        1 => key().prop_map(Step::Delete),
        1 => (key(), proptest::option::of(value.clone()), proptest::option::of(value))
            .prop_map(|(key, expected, new)| Step::CompareSwap(key, expected, new)),
        1 => (key(), 0_usize..300).prop_map(|(from, limit)| Step::Scan(from, limit)),
        1 => (key(), key()).prop_map(|(from, to)| Step::Range(from, to)),
        1 => (key(), 0_usize..300).prop_map(|(from, limit)| Step::ScanReverse(from, limit)),
        1 => (key(), key()).prop_map(|(from, to)| Step::RangeReverse(from, to)),
        1 => key().prop_map(Step::FloorAndCeiling),
    ]
}

pub(super) fn apply(table: &impl OrderedMap, model: &mut BTreeMap<u64, u64>, step: Step) {
    match step {
        Step::Get(key) => assert_eq!(table.get(key).unwrap(), model.get(&key).copied()),
        Step::MultiGet(keys) => {
            let expected: Vec<_> = keys.iter().map(|key| model.get(key).copied()).collect();
            assert_eq!(table.multi_get(&keys).unwrap(), expected);
        }
        Step::Put(key, value) => {
            assert_eq!(table.put(key, value).unwrap(), model.insert(key, value));
        }
        Step::Insert(key, value) => {
            let expected = match model.get(&key) {
                Some(found) => Insertion::AlreadyPresent(*found),
                None => Insertion::Inserted,
            };
            assert_eq!(table.insert(key, value).unwrap(), expected);
            model.entry(key).or_insert(value);
        }
        Step::Update(key, value) => {
            let expected = match model.get_mut(&key) {
                Some(found) => Update::Updated(std::mem::replace(found, value)),
                None => Update::Absent,
            };
            assert_eq!(table.update(key, value).unwrap(), expected);
        }
        Step::Delete(key) => assert_eq!(table.delete(key).unwrap(), model.remove(&key)),
        Step::CompareSwap(key, expected, new) => {
            let found = model.get(&key).copied();
            let swap = table.compare_and_swap(key, expected, new).unwrap();
            if found == expected {
                assert_eq!(swap, Swap::Swapped);
                match new {
                    Some(new) => model.insert(key, new),
                    None => model.remove(&key),
                };
            } else {
                assert_eq!(swap, Swap::Differs(found));
            }
        }
        Step::Scan(from, limit) => {
            let expected: Vec<_> = model
                .range(from..)
                .take(limit)
                .map(|(key, value)| (*key, *value))
                .collect();
            let mut records = vec![(9, 9)];
            table.scan_into(from, limit, &mut records).unwrap();
            assert_eq!(records, expected);
            let iterated: Vec<_> = table.scan(from, limit).map(Result::unwrap).collect();
            assert_eq!(iterated, expected);
        }
        Step::Range(from, to) => {
            let iterated: Vec<_> = table.range(from..to).map(Result::unwrap).collect();
            assert_eq!(iterated, between(model, from, to));
        }
        Step::ScanReverse(from, limit) => {
            let down = model.range(..=from).rev().take(limit);
            let expected: Vec<_> = down.map(|(key, value)| (*key, *value)).collect();
            let iterated = table.scan_reverse(from, limit).map(Result::unwrap);
            assert_eq!(iterated.collect::<Vec<_>>(), expected);
        }
        Step::RangeReverse(from, to) => {
            let iterated: Vec<_> = table.range_reverse(from..to).map(Result::unwrap).collect();
            let mut expected = between(model, from, to);
            expected.reverse();
            assert_eq!(iterated, expected);
        }
        Step::FloorAndCeiling(key) => check_neighbors(table, model, key),
    }
}

fn check_neighbors(table: &impl OrderedMap, model: &BTreeMap<u64, u64>, key: u64) {
    let record = |(key, value): (&u64, &u64)| (*key, *value);
    let floor = model.range(..=key).next_back().map(record);
    assert_eq!(table.floor(key).unwrap(), floor);
    let ceiling = model.range(key..).next().map(record);
    assert_eq!(table.ceiling(key).unwrap(), ceiling);
}

/// Returns the records from one key up to another, exclusive.
fn between(model: &BTreeMap<u64, u64>, from: u64, to: u64) -> Vec<(u64, u64)> {
    if from >= to {
        return Vec::new();
    }
    let range = model.range(from..to);
    range.map(|(key, value)| (*key, *value)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Promise: after any operations, loaded or not, a table has the contents of a map and stays
    /// sound.
    #[test]
    fn a_table_is_a_map(
        which in 0_usize..10,
        loaded in proptest::collection::btree_map(key(), 0_u64..4, 0..400),
        steps in proptest::collection::vec(step(), 1..600),
    ) {
        let pool = Pool::open("mem:").unwrap();
        let session = pool.session().unwrap();
        let options = super::all_options()[which];
        let table = session.create_table("t", &options).unwrap();
        table.bulk_load(loaded.clone(), |_| {}).unwrap();
        let mut model = loaded;
        for step in steps {
            apply(&table, &mut model, step);
        }
        let all: Vec<_> = table.range(..).map(Result::unwrap).collect();
        let mut down: Vec<_> = table.range_reverse(..).map(Result::unwrap).collect();
        down.reverse();
        prop_assert_eq!(&all, &down);
        prop_assert_eq!(all, model.into_iter().collect::<Vec<_>>());
        let stats = table.stats().unwrap();
        prop_assert!(stats.sound && stats.locked_leaves == 0, "{:?}", stats);
    }
}

#[test]
fn all_ranges_have_inclusive_and_exclusive_ends() {
    let pool = Pool::open("mem:").unwrap();
    let session = pool.session().unwrap();
    let table = session.create_table("t", &TableOptions::default()).unwrap();
    for key in [0, 1, 5, u64::MAX] {
        table.put(key, key).unwrap();
    }
    let keys = |scan: farleaf::Scan| -> Vec<u64> { scan.map(|record| record.unwrap().0).collect() };
    assert_eq!(keys(table.range(..)), [0, 1, 5, u64::MAX]);
    assert_eq!(keys(table.range(..5)), [0, 1]);
    assert_eq!(keys(table.range(1..=5)), [1, 5]);
    assert_eq!(keys(table.range(5..=u64::MAX)), [5, u64::MAX]);
    assert_eq!(
        keys(table.range((
            std::ops::Bound::Excluded(u64::MAX),
            std::ops::Bound::Unbounded
        ))),
        [0_u64; 0]
    );
    assert_eq!(keys(table.range(..0)), [0_u64; 0]);
    #[expect(
        clippy::reversed_empty_ranges,
        reason = "an empty range is what is tried"
    )]
    let reversed = table.range(5..1);
    assert_eq!(keys(reversed), [0_u64; 0]);
    assert_eq!(keys(table.scan(2, 1)), [5]);
    assert_eq!(keys(table.scan(0, 0)), [0_u64; 0]);
    let down =
        |scan: farleaf::ReverseScan| -> Vec<u64> { scan.map(|record| record.unwrap().0).collect() };
    assert_eq!(down(table.range_reverse(..)), [u64::MAX, 5, 1, 0]);
    assert_eq!(down(table.range_reverse(1..5)), [1]);
    assert_eq!(down(table.range_reverse(1..=5)), [5, 1]);
    assert_eq!(down(table.range_reverse(..0)), [0_u64; 0]);
    assert_eq!(down(table.scan_reverse(4, 1)), [1]);
    assert_eq!(down(table.scan_reverse(u64::MAX, 2)), [u64::MAX, 5]);
    assert_eq!(down(table.scan_reverse(9, 0)), [0_u64; 0]);
    assert_eq!(table.floor(u64::MAX - 1).unwrap(), Some((5, 5)));
    assert_eq!(table.ceiling(6).unwrap(), Some((u64::MAX, u64::MAX)));
    table.delete(0).unwrap();
    assert_eq!(table.floor(0).unwrap(), None);
}

/// Promise: in a loaded table without a metadata budget, a scan in either direction, a floor and a
/// ceiling cost one round trip.
#[test]
fn scans_of_a_loaded_table_cost_one_round_trip() {
    for layer in [LayerKind::Learned, LayerKind::Rolex, LayerKind::RfTree] {
        let pool = Pool::open("mem:").unwrap();
        let session = pool.session().unwrap();
        let options = TableOptions {
            layer,
            ..TableOptions::default()
        };
        let table = session.create_table("t", &options).unwrap();
        let records = (0..20_000).map(|number| (number * 3, number));
        table.bulk_load(records, |_| {}).unwrap();
        let cost = || {
            let cost = session.last_cost();
            (cost.round_trips, cost.leaves_read)
        };
        let mut records = Vec::new();
        table.scan_into(30_001, 100, &mut records).unwrap();
        let (round_trips, leaf_count) = cost();
        assert_eq!(round_trips, 1, "{layer}");
        table.scan_reverse_into(30_001, 100, &mut records).unwrap();
        let expected = (0..100).map(|number| (30_000 - number * 3, 10_000 - number));
        assert!(records.iter().copied().eq(expected));
        assert_eq!(cost(), (1, leaf_count), "{layer}");
        assert_eq!(table.floor(30_002).unwrap(), Some((30_000, 10_000)));
        assert_eq!(cost().0, 1, "{layer}");
        assert_eq!(table.ceiling(30_001).unwrap(), Some((30_003, 10_001)));
        assert_eq!(cost().0, 1, "{layer}");
    }
}

/// Promise: where every leaf was split, a descending scan reads few leaves in vain. (Each batch
/// read up to 512 leaves and used one.)
#[test]
fn descending_scans_of_split_leaves_read_few_in_vain() {
    for layer in [LayerKind::Learned, LayerKind::Rolex, LayerKind::RfTree] {
        let pool = Pool::embedded(&PoolOptions {
            retrain_thread_count: 0,
            ..PoolOptions::default()
        });
        let pool = pool.unwrap();
        let session = pool.session().unwrap();
        let options = TableOptions {
            layer,
            ..TableOptions::default()
        };
        let table = session.create_table("t", &options).unwrap();
        let records = (0..4_000).map(|number| (number * 10, number));
        table.bulk_load(records, |_| {}).unwrap();
        for key in (0..40_000).filter(|key| key % 10 != 0 && key % 3 == 0) {
            table.insert(key, key).unwrap();
        }
        let leaf_count = table.stats().unwrap().leaves;
        let mut records = Vec::new();
        let scan = table.scan_reverse_into(u64::MAX, usize::MAX, &mut records);
        scan.unwrap();
        assert_eq!(records.len(), 16_000, "{layer}");
        let cost = session.last_cost();
        assert!(
            cost.leaves_read <= 5 * leaf_count,
            "{layer}: {cost:?}, {leaf_count} leaves"
        );
        assert!(
            cost.round_trips <= 2 * leaf_count,
            "{layer}: {cost:?}, {leaf_count} leaves"
        );
    }
}
