//! Schedule of background syncs of a log's end (docs/explanation/persistent-tables.md, *Background
//! syncs of the log*).

use std::time::{Duration, Instant};

use farleaf_lsm::place::{LogPosition, SEGMENT_SIZE_BYTES};

/// Time without writes after which the log is synced.
const IDLE_TIME: Duration = Duration::from_secs(1);
/// Time without syncs after which the manifest records the durable end. Syncs of a region with
/// constant writes are usually less than that apart.
const RECORD_IDLE_TIME: Duration = Duration::from_secs(2);
/// Shortest and longest time after the first unsynced write until a sync.
const BUSY_TIME: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(10));
/// Multiple of the last sync's duration after which the next one begins. If many regions share a
/// slow disk, they sync less often, and leave it time for other work.
const SYNC_PAUSE_FACTOR: u32 = 20;
/// Interval of checks.
const INTERVAL: Duration = Duration::from_millis(100);

/// Time at which something is due while more data arrive.
#[derive(Debug)]
enum SyncPace {
    /// This time after the first unsynced write.
    Time(Duration),
    /// The longest time, and only if less than a segment was written meanwhile: more is recorded
    /// elsewhere.
    Slow,
}

/// State of a log's end at the last checks.
#[derive(Debug)]
pub(super) struct LogTail {
    pace: SyncPace,
    checked_at: Option<Instant>,
    seen: Option<Unsynced>,
}

/// The part that is not durable.
#[derive(Debug)]
struct Unsynced {
    /// End of the log, and time, when it was found.
    from: LogPosition,
    since: Instant,
    /// End of the log at the last check, and the time since which it has not grown.
    end: LogPosition,
    idle_since: Instant,
}

impl LogTail {
    /// Creates the schedule of syncs.
    pub(super) const fn to_sync() -> Self {
        Self::with(SyncPace::Time(BUSY_TIME.0))
    }

    /// Creates the schedule of recording synced positions in the manifest.
    pub(super) const fn to_record() -> Self {
        Self::with(SyncPace::Slow)
    }

    const fn with(pace: SyncPace) -> Self {
        Self {
            pace,
            checked_at: None,
            seen: None,
        }
    }

    /// Notes that the due part was synced, and how long that took.
    pub(super) fn note_synced(&mut self, took: Duration) {
        let rest = took.saturating_mul(SYNC_PAUSE_FACTOR);
        self.pace = SyncPace::Time(rest.clamp(BUSY_TIME.0, BUSY_TIME.1));
    }

    /// Returns the position up to which the log is to be made durable now, if it is due.
    /// `unsynced_to` returns the end of the part that is not durable, if there is one; it is called
    /// at most ten times a second.
    pub(super) fn due(
        &mut self,
        now: Instant,
        unsynced_to: impl FnOnce() -> Option<LogPosition>,
    ) -> Option<LogPosition> {
        if self.checked_at.is_some_and(|at| now - at < INTERVAL) {
            return None;
        }
        self.checked_at = Some(now);
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
            SyncPace::Time(time) => (IDLE_TIME, time),
            SyncPace::Slow => {
                if end.0.saturating_sub(seen.from.0) >= SEGMENT_SIZE_BYTES {
                    (seen.from, seen.since) = (end, now);
                }
                (RECORD_IDLE_TIME, BUSY_TIME.1)
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

    /// Checks every 25 ms for some seconds, and returns when a sync was due, in ms. A due part is
    /// durable at the next check, after the given duration of a sync.
    fn dues(
        mut tail: LogTail,
        seconds: u64,
        took: Option<Duration>,
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

    /// A log's end is due to be synced once, a second after the last write. Under constant writes
    /// it is due every three seconds, whatever their volume; without writes never. With slow syncs
    /// it is due less often, but every ten seconds.
    #[test]
    fn what_is_written_is_due_each_three_seconds() {
        let dues = |seconds, took_ms, end_at: &dyn Fn(u64) -> u64| {
            let took = Some(Duration::from_millis(took_ms));
            dues(LogTail::to_sync(), seconds, took, end_at)
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

    /// A synced position is due to be recorded once, two seconds after the last sync. If little is
    /// synced all the time, it is due every ten seconds; if much is, never.
    #[test]
    fn idle_and_slow_ends_are_due_to_be_said() {
        let dues = |end_at: &dyn Fn(u64) -> u64| dues(LogTail::to_record(), 60, None, end_at);
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

    /// A sync that failed is retried a second later.
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
