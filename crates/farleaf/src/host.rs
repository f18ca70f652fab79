//! Interface between sessions and what they run on: a [`Pool`](crate::Pool), or a simulated client
//! with the same sessions and tables.

use core::fmt;

use farleaf_base::OwnerWord;
use farleaf_fabric::{ControlError, Endpoint};

pub use crate::endpoint::PoolEndpoint;
pub use crate::process::{Barrier, SequencePublisher};
pub use crate::share::PoolShare;

/// Access of one process to a pool: endpoints of its sessions, and the data that they share.
pub trait SessionHost: fmt::Debug {
    /// Endpoint through which a session posts its batches.
    type Endpoint: Endpoint + fmt::Debug;

    /// Whether dropping a session waits until it has returned everything and is closed. If not,
    /// dropping it is like the death of its process: sweeps reclaim what it held.
    const CLOSES_DROPPED_SESSIONS: bool;

    /// Returns the data that all sessions of the process share.
    fn share(&self) -> &PoolShare;

    /// Reports that a session has drained and posts nothing any more; it then counts as fenced
    /// (FABRIC-6).
    ///
    /// # Errors
    /// The memory node cannot be reached; it fences the session when the process ends.
    fn close_session(&self, owner: OwnerWord) -> Result<(), ControlError>;

    /// Returns whether the memory node is gone or the session is fenced. A caller that waits for
    /// the node's reply polls this with an increasing `poll_count`, in the end about every 100 us.
    fn is_node_gone(&self, owner: OwnerWord, poll_count: u32) -> bool;
}
