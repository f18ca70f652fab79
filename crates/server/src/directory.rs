//! A server's directory: whose it is, and that nobody else has it.
//!
//! ```text
//! DIRECTORY/LOCK                       locked as long as the server runs
//! DIRECTORY/SERVER                     {"version":1,"cluster":C,"server":S}
//! DIRECTORY/regions/R-N/               replica N of region R (see `place`)
//! DIRECTORY/coordinator/               the coordinator's, where this process has it
//! ```

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use farleaf_cluster::ids::{ClusterId, ServerId};
use farleaf_cluster::record::NUMBER_END;
use serde::{Deserialize, Serialize};

use crate::error::ServerError;

const LOCK: &str = "LOCK";
const SERVER: &str = "SERVER";
const REGIONS: &str = "regions";
/// What may be in a directory before it is a server's: a coordinator begins before its servers.
const COORDINATOR: &str = "coordinator";
/// The version of the directory's own files.
const VERSION: u32 = 1;
/// Numbers are drawn up to this one: people type them.
const DRAWN_NUMBER_MAX: u64 = 1 << 31;

/// What `SERVER` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Identity {
    version: u32,
    cluster: ClusterId,
    server: ServerId,
}

/// A server's directory, locked.
#[derive(Debug)]
pub(crate) struct ServerDirectory {
    pub(crate) path: PathBuf,
    pub(crate) cluster: ClusterId,
    pub(crate) server: ServerId,
    /// Unlocked when it is closed.
    _lock: File,
}

pub(crate) fn failed<'p>(
    action: &'static str,
    path: &'p Path,
) -> impl FnOnce(io::Error) -> ServerError + use<'p> {
    move |source| ServerError::File {
        action,
        path: path.to_owned(),
        source,
    }
}

impl ServerDirectory {
    /// Opens a directory, or makes one that belongs to this cluster. Who says which server it is
    /// (`asked`) is refused if it is another one's; a new one without a number gets one.
    pub(crate) fn open(
        path: &Path,
        cluster: ClusterId,
        asked: Option<ServerId>,
    ) -> Result<Self, ServerError> {
        if let Some(ServerId(number)) = asked
            && (number == 0 || number >= NUMBER_END)
        {
            return Err(ServerError::BadNumber(number));
        }
        fs::create_dir_all(path).map_err(failed("make", path))?;
        let lock = lock(path)?;
        let file = path.join(SERVER);
        let identity = match fs::read(&file) {
            Ok(bytes) => decode(&file, &bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                refuse_without_identity(path)?;
                let server = match asked {
                    Some(server) => server,
                    None => draw()?,
                };
                let identity = Identity {
                    version: VERSION,
                    cluster,
                    server,
                };
                let bytes = serde_json::to_vec(&identity).expect("it is a plain value");
                write_whole(&file, &bytes)?;
                identity
            }
            Err(error) => return Err(failed("read", &file)(error)),
        };
        if identity.cluster != cluster {
            return Err(farleaf_cluster::ClusterError::OtherCluster {
                own: identity.cluster,
                found: cluster,
            }
            .into());
        }
        if let Some(asked) = asked.filter(|it| *it != identity.server) {
            return Err(ServerError::OtherServer {
                path: path.to_owned(),
                own: identity.server.0,
                asked: asked.0,
            });
        }
        let regions = path.join(REGIONS);
        fs::create_dir_all(&regions).map_err(failed("make", &regions))?;
        sync_directory(path)?;
        Ok(Self {
            path: path.to_owned(),
            cluster,
            server: identity.server,
            _lock: lock,
        })
    }

    /// Where its replicas lie.
    pub(crate) fn regions(&self) -> PathBuf {
        self.path.join(REGIONS)
    }
}

fn lock(path: &Path) -> Result<File, ServerError> {
    let name = path.join(LOCK);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&name)
        .map_err(failed("open", &name))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(ServerError::Locked {
            path: path.to_owned(),
        }),
        Err(TryLockError::Error(error)) => Err(failed("lock", &name)(error)),
    }
}

/// Replicas without `SERVER` are somebody's who has lost that file, or never were a server's.
fn refuse_without_identity(path: &Path) -> Result<(), ServerError> {
    let entries = fs::read_dir(path).map_err(failed("list", path))?;
    for entry in entries {
        let name = entry.map_err(failed("list", path))?.file_name();
        // A first start that was cut short leaves what it had begun to write.
        if name != LOCK && name != COORDINATOR && name != "SERVER.new" {
            return Err(ServerError::Damaged {
                path: path.join(SERVER),
                how: format!("there is none, and the directory has {}", name.display()),
                remedy: "give an empty directory, or restore this file from a copy",
            });
        }
    }
    Ok(())
}

fn decode(file: &Path, bytes: &[u8]) -> Result<Identity, ServerError> {
    let damaged = |how: String| ServerError::Damaged {
        path: file.to_owned(),
        how,
        remedy: "restore it from a copy; nothing was changed",
    };
    let version = version_of(bytes).map_err(damaged)?;
    if version != VERSION {
        return Err(other_version(file, version, VERSION));
    }
    let identity: Identity =
        serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    if identity.server.0 == 0 || identity.server.0 >= NUMBER_END {
        return Err(damaged(format!(
            "no server has number {}",
            identity.server.0
        )));
    }
    Ok(identity)
}

/// What it means that a file has another version than the one that is known.
pub(crate) fn other_version(path: &Path, version: u32, known: u32) -> ServerError {
    let path = path.to_owned();
    if version > known {
        return ServerError::Newer {
            path,
            version,
            known,
        };
    }
    ServerError::Damaged {
        path,
        how: format!("there is no format version {version}"),
        remedy: "restore it from a copy; nothing was changed",
    }
}

/// The version that a file of JSON says: another one may have other fields.
pub(crate) fn version_of(bytes: &[u8]) -> Result<u32, String> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let versioned: Versioned = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    Ok(versioned.version)
}

fn draw() -> Result<ServerId, ServerError> {
    let mut bytes = [0; 8];
    let flags = rustix::rand::GetRandomFlags::empty();
    rustix::rand::getrandom(&mut bytes, flags).map_err(|error| ServerError::NoResource {
        what: "random number",
        source: error.into(),
    })?;
    Ok(ServerId(1 + u64::from_le_bytes(bytes) % DRAWN_NUMBER_MAX))
}

/// Writes a file so that it is there as a whole, and durable, or as it was before.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), ServerError> {
    let new = path.with_extension("new");
    let mut file = File::create(&new).map_err(failed("make", &new))?;
    file.write_all(bytes).map_err(failed("write", &new))?;
    file.sync_all().map_err(failed("sync", &new))?;
    fs::rename(&new, path).map_err(failed("rename", &new))?;
    sync_directory(path.parent().unwrap_or(path))
}

pub(crate) fn sync_directory(path: &Path) -> Result<(), ServerError> {
    let synced = File::open(path).and_then(|it| it.sync_all());
    synced.map_err(failed("sync", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: ClusterId = ClusterId(7);

    /// Promise: a directory keeps its number; another's, another cluster's, one that is open, and
    /// one that has lost its file are refused, and nothing is changed.
    #[test]
    fn directories_belong_to_servers() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("one");
        let open = |cluster, asked| ServerDirectory::open(&path, cluster, asked);
        let first = open(CLUSTER, None).expect("made");
        let number = first.server;
        assert!(matches!(
            open(CLUSTER, None),
            Err(ServerError::Locked { .. })
        ));
        drop(first);
        assert_eq!(open(CLUSTER, None).expect("there").server, number);
        let other = Some(ServerId(number.0 + 1));
        assert!(matches!(
            open(CLUSTER, other),
            Err(ServerError::OtherServer { .. })
        ));
        assert!(matches!(
            open(ClusterId(8), None),
            Err(ServerError::Cluster(_))
        ));
        fs::remove_file(path.join(SERVER)).expect("it was there");
        let lost = open(CLUSTER, None).expect_err("it is no new directory");
        assert!(lost.to_string().contains("restore this file"), "{lost}");
        let bad = open(CLUSTER, Some(ServerId(0))).expect_err("no server has it");
        assert!(matches!(bad, ServerError::BadNumber(0)));
    }

    /// Promise: the coordinator of the same process may have its directory in a new server's. Once
    /// that was taken for what another server had left.
    #[test]
    fn a_new_directory_may_have_a_coordinator() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        fs::create_dir(scratch.path().join(COORDINATOR)).expect("made");
        let opened = ServerDirectory::open(scratch.path(), CLUSTER, None).expect("it is new");
        drop(opened);
        fs::remove_file(scratch.path().join(SERVER)).expect("it was there");
        let lost = ServerDirectory::open(scratch.path(), CLUSTER, None);
        assert!(
            matches!(lost, Err(ServerError::Damaged { .. })),
            "it has regions"
        );
    }

    /// Promise: a file of another version, or that is none, is refused with what to do.
    #[test]
    fn other_files_are_refused() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let file = scratch.path().join(SERVER);
        for (text, expected) in [
            (
                r#"{"version":2,"servers":[]}"#,
                "a newer program has written it",
            ),
            (r#"{"version":0}"#, "no format version 0"),
            (r#"{"version":1,"cluster":7,"server":0}"#, "number 0"),
            (r#"{"version":1,"cluster":7}"#, "missing field"),
            ("", "EOF"),
        ] {
            fs::write(&file, text).expect("written");
            let opened = ServerDirectory::open(scratch.path(), CLUSTER, None);
            let error = opened.expect_err("it is no identity").to_string();
            assert!(error.contains(expected), "{error}");
            assert_eq!(fs::read(&file).expect("still there"), text.as_bytes());
        }
    }
}
