//! TCP between processes that prove to each other that they know a secret.
//!
//! Memory nodes and persistent tables use the same [secrets](secret), [sockets](stream) and
//! [TLS](tls). Memory nodes have their own frames; everything else sends [`request`]s.
//!
//! A [`Listener`](request::Listener) answers requests by a [`Service`](request::Service), with one
//! thread per connection. A [`Connection`](request::Connection) sends requests, one at a time or
//! several before it waits for the first reply. Requests and replies are bytes, which only the
//! service interprets. The protocol is in `docs/reference/wire.md`.
//!
//! ```
//! use std::sync::Arc;
//!
//! use farleaf_net::request::{
//!     Caller, ConnectOptions, Connection, ListenOptions, Listener, Service,
//! };
//! use farleaf_net::secret::Secret;
//!
//! struct Echo;
//!
//! impl Service for Echo {
//!     fn answer(&self, _: &Caller, request: &[u8], reply: &mut Vec<u8>) {
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
//! | [`secret`] | secrets, rights, proofs, key agreement |
//! | [`tls`] | encryption of a connection |
//! | `authority` | certificates for tests and test clusters (feature `authority`) |
//! | [`greeting`] | how both sides of a connection prove the secret |
//! | [`stream`] | a socket that never blocks, with its buffers |
//! | [`permit`], [`warnings`] | limits of connections, and of warnings that strangers cause |
//! | [`runtime`] | the user's directory for sockets and secrets on this host |
//! | [`request`] | requests and replies as frames: listener, server, connection |

#![forbid(unsafe_code)]

#[cfg(feature = "authority")]
pub mod authority;
mod certificates;
pub mod greeting;
pub mod permit;
pub mod request;
pub mod runtime;
pub mod secret;
pub mod stream;
pub mod tls;
pub mod warnings;
