//! Tests of the library's promises on all fabrics of this crate.

mod at_once;
mod budget;
mod byte_keys;
mod byte_stats;
mod bytes;
mod bytes_budget;
mod bytes_emptied;
mod bytes_full;
mod bytes_listing_lost;
mod bytes_remote;
mod bytes_rf_tree;
mod bytes_scans;
mod bytes_split;
mod bytes_text;
mod bytes_typed;
mod bytes_untrained;
mod calls;
mod compaction;
mod cut_off;
mod delayed;
mod draining;
mod examples;
mod fenced;
mod growth;
mod load;
mod model;
mod newcomers;
mod partitions;
mod partitions_lost;
mod partitions_opened;
mod retraining;
mod rights;
mod several_nodes;
mod tables;
mod threads;
mod trees;
mod xstore;

use farleaf::{
    EmbeddedFabric, Error, Insertion, LayerKind, Pool, PoolOptions, Swap, TableOptions, Update,
};

/// Fabrics on which a round trip costs almost nothing.
const MAPPED: [EmbeddedFabric; 2] = [EmbeddedFabric::Mem, EmbeddedFabric::Shm { name: None }];

/// Three nodes, so that a batch sends a message to each node that it concerns.
const NODES: EmbeddedFabric = EmbeddedFabric::Nodes { node_count: 3 };

/// Search layers that find leaves by a tree.
const TREES: [LayerKind; 4] = [
    LayerKind::RfTree,
    LayerKind::Fg,
    LayerKind::Sherman,
    LayerKind::Cell,
];

/// Returns a pool of this process over each fabric in turn, without background work. The last one
/// includes everything that `tcp` to one node has.
fn pools(size_mib: u64) -> Vec<Pool> {
    let fabrics = MAPPED.into_iter().chain([NODES]);
    pools_over(fabrics, size_mib, 0)
}

/// Returns only pools on fast fabrics, for tests of some hundred thousand consecutive round trips,
/// which a network would only make slower.
fn mapped_pools(size_mib: u64) -> Vec<Pool> {
    pools_over(MAPPED, size_mib, 0)
}

/// Returns [`pools`] whose tables are retrained.
fn retraining_pools(size_mib: u64) -> Vec<Pool> {
    let fabrics = MAPPED.into_iter().chain([EmbeddedFabric::Tcp]);
    pools_over(fabrics, size_mib, 1)
}

/// Returns [`mapped_pools`] whose tables are retrained.
fn mapped_retraining_pools(size_mib: u64) -> Vec<Pool> {
    pools_over(MAPPED, size_mib, 1)
}

fn pools_over(
    fabrics: impl IntoIterator<Item = EmbeddedFabric>,
    size_mib: u64,
    retrain_thread_count: u32,
) -> Vec<Pool> {
    let options = fabrics.into_iter().map(|fabric| PoolOptions {
        fabric,
        size_bytes: size_mib << 20,
        retrain_thread_count,
        ..PoolOptions::default()
    });
    options
        .map(|options| Pool::embedded(&options).expect("an embedded pool"))
        .collect()
}

/// Returns options with every search layer and every number of slots.
fn all_options() -> Vec<TableOptions> {
    let all = [
        (LayerKind::Learned, 8),
        (LayerKind::Learned, 12),
        (LayerKind::Learned, 16),
        (LayerKind::Rolex, 8),
        (LayerKind::Rolex, 16),
        (LayerKind::RfTree, 8),
        (LayerKind::Fg, 12),
        (LayerKind::Sherman, 16),
        (LayerKind::Cell, 8),
        (LayerKind::Rpc, 8),
    ];
    let options = all.map(|(layer, slots)| TableOptions {
        slots,
        layer,
        ..TableOptions::default()
    });
    options.into()
}

/// Returns options with each search layer once.
fn each_layer() -> Vec<TableOptions> {
    let mut options = all_options();
    options.dedup_by_key(|options| options.layer);
    options
}

/// Returns options with the search layers whose models are retrained.
fn trained_options() -> Vec<TableOptions> {
    let mut options = leaf_options();
    options.retain(|options| !options.layer.has_tree());
    options
}

/// Returns those of [`all_options`] whose records are stored in leaves.
fn leaf_options() -> Vec<TableOptions> {
    let mut options = all_options();
    options.retain(|options| options.layer.has_leaves());
    options
}

/// Checks that each kind of write on an empty table returns the previous value and has the right
/// effect.
fn check_writes(table: &impl model::OrderedMap) {
    assert_eq!(table.get(7).unwrap(), None);
    assert_eq!(table.update(7, 1).unwrap(), Update::Absent);
    assert_eq!(table.insert(7, 1).unwrap(), Insertion::Inserted);
    assert_eq!(table.insert(7, 2).unwrap(), Insertion::AlreadyPresent(1));
    assert_eq!(table.update(7, 3).unwrap(), Update::Updated(1));
    assert_eq!(table.put(7, 4).unwrap(), Some(3));
    let swap = |expected, new| table.compare_and_swap(7, expected, new).unwrap();
    assert_eq!(swap(Some(3), Some(5)), Swap::Differs(Some(4)));
    assert_eq!(swap(Some(4), Some(5)), Swap::Swapped);
    assert_eq!(swap(None, Some(6)), Swap::Differs(Some(5)));
    assert_eq!(swap(Some(5), None), Swap::Swapped);
    assert_eq!(swap(None, Some(6)), Swap::Swapped);
    assert_eq!(table.delete(7).unwrap(), Some(6));
    assert_eq!(table.delete(7).unwrap(), None);
    for key in [0, u64::MAX] {
        assert_eq!(table.put(key, !key).unwrap(), None);
        assert_eq!(table.get(key).unwrap(), Some(!key));
    }
    assert_eq!(records_of(table), [(0, u64::MAX), (u64::MAX, 0)]);
}

/// Returns all records.
fn records_of(table: &impl model::OrderedMap) -> Vec<(u64, u64)> {
    let records: Result<Vec<_>, Error> = table.range(..).collect();
    records.expect("a scan")
}
