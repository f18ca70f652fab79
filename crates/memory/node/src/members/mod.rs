//! Pools of several nodes: how nodes join, are found lost, and leave, and how clients learn of it
//! (`farleaf_pool::members`).
//!
//! ```text
//!    guest node                      home node                         client
//!      | join (memory, size, address)  |                                 |
//!      |------------------------------>|                                 |
//!      |     control connection        |                                 |
//!      |<------------------------------| number, entry, sequence number  |
//!      | joined: number                |                                 |
//!      |<------------------------------|    sees the sequence number     |
//!      |                               |<--------------------------------|
//!      |          data connection, in the name of a session of the home  |
//!      |<----------------------------------------------------------------|
//! ```
//!
//! - **Join.** A guest sends a join request. The home's reply names the pool, and the guest, which
//!   knows the key of the pool's passes by then, sends the request again. The home connects to the
//!   address in the request and checks that this memory answers there. It assigns a number that no
//!   memory has had, and writes the guest's entry. Then it draws a sequence number, so that
//!   processes read the entry.
//! - **Loss.** The home polls each guest regularly. A guest that closes the connection, or does not
//!   answer for `lost_after`, is lost: its entry says so, and nothing waits for it any more.
//! - **Fencing.** A session is registered at the home, which issues a pass. A guest admits the
//!   session by the pass, and bars it permanently when the home reports it as fenced. The home
//!   writes "fenced" into the session's block only when all reachable guests have barred it; an
//!   unreachable guest is first declared lost. Other requests do not wait for that. A session has
//!   one client at a time at a guest, and the end of its connection says nothing about the session.
//! - **Fencing at newcomers.** A new guest must also bar sessions fenced before it joined. The home
//!   first adds it to the notified guests, while no fencing is between reading that list and
//!   writing the session's block. Then it reads all blocks, and bars at the newcomer the fenced
//!   sessions and all incarnations before the live ones. Only then it writes the entry, before
//!   which no client uses the guest. So each session was either fenced before the first step, and
//!   the blocks say so, or its fencing begins later, and the guest is notified. A guest that fails
//!   in the meantime gets no entry.
//! - **State of a guest.** A guest polls the home for its own state. If it is lost, or the home
//!   belongs to another pool than the one it joined, it closes all connections, and its contents
//!   are useless. It rejoins with empty memory, as another node.
//! - **Drain.** A draining node has left when it holds no chunk any more, and every session has
//!   published a sequence number drawn after its entry said "draining": no session is about to
//!   claim a chunk there. It may be stopped then. Sessions that have not seen yet that the node has
//!   left skip its chunk table if they cannot read it (found by seeds 3008464 and 3009221 of
//!   profile `retraining`: a load failed there).
//! - **The home's agent.** The home's agent connects to a guest like any session, with a pass that
//!   the home issues, over its own log-in. A failure of that connection says nothing about the
//!   guest. The home polls the guest, and declares it lost only if it does not answer. If it does,
//!   the agent closes the connection and retries a second later. The guest admits it again when
//!   everything from the last log-in has ended, so none of its verbs takes effect after those of
//!   the next.

mod agent_connection;
mod drained;
mod fencing;
mod guest;
mod home;
mod joining;
mod watch;

pub use drained::Draining;
pub(crate) use fencing::FencingThread;
pub(crate) use guest::GuestState;
pub use guest::{GuestEnd, GuestNode, GuestOptions};
pub(crate) use home::PoolHome;
pub use joining::check_memory;
pub(crate) use watch::MemberThreads;

use std::time::Duration;

use farleaf_fabric::tcp::TcpConnectOptions;
use farleaf_fabric::verbs::VerbsOptions;

/// Options of a pool's home for its other nodes.
#[derive(Clone, Debug)]
pub struct HomeOptions {
    /// Address (`HOST:PORT`) at which the other nodes and clients reach this node.
    pub address: String,
    /// Options for its connections to the other nodes.
    pub connect: TcpConnectOptions,
    /// Time without an answer after which a node is lost.
    pub lost_after: Duration,
    /// RDMA device that serves its memory, if any. All nodes of the pool then use devices, which
    /// alone change their memory (FABRIC-4).
    pub verbs: Option<VerbsOptions>,
}
