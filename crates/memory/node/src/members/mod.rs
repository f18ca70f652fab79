//! Pools of several nodes: how nodes join, are found lost, and leave, and how clients learn of it
//! (`farleaf_pool::members`).
//!
//! ```text
//!    data node                      main node                         client
//!      | join (memory, size, address)  |                                 |
//!      |------------------------------>|                                 |
//!      |     control connection        |                                 |
//!      |<------------------------------| number, entry, sequence number  |
//!      | joined: number                |                                 |
//!      |<------------------------------|    sees the sequence number     |
//!      |                               |<--------------------------------|
//!      |                  data connection, for a session                 |
//!      |<----------------------------------------------------------------|
//! ```
//!
//! - **Join.** A data node sends a join request. The main node's reply names the pool, and the data
//!   node, which knows the key of the pool's passes by then, sends the request again. The main node
//!   connects to the address in the request and checks that this memory answers there. It assigns a
//!   number that no memory has had, and writes the data node's entry. Then it draws a sequence
//!   number, so that processes read the entry.
//! - **Loss.** The main node polls each data node regularly. A data node that closes the
//!   connection, or does not answer for `lost_after`, is lost: its entry says so, and nothing waits
//!   for it any more.
//! - **Fencing.** A session is registered at the main node, which issues a pass. A data node admits
//!   the session by the pass, and bars it permanently when the main node reports it as fenced. The
//!   main node writes "fenced" into the session's block only when all reachable data nodes have
//!   barred it; an unreachable data node is first declared lost. Other requests do not wait for
//!   that. A session has one client at a time at a data node, and the end of its connection says
//!   nothing about the session.
//! - **Fencing at newcomers.** A new data node must also bar sessions fenced before it joined. The
//!   main node first adds it to the notified data nodes, while no fencing is between reading that
//!   list and writing the session's block. Then it reads all blocks, and bars at the newcomer the
//!   fenced sessions and all incarnations before the live ones. Only then it writes the entry,
//!   before which no client uses the data node. So each session was either fenced before the first
//!   step, and the blocks say so, or its fencing begins later, and the data node is notified. A
//!   data node that fails in the meantime gets no entry.
//! - **State of a data node.** A data node polls the main node for its own state. If it is lost, or
//!   the main node belongs to another pool than the one it joined, it closes all connections, and
//!   its contents are useless. It rejoins with empty memory, as another node.
//! - **Drain.** A draining node has left when it holds no chunk any more, and every session has
//!   published a sequence number drawn after its entry said "draining": no session is about to
//!   claim a chunk there. It may be stopped then. Sessions that have not seen yet that the node has
//!   left skip its chunk table if they cannot read it (found by seeds 3008464 and 3009221 of
//!   profile `retraining`: a load failed there).
//! - **The main node's agent.** The main node's agent connects to a data node like any session,
//!   with a pass that the main node issues, over its own log-in. A failure of that connection says
//!   nothing about the data node. The main node polls the data node, and declares it lost only if
//!   it does not answer. If it does, the agent closes the connection and retries a second later.
//!   The data node admits it again when everything from the last log-in has ended, so none of its
//!   verbs takes effect after those of the next.

mod agent_connection;
mod data_node;
mod drained;
mod fencing;
mod joining;
mod main_node;
mod watch;

pub(crate) use data_node::DataNodeState;
pub use data_node::{DataNode, DataNodeEnd, DataNodeOptions};
pub use drained::Draining;
pub(crate) use fencing::FencingThread;
pub use joining::check_memory;
pub(crate) use main_node::PoolMainNode;
pub(crate) use watch::MemberThreads;

use std::time::Duration;

use farleaf_fabric::tcp::TcpConnectOptions;
use farleaf_fabric::verbs::VerbsOptions;

/// Options of a pool's main node for its other nodes.
#[derive(Clone, Debug)]
pub struct MainNodeOptions {
    /// Address (`HOST:PORT`) at which the other nodes and clients reach this node.
    pub address: String,
    /// Options for the main node's connections to the other nodes.
    pub connect: TcpConnectOptions,
    /// Time without an answer after which a node is lost.
    pub lost_after: Duration,
    /// RDMA device that serves its memory, if any. All nodes of the pool then use devices, which
    /// alone change their memory (FABRIC-4).
    pub verbs: Option<VerbsOptions>,
}
