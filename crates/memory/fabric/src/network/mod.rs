//! Batches over connections to the nodes of a pool, whatever carries the verbs: what the `tcp` and
//! the `verbs` backend have in common.
//!
//! ```text
//!   NetworkEndpoint of a session          nodes
//!   +-----------------------------+
//!   | batch: part for node 0 -----|--- connection --- 0, the pool's home
//!   |        part for node 2 -----|--- connection --- 2, opened when it was first needed
//!   +-----------------------------+
//! ```
//!
//! A batch is cut into a part for each node that it concerns, all of which are posted at once, and
//! is complete when the last part is (F1). Nothing is posted from the first verb on that is refused
//! (F5), and nothing at all if a connection is broken. A node that is gone for good, by the word of
//! the pool's home, is left out, and its verbs fail as [`BatchErrorKind::NodeLost`].
//!
//! | module | what it holds |
//! |---|---|
//! | `connection` | what an endpoint needs of a connection to one node |
//! | `endpoint` | the connections of a session, and what is asked of all of them |
//! | `execute` | one batch: its parts, and how they end |
//! | `nodes` | how an endpoint finds the nodes of its pool |
//! | `silence` | for how long a node that owes an answer has said nothing |
//!
//! [`BatchErrorKind::NodeLost`]: crate::BatchErrorKind::NodeLost

mod connection;
mod endpoint;
mod execute;
mod nodes;
mod silence;

pub use connection::{Connection, Loss, OperationSlot, Part, PartFailure};
pub use endpoint::NetworkEndpoint;
pub(crate) use endpoint::{Home, Others};
pub use execute::NetworkExecute;
pub use nodes::{NodeDirectory, NodeWay};
pub(crate) use silence::Silence;

#[cfg(test)]
mod tests;
