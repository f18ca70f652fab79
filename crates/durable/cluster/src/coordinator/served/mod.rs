//! A coordinator in another process, asked over `farleaf-wire` (rules CS1 to CS6 of
//! `docs/cluster.md`).
//!
//! [`CoordinatorService`] answers for a coordinator of its process, an
//! [`Embedded`](super::Embedded) one in a directory mostly; [`RemoteCoordinator`] asks it. What it
//! promises is what the coordinator behind it does.
//!
//! | module | what it holds |
//! |---|---|
//! | `message` | requests and replies as bytes |
//! | `service` | [`CoordinatorService`] |
//! | `remote` | [`RemoteCoordinator`] |

mod message;
mod remote;
mod service;

#[cfg(test)]
mod fuzz;

pub use message::{COORDINATOR_TAG, MESSAGE_VERSION};
pub use remote::RemoteCoordinator;
pub use service::{CoordinatorService, POLL_TIME_MAX};
