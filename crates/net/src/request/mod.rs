//! Requests and replies as frames.
//!
//! The protocol is in `docs/reference/wire.md`.
//!
//! | module | contents |
//! |---|---|
//! | `channel` | a blocking socket, with or without encryption |
//! | `cluster` | [`ClusterTag`], [`Membership`]: cluster that greetings compare |
//! | `frame` | header of frames |
//! | `greeting` | messages of a greeting |
//! | `handshake` | what both sides of a greeting need: labels of proofs, sending, receiving |
//! | `greet`, `admit` | client and server side of a greeting |
//! | `inbox`, `outbox` | receiving and sending frames |
//! | `socket` | settings of all sockets |
//! | `error` | [`NetError`] |
//! | `listener` | [`Listener`]: an address, a secret, limits |
//! | `server` | [`Server`]: accepts connections, and stops |
//! | `connection_table` | number of connections, and which one is replaced |
//! | `budget` | memory of a server's requests and replies |
//! | `host` | server side of one connection |
//! | `connection` | [`Connection`]: client side |

mod admit;
mod budget;
mod channel;
mod cluster;
mod connection;
mod connection_table;
mod error;
mod frame;
mod greet;
mod greeting;
mod handshake;
mod host;
mod inbox;
mod listener;
mod outbox;
mod server;
mod socket;

#[cfg(test)]
mod fuzz;

pub use cluster::{ClusterTag, Membership};
pub use connection::{ConnectOptions, Connection};
pub use error::NetError;
pub use frame::FRAME_SIZE_BYTES_MAX;
pub use greeting::WIRE_VERSION;
pub use listener::{ListenOptions, Listener};
pub use server::{Server, Service};
