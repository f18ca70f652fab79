//! The `shm` backend: how a region's memory and a session reach another process of the same host.
//!
//! The memory node listens on a unix socket (`SOCK_SEQPACKET`, mode 0600, in a directory of mode
//! 0700). A client connects, says hello, and receives the descriptor of the region's memory; it
//! maps it, and from then on reads and writes it with [`MappedEndpoint`](crate::mapped) alone: no
//! server CPU is on the path of an operation. Over the socket go only registration, closing, and
//! questions about liveness. The node takes a descriptor of the client's process when it connects,
//! and declares its sessions fenced when that process is dead (F6), never before.
//!
//! | module | what it holds |
//! |---|---|
//! | `place` | names of pools, where their sockets are, one node per name |
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
