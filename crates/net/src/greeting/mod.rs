//! Greeting: how a client and a server prove to each other that they know a secret, before anything
//! else is sent.
//!
//! The messages and the decisions about them are here, without sockets and clocks: memory nodes
//! drive them from one thread by polled sockets, servers of clusters from a thread per connection
//! by blocking sockets. Each protocol adds its own details to the messages. The protocol is in
//! `docs/reference/wire.md`.
//!
//! | module | contents |
//! |---|---|
//! | `message` | bytes of the messages |
//! | `arrival` | a message that arrives in pieces, or something else that arrives |
//! | `client` | the side that connects |
//! | `server` | the side that listens |
//! | `penalties` | limit of wrong proofs per address |
//! | `crowd` | limit of connections that have not proven anything |

mod arrival;
mod client;
mod crowd;
mod message;
mod penalties;
mod server;

#[cfg(test)]
mod fuzz;

use std::time::Duration;

pub use arrival::{Arrival, GreetingError, TLS_REQUIRED, starts_tls};
pub use client::{Accepted, GreetFailure, Transport, greet, port_of};
pub use crowd::{UNAUTHENTICATED_COUNT_MAX, oldest_of_busiest};
pub use message::{
    DETAILS_SIZE_BYTES, Details, Greeting, MESSAGE_SIZE_BYTES, Message, Protocol, refusal,
};
pub use penalties::{Penalties, TOO_MANY_WRONG_PROOFS};
pub use server::{Proven, ServerGreeting, ServerStep};

/// Longest time for a whole greeting, from the accepted connection to the proof.
pub const GREETING_TIME_MAX: Duration = Duration::from_secs(5);
/// Delay before a wrong proof is answered.
pub const WRONG_PROOF_DELAY: Duration = Duration::from_secs(1);
