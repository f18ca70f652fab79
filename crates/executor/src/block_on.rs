//! One future on one thread.

use std::mem::ManuallyDrop;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use crate::backoff::{self, RestScope};
use crate::completions::Completions;
use crate::idle::{Idle, IdlePolicy, Rest};
use crate::ready::Registration;

/// Runs a future to completion on this thread.
///
/// Polls it once first: a future that is ready then costs no more than that. While it is pending,
/// asks `completions` (which returns how many completions it delivered) and polls again, in
/// turn; waits by the default [`IdlePolicy`] while nothing happens, and goes on at once when the
/// future is woken from another thread. As it polls at every turn, it also serves futures that keep
/// no waker.
///
/// For many operations in flight take a [`TaskSet`](crate::TaskSet). May be called from inside
/// a task, whose thread it then keeps busy.
///
/// ```
/// # use farleaf_executor::{block_on, yield_now};
/// let answer = block_on(async { yield_now().await; 42 }, || 0);
/// assert_eq!(answer, 42);
/// ```
pub fn block_on<F: Future>(future: F, completions: impl Completions) -> F::Output {
    block_on_with_policy(future, completions, IdlePolicy::default())
}

/// [`block_on`] with a say in how to wait.
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
            let rest = rest.unwrap_or(Rest::Policy);
            backoff::note(idle.wait(rest, |at_most| completions.wait(at_most)));
        }
    }
}

/// The waker of a future that stands on the stack of its driver.
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

    /// Whether the next [`take_woken`](Self::take_woken) will return true.
    pub(crate) fn is_woken(&self) -> bool {
        self.registration.queue().has_more_than(0)
    }

    /// Whether the future was woken since the last call.
    pub(crate) fn take_woken(&self) -> bool {
        self.registration.queue().collect_mail();
        self.registration.queue().pop().is_some()
    }
}
