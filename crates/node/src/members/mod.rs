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
//! - **V1.** A guest asks the home to take it in. The home connects to the address that the guest
//!   says, makes sure that it is that region which answers there, gives it a number that no region
//!   has had (U2), writes its entry (U3), and draws a sequence number, so that processes look.
//! - **V2.** The home asks each guest from time to time. One that hangs up, or does not answer for
//!   `lost_after`, is lost (U4): its entry says so, and nobody waits for it any more.
//! - **V3.** A session is registered at the home. A guest lets it in by the word of who has proven
//!   to know the secret, and bars it for ever when the home says that it is fenced. The home says
//!   "fenced" (S2) only when all guests that can be reached have barred it; one that cannot is
//!   lost first. Under one name there is one client at a time, and that it hangs up says nothing of
//!   the session.
//! - **V4.** A guest asks the home how it stands. Told that it is lost, or that the home is another
//!   one than it was taken in by, it hangs up on everybody, and what it holds is of no use any
//!   more: it comes back empty, as another region.
//! - **V5.** A node that is draining has left when it holds no chunk any more, and every session
//!   has published a sequence number that was drawn after its entry said so: nobody is about to
//!   claim one there. It may be stopped then; whoever still reads its chunk table before having
//!   seen that it has left passes it over (seeds 3008464 and 3009221 of profile `retraining` found
//!   a load that failed there).

mod drained;
mod guest;
mod home;

pub use drained::Draining;
pub(crate) use guest::GuestState;
pub use guest::{GuestEnd, GuestNode, GuestOptions};
pub(crate) use home::{MemberThread, PoolHome};

use std::time::Duration;

use farleaf_fabric::tcp::TcpConnectOptions;

/// How a pool's home deals with its other nodes.
#[derive(Clone, Debug)]
pub struct HomeOptions {
    /// Where this node is reached by the others and by clients: `HOST:PORT`.
    pub address: String,
    /// How it connects to the others.
    pub connect: TcpConnectOptions,
    /// A node that does not answer for so long is lost.
    pub lost_after: Duration,
}
