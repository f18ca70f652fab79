//! The memory node: what little the machine that owns the memory does.
//!
//! | module | what it holds |
//! |---|---|
//! | [`sessions`] | registration and fencing of sessions (F6) |
//! | [`sweep`] | what dead sessions left: locks, leased leaves, unfinished loads (D8) |
//! | [`reclaim`] | memory of dropped tables, when the grace period is over (D7) |
//! | [`audit`] | whether a region in which nobody works keeps its promises |
//! | [`calls`] | sessions whose requests the node answers |
//! | [`xstore`] | tables whose leaves the node alone changes, and models of them |
//! | [`retrain`] | which models are retrained when, and when their memory is reused |
//! | `redirected` | old synonym leaf tables that sessions may still write to |
//! | [`agent`] | the thread that does all of it |
//! | `catalog` | all tables at once |
//! | `patience` | waiting for what living clients hold, but never for ever |
//! | `endpoint` | the node's own way into its region |
//! | `hiring` | sessions of the node's threads that change leaves |
//! | [`embedded`] | a node inside the process that uses it |
//! | [`shm`] | a node for other processes of the host, and of others |
//! | [`members`] | pools of several nodes: how nodes come in, are lost, and leave |
//! | `network` | its door to the network |
//! | `endpoint` | what the agent works with |
//!
//! None of it is on the path of an operation. The node works on its own region like any client,
//! through an endpoint, in the name of a session of its own (F4).

#![forbid(unsafe_code)]

pub mod agent;
pub mod audit;
pub mod calls;
mod catalog;
pub mod embedded;
mod endpoint;
mod hiring;
pub mod members;
mod network;
mod patience;
pub mod reclaim;
mod redirected;
pub mod retrain;
pub mod sessions;
pub mod shm;
pub mod sweep;
pub mod xstore;

mod error;

pub use calls::CallOptions;
pub use embedded::{MemNode, NodeOptions};
pub use endpoint::NodeEndpoint;
pub use error::NodeError;
pub use farleaf_fabric::StopSignal;
pub use farleaf_fabric::shm::ListenError;
pub use farleaf_fabric::tcp::{TcpListenError, TcpListenOptions, TlsServer};
pub use farleaf_fabric::verbs::{VerbsError, VerbsOptions};
pub use farleaf_types::NodeId;
pub use members::{GuestEnd, GuestNode, GuestOptions, HomeOptions, check_region};
pub use retrain::RetrainPolicy;
pub use shm::ShmNode;
