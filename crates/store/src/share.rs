//! What all sessions of a process share, whatever fabric they use.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use farleaf_fabric::Endpoint;
use farleaf_index::Directory;
use farleaf_index::snapshot::read_snapshot;
use farleaf_leaf::LeafGeometry;
use farleaf_region::RegionLayout;
use farleaf_types::{RemoteAddr, TableId};

use crate::Error;
use crate::process::Process;

/// A root word and the directory that was read through it.
type CachedDirectory = (RemoteAddr, Arc<Directory>);

/// What all sessions of a process share: where the pool's parts are, the directories of tables that
/// any of them has open, and what the process does for them (P1 to P4).
#[derive(Debug)]
pub struct PoolShare {
    pub(crate) address: String,
    pub(crate) layout: RegionLayout,
    pub(crate) process: Process,
    directories: Mutex<HashMap<TableId, CachedDirectory>>,
}

impl PoolShare {
    /// Nothing read yet. Somebody must let [`ProcessKeeper::tick`](crate::host::ProcessKeeper)
    /// run now and then, or no memory is ever reused.
    pub fn new(address: String, layout: RegionLayout) -> Self {
        Self {
            address,
            layout,
            process: Process::default(),
            directories: Mutex::default(),
        }
    }

    /// The parts of the pool's region.
    pub fn layout(&self) -> &RegionLayout {
        &self.layout
    }

    /// The directory behind a root, kept for the sessions to come. Two sessions that ask at the
    /// same moment may both read it; the later one's is dropped.
    pub(crate) async fn directory<E: Endpoint>(
        &self,
        endpoint: &E,
        geometry: LeafGeometry,
        table: TableId,
        root: RemoteAddr,
    ) -> Result<Arc<Directory>, Error> {
        if let Some(directory) = self.known(table, root) {
            return Ok(directory);
        }
        let read = read_snapshot(endpoint, &self.layout, geometry, table, root).await?;
        if let Some(directory) = self.known(table, root) {
            return Ok(directory);
        }
        let directory = Arc::new(read);
        let cached = (root, Arc::clone(&directory));
        self.directories().insert(table, cached);
        Ok(directory)
    }

    fn known(&self, table: TableId, root: RemoteAddr) -> Option<Arc<Directory>> {
        let directories = self.directories();
        let (known, directory) = directories.get(&table)?;
        (*known == root).then(|| Arc::clone(directory))
    }

    /// Forgets a dropped table's directory.
    pub(crate) fn forget(&self, table: TableId) {
        self.directories().remove(&table);
    }

    fn directories(&self) -> std::sync::MutexGuard<'_, HashMap<TableId, CachedDirectory>> {
        self.directories
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
