//! The `verbs` backend: a memory node's region behind a real RDMA network card.
//!
//! ```text
//!   client process                                memory node
//!   +--------------------+      control (tcp)    +--------------------------+
//!   | VerbsClient        |----------------------| listener: who may come   |
//!   |                    |                      | in, sessions, their end  |
//!   | VerbsEndpoint of   |      queue pair      +--------------------------+
//!   |  session 1         |======================| RDMA card, registered    |
//!   |  session 2         |======================| region; no processor     |
//!   +--------------------+                      +--------------------------+
//! ```
//!
//! Greeting, rights and sessions are the `tcp` backend's. Beside each session's queue pair there is
//! a TCP connection, over which the two ends of the pair were exchanged and which says when it is
//! over. The process as such works over TCP: it reads, and writes the words by which it keeps its
//! sessions alive.
//!
//! The card's atomics and a processor's do not know of each other (F4). So on a node with verbs
//! everybody changes words by the card: the node itself over a queue pair that is connected to
//! itself, and clients by `shm`, and sessions by `tcp` that may write, are turned away.
//!
//! A session is fenced (F6) by moving the node's end of its queue pair to ERROR and destroying it.
//!
//! The library `libibverbs` is loaded when a device is first asked for; nothing is needed to build,
//! and nothing is missed by who does not use verbs.
//!
//! | module | what it holds |
//! |---|---|
//! | `sys` | the library behind safe types; the unsafe code |
//! | `device`, `error` | which device, port, address and packet size; why there is none |
//! | `link`, `parameters` | queue pairs, how they are connected, what goes over the wire for it |
//! | `buffers` | registered memory for what verbs bring and take |
//! | `pieces`, `status` | verbs as requests to a card, and how those ended |
//! | `connection`, `answer` | one queue pair's verbs under way (K1 to K4), and how they ended (batches over several: [`network`](crate::network)) |
//! | `host` | what queue pairs are opened with |
//! | `client` | the client's side: calls |
//! | `node` | the node's side: its memory, its clients' queue pairs, its own |

mod answer;
mod buffers;
mod client;
mod connection;
mod device;
mod error;
mod host;
mod link;
mod node;
mod parameters;
mod pieces;
mod status;
#[expect(
    unsafe_code,
    reason = "calls a C library that is loaded at run time; proofs at each block"
)]
mod sys;

pub use client::{VerbsClient, VerbsConnectError};
pub use connection::VerbsConnection;
pub use device::VerbsOptions;
pub use error::VerbsError;
pub use host::VerbsHost;
pub(crate) use node::ServedQueue;
pub use node::VerbsNode;
pub(crate) use parameters::{NodeQueue, QueueParameters};

use crate::network::{NetworkEndpoint, NetworkExecute};

/// An endpoint to the nodes of a pool, over queue pairs.
pub type VerbsEndpoint = NetworkEndpoint<VerbsConnection>;

/// A batch over queue pairs.
pub type VerbsExecute<'a> = NetworkExecute<'a, VerbsConnection>;

#[cfg(feature = "conformance")]
impl VerbsEndpoint {
    /// For tests: posts what this side would refuse, as a client that means harm does.
    #[must_use]
    pub fn unchecked(mut self) -> Self {
        self.is_unchecked = true;
        self
    }

    /// For tests: goes to the region of node 0 by another endpoint's key, as who has guessed it.
    #[must_use]
    pub fn with_key_of(self, other: &Self) -> Self {
        let home = farleaf_types::NodeId(0);
        if let (Some(node), Some(other)) = (self.node(home), other.node(home)) {
            node.borrow_mut().take_key_of(&other.borrow());
        }
        self
    }
}
