//! Clock of a run: its beginning and end, for all threads.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Not known yet.
const UNKNOWN: u64 = u64::MAX;

/// Clock of a run. Times are nanoseconds since its beginning.
#[derive(Debug)]
pub(super) struct Clock {
    start_instant: OnceLock<Instant>,
    interval_ns: u64,
    settle_ns: u64,
    /// Number of threads that still have writes to do.
    writing_count: AtomicUsize,
    written_ns: AtomicU64,
    stop_ns: AtomicU64,
}

impl Clock {
    pub(super) fn new(thread_count: usize, interval: Duration, settle: Duration) -> Self {
        Self {
            start_instant: OnceLock::new(),
            interval_ns: interval.as_nanos() as u64,
            settle_ns: settle.as_nanos() as u64,
            writing_count: AtomicUsize::new(thread_count),
            written_ns: AtomicU64::new(UNKNOWN),
            stop_ns: AtomicU64::new(UNKNOWN),
        }
    }

    /// Returns the beginning of the run: now, at the first call.
    pub(super) fn start_instant(&self) -> Instant {
        *self.start_instant.get_or_init(Instant::now)
    }

    pub(super) fn interval_ns(&self) -> u64 {
        self.interval_ns
    }

    /// Records that a thread has no more writes. The last thread decides when all stop.
    pub(super) fn has_written(&self, now_ns: u64) {
        if self.writing_count.fetch_sub(1, SeqCst) > 1 {
            return;
        }
        self.written_ns.store(now_ns, SeqCst);
        let settled_ns = (now_ns + self.settle_ns).max(1);
        let stop_ns = settled_ns.next_multiple_of(self.interval_ns);
        // The end of an abandoned run does not change.
        let _ = self
            .stop_ns
            .compare_exchange(UNKNOWN, stop_ns, SeqCst, SeqCst);
    }

    /// Returns when the last write was done; `None` while writes are left.
    #[inline]
    pub(super) fn written_ns(&self) -> Option<u64> {
        let written_ns = self.written_ns.load(SeqCst);
        (written_ns != UNKNOWN).then_some(written_ns)
    }

    /// Returns whether it is time to stop.
    #[inline]
    pub(super) fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.stop_ns.load(SeqCst)
    }

    /// Stops all threads: one has failed.
    pub(super) fn abandon(&self) {
        self.stop_ns.store(0, SeqCst);
    }

    /// Returns the interval in which an operation ended, at most the last one.
    #[inline]
    pub(super) fn interval_at(&self, now_ns: u64) -> u64 {
        let last = (self.stop_ns.load(SeqCst) / self.interval_ns).saturating_sub(1);
        (now_ns / self.interval_ns).min(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the last writing thread decides, intervals are whole, and operations that end late
    /// belong to the last one.
    #[test]
    fn intervals_are_whole() {
        let clock = Clock::new(2, Duration::from_nanos(100), Duration::from_nanos(250));
        clock.has_written(30);
        assert_eq!((clock.written_ns(), clock.is_over(1 << 60)), (None, false));
        clock.has_written(170);
        assert_eq!(clock.written_ns(), Some(170));
        assert!(
            !clock.is_over(499) && clock.is_over(500),
            "170 + 250, whole"
        );
        assert_eq!(
            [99, 100, 499, 777].map(|at| clock.interval_at(at)),
            [0, 1, 4, 4]
        );
    }

    /// Promise: without settling time, the interval of the last write is the last one. An abandoned
    /// run stays abandoned.
    #[test]
    fn the_last_write_is_in_an_interval() {
        let clock = Clock::new(1, Duration::from_nanos(100), Duration::ZERO);
        clock.has_written(0);
        assert!(!clock.is_over(99) && clock.is_over(100));
        let clock = Clock::new(1, Duration::from_nanos(100), Duration::ZERO);
        clock.abandon();
        clock.has_written(10);
        assert!(clock.is_over(0));
    }
}
