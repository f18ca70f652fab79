//! When a run begins and ends, as all threads see it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Not yet known.
const UNKNOWN: u64 = u64::MAX;

/// The clock of a run. Times are nanoseconds since its beginning.
#[derive(Debug)]
pub(super) struct Clock {
    begun: OnceLock<Instant>,
    interval_ns: u64,
    settle_ns: u64,
    /// Threads that have something to write.
    writing_count: AtomicUsize,
    written_ns: AtomicU64,
    stop_ns: AtomicU64,
}

impl Clock {
    pub(super) fn new(thread_count: usize, interval: Duration, settle: Duration) -> Self {
        Self {
            begun: OnceLock::new(),
            interval_ns: interval.as_nanos() as u64,
            settle_ns: settle.as_nanos() as u64,
            writing_count: AtomicUsize::new(thread_count),
            written_ns: AtomicU64::new(UNKNOWN),
            stop_ns: AtomicU64::new(UNKNOWN),
        }
    }

    /// When it began: now, if nobody has asked before.
    pub(super) fn begun(&self) -> Instant {
        *self.begun.get_or_init(Instant::now)
    }

    pub(super) fn interval_ns(&self) -> u64 {
        self.interval_ns
    }

    /// A thread has nothing more to write. The last one decides when all stop.
    pub(super) fn has_written(&self, now_ns: u64) {
        if self.writing_count.fetch_sub(1, SeqCst) > 1 {
            return;
        }
        self.written_ns.store(now_ns, SeqCst);
        let settled_ns = (now_ns + self.settle_ns).max(1);
        let stop_ns = settled_ns.next_multiple_of(self.interval_ns);
        // Whoever has abandoned the run is not overruled.
        let _ = self
            .stop_ns
            .compare_exchange(UNKNOWN, stop_ns, SeqCst, SeqCst);
    }

    /// When the last write was done; `None` while something is to be written.
    #[inline]
    pub(super) fn written_ns(&self) -> Option<u64> {
        let written_ns = self.written_ns.load(SeqCst);
        (written_ns != UNKNOWN).then_some(written_ns)
    }

    /// Whether it is time to stop.
    #[inline]
    pub(super) fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.stop_ns.load(SeqCst)
    }

    /// Everybody stops: a thread has failed.
    pub(super) fn abandon(&self) {
        self.stop_ns.store(0, SeqCst);
    }

    /// The interval in which something ended; not behind the last one.
    #[inline]
    pub(super) fn interval_at(&self, now_ns: u64) -> u64 {
        let last = (self.stop_ns.load(SeqCst) / self.interval_ns).saturating_sub(1);
        (now_ns / self.interval_ns).min(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the last thread to write decides, intervals are whole, and what ends late belongs
    /// to the last one.
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

    /// Promise: without time to settle the interval of the last write is the last one; a run that
    /// was abandoned stays so.
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
