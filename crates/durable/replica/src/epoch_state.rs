//! Epoch of a primary, and whether it has stopped (REPLICATION-12, REPLICATION-13).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Epoch;

/// Epoch of a primary, and the epoch before which it is stopped, shared by all its connections. All
/// accesses are sequentially consistent: a check that passes precedes the stop.
#[derive(Debug)]
pub(crate) struct EpochState {
    epoch: AtomicU64,
    /// Nothing is acknowledged at an epoch before this one.
    stopped_before: AtomicU64,
}

impl EpochState {
    pub(crate) const fn new(epoch: Epoch) -> Self {
        Self {
            epoch: AtomicU64::new(epoch.0),
            stopped_before: AtomicU64::new(0),
        }
    }

    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::SeqCst))
    }

    /// Stops at all epochs before this one. A repeated or older stop changes nothing.
    pub(crate) fn stop(&self, before: Epoch) {
        self.stopped_before.fetch_max(before.0, Ordering::SeqCst);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        // In this order: neither value falls. So if the epoch is not below the stop here, it was
        // not when the stop was read.
        let epoch = self.epoch();
        epoch.0 < self.stopped_before.load(Ordering::SeqCst)
    }

    /// Continues at a later epoch, unless it is stopped at that one, too. The caller holds the
    /// connections.
    pub(crate) fn continue_at(&self, epoch: Epoch) {
        self.epoch.store(epoch.0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stop for a later epoch holds while the primary continues at an earlier one. A stop for the
    /// epoch at which it continues does not hold, whenever it arrives (REPLICATION-13).
    #[test]
    fn a_stop_holds_up_to_its_epoch() {
        let epoch_state = EpochState::new(Epoch(3));
        assert!(!epoch_state.is_stopped());
        epoch_state.stop(Epoch(4));
        assert!(epoch_state.is_stopped());
        epoch_state.stop(Epoch(5));
        epoch_state.continue_at(Epoch(4));
        assert!(epoch_state.is_stopped());
        epoch_state.stop(Epoch(5));
        epoch_state.continue_at(Epoch(5));
        epoch_state.stop(Epoch(5));
        epoch_state.stop(Epoch(4));
        assert!(!epoch_state.is_stopped());
        assert_eq!(epoch_state.epoch(), Epoch(5));
    }
}
