//! The `verbs` backend: access to a memory node through an RDMA network card.
//!
//! ```text
//!   client process                                memory node
//!   +--------------------+      control (tcp)    +--------------------------+
//!   | VerbsClient        |----------------------| listener: who may come   |
//!   |                    |                      | in, sessions, their end  |
//!   | VerbsEndpoint of   |      queue pair      +--------------------------+
//!   |  session 1         |======================| RDMA card, registered    |
//!   |  session 2         |======================| memory; no processor     |
//!   +--------------------+                      +--------------------------+
//! ```
//!
//! Greeting, rights and sessions are those of the `tcp` backend. Beside each session's queue pair
//! there is a TCP connection, which exchanges the two ends of the pair and announces its end. The
//! process itself works over TCP: it reads, and writes the words that keep its sessions alive.
//!
//! Atomics of the card and of a processor on one word lose updates (FABRIC-4). So on a node with
//! verbs only the card changes words. The node itself uses a queue pair that is connected to
//! itself, and refuses clients by `shm` and sessions by `tcp` that may write.
//!
//! To fence a session (FABRIC-6), the node moves its end of the queue pair to ERROR and destroys
//! it.
//!
//! The library `libibverbs` is loaded when a device is first needed. It is not needed to build
//! Farleaf, or to run it without verbs.
//!
//! | module | content |
//! |---|---|
//! | `sys` | the library behind safe types; the unsafe code |
//! | `device`, `error` | selection of device, port, address and packet size; errors |
//! | `link`, `parameters` | queue pairs, their connection, and the parameters exchanged for it |
//! | `buffers` | registered memory for the data of verbs |
//! | `pieces`, `status` | verbs as requests to a card, and their status |
//! | `connection`, `answer` | verbs in flight (batches over several queue pairs: `network`) |
//! | `host` | a client's device and protection domain |
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

/// Future of a batch over queue pairs.
pub type VerbsExecute<'a> = NetworkExecute<'a, VerbsConnection>;

#[cfg(feature = "conformance")]
impl VerbsEndpoint {
    /// For tests: posts verbs that this side would refuse, as a malicious client does.
    #[must_use]
    pub fn unchecked(mut self) -> Self {
        self.is_unchecked = true;
        self
    }

    /// For tests: accesses the memory of node 0 with another endpoint's key, as an attacker that
    /// has guessed it.
    #[must_use]
    pub fn with_key_of(self, other: &Self) -> Self {
        let main_node = farleaf_base::NodeId(0);
        if let (Some(node), Some(other)) = (self.node(main_node), other.node(main_node)) {
            node.borrow_mut().take_key_of(&other.borrow());
        }
        self
    }
}
