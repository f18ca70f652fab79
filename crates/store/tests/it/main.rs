//! What the library promises, on both fabrics of this crate.

mod at_once;
mod budget;
mod examples;
mod growth;
mod load;
mod model;
mod tables;
mod threads;

use farleaf::{EmbeddedFabric, LayerKind, Pool, PoolOptions, TableOptions};

/// A pool of this process, over each fabric in turn.
fn pools(size_mib: u64) -> Vec<Pool> {
    [EmbeddedFabric::Mem, EmbeddedFabric::Shm { name: None }]
        .into_iter()
        .map(|fabric| PoolOptions {
            fabric,
            size_bytes: size_mib << 20,
            ..PoolOptions::default()
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
