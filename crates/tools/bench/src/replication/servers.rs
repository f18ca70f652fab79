//! Region servers: directories, memory, primaries and backups of two servers, and their
//! connections.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use farleaf_base::{NodeId, WordAddr};
use farleaf_fabric::Endpoint;
use farleaf_fabric::mapped::{MappedEndpoint, MappedMemory};
use farleaf_lsm::follow::IndexKind;
use farleaf_lsm::storage::{DirectoryStorage, Storage, private};
use farleaf_lsm::{Engine, EngineOptions};
use farleaf_replica::{
    Backup, BackupConnections, BackupId, BackupOptions, Epoch, Layout, Primary, ReplicationOptions,
};

use super::config::ReplicationConfig;
use super::error::ReplicationError;
use super::names::ReplicationKind;
use super::shared::{ReplicationRunState, SERVER_COUNT};
use super::traffic::CountedEndpoint;

/// Number of a backup's buffers for log segments.
const SLOT_COUNT: u64 = 4;
/// Size of the cache for blocks of a region's trees.
const CACHE_SIZE_BYTES: usize = 4 << 20;
/// Size of the part of each region's log that stays in memory.
const LOG_MEMORY_SIZE_BYTES: usize = 4 << 20;
/// Epoch of all primaries here; a promotion takes the next one.
pub(super) const EPOCH: Epoch = Epoch(1);
const BACKUP: BackupId = BackupId(1);

/// Location of a run.
#[derive(Debug)]
pub(super) struct RunLocation<'c> {
    pub(super) config: &'c ReplicationConfig,
    pub(super) kind: ReplicationKind,
    pub(super) directory: PathBuf,
    /// Memory of each server; none without replication.
    pub(super) memory: Vec<Arc<MappedMemory>>,
}

impl<'c> RunLocation<'c> {
    pub(super) fn new(
        config: &'c ReplicationConfig,
        kind: ReplicationKind,
        directory: &Path,
    ) -> Result<Self, ReplicationError> {
        let server_count = if kind == ReplicationKind::None {
            0
        } else {
            SERVER_COUNT
        };
        let size_bytes = u64::from(config.regions) * layout(0).word_count() * 8;
        let memory = (0..server_count).map(|_| MappedMemory::anonymous(size_bytes).map(Arc::new));
        let memory = memory.collect::<Result<_, _>>();
        Ok(Self {
            config,
            kind,
            directory: directory.to_owned(),
            memory: memory.map_err(|source| ReplicationError::Memory {
                region_count: config.regions,
                source,
            })?,
        })
    }

    pub(super) fn engine_options(&self) -> EngineOptions {
        EngineOptions {
            l0_entry_count_max: self.config.l0_entries as usize,
            growth_factor: self.config.growth_factor,
            cache_size_bytes: CACHE_SIZE_BYTES,
            log_memory_size_bytes: LOG_MEMORY_SIZE_BYTES,
            ..EngineOptions::new()
        }
    }

    fn storage(&self, server: usize, name: &str) -> Result<Arc<dyn Storage>, ReplicationError> {
        let path = self.directory.join(format!("server-{server}")).join(name);
        let failed = |source| ReplicationError::Directory {
            path: path.clone(),
            source,
        };
        private::create_directory_all(&path).map_err(failed)?;
        let storage = DirectoryStorage::open(&path);
        Ok(Arc::new(storage.map_err(failed)?))
    }

    /// Returns the server that has the primary of a region.
    pub(super) const fn primary_server(&self, region: usize) -> usize {
        region / self.config.regions as usize
    }

    /// Returns the server that has the backup of a region.
    pub(super) const fn backup_server(&self, region: usize) -> usize {
        SERVER_COUNT - 1 - self.primary_server(region)
    }

    /// Returns the first of the regions whose backups a server has.
    pub(super) const fn first_backed_up(&self, server: usize) -> usize {
        (SERVER_COUNT - 1 - server) * self.config.regions as usize
    }

    fn index(&self) -> IndexKind {
        match self.kind {
            ReplicationKind::Built => IndexKind::Built,
            ReplicationKind::None | ReplicationKind::Sent => IndexKind::Sent,
        }
    }

    /// Opens all primaries, without backups.
    pub(super) fn primaries<E: Endpoint + Send + 'static>(
        &self,
    ) -> Result<Vec<Primary<CountedEndpoint<E>>>, ReplicationError> {
        let open = |region| {
            let server = self.primary_server(region);
            let storage = self.storage(server, &format!("primary-{region}"))?;
            let engine = Engine::open(storage, self.engine_options());
            let what = || format!("the primary of region {region}");
            let engine = engine.map_err(ReplicationError::engine(what()))?;
            let options = ReplicationOptions {
                index: self.index(),
                ..ReplicationOptions::new()
            };
            Ok(Primary::new(engine, EPOCH, options))
        };
        (0..self.config.region_count()).map(open).collect()
    }

    /// Opens the backups of a server, which wait for their primaries.
    pub(super) fn backups(
        &self,
        server: usize,
    ) -> Result<Vec<Backup<MappedEndpoint>>, ReplicationError> {
        let Some(memory) = self.memory.get(server) else {
            return Ok(Vec::new());
        };
        let open = |place: usize| {
            let region = self.first_backed_up(server) + place;
            let options = BackupOptions {
                engine: self.engine_options(),
                ..BackupOptions::default()
            };
            let near = MappedEndpoint::new(Arc::clone(memory));
            let storage = self.storage(server, &format!("backup-{region}"))?;
            let backup = Backup::new(near, layout(place as u64), EPOCH, storage, options);
            backup.map_err(ReplicationError::replica(format!(
                "the backup of region {region}"
            )))
        };
        (0..self.config.regions as usize).map(open).collect()
    }

    /// Connects a primary with its backup, which is being served, over endpoints on the backup's
    /// server.
    pub(super) fn join<E: Endpoint + Send + 'static>(
        &self,
        region: usize,
        primary: &Primary<CountedEndpoint<E>>,
        shared: &ReplicationRunState,
        endpoint_to: impl Fn(usize) -> Result<E, ReplicationError>,
    ) -> Result<(), ReplicationError> {
        let server = self.backup_server(region);
        let place = region - self.first_backed_up(server);
        let connections = BackupConnections {
            log: CountedEndpoint::new(endpoint_to(server)?, Arc::clone(&shared.log_traffic)),
            index: CountedEndpoint::new(endpoint_to(server)?, Arc::clone(&shared.index_traffic)),
            layout: layout(place as u64),
        };
        let added = primary.add_backup(BACKUP, connections);
        added.map_err(ReplicationError::replica(format!(
            "copying the table to the backup of region {region}"
        )))
    }
}

/// Returns the memory layout of a server's backup with this number.
fn layout(place: u64) -> Layout {
    let at = |start| {
        Layout::new(WordAddr::new(NodeId(0), start), SLOT_COUNT).expect("two buffers are enough")
    };
    at(place * at(0).word_count())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: each server is primary of one half of the regions and backup of the other half.
    #[test]
    fn servers_back_each_other_up() {
        let config = ReplicationConfig {
            regions: 3,
            ..ReplicationConfig::default()
        };
        let place = RunLocation::new(&config, ReplicationKind::None, Path::new("nowhere"));
        let place = place.expect("no memory is needed");
        let primaries: Vec<_> = (0..6).map(|region| place.primary_server(region)).collect();
        let backups: Vec<_> = (0..6).map(|region| place.backup_server(region)).collect();
        assert_eq!(primaries, [0, 0, 0, 1, 1, 1]);
        assert_eq!(backups, [1, 1, 1, 0, 0, 0]);
        assert_eq!((place.first_backed_up(0), place.first_backed_up(1)), (3, 0));
    }
}
