//! How long one may act on a lease that the coordinator keeps, by one's own clock (CP9, CP10).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Clock;
use crate::error::ClusterError;

/// No lease is longer: a day. A record that says so is refused by whoever reads it.
pub(crate) const LEASE_TIME_MAX: Duration = Duration::from_hours(24);

/// What is agreed on about leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// How long a lease is: a server that is gone is taken for lost after as much.
    pub time_to_live: Duration,
    /// By how much a clock may be faster or slower than true time, in thousandths: the server's and
    /// the coordinator's.
    pub clock_error_per_mille: u32,
    /// What is left unused besides.
    pub margin: Duration,
}

impl Default for LeaseTerms {
    fn default() -> Self {
        Self {
            time_to_live: Duration::from_secs(10),
            clock_error_per_mille: 10,
            margin: Duration::from_millis(100),
        }
    }
}

impl LeaseTerms {
    /// Whether a server can register with such leases, before it does anything.
    ///
    /// # Errors
    /// [`ClusterError::LeaseTooLong`]: longer than a day.
    pub fn check(&self) -> Result<(), ClusterError> {
        if self.time_to_live > LEASE_TIME_MAX {
            let lease = self.time_to_live;
            return Err(ClusterError::LeaseTooLong { lease });
        }
        Ok(())
    }

    /// For how long after it was asked for a lease of this length may be acted on, by a clock that
    /// may be slow while the coordinator's is fast (CP9).
    pub fn usable(&self, time_to_live: Duration) -> Duration {
        let error = self.clock_error_per_mille.min(999);
        let usable = time_to_live * (1000 - error) / (1000 + error);
        usable.saturating_sub(self.margin)
    }

    /// A lease of this length that nobody keeps alive is over after so long, though the
    /// coordinator gives all of them their whole time again once meanwhile (CP6), and is busy.
    pub fn surely_over(&self, time_to_live: Duration) -> Duration {
        const ELECTION: Duration = Duration::from_secs(1);
        let error = self.clock_error_per_mille.min(999);
        time_to_live * 2 * (1000 + error) / (1000 - error) + ELECTION
    }

    /// How often a lease is asked to go on: three tries fit into the time in which it is usable.
    pub fn keep_alive_interval(&self) -> Duration {
        self.usable(self.time_to_live) / 4
    }
}

/// Whether a life of a server surely goes on. Clones are the same guard.
///
/// One belongs to one life: when that is over, it says no for ever.
#[derive(Clone, Debug)]
pub struct LeaseGuard {
    clock: Arc<dyn Clock>,
    /// By that clock; 0: over.
    usable_until_ns: Arc<AtomicU64>,
}

impl LeaseGuard {
    /// One that says yes until `usable_until` by this clock.
    pub(crate) fn new(clock: Arc<dyn Clock>, usable_until: Duration) -> Self {
        let guard = Self {
            clock,
            usable_until_ns: Arc::new(AtomicU64::new(0)),
        };
        guard.extend(usable_until);
        guard
    }

    /// Whether what has taken effect before this call may be acknowledged, and what was read before
    /// it may be answered (CP10). One look at a clock, no lock.
    pub fn may_acknowledge(&self) -> bool {
        // Relaxed: the word stands for itself, and an older value of it is an earlier end.
        let until = self.usable_until_ns.load(Ordering::Relaxed);
        self.clock.now().as_nanos() < u128::from(until)
    }

    /// Until when it says yes, by its clock.
    pub fn usable_until(&self) -> Duration {
        Duration::from_nanos(self.usable_until_ns.load(Ordering::Relaxed))
    }

    pub(crate) fn extend(&self, usable_until: Duration) {
        let nanoseconds = u64::try_from(usable_until.as_nanos()).unwrap_or(u64::MAX);
        self.usable_until_ns
            .fetch_max(nanoseconds, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.usable_until_ns.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    /// A slow server's clock and a fast coordinator's together never let a lease be used longer
    /// than the coordinator keeps it (CP9), for every error.
    #[test]
    fn a_lease_is_not_used_longer_than_it_is_kept() {
        for error in [0_u32, 1, 10, 50, 200] {
            let terms = LeaseTerms {
                clock_error_per_mille: error,
                margin: Duration::ZERO,
                ..LeaseTerms::default()
            };
            let kept_true_ns = 10e9 / (1.0 + f64::from(error) / 1000.0);
            let used = terms.usable(Duration::from_secs(10)).as_nanos() as f64;
            let used_true_ns = used / (1.0 - f64::from(error) / 1000.0);
            assert!(used_true_ns <= kept_true_ns + 1.0, "with {error} per mille");
            assert!(
                used_true_ns > kept_true_ns * 0.999,
                "with {error} per mille"
            );
        }
    }

    /// A guard says yes until its time, can be given more, and is over for good.
    #[test]
    fn a_guard_says_no_when_its_time_is_over() {
        let clock = ManualClock::new();
        let guard = LeaseGuard::new(Arc::new(clock.clone()), Duration::from_secs(1));
        assert!(guard.may_acknowledge());
        clock.set(Duration::from_secs(1));
        assert!(!guard.may_acknowledge());
        guard.extend(Duration::from_secs(2));
        assert!(guard.may_acknowledge());
        guard.end();
        assert!(!guard.may_acknowledge());
    }

    /// A lease that is shorter than the margin is of no use, and no error.
    #[test]
    fn a_short_lease_is_never_usable() {
        let terms = LeaseTerms::default();
        assert_eq!(terms.usable(Duration::from_millis(50)), Duration::ZERO);
    }

    /// Promise: a lease that the record of a server cannot name is refused where it is set, with
    /// how long it is; a day is none of these.
    #[test]
    fn a_lease_of_more_than_a_day_is_refused() {
        let mut terms = LeaseTerms {
            time_to_live: LEASE_TIME_MAX,
            ..LeaseTerms::default()
        };
        assert!(terms.check().is_ok());
        terms.time_to_live += Duration::from_millis(1);
        let error = terms.check().expect_err("it is too long").to_string();
        assert!(error.contains("86400.001s"), "{error}");
    }
}
