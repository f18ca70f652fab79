//! Replicas' directories that a server finds on its disk.

use std::fs;
use std::path::Path;

use farleaf_cluster::agent::host::DiskCopies;
use farleaf_cluster::ids::{ClusterId, RegionId, ReplicaNumber};
use farleaf_cluster::record::UnusableCopy;
use farleaf_lsm::storage::is_missing_file;

use super::{NO_NOTE, REMOVED, ReplicaStore, remove_all};
use crate::directory::failed;
use crate::error::ServerError;
use crate::open_storage::OpenStorage;

/// Finishes interrupted removals.
fn finish_removals(regions: &Path) -> Result<(), ServerError> {
    for entry in fs::read_dir(regions).map_err(failed("list", regions))? {
        let entry = entry.map_err(failed("list", regions))?;
        if entry.file_name().to_string_lossy().starts_with(REMOVED) {
            remove_all(&entry.path())?;
        }
    }
    Ok(())
}

/// Assigns replicas of an older version, in a directory of the same cluster, to the cluster's new
/// identifier. Notes of another cluster stay unchanged.
pub(crate) fn adopt_replicas(regions: &Path, cluster: ClusterId) -> Result<(), ServerError> {
    if !regions.try_exists().map_err(failed("access", regions))? {
        return Ok(());
    }
    for (region, replica) in replica_directories(regions)? {
        let place = ReplicaStore::new(regions, cluster, region, replica, OpenStorage::default());
        match place.note_of_any() {
            Ok(Some(note)) if note.cluster.is_none() => drop(place.put_in_force(&note)?),
            Ok(_) => {}
            // This one cannot be used, but the others can.
            Err(error) => tracing::error!(%error, "cannot adopt a replica of {region}"),
        }
    }
    Ok(())
}

/// Returns the replicas that have a directory here.
pub(crate) fn replica_directories(
    regions: &Path,
) -> Result<Vec<(RegionId, ReplicaNumber)>, ServerError> {
    let mut replicas = Vec::new();
    for entry in fs::read_dir(regions).map_err(failed("list", regions))? {
        let entry = entry.map_err(failed("list", regions))?;
        let name = entry.file_name();
        let numbers = name.to_str().and_then(|it| it.split_once('-'));
        if let Some((region, replica)) = numbers
            && let (Ok(region), Ok(replica)) = (region.parse(), replica.parse())
        {
            replicas.push((RegionId(region), ReplicaNumber(replica)));
        }
    }
    Ok(replicas)
}

/// Returns whether the content is corrupted, so that no retry can read it.
pub(crate) fn is_corruption(error: &ServerError) -> bool {
    use ServerError::{Damaged, Engine, File};
    use farleaf_lsm::LsmError::{CorruptLog, CorruptManifest, CorruptTree, Storage};
    match error {
        Damaged { .. }
        | Engine(CorruptManifest { .. } | CorruptLog { .. } | CorruptTree { .. }) => true,
        // A missing file that the manifest or the note refers to.
        Engine(Storage { source, .. }) | File { source, .. } => is_missing_file(source),
        _ => false,
    }
}

/// Returns the copies on this disk of replicas that are not open.
pub(crate) fn copies(regions: &Path, cluster: ClusterId, open_storage: &OpenStorage) -> DiskCopies {
    let mut disk = DiskCopies::default();
    if let Err(error) = finish_removals(regions) {
        tracing::warn!(%error, "cannot delete removed replicas; they still use disk space");
    }
    let replicas = match replica_directories(regions) {
        Ok(replicas) => replicas,
        Err(error) => {
            tracing::error!(%error, "cannot list the copies on this disk; reporting none");
            return disk;
        }
    };
    for (region, replica) in replicas {
        let place = ReplicaStore::new(regions, cluster, region, replica, open_storage.clone());
        match place.copy() {
            Ok(Some(copy)) => disk.copies.push(copy),
            // The directory was never complete, or belongs to another cluster.
            Ok(None) | Err(ServerError::OtherClusterFile { .. }) => {
                let lacks_note = place.lacks_note();
                if let Err(error) = place.remove() {
                    tracing::warn!(%error, "cannot remove leftover files of a replica");
                }
                // Treated like a damaged note (CONTROL-18).
                disk.unusable.extend(lacks_note.then(|| UnusableCopy {
                    region,
                    replica,
                    is_damaged: true,
                    how: NO_NOTE.to_owned(),
                }));
            }
            Err(error) => {
                tracing::error!(%error, "cannot use the local copy of {region}");
                disk.unusable.push(UnusableCopy {
                    region,
                    replica,
                    is_damaged: is_corruption(&error),
                    how: error.to_string(),
                });
            }
        }
    }
    disk.copies.sort_by_key(|copy| (copy.region, copy.replica));
    disk
}
