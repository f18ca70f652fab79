//! Errors of runs.

use std::io;
use std::path::PathBuf;

use farleaf_fabric::tcp::TcpListenError;
use farleaf_lsm::LsmError;
use farleaf_replica::ReplicaError;

use super::names::{ReplicationKind, ReplicationPhase};
use crate::runner::BenchError;

/// Error that ends a run. The run's directory is removed in this case, too.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicationError {
    /// An option is out of range.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The directory of a run cannot be created or used.
    #[error("cannot create a directory in '{path}': {source}", path = path.display())]
    Directory {
        /// Path of the directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The host lacks memory for the servers.
    #[error(
        "out of memory for the {region_count} backups of a server: {source}; use fewer --regions"
    )]
    Memory {
        /// Number of regions per server.
        region_count: u32,
        /// Error of the system.
        source: io::Error,
    },
    /// The servers cannot reach each other over loopback.
    #[error("cannot connect the servers over TCP: {0}")]
    Network(String),
    /// A primary or a backup has failed.
    #[error("{what}: {source}")]
    Replica {
        /// Operation and place of the failure.
        what: String,
        /// Cause of the failure.
        source: Box<ReplicaError>,
    },
    /// A key that was put is missing, or has a value that no client has put.
    #[error("wrong result in phase '{phase}', kind '{kind}': key '{key}' {how}")]
    WrongAnswer {
        /// Phase of the get.
        phase: ReplicationPhase,
        /// Kind of replication.
        kind: ReplicationKind,
        /// Key in question.
        key: String,
        /// Description of the wrong answer.
        how: &'static str,
    },
    /// A promoted backup differs from its primary.
    #[error(
        "wrong value of key '{key}', kind '{kind}': the promoted backup of region {region} differs \
         from its primary, or both have a value that no client wrote"
    )]
    Promoted {
        /// Kind of replication.
        kind: ReplicationKind,
        /// Number of the region.
        region: usize,
        /// Key that differs.
        key: String,
    },
}

impl ReplicationError {
    /// Returns a converter for `map_err`: one of this many threads could not be started.
    pub(super) fn thread(thread_count: usize) -> impl Fn(io::Error) -> Self {
        move |source| {
            Self::Bench(BenchError::Thread {
                thread_count,
                source,
            })
        }
    }

    /// Returns a converter for `map_err` that adds the operation to an error of a replica.
    pub(super) fn replica(what: impl Into<String>) -> impl FnOnce(ReplicaError) -> Self {
        |source| Self::Replica {
            what: what.into(),
            source: Box::new(source),
        }
    }

    /// Returns a converter for `map_err` that adds the operation to an error of an engine.
    pub(super) fn engine(what: impl Into<String>) -> impl FnOnce(LsmError) -> Self {
        |source| Self::replica(what)(source.into())
    }
}

impl From<TcpListenError> for ReplicationError {
    fn from(error: TcpListenError) -> Self {
        Self::Network(error.to_string())
    }
}
