//! The memory node: the process that owns node memory and does background work on it.
//!
//! | module | contents |
//! |---|---|
//! | [`sessions`] | registration and fencing of sessions (FABRIC-6) |
//! | [`sweep`] | reclamation of dead sessions' locks, leased leaves and unfinished loads (LEAF-8) |
//! | [`reclaim`] | memory of dropped tables, after the grace period (LEAF-7) |
//! | [`audit`] | checks of all invariants in an idle node memory |
//! | [`calls`] | sessions whose requests the node executes |
//! | [`xstore`] | tables whose leaves only the node changes, and their models |
//! | [`retrain`] | scheduling of retrainings, and reuse of the memory that they free |
//! | `redirected` | old synonym leaf tables that sessions may still write to |
//! | [`agent`] | the thread that does the background work |
//! | `catalog` | reads all tables of the catalog at once |
//! | `wait_limit` | bounded waiting for live clients |
//! | `endpoint` | the node's own endpoints to its memory |
//! | `worker_sessions` | sessions of the node's threads that change leaves |
//! | [`embedded`] | a node inside the process that uses it |
//! | [`shm`] | a node for other processes of the host, and of other hosts |
//! | [`members`] | pools of several nodes: joins, losses and drains of nodes |
//! | `network` | the network listener |
//!
//! None of it is on the path of an operation. The node accesses its memory like any client: through
//! an endpoint, and in a session of its own (FABRIC-4).

#![forbid(unsafe_code)]

pub mod agent;
pub mod audit;
pub mod calls;
mod catalog;
pub mod embedded;
mod endpoint;
pub mod members;
mod network;
pub mod reclaim;
mod redirected;
pub mod retrain;
pub mod sessions;
pub mod shm;
pub mod sweep;
mod wait_limit;
mod worker_sessions;
pub mod xstore;

mod error;

pub use calls::CallOptions;
pub use embedded::{MemNode, NodeOptions};
pub use endpoint::NodeEndpoint;
pub use error::NodeError;
pub use farleaf_base::NodeId;
pub use farleaf_fabric::StopSignal;
pub use farleaf_fabric::shm::ListenError;
pub use farleaf_fabric::tcp::{TcpListenError, TcpListenOptions};
pub use farleaf_fabric::verbs::{VerbsError, VerbsOptions};
pub use farleaf_net::tls::TlsServer;
pub use members::{DataNode, DataNodeEnd, DataNodeOptions, MainNodeOptions, check_memory};
pub use retrain::RetrainPolicy;
pub use shm::ShmNode;
