//! Search structures of a loaded table, as a session would hold them: counted, not kept.

use std::cell::Cell;
use std::sync::Arc;

use farleaf_base::RemoteAddr;
use farleaf_executor::block_on;
use farleaf_index::hint::SearchLayer;
use farleaf_index::inner_cache::{CACHE_BYTES_DEFAULT, InnerCacheLayer};
use farleaf_index::rf_tree::SearchLayerCache;
use farleaf_index::snapshot::read_snapshot;
use farleaf_index::tree::TreeAccess;
use farleaf_index::tree::head::read_head;
use farleaf_index::{
    IndexError, Layer, LayerKind, fg::FgLayer, rf_tree::RfTreeLayer, tree::level::Level,
};
use farleaf_leaf::words::LeafAccess;

use crate::fabric::endpoint::StillEndpoint;

/// Bytes that a session holds for one memory node's table, before it has met anything created by
/// splits.
#[derive(Clone, Debug, Default)]
pub(super) struct Searched {
    pub(super) leaf_count: u64,
    pub(super) model_count: usize,
    pub(super) metadata_bytes: u64,
    /// Low fence keys of the inner nodes that list leaves, for a layer that caches inner nodes one
    /// by one.
    pub(super) cached_fences: Vec<u64>,
}

/// Reads the structures like the library does when a session opens the table.
pub(super) fn searched(
    access: LeafAccess<'_, StillEndpoint>,
    kind: LayerKind,
    root: RemoteAddr,
) -> Result<Searched, IndexError> {
    if kind.has_tree() {
        return block_on(tree(access, kind, root), || 0);
    }
    let (layout, geometry, table) = (access.layout, access.geometry, access.table);
    let snapshot = read_snapshot(access.endpoint, layout, geometry, table, root);
    let directory = block_on(snapshot, || 0)?;
    Ok(Searched {
        leaf_count: directory.leaf_count().into(),
        model_count: directory.model_count(),
        metadata_bytes: Layer::new(kind, Arc::new(directory)).metadata_bytes(),
        cached_fences: Vec::new(),
    })
}

async fn tree(
    access: LeafAccess<'_, StillEndpoint>,
    kind: LayerKind,
    root: RemoteAddr,
) -> Result<Searched, IndexError> {
    let broken = Cell::default();
    let tree = TreeAccess {
        leaves: access,
        broken: &broken,
    };
    let head = read_head(&access, root).await?;
    let level: Level = tree.level(head.generation).await?;
    let leaf_count = level.entries.len() as u64;
    let mut cached_fences = Vec::new();
    let metadata_bytes = match (kind, kind.cached_level_min()) {
        (LayerKind::RfTree, _) => {
            let cache = Arc::new(SearchLayerCache::new(head, level));
            RfTreeLayer::new(cache).metadata_bytes()
        }
        (_, Some(level_min)) => {
            // The state after the session has met every node, as far as the budget goes.
            cached_fences = level.nodes.iter().map(|node| node.low).collect();
            let mut layer = InnerCacheLayer::new(head, CACHE_BYTES_DEFAULT, level_min);
            let visit = |_, node: &_| layer.keep(node);
            tree.nodes(head.generation, visit).await?;
            layer.metadata_bytes()
        }
        (_, None) => FgLayer::new(head).metadata_bytes(),
    };
    Ok(Searched {
        leaf_count,
        model_count: 0,
        metadata_bytes,
        cached_fences,
    })
}
