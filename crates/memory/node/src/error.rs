//! Errors at the start of a memory node.

use std::io;

use farleaf_base::size_text::size_in_bytes;
use farleaf_fabric::BatchError;
use farleaf_fabric::shm::{ListenError, NameError};
use farleaf_fabric::tcp::TcpListenError;
use farleaf_fabric::verbs::VerbsError;
use farleaf_pool::SuperblockError;
use thiserror::Error;

/// Error at the start of a memory node.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The pool name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The size is too small.
    #[error(transparent)]
    Size(#[from] SuperblockError),
    /// The host does not have enough memory.
    #[error(
        "cannot allocate {} of memory for the pool: {source}; serve a smaller pool, or free \
         memory",
        size_in_bytes(*size_bytes)
    )]
    Memory {
        /// Requested size in bytes.
        size_bytes: u64,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Failure of the local socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Failure of the network listener.
    #[error(transparent)]
    Network(#[from] TcpListenError),
    /// Failure of the RDMA device.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A thread could not be started, or the system cannot wait.
    #[error("the memory node's thread failed: {0}")]
    Thread(io::Error),
    /// The memory refused the node's own verbs.
    #[error(transparent)]
    Fabric(#[from] BatchError),
}
