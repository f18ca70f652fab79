//! How far a session is in something that takes many batches, for endpoints that want to know.

use crate::endpoint::Endpoint;

/// How far a session is. The rules are those of `farleaf_index::retrain` and
/// `farleaf_region::queue`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProtocolPhase {
    /// In none of these.
    #[default]
    Outside,
    /// A model is put into the queue (Q1).
    Enqueue,
    /// What is to be retrained is read, and room for a run is claimed (R3, X2).
    Gather,
    /// Leaves are moved (R2).
    Steps,
    /// What a retrainer that died has moved is looked for (R6).
    Adopt,
    /// The leaf to the left of a new run is linked to it (R4).
    Redirect,
    /// Synonym leaf tables of new models are written.
    Tables,
    /// A snapshot is written (R5, X5).
    Snapshot,
    /// The root is swapped (R5, X5).
    RootSwap,
    /// Chunks are given back, used or not.
    GiveBack,
    /// What was announced in old synonym leaf tables is announced in new ones (X7).
    Announce,
}

/// Something on its way through its phases. It is over when this is dropped, however it ended.
#[derive(Debug)]
#[must_use = "dropping it at once ends it"]
pub struct Course<'a, E: Endpoint>(&'a E);

impl<'a, E: Endpoint> Course<'a, E> {
    /// Begins with a phase.
    #[inline]
    pub fn begin(endpoint: &'a E, phase: ProtocolPhase) -> Self {
        endpoint.enters(phase);
        Self(endpoint)
    }
}

impl<E: Endpoint> Drop for Course<'_, E> {
    #[inline]
    fn drop(&mut self) {
        self.0.enters(ProtocolPhase::Outside);
    }
}
