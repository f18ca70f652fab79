//! What all sessions of a process share, whatever fabric they use.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use farleaf_byte_index::ByteDirectory;
use farleaf_executor::backoff;
use farleaf_fabric::Endpoint;
use farleaf_index::Directory;
use farleaf_index::snapshot::read_snapshot;
use farleaf_index::xstore::layer::SharedModels;
use farleaf_leaf::{LeafGeometry, LocalLocks};
use farleaf_region::PoolLayout;
use farleaf_types::{RemoteAddr, TableId};

use crate::Error;
use crate::process::Process;
use crate::tree_cache::TreeCaches;

/// A root word and the directory that was read through it.
type CachedDirectory = (RemoteAddr, Arc<Directory>);

/// What all sessions of a process share: where the pool's parts are, the directories of tables that
/// any of them has open, and what the process does for them (P1 to P4).
#[derive(Debug)]
pub struct PoolShare {
    pub(crate) address: String,
    pub(crate) layout: PoolLayout,
    pub(crate) process: Process,
    directories: Mutex<HashMap<TableId, CachedDirectory>>,
    /// Of tables of byte strings.
    byte_directories: Mutex<HashMap<TableId, (RemoteAddr, Arc<ByteDirectory>)>>,
    pub(crate) tree_caches: TreeCaches,
    models: Mutex<HashMap<TableId, Arc<SharedModels>>>,
    pub(crate) local_locks: Arc<LocalLocks>,
    /// Roots whose directories some session is reading.
    reading: Mutex<BTreeSet<(TableId, RemoteAddr)>>,
}

/// How often a session looks whether another one has read what it needs, before it reads that by
/// itself: the other's future may be one that nobody polls. Some tenths of a millisecond.
pub(crate) const LOOK_COUNT_MAX: u32 = 64;

/// While it lives, a session is reading the directory behind a root.
pub(crate) struct Reading<'a> {
    share: &'a PoolShare,
    root: (TableId, RemoteAddr),
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.share.reading().remove(&self.root);
    }
}

impl PoolShare {
    /// Nothing read yet. Somebody must let [`ProcessKeeper::tick`](crate::host::ProcessKeeper)
    /// run now and then, or no memory is ever reused.
    pub fn new(address: String, layout: PoolLayout) -> Self {
        Self {
            address,
            layout,
            process: Process::default(),
            directories: Mutex::default(),
            byte_directories: Mutex::default(),
            tree_caches: TreeCaches::default(),
            models: Mutex::default(),
            local_locks: Arc::default(),
            reading: Mutex::default(),
        }
    }

    /// Sessions of several shares of one pool are one process's as far as writers wait for each
    /// other (H1). Not of several pools: a leaf is known by its address there.
    #[must_use]
    pub fn with_local_locks(self, local_locks: Arc<LocalLocks>) -> Self {
        Self {
            local_locks,
            ..self
        }
    }

    /// The parts of the pool's region.
    pub fn layout(&self) -> &PoolLayout {
        &self.layout
    }

    /// The directory behind a root, kept for the sessions to come. When a root has changed, all
    /// sessions of a process ask at once, each for all its operations: one reads, and the others
    /// wait for it, but not for ever.
    pub(crate) async fn directory<E: Endpoint>(
        &self,
        endpoint: &E,
        geometry: LeafGeometry,
        table: TableId,
        root: RemoteAddr,
    ) -> Result<Arc<Directory>, Error> {
        let mut reading = None;
        for attempt in 0..LOOK_COUNT_MAX {
            reading = self.begin_reading((table, root));
            if let Some(directory) = self.known(table, root) {
                return Ok(directory);
            }
            if reading.is_some() {
                break;
            }
            backoff(attempt).await;
        }
        let _reading = reading;
        self.learn_nodes(endpoint).await?;
        let read = read_snapshot(endpoint, &self.layout, geometry, table, root).await?;
        if let Some(directory) = self.known(table, root) {
            return Ok(directory);
        }
        let directory = Arc::new(read);
        let cached = (root, Arc::clone(&directory));
        self.directories().insert(table, cached);
        Ok(directory)
    }

    /// [`directory`](Self::directory) of a table of byte strings, which `read` reads.
    pub(crate) async fn byte_directory<E: Endpoint>(
        &self,
        endpoint: &E,
        (table, root): (TableId, RemoteAddr),
        read: impl AsyncFnOnce() -> Result<ByteDirectory, Error>,
    ) -> Result<Arc<ByteDirectory>, Error> {
        let mut reading = None;
        for attempt in 0..LOOK_COUNT_MAX {
            reading = self.begin_reading((table, root));
            if let Some(directory) = self.known_bytes(table, root) {
                return Ok(directory);
            }
            if reading.is_some() {
                break;
            }
            backoff(attempt).await;
        }
        let _reading = reading;
        self.learn_nodes(endpoint).await?;
        Ok(self.keep_bytes((table, root), read().await?))
    }

    /// A newer directory than `old`, which was read by the same root: one that another session has
    /// read meanwhile, or one that is read now. `None`: another session is reading one.
    pub(crate) async fn newer_byte_directory<E: Endpoint>(
        &self,
        endpoint: &E,
        (table, root): (TableId, RemoteAddr),
        old: &Arc<ByteDirectory>,
        read: impl AsyncFnOnce() -> Result<ByteDirectory, Error>,
    ) -> Result<Option<Arc<ByteDirectory>>, Error> {
        let known = self.known_bytes(table, root);
        if let Some(newer) = known.filter(|known| !Arc::ptr_eq(known, old)) {
            return Ok(Some(newer));
        }
        let Some(_reading) = self.begin_reading((table, root)) else {
            return Ok(None);
        };
        self.learn_nodes(endpoint).await?;
        Ok(Some(self.keep_bytes((table, root), read().await?)))
    }

    fn keep_bytes(
        &self,
        (table, root): (TableId, RemoteAddr),
        directory: ByteDirectory,
    ) -> Arc<ByteDirectory> {
        let directory = Arc::new(directory);
        let kept = (root, Arc::clone(&directory));
        self.byte_directories().insert(table, kept);
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

    /// What is about to be read may name a node that has joined since the process looked last.
    pub(crate) async fn learn_nodes<E: Endpoint>(&self, endpoint: &E) -> Result<(), Error> {
        self.layout
            .members()
            .refresh(endpoint, &self.layout)
            .await?;
        Ok(())
    }

    /// `None`: another session is reading it.
    pub(crate) fn begin_reading(&self, root: (TableId, RemoteAddr)) -> Option<Reading<'_>> {
        let is_first = self.reading().insert(root);
        is_first.then(|| Reading { share: self, root })
    }

    fn reading(&self) -> std::sync::MutexGuard<'_, BTreeSet<(TableId, RemoteAddr)>> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, table: TableId, root: RemoteAddr) -> Option<Arc<Directory>> {
        let directories = self.directories();
        let (known, directory) = directories.get(&table)?;
        (*known == root).then(|| Arc::clone(directory))
    }

    /// Forgets a dropped table's directory, or cache.
    pub(crate) fn forget(&self, table: TableId) {
        self.directories().remove(&table);
        self.byte_directories().remove(&table);
        self.tree_caches.forget(table);
        let models = self.models.lock();
        models
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&table);
    }

    /// What sessions have read of a table's models.
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

    /// A table's number, and the root that its catalog entry has now.
    fn root_of(table: &AsyncTable) -> (TableId, RemoteAddr) {
        let entry = &table.state.entry;
        let access = table.session.access(&table.state);
        let broken = std::cell::Cell::new(false);
        let root = block_on(finish_root(&access, entry, &broken), || 0);
        (entry.record.id, root.expect("a root"))
    }

    /// Promise: while one session reads a directory the others wait for it, and take what it read;
    /// a read that is given up holds up nobody.
    #[test]
    fn one_session_reads_for_all() {
        let table = table();
        let table = table.asynchronous();
        let (id, root) = root_of(table);
        let share = PoolShare::new("mem:".to_owned(), table.session.layout().clone());
        let (endpoint, geometry) = (&table.session.endpoint, table.state.geometry);
        let read = || share.directory(endpoint, geometry, id, root);
        let reading = share.begin_reading((id, root)).expect("nobody reads");
        assert!(share.begin_reading((id, root)).is_none());
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
        assert!(share.begin_reading((id, root)).is_some());
    }

    /// Promise: a session whose future nobody polls any more does not keep others from a directory
    /// that it has begun to read.
    #[test]
    fn nobody_waits_for_ever() {
        let table = table();
        let table = table.asynchronous();
        let (id, root) = root_of(table);
        let share = PoolShare::new("mem:".to_owned(), table.session.layout().clone());
        let _reading = share.begin_reading((id, root)).expect("nobody reads");
        let (endpoint, geometry) = (&table.session.endpoint, table.state.geometry);
        let read = share.directory(endpoint, geometry, id, root);
        let read = block_on(read, || 0).expect("read");
        assert!(read.leaf_count() > 10);
    }
}
