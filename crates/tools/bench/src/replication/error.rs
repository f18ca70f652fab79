//! What ends a run.

use std::io;
use std::path::PathBuf;

use farleaf_fabric::tcp::TcpListenError;
use farleaf_lsm::LsmError;
use farleaf_replica::ReplicaError;

use super::names::{ReplicationKind, ReplicationPhase};
use crate::runner::BenchError;

/// What ends a run. Its directory is removed then, too.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicationError {
    /// An option is out of range.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// No directory can be made for a run, or used.
    #[error("no directory can be made in {path}: {source}", path = path.display())]
    Directory {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The host does not give the memory of the servers.
    #[error("no memory for the {region_count} backups of a server: {source}; take fewer --regions")]
    Memory {
        /// How many there were to be.
        region_count: u32,
        /// What the system said.
        source: io::Error,
    },
    /// The servers cannot reach each other over loopback.
    #[error("the servers do not reach each other over tcp: {0}")]
    Network(String),
    /// A primary or a backup has failed.
    #[error("{what}: {source}")]
    Replica {
        /// What was being done, and where.
        what: String,
        /// How it failed.
        source: Box<ReplicaError>,
    },
    /// A key that was put is not there, or has a value that nobody has put.
    #[error("{phase}, {kind}: key {key} {how}")]
    WrongAnswer {
        /// In which phase.
        phase: ReplicationPhase,
        /// With which kind of replication.
        kind: ReplicationKind,
        /// Which key.
        key: String,
        /// What was found.
        how: &'static str,
    },
    /// A promoted backup has not what its primary has.
    #[error(
        "{kind}: the promoted backup of region {region} has another value of key {key} than its \
         primary, or both have one that nobody has put"
    )]
    Promoted {
        /// With which kind of replication.
        kind: ReplicationKind,
        /// Of which region.
        region: usize,
        /// Which key.
        key: String,
    },
    /// A thread could not be started.
    #[error("cannot start {thread_count} threads ({source}): take fewer --threads")]
    Thread {
        /// How many were asked for.
        thread_count: usize,
        /// What the system said.
        source: io::Error,
    },
}

impl ReplicationError {
    /// For `map_err`: what was being done.
    pub(super) fn replica(what: impl Into<String>) -> impl FnOnce(ReplicaError) -> Self {
        |source| Self::Replica {
            what: what.into(),
            source: Box::new(source),
        }
    }

    /// For `map_err`: the same, of an engine by itself.
    pub(super) fn engine(what: impl Into<String>) -> impl FnOnce(LsmError) -> Self {
        |source| Self::replica(what)(source.into())
    }
}

impl From<TcpListenError> for ReplicationError {
    fn from(error: TcpListenError) -> Self {
        Self::Network(error.to_string())
    }
}
