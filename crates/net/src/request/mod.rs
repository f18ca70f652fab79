//! Requests and replies as frames.
//!
//! The protocol is in `docs/reference/wire.md`.
//!
//! | module | contents |
//! |---|---|
//! | `channel` | a blocking socket, with or without encryption |
//! | `cluster` | [`ClusterTag`], [`Membership`]: cluster that greetings compare |
//! | `frame` | header of frames |
//! | `details` | what clusters add to the messages of a greeting |
//! | `greet`, `admit` | client and server side of a greeting, with a blocking socket |
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
mod details;
mod error;
mod frame;
mod greet;
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
pub use details::WIRE_VERSION;
pub use error::NetError;
pub use frame::FRAME_SIZE_BYTES_MAX;
pub use listener::{ListenOptions, Listener};
pub use server::{Caller, Server, Service};
