//! How long a thread asks again before it sleeps.
//!
//! A round trip on a local network is soon over, and to be woken from a sleep can take longer than
//! that, above all on a processor that has halted, as those of virtual machines do. So both sides
//! ask again for a while, and let other threads run in between; who hears nothing for longer
//! sleeps.

use std::thread;
use std::time::{Duration, Instant};

/// For how long it is worth to stay awake.
const AWAKE_TIME: Duration = Duration::from_micros(50);

/// Counts the time since something last happened.
#[derive(Debug)]
pub(crate) struct Patience {
    /// `None`: since then nobody has waited, or it is over.
    since: Option<Instant>,
    is_awake: bool,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self {
            since: None,
            is_awake: false,
        }
    }

    /// Something has happened.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.since = None;
        self.is_awake = true;
    }

    /// Whether to ask again, and not to sleep.
    #[inline]
    pub(crate) fn is_awake(&self) -> bool {
        self.is_awake
    }

    /// Nothing has happened: lets other threads run.
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

    /// Promise: a thread to which nothing happens sleeps after a while, and is awake again when
    /// something does.
    #[test]
    fn patience_ends_and_begins_anew() {
        let mut patience = Patience::new();
        assert!(!patience.is_awake());
        for _ in 0..2 {
            patience.begin();
            assert!(patience.is_awake());
            patience.wait();
            assert!(patience.is_awake(), "for longer than one look");
            thread::sleep(AWAKE_TIME);
            patience.wait();
            assert!(!patience.is_awake());
        }
    }
}
