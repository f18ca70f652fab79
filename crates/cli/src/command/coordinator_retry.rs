//! Retries requests to a coordinator that is unavailable for a moment, such as during a restart,
//! and informs the user.

use std::fmt::Display;
use std::thread;
use std::time::{Duration, Instant};

use farleaf::persistent::SharedCoordinator;
use farleaf_cluster::coordinator::{
    Coordinator, CoordinatorError, KeepAlive, LeaseId, Revision, Snapshot, Transaction,
    TransactionOutcome, Watch,
};
use farleaf_cluster::ids::ClusterId;

use crate::log::say;

/// Default time to retry, in seconds.
pub(super) const PATIENCE_DEFAULT_S: u32 = 5;

/// Time between two attempts.
const REST: Duration = Duration::from_millis(200);

/// Retries until there is a reply, a permanent error, or a timeout; then returns the last error.
/// Prints once what it waits for.
pub(super) fn ask_with_retries<T, E: Display>(
    name: &str,
    patience: Duration,
    is_away: impl Fn(&E) -> bool,
    ask: impl Fn() -> Result<T, E>,
) -> Result<T, E> {
    let since = Instant::now();
    let mut is_reported = false;
    loop {
        match ask() {
            Err(error) if is_away(&error) && since.elapsed() < patience => {
                if !is_reported {
                    say(format_args!(
                        "waiting up to {} s for the coordinator {name}: {error}",
                        patience.as_secs()
                    ));
                    is_reported = true;
                }
                thread::sleep(REST);
            }
            result => return result,
        }
    }
}

/// Coordinator that retries requests that could not be sent. Changes that may already have taken
/// effect are not retried (CONTROL-5); the error says so.
pub(super) struct RetryingCoordinator {
    inner: SharedCoordinator,
    patience: Duration,
}

impl RetryingCoordinator {
    /// Wraps a coordinator and keeps its name.
    pub(super) fn shared(inner: SharedCoordinator, patience: Duration) -> SharedCoordinator {
        let name = inner.name().to_owned();
        SharedCoordinator::new(Self { inner, patience }, &name)
    }

    fn ask<T>(
        &self,
        ask: impl Fn(&SharedCoordinator) -> Result<T, CoordinatorError>,
    ) -> Result<T, CoordinatorError> {
        let is_away = |error: &_| matches!(error, CoordinatorError::Unavailable { .. });
        ask_with_retries(self.inner.name(), self.patience, is_away, || {
            ask(&self.inner)
        })
    }
}

impl Coordinator for RetryingCoordinator {
    fn range(&self, prefix: &str) -> Result<Snapshot, CoordinatorError> {
        self.ask(|inner| inner.range(prefix))
    }

    fn transact(&self, transaction: &Transaction) -> Result<TransactionOutcome, CoordinatorError> {
        self.ask(|inner| inner.transact(transaction))
    }

    fn grant_lease(&self, time_to_live: Duration) -> Result<(LeaseId, Duration), CoordinatorError> {
        self.ask(|inner| inner.grant_lease(time_to_live))
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<KeepAlive, CoordinatorError> {
        self.inner.keep_alive(lease)
    }

    fn revoke_lease(&self, lease: LeaseId) -> Result<(), CoordinatorError> {
        self.inner.revoke_lease(lease)
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, CoordinatorError> {
        self.ask(|inner| inner.watch(prefix, after))
    }

    fn expect(&self, cluster: ClusterId) {
        self.inner.expect(cluster);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Promise: a request to an unavailable coordinator is retried until it replies, and no longer
    /// than the timeout. An error of another kind is returned at once.
    #[test]
    fn unavailable_coordinators_are_asked_again() {
        let count = Cell::new(0);
        let ask = |answers_at: u32, patience_ms, error: &'static str| {
            count.set(0);
            let patience = Duration::from_millis(patience_ms);
            ask_with_retries(
                "c",
                patience,
                |error| *error == "away",
                || {
                    count.set(count.get() + 1);
                    if count.get() < answers_at {
                        return Err(error);
                    }
                    Ok(count.get())
                },
            )
        };
        assert_eq!(ask(3, 60_000, "away"), Ok(3));
        assert_eq!(ask(u32::MAX, 300, "away"), Err("away"));
        assert!((2..=3).contains(&count.get()), "{}", count.get());
        assert_eq!(ask(3, 60_000, "no"), Err("no"));
        assert_eq!(count.get(), 1);
        assert_eq!(ask(3, 0, "away"), Err("away"));
    }
}
