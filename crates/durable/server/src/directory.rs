//! A server's directory: its identity and its lock.
//!
//! ```text
//! DIRECTORY/LOCK                       locked as long as the server runs
//! DIRECTORY/SERVER                     {"version":2,"cluster":"C","server":S}
//! DIRECTORY/regions/R-N/               replica N of region R (see `place`)
//! DIRECTORY/SEEN                       newest state of the coordinator (see `seen_file`)
//! DIRECTORY/orphans/                   files moved aside (see `orphans`)
//! DIRECTORY/coordinator/               the coordinator, if it runs in this process
//! ```

use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use farleaf_cluster::ClusterError;
use farleaf_cluster::ids::{ClusterId, ServerId};
use farleaf_cluster::record::{Cluster, NUMBER_END};
use farleaf_lsm::storage::{is_missing_file, private};
use serde::{Deserialize, Serialize};

use crate::error::ServerError;
use crate::place::adopt_replicas;

const LOCK: &str = "LOCK";
const SERVER: &str = "SERVER";
pub(crate) const REGIONS: &str = "regions";
/// Name that may exist in a directory before it is a server's: a coordinator starts before its
/// servers.
const COORDINATOR: &str = "coordinator";
/// Version of `SERVER`.
const VERSION: u32 = 2;
/// Version of `SERVER` in a directory without a 128-bit cluster id.
const LEGACY_VERSION: u32 = 1;
/// Upper bound of the size of the server's small files.
const SMALL_SIZE_BYTES_MAX: u64 = 64 << 10;
/// Remedy for a damaged file.
const RESTORE: &str = "restore it from a copy; nothing was changed";
/// Highest random server number: people type these numbers.
const DRAWN_NUMBER_MAX: u64 = 1 << 31;

/// Content of `SERVER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerIdentity {
    version: u32,
    cluster: ClusterId,
    server: ServerId,
}

impl ServerIdentity {
    fn new(cluster: ClusterId, server: ServerId) -> Self {
        let version = if cluster.is_legacy() {
            LEGACY_VERSION
        } else {
            VERSION
        };
        Self {
            version,
            cluster,
            server,
        }
    }

    fn write(&self, directory: &Path) -> Result<(), ServerError> {
        write_whole(&directory.join(SERVER), &json(self))
    }
}

/// A server's directory, locked.
#[derive(Debug)]
pub(crate) struct ServerDirectory {
    pub(crate) path: PathBuf,
    pub(crate) cluster: ClusterId,
    pub(crate) server: ServerId,
    /// Lock that ends when the file is closed.
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

/// A locked directory that is a server's or can become one's.
#[derive(Debug)]
pub(crate) struct LockedDirectory {
    path: PathBuf,
    lock: File,
    identity: Option<ServerIdentity>,
    asked: Option<ServerId>,
}

impl LockedDirectory {
    /// Locks a directory, which is created if missing. Refuses a directory of another server than
    /// `asked`.
    pub(crate) fn open(path: &Path, asked: Option<ServerId>) -> Result<Self, ServerError> {
        if let Some(ServerId(number)) = asked
            && (number == 0 || number >= NUMBER_END)
        {
            return Err(ServerError::BadNumber(number));
        }
        let file = path.join(SERVER);
        if path.is_dir() && !file.exists() {
            // Before anything is created in it: the directory may have nothing to do with a server.
            refuse_without_identity(path)?;
        }
        private::create_directory_all(path).map_err(failed("create", path))?;
        let lock = lock(path)?;
        let identity = if let Some(bytes) = read_small(&file, RESTORE)? {
            Some(decode(&file, &bytes)?)
        } else {
            refuse_without_identity(path)?;
            None
        };
        if let (Some(asked), Some(own)) = (asked, identity)
            && asked != own.server
        {
            return Err(ServerError::OtherServer {
                path: path.to_owned(),
                own: own.server.0,
                asked: asked.0,
            });
        }
        // It is or becomes a server's directory, and no other process has it open.
        private::tighten(path).warn();
        Ok(Self {
            path: path.to_owned(),
            lock,
            identity,
            asked,
        })
    }

    /// Returns the cluster that the directory belongs to; `None` if it is new.
    pub(crate) fn cluster(&self) -> Option<ClusterId> {
        self.identity.map(|it| it.cluster)
    }

    /// Makes this the directory of a server of this cluster. A new directory gets the requested
    /// number, or a random one; `holder` returns the address of the server that has registered with
    /// a number, if any. A directory of an older version adopts its cluster's new identifier.
    pub(crate) fn claim(
        self,
        record: &Cluster,
        holder: impl Fn(ServerId) -> Result<Option<String>, ServerError>,
    ) -> Result<ServerDirectory, ServerError> {
        let path = self.path;
        let cluster = record.cluster;
        let server = match self.identity {
            Some(identity) if identity.cluster == cluster => identity.server,
            Some(identity) if record.formerly == Some(identity.cluster) => {
                adopt(&path, identity.server, cluster)?;
                identity.server
            }
            Some(identity) => {
                return Err(ClusterError::OtherCluster {
                    own: identity.cluster,
                    found: cluster,
                }
                .into());
            }
            // Its copies could not be told from those of another cluster.
            None if cluster.is_legacy() => return Err(ClusterError::NotAdopted(cluster).into()),
            None => {
                let server = choose(self.asked, holder)?;
                ServerIdentity::new(cluster, server).write(&path)?;
                server
            }
        };
        let regions = path.join(REGIONS);
        private::create_directory_all(&regions).map_err(failed("create", &regions))?;
        sync_directory(&path)?;
        Ok(ServerDirectory {
            path,
            cluster,
            server,
            _lock: self.lock,
        })
    }
}

/// Returns whether a directory already is a server's.
pub(crate) fn is_server(path: &Path) -> io::Result<bool> {
    path.join(SERVER).try_exists()
}

/// Assigns the directory of an older version to its cluster's new identifier.
pub(crate) fn adopt(path: &Path, server: ServerId, cluster: ClusterId) -> Result<(), ServerError> {
    // The replicas first: if this is interrupted, the directory does not have the new identifier
    // yet.
    adopt_replicas(&path.join(REGIONS), cluster)?;
    ServerIdentity::new(cluster, server).write(path)?;
    tracing::info!("{} now belongs to {cluster}", path.display());
    Ok(())
}

/// Chooses the number of a new directory, which no other server has at the moment.
fn choose(
    asked: Option<ServerId>,
    holder: impl Fn(ServerId) -> Result<Option<String>, ServerError>,
) -> Result<ServerId, ServerError> {
    loop {
        let server = match asked {
            Some(asked) => asked,
            None => draw()?,
        };
        match holder(server)? {
            None => return Ok(server),
            Some(address) if asked.is_some() => {
                return Err(ServerError::NumberTaken { server, address });
            }
            Some(_) => {}
        }
    }
}

impl ServerDirectory {
    /// Returns the directory of the replicas.
    pub(crate) fn regions(&self) -> PathBuf {
        self.path.join(REGIONS)
    }
}

fn lock(path: &Path) -> Result<File, ServerError> {
    let name = path.join(LOCK);
    let file = private::file_options()
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

/// Refuses files without `SERVER`: either that file was lost, or the directory never was a
/// server's.
fn refuse_without_identity(path: &Path) -> Result<(), ServerError> {
    let entries = fs::read_dir(path).map_err(failed("list", path))?;
    for entry in entries {
        let name = entry.map_err(failed("list", path))?.file_name();
        // An interrupted first start leaves this file.
        if name != LOCK && name != COORDINATOR && name != "SERVER.new" {
            return Err(ServerError::Damaged {
                path: path.join(SERVER),
                how: format!(
                    "the file is missing, but the directory contains '{}'",
                    name.display()
                ),
                remedy: "choose an empty directory, or restore this file from a copy",
            });
        }
    }
    Ok(())
}

fn decode(file: &Path, bytes: &[u8]) -> Result<ServerIdentity, ServerError> {
    let damaged = ServerError::damaged(file, RESTORE);
    let version = version_of(bytes).map_err(damaged)?;
    if version != VERSION && version != LEGACY_VERSION {
        return Err(other_version(file, version, VERSION));
    }
    let identity: ServerIdentity =
        serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    if identity.version != ServerIdentity::new(identity.cluster, identity.server).version {
        return Err(damaged(format!(
            "format version {version} does not support the id of {}",
            identity.cluster
        )));
    }
    if identity.server.0 == 0 || identity.server.0 >= NUMBER_END {
        return Err(damaged(format!(
            "invalid server number {}",
            identity.server.0
        )));
    }
    Ok(identity)
}

/// Reads the cluster that a server's directory belongs to, without a lock.
pub(crate) fn cluster_of(server: &Path) -> Result<ClusterId, ServerError> {
    let file = server.join(SERVER);
    match read_small(&file, RESTORE)? {
        Some(bytes) => Ok(decode(&file, &bytes)?.cluster),
        None => Err(ServerError::Damaged {
            path: file,
            how: "the file is missing".to_owned(),
            remedy: "specify the directory of a server",
        }),
    }
}

/// Reads one of the server's small files; `None` if it is missing. A file that is too long, or not
/// a file, is damaged.
pub(crate) fn read_small(
    path: &Path,
    remedy: &'static str,
) -> Result<Option<Vec<u8>>, ServerError> {
    let damaged = ServerError::damaged(path, remedy);
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| {
        let mut limited = file.take(SMALL_SIZE_BYTES_MAX + 1);
        limited.read_to_end(&mut bytes)
    });
    match read {
        Ok(size_bytes) if size_bytes as u64 > SMALL_SIZE_BYTES_MAX => Err(damaged(format!(
            "the file is larger than {SMALL_SIZE_BYTES_MAX} bytes"
        ))),
        Ok(_) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if is_missing_file(&error) => Err(damaged(error.to_string())),
        Err(error) => Err(failed("read", path)(error)),
    }
}

/// Returns the error for a file with another version than the known one.
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
        how: format!("unsupported format version {version}"),
        remedy: RESTORE,
    }
}

/// Reads the version of a JSON file; another version may have other fields.
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

/// Encodes the content of a file.
pub(crate) fn json(content: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(content).expect("it is a plain value")
}

/// Writes a file atomically and durably: after a crash it has either the new content or the old
/// one.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), ServerError> {
    let new = path.with_extension("new");
    let file = private::file_options()
        .create(true)
        .truncate(true)
        .write(true)
        .open(&new);
    let mut file = file.map_err(failed("create", &new))?;
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

    const CLUSTER: ClusterId = ClusterId(7 << 64);

    fn record(cluster: ClusterId) -> Cluster {
        Cluster::new(cluster, None)
    }

    /// Opens a directory in a cluster without other servers.
    fn open_in(
        path: &Path,
        cluster: ClusterId,
        asked: Option<ServerId>,
    ) -> Result<ServerDirectory, ServerError> {
        LockedDirectory::open(path, asked)?.claim(&record(cluster), |_| Ok(None))
    }

    /// Fixes the format: a change needs a new version.
    #[test]
    fn identities_are_golden() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let opened = open_in(scratch.path(), CLUSTER, Some(ServerId(3)));
        opened.expect("it is new");
        let text = fs::read_to_string(scratch.path().join(SERVER)).expect("there");
        let golden = r#"{"version":2,"cluster":"00000000000000070000000000000000","server":3}"#;
        assert_eq!(text, golden);
    }

    /// The directory of an older version is opened, and keeps its number until its own cluster is
    /// adopted. It never takes another cluster's identifier.
    #[test]
    fn directories_of_older_versions_adopt_their_own_cluster() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path();
        let of_before = r#"{"version":1,"cluster":7,"server":3}"#;
        fs::write(path.join(SERVER), of_before).expect("written");
        let open =
            |record: &Cluster| LockedDirectory::open(path, None)?.claim(record, |_| Ok(None));
        let opened = open(&record(ClusterId(7))).expect("it is the same");
        assert_eq!((opened.cluster, opened.server), (ClusterId(7), ServerId(3)));
        drop(opened);
        for foreign in [
            record(ClusterId(8)),
            record(CLUSTER),
            Cluster::new(CLUSTER, Some(ClusterId(8))),
        ] {
            let error = open(&foreign).expect_err("it is another one");
            let is_told = matches!(
                error,
                ServerError::Cluster(ClusterError::OtherCluster { .. })
            );
            assert!(is_told, "{error}");
            let text = fs::read_to_string(path.join(SERVER)).expect("there");
            assert_eq!(text, of_before);
        }
        let adopted = Cluster::new(CLUSTER, Some(ClusterId(7)));
        for _ in 0..2 {
            let opened = open(&adopted).expect("it is its own");
            assert_eq!((opened.cluster, opened.server), (CLUSTER, ServerId(3)));
        }
        fs::write(path.join(SERVER), r#"{"version":2,"cluster":7,"server":3}"#).expect("written");
        let error = open(&adopted)
            .expect_err("version 2 has 128 bits")
            .to_string();
        assert!(
            error.contains("does not support the id of cluster 7"),
            "{error}"
        );
    }

    /// A new directory does not join a cluster without a 128-bit identifier.
    #[test]
    fn a_new_directory_joins_no_cluster_of_an_older_version() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let mut old = record(ClusterId(7));
        old.version = 1;
        let locked = LockedDirectory::open(scratch.path(), None).expect("it is new");
        let error = locked
            .claim(&old, |_| Ok(None))
            .expect_err("it is not adopted");
        assert!(error.to_string().contains("cluster adopt"), "{error}");
        assert!(!scratch.path().join(SERVER).exists());
    }

    /// A directory keeps its number. A directory of another server or cluster, an open one, and one
    /// without `SERVER` are refused, and nothing is changed.
    #[test]
    fn directories_belong_to_servers() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("one");
        let open = |cluster, asked| open_in(&path, cluster, asked);
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
            open(ClusterId(8 << 64), None),
            Err(ServerError::Cluster(_))
        ));
        fs::remove_file(path.join(SERVER)).expect("it was there");
        let lost = open(CLUSTER, None).expect_err("it is no new directory");
        assert!(lost.to_string().contains("restore this file"), "{lost}");
        let bad = open(CLUSTER, Some(ServerId(0))).expect_err("no server has it");
        assert!(matches!(bad, ServerError::BadNumber(0)));
    }

    /// The coordinator of the same process may have its directory in a new server's. This was once
    /// mistaken for files of another server.
    #[test]
    fn a_new_directory_may_have_a_coordinator() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        fs::create_dir(scratch.path().join(COORDINATOR)).expect("made");
        let opened = open_in(scratch.path(), CLUSTER, None).expect("it is new");
        drop(opened);
        fs::remove_file(scratch.path().join(SERVER)).expect("it was there");
        let lost = open_in(scratch.path(), CLUSTER, None);
        assert!(
            matches!(lost, Err(ServerError::Damaged { .. })),
            "it has regions"
        );
    }

    /// A file of another version, or an invalid one, is refused with the remedy.
    #[test]
    fn other_files_are_refused() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let file = scratch.path().join(SERVER);
        for (text, expected) in [
            (
                r#"{"version":3,"servers":[]}"#,
                "a newer version has written it",
            ),
            (r#"{"version":0}"#, "unsupported format version 0"),
            (r#"{"version":1,"cluster":7,"server":0}"#, "number 0"),
            (r#"{"version":1,"cluster":7}"#, "missing field"),
            ("", "EOF"),
            (&"x".repeat(70_000), "larger than 65536 bytes"),
        ] {
            fs::write(&file, text).expect("written");
            let opened = open_in(scratch.path(), CLUSTER, None);
            let error = opened.expect_err("it is no identity").to_string();
            assert!(error.contains(expected), "{error}");
            assert_eq!(fs::read(&file).expect("still there"), text.as_bytes());
        }
    }

    /// A new directory does not get a number that a server of the cluster has at the moment, and
    /// then stays new. A random number differs from it. Two servers once had the same number, and
    /// the second one waited forever.
    #[test]
    fn a_number_that_is_taken_is_given_to_nobody() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("new");
        let locked = LockedDirectory::open(&path, Some(ServerId(2))).expect("it is new");
        let error = locked.claim(&record(CLUSTER), |_| Ok(Some("host:2".to_owned())));
        let message = error.expect_err("it is taken").to_string();
        assert!(
            message.contains("server 2 already exists") && message.contains("host:2"),
            "{message}"
        );
        assert!(message.contains("--number"), "{message}");
        assert!(!path.join(SERVER).exists(), "it belongs to nobody");
        let asked_count = std::cell::Cell::new(0);
        let locked = LockedDirectory::open(&path, None).expect("it is new");
        let claimed = locked.claim(&record(CLUSTER), |_| {
            asked_count.set(asked_count.get() + 1);
            Ok((asked_count.get() < 3).then(|| "host:2".to_owned()))
        });
        assert!(claimed.is_ok() && asked_count.get() == 3);
    }

    /// A new directory with other content is refused before anything is created in it.
    #[test]
    fn nothing_is_made_in_what_is_no_server_s() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        fs::write(scratch.path().join("letters"), "dear").expect("written");
        let error = LockedDirectory::open(scratch.path(), None).expect_err("it is no server's");
        assert!(
            error.to_string().contains("choose an empty directory"),
            "{error}"
        );
        assert!(!scratch.path().join(LOCK).exists());
    }
}
