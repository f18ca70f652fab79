//! Batches over connections to the nodes of a pool: the common part of the `tcp` and `verbs`
//! backends.
//!
//! ```text
//!   NetworkEndpoint of a session          nodes
//!   +-----------------------------+
//!   | batch: part for node 0 -----|--- connection --- 0, the pool's main node
//!   |        part for node 2 -----|--- connection --- 2, opened when it was first needed
//!   +-----------------------------+
//! ```
//!
//! A batch is split into one part for each of its nodes. All parts are posted at once, and the
//! batch is complete when the last part is (FABRIC-1). Nothing is posted from the first refused
//! verb on (FABRIC-5), and nothing at all if a connection is broken. If the pool's main node
//! reports a node as lost for good, its part is left out, and its verbs fail with
//! [`BatchErrorKind::NodeLost`].
//!
//! | module | content |
//! |---|---|
//! | `connection` | the interface between an endpoint and its connection to one node |
//! | `endpoint` | the endpoint of a session: its connections |
//! | `execute` | one batch: its parts, and how they end |
//! | `nodes` | how an endpoint finds the nodes of its pool |
//! | `silence` | time since a node that must reply was last heard |
//!
//! [`BatchErrorKind::NodeLost`]: crate::BatchErrorKind::NodeLost

mod connection;
mod endpoint;
mod execute;
mod nodes;
mod silence;

pub use connection::{BatchPart, Connection, Loss, OperationSlot, PartFailure};
pub use endpoint::NetworkEndpoint;
pub(crate) use endpoint::{MainNode, OtherNodes};
pub use execute::NetworkExecute;
pub use nodes::{NodeAccess, NodeDirectory};
pub(crate) use silence::Silence;

#[cfg(test)]
mod tests;
