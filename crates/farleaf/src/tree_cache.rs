//! Caches of tree search layers (RF-tree), which the sessions of a process share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farleaf_base::{RemoteAddr, TableId};
use farleaf_executor::backoff;
use farleaf_fabric::{Endpoint, ProtocolCheck};
use farleaf_index::rf_tree::SearchLayerCache;
use farleaf_index::tree::TreeAccess;
use farleaf_index::tree::head::read_head;

use crate::Error;
use crate::share::{DIRECTORY_WAIT_COUNT_MAX, PoolShare};

/// Newest cache of each table, with the root through which it was read.
#[derive(Debug, Default)]
pub(crate) struct TreeCaches(Mutex<HashMap<TableId, (RemoteAddr, Arc<SearchLayerCache>)>>);

impl TreeCaches {
    fn caches(&self) -> MutexGuard<'_, HashMap<TableId, (RemoteAddr, Arc<SearchLayerCache>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, table: TableId, root: RemoteAddr) -> Option<Arc<SearchLayerCache>> {
        let caches = self.caches();
        let (known, cache) = caches.get(&table)?;
        (*known == root).then(|| Arc::clone(cache))
    }

    pub(crate) fn forget(&self, table: TableId) {
        self.caches().remove(&table);
    }
}

impl PoolShare {
    /// Returns the cache of the tree behind a root. When a root changes, all sessions of a process
    /// request the cache at once. One of them reads it, and the others wait for a bounded time.
    pub(crate) async fn tree_cache<E: Endpoint>(
        &self,
        tree: TreeAccess<'_, E>,
        root: RemoteAddr,
    ) -> Result<Arc<SearchLayerCache>, Error> {
        let table = tree.leaves.table;
        let mut reading = None;
        for attempt in 0..DIRECTORY_WAIT_COUNT_MAX {
            reading = self.begin_reading(table, root);
            if let Some(cache) = self.tree_caches.known(table, root) {
                return Ok(cache);
            }
            if reading.is_some() {
                break;
            }
            backoff(attempt).await;
        }
        let _reading = reading;
        self.read_tree(tree, root).await
    }

    /// Returns a newer cache than `old` that was read through the same root: one that another
    /// session has read meanwhile, or one that is read now. `None`: another session is reading one.
    pub(crate) async fn newer_tree_cache<E: Endpoint>(
        &self,
        tree: TreeAccess<'_, E>,
        root: RemoteAddr,
        old: &Arc<SearchLayerCache>,
    ) -> Result<Option<Arc<SearchLayerCache>>, Error> {
        let table = tree.leaves.table;
        let known = self.tree_caches.known(table, root);
        if let Some(newer) = known.filter(|known| !Arc::ptr_eq(known, old)) {
            return Ok(Some(newer));
        }
        let Some(_reading) = self.begin_reading(table, root) else {
            return Ok(None);
        };
        self.read_tree(tree, root).await.map(Some)
    }

    async fn read_tree<E: Endpoint>(
        &self,
        tree: TreeAccess<'_, E>,
        root: RemoteAddr,
    ) -> Result<Arc<SearchLayerCache>, Error> {
        self.refresh_nodes(tree.leaves.endpoint).await?;
        let head = read_head(&tree.leaves, root).await?;
        let mut level = tree.level(head.generation).await?;
        if tree
            .leaves
            .endpoint
            .skips_check(ProtocolCheck::CacheIsComplete)
        {
            level.entries.truncate(level.entries.len() / 2);
        }
        // Only a complete level becomes a cache, which replaces the previous one as a whole.
        let cache = Arc::new(SearchLayerCache::new(head, level));
        let cached = (root, Arc::clone(&cache));
        self.tree_caches.caches().insert(tree.leaves.table, cached);
        Ok(cache)
    }
}
