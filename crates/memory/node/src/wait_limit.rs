//! Bounded waiting for resources that live clients hold.
//!
//! A client may be stopped while it holds a lock. It is not dead (FABRIC-6), so its lock must not
//! be recovered, and it may never continue. Clients wait for such a lock, because they need that
//! one leaf. The node has other work, and must stop when it is shut down.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use std::sync::atomic::{AtomicBool, Ordering};

use farleaf_executor::is_resting;

/// Number of idle polls after which a wait is given up for now. All but the first few are 0.1 ms
/// apart unless other tasks keep the thread awake: about a tenth of a second in all, while locks
/// are held for microseconds.
const REST_COUNT_MAX: u32 = 500;

/// Limit on how long the node waits.
#[derive(Debug)]
pub(crate) struct WaitLimit<'a> {
    stop: &'a AtomicBool,
}

impl<'a> WaitLimit<'a> {
    /// Creates a limit that also ends at once when `stop` is set.
    pub(crate) fn new(stop: &'a AtomicBool) -> Self {
        Self { stop }
    }

    /// Returns the flag that stops the node.
    pub(crate) fn stop(&self) -> &'a AtomicBool {
        self.stop
    }

    /// Returns whether the node is shutting down.
    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Runs a future. Returns `None` if it waited too long or the node shuts down; the future is
    /// then dropped.
    ///
    /// The future is dropped only while it is idle between two batches. The verbs of a batch in
    /// flight could otherwise take effect later, when the next sweep no longer expects them. A lock
    /// that the future held belongs to the node and is released by the next sweep. While it waits
    /// for one lock, the future holds no other (LEAF-5).
    pub(crate) async fn wait<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut rests_left = REST_COUNT_MAX;
        let bounded = poll_fn(|context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Some(output));
            }
            if !is_resting() {
                return Poll::Pending;
            }
            if rests_left == 0 || self.is_over() {
                return Poll::Ready(None);
            }
            rests_left -= 1;
            Poll::Pending
        });
        bounded.await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_executor::{backoff, block_on};

    async fn forever() {
        for attempt in 0.. {
            backoff(attempt).await;
        }
    }

    #[test]
    fn what_never_ends_is_given_up() {
        let stop = AtomicBool::new(false);
        let wait_limit = WaitLimit::new(&stop);
        assert_eq!(block_on(wait_limit.wait(forever()), || 0), None);
        assert_eq!(block_on(wait_limit.wait(async { 42 }), || 0), Some(42));
    }

    #[test]
    fn nothing_is_waited_for_when_the_node_stops() {
        let stop = AtomicBool::new(true);
        let wait_limit = WaitLimit::new(&stop);
        assert_eq!(block_on(wait_limit.wait(forever()), || 0), None);
        let ready = wait_limit.wait(async { 42 });
        assert_eq!(block_on(ready, || 0), Some(42), "it need not wait");
    }

    /// Promise: a batch in flight is awaited, however long it takes.
    #[test]
    fn nothing_is_dropped_in_the_middle_of_a_batch() {
        let stop = AtomicBool::new(true);
        let wait_limit = WaitLimit::new(&stop);
        let mut polls_left = 10 * REST_COUNT_MAX;
        let batch = poll_fn(|_| {
            polls_left -= 1;
            if polls_left == 0 {
                Poll::Ready(42)
            } else {
                Poll::Pending
            }
        });
        assert_eq!(block_on(wait_limit.wait(batch), || 0), Some(42));
    }
}
