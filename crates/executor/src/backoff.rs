//! Waiting for a lock that somebody else holds, without holding up the other tasks of the thread.
//!
//! A task that backs off far enough *rests*: it asks to be polled again, but tells the driver on
//! this thread (through a thread-local) that this is not work. The driver sleeps only in a turn in
//! which nothing else happened and all its tasks rest; as long as others are in flight it goes on
//! asking for their completions. Under a foreign executor there is nobody to tell; the task then
//! yields or sleeps the thread itself.

use std::cell::Cell;
use std::future::poll_fn;
use std::hint;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use crate::idle::{REST_SLEEP_MAX, Rest, Waited};

/// Attempts below this spin: 8, 16 and 32 pauses, well below a round trip.
const SPIN_ATTEMPTS: u32 = 3;
/// Attempts below this let the other tasks of the thread run: the holder may be among them.
const TASK_ATTEMPTS: u32 = 8;
/// Attempts below this let other threads run: the holder may wait for this core.
const THREAD_ATTEMPTS: u32 = 12;
/// The first sleep; each attempt doubles it.
const SLEEP_MIN: Duration = Duration::from_micros(5);
/// A resting task sits out at most this many turns while others are in flight.
const REST_TURNS_MAX: u32 = 32;

/// Waits before attempt `attempt + 1` at something that another client holds.
///
/// Attempts 0 to 2 spin for less than a microsecond, 3 to 7 let other tasks run once, 8 to 11 let
/// other threads run, later ones sit out up to 32 turns, or a sleep of 5 to 100 us if no other task
/// of this thread is in flight. Never blocks other ready tasks for longer than that. Posts nothing.
pub async fn backoff(attempt: u32) {
    match attempt {
        0..SPIN_ATTEMPTS => (0..8_u32 << attempt).for_each(|_| hint::spin_loop()),
        SPIN_ATTEMPTS..TASK_ATTEMPTS => yield_now().await,
        TASK_ATTEMPTS..THREAD_ATTEMPTS => rest(Rest::Yield, 1).await,
        _ => {
            let doublings = (attempt - THREAD_ATTEMPTS).min(16);
            let sleep = SLEEP_MIN.saturating_mul(1 << doublings).min(REST_SLEEP_MAX);
            rest(Rest::Sleep(sleep), (2 << doublings).min(REST_TURNS_MAX)).await;
        }
    }
}

/// Lets every other task that is ready run once before this one goes on.
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

/// Sits out `turn_count` turns, or fewer if the thread slept meanwhile.
async fn rest(rest: Rest, turn_count: u32) {
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
                    Rest::Sleep(duration) => thread::sleep(duration),
                    Rest::Yield | Rest::Policy => thread::yield_now(),
                }
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Who polls on this thread at the moment.
#[derive(Clone, Copy, Debug)]
enum Driver {
    /// No driver of this crate.
    None,
    Polling,
    /// The future that the driver polls has asked to rest.
    PollingResting(Rest),
}

thread_local! {
    /// The innermost driver of this thread.
    static DRIVER: Cell<Driver> = const { Cell::new(Driver::None) };
    /// How often drivers of this thread slept.
    static SLEEP_COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Whether the future that this thread's driver polls rests: it backs off, and so nothing that it
/// has begun is under way. Asked right after polling it, by a future around it, which may then drop
/// it.
pub fn is_resting() -> bool {
    matches!(DRIVER.get(), Driver::PollingResting(_))
}

/// How many tasks rested in a turn, and the least that any of them asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Resting {
    task_count: usize,
    least: Option<Rest>,
}

impl Resting {
    /// Counts a task that rests, or does not.
    #[inline]
    pub(crate) fn with(self, rest: Option<Rest>) -> Self {
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

    /// What the thread should do in a turn without progress, out of `unfinished_count` tasks.
    pub(crate) fn advice(self, unfinished_count: usize) -> Rest {
        match self.least {
            None => Rest::Policy,
            Some(rest) if self.task_count >= unfinished_count => rest,
            Some(_) => Rest::Yield,
        }
    }
}

/// Tells the backoffs of finished turns that the thread slept.
pub(crate) fn note(waited: Waited) {
    if waited == Waited::Slept {
        SLEEP_COUNT.set(SLEEP_COUNT.get().wrapping_add(1));
    }
}

/// While it lives, futures that this thread polls and that rest say so instead of blocking the
/// thread. Every driver of this crate has one; a driver of another make, such as one in virtual
/// time, needs its own. Drivers may nest.
#[derive(Debug)]
pub struct RestScope {
    outer: Driver,
}

impl RestScope {
    /// From now on this thread's futures are polled by a driver that is told.
    #[inline]
    pub fn enter() -> Self {
        Self {
            outer: DRIVER.replace(Driver::Polling),
        }
    }

    /// What the future polled since the last call asked for, if it rests.
    #[expect(clippy::unused_self, reason = "there is an answer only inside a scope")]
    #[inline]
    pub(crate) fn take(&self) -> Option<Rest> {
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

    /// What is given up while it rests has nothing under way.
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
        note(Waited::Slept);
        assert!(future.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn the_thread_sleeps_only_if_every_unfinished_task_asks_for_it() {
        let sleep = |us| Some(Rest::Sleep(Duration::from_micros(us)));
        let two = Resting::default().with(sleep(9)).with(None).with(sleep(5));
        assert_eq!(Some(two.advice(2)), sleep(5));
        assert_eq!(two.advice(3), Rest::Yield);
        assert_eq!(two.with(Some(Rest::Yield)).advice(3), Rest::Yield);
        assert_eq!(Resting::default().advice(3), Rest::Policy);
    }
}
