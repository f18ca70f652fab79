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
//! | `hello` | what pools add to the messages of a greeting |
//! | `messages`, `inbox` | the messages of control connections; sending and receiving them |
//! | `answer` | applies a node's reply to its batch |
//! | `queue_monitor` | the connection beside a queue pair (the `verbs` backend) |
//! | `client`, `exchange`, `connection` | client: calls, one connection (batches: see `network`) |
//! | `service` | the listener's interface to the memory node |
//! | `listener`, `greeter`, `clients` | node: sockets, connections before log-in, clients |
//! | `queues` | the node's side of sessions that have queue pairs (the `verbs` backend) |
//! | `nic`, `execute` | the threads that execute frames, and the execution of a frame |
//! | `poll_timer` | how long both sides poll before they sleep |
//! | `gate` | limits of a client: verbs, words |
//! | `window` | words for a session's window, which the node sends unasked |
//! | `fuzz` | tests: random changes of everything that is read from the network |
//!
//! Greetings, secrets, sockets and TLS are in `farleaf-net`.

mod answer;
mod client;
mod clients;
mod connection;
mod exchange;
mod execute;
mod frame;
#[cfg(test)]
mod fuzz;
mod gate;
mod greeter;
mod hello;
mod inbox;
mod listener;
mod messages;
mod nic;
mod poll_timer;
mod queue_monitor;
mod queues;
mod service;
mod window;

pub use client::{TcpClient, TcpConnectOptions};
pub use connection::TcpConnection;
pub use gate::Grant;
pub use hello::TCP_VERSION;
pub use listener::{TcpListenError, TcpListenOptions, TcpListener};
pub use messages::{JoinRequest, Joined, MemberReply};
pub(crate) use poll_timer::PollTimer;
pub(crate) use queue_monitor::QueueMonitor;
pub use service::TcpService;

use crate::network::{NetworkEndpoint, NetworkExecute};

/// Name of this protocol, with which the files of local secrets begin.
pub(crate) const PROTOCOL: &str = "tcp";

/// An endpoint to the nodes of a pool, over data connections.
pub type TcpEndpoint = NetworkEndpoint<TcpConnection>;

/// Future of a batch over data connections.
pub type TcpExecute<'a> = NetworkExecute<'a, TcpConnection>;
