//! Errors of region servers.

use std::io;
use std::path::{Path, PathBuf};

use farleaf_cluster::ClusterError;
use farleaf_cluster::agent::host::ReplicaFailure;
use farleaf_cluster::ids::{ClusterId, ServerId};
use farleaf_lsm::LsmError;
use farleaf_lsm::storage::is_out_of_space;
use farleaf_net::request::NetError;
use farleaf_replica::ReplicaError;
use thiserror::Error;

/// Error of a region server.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The control plane failed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The listener failed.
    #[error(transparent)]
    Wire(#[from] NetError),
    /// An engine failed.
    #[error(transparent)]
    Engine(#[from] LsmError),
    /// A replica failed.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// Access to one of the server's files failed.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// The failed action.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// One of the server's files is corrupted.
    #[error("{} is corrupted: {how}; {remedy}", path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Description of the corruption.
        how: String,
        /// Remedy.
        remedy: &'static str,
    },
    /// A later version has written one of the server's files.
    #[error(
        "{} has format version {version}, but this version supports {known}: a newer version \
         has written it; use that version here, too; nothing was changed", path.display()
    )]
    Newer {
        /// Path of the file.
        path: PathBuf,
        /// Version of the file.
        version: u32,
        /// Known version.
        known: u32,
    },
    /// Another server of the cluster has the number requested for a new directory.
    #[error(
        "{server} already exists and is registered at {address}; choose another number with \
         `--number`, or omit the option to have one assigned; if that server no longer runs, wait \
         until its lease expires; no number was assigned to the directory"
    )]
    NumberTaken {
        /// The number.
        server: ServerId,
        /// Address of the other server.
        address: String,
    },
    /// Another process has the directory open.
    #[error(
        "{} is in use by another server; stop that server first; nothing was changed",
        path.display()
    )]
    Locked {
        /// Path of the directory.
        path: PathBuf,
    },
    /// The directory belongs to another server.
    #[error(
        "{} belongs to server {own}, not to server {asked}; omit the number, or choose another \
         directory; nothing was changed", path.display()
    )]
    OtherServer {
        /// Path of the directory.
        path: PathBuf,
        /// Number of the directory's server.
        own: u64,
        /// Requested number.
        asked: u64,
    },
    /// A file belongs to another cluster than the server, or does not name one.
    #[error(
        "{} {}", path.display(),
        found.map_or_else(
            || "does not name a cluster; the file was kept but not used".to_owned(),
            |it| format!(
                "belongs to {it}, but this server belongs to {own}; the file was kept but not used"
            )
        )
    )]
    OtherClusterFile {
        /// Path of the file.
        path: PathBuf,
        /// Cluster of the server.
        own: ClusterId,
        /// Cluster in the file.
        found: Option<ClusterId>,
    },
    /// Other servers cannot reach the address.
    #[error(
        "other servers cannot reach this server at its listen address {address}; specify the \
         address to advertise (`--advertise`)"
    )]
    NotAdvertised {
        /// The address to listen at.
        address: std::net::SocketAddr,
    },
    /// The server number is out of range.
    #[error("invalid server number {0}: expected 1 to 9007199254740991")]
    BadNumber(u64),
    /// The server was to open a copy that is missing or cannot be used.
    #[error("{0}")]
    NoCopy(&'static str),
    /// The operating system provides no more threads or memory.
    #[error("cannot obtain a {what} from the operating system: {source}")]
    NoResource {
        /// The missing resource.
        what: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl ServerError {
    /// Returns the function that creates the error of a corrupted file from a description.
    pub(crate) fn damaged<'p>(
        path: &'p Path,
        remedy: &'static str,
    ) -> impl Fn(String) -> Self + Copy + use<'p> {
        move |how| Self::Damaged {
            path: path.to_owned(),
            how,
            remedy,
        }
    }

    /// Returns whether the disk, or a quota of it, is full.
    pub(crate) fn is_out_of_space(&self) -> bool {
        match self {
            Self::File { source, .. } => is_out_of_space(source),
            Self::Engine(error) => error.is_out_of_space(),
            Self::Replica(error) => error.is_out_of_space(),
            _ => false,
        }
    }
}

impl From<ServerError> for ReplicaFailure {
    fn from(error: ServerError) -> Self {
        Self {
            how: error.to_string(),
            lacked_space: error.is_out_of_space(),
            is_damaged: false,
        }
    }
}
