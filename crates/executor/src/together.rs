//! Futures of several parts under way at once.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use farleaf_executor::{Completions, Wait};

use crate::Session;

/// Runs all of them to their ends, and returns what they made, in their order. The first posts of
/// all are under way before any is waited for. One that fails stops no other.
pub(super) async fn together<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut is_done = true;
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_some() {
                continue;
            }
            match future.as_mut().poll(context) {
                Poll::Ready(done) => *output = Some(done),
                Poll::Pending => is_done = false,
            }
        }
        if is_done {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

/// For how long a thread sleeps at one pool's connections at once, while others may have something:
/// a completion of another pool can wait that long.
const SLEEP_MAX: Duration = Duration::from_micros(100);

/// The completions of all sessions.
pub(super) struct AllCompletions<'a> {
    sessions: &'a [Session],
    /// Where to sleep next.
    next: usize,
}

impl<'a> AllCompletions<'a> {
    pub(super) fn new(sessions: &'a [Session]) -> Self {
        Self { sessions, next: 0 }
    }
}

impl Completions for AllCompletions<'_> {
    #[inline]
    fn poll(&mut self) -> usize {
        let sessions = self.sessions.iter();
        sessions.map(|session| session.completions().poll()).sum()
    }

    /// Sleeps at the next pool of which something is awaited.
    fn wait(&mut self, at_most: Duration) -> Wait {
        let count = self.sessions.len();
        for _ in 0..count {
            let session = &self.sessions[self.next % count];
            self.next = (self.next + 1) % count;
            match session.completions().wait(at_most.min(SLEEP_MAX)) {
                Wait::Unable => {}
                waited => return waited,
            }
        }
        Wait::Unable
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use farleaf_executor::{block_on, yield_now};

    use super::*;

    /// Promise: all futures begin before any goes on, and what they make comes in their order,
    /// whichever ends first.
    #[test]
    fn all_begin_before_any_goes_on() {
        let begun_count = Cell::new(0);
        let begun_count = &begun_count;
        let wait = |turn_count: u32| async move {
            begun_count.update(|count| count + 1);
            yield_now().await;
            assert_eq!(begun_count.get(), 3);
            for _ in 0..turn_count {
                yield_now().await;
            }
            turn_count
        };
        let made = block_on(together([5, 0, 2].map(wait)), || 0);
        assert_eq!(made, [5, 0, 2]);
        assert!(block_on(together([0; 0].map(wait)), || 0).is_empty());
    }
}
