//! Framed requests over TCP between processes that prove to each other that they know a secret.
//!
//! A [`Listener`] answers requests by a [`Service`], with one thread per connection. A
//! [`Connection`] sends requests, one at a time or several before it waits for the first reply.
//! Requests and replies are bytes, which only the service interprets. The protocol is in
//! `docs/reference/wire.md`.
//!
//! ```
//! use std::sync::Arc;
//!
//! use farleaf_wire::{ConnectOptions, Connection, ListenOptions, Listener, Secret, Service};
//!
//! struct Echo;
//!
//! impl Service for Echo {
//!     fn answer(&self, request: &[u8], reply: &mut Vec<u8>) {
//!         reply.extend_from_slice(request);
//!     }
//! }
//!
//! let (secret, _) = Secret::random()?;
//! let mut options = ListenOptions::at("127.0.0.1:0".parse()?);
//! options.secret = Some(secret.clone());
//! let server = Listener::bind(&options)?.serve(Arc::new(Echo))?;
//!
//! let options = ConnectOptions { secret: Some(secret), ..ConnectOptions::default() };
//! let mut connection = Connection::connect(&server.address().to_string(), &options)?;
//! assert_eq!(connection.call(b"hello")?, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `cluster` | [`ClusterTag`], [`Membership`]: cluster that greetings compare |
//! | `frame` | header of frames |
//! | `greeting` | messages of a greeting |
//! | `handshake` | sequence of a greeting, and its proofs |
//! | `inbox`, `outbox` | receiving and sending frames |
//! | `socket` | settings of all sockets |
//! | `error` | [`WireError`] |
//! | `listener` | [`Listener`]: an address, a secret, limits |
//! | `server` | [`Server`]: accepts connections, and stops |
//! | `connection_table` | number of connections, and which one is replaced |
//! | `host` | server side of one connection |
//! | `connection` | [`Connection`]: client side |

#![forbid(unsafe_code)]

mod cluster;
mod connection;
mod connection_table;
mod error;
mod frame;
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
pub use error::WireError;
pub use farleaf_fabric::tcp::{Secret, SecretError};
pub use frame::FRAME_SIZE_BYTES_MAX;
pub use greeting::WIRE_VERSION;
pub use listener::{ListenOptions, Listener};
pub use server::{Server, Service};
