//! Files on a server's disk that nothing proves to be garbage. They are moved aside, with a note
//! that says why, and stay there until an operator removes them.
//!
//! ```text
//! DIRECTORY/orphans/R-N/          what was in DIRECTORY/regions/R-N
//! DIRECTORY/orphans/R-N/ORPHAN    {"version":1,"cluster":"C","how":"..."}: why it is here
//! ```
//!
//! A second one of the same name is `R-N.2`, and so on.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use farleaf_cluster::agent::ORPHAN_COUNT_MAX;
use farleaf_cluster::ids::ClusterId;
use farleaf_cluster::record::Orphan;
use farleaf_lsm::storage::private;
use serde::{Deserialize, Serialize};

use crate::directory::{failed, json, read_small, sync_directory, version_of, write_whole};
use crate::error::ServerError;

const ORPHANS: &str = "orphans";
const NOTE: &str = "ORPHAN";
const VERSION: u32 = 1;
/// Interval at which the directory is listed.
const LIST_INTERVAL: Duration = Duration::from_secs(5);
const REMEDY: &str = "inspect the directory";

/// Content of `ORPHAN`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OrphanNote {
    version: u32,
    /// Cluster of the server that moved the files.
    cluster: ClusterId,
    how: String,
}

/// Moves a replica's directory aside. Returns its new path.
pub(crate) fn move_aside(
    replica: &Path,
    cluster: ClusterId,
    how: &str,
) -> Result<PathBuf, ServerError> {
    let orphans = directory(replica)?;
    let to = free_name(&orphans, replica)?;
    fs::rename(replica, &to).map_err(failed("move", replica))?;
    sync_directory(&orphans)?;
    sync_directory(replica.parent().unwrap_or(replica))?;
    note_moved(replica, &to, cluster, how);
    Ok(to)
}

/// Moves one copy of a replica's directory aside, with the note that names it. Returns the new
/// path: a replica's directory in which it is the copy in force.
pub(crate) fn move_copy_aside(
    replica: &Path,
    data: &Path,
    cluster: ClusterId,
    how: &str,
    name: &str,
    note: &[u8],
) -> Result<PathBuf, ServerError> {
    let orphans = directory(replica)?;
    let to = free_name(&orphans, replica)?;
    private::create_directory_all(&to).map_err(failed("create", &to))?;
    write_whole(&to.join(name), note)?;
    fs::rename(data, to.join(data.file_name().unwrap_or_default()))
        .map_err(failed("move", data))?;
    sync_directory(&to)?;
    sync_directory(&orphans)?;
    sync_directory(replica)?;
    note_moved(data, &to, cluster, how);
    Ok(to)
}

/// Returns the directory of orphans, which is created if missing.
fn directory(replica: &Path) -> Result<PathBuf, ServerError> {
    let regions = replica.parent().unwrap_or(replica);
    let orphans = regions.parent().unwrap_or(regions).join(ORPHANS);
    private::create_directory_all(&orphans).map_err(failed("create", &orphans))?;
    Ok(orphans)
}

/// Writes the note after the move, so that nothing is written into a directory that may be another
/// server's.
fn note_moved(from: &Path, to: &Path, cluster: ClusterId, how: &str) {
    let note = OrphanNote {
        version: VERSION,
        cluster,
        how: how.to_owned(),
    };
    if let Err(error) = write_whole(&to.join(NOTE), &json(&note)) {
        tracing::warn!(%error, "cannot write the `ORPHAN` note of a moved directory");
    }
    let (from, to) = (from.display(), to.display());
    tracing::error!(
        "moved {from} to {to}: {how}; it may be the only copy of its data; do not delete it until \
         every region is served"
    );
}

fn free_name(orphans: &Path, replica: &Path) -> Result<PathBuf, ServerError> {
    let name = replica.file_name().unwrap_or_default().to_string_lossy();
    let mut number = 1;
    loop {
        let to = match number {
            1 => orphans.join(&*name),
            _ => orphans.join(format!("{name}.{number}")),
        };
        if !to.try_exists().map_err(failed("access", &to))? {
            return Ok(to);
        }
        number += 1;
    }
}

/// The orphans of a server, as far as they are reported.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    /// The last list, and the modification time of `orphans/` at that time.
    found: Option<(SystemTime, Vec<Orphan>)>,
    checked_at: Option<Instant>,
}

impl Orphans {
    /// Returns the first orphans by name beside a directory of regions, as many as are reported.
    /// Lists them at intervals, and reads the notes only after a change.
    pub(crate) fn list_if_due(&mut self, regions: &Path) -> Vec<Orphan> {
        let is_due = (self.checked_at).is_none_or(|at| at.elapsed() >= LIST_INTERVAL);
        if is_due {
            self.checked_at = Some(Instant::now());
            let orphans = regions.parent().unwrap_or(regions).join(ORPHANS);
            self.found = self.find(&orphans).unwrap_or_else(|error| {
                tracing::warn!(%error, "cannot list {}", orphans.display());
                None
            });
        }
        let found = self.found.as_ref();
        found.map_or_else(Vec::new, |(_, orphans)| orphans.clone())
    }

    fn find(&mut self, orphans: &Path) -> io::Result<Option<(SystemTime, Vec<Orphan>)>> {
        let changed = match fs::metadata(orphans) {
            Ok(metadata) => metadata.modified()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        // A note is written after its directory was moved, so recent changes are read again.
        let is_settled = changed.elapsed().is_ok_and(|age| age >= LIST_INTERVAL * 2);
        if let Some(found) = self.found.take_if(|found| is_settled && found.0 == changed) {
            return Ok(Some(found));
        }
        let listed = fs::read_dir(orphans)?;
        let paths = listed.filter_map(|entry| Some(entry.ok()?.path()));
        let mut paths: Vec<_> = paths.filter(|path| path.is_dir()).collect();
        paths.sort();
        let reported = paths.iter().take(ORPHAN_COUNT_MAX).map(|path| Orphan {
            how: how(&path.join(NOTE)),
            path: path.display().to_string(),
        });
        Ok(Some((changed, reported.collect())))
    }
}

fn how(note: &Path) -> String {
    let read = read_small(note, REMEDY).map_err(|error| error.to_string());
    let read = read.and_then(|bytes| bytes.ok_or_else(|| "the file is missing".to_owned()));
    let decoded = read.and_then(|bytes| decode(&bytes));
    match decoded {
        Ok(note) => note.how,
        Err(error) => format!("cannot read its note: {error}"),
    }
}

fn decode(bytes: &[u8]) -> Result<OrphanNote, String> {
    let version = version_of(bytes)?;
    if version != VERSION {
        return Err(format!("unsupported format version {version}"));
    }
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::fuzzing::run;

    const CLUSTER: ClusterId = ClusterId(7 << 64);

    /// A directory that is moved aside keeps its content, and gets a note and a unique name. It is
    /// listed until it is removed.
    #[test]
    fn orphans_are_kept_and_listed() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let regions = scratch.path().join("regions");
        let orphans = || Orphans::default().list_if_due(&regions);
        assert_eq!(orphans(), []);
        for number in 1..=2 {
            let replica = regions.join("5-2");
            fs::create_dir_all(&replica).expect("made");
            fs::write(replica.join("log"), number.to_string()).expect("written");
            move_aside(&replica, CLUSTER, "it is foreign").expect("moved");
            assert!(!replica.exists());
        }
        let listed = orphans();
        let paths = ["orphans/5-2", "orphans/5-2.2"].map(|it| scratch.path().join(it));
        assert_eq!(listed.len(), 2);
        for (number, (orphan, path)) in listed.iter().zip(&paths).enumerate() {
            assert_eq!(orphan.path, path.display().to_string());
            assert_eq!(orphan.how, "it is foreign");
            let log = fs::read_to_string(path.join("log")).expect("it is kept");
            assert_eq!(log, (number + 1).to_string());
        }
        let note = fs::read_to_string(paths[0].join(NOTE)).expect("it is there");
        let golden =
            r#"{"version":1,"cluster":"00000000000000070000000000000000","how":"it is foreign"}"#;
        assert_eq!(note, golden);
        fs::write(paths[0].join(NOTE), r#"{"version":2}"#).expect("written");
        fs::remove_dir_all(&paths[1]).expect("removed");
        let listed = orphans();
        assert_eq!(listed.len(), 1);
        assert!(
            listed[0].how.contains("unsupported format version 2"),
            "{listed:?}"
        );
    }

    /// Notes are read only for reported orphans and after changes, and only up to the size of a
    /// note.
    #[test]
    fn notes_are_read_once() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let regions = scratch.path().join("regions");
        let orphan = |number: usize| scratch.path().join(format!("orphans/{number:03}-1"));
        for number in 0..ORPHAN_COUNT_MAX + 9 {
            fs::create_dir_all(orphan(number)).expect("made");
        }
        fs::write(orphan(0).join(NOTE), vec![b' '; 1 << 20]).expect("written");
        let folder = fs::File::open(scratch.path().join("orphans")).expect("it is there");
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_hours(1);
        folder.set_modified(long_ago).expect("it can be set");
        let mut orphans = Orphans::default();
        let mut list_if_due = || {
            orphans.checked_at = None;
            orphans.list_if_due(&regions)
        };
        let found = list_if_due();
        assert_eq!(found.len(), ORPHAN_COUNT_MAX);
        assert!(
            found[0].how.contains("the file is larger than"),
            "{}",
            found[0].how
        );
        let note = r#"{"version":1,"cluster":"00000000000000070000000000000000","how":"why"}"#;
        fs::write(orphan(0).join(NOTE), note).expect("written");
        assert_eq!(list_if_due(), found);
        fs::remove_dir(orphan(1)).expect("removed");
        let again = list_if_due();
        assert_eq!((again.len(), &*again[0].how), (ORPHAN_COUNT_MAX, "why"));
    }

    /// Invalid bytes of an orphan's note are an error, not a panic.
    #[test]
    fn bytes_are_notes_or_errors() {
        let note = OrphanNote {
            version: VERSION,
            cluster: CLUSTER,
            how: "why".to_owned(),
        };
        run("notes of orphans", |random| {
            let mut bytes = serde_json::to_vec(&note).expect("a plain value");
            random.mutate(&mut bytes);
            let _ = decode(&bytes);
        });
    }
}
