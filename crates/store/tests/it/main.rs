//! What the library promises, on both fabrics of this crate.

mod at_once;
mod budget;
mod examples;
mod growth;
mod load;
mod model;
mod retraining;
mod tables;
mod threads;

use farleaf::{EmbeddedFabric, LayerKind, Pool, PoolOptions, TableOptions};

/// A pool of this process, over each fabric in turn. Nothing in it changes by itself.
fn pools(size_mib: u64) -> Vec<Pool> {
    pools_with(size_mib, 0)
}

/// The same whose tables are retrained.
fn retraining_pools(size_mib: u64) -> Vec<Pool> {
    pools_with(size_mib, 1)
}

fn pools_with(size_mib: u64, retrain_thread_count: u32) -> Vec<Pool> {
    [
        EmbeddedFabric::Mem,
        EmbeddedFabric::Shm { name: None },
        EmbeddedFabric::Tcp,
    ]
    .into_iter()
    .map(|fabric| PoolOptions {
        fabric,
        size_bytes: size_mib << 20,
        retrain_thread_count,
    })
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
