//! Where completions come from: the caller's side of every driver.

use std::time::Duration;

/// Delivers completions to the tasks that wait for them. Every `FnMut() -> usize` is one, which
/// cannot wait.
pub trait Completions {
    /// Asks for completions, wakes the tasks they belong to and returns how many there were.
    fn poll(&mut self) -> usize;

    /// Sleeps until there may be a completion, or for `at_most`, and is asked again then. `false`,
    /// at once: it cannot, or none is to come; the driver waits by itself, by its policy.
    ///
    /// A wake from another thread does not end this sleep.
    #[inline]
    fn wait(&mut self, at_most: Duration) -> bool {
        let _ = at_most;
        false
    }
}

impl<F: FnMut() -> usize> Completions for F {
    #[inline]
    fn poll(&mut self) -> usize {
        self()
    }
}
