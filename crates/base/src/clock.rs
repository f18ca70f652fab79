//! Clocks that measure elapsed time, not the time of day.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Clock that never goes back. The readings of two clocks are unrelated, but their rates differ by
/// at most the agreed bound (CONTROL-9).
pub trait Clock: Debug + Send + Sync {
    /// Returns the time since a moment that is fixed for this clock.
    fn now(&self) -> Duration;
}

/// Clock of the time since the machine started, including sleep, because leases also end during
/// sleep.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        let time = clock_gettime(ClockId::Boottime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

/// Clock that changes only on request. Clones share one reading.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    now_ns: Arc<AtomicU64>,
}

impl ManualClock {
    /// Returns a clock that reads 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Advances the clock by a duration.
    pub fn advance(&self, by: Duration) {
        self.now_ns
            .fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }

    /// Sets the clock to `now` unless it is already later.
    pub fn set(&self, now: Duration) {
        self.now_ns
            .fetch_max(now.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now_ns.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the system's clock advances by about the time waited.
    #[test]
    fn the_system_clock_goes_on() {
        let before = SystemClock.now();
        std::thread::sleep(Duration::from_millis(5));
        assert!(SystemClock.now() >= before + Duration::from_millis(4));
    }

    /// Promise: a manual clock advances only on request and never goes back.
    #[test]
    fn a_manual_clock_moves_when_it_is_told_to() {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(2));
        clock.set(Duration::from_secs(1));
        assert_eq!(clock.now(), Duration::from_secs(2));
    }
}
