//! Limit for log warnings that unauthenticated peers cause.
//!
//! An operator wants to see a line for each wrong secret, but a hundred thousand lines per minute
//! fill a disk. So `COUNT_MAX` warnings of a kind are written per second. The others are reported
//! by one line with their number, when the second is over.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Number of warnings written per second.
const COUNT_MAX: u32 = 5;
const SECOND: Duration = Duration::from_secs(1);

/// Counter of warnings of one kind in the current second.
#[derive(Debug)]
pub struct Warnings {
    /// Text that completes "warnings suppressed: ".
    what: &'static str,
    /// Start of the current second; `None` if there was no warning since the last one ended.
    since: Option<Instant>,
    written_count: u32,
    withheld_count: u64,
    /// Peer of the last warning that was not written.
    last: Option<SocketAddr>,
}

impl Warnings {
    /// Returns a counter at 0. `what` completes "warnings suppressed: ".
    pub fn new(what: &'static str) -> Self {
        Self {
            what,
            since: None,
            written_count: 0,
            withheld_count: 0,
            last: None,
        }
    }

    /// Returns true if a warning about this peer is to be written; otherwise counts it.
    pub fn admits(&mut self, peer: SocketAddr, now: Instant) -> bool {
        self.log_withheld(now);
        self.since.get_or_insert(now);
        if self.written_count < COUNT_MAX {
            self.written_count += 1;
            return true;
        }
        self.withheld_count += 1;
        self.last = Some(peer);
        false
    }

    /// Logs the number of warnings not written in a second that is over. To be called from time to
    /// time.
    pub fn log_withheld(&mut self, now: Instant) {
        if let Some((count, last)) = self.close(now) {
            let what = self.what;
            tracing::warn!(count, last_peer = %last, "warnings suppressed: {what}");
        }
    }

    /// Ends a second that is over; returns the number of warnings not written, and the last one's
    /// peer.
    fn close(&mut self, now: Instant) -> Option<(u64, SocketAddr)> {
        let since = self.since?;
        if now.saturating_duration_since(since) < SECOND {
            return None;
        }
        let last = self.last.take();
        let count = self.withheld_count;
        *self = Self::new(self.what);
        last.map(|last| (count, last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the limit applies per second. Warnings beyond it are counted and reported once; the
    /// next second starts anew.
    #[test]
    fn what_is_not_written_is_counted() {
        let mut warnings = Warnings::new("of a test");
        let begin = Instant::now();
        let peer = |port| SocketAddr::from(([10, 0, 0, 1], port));
        let at = |ms| begin + Duration::from_millis(ms);
        let written = (0..100).filter(|it| warnings.admits(peer(*it), at(u64::from(*it))));
        assert_eq!(written.count(), COUNT_MAX as usize);
        assert_eq!(warnings.close(at(999)), None, "the second is not over");
        let withheld = 100 - u64::from(COUNT_MAX);
        assert_eq!(warnings.close(at(1000)), Some((withheld, peer(99))));
        assert_eq!(warnings.close(at(5000)), None, "reported once");
        assert!(warnings.admits(peer(1), at(5000)), "a new second");
        assert_eq!(warnings.close(at(6000)), None, "nothing was withheld");
    }
}
