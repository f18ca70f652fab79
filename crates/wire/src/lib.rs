//! Framed requests over TCP between processes, each of which proves that it knows a secret.
//!
//! A [`Listener`] answers requests by a [`Service`], with a thread for each connection; a
//! [`Connection`] asks, one request at a time or several before the first answer is waited for. A
//! request is bytes, its answer is bytes: what they mean is the service's. The rules W1 to W15 are
//! in `docs/wire.md`.
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
//! | module | what it holds |
//! |---|---|
//! | `cluster` | [`ClusterTag`], [`Membership`]: the cluster that greetings compare |
//! | `frame` | the header of frames |
//! | `greeting` | the messages of a greeting |
//! | `handshake` | who says what in a greeting, and what is proven by it |
//! | `inbox`, `outbox` | frames from a socket, and into one |
//! | `socket` | what all sockets here have set |
//! | `error` | [`WireError`] |
//! | `listener` | [`Listener`]: an address, a secret, limits |
//! | `server` | [`Server`]: who is let in, and the end |
//! | `places` | how many connections there are, and who has to go for another one |
//! | `host` | one connection on the server's side |
//! | `connection` | [`Connection`]: the side that asks |

#![forbid(unsafe_code)]

mod cluster;
mod connection;
mod error;
mod frame;
mod greeting;
mod handshake;
mod host;
mod inbox;
mod listener;
mod outbox;
mod places;
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
