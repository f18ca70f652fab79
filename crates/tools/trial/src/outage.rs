//! Coordinator that can become unreachable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_cluster::coordinator::{
    Coordinator, CoordinatorError, Embedded, KeepAlive, LeaseId, Revision, Snapshot, Transaction,
    TransactionOutcome, Watch,
};
use farleaf_cluster::ids::ClusterId;

/// Duration of a call that fails because the coordinator is unreachable.
const UNREACHED: Duration = Duration::from_millis(20);
/// Longest time for which a watch waits before it checks whether it is cut off.
const WATCH_PART: Duration = Duration::from_millis(20);

/// Connection to an embedded coordinator that can be cut. Clones are the same connection.
/// While it is cut, its requests have no effect.
#[derive(Clone, Debug)]
pub struct CuttableCoordinator {
    inner: Embedded,
    is_cut: Arc<AtomicBool>,
}

impl CuttableCoordinator {
    /// Creates a working connection.
    pub fn new(inner: Embedded) -> Self {
        Self {
            inner,
            is_cut: Arc::default(),
        }
    }

    /// Cuts the connection.
    pub fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
    }

    /// Restores the connection.
    pub fn heal(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }

    /// Simulates an outage of the coordinator itself while `while_away` runs. Afterwards all leases
    /// have their full duration again (CONTROL-6).
    pub fn away<T>(&self, while_away: impl FnOnce() -> T) -> T {
        self.cut();
        // Lets calls in flight end.
        thread::sleep(UNREACHED);
        // Leases that are alive stay so during the outage, because the coordinator's clock stands
        // still.
        self.inner.renew_all_leases_after(Duration::from_hours(1));
        let answer = while_away();
        self.inner.renew_all_leases_after(Duration::ZERO);
        self.heal();
        answer
    }

    fn check(&self) -> Result<(), CoordinatorError> {
        if !self.is_cut.load(Ordering::SeqCst) {
            return Ok(());
        }
        thread::sleep(UNREACHED);
        Err(CoordinatorError::Unavailable {
            name: "of the trial".to_owned(),
            how: "the connection is cut".to_owned(),
        })
    }
}

impl Coordinator for CuttableCoordinator {
    fn range(&self, prefix: &str) -> Result<Snapshot, CoordinatorError> {
        self.check()?;
        self.inner.range(prefix)
    }

    fn transact(&self, transaction: &Transaction) -> Result<TransactionOutcome, CoordinatorError> {
        self.check()?;
        self.inner.transact(transaction)
    }

    fn grant_lease(&self, time_to_live: Duration) -> Result<(LeaseId, Duration), CoordinatorError> {
        self.check()?;
        self.inner.grant_lease(time_to_live)
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<KeepAlive, CoordinatorError> {
        self.check()?;
        self.inner.keep_alive(lease)
    }

    fn revoke_lease(&self, lease: LeaseId) -> Result<(), CoordinatorError> {
        self.check()?;
        self.inner.revoke_lease(lease)
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, CoordinatorError> {
        self.check()?;
        let inner = self.inner.watch(prefix, after)?;
        let connection = self.clone();
        Ok(Box::new(CutWatch { inner, connection }))
    }

    fn expect(&self, cluster: ClusterId) {
        self.inner.expect(cluster);
    }
}

/// Watch over a connection that can be cut.
struct CutWatch {
    inner: Box<dyn Watch>,
    connection: CuttableCoordinator,
}

impl Watch for CutWatch {
    fn next(
        &mut self,
        timeout: Duration,
    ) -> Result<Vec<farleaf_cluster::coordinator::Event>, CoordinatorError> {
        let since = Instant::now();
        loop {
            self.connection.check()?;
            let left = timeout.saturating_sub(since.elapsed());
            let events = self.inner.next(left.min(WATCH_PART))?;
            // Events seen right before a cut may still be returned.
            if !events.is_empty() || since.elapsed() >= timeout {
                return Ok(events);
            }
        }
    }
}
