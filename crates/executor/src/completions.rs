//! Sources of completions: the caller's side of every driver.

use std::time::Duration;

/// Result of waiting for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// No wait: the source cannot wait, or expects no completion. The driver waits by its own
    /// policy.
    Unable,
    /// The thread yielded to others but stays awake, because a reply is imminent.
    Awake,
    /// The thread has slept.
    Slept,
}

/// Source that delivers completions to the tasks that wait for them. Every `FnMut() -> usize` is a
/// source that cannot wait.
pub trait Completions {
    /// Polls for completions, wakes their tasks and returns the number of completions.
    fn poll(&mut self) -> usize;

    /// Waits until a completion may have arrived, but at most for `at_most`. The caller then polls.
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
