//! Waiting for a lock that another client holds, without delaying the other tasks of the thread.
//!
//! A task that has backed off repeatedly *rests*: it requests another poll, and a thread-local
//! informs the driver of this thread that the request is not work. The driver sleeps only after a
//! turn in which nothing else happened and all its tasks rest. While other tasks are in flight, the
//! driver continues to poll for their completions. Without a driver of this crate, the task yields
//! or sleeps the thread itself.

use std::cell::Cell;
use std::future::poll_fn;
use std::hint;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use crate::idle::{IdleAction, REST_SLEEP_MAX, RestRequest};

/// Number of attempts that spin, for 8, 16 and 32 pauses, well below a round trip.
const SPIN_ATTEMPTS: u32 = 3;
/// Attempts below this number let the other tasks of the thread run: one may hold the lock.
const TASK_ATTEMPTS: u32 = 8;
/// Attempts below this number let other threads run: the holder may wait for this core.
const THREAD_ATTEMPTS: u32 = 12;
/// Duration of the first sleep; each attempt doubles it.
const SLEEP_MIN: Duration = Duration::from_micros(5);
/// Maximum number of turns for which a task rests while others are in flight.
const REST_TURNS_MAX: u32 = 32;

/// Waits before attempt `attempt + 1` to acquire something that another client holds.
///
/// Attempts 0 to 2 spin for less than a microsecond. Attempts 3 to 7 let other tasks run once, and
/// attempts 8 to 11 let other threads run. Later ones wait for up to 32 turns, or sleep 5 to 100 us
/// if no other task of this thread is in flight. Other ready tasks are never blocked for longer
/// than that. No verb is posted.
pub async fn backoff(attempt: u32) {
    match attempt {
        0..SPIN_ATTEMPTS => (0..8_u32 << attempt).for_each(|_| hint::spin_loop()),
        SPIN_ATTEMPTS..TASK_ATTEMPTS => yield_now().await,
        TASK_ATTEMPTS..THREAD_ATTEMPTS => rest(RestRequest::Yield, 1).await,
        _ => {
            let doublings = (attempt - THREAD_ATTEMPTS).min(16);
            let sleep = SLEEP_MIN.saturating_mul(1 << doublings).min(REST_SLEEP_MAX);
            rest(
                RestRequest::Sleep(sleep),
                (2 << doublings).min(REST_TURNS_MAX),
            )
            .await;
        }
    }
}

/// Yields once: every other ready task runs before this one continues.
pub async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if has_yielded {
            return Poll::Ready(());
        }
        has_yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Waits for `turn_count` turns, or for fewer if the thread slept meanwhile.
async fn rest(rest: RestRequest, turn_count: u32) {
    let mut turns_left = turn_count;
    let sleep_count = SLEEP_COUNT.get();
    poll_fn(|context| {
        if turns_left == 0 || SLEEP_COUNT.get() != sleep_count {
            return Poll::Ready(());
        }
        turns_left -= 1;
        match DRIVER.get() {
            Driver::Polling => DRIVER.set(Driver::PollingResting(rest)),
            Driver::PollingResting(other) => DRIVER.set(Driver::PollingResting(rest.least(other))),
            Driver::None => {
                turns_left = 0;
                match rest {
                    RestRequest::Sleep(duration) => thread::sleep(duration),
                    RestRequest::Yield | RestRequest::Policy => thread::yield_now(),
                }
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Kind of driver that polls futures on this thread at the moment.
#[derive(Clone, Copy, Debug)]
enum Driver {
    /// A driver of another crate, or none.
    None,
    Polling,
    /// A driver of this crate, whose current future has requested to rest.
    PollingResting(RestRequest),
}

thread_local! {
    /// Innermost driver of this thread.
    static DRIVER: Cell<Driver> = const { Cell::new(Driver::None) };
    /// Number of times that drivers of this thread slept.
    static SLEEP_COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Returns true if the future that this thread's driver polls is resting: it backs off, so none of
/// its operations is in flight. An enclosing future calls this right after polling it, and may then
/// drop it.
pub fn is_resting() -> bool {
    matches!(DRIVER.get(), Driver::PollingResting(_))
}

/// Number of tasks that rested in a turn, and the least that any of them requested.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Resting {
    task_count: usize,
    least: Option<RestRequest>,
}

impl Resting {
    /// Counts one task; `rest` is what it requested, if it rests.
    #[inline]
    pub(crate) fn with(self, rest: Option<RestRequest>) -> Self {
        match rest {
            None => self,
            Some(rest) => Self {
                task_count: self.task_count + 1,
                least: Some(self.least.map_or(rest, |least| least.least(rest))),
            },
        }
    }

    pub(crate) fn task_count(self) -> usize {
        self.task_count
    }

    /// Returns what the thread should do after a turn without progress, given `unfinished_count`
    /// tasks.
    pub(crate) fn advice(self, unfinished_count: usize) -> RestRequest {
        match self.least {
            None => RestRequest::Policy,
            Some(rest) if self.task_count >= unfinished_count => rest,
            Some(_) => RestRequest::Yield,
        }
    }
}

/// Notifies the backoffs of finished turns that the thread slept.
pub(crate) fn note(waited: IdleAction) {
    if waited == IdleAction::Slept {
        SLEEP_COUNT.set(SLEEP_COUNT.get().wrapping_add(1));
    }
}

/// Scope in which resting futures of this thread report that they rest instead of blocking the
/// thread. Every driver of this crate has one. Other drivers, such as one in virtual time, need
/// their own. Scopes may nest.
#[derive(Debug)]
pub struct RestScope {
    outer: Driver,
}

impl RestScope {
    /// Enters a scope: from now on, resting futures of this thread report to its driver.
    #[inline]
    pub fn enter() -> Self {
        Self {
            outer: DRIVER.replace(Driver::Polling),
        }
    }

    /// Returns what the future polled since the last call requested, if it rests.
    #[expect(clippy::unused_self, reason = "there is an answer only inside a scope")]
    #[inline]
    pub(crate) fn take(&self) -> Option<RestRequest> {
        match DRIVER.replace(Driver::Polling) {
            Driver::PollingResting(rest) => Some(rest),
            Driver::None | Driver::Polling => None,
        }
    }
}

impl Drop for RestScope {
    #[inline]
    fn drop(&mut self) {
        DRIVER.set(self.outer);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Waker};

    fn polls_until_ready(attempt: u32) -> u32 {
        let mut future = pin!(backoff(attempt));
        let mut context = Context::from_waker(Waker::noop());
        (1..100)
            .find(|_| future.as_mut().poll(&mut context).is_ready())
            .expect("it ends")
    }

    #[test]
    fn later_attempts_sit_out_more_turns_under_a_driver() {
        let _scope = RestScope::enter();
        let polls = [0, 2, 3, 7, 8, 11, 12, 13, 16, 20, u32::MAX].map(polls_until_ready);
        assert_eq!(polls, [1, 1, 2, 2, 2, 2, 3, 5, 33, 33, 33]);
    }

    #[test]
    fn under_a_foreign_executor_every_backoff_takes_two_polls_at_most() {
        assert_eq!(
            [0, 5, 9, 12, u32::MAX].map(polls_until_ready),
            [1, 2, 2, 2, 2]
        );
    }

    /// Promise: a future dropped while it rests has no operation in flight.
    #[test]
    fn who_rests_can_be_asked() {
        let scope = RestScope::enter();
        let mut context = Context::from_waker(Waker::noop());
        let mut yielding = pin!(yield_now());
        assert!(yielding.as_mut().poll(&mut context).is_pending());
        assert!(!is_resting());
        let mut resting = pin!(backoff(30));
        assert!(resting.as_mut().poll(&mut context).is_pending());
        assert!(is_resting());
        scope.take();
        assert!(!is_resting(), "each poll anew");
    }

    #[test]
    fn a_sleep_of_the_thread_ends_the_rest() {
        let _scope = RestScope::enter();
        let mut future = pin!(backoff(30));
        let mut context = Context::from_waker(Waker::noop());
        assert!(future.as_mut().poll(&mut context).is_pending());
        note(IdleAction::Slept);
        assert!(future.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn the_thread_sleeps_only_if_every_unfinished_task_asks_for_it() {
        let sleep = |us| Some(RestRequest::Sleep(Duration::from_micros(us)));
        let two = Resting::default().with(sleep(9)).with(None).with(sleep(5));
        assert_eq!(Some(two.advice(2)), sleep(5));
        assert_eq!(two.advice(3), RestRequest::Yield);
        assert_eq!(
            two.with(Some(RestRequest::Yield)).advice(3),
            RestRequest::Yield
        );
        assert_eq!(Resting::default().advice(3), RestRequest::Policy);
    }
}
