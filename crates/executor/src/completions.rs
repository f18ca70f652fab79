//! Where completions come from: the caller's side of every driver.

use std::time::Duration;

/// What came of waiting for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Nothing: this cannot wait, or none is to come. The driver waits by itself, by its policy.
    Unable,
    /// The thread has let others run, and stays awake: an answer is about to come.
    Awake,
    /// The thread has slept.
    Slept,
}

/// Delivers completions to the tasks that wait for them. Every `FnMut() -> usize` is one, which
/// cannot wait.
pub trait Completions {
    /// Asks for completions, wakes the tasks they belong to and returns how many there were.
    fn poll(&mut self) -> usize;

    /// Waits until there may be a completion, or for `at_most`, and is asked again then.
    ///
    /// A wake from another thread does not end this wait.
    #[inline]
    fn wait(&mut self, at_most: Duration) -> Wait {
        let _ = at_most;
        Wait::Unable
    }
}

impl<F: FnMut() -> usize> Completions for F {
    #[inline]
    fn poll(&mut self) -> usize {
        self()
    }
}
