//! What a session stands on. A [`Pool`](crate::Pool) is one such thing; a simulated client is
//! another, with the same sessions and tables on top.

use core::fmt;

use farleaf_fabric::{ControlError, Endpoint};
use farleaf_types::OwnerWord;

pub use crate::endpoint::PoolEndpoint;
pub use crate::process::{Barrier, ProcessKeeper};
pub use crate::share::PoolShare;

/// One process's way into a pool: what its sessions post with, and what they share.
pub trait Host: fmt::Debug {
    /// What a session posts its batches with.
    type Endpoint: Endpoint + fmt::Debug;

    /// Whether a session that is dropped waits until it has given everything back and is closed.
    /// If not, dropping it is what the death of its process is: others sweep what it held.
    const CLOSES_DROPPED_SESSIONS: bool;

    /// What all sessions of the process share.
    fn share(&self) -> &PoolShare;

    /// F6: says that a session has drained and posts nothing any more; it counts as fenced.
    ///
    /// # Errors
    /// The memory node cannot be reached; it fences the session when the process ends.
    fn close_session(&self, owner: OwnerWord) -> Result<(), ControlError>;

    /// Whether the memory node is gone, or the session fenced: asked again and again by whoever
    /// waits for an answer of it, for the `look_count`th time, about every 100 us in the end.
    fn is_node_gone(&self, owner: OwnerWord, look_count: u32) -> bool;
}
