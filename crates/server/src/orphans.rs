//! What a server finds on its disk and cannot prove to be garbage (ID3): it is moved aside, with a
//! note that says why, and stays there until an operator removes it.
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

use farleaf_cluster::ids::ClusterId;
use farleaf_cluster::record::Orphan;
use farleaf_lsm::storage::private;
use serde::{Deserialize, Serialize};

use crate::directory::{failed, sync_directory, version_of, write_whole};
use crate::error::ServerError;

const ORPHANS: &str = "orphans";
const NOTE: &str = "ORPHAN";
const VERSION: u32 = 1;

/// What `ORPHAN` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OrphanNote {
    version: u32,
    /// Whose server moved it here.
    cluster: ClusterId,
    how: String,
}

/// Moves a replica's directory aside. Where it is then.
pub(crate) fn move_aside(
    replica: &Path,
    cluster: ClusterId,
    how: &str,
) -> Result<PathBuf, ServerError> {
    let regions = replica.parent().unwrap_or(replica);
    let orphans = regions.parent().unwrap_or(regions).join(ORPHANS);
    private::create_directory_all(&orphans).map_err(failed("make", &orphans))?;
    let note = OrphanNote {
        version: VERSION,
        cluster,
        how: how.to_owned(),
    };
    let bytes = serde_json::to_vec(&note).expect("it is a plain value");
    let to = free_name(&orphans, replica)?;
    fs::rename(replica, &to).map_err(failed("move", replica))?;
    sync_directory(&orphans)?;
    sync_directory(regions)?;
    // Behind the move, so that nothing is written into what may be another server's.
    let noted = write_whole(&to.join(NOTE), &bytes);
    if let Err(error) = noted {
        tracing::warn!(%error, "an orphan has no note");
    }
    tracing::error!(
        "{} was moved to {}, and is kept: {how}; look into it, and remove it when nobody needs it",
        replica.display(),
        to.display()
    );
    Ok(to)
}

fn free_name(orphans: &Path, replica: &Path) -> Result<PathBuf, ServerError> {
    let name = replica.file_name().unwrap_or_default().to_string_lossy();
    let mut number = 1;
    loop {
        let to = match number {
            1 => orphans.join(&*name),
            _ => orphans.join(format!("{name}.{number}")),
        };
        if !to.try_exists().map_err(failed("find", &to))? {
            return Ok(to);
        }
        number += 1;
    }
}

/// The orphans beside a directory of regions, by name.
pub(crate) fn orphans(regions: &Path) -> Vec<Orphan> {
    let orphans = regions.parent().unwrap_or(regions).join(ORPHANS);
    let listed = match fs::read_dir(&orphans) {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            tracing::warn!(%error, "{} cannot be listed", orphans.display());
            return Vec::new();
        }
    };
    let paths = listed.filter_map(|entry| Some(entry.ok()?.path()));
    let mut found: Vec<Orphan> = paths
        .filter(|path| path.is_dir())
        .map(|path| Orphan {
            how: how(&path.join(NOTE)),
            path: path.display().to_string(),
        })
        .collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn how(note: &Path) -> String {
    let read = fs::read(note).map_err(|error| error.to_string());
    let decoded = read.and_then(|bytes| decode(&bytes));
    match decoded {
        Ok(note) => note.how,
        Err(error) => format!("its note cannot be read: {error}"),
    }
}

fn decode(bytes: &[u8]) -> Result<OrphanNote, String> {
    let version = version_of(bytes)?;
    if version != VERSION {
        return Err(format!("there is no format version {version}"));
    }
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_fabric::fuzzing::run;

    const CLUSTER: ClusterId = ClusterId(7 << 64);

    /// Promise (ID3): what is moved aside has all that it had, a note, and a name of its own; it is
    /// listed until it is removed.
    #[test]
    fn orphans_are_kept_and_listed() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let regions = scratch.path().join("regions");
        assert_eq!(orphans(&regions), []);
        for number in 1..=2 {
            let replica = regions.join("5-2");
            fs::create_dir_all(&replica).expect("made");
            fs::write(replica.join("log"), number.to_string()).expect("written");
            move_aside(&replica, CLUSTER, "it is foreign").expect("moved");
            assert!(!replica.exists());
        }
        let listed = orphans(&regions);
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
        let listed = orphans(&regions);
        assert_eq!(listed.len(), 1);
        assert!(listed[0].how.contains("no format version 2"), "{listed:?}");
    }

    /// Promise: bytes that are no note of an orphan are an error, and no panic.
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
