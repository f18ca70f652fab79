//! What can go wrong with a region server.

use std::io;
use std::path::PathBuf;

use farleaf_cluster::ClusterError;
use farleaf_cluster::agent::host::ReplicaFailure;
use farleaf_cluster::ids::{ClusterId, ServerId};
use farleaf_lsm::LsmError;
use farleaf_lsm::storage::is_no_room;
use farleaf_replica::ReplicaError;
use farleaf_wire::WireError;
use thiserror::Error;

/// An operating failure of a region server.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The control plane.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Its listener.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// An engine.
    #[error(transparent)]
    Engine(#[from] LsmError),
    /// A replica.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// A file of the server's own.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file of the server's own is not as it was written.
    #[error("{} is damaged: {how}; {remedy}", path.display())]
    Damaged {
        /// Which.
        path: PathBuf,
        /// How.
        how: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A later version has written a file of the server's own.
    #[error(
        "{} has format version {version}, and this program knows version {known}: a newer program \
         has written it; use that program here, too; nothing was changed", path.display()
    )]
    Newer {
        /// Which.
        path: PathBuf,
        /// Its version.
        version: u32,
        /// The one that is known.
        known: u32,
    },
    /// Another server of the cluster has the number that a new directory was to have.
    #[error(
        "{server} is there already, and has registered at {address}: give a new directory another \
         number (`--number`), or none, so that one is drawn; or, if that server is no more, wait \
         until its lease is over; the directory is nobody's yet"
    )]
    NumberTaken {
        /// Which.
        server: ServerId,
        /// Where it says that it is reached.
        address: String,
    },
    /// Another process has the directory.
    #[error("{} is open in another server: stop that one first; nothing was changed", path.display())]
    Locked {
        /// Which.
        path: PathBuf,
    },
    /// The directory is another server's.
    #[error(
        "{} belongs to server {own}, and not to server {asked}: leave the number out, or give \
         another directory; nothing was changed", path.display()
    )]
    OtherServer {
        /// Which.
        path: PathBuf,
        /// Whose it is.
        own: u64,
        /// Whose it was said to be.
        asked: u64,
    },
    /// A file is of another cluster than the server, or does not say of which (ID3).
    #[error(
        "{} {}", path.display(),
        found.map_or_else(
            || "names no cluster".to_owned(),
            |it| format!(
                "belongs to {it}, but this server belongs to {own}; the file was kept and not used"
            )
        )
    )]
    OtherClusterFile {
        /// Which.
        path: PathBuf,
        /// The server's cluster.
        own: ClusterId,
        /// What the file says.
        found: Option<ClusterId>,
    },
    /// Nobody would find it there.
    #[error(
        "{address} is where this server listens, and no address that others can reach it at: say \
         that one, too"
    )]
    NotAdvertised {
        /// Where it would listen.
        address: std::net::SocketAddr,
    },
    /// A number that no server can have.
    #[error("a server's number can be 1 to 9007199254740991, and {0} is not")]
    BadNumber(u64),
    /// A copy that the server was to open, and cannot.
    #[error("{0}")]
    NoCopy(&'static str),
    /// The process can have no more threads, or no more memory.
    #[error("the system gives no {what}: {source}")]
    NoResource {
        /// What was asked for.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}

impl ServerError {
    /// Whether the disk, or a quota of it, is full.
    pub(crate) fn is_no_room(&self) -> bool {
        match self {
            Self::File { source, .. } => is_no_room(source),
            Self::Engine(error) => error.is_no_room(),
            Self::Replica(error) => error.is_no_room(),
            _ => false,
        }
    }
}

impl From<ServerError> for ReplicaFailure {
    fn from(error: ServerError) -> Self {
        Self {
            how: error.to_string(),
            lacked_room: error.is_no_room(),
            is_damaged: false,
        }
    }
}
