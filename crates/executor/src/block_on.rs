//! Drivers for one future on one thread.

use std::mem::ManuallyDrop;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use crate::backoff::{self, RestScope};
use crate::completions::Completions;
use crate::idle::{Idle, IdlePolicy, RestRequest};
use crate::ready::Registration;

/// Runs a future to completion on this thread.
///
/// The future is polled once first, so a ready future costs no more than that. While it is pending,
/// the function polls `completions` (which returns the number of delivered completions) and the
/// future in turn. It waits by the default [`IdlePolicy`] while nothing happens, and continues at
/// once when another thread wakes the future. A future that keeps no waker is served too, because
/// it is polled in every turn.
///
/// For many operations in flight use a [`TaskSet`](crate::TaskSet). This function may be called
/// inside a task; it then blocks the task's thread.
///
/// ```
/// # use farleaf_executor::{block_on, yield_now};
/// let answer = block_on(async { yield_now().await; 42 }, || 0);
/// assert_eq!(answer, 42);
/// ```
pub fn block_on<F: Future>(future: F, completions: impl Completions) -> F::Output {
    block_on_with_policy(future, completions, IdlePolicy::default())
}

/// Does the work of [`block_on`] with the given waiting policy.
pub fn block_on_with_policy<F: Future>(
    future: F,
    mut completions: impl Completions,
    idle_policy: IdlePolicy,
) -> F::Output {
    let mut future = pin!(future);
    {
        let _scope = RestScope::enter();
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
    let main = MainTask::new();
    let mut idle = Idle::new(idle_policy);
    loop {
        let completion_count = completions.poll();
        let was_woken = main.take_woken();
        let scope = RestScope::enter();
        if let Poll::Ready(output) = main.poll(future.as_mut()) {
            return output;
        }
        let rest = scope.take();
        drop(scope);
        if completion_count > 0 || (rest.is_none() && (was_woken || main.is_woken())) {
            idle.reset();
        } else {
            let rest = rest.unwrap_or(RestRequest::Policy);
            backoff::note(idle.wait(rest, |at_most| completions.wait(at_most)));
        }
    }
}

/// Waker of a future on the stack of its driver.
pub(crate) struct MainTask {
    registration: Registration,
    waker: ManuallyDrop<Waker>,
}

impl MainTask {
    pub(crate) fn new() -> Self {
        let registration = Registration::new(1);
        let waker = registration.queue().occupy(0).waker();
        Self {
            registration,
            waker,
        }
    }

    pub(crate) fn poll<F: Future>(&self, future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(&self.waker))
    }

    /// Returns true if the next [`take_woken`](Self::take_woken) would.
    pub(crate) fn is_woken(&self) -> bool {
        self.registration.queue().has_more_than(0)
    }

    /// Returns true if the future was woken since the last call.
    pub(crate) fn take_woken(&self) -> bool {
        self.registration.queue().collect_wakes();
        self.registration.queue().pop().is_some()
    }
}
