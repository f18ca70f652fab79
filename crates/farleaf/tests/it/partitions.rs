//! Tables over several pools, compared with one map (docs/explanation/partitions.md).

use std::collections::BTreeMap;
use std::ops::Bound;

use farleaf::{
    Bounds, EmbeddedFabric, ErrorKind, LayerKind, LoadError, OperationKind, PartitionError,
    PartitionedPool, PartitionedSession, PartitionedTable, Pool, PoolOptions, SessionOptions,
    TableOptions,
};
use farleaf_executor::TaskSet;
use proptest::prelude::*;

use crate::model::{Step, apply, steps_on};

const MEM: EmbeddedFabric = EmbeddedFabric::Mem;
const SHM: EmbeddedFabric = EmbeddedFabric::Shm { name: None };
const TCP: EmbeddedFabric = EmbeddedFabric::Tcp;

/// Returns pools over these fabrics, with a part in each.
pub(super) fn parts_over(fabrics: impl IntoIterator<Item = EmbeddedFabric>) -> PartitionedPool {
    PartitionedPool::new(super::pools_over(fabrics, 16, 1)).expect("several pools")
}

pub(super) fn of_layer(layer: LayerKind) -> TableOptions {
    TableOptions {
        layer,
        ..TableOptions::default()
    }
}

pub(super) fn bounds(first_keys: &[u64]) -> Bounds {
    Bounds::new(first_keys.to_vec()).expect("good bounds")
}

fn table(session: &PartitionedSession, layer: LayerKind, first_keys: &[u64]) -> PartitionedTable {
    session
        .create_table("t", &of_layer(layer), &bounds(first_keys))
        .expect("a table")
}

fn keys_of(table: &PartitionedTable, from: u64, limit: usize) -> Vec<u64> {
    let mut records = Vec::new();
    table.scan_into(from, limit, &mut records).expect("a scan");
    let iterated: Result<Vec<_>, _> = table.scan(from, limit).collect();
    assert_eq!(iterated.expect("a scan"), records);
    records.iter().map(|(key, _)| *key).collect()
}

/// Promise: each kind of write returns the previous value and has the right effect, on every fabric
/// and with every search layer.
#[test]
fn writes_say_what_they_found() {
    let mut layers: Vec<LayerKind> = super::each_layer().iter().map(|it| it.layer).collect();
    layers.push(LayerKind::Xstore);
    for layer in layers {
        let pools = parts_over([MEM, TCP, SHM]);
        let session = pools.session().unwrap();
        super::check_writes(&table(&session, layer, &[7, 1 << 40]));
    }
}

/// Returns keys around the bounds of [`a_table_of_parts_is_a_map`], and the smallest and largest
/// keys.
fn key() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 80_u64..120,
        3 => 180_u64..220,
        1 => 0_u64..20,
        1 => (0_u64..20).prop_map(|offset| u64::MAX - offset),
    ]
}

fn check_steps(
    fabric: EmbeddedFabric,
    layer: LayerKind,
    loaded: BTreeMap<u64, u64>,
    steps: Vec<Step>,
) {
    let pools = parts_over([fabric.clone(), fabric.clone(), fabric]);
    let session = pools.session().unwrap();
    let table = table(&session, layer, &[100, 200]);
    table.bulk_load(loaded.clone(), |_| {}).unwrap();
    let mut model = loaded;
    for step in steps {
        apply(&table, &mut model, step);
    }
    let all: Vec<_> = model.into_iter().collect();
    assert_eq!(super::records_of(&table), all);
    let again = pools.session().unwrap().open_table("t").unwrap();
    assert_eq!(super::records_of(&again), all);
    let stats = table.stats().unwrap();
    assert_eq!(stats.len(), 3);
    assert!(stats.iter().all(|part| part.sound), "{stats:?}");
    let count: u64 = stats.iter().map(|part| part.records).sum();
    assert_eq!(count, all.len() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 18, ..ProptestConfig::default() })]

    /// Promise: after any operations, a table over three pools, loaded or not, has the contents of
    /// a map, and every part stays sound, on `mem`, `shm` and `tcp`.
    #[test]
    fn a_table_of_parts_is_a_map(
        which in 0_usize..9,
        loaded in proptest::collection::btree_map(key(), 0_u64..4, 0..80),
        steps in proptest::collection::vec(steps_on(key), 1..200),
    ) {
        let fabric = [MEM, SHM, TCP][which % 3].clone();
        let layer = [LayerKind::Learned, LayerKind::Xstore, LayerKind::Rpc][which / 3];
        check_steps(fabric, layer, loaded, steps);
    }
}

/// Promise: scans begin and end at, before and behind bounds, and at the smallest and largest keys,
/// and cross parts without records.
#[test]
fn scans_cross_bounds() {
    for fabric in [MEM, TCP] {
        for layer in [LayerKind::Learned, LayerKind::Xstore, LayerKind::Rpc] {
            let pools = parts_over([
                fabric.clone(),
                fabric.clone(),
                fabric.clone(),
                fabric.clone(),
            ]);
            let session = pools.session().unwrap();
            // The third part contains only the bound, and stays empty.
            let table = table(&session, layer, &[10, 20, 21]);
            let all = [0, 8, 9, 10, 11, 19, 21, u64::MAX - 1, u64::MAX];
            for key in all {
                table.put(key, !key).unwrap();
            }
            for from in [0, 1, 9, 10, 11, 19, 20, 21, 22, u64::MAX - 1, u64::MAX] {
                let expected: Vec<u64> = all.into_iter().filter(|key| *key >= from).collect();
                for limit in [0, 1, 2, 3, 4, 8, 9, 10, 100] {
                    let expected = &expected[..limit.min(expected.len())];
                    assert_eq!(keys_of(&table, from, limit), expected, "{from} {limit}");
                }
                for last in [0, 9, 10, 19, 20, 21, u64::MAX] {
                    let of_range = |range: (Bound<u64>, Bound<u64>)| -> Vec<u64> {
                        let records: Result<Vec<_>, _> = table.range(range).collect();
                        records.unwrap().into_iter().map(|(key, _)| key).collect()
                    };
                    let within = |key: &u64| *key >= from && *key <= last;
                    let expected: Vec<u64> = all.into_iter().filter(within).collect();
                    let range = (Bound::Included(from), Bound::Included(last));
                    assert_eq!(of_range(range), expected, "{from}..={last}");
                    let below = |key: &u64| *key > from && *key < last;
                    let expected: Vec<u64> = all.into_iter().filter(below).collect();
                    let range = (Bound::Excluded(from), Bound::Excluded(last));
                    assert_eq!(of_range(range), expected, "{from} < .. < {last}");
                }
            }
        }
    }
}

/// Promise: a load distributes records to the parts by key, reports progress over all of them, and
/// each part finds its records alone. Keys of all parts are read with one batch in each.
#[test]
fn a_load_is_split_and_a_multi_get_gathered() {
    let pools = parts_over([MEM, TCP, SHM]);
    let session = pools.session().unwrap();
    let keys: Vec<u64> = (0..9_000).map(|index| index * 3).collect();
    let thirds = Bounds::of_sample(keys.clone(), 3).unwrap();
    assert_eq!(thirds.first_keys(), [9_000, 18_000]);
    let options = TableOptions::default();
    let table = session.create_table("t", &options, &thirds).unwrap();
    let mut reported_counts = Vec::new();
    let records = keys.iter().map(|key| (*key, key + 1));
    let summary = table
        .bulk_load(records, |count| reported_counts.push(count))
        .unwrap();
    assert_eq!(summary.record_count, 9_000);
    assert!(
        reported_counts.is_sorted() && *reported_counts.last().unwrap() <= 9_000,
        "{reported_counts:?}"
    );
    let stats = table.stats().unwrap();
    let leaves: u64 = stats.iter().map(|part| part.leaves).sum();
    assert_eq!(leaves, summary.leaf_count);
    for (number, part) in stats.iter().enumerate() {
        assert_eq!((part.records, part.sound), (3_000, true), "part {number}");
    }
    let wanted: Vec<u64> = (0..900).map(|index| index * 7_919 % 27_100).collect();
    let expected: Vec<_> = wanted
        .iter()
        .map(|key| (key % 3 == 0 && *key < 27_000).then_some(key + 1))
        .collect();
    let before = session.counters(OperationKind::MultiGet);
    assert_eq!(table.multi_get(&wanted).unwrap(), expected);
    let after = session.counters(OperationKind::MultiGet);
    assert_eq!(after.operations - before.operations, 3, "one in each part");
    assert_eq!(after.cost.round_trips - before.cost.round_trips, 3);
    assert_eq!(session.last_cost().round_trips, 3);
    assert_eq!(table.multi_get(&[]).unwrap(), []);
    assert_eq!(table.len_estimate().unwrap(), 9_000);
    assert_eq!(table.get(3).unwrap(), Some(4));
    assert_eq!(session.last_cost().round_trips, 1);
    assert!(table.metadata_bytes() > 0 && table.memory_bytes().unwrap() >= 3 << 16);
}

/// Promise: the error of a failed load says which parts are loaded: none if the first one with
/// records failed, else those before it. A part that has records is found before any is loaded.
#[test]
fn a_load_that_fails_says_what_is_loaded() {
    let pools = parts_over([MEM, MEM, MEM]);
    let session = pools.session().unwrap();
    let load = |table: &PartitionedTable, keys: &[u64]| {
        let records = keys.iter().map(|key| (*key, 0));
        table.bulk_load(records, |_| {}).expect_err("it fails")
    };
    let loaded = table(&session, LayerKind::Learned, &[100, 200]);
    let error = load(&loaded, &[5, 4, 150, 250]);
    let message = error.to_string();
    assert!(
        matches!(error.kind_in_pool(), ErrorKind::Load(_)),
        "{message}"
    );
    assert!(
        message.starts_with("part 0 of table 't', in mem:: "),
        "{message}"
    );
    assert_eq!(super::records_of(&loaded), []);
    // A sequence that does not ascend across a bound is rejected as well.
    for keys in [[5, 250, 150], [5, 250, 50]] {
        session.drop_table("t").unwrap();
        let loaded = table(&session, LayerKind::Learned, &[100, 200]);
        let error = load(&loaded, &keys);
        let is_told = matches!(
            error.kind(),
            ErrorKind::Partition(PartitionError::PartlyLoaded {
                number: 2,
                loaded: 1,
                ..
            })
        );
        let message = error.to_string();
        assert!(
            is_told && message.contains("the parts before it are loaded (1 records), "),
            "{message}"
        );
        assert_eq!(super::records_of(&loaded), [(5, 0)]);
    }
    session.drop_table("t").unwrap();
    let taken = table(&session, LayerKind::Learned, &[100, 200]);
    taken.put(250, 7).unwrap();
    let error = load(&taken, &[1, 101]);
    let is_taken = matches!(
        error.kind_in_pool(),
        ErrorKind::Load(LoadError::TableNotEmpty)
    );
    let message = error.to_string();
    assert!(is_taken && message.starts_with("part 2 of"), "{message}");
    assert_eq!(super::records_of(&taken), [(250, 7)]);
}

/// Promise: many operations of one thread run concurrently on all parts, and each sees the effect
/// of the previous one on its key.
#[test]
fn futures_of_all_parts_go_on_together() {
    for layer in [LayerKind::Learned, LayerKind::Xstore, LayerKind::Rpc] {
        let pools = parts_over([TCP, TCP, MEM]);
        let session = pools.session().unwrap();
        let table = table(&session, layer, &[100, 200]);
        let mut tasks = TaskSet::with_capacity(16);
        let work = |key: u64| {
            let table = table.asynchronous().clone();
            async move {
                for round in 0..5 {
                    let before = table.put(key, round).await.unwrap();
                    assert_eq!(before, round.checked_sub(1));
                    assert_eq!(table.get(key).await.unwrap(), Some(round));
                }
            }
        };
        let mut done_count = 0;
        for key in 0..300 {
            tasks.run_until_vacant(session.completions(), |()| done_count += 1);
            match tasks.spawn(work(key)) {
                Ok(None) => {}
                Ok(Some(())) => done_count += 1,
                Err(_) => unreachable!("there was room"),
            }
        }
        tasks.drain(session.completions(), |()| done_count += 1);
        assert_eq!(done_count, 300);
        let expected: Vec<(u64, u64)> = (0..300).map(|key| (key, 4)).collect();
        assert_eq!(super::records_of(&table), expected);
        drop((table, tasks));
        session.close().unwrap();
    }
}

/// Promise: threads with their own sessions see each other's writes in every part.
#[test]
fn sessions_of_several_threads_share_the_table() {
    let pools = parts_over([SHM, TCP]);
    let session = pools.session().unwrap();
    let table = table(&session, LayerKind::Xstore, &[1_000]);
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let pools = pools.clone();
            scope.spawn(move || {
                let session = pools.session().unwrap();
                let table = session.open_table("t").unwrap();
                for index in 0..300 {
                    table.put(thread + index * 7, thread).unwrap();
                }
            });
        }
    });
    let count = super::records_of(&table).len();
    let mut expected: Vec<u64> = (0..3)
        .flat_map(|it| (0..300).map(move |i| it + i * 7))
        .collect();
    expected.sort_unstable();
    expected.dedup();
    assert_eq!(count, expected.len());
}

/// Promise: session options apply to each part: a budget is kept in each, and the sum is returned.
#[test]
fn a_metadata_budget_is_one_for_each_part() {
    let options = PoolOptions {
        size_bytes: 32 << 20,
        ..PoolOptions::default()
    };
    let pools = (0..2).map(|_| Pool::embedded(&options).unwrap()).collect();
    let pools = PartitionedPool::new(pools).unwrap();
    let session = pools.session().unwrap();
    let table = table(&session, LayerKind::Learned, &[300_000]);
    let records = (0..60_000_u64).map(|key| (key * 10, key));
    table.bulk_load(records, |_| {}).unwrap();
    let budget = 4 << 10;
    let options = SessionOptions {
        metadata_budget_bytes: Some(budget),
        ..SessionOptions::default()
    };
    let session = pools.session_with(&options).unwrap();
    let table = session.open_table("t").unwrap();
    for key in (0..60_000).step_by(37) {
        assert_eq!(table.get(key * 10).unwrap(), Some(key));
    }
    for part in table.parts() {
        assert!(part.metadata_bytes() <= budget);
        assert!(part.partial_counts().unwrap().residual_pages_fetched > 0);
    }
    let sum = table.partial_counts().unwrap().residual_pages_fetched;
    let parts = table.parts().iter();
    let fetched = parts.map(|part| part.partial_counts().unwrap().residual_pages_fetched);
    assert_eq!(sum, fetched.sum::<u64>());
    assert!(table.hint_counters().fallback_count == 0);
}
