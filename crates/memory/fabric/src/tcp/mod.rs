//! The `tcp` backend: a memory node that executes verbs for whoever it lets in, over any network.
//!
//! ```text
//!   client process                                memory node
//!   +--------------------+      control      +--------------------------+
//!   | TcpClient          |-------------------| listener: who may come   |
//!   |                    |                   | in, sessions, their end  |
//!   | TcpEndpoint of     |      data         +--------------------------+
//!   |  session 1         |-------------------| soft NIC: threads that   |
//!   |  session 2         |-------------------| execute frames of verbs  |
//!   |  process           |-------------------| on the region            |
//!   +--------------------+                   +--------------------------+
//! ```
//!
//! Each session has a data connection of its own, which is its queue pair: what is posted to it is
//! executed in posting order (F2). A batch is one frame, mostly; many may be on their way, and all
//! that have come are executed and answered together. The node's processor executes the verbs, with
//! its own loads, stores and atomics, so `tcp` and `shm` clients of one node can work side by side
//! (F4).
//!
//! A session is fenced (F6) by closing the gate before its verbs: when the process closes it, when
//! the control connection ends, when nothing has come from the process for long, or when an
//! operator wishes so. No verb is executed behind a closed gate.
//!
//! | module | what it holds |
//! |---|---|
//! | `frame` | batches on the wire (N1 to N6) |
//! | `greeting` | the messages of greetings and control connections |
//! | `secret` | secrets, rights, proofs |
//! | `protocol_key` | how a pool's secret is proven on other protocols than this one |
//! | `agreement` | how two processes agree on a secret without sending it |
//! | `local_secret` | how programs of one user on one host come by a secret without being told |
//! | `stream`, `tls` | a socket and its buffers; what encrypts between them |
//! | `answer` | what a node's answer means to a batch |
//! | `lifeline` | what is left of a connection beside a queue pair (the `verbs` backend) |
//! | `client`, `connection` | the client's side: calls, one connection (batches over several: [`network`](crate::network)) |
//! | `service` | what the node's side needs of the memory node behind it |
//! | `listener`, `greeter`, `clients` | the node's side: doors (H1 to H3), strangers, clients |
//! | `queues` | the node's side of sessions that have queue pairs (the `verbs` backend) |
//! | `nic`, `execute` | the threads that execute frames, and what a frame does |
//! | `patience` | how long both sides ask again before they sleep |
//! | `gate`, `permit` | what bounds a client: verbs, words, connections |
//! | `pass` | how a session shows that it is its own at nodes that have not registered it |
//! | `window` | what the node sends unasked: words for a session's window (N5) |
//! | `warnings` | how often strangers can make the node write to its log |
//! | `fuzz` | tests: random changes of all that is read from the network |

mod agreement;
mod answer;
mod client;
mod clients;
mod connection;
mod execute;
mod frame;
#[cfg(test)]
mod fuzz;
mod gate;
mod greeter;
mod greeting;
mod lifeline;
mod listener;
mod local_secret;
mod nic;
mod pass;
mod patience;
mod permit;
mod protocol_key;
mod queues;
mod secret;
mod service;
mod stream;
mod tls;
mod warnings;
mod window;

pub use agreement::{
    AgreementKey, AgreementSide, InvalidPublicKey, PUBLIC_KEY_SIZE_BYTES, PublicKey,
};
pub use client::{TcpClient, TcpConnectOptions};
pub use connection::TcpConnection;
pub use gate::Grant;
pub use greeting::{JoinRequest, Joined, MemberReply, TCP_VERSION};
pub(crate) use lifeline::Lifeline;
pub use listener::{TcpListenError, TcpListenOptions, TcpListener};
pub use local_secret::{LocalSecret, find_local_secret, local_secret_path};
pub use pass::{Pass, PassKey};
pub(crate) use patience::Patience;
pub use protocol_key::{PROTOCOL_PROOF_SIZE_BYTES, ProtocolKey};
pub use secret::{
    Rights, SECRET_SIZE_BYTES_MIN, Secret, SecretError, UnknownRights, fill_randomly,
};
pub use service::TcpService;
pub use tls::{TlsClient, TlsError, TlsServer};
pub use warnings::Warnings;

use crate::network::{NetworkEndpoint, NetworkExecute};

/// An endpoint to the nodes of a pool, over data connections.
pub type TcpEndpoint = NetworkEndpoint<TcpConnection>;

/// A batch over data connections.
pub type TcpExecute<'a> = NetworkExecute<'a, TcpConnection>;
