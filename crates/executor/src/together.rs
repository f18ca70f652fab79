//! Several futures in flight at once on one thread.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use crate::completions::{Completions, Wait};

/// Runs all futures to completion and returns their outputs in the same order.
///
/// Each future is polled once before any is waited for, so their first operations overlap.
pub async fn together<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
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

/// Longest sleep at one of several sources.
const SLEEP_MAX: Duration = Duration::from_micros(100);

/// Completions of several sources, such as the endpoints of several memory nodes, for futures that
/// use all of them at once ([`together`]).
///
/// A thread can sleep at one source at a time. With several sources it sleeps at each in turn, for
/// at most 100 us, so a completion of another source can wait that long.
#[derive(Debug)]
pub struct AllCompletions<'a, S, F> {
    sources: &'a [S],
    completions: F,
    /// Number of the source to sleep at next, modulo the number of sources.
    next: usize,
}

impl<'a, S, F, C> AllCompletions<'a, S, F>
where
    F: Fn(&'a S) -> C,
    C: Completions,
{
    /// Creates the combined source; `completions` returns the completions of one source.
    pub fn new(sources: &'a [S], completions: F) -> Self {
        Self {
            sources,
            completions,
            next: 0,
        }
    }
}

impl<'a, S, F, C> Completions for AllCompletions<'a, S, F>
where
    F: Fn(&'a S) -> C,
    C: Completions,
{
    #[inline]
    fn poll(&mut self) -> usize {
        let sources = self.sources.iter();
        sources.map(|it| (self.completions)(it).poll()).sum()
    }

    /// Sleeps at the next source that expects a completion.
    fn wait(&mut self, at_most: Duration) -> Wait {
        let count = self.sources.len();
        let at_most = match count {
            1 => at_most,
            _ => at_most.min(SLEEP_MAX),
        };
        for _ in 0..count {
            let source = &self.sources[self.next % count];
            self.next = (self.next + 1) % count;
            match (self.completions)(source).wait(at_most) {
                Wait::Unable => {}
                waited => return waited,
            }
        }
        Wait::Unable
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::{block_on, yield_now};

    /// Source whose waits all have the same result; it records their requested lengths.
    struct FakeSource {
        wait: Wait,
        waits: RefCell<Vec<Duration>>,
    }

    impl Completions for &FakeSource {
        fn poll(&mut self) -> usize {
            3
        }

        fn wait(&mut self, at_most: Duration) -> Wait {
            self.waits.borrow_mut().push(at_most);
            self.wait
        }
    }

    /// Waits twice, for a second each; returns the results and the lengths requested of each
    /// source.
    fn wait_twice<const N: usize>(waits: [Wait; N]) -> ([Wait; 2], [Vec<Duration>; N]) {
        let fakes = waits.map(|wait| FakeSource {
            wait,
            waits: RefCell::default(),
        });
        let mut all = AllCompletions::new(&fakes, |fake| fake);
        assert_eq!(all.poll(), 3 * N);
        let waited = [(); 2].map(|()| all.wait(Duration::from_secs(1)));
        (waited, fakes.map(|fake| fake.waits.into_inner()))
    }

    /// Promise: each wait is at one source that can wait, in turn, and short if other sources may
    /// have completions. If no source can wait, the driver waits by itself.
    #[test]
    fn sources_are_waited_for_in_turn() {
        use Wait::{Awake, Slept, Unable};
        let second = Duration::from_secs(1);
        assert_eq!(wait_twice([]), ([Unable; 2], []));
        assert_eq!(wait_twice([Slept]), ([Slept; 2], [vec![second; 2]]));
        let each = [vec![SLEEP_MAX], vec![SLEEP_MAX], vec![SLEEP_MAX]];
        assert_eq!(wait_twice([Unable, Awake, Slept]), ([Awake, Slept], each));
        let each = [vec![SLEEP_MAX; 2], vec![SLEEP_MAX; 2]];
        assert_eq!(wait_twice([Unable; 2]), ([Unable; 2], each));
    }

    /// Promise: all futures start before any continues, and outputs are in the order of the
    /// futures, whichever completes first.
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
