//! Why a memory node cannot start.

use std::io;

use farleaf_fabric::BatchError;
use farleaf_fabric::shm::{ListenError, NameError};
use farleaf_fabric::tcp::TcpListenError;
use farleaf_fabric::verbs::VerbsError;
use farleaf_region::SuperblockError;
use thiserror::Error;

/// Why a memory node cannot start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The name is no pool name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The size is too small.
    #[error(transparent)]
    Size(#[from] SuperblockError),
    /// The host has not so much memory to give.
    #[error(
        "cannot get {size_bytes} bytes of memory for the pool: {source}; serve a smaller pool, or \
         free memory"
    )]
    Memory {
        /// What was asked for.
        size_bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The network.
    #[error(transparent)]
    Network(#[from] TcpListenError),
    /// The RDMA device.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A thread could not be started, or the system cannot wait.
    #[error("the memory node's thread failed: {0}")]
    Thread(io::Error),
    /// The region refused the node's own verbs.
    #[error(transparent)]
    Fabric(#[from] BatchError),
}
