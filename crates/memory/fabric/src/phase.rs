//! Phases of operations that take many batches, for endpoints that use them (the simulator).

use crate::endpoint::Endpoint;

/// Phase of a session's protocol in `farleaf_index::retrain` or `farleaf_pool::queue`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProtocolPhase {
    /// None of these protocols.
    #[default]
    Outside,
    /// A model is put into the retraining queue.
    Enqueue,
    /// The models to be retrained are read, and space for a run is claimed.
    Gather,
    /// Leaves are moved.
    Steps,
    /// Searches for leaves that a dead retrainer has moved.
    Adopt,
    /// The leaf to the left of a new run is linked to it.
    Redirect,
    /// Synonym leaf tables of new models are written.
    Tables,
    /// A snapshot is written.
    Snapshot,
    /// The root is swapped.
    RootSwap,
    /// Chunks are released, whether used or not.
    GiveBack,
    /// Announcements in old synonym leaf tables are copied to the new ones.
    Announce,
}

/// Guard of a protocol with phases. Dropping it ends the protocol, however the operation ended.
#[derive(Debug)]
#[must_use = "dropping it at once ends it"]
pub struct PhaseGuard<'a, E: Endpoint>(&'a E);

impl<'a, E: Endpoint> PhaseGuard<'a, E> {
    /// Enters the first phase.
    #[inline]
    pub fn begin(endpoint: &'a E, phase: ProtocolPhase) -> Self {
        endpoint.enters(phase);
        Self(endpoint)
    }
}

impl<E: Endpoint> Drop for PhaseGuard<'_, E> {
    #[inline]
    fn drop(&mut self) {
        self.0.enters(ProtocolPhase::Outside);
    }
}
