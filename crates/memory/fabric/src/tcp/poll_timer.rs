//! Time for which a thread polls before it sleeps.
//!
//! A round trip on a local network is short, and waking from a sleep can take longer, above all on
//! a halted processor of a virtual machine. So both sides poll for a while, yielding to other
//! threads in between, and sleep only after a longer silence.

use std::thread;
use std::time::{Duration, Instant};

/// Time for which it is worth polling.
const AWAKE_TIME: Duration = Duration::from_micros(50);

/// Timer since the last event.
#[derive(Debug)]
pub(crate) struct PollTimer {
    /// Time of the first wait since the last event; `None` if there was none, or if the time is
    /// over.
    since: Option<Instant>,
    is_awake: bool,
}

impl PollTimer {
    pub(crate) fn new() -> Self {
        Self {
            since: None,
            is_awake: false,
        }
    }

    /// Restarts the timer after an event.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.since = None;
        self.is_awake = true;
    }

    /// Returns true if the caller should poll again instead of sleeping.
    #[inline]
    pub(crate) fn is_awake(&self) -> bool {
        self.is_awake
    }

    /// Yields to other threads after a futile poll.
    #[inline]
    pub(crate) fn wait(&mut self) {
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        self.is_awake = now.duration_since(since) < AWAKE_TIME;
        if self.is_awake {
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a thread without events sleeps after a while, and polls again after the next event.
    #[test]
    fn patience_ends_and_begins_anew() {
        let mut poll_timer = PollTimer::new();
        assert!(!poll_timer.is_awake());
        for _ in 0..2 {
            poll_timer.begin();
            assert!(poll_timer.is_awake());
            poll_timer.wait();
            assert!(poll_timer.is_awake(), "for longer than one look");
            thread::sleep(AWAKE_TIME);
            poll_timer.wait();
            assert!(!poll_timer.is_awake());
        }
    }
}
