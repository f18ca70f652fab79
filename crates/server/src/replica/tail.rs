//! RS11: when the end of a log is made durable to which little is written, or nothing any more.

use std::time::{Duration, Instant};

use farleaf_lsm::place::{LogPosition, SEGMENT_SIZE_BYTES};

/// After the last write.
const IDLE_TIME: Duration = Duration::from_secs(1);
/// After the first write that is not durable, if less than a segment of the log has come since.
const SLOW_TIME: Duration = Duration::from_secs(10);
/// How often it is looked at.
const INTERVAL: Duration = Duration::from_millis(100);

/// What has been seen of a log's end.
#[derive(Debug, Default)]
pub(super) struct LogTail {
    looked_at: Option<Instant>,
    seen: Option<Unsynced>,
}

/// What is not durable.
#[derive(Debug)]
struct Unsynced {
    /// Where the log ended when this was found, and when that was.
    from: LogPosition,
    since: Instant,
    /// Where it ended when it was last looked at, and since when it has not grown.
    end: LogPosition,
    idle_since: Instant,
}

impl LogTail {
    /// Up to where the log is to be made durable now, if it is. `unsynced_to` says how far it goes
    /// that is not, if that is anything; it is asked ten times a second at the most.
    pub(super) fn due(
        &mut self,
        now: Instant,
        unsynced_to: impl FnOnce() -> Option<LogPosition>,
    ) -> Option<LogPosition> {
        if self.looked_at.is_some_and(|at| now - at < INTERVAL) {
            return None;
        }
        self.looked_at = Some(now);
        let Some(end) = unsynced_to() else {
            self.seen = None;
            return None;
        };
        let seen = self.seen.get_or_insert(Unsynced {
            from: end,
            since: now,
            end,
            idle_since: now,
        });
        if seen.end != end {
            (seen.end, seen.idle_since) = (end, now);
        }
        // Where much is written, segments of the log are full soon.
        if end.0.saturating_sub(seen.from.0) >= SEGMENT_SIZE_BYTES {
            (seen.from, seen.since) = (end, now);
        }
        let is_due = now - seen.idle_since >= IDLE_TIME || now - seen.since >= SLOW_TIME;
        if !is_due {
            return None;
        }
        // If it cannot be made durable, it is found again.
        self.seen = None;
        Some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks each 25 ms for so many seconds; when it was due, in ms. What was due is durable when
    /// it is looked at next.
    fn dues(seconds: u64, end_at: impl Fn(u64) -> u64) -> Vec<u64> {
        let begin = Instant::now();
        let mut tail = LogTail::default();
        let mut synced_to = 0;
        let mut dues = Vec::new();
        for at_ms in (0..seconds * 1000).step_by(25) {
            let end = end_at(at_ms);
            let unsynced_to = || (end > synced_to).then_some(LogPosition(end));
            let now = begin + Duration::from_millis(at_ms);
            if let Some(due) = tail.due(now, unsynced_to) {
                assert_eq!(due.0, end);
                synced_to = end;
                dues.push(at_ms);
            }
        }
        dues
    }

    /// Promise (RS11): a log's end is due once, a second after the last write; of one to which
    /// little is written all the time, each ten seconds; of one to which much is, and of one to
    /// which nothing was, never.
    #[test]
    fn idle_and_slow_ends_are_due() {
        assert_eq!(dues(60, |_| 0), [0_u64; 0]);
        let once = dues(60, |at_ms| at_ms.min(3000));
        assert_eq!(once.len(), 1, "{once:?}");
        assert!((4000..4200).contains(&once[0]), "{once:?}");
        for interval_ms in [50, 500] {
            let slow = dues(60, |at_ms| 1 + at_ms / interval_ms);
            assert_eq!(slow.len(), 5, "{slow:?}");
        }
        let fast = dues(60, |at_ms| at_ms * 1000);
        assert_eq!(fast, [0_u64; 0]);
    }

    /// Promise (RS11): what could not be made durable is tried again a second later.
    #[test]
    fn what_fails_is_tried_again() {
        let begin = Instant::now();
        let mut tail = LogTail::default();
        let mut tries = 0;
        for at_ms in (0..10_000).step_by(25) {
            let now = begin + Duration::from_millis(at_ms);
            if tail.due(now, || Some(LogPosition(7))).is_some() {
                tries += 1;
            }
        }
        assert_eq!(tries, 9);
    }
}
