//! RS11: when the end of a log is made durable for which nobody waits.

use std::time::{Duration, Instant};

use farleaf_lsm::place::{LogPosition, SEGMENT_SIZE_BYTES};

/// After the last write; and after the last sync, if the manifest is to say what is durable: syncs
/// of a region to which somebody writes all the time are closer together than that.
const IDLE_TIME: Duration = Duration::from_secs(1);
const SAY_IDLE_TIME: Duration = Duration::from_secs(2);
/// After the first write that is not durable: at the least, and at the most.
const BUSY_TIME: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(10));
/// A sync is begun again after so many times as long as the last one took: where many regions share
/// a disk that syncs slowly, they sync less often, and leave it time for all else.
const REST_FACTOR: u32 = 20;
/// How often it is looked at.
const INTERVAL: Duration = Duration::from_millis(100);

/// When something is due while more and more comes.
#[derive(Debug)]
enum Pace {
    /// After so long from the first of it on.
    Time(Duration),
    /// After the longest time, and not where a segment has come meanwhile: somebody else sees to
    /// that.
    Slow,
}

/// What has been seen of a log's end.
#[derive(Debug)]
pub(super) struct LogTail {
    pace: Pace,
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
    /// Of what is to be synced.
    pub(super) const fn to_sync() -> Self {
        Self::with(Pace::Time(BUSY_TIME.0))
    }

    /// Of what is synced, and the manifest is to say so (VL6).
    pub(super) const fn to_say() -> Self {
        Self::with(Pace::Slow)
    }

    const fn with(pace: Pace) -> Self {
        Self {
            pace,
            looked_at: None,
            seen: None,
        }
    }

    /// What was due has been synced, and that took so long.
    pub(super) fn note_synced(&mut self, took: Duration) {
        let rest = took.saturating_mul(REST_FACTOR);
        self.pace = Pace::Time(rest.clamp(BUSY_TIME.0, BUSY_TIME.1));
    }

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
        let (idle_time, busy_time) = match self.pace {
            Pace::Time(time) => (IDLE_TIME, time),
            Pace::Slow => {
                if end.0.saturating_sub(seen.from.0) >= SEGMENT_SIZE_BYTES {
                    (seen.from, seen.since) = (end, now);
                }
                (SAY_IDLE_TIME, BUSY_TIME.1)
            }
        };
        let is_due = now - seen.idle_since >= idle_time || now - seen.since >= busy_time;
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
    /// it is looked at next, and that took so long, if that is told.
    fn dues(
        mut tail: LogTail,
        (seconds, took): (u64, Option<Duration>),
        end_at: impl Fn(u64) -> u64,
    ) -> Vec<u64> {
        let begin = Instant::now();
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
                if let Some(took) = took {
                    tail.note_synced(took);
                }
            }
        }
        dues
    }

    /// Promise (RS11): a log's end is due to be synced once, a second after the last write; each
    /// three seconds, where something is written all the time, however much that is; never, where
    /// nothing is. Where syncs are slow it is due less often, but each ten seconds.
    #[test]
    fn what_is_written_is_due_each_three_seconds() {
        let dues = |seconds, took_ms, end_at: &dyn Fn(u64) -> u64| {
            let took = Some(Duration::from_millis(took_ms));
            dues(LogTail::to_sync(), (seconds, took), end_at)
        };
        assert_eq!(dues(60, 5, &|_| 0), [0_u64; 0]);
        let once = dues(60, 5, &|at_ms| u64::from(at_ms >= 3000));
        assert_eq!(once.len(), 1, "{once:?}");
        assert!((4000..4200).contains(&once[0]), "{once:?}");
        for bytes_per_ms in [1, 1000] {
            let busy = dues(60, 5, &|at_ms| 1 + at_ms * bytes_per_ms);
            assert!((18..21).contains(&busy.len()), "{busy:?}");
            let slow = dues(60, 300, &|at_ms| 1 + at_ms * bytes_per_ms);
            assert!((9..11).contains(&slow.len()), "{slow:?}");
            let slowest = dues(60, 5000, &|at_ms| 1 + at_ms * bytes_per_ms);
            assert_eq!(slowest.len(), 6, "{slowest:?}");
        }
    }

    /// Promise (RS11): that something is synced is due to be said once, two seconds after the last
    /// sync; where little is synced all the time, each ten seconds; where much is, never.
    #[test]
    fn idle_and_slow_ends_are_due_to_be_said() {
        let dues = |end_at: &dyn Fn(u64) -> u64| dues(LogTail::to_say(), (60, None), end_at);
        assert_eq!(dues(&|_| 0), [0_u64; 0]);
        let once = dues(&|at_ms| at_ms.min(3000));
        assert_eq!(once.len(), 1, "{once:?}");
        assert!((5000..5200).contains(&once[0]), "{once:?}");
        for interval_ms in [50, 1300] {
            let slow = dues(&|at_ms| 1 + at_ms / interval_ms);
            assert_eq!(slow.len(), 5, "{slow:?}");
        }
        let fast = dues(&|at_ms| at_ms * 1000);
        assert_eq!(fast, [0_u64; 0]);
    }

    /// Promise (RS11): what could not be made durable is tried again a second later.
    #[test]
    fn what_fails_is_tried_again() {
        let begin = Instant::now();
        let mut tail = LogTail::to_sync();
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
