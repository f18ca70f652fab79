//! The `tcp` backend: a memory node that executes verbs for authorized clients over any network.
//!
//! ```text
//!   client process                                memory node
//!   +--------------------+      control      +--------------------------+
//!   | TcpClient          |-------------------| listener: who may come   |
//!   |                    |                   | in, sessions, their end  |
//!   | TcpEndpoint of     |      data         +--------------------------+
//!   |  session 1         |-------------------| soft NIC: threads that   |
//!   |  session 2         |-------------------| execute frames of verbs  |
//!   |  process           |-------------------| on the memory            |
//!   +--------------------+                   +--------------------------+
//! ```
//!
//! Each session has its own data connection, which acts as its queue pair: its verbs are executed
//! in posting order (FABRIC-2). A batch is usually one frame. Many frames may be in flight; all
//! that have arrived are executed and answered together. The node's processor executes the verbs
//! with its own loads, stores and atomics, so `tcp` and `shm` clients of one node can work side by
//! side (FABRIC-4).
//!
//! The node fences a session (FABRIC-6) by closing the gate of its verbs: when the process closes
//! the session, when the control connection ends, after a long silence of the process, or on an
//! operator's request. No verb is executed behind a closed gate.
//!
//! | module | content |
//! |---|---|
//! | `frame` | the format of batches on the wire |
//! | `greeting` | the messages of greetings and control connections |
//! | `secret` | secrets, rights, proofs |
//! | `protocol_key` | proofs of a pool's secret for other protocols |
//! | `agreement` | key agreement: two processes compute a secret without sending it |
//! | `local_secret` | secrets that programs of one user on one host share through a file |
//! | `stream`, `tls` | a socket with its buffers, and its encryption |
//! | `answer` | applies a node's reply to its batch |
//! | `queue_monitor` | the connection beside a queue pair (the `verbs` backend) |
//! | `client`, `connection` | client: calls, one connection (batches: see `network`) |
//! | `service` | the listener's interface to the memory node |
//! | `listener`, `greeter`, `clients` | node: sockets, connections before log-in, clients |
//! | `queues` | the node's side of sessions that have queue pairs (the `verbs` backend) |
//! | `nic`, `execute` | the threads that execute frames, and the execution of a frame |
//! | `poll_timer` | how long both sides poll before they sleep |
//! | `gate`, `permit` | limits of a client: verbs, words, connections |
//! | `pass` | proof of a session at nodes that have not registered it |
//! | `window` | words for a session's window, which the node sends unasked |
//! | `warnings` | limit for warnings that unauthenticated peers cause |
//! | `fuzz` | tests: random changes of everything that is read from the network |

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
mod listener;
mod local_secret;
mod nic;
mod pass;
mod permit;
mod poll_timer;
mod protocol_key;
mod queue_monitor;
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
pub use listener::{TcpListenError, TcpListenOptions, TcpListener, why_not_bound};
pub use local_secret::{LocalSecret, find_local_secret, local_secret_path};
pub use pass::{Pass, PassKey};
pub(crate) use poll_timer::PollTimer;
pub use protocol_key::{PROTOCOL_PROOF_SIZE_BYTES, ProtocolKey};
pub(crate) use queue_monitor::QueueMonitor;
pub use secret::{
    Rights, SECRET_SIZE_BYTES_MIN, Secret, SecretError, UnknownRights, fill_randomly,
};
pub use service::TcpService;
pub use tls::{TlsClient, TlsError, TlsServer};
pub use warnings::Warnings;

use crate::network::{NetworkEndpoint, NetworkExecute};

/// An endpoint to the nodes of a pool, over data connections.
pub type TcpEndpoint = NetworkEndpoint<TcpConnection>;

/// Future of a batch over data connections.
pub type TcpExecute<'a> = NetworkExecute<'a, TcpConnection>;
