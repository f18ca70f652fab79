//! Data that all sessions of a process share, for every fabric.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use farleaf_base::{RemoteAddr, TableId};
use farleaf_executor::backoff;
use farleaf_fabric::Endpoint;
use farleaf_index::Directory;
use farleaf_index::snapshot::read_snapshot;
use farleaf_index::strings::ByteDirectory;
use farleaf_index::xstore::layer::SharedModels;
use farleaf_leaf::words::{LeafGeometry, LocalLocks};
use farleaf_pool::PoolLayout;

use crate::Error;
use crate::process::ProcessState;
use crate::tree_cache::TreeCaches;

/// Root word, and the directory that was read through it.
type CachedDirectory = (RemoteAddr, Arc<Directory>);

/// Data that all sessions of a process share: the pool's layout, the directories of tables that any
/// session has open, and the process's background work (see the module `process`).
#[derive(Debug)]
pub struct PoolShare {
    pub(crate) address: String,
    pub(crate) layout: PoolLayout,
    pub(crate) process: ProcessState,
    directories: Mutex<HashMap<TableId, CachedDirectory>>,
    /// Directories of tables of byte strings, with the roots through which they were read.
    byte_directories: Mutex<HashMap<TableId, (RemoteAddr, Arc<ByteDirectory>)>>,
    pub(crate) tree_caches: TreeCaches,
    models: Mutex<HashMap<TableId, Arc<SharedModels>>>,
    pub(crate) local_locks: Arc<LocalLocks>,
    /// Roots whose directories a session is reading.
    reading: Mutex<BTreeSet<(TableId, RemoteAddr)>>,
}

/// Number of times a session checks whether another one has read a directory, before it reads the
/// directory itself. The limit is needed because the other session's future may no longer be
/// polled. All checks take some tenths of a millisecond.
pub(crate) const DIRECTORY_WAIT_COUNT_MAX: u32 = 64;

/// Guard that exists while a session reads the directory behind a root.
pub(crate) struct DirectoryReadGuard<'a> {
    share: &'a PoolShare,
    root: (TableId, RemoteAddr),
}

impl Drop for DirectoryReadGuard<'_> {
    fn drop(&mut self) {
        self.share.reading().remove(&self.root);
    }
}

impl PoolShare {
    /// Creates empty caches. The caller must run
    /// [`SequencePublisher::tick`](crate::host::SequencePublisher) regularly, or no memory is ever
    /// reused.
    pub fn new(address: String, layout: PoolLayout) -> Self {
        Self {
            address,
            layout,
            process: ProcessState::default(),
            directories: Mutex::default(),
            byte_directories: Mutex::default(),
            tree_caches: TreeCaches::default(),
            models: Mutex::default(),
            local_locks: Arc::default(),
            reading: Mutex::default(),
        }
    }

    /// Shares the local locks of another `PoolShare` of the same pool, so that writers of both wait
    /// for each other as those of one process do. Locks must not be shared between pools, because a
    /// lock is identified by a leaf's address within one pool.
    #[must_use]
    pub fn with_local_locks(self, local_locks: Arc<LocalLocks>) -> Self {
        Self {
            local_locks,
            ..self
        }
    }

    /// Returns the layout of the pool's memory.
    pub fn layout(&self) -> &PoolLayout {
        &self.layout
    }

    /// Returns the directory behind a root, and caches it for other sessions. When a root changes,
    /// all sessions of a process request the directory at once. One of them reads it, and the
    /// others wait for a bounded time.
    pub(crate) async fn directory<E: Endpoint>(
        &self,
        endpoint: &E,
        geometry: LeafGeometry,
        table: TableId,
        root: RemoteAddr,
    ) -> Result<Arc<Directory>, Error> {
        let mut reading = None;
        for attempt in 0..DIRECTORY_WAIT_COUNT_MAX {
            reading = self.begin_reading(table, root);
            if let Some(directory) = self.known(table, root) {
                return Ok(directory);
            }
            if reading.is_some() {
                break;
            }
            backoff(attempt).await;
        }
        let _reading = reading;
        self.refresh_nodes(endpoint).await?;
        let read = read_snapshot(endpoint, &self.layout, geometry, table, root).await?;
        if let Some(directory) = self.known(table, root) {
            return Ok(directory);
        }
        let directory = Arc::new(read);
        let cached = (root, Arc::clone(&directory));
        self.directories().insert(table, cached);
        Ok(directory)
    }

    /// Returns the directory of a table of byte strings like [`directory`](Self::directory); `read`
    /// reads it.
    pub(crate) async fn byte_directory<E: Endpoint>(
        &self,
        endpoint: &E,
        table: TableId,
        root: RemoteAddr,
        read: impl AsyncFnOnce() -> Result<ByteDirectory, Error>,
    ) -> Result<Arc<ByteDirectory>, Error> {
        let mut reading = None;
        for attempt in 0..DIRECTORY_WAIT_COUNT_MAX {
            reading = self.begin_reading(table, root);
            if let Some(directory) = self.known_bytes(table, root) {
                return Ok(directory);
            }
            if reading.is_some() {
                break;
            }
            backoff(attempt).await;
        }
        let _reading = reading;
        self.refresh_nodes(endpoint).await?;
        Ok(self.keep_bytes(table, root, read().await?))
    }

    /// Returns a newer directory than `old` that was read through the same root: one that another
    /// session has read meanwhile, or one that is read now. `None`: another session is reading one.
    pub(crate) async fn newer_byte_directory<E: Endpoint>(
        &self,
        endpoint: &E,
        table: TableId,
        root: RemoteAddr,
        old: &Arc<ByteDirectory>,
        read: impl AsyncFnOnce() -> Result<ByteDirectory, Error>,
    ) -> Result<Option<Arc<ByteDirectory>>, Error> {
        let known = self.known_bytes(table, root);
        if let Some(newer) = known.filter(|known| !Arc::ptr_eq(known, old)) {
            return Ok(Some(newer));
        }
        let Some(_reading) = self.begin_reading(table, root) else {
            return Ok(None);
        };
        self.refresh_nodes(endpoint).await?;
        Ok(Some(self.keep_bytes(table, root, read().await?)))
    }

    fn keep_bytes(
        &self,
        table: TableId,
        root: RemoteAddr,
        directory: ByteDirectory,
    ) -> Arc<ByteDirectory> {
        let directory = Arc::new(directory);
        let cached = (root, Arc::clone(&directory));
        self.byte_directories().insert(table, cached);
        directory
    }

    fn known_bytes(&self, table: TableId, root: RemoteAddr) -> Option<Arc<ByteDirectory>> {
        let directories = self.byte_directories();
        let (known, directory) = directories.get(&table)?;
        (*known == root).then(|| Arc::clone(directory))
    }

    fn byte_directories(
        &self,
    ) -> std::sync::MutexGuard<'_, HashMap<TableId, (RemoteAddr, Arc<ByteDirectory>)>> {
        let directories = self.byte_directories.lock();
        directories.unwrap_or_else(PoisonError::into_inner)
    }

    /// Refreshes the member table, because the data to be read may refer to a node that joined
    /// after the last refresh.
    pub(crate) async fn refresh_nodes<E: Endpoint>(&self, endpoint: &E) -> Result<(), Error> {
        self.layout
            .members()
            .refresh(endpoint, &self.layout)
            .await?;
        Ok(())
    }

    /// Marks a root as being read; `None` if another session is reading it.
    pub(crate) fn begin_reading(
        &self,
        table: TableId,
        root: RemoteAddr,
    ) -> Option<DirectoryReadGuard<'_>> {
        let root = (table, root);
        let is_first = self.reading().insert(root);
        is_first.then(|| DirectoryReadGuard { share: self, root })
    }

    fn reading(&self) -> std::sync::MutexGuard<'_, BTreeSet<(TableId, RemoteAddr)>> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, table: TableId, root: RemoteAddr) -> Option<Arc<Directory>> {
        let directories = self.directories();
        let (known, directory) = directories.get(&table)?;
        (*known == root).then(|| Arc::clone(directory))
    }

    /// Removes a dropped table's directories, tree cache and models.
    pub(crate) fn forget(&self, table: TableId) {
        self.directories().remove(&table);
        self.byte_directories().remove(&table);
        self.tree_caches.forget(table);
        let models = self.models.lock();
        models
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&table);
    }

    /// Returns the cache of a table's models that all sessions share.
    pub(crate) fn models(&self, table: TableId) -> Arc<SharedModels> {
        let models = self.models.lock();
        let mut models = models.unwrap_or_else(PoisonError::into_inner);
        Arc::clone(models.entry(table).or_default())
    }

    fn directories(&self) -> std::sync::MutexGuard<'_, HashMap<TableId, CachedDirectory>> {
        self.directories
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use farleaf_executor::block_on;
    use farleaf_index::load::finish_root;

    use super::*;
    use crate::{AsyncTable, Pool, PoolOptions, Table, TableOptions};

    fn table() -> Table {
        let pool = Pool::embedded(&PoolOptions {
            size_bytes: 32 << 20,
            retrain_thread_count: 0,
            ..PoolOptions::default()
        });
        let session = pool.expect("a pool").session().expect("a session");
        let table = session.create_table("t", &TableOptions::default());
        let table = table.expect("a table");
        let records = (0..1000).map(|key| (key, key));
        table.bulk_load(records, |_| {}).expect("a load");
        table
    }

    /// Returns a table's number and the current root in its catalog entry.
    fn root_of(table: &AsyncTable) -> (TableId, RemoteAddr) {
        let entry = &table.state.entry;
        let access = table.session.access(&table.state);
        let broken = std::cell::Cell::new(false);
        let root = block_on(finish_root(&access, entry, &broken), || 0);
        (entry.record.id, root.expect("a root"))
    }

    /// Promise: while one session reads a directory the others wait for it and use its result. A
    /// cancelled read does not block them.
    #[test]
    fn one_session_reads_for_all() {
        let table = table();
        let table = table.asynchronous();
        let (id, root) = root_of(table);
        let share = PoolShare::new("mem:".to_owned(), table.session.layout().clone());
        let (endpoint, geometry) = (&table.session.endpoint, table.state.geometry);
        let read = || share.directory(endpoint, geometry, id, root);
        let reading = share
            .begin_reading(id, root)
            .expect("no other session reads the root");
        assert!(share.begin_reading(id, root).is_none());
        let mut waiting = pin!(read());
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..4 {
            assert!(waiting.as_mut().poll(&mut context).is_pending());
        }
        let other = PoolShare::new("mem:".to_owned(), table.session.layout().clone());
        let known = block_on(other.directory(endpoint, geometry, id, root), || 0);
        let known = known.expect("read");
        share.directories().insert(id, (root, Arc::clone(&known)));
        let mut found = waiting.as_mut().poll(&mut context);
        while found.is_pending() {
            found = waiting.as_mut().poll(&mut context);
        }
        let Poll::Ready(Ok(found)) = found else {
            panic!("it is there")
        };
        assert!(Arc::ptr_eq(&found, &known), "what the other one read");
        drop(reading);
        assert!(share.begin_reading(id, root).is_some());
    }

    /// Promise: a session whose future is never polled again does not block others from the
    /// directory that it has begun to read.
    #[test]
    fn nobody_waits_for_ever() {
        let table = table();
        let table = table.asynchronous();
        let (id, root) = root_of(table);
        let share = PoolShare::new("mem:".to_owned(), table.session.layout().clone());
        let _reading = share
            .begin_reading(id, root)
            .expect("no other session reads the root");
        let (endpoint, geometry) = (&table.session.endpoint, table.state.geometry);
        let read = share.directory(endpoint, geometry, id, root);
        let read = block_on(read, || 0).expect("read");
        assert!(read.leaf_count() > 10);
    }
}
