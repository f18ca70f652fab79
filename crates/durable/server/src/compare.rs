//! Comparison of replicas, byte by byte, from the directories of their servers.
//!
//! The files are read without opening an engine, without locks, and without changes. While a server
//! runs its files may change between two reads, and what was written last may not be in them yet.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use farleaf_cluster::ids::{Epoch, RegionId, ReplicaNumber, TableId};
use farleaf_lsm::follow::IndexKind;
use farleaf_lsm::inspect::{Comparison, Inspection, compare};
use farleaf_lsm::storage::{DirectoryStorage, Storage};

use crate::directory::{REGIONS, cluster_of, failed};
use crate::error::ServerError;
use crate::open_storage::OpenStorage;
use crate::place::{ReplicaNote, ReplicaStore, replica_directories};

/// The copy of a region that is in force in a server's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaDirectory {
    /// The table that the region belongs to.
    pub table: TableId,
    /// The region.
    pub region: RegionId,
    /// Number of the replica.
    pub replica: ReplicaNumber,
    /// Newest epoch at which the replica was opened.
    pub epoch: Epoch,
    /// Directory of the engine's files.
    pub path: PathBuf,
}

/// Result of comparing the replicas of a region.
#[derive(Debug)]
pub struct RegionComparison {
    /// The replica that the others were compared with: the primary's, or the first backup's.
    pub first: ReplicaDirectory,
    /// Corruption that the first replica has by itself, one line each, if there are no others.
    pub damage: Vec<String>,
    /// The other replicas that were opened at the same epoch, with their comparisons.
    pub others: Vec<(ReplicaDirectory, Comparison)>,
    /// Replicas of older epochs. They may be outdated, and were not compared.
    pub stale: Vec<ReplicaDirectory>,
}

/// Lists the copies in force in the directory of a server, by region.
///
/// # Errors
/// If the directory is not a server's, or a file in it cannot be read.
pub fn replicas_in(server: &Path) -> Result<Vec<ReplicaDirectory>, ServerError> {
    let regions = server.join(REGIONS);
    let mut replicas = Vec::new();
    for (region, replica) in replica_directories(&regions)? {
        replicas.extend(replica_in(server, region, replica)?);
    }
    replicas.sort_by_key(|it| (it.region, it.replica));
    Ok(replicas)
}

/// Finds the copy in force of one replica in the directory of a server; `None` if there is none.
///
/// # Errors
/// If the copy's note is corrupted, or cannot be read.
pub fn replica_in(
    server: &Path,
    region: RegionId,
    replica: ReplicaNumber,
) -> Result<Option<ReplicaDirectory>, ServerError> {
    let regions = server.join(REGIONS);
    let cluster = cluster_of(server)?;
    let place = ReplicaStore::new(&regions, cluster, region, replica, OpenStorage::default());
    // Without a note the copy was never complete.
    let note = place.note_of_any()?;
    Ok(note.map(|note| of_note(&note, place.data(note.generation))))
}

const fn of_note(note: &ReplicaNote, path: PathBuf) -> ReplicaDirectory {
    ReplicaDirectory {
        table: note.table,
        region: note.region,
        replica: note.replica,
        epoch: note.epoch,
        path,
    }
}

/// Compares the replicas of one region. `index` says whether backups have the primary's trees.
///
/// # Errors
/// If a manifest is corrupted, or a file cannot be read.
///
/// # Panics
/// If there is no replica.
pub fn compare_region(
    replicas: &[ReplicaDirectory],
    index: IndexKind,
) -> Result<RegionComparison, ServerError> {
    let newest = replicas.iter().map(|it| it.epoch).max();
    let newest = newest.expect("a region has a replica");
    let (current, stale): (Vec<_>, Vec<_>) =
        replicas.iter().cloned().partition(|it| it.epoch == newest);
    let mut inspected = Vec::new();
    for replica in current {
        inspected.push((inspect(&replica.path)?, replica));
    }
    let primary = inspected.iter().position(|it| !it.0.is_follower());
    let (inspection, first) = inspected.remove(primary.unwrap_or(0));
    let damage = if inspected.is_empty() {
        let damage = inspection.damage().iter();
        damage.map(ToString::to_string).collect()
    } else {
        Vec::new()
    };
    let mut others = Vec::new();
    for (other, replica) in inspected {
        others.push((replica, compare(&inspection, &other, index)?));
    }
    Ok(RegionComparison {
        first,
        damage,
        others,
        stale,
    })
}

/// Inspects a directory. A missing one is not created, as opening it as an engine's would do.
fn inspect(path: &Path) -> Result<Inspection, ServerError> {
    std::fs::read_dir(path).map_err(failed("list", path))?;
    let storage = DirectoryStorage::open(path).map_err(failed("open", path))?;
    let storage: Arc<dyn Storage> = Arc::new(storage);
    Ok(Inspection::read(&storage)?)
}
