//! Handles that return the output of a task of an [`Executor`](crate::Executor).

use std::cell::RefCell;
use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Handle that waits for a task and takes its output.
///
/// Dropping the handle detaches the task, which belongs to the executor and runs to completion.
#[must_use = "await it, or drop it explicitly to detach the task"]
pub struct JoinHandle<T> {
    state: Rc<RefCell<JoinState<T>>>,
}

/// Error of a task that ended without an output: it panicked, or its executor was dropped first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskLost;

impl fmt::Display for TaskLost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the task panicked, or its executor was dropped before it was done")
    }
}

impl Error for TaskLost {}

enum JoinState<T> {
    Running(Option<Waker>),
    Finished(T),
    Lost,
    Taken,
}

impl<T> JoinHandle<T> {
    /// Returns true if awaiting the handle would return at once.
    pub fn is_finished(&self) -> bool {
        !matches!(*self.state.borrow(), JoinState::Running(_))
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, TaskLost>;

    /// Returns the task's output once it has completed.
    ///
    /// # Panics
    ///
    /// If polled again after it returned its output.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // A waker is foreign code: clone it before the state is borrowed, and drop the old one
        // after.
        let waker = context.waker().clone();
        let (poll, _former) = {
            let state = &mut *self.state.borrow_mut();
            match std::mem::replace(state, JoinState::Taken) {
                JoinState::Running(former) => {
                    *state = JoinState::Running(Some(waker));
                    (Poll::Pending, former)
                }
                JoinState::Finished(output) => (Poll::Ready(Ok(output)), None),
                JoinState::Lost => (Poll::Ready(Err(TaskLost)), None),
                JoinState::Taken => {
                    panic!("a join handle was polled after it had returned its output")
                }
            }
        };
        poll
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("JoinHandle")
            .field("is_finished", &self.is_finished())
            .finish_non_exhaustive()
    }
}

/// The task's counterpart of a [`JoinHandle`].
pub(crate) struct TaskCompletion<T> {
    state: Rc<RefCell<JoinState<T>>>,
}

impl<T> TaskCompletion<T> {
    pub(crate) fn new() -> (Self, JoinHandle<T>) {
        let state = Rc::new(RefCell::new(JoinState::Running(None)));
        (
            Self {
                state: Rc::clone(&state),
            },
            JoinHandle { state },
        )
    }

    pub(crate) fn finish(self, output: T) {
        self.end(JoinState::Finished(output));
    }

    fn end(&self, state: JoinState<T>) {
        if let JoinState::Running(Some(waker)) = self.state.replace(state) {
            waker.wake();
        }
    }
}

impl<T> Drop for TaskCompletion<T> {
    fn drop(&mut self) {
        let is_running = matches!(*self.state.borrow(), JoinState::Running(_));
        if is_running {
            self.end(JoinState::Lost);
        }
    }
}
