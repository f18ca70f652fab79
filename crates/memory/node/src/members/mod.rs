//! Pools of several nodes: how a node comes in, how it is noticed that one is gone, and how both
//! come to the knowledge of everybody (U1 to U5 of `farleaf_region::members`).
//!
//! ```text
//!    guest node                      home node                         client
//!      | join (region, size, address)  |                                 |
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
//! - **V1.** A guest asks the home to take it in, and, told which pool it is, asks again: it knows
//!   the pool's passes by then (V3). The home connects to the address that the guest says, makes
//!   sure that it is that region which answers there, gives it a number that no region has had
//!   (U2), writes its entry (U3), and draws a sequence number, so that processes look.
//! - **V2.** The home asks each guest from time to time. One that hangs up, or does not answer for
//!   `lost_after`, is lost (U4): its entry says so, and nobody waits for it any more.
//! - **V3.** A session is registered at the home, which gives it a pass. A guest lets it in by
//!   that, and bars it for ever when the home says that it is fenced. The home says "fenced" (S2)
//!   only when all guests that can be reached have barred it; one that cannot is lost first.
//!   Nobody else waits for that. Under one name there is one client at a time, and that it hangs
//!   up says nothing of the session.
//!   A guest that comes bars what was fenced before, too. The home first adds it to those who are
//!   told, while no session is between the look at them and its block's saying "fenced"; then it
//!   reads all blocks, bars there what they say is fenced, and what was before those that are
//!   alive; and only then writes the entry (V1), before which nobody uses the guest. So each
//!   session is fenced before the first step, and the blocks say so; or its fencing begins after
//!   it, and the guest is told. A guest that fails meanwhile gets no entry.
//! - **V4.** A guest asks the home how it stands. Told that it is lost, or that the home is another
//!   one than it was taken in by, it hangs up on everybody, and what it holds is of no use any
//!   more: it comes back empty, as another region.
//! - **V5.** A node that is draining has left when it holds no chunk any more, and every session
//!   has published a sequence number that was drawn after its entry said so: nobody is about to
//!   claim one there. It may be stopped then; whoever still reads its chunk table before having
//!   seen that it has left passes it over (seeds 3008464 and 3009221 of profile `retraining` found
//!   a load that failed there).
//! - **V6.** The home's agent comes to a guest like any session, by a pass that the home makes,
//!   over a log-in of its own. That this fails says nothing of the guest: the home asks it, and
//!   loses it (V2) only if it does not answer. If it does, the agent hangs up, and tries again a
//!   second later. It is let in again when the guest has ended what came by the last log-in (V3),
//!   so no verb of that takes effect behind those of the next.

mod agent_way;
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
pub use joining::check_region;
pub(crate) use watch::MemberThreads;

use std::time::Duration;

use farleaf_fabric::tcp::TcpConnectOptions;
use farleaf_fabric::verbs::VerbsOptions;

/// How a pool's home deals with its other nodes.
#[derive(Clone, Debug)]
pub struct HomeOptions {
    /// Where this node is reached by the others and by clients: `HOST:PORT`.
    pub address: String,
    /// How it connects to the others.
    pub connect: TcpConnectOptions,
    /// A node that does not answer for so long is lost.
    pub lost_after: Duration,
    /// The RDMA device that serves its memory, if one is to: then all nodes of the pool are served
    /// so, and nobody else changes their memory (F4).
    pub verbs: Option<VerbsOptions>,
}
