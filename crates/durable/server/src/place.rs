//! A replica's directory, and its copy in force.
//!
//! ```text
//! R-N/REPLICA     {"version":2,"cluster":"C","table":T,"region":R,"replica":N,"epoch":E,
//!                  "generation":G,"is_verified":true}
//! R-N/REPLICA.new spare for the next note, without content (see `note_file`)
//! R-N/BEGUN       {"version":1,"cluster":"C"}: nothing was acknowledged before REPLICA exists
//! R-N/data-G/     an engine's directory, or a backup's
//! removed-R-N/    a directory whose removal has begun
//! ```
//!
//! A directory is removed only if `REPLICA` or `BEGUN` names the server's own cluster; any other
//! one is moved aside (see `orphans`). The files of `data-G` have no cluster id. They belong
//! together by their engine's 64-bit id, and to `REPLICA` by the name of their directory.
//!
//! Other `data-` directories belong to backups that were not filled, or to copies that a newer one
//! has replaced. They are removed when the replica is opened, or another copy is begun.

mod replicas;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use farleaf_cluster::ids::{ClusterId, Epoch, RegionId, ReplicaNumber, TableId, TableIncarnation};
use farleaf_cluster::record::CopyReport;
use farleaf_lsm::follow::reach;
use farleaf_lsm::manifest::Manifest;
use farleaf_lsm::place::LogPosition;
use farleaf_lsm::storage::{Storage, private};
use serde::{Deserialize, Serialize};

use crate::directory::{
    failed, json, other_version, read_small, sync_directory, version_of, write_whole,
};
use crate::error::ServerError;
use crate::note_file;
use crate::open_storage::OpenStorage;
use crate::orphans::{move_aside, move_copy_aside};

pub(crate) use replicas::{adopt_replicas, copies, is_corruption, replica_directories};

const NOTE: &str = "REPLICA";
const VERSION: u32 = 2;
/// Version of notes without a cluster, and without information on verification.
const LEGACY_VERSION: u32 = 1;
const BEGUN: &str = "BEGUN";
/// Name of `BEGUN` while it is written.
const BEGUN_NEW: &str = "BEGUN.new";
const BEGUN_VERSION: u32 = 1;
const REMOVED: &str = "removed-";
const OTHER_TABLE: &str = "it belongs to another table with the same number; the \
                           coordinator lost the record of that table and reused the number";
const NOT_VERIFIED: &str = "the version that wrote it could omit log segments from other \
                            replicas, and those are not verified yet; it may contain data that \
                            they lack";
/// Remedy for a missing or damaged part of a copy.
const RESTORE: &str = "restore it from a copy, or remove the directory of this replica \
                       if another replica of the region is complete (otherwise, the data are lost)";

/// Content of `REPLICA`: the copy in force, the newest epoch at which it was opened, and whether it
/// was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplicaNote {
    pub(crate) version: u32,
    /// Cluster of the copy, set and compared by `ReplicaStore`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cluster: Option<ClusterId>,
    pub(crate) table: TableId,
    pub(crate) region: RegionId,
    pub(crate) replica: ReplicaNumber,
    pub(crate) epoch: Epoch,
    pub(crate) generation: u64,
    /// Incarnation of the table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) incarnation: Option<TableIncarnation>,
    /// Identifier of the engine that the copy's files belong to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) engine: Option<u64>,
    /// Whether the copy is verified: a version that omits no log segments has created it, filled it
    /// by content, or read all of it without finding corruption.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_verified: bool,
}

impl ReplicaNote {
    /// Creates the note of a new copy.
    pub(crate) const fn new(
        table: TableId,
        region: RegionId,
        replica: ReplicaNumber,
        epoch: Epoch,
        generation: u64,
    ) -> Self {
        Self {
            version: VERSION,
            cluster: None,
            table,
            region,
            replica,
            epoch,
            generation,
            incarnation: None,
            engine: None,
            is_verified: true,
        }
    }

    fn decode(path: &Path, bytes: &[u8]) -> Result<Self, ServerError> {
        let damaged = ServerError::damaged(path, RESTORE);
        match version_of(bytes).map_err(damaged)? {
            VERSION | LEGACY_VERSION => {
                let note: Self =
                    serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
                Ok(Self {
                    version: VERSION,
                    ..note
                })
            }
            version => Err(other_version(path, version, VERSION)),
        }
    }
}

/// A replica's directory, which may not exist yet.
#[derive(Clone)]
pub(crate) struct ReplicaStore {
    path: PathBuf,
    cluster: ClusterId,
    id: (RegionId, ReplicaNumber),
    /// Incarnation of the region's table, if known.
    incarnation: Option<TableIncarnation>,
    open_storage: OpenStorage,
}

/// Content of `BEGUN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BegunNote {
    version: u32,
    cluster: ClusterId,
}

impl ReplicaStore {
    pub(crate) fn new(
        regions: &Path,
        cluster: ClusterId,
        region: RegionId,
        replica: ReplicaNumber,
        open_storage: OpenStorage,
    ) -> Self {
        Self {
            path: regions.join(format!("{}-{}", region.0, replica.0)),
            cluster,
            id: (region, replica),
            incarnation: None,
            open_storage,
        }
    }

    /// Sets the incarnation of the replica's table.
    #[must_use]
    pub(crate) fn of_table(self, incarnation: Option<TableIncarnation>) -> Self {
        Self {
            incarnation,
            ..self
        }
    }

    pub(crate) fn data(&self, generation: u64) -> PathBuf {
        self.path.join(format!("data-{generation}"))
    }

    /// Returns the note of the copy in force; `None` if there is no copy.
    pub(crate) fn note(&self) -> Result<Option<ReplicaNote>, ServerError> {
        match self.note_of_any()? {
            Some(note) if note.cluster != Some(self.cluster) => {
                Err(ServerError::OtherClusterFile {
                    path: self.path.join(NOTE),
                    own: self.cluster,
                    found: note.cluster,
                })
            }
            Some(note) if (note.region, note.replica) != self.id => {
                let how = format!(
                    "it belongs to replica {} of {}; the directory was moved or replaced",
                    note.replica.0, note.region
                );
                Err(self.damaged(NOTE, how))
            }
            note => Ok(note),
        }
    }

    fn damaged(&self, name: &str, how: String) -> ServerError {
        ServerError::damaged(&self.path.join(name), RESTORE)(how)
    }

    /// Returns whether a note belongs to another table, which had the same number before.
    fn is_of_other_table(&self, note: &ReplicaNote) -> bool {
        !TableIncarnation::may_be_same(note.incarnation, self.incarnation)
    }

    /// Moves the directory aside if it belongs to another table. That table had the same number,
    /// and the coordinator has lost its record.
    pub(crate) fn move_other_table_aside(&self) -> Result<(), ServerError> {
        match self.note()? {
            Some(note) if self.is_of_other_table(&note) => {
                move_aside(&self.path, self.cluster, OTHER_TABLE).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Returns the note, whatever cluster it names; for callers that change nothing.
    pub(crate) fn note_of_any(&self) -> Result<Option<ReplicaNote>, ServerError> {
        let path = self.path.join(NOTE);
        let bytes = read_small(&path, RESTORE)?;
        bytes.map(|it| ReplicaNote::decode(&path, &it)).transpose()
    }

    /// Puts a copy in force. When this returns, it is durably the only copy in force. Returns the
    /// note as written.
    pub(crate) fn put_in_force(&self, note: &ReplicaNote) -> Result<ReplicaNote, ServerError> {
        let note = ReplicaNote {
            version: VERSION,
            cluster: Some(self.cluster),
            incarnation: self.incarnation.or(note.incarnation),
            engine: note.engine.or_else(|| self.engine_of(note)),
            ..*note
        };
        note_file::replace(&self.path.join(NOTE), &json(&note))?;
        // From now on the copy may have acknowledged writes: without its note it must not be
        // removed.
        let marker = self.path.join(BEGUN);
        match fs::remove_file(&marker) {
            Ok(()) => sync_directory(&self.path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("remove", &marker)(error)),
        }
        Ok(note)
    }

    /// Returns the identifier of the engine that a copy's files belong to; `None` if they do not
    /// have it. Opening the files finds what is wrong with them.
    fn engine_of(&self, note: &ReplicaNote) -> Option<u64> {
        let is_there = self.data(note.generation).try_exists();
        let storage = is_there
            .ok()?
            .then(|| self.storage(note.generation))?
            .ok()?;
        Some(Manifest::read(&*storage).ok()?.engine.0)
    }

    /// Returns the storage of a generation, which is created if missing.
    pub(crate) fn storage(&self, generation: u64) -> Result<Arc<dyn Storage>, ServerError> {
        let path = self.data(generation);
        self.open_storage.open(&path).map_err(failed("open", &path))
    }

    /// Returns the storage of the copy in force. A missing or empty directory is not created again:
    /// the region would be served as if it had never had a record.
    pub(crate) fn storage_in_force(
        &self,
        note: &ReplicaNote,
    ) -> Result<Arc<dyn Storage>, ServerError> {
        let name = format!("data-{}", note.generation);
        let damaged = |how: &str| self.damaged(&name, how.to_owned());
        let path = self.data(note.generation);
        if !path.try_exists().map_err(failed("access", &path))? {
            return Err(damaged("the copy in force is missing"));
        }
        let storage = self.storage(note.generation)?;
        if !Manifest::is_there(&*storage)? {
            return Err(damaged("the copy in force has no manifest"));
        }
        let engine = Manifest::read(&*storage)?.engine.0;
        if note.engine.is_some_and(|it| it != engine) {
            let how = "it is not the copy that REPLICA names; the directory was moved or replaced";
            return Err(damaged(how));
        }
        Ok(storage)
    }

    /// Returns the end of the log of the copy in force, which must not be open, if the copy
    /// `is_unproven` (CONTROL-18). `None` if it is unknown; then the copy does not count as longer
    /// than another one.
    pub(crate) fn reach_if(&self, is_unproven: bool, note: &ReplicaNote) -> Option<LogPosition> {
        if !is_unproven {
            return None;
        }
        let storage = self.storage_in_force(note);
        let reach = storage.and_then(|storage| Ok(reach(&storage)?));
        let unknown = |error: &ServerError| {
            tracing::warn!(%error, "cannot determine the end of a copy's log");
        };
        reach.inspect_err(unknown).ok()
    }

    /// Creates the directory if missing. A directory without a note that no server of this cluster
    /// has begun is moved aside first.
    pub(crate) fn make(&self) -> Result<(), ServerError> {
        if self.note()?.is_some() {
            return Ok(());
        }
        if self.has_files()? && !self.was_begun() {
            move_aside(&self.path, self.cluster, NO_NOTE)?;
        }
        private::create_directory_all(&self.path).map_err(failed("create", &self.path))?;
        sync_directory(self.path.parent().unwrap_or(&self.path))?;
        let note = BegunNote {
            version: BEGUN_VERSION,
            cluster: self.cluster,
        };
        write_whole(&self.path.join(BEGUN), &json(&note))
    }

    fn has_files(&self) -> Result<bool, ServerError> {
        match fs::read_dir(&self.path) {
            // A server that ended before `BEGUN` was in place leaves that file.
            Ok(mut entries) => {
                let is_file = |it: &fs::DirEntry| it.file_name() != BEGUN_NEW;
                Ok(entries.any(|it| it.as_ref().map_or(true, is_file)))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("list", &self.path)(error)),
        }
    }

    /// Returns whether the directory had a copy in force and has lost its note.
    fn lacks_note(&self) -> bool {
        let has_note = !matches!(self.note_of_any(), Ok(None));
        !has_note && !self.was_begun() && matches!(self.has_files(), Ok(true))
    }

    /// Returns whether a server of this cluster has begun the directory. Nothing in it was ever
    /// acknowledged, unless there is a note.
    fn was_begun(&self) -> bool {
        let bytes = read_small(&self.path.join(BEGUN), RESTORE).ok().flatten();
        let note = bytes.and_then(|it| serde_json::from_slice(&it).ok());
        note == Some(BegunNote {
            version: BEGUN_VERSION,
            cluster: self.cluster,
        })
    }

    /// Removes all generations except for `kept`. Returns the number of the next generation.
    pub(crate) fn clear_but(&self, retained: Option<u64>) -> Result<u64, ServerError> {
        let mut next = retained.map_or(0, |retained| retained + 1);
        let entries = fs::read_dir(&self.path).map_err(failed("list", &self.path))?;
        for entry in entries {
            let entry = entry.map_err(failed("list", &self.path))?;
            let name = entry.file_name();
            let generation = name.to_str().and_then(|it| it.strip_prefix("data-"));
            let Some(generation) = generation.and_then(|it| it.parse::<u64>().ok()) else {
                continue;
            };
            next = next.max(generation.saturating_add(1));
            if Some(generation) != retained {
                let path = entry.path();
                fs::remove_dir_all(&path).map_err(failed("remove", &path))?;
            }
        }
        Ok(next)
    }

    /// Moves the copy in force aside: it may have data that its replacement lacks.
    pub(crate) fn set_aside(&self, note: &ReplicaNote) -> Result<(), ServerError> {
        let note = ReplicaNote {
            cluster: Some(self.cluster),
            ..*note
        };
        let data = self.data(note.generation);
        let how = "it was replaced by a copy of a corrupted log; it may contain data that the \
                   replacement lacks";
        move_copy_aside(&self.path, &data, self.cluster, how, NOTE, &json(&note)).map(drop)
    }

    /// Removes the directory if it belongs to this cluster and was verified; otherwise moves it
    /// aside. The directory is renamed first; an interrupted removal leaves no copy.
    pub(crate) fn remove(&self) -> Result<(), ServerError> {
        let how = match self.note() {
            Ok(Some(note)) if self.is_of_other_table(&note) => Some(OTHER_TABLE.to_owned()),
            Ok(Some(note)) => (!note.is_verified).then(|| NOT_VERIFIED.to_owned()),
            Ok(None) if !self.has_files()? || self.was_begun() => None,
            Ok(None) => Some(NO_NOTE.to_owned()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(how) = how {
            return move_aside(&self.path, self.cluster, &how).map(drop);
        }
        let name = self.path.file_name().unwrap_or_default();
        let removed = format!("{REMOVED}{}", name.to_string_lossy());
        let removed = self.path.with_file_name(removed);
        remove_all(&removed)?;
        match fs::rename(&self.path, &removed) {
            Ok(()) => sync_directory(self.path.parent().unwrap_or(&self.path))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed("rename", &self.path)(error)),
        }
        remove_all(&removed)
    }

    /// Returns the copy for a report, with the end of its log. A copy that cannot be read is an
    /// error; nothing of it is changed.
    pub(crate) fn copy(&self) -> Result<Option<CopyReport>, ServerError> {
        let Some(note) = self.note()? else {
            return Ok(None);
        };
        let storage = self.storage_in_force(&note)?;
        let (manifest, _) = Manifest::open(storage)?;
        Ok(Some(CopyReport {
            table: note.table,
            region: note.region,
            replica: note.replica,
            epoch: note.epoch,
            position_bytes: manifest.state().next_log.start().0,
            incarnation: note.incarnation,
        }))
    }
}

/// Reason why a directory without a note is kept.
const NO_NOTE: &str =
    "it contains files but no `REPLICA` note, so its cluster and replica are unknown";

fn remove_all(path: &Path) -> Result<(), ServerError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
