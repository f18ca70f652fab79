//! A replica's directory: which copy in it is in force (RS1).
//!
//! ```text
//! R-N/REPLICA     {"version":2,"table":T,"region":R,"replica":N,"epoch":E,"generation":G,
//!                  "is_verified":true}
//! R-N/REPLICA.new nothing: room for the next one (see `note_file`)
//! R-N/data-G/     an engine's directory, or a backup's
//! ```
//!
//! Other `data-` directories are of backups that were not filled, or of copies that a newer one
//! has replaced: they go when the replica is opened, or another one is begun.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use farleaf_cluster::agent::host::DiskCopies;
use farleaf_cluster::ids::{Epoch, RegionId, ReplicaNumber, TableId};
use farleaf_cluster::record::{CopyReport, UnusableCopy};
use farleaf_lsm::follow::reach;
use farleaf_lsm::manifest::Manifest;
use farleaf_lsm::place::LogPosition;
use farleaf_lsm::storage::{DirectoryStorage, Storage, is_no_file, private};
use serde::{Deserialize, Serialize};

use crate::directory::{failed, other_version, read_small, sync_directory, version_of};
use crate::error::ServerError;
use crate::note_file;

const NOTE: &str = "REPLICA";
const VERSION: u32 = 2;
/// Notes of this version do not say whether the copy was verified.
const VERSION_BEFORE: u32 = 1;
/// What to do where something of a copy is missing or damaged.
const RESTORE: &str = "restore it from a copy; or, if other replicas of the region have \
                       everything, remove the replica's directory (where there is no other, all \
                       would be lost)";

/// How a directory of data is opened, and how much room there is: tests have others, that fail.
#[derive(Clone)]
pub struct OpenStorage {
    open: Arc<Opener>,
    look: Arc<Looker>,
}

type Opener = dyn Fn(&Path) -> io::Result<Arc<dyn Storage>> + Send + Sync;
type Looker = dyn Fn(&Path) -> io::Result<DiskRoom> + Send + Sync;

/// How much room a disk has, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRoom {
    /// How much it can hold.
    pub capacity_bytes: u64,
    /// How much of that is free.
    pub free_bytes: u64,
}

impl DiskRoom {
    /// That of the file system that has a directory, for who is not its administrator.
    fn of(path: &Path) -> io::Result<Self> {
        let stat = rustix::fs::statvfs(path)?;
        Ok(Self {
            capacity_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
            free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        })
    }
}

impl OpenStorage {
    /// In this way.
    pub fn new(
        open: impl Fn(&Path) -> io::Result<Arc<dyn Storage>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            open: Arc::new(open),
            look: Arc::new(DiskRoom::of),
        }
    }

    /// The same, but this says how much room there is.
    #[must_use]
    pub fn with_room(
        mut self,
        look: impl Fn(&Path) -> io::Result<DiskRoom> + Send + Sync + 'static,
    ) -> Self {
        self.look = Arc::new(look);
        self
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn Storage>> {
        (self.open)(path)
    }

    /// How much room there is.
    pub(crate) fn room(&self, path: &Path) -> io::Result<DiskRoom> {
        (self.look)(path)
    }
}

impl Default for OpenStorage {
    /// As the operating system has it.
    fn default() -> Self {
        Self::new(|path| Ok(Arc::new(DirectoryStorage::open(path)?)))
    }
}

impl fmt::Debug for OpenStorage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a way to open directories")
    }
}

/// What `REPLICA` says: the copy in force, the newest epoch that it was opened at (RH5), and
/// whether it was verified (RS14).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Note {
    pub(crate) version: u32,
    pub(crate) table: TableId,
    pub(crate) region: RegionId,
    pub(crate) replica: ReplicaNumber,
    pub(crate) epoch: Epoch,
    pub(crate) generation: u64,
    /// RS14: a version that leaves no log segment out has made the copy, filled it by content, or
    /// read all of it and found it to be valid.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_verified: bool,
}

impl Note {
    /// The note of a copy that is made now.
    pub(crate) const fn new(
        (table, region, replica): (TableId, RegionId, ReplicaNumber),
        epoch: Epoch,
        generation: u64,
    ) -> Self {
        Self {
            version: VERSION,
            table,
            region,
            replica,
            epoch,
            generation,
            is_verified: true,
        }
    }

    fn decode(path: &Path, bytes: &[u8]) -> Result<Self, ServerError> {
        let damaged = |how| ServerError::Damaged {
            path: path.to_owned(),
            how,
            remedy: RESTORE,
        };
        match version_of(bytes).map_err(damaged)? {
            VERSION | VERSION_BEFORE => {
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

/// A replica's directory, which may not be there yet.
#[derive(Clone)]
pub(crate) struct ReplicaPlace {
    path: PathBuf,
    open_storage: OpenStorage,
}

impl ReplicaPlace {
    pub(crate) fn new(
        regions: &Path,
        (region, replica): (RegionId, ReplicaNumber),
        open_storage: OpenStorage,
    ) -> Self {
        Self {
            path: regions.join(format!("{}-{}", region.0, replica.0)),
            open_storage,
        }
    }

    pub(crate) fn data(&self, generation: u64) -> PathBuf {
        self.path.join(format!("data-{generation}"))
    }

    /// What is in force; none: there is no copy here.
    pub(crate) fn note(&self) -> Result<Option<Note>, ServerError> {
        let path = self.path.join(NOTE);
        match read_small(&path, RESTORE)? {
            Some(bytes) => Ok(Some(Note::decode(&path, &bytes)?)),
            None => Ok(None),
        }
    }

    /// RS1: from when this returns, this copy is in force, durably, and no other one.
    pub(crate) fn put_in_force(&self, note: &Note) -> Result<(), ServerError> {
        let bytes = serde_json::to_vec(note).expect("it is a plain value");
        note_file::replace(&self.path.join(NOTE), &bytes)
    }

    /// The storage of a generation, which is made if it is not there.
    pub(crate) fn storage(&self, generation: u64) -> Result<Arc<dyn Storage>, ServerError> {
        let path = self.data(generation);
        self.open_storage.open(&path).map_err(failed("open", &path))
    }

    /// The storage of the copy that is in force. A directory that has gone, or is empty, is not
    /// made again: the region would be served as if it had never had a record.
    pub(crate) fn storage_in_force(&self, note: &Note) -> Result<Arc<dyn Storage>, ServerError> {
        let path = self.data(note.generation);
        let damaged = |how: &str| ServerError::Damaged {
            path: path.clone(),
            how: how.to_owned(),
            remedy: RESTORE,
        };
        if !path.try_exists().map_err(failed("find", &path))? {
            return Err(damaged("the copy in force is not there"));
        }
        let storage = self.storage(note.generation)?;
        if !Manifest::is_there(&*storage)? {
            return Err(damaged("the copy in force has no manifest"));
        }
        Ok(storage)
    }

    /// CP18: how far the log of the copy in force goes that nobody has open. None: that cannot be
    /// told, so it is not said to go further than another one.
    pub(crate) fn reach(&self, note: &Note) -> Option<LogPosition> {
        let storage = self.storage_in_force(note);
        let reach = storage.and_then(|storage| Ok(reach(&storage)?));
        let unknown = |error: &ServerError| tracing::warn!(%error, "a copy cannot be compared");
        reach.inspect_err(unknown).ok()
    }

    /// Makes the directory, if it is not there.
    pub(crate) fn make(&self) -> Result<(), ServerError> {
        private::create_directory_all(&self.path).map_err(failed("make", &self.path))?;
        sync_directory(self.path.parent().unwrap_or(&self.path))
    }

    /// Removes all generations but one, if any; and the number that the next one has.
    pub(crate) fn clear_but(&self, kept: Option<u64>) -> Result<u64, ServerError> {
        let mut next = kept.map_or(0, |kept| kept + 1);
        let entries = fs::read_dir(&self.path).map_err(failed("list", &self.path))?;
        for entry in entries {
            let entry = entry.map_err(failed("list", &self.path))?;
            let name = entry.file_name();
            let generation = name.to_str().and_then(|it| it.strip_prefix("data-"));
            let Some(generation) = generation.and_then(|it| it.parse::<u64>().ok()) else {
                continue;
            };
            next = next.max(generation.saturating_add(1));
            if Some(generation) != kept {
                let path = entry.path();
                fs::remove_dir_all(&path).map_err(failed("remove", &path))?;
            }
        }
        Ok(next)
    }

    /// Removes all of it. The note goes first: what is left then is no copy.
    pub(crate) fn remove(&self) -> Result<(), ServerError> {
        let note = self.path.join(NOTE);
        match fs::remove_file(&note) {
            Ok(()) => sync_directory(&self.path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("remove", &note)(error)),
        }
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove", &self.path)(error))
            }
            _ => Ok(()),
        }
    }

    /// What the disk has, for a report: up to which segment its log goes. What cannot be read is
    /// told and is no copy; nothing of it is touched.
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
        }))
    }
}

/// The replicas that have a directory here.
pub(crate) fn found(regions: &Path) -> Result<Vec<(RegionId, ReplicaNumber)>, ServerError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(regions).map_err(failed("list", regions))? {
        let entry = entry.map_err(failed("list", regions))?;
        let name = entry.file_name();
        let numbers = name.to_str().and_then(|it| it.split_once('-'));
        if let Some((region, replica)) = numbers
            && let (Ok(region), Ok(replica)) = (region.parse(), replica.parse())
        {
            found.push((RegionId(region), ReplicaNumber(replica)));
        }
    }
    Ok(found)
}

/// Whether what is there is not what was written: no other try will read it.
pub(crate) fn is_damage(error: &ServerError) -> bool {
    use ServerError::{Damaged, Engine, File};
    use farleaf_lsm::LsmError::{DamagedLog, DamagedManifest, DamagedTree, Storage};
    match error {
        Damaged { .. }
        | Engine(DamagedManifest { .. } | DamagedLog { .. } | DamagedTree { .. }) => true,
        // A file that the manifest, or the note, counts on.
        Engine(Storage { source, .. }) | File { source, .. } => is_no_file(source),
        _ => false,
    }
}

/// The copies on this disk, of replicas that nobody has open.
pub(crate) fn copies(regions: &Path, open_storage: &OpenStorage) -> DiskCopies {
    let mut disk = DiskCopies::default();
    let found = match found(regions) {
        Ok(found) => found,
        Err(error) => {
            tracing::error!(%error, "copies on this disk cannot be listed, so none is reported");
            return disk;
        }
    };
    for id in found {
        let place = ReplicaPlace::new(regions, id, open_storage.clone());
        match place.copy() {
            Ok(Some(copy)) => disk.copies.push(copy),
            // It was never whole.
            Ok(None) => {
                if let Err(error) = place.remove() {
                    tracing::warn!(%error, "what is left of a replica stays");
                }
            }
            Err(error) => {
                tracing::error!(%error, "a copy of {} cannot be used", id.0);
                disk.unusable.push(UnusableCopy {
                    region: id.0,
                    replica: id.1,
                    is_damaged: is_damage(&error),
                    how: error.to_string(),
                });
            }
        }
    }
    disk.copies.sort_by_key(|copy| (copy.region, copy.replica));
    disk
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_lsm::{Durability, Engine, EngineOptions};

    const ID: (TableId, RegionId, ReplicaNumber) = (TableId(1), RegionId(5), ReplicaNumber(2));

    fn place(scratch: &tempfile::TempDir) -> ReplicaPlace {
        let place = ReplicaPlace::new(scratch.path(), (ID.1, ID.2), OpenStorage::default());
        place.make().expect("made");
        place
    }

    /// The format: a later version that changes it must say so.
    #[test]
    fn notes_are_golden() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let place = place(&scratch);
        assert_eq!(place.note().expect("it can be read"), None);
        let note = Note::new(ID, Epoch(9), 3);
        place.put_in_force(&note).expect("written");
        let text = fs::read_to_string(scratch.path().join("5-2/REPLICA")).expect("there");
        let golden = concat!(
            r#"{"version":2,"table":1,"region":5,"replica":2,"epoch":9,"generation":3,"#,
            r#""is_verified":true}"#
        );
        assert_eq!(text, golden);
        assert_eq!(place.note().expect("it can be read"), Some(note));
        let before = r#"{"version":1,"table":1,"region":5,"replica":2,"epoch":9,"generation":3}"#;
        fs::write(scratch.path().join("5-2/REPLICA"), before).expect("written");
        let unverified = Note {
            is_verified: false,
            ..note
        };
        assert_eq!(place.note().expect("it can be read"), Some(unverified));
        place.put_in_force(&unverified).expect("written");
        let text = fs::read_to_string(scratch.path().join("5-2/REPLICA")).expect("there");
        assert_eq!(text, before.replace(":1,\"table", ":2,\"table"));
        fs::write(scratch.path().join("5-2/REPLICA"), "{\"version\":3}").expect("written");
        let error = place.note().expect_err("of the future").to_string();
        assert!(error.contains("a newer program has written it"), "{error}");
        assert!(
            error.contains("format version 3") && !error.contains("damaged"),
            "{error}"
        );
    }

    /// Promise: a file of a copy that is too short, too long, garbage, or a directory, is damage,
    /// and says which file, how, and what to do.
    #[test]
    fn wrong_lengths_are_damage() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let place = place(&scratch);
        let storage = place.storage(4).expect("opened");
        let engine = Engine::open(storage, EngineOptions::new()).expect("made");
        engine.put(b"k", b"v", Durability::Sync).expect("written");
        drop(engine);
        let note = Note::new(ID, Epoch(9), 4);
        place.put_in_force(&note).expect("written");
        assert!(place.copy().expect("it can be read").is_some());
        let directory = scratch.path().join("5-2");
        for name in ["REPLICA", "data-4/CURRENT", "data-4/MANIFEST-1"] {
            let file = directory.join(name);
            let good = fs::read(&file).expect("it is there");
            let long = [&good[..], &vec![b'x'; 100_000]].concat();
            // The end of a manifest that was never whole is cut off (MF2).
            let is_manifest = name.ends_with("MANIFEST-1");
            let short = good[..if is_manifest { 9 } else { good.len() / 2 }].to_vec();
            let mut bad = vec![Vec::new(), short, b"garbage\n".to_vec()];
            bad.extend((!is_manifest).then_some(long));
            for bytes in bad {
                fs::write(&file, &bytes).expect("written");
                let error = place.copy().expect_err("it is not what was written");
                let said = error.to_string();
                assert!(is_damage(&error), "{name}, {} bytes: {said}", bytes.len());
                assert!(
                    said.contains("damaged") && said.contains("restore"),
                    "{said}"
                );
            }
            fs::remove_file(&file).expect("it was there");
            fs::create_dir(&file).expect("made");
            let error = place.copy().expect_err("it is a directory");
            assert!(is_damage(&error), "{error}");
            fs::remove_dir(&file).expect("made");
            fs::write(&file, good).expect("written");
        }
        assert!(place.copy().expect("it can be read").is_some());
    }

    /// Promise: a copy in force whose directory has gone, or is empty, is no copy, also not an
    /// empty one; that is told, and nothing is made in its place.
    #[test]
    fn copies_that_are_lost_are_not_made_anew() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let place = place(&scratch);
        let note = Note::new(ID, Epoch(9), 4);
        place.put_in_force(&note).expect("written");
        let lost = place.storage_in_force(&note).expect_err("it is not there");
        assert!(lost.to_string().contains("is not there"), "{lost}");
        let disk = copies(scratch.path(), &OpenStorage::default());
        assert!(
            disk.copies.is_empty() && disk.unusable[0].is_damaged,
            "{disk:?}"
        );
        assert!(!place.data(4).exists() && place.note().expect("it can be read").is_some());
        fs::create_dir(place.data(4)).expect("made");
        let empty = place.storage_in_force(&note).expect_err("it has nothing");
        assert!(empty.to_string().contains("no manifest"), "{empty}");
        assert!(
            empty.to_string().contains("restore it from a copy"),
            "{empty}"
        );
        let disk = copies(scratch.path(), &OpenStorage::default());
        let [unusable] = &disk.unusable[..] else {
            panic!("{disk:?}");
        };
        assert!(disk.copies.is_empty() && unusable.is_damaged, "{disk:?}");
        assert_eq!((unusable.region, unusable.replica), (ID.1, ID.2));
    }

    /// Promise (RS1): the copy in force is reported and kept, others go, and a directory without a
    /// note is no copy.
    #[test]
    fn copies_are_those_in_force() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let place = place(&scratch);
        let none = copies(scratch.path(), &OpenStorage::default());
        assert_eq!(none, DiskCopies::default());
        place.make().expect("made again");
        for generation in [4, 6] {
            let storage = place.storage(generation).expect("opened");
            let engine = Engine::open(storage, EngineOptions::new()).expect("made");
            engine.put(b"k", b"v", Durability::Sync).expect("written");
        }
        place
            .put_in_force(&Note::new(ID, Epoch(9), 4))
            .expect("written");
        let DiskCopies { copies, unusable } = copies(scratch.path(), &OpenStorage::default());
        assert_eq!((copies.len(), unusable.len()), (1, 0));
        assert_eq!((copies[0].replica, copies[0].epoch), (ID.2, Epoch(9)));
        assert_eq!(place.clear_but(Some(4)).expect("cleared"), 7);
        assert!(place.data(4).exists() && !place.data(6).exists());
        place.remove().expect("removed");
        assert!(!scratch.path().join("5-2").exists());
        place.remove().expect("nothing is left to be removed");
    }
}
