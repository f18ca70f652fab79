//! The way from a task of an [`Executor`](crate::Executor) back to whoever spawned it.

use std::cell::RefCell;
use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Waits for a task and takes its output.
///
/// Dropping it detaches the task: the task belongs to the executor and runs to its end.
#[must_use = "await it, or drop it explicitly to detach the task"]
pub struct JoinHandle<T> {
    state: Rc<RefCell<State<T>>>,
}

/// The task ended without an output: it panicked, or its executor was dropped before it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskLost;

impl fmt::Display for TaskLost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the task panicked, or its executor was dropped before it was done")
    }
}

impl Error for TaskLost {}

enum State<T> {
    Running(Option<Waker>),
    Finished(T),
    Lost,
    Taken,
}

impl<T> JoinHandle<T> {
    /// Whether awaiting it would return at once.
    pub fn is_finished(&self) -> bool {
        !matches!(*self.state.borrow(), State::Running(_))
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, TaskLost>;

    /// # Panics
    ///
    /// If polled again after it returned its output.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // A waker is foreign code: cloned before, dropped after the state is borrowed.
        let waker = context.waker().clone();
        let (poll, _former) = {
            let state = &mut *self.state.borrow_mut();
            match std::mem::replace(state, State::Taken) {
                State::Running(former) => {
                    *state = State::Running(Some(waker));
                    (Poll::Pending, former)
                }
                State::Finished(output) => (Poll::Ready(Ok(output)), None),
                State::Lost => (Poll::Ready(Err(TaskLost)), None),
                State::Taken => panic!("a join handle was polled after it had returned its output"),
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

/// The task's end of a [`JoinHandle`].
pub(crate) struct Completion<T> {
    state: Rc<RefCell<State<T>>>,
}

impl<T> Completion<T> {
    pub(crate) fn new() -> (Self, JoinHandle<T>) {
        let state = Rc::new(RefCell::new(State::Running(None)));
        (
            Self {
                state: Rc::clone(&state),
            },
            JoinHandle { state },
        )
    }

    pub(crate) fn finish(self, output: T) {
        self.end(State::Finished(output));
    }

    fn end(&self, state: State<T>) {
        if let State::Running(Some(waker)) = self.state.replace(state) {
            waker.wake();
        }
    }
}

impl<T> Drop for Completion<T> {
    fn drop(&mut self) {
        let is_running = matches!(*self.state.borrow(), State::Running(_));
        if is_running {
            self.end(State::Lost);
        }
    }
}
