//! What the library promises, on all fabrics of this crate.

mod at_once;
mod budget;
mod delayed;
mod examples;
mod fenced;
mod growth;
mod load;
mod model;
mod retraining;
mod rights;
mod several_nodes;
mod tables;
mod threads;

use farleaf::{EmbeddedFabric, LayerKind, Pool, PoolOptions, TableOptions};

/// Fabrics on which a round trip costs next to nothing.
const MAPPED: [EmbeddedFabric; 2] = [EmbeddedFabric::Mem, EmbeddedFabric::Shm { name: None }];

/// Fabrics on which a batch is a message, and on the last one several.
const NETWORKED: [EmbeddedFabric; 2] =
    [EmbeddedFabric::Tcp, EmbeddedFabric::Nodes { node_count: 3 }];

/// A pool of this process, over each fabric in turn. Nothing in it changes by itself.
fn pools(size_mib: u64) -> Vec<Pool> {
    let fabrics = MAPPED.into_iter().chain([EmbeddedFabric::Tcp]);
    pools_over(fabrics, size_mib, 0)
}

/// The same for tests of some hundred thousand round trips one after the other, which a network
/// makes long and not different.
fn mapped_pools(size_mib: u64) -> Vec<Pool> {
    pools_over(MAPPED, size_mib, 0)
}

/// [`pools`] whose tables are retrained.
fn retraining_pools(size_mib: u64) -> Vec<Pool> {
    let fabrics = MAPPED.into_iter().chain([EmbeddedFabric::Tcp]);
    pools_over(fabrics, size_mib, 1)
}

/// [`mapped_pools`] whose tables are retrained.
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
    });
    options
        .map(|options| Pool::embedded(&options).expect("an embedded pool"))
        .collect()
}

/// Every combination of slots and search layer.
fn all_options() -> Vec<TableOptions> {
    let mut all = Vec::new();
    for layer in [LayerKind::Learned, LayerKind::Rolex] {
        for slots in [8, 12, 16] {
            all.push(TableOptions {
                slots,
                layer,
                ..TableOptions::default()
            });
        }
    }
    all
}
