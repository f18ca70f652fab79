//! How often strangers can make the node write to its log.
//!
//! A line for each wrong secret is what an operator wants to see, and a hundred thousand of them in
//! a minute fill a disk. So [`COUNT_MAX`] of a sort are written in a second; of the others there is
//! one line with their number, when the second is over.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// What is written in a second.
const COUNT_MAX: u32 = 5;
const SECOND: Duration = Duration::from_secs(1);

/// What one sort of warnings has come to in the second that is under way.
#[derive(Debug)]
pub struct Warnings {
    /// Completes "warnings not written: ".
    what: &'static str,
    /// `None`: there has been none since the last second was over.
    since: Option<Instant>,
    written_count: u32,
    withheld_count: u64,
    /// Who came last of those that were withheld.
    last: Option<SocketAddr>,
}

impl Warnings {
    /// None yet. `what` completes "warnings not written: ".
    pub fn new(what: &'static str) -> Self {
        Self {
            what,
            since: None,
            written_count: 0,
            withheld_count: 0,
            last: None,
        }
    }

    /// Whether a warning about this peer is written; else it is counted.
    pub fn admits(&mut self, peer: SocketAddr, now: Instant) -> bool {
        self.tell(now);
        self.since.get_or_insert(now);
        if self.written_count < COUNT_MAX {
            self.written_count += 1;
            return true;
        }
        self.withheld_count += 1;
        self.last = Some(peer);
        false
    }

    /// Writes how many were withheld in a second that is over. To be called from time to time.
    pub fn tell(&mut self, now: Instant) {
        if let Some((count, last)) = self.close(now) {
            let what = self.what;
            tracing::warn!(count, last_peer = %last, "warnings not written: {what}");
        }
    }

    /// What was withheld in a second that is over, and about whom last.
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

    /// Promise: so many in a second are written, the others counted, and told of once; whatever
    /// comes in the next second is written again.
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
        assert_eq!(warnings.close(at(5000)), None, "told once");
        assert!(warnings.admits(peer(1), at(5000)), "a new second");
        assert_eq!(warnings.close(at(6000)), None, "nothing was withheld");
    }
}
