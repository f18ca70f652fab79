//! Time for which a process may act on a lease, by its own clock (CONTROL-9, CONTROL-10).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::ClusterError;
use farleaf_base::clock::Clock;

/// Longest lease: a day. Readers refuse records with a longer one.
pub(crate) const LEASE_TIME_MAX: Duration = Duration::from_hours(24);

/// Parameters of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// Length of a lease: a server that does not renew it counts as lost after this time.
    pub time_to_live: Duration,
    /// Greatest error of the server's and the coordinator's clock rates, in thousandths.
    pub clock_error_per_mille: u32,
    /// Additional time that is left unused.
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
    /// Checks that a server can register with such leases, before it does anything.
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

    /// Returns for how long after its request a lease may be used, if the own clock is slow and the
    /// coordinator's is fast (CONTROL-9).
    pub fn usable(&self, time_to_live: Duration) -> Duration {
        let error = self.clock_error_per_mille.min(999);
        let usable = time_to_live * (1000 - error) / (1000 + error);
        usable.saturating_sub(self.margin)
    }

    /// Returns the time after which a lease without keep-alives is certainly over, even if the
    /// coordinator is busy and renews all leases once meanwhile (CONTROL-6).
    pub fn surely_over(&self, time_to_live: Duration) -> Duration {
        const ELECTION: Duration = Duration::from_secs(1);
        let error = self.clock_error_per_mille.min(999);
        time_to_live * 2 * (1000 + error) / (1000 - error) + ELECTION
    }

    /// Returns the interval of keep-alives: three attempts fit into the usable time.
    pub fn keep_alive_interval(&self) -> Duration {
        self.usable(self.time_to_live) / 4
    }
}

/// Tells whether a life of a server certainly continues. Clones share their state.
///
/// A guard belongs to one life and fails forever once that is over.
#[derive(Clone, Debug)]
pub struct LeaseGuard {
    clock: Arc<dyn Clock>,
    /// End of the usable time by that clock; 0 if the life is over.
    usable_until_ns: Arc<AtomicU64>,
}

impl LeaseGuard {
    /// Creates a guard that holds until `usable_until` by this clock.
    pub(crate) fn new(clock: Arc<dyn Clock>, usable_until: Duration) -> Self {
        let guard = Self {
            clock,
            usable_until_ns: Arc::new(AtomicU64::new(0)),
        };
        guard.extend(usable_until);
        guard
    }

    /// Returns whether operations that took effect before this call may be acknowledged, and their
    /// reads answered (CONTROL-10). Costs one clock access and no lock.
    pub fn may_acknowledge(&self) -> bool {
        // Relaxed: the word depends on no other data, and an older value is an earlier end.
        let until = self.usable_until_ns.load(Ordering::Relaxed);
        self.clock.now().as_nanos() < u128::from(until)
    }

    /// Returns until when the guard holds, by its clock.
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
    use farleaf_base::clock::ManualClock;

    /// Even with a slow server's clock and a fast coordinator's, a lease is not used longer than
    /// the coordinator keeps it (CONTROL-9), for every clock error.
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

    /// A guard holds until its time, can be extended, and ends for good.
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

    /// A lease shorter than the margin is never usable, and is not an error.
    #[test]
    fn a_short_lease_is_never_usable() {
        let terms = LeaseTerms::default();
        assert_eq!(terms.usable(Duration::from_millis(50)), Duration::ZERO);
    }

    /// A lease that a server's record cannot have is refused where it is configured, and the error
    /// has its length; a day is accepted.
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
