//! Of which epoch a primary is, and whether it has stopped (RP12, RP13).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Epoch;

/// What all ways of a primary share. Sequentially consistent throughout: who finds that it has not
/// stopped has looked before it did.
#[derive(Debug)]
pub(crate) struct Standing {
    epoch: AtomicU64,
    /// How often it was stopped;
    stop_count: AtomicU64,
    /// and how many of these it has gone on after.
    over_count: AtomicU64,
}

/// The stops that there were at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stops(u64);

impl Standing {
    pub(crate) const fn new(epoch: Epoch) -> Self {
        Self {
            epoch: AtomicU64::new(epoch.0),
            stop_count: AtomicU64::new(0),
            over_count: AtomicU64::new(0),
        }
    }

    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::SeqCst))
    }

    pub(crate) fn stop(&self) {
        self.stop_count.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn stops(&self) -> Stops {
        Stops(self.stop_count.load(Ordering::SeqCst))
    }

    pub(crate) fn is_stopped(&self) -> bool {
        // In this order: neither goes back, and the first is never more than the second. So if they
        // are equal, they were so when the second was looked at.
        let over_count = self.over_count.load(Ordering::SeqCst);
        self.stop_count.load(Ordering::SeqCst) != over_count
    }

    /// Goes on at a later epoch after these stops, and not after those that came since. Whoever
    /// calls it has the ways.
    pub(crate) fn go_on(&self, epoch: Epoch, Stops(before): Stops) {
        self.epoch.store(epoch.0, Ordering::SeqCst);
        self.over_count.store(before, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (RP13): a stop that comes while somebody goes on after an earlier one holds.
    #[test]
    fn a_later_stop_holds() {
        let standing = Standing::new(Epoch(3));
        assert!(!standing.is_stopped());
        standing.stop();
        let before = standing.stops();
        standing.stop();
        standing.go_on(Epoch(4), before);
        assert!(standing.is_stopped());
        assert_eq!(standing.epoch(), Epoch(4));
        standing.go_on(Epoch(5), standing.stops());
        assert!(!standing.is_stopped());
    }
}
