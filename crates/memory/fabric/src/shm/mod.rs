//! The `shm` backend: passes a memory and sessions to other processes of the same host.
//!
//! The memory node listens on a unix socket (`SOCK_SEQPACKET`, mode 0600, in a directory of mode
//! 0700). A client connects, sends a hello, and receives the descriptor of the memory. It maps the
//! memory, and from then on accesses it only with [`MappedEndpoint`](crate::mapped): no server CPU
//! is on the path of an operation. The socket carries only registration, closing, and queries about
//! liveness. The node opens a descriptor of the client's process when it connects, and declares its
//! sessions fenced when that process is dead (FABRIC-6), never before.
//!
//! | module | content |
//! |---|---|
//! | `place` | names of pools, paths of their sockets, one node per name |
//! | `wire` | the messages |
//! | `listener` | the node's side |
//! | `client` | the client's side |

mod client;
mod listener;
mod place;
mod wire;

pub use client::ShmClient;
pub use listener::{ListenError, ShmListener};
pub use place::{NameError, PoolName};
pub use wire::CONTROL_VERSION;
