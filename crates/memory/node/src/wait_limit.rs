//! Waiting for what living clients hold, but never for ever.
//!
//! A client may be stopped while it holds a lock; it is not dead (F6), so nobody may take the lock
//! from it, and it may never go on. Clients wait for it: they have asked for that one leaf. The
//! node has others to care for, and has to stop when it is told.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use std::sync::atomic::{AtomicBool, Ordering};

use farleaf_executor::is_resting;

/// Polls in which it rested after which something is given up for now. All but the first few lie
/// 0.1 ms apart where other tasks do not keep the thread awake: about a tenth of a second, where a
/// lock is held for microseconds.
const REST_COUNT_MAX: u32 = 500;

/// How long the node waits, and whether it still should.
#[derive(Debug)]
pub(crate) struct Patience<'a> {
    stop: &'a AtomicBool,
}

impl<'a> Patience<'a> {
    /// Ends at once when `stop` is set.
    pub(crate) fn new(stop: &'a AtomicBool) -> Self {
        Self { stop }
    }

    /// What says that the node is to stop.
    pub(crate) fn stop(&self) -> &'a AtomicBool {
        self.stop
    }

    /// Whether the node has been told to stop.
    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Runs a future; `None`: it has waited for too long, or the node stops, and it was dropped.
    ///
    /// It is dropped only while it rests, between two batches: the verbs of a batch that is under
    /// way would take effect later, when the next sweep does not expect them any more (W5). A lock
    /// that it held then, which it does not while it waits for another (D5), is the node's, and is
    /// for the next sweep.
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
        let patience = Patience::new(&stop);
        assert_eq!(block_on(patience.wait(forever()), || 0), None);
        assert_eq!(block_on(patience.wait(async { 42 }), || 0), Some(42));
    }

    #[test]
    fn nothing_is_waited_for_when_the_node_stops() {
        let stop = AtomicBool::new(true);
        let patience = Patience::new(&stop);
        assert_eq!(block_on(patience.wait(forever()), || 0), None);
        let ready = patience.wait(async { 42 });
        assert_eq!(block_on(ready, || 0), Some(42), "it need not wait");
    }

    /// A batch that is under way is waited for, however long it takes.
    #[test]
    fn nothing_is_dropped_in_the_middle_of_a_batch() {
        let stop = AtomicBool::new(true);
        let patience = Patience::new(&stop);
        let mut polls_left = 10 * REST_COUNT_MAX;
        let batch = poll_fn(|_| {
            polls_left -= 1;
            if polls_left == 0 {
                Poll::Ready(42)
            } else {
                Poll::Pending
            }
        });
        assert_eq!(block_on(patience.wait(batch), || 0), Some(42));
    }
}
