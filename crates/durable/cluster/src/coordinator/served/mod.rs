//! A coordinator in another process, over `farleaf-net` (docs/reference/control-plane.md, *A
//! coordinator served to other processes*).
//!
//! [`CoordinatorService`] answers for a coordinator of its process, usually an
//! [`Embedded`](super::Embedded) one with a directory; [`RemoteCoordinator`] is the client. The
//! promises are those of the coordinator behind the service.
//!
//! | module | contents |
//! |---|---|
//! | `message` | encoding of requests and replies |
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
