//! Clocks: how much time has passed, not what time it is.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A clock that never goes back. Two clocks have nothing to do with each other, but that their
/// rates differ by no more than was agreed on (CP9).
pub trait Clock: Debug + Send + Sync {
    /// The time since a moment that stays the same for this clock.
    fn now(&self) -> Duration;
}

/// The time since the machine started, which goes on while it sleeps: a lease does, too.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        let time = clock_gettime(ClockId::Boottime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

/// A clock that stands still until it is moved. Clones are the same clock.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    now_ns: Arc<AtomicU64>,
}

impl ManualClock {
    /// A clock that shows 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves it on.
    pub fn advance(&self, by: Duration) {
        self.now_ns
            .fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }

    /// Has it show this, if that is later than what it shows.
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

    /// The system's clock goes forward, by about as much as one waits.
    #[test]
    fn the_system_clock_goes_on() {
        let before = SystemClock.now();
        std::thread::sleep(Duration::from_millis(5));
        assert!(SystemClock.now() >= before + Duration::from_millis(4));
    }

    /// A manual clock stands, moves, and never goes back.
    #[test]
    fn a_manual_clock_moves_when_it_is_told_to() {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(2));
        clock.set(Duration::from_secs(1));
        assert_eq!(clock.now(), Duration::from_secs(2));
    }
}
