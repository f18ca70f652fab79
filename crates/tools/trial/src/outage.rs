//! A coordinator that can be out of reach.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_cluster::coordinator::{
    Coordinator, CoordinatorError, Embedded, KeepAlive, LeaseId, Revision, Snapshot, Transaction,
    TransactionOutcome, Watch,
};
use farleaf_cluster::ids::ClusterId;

/// How long a call takes that finds nobody.
const UNREACHED: Duration = Duration::from_millis(20);
/// How long nothing is heard from a watch at the most before it is asked whether it is cut.
const WATCH_PART: Duration = Duration::from_millis(20);

/// The way to an embedded coordinator, which can be cut. Clones are the same way; another one made
/// by [`way`](Self::way) is cut by itself. While it is cut nothing of what is asked is done.
#[derive(Clone, Debug)]
pub struct Outage {
    inner: Embedded,
    is_cut: Arc<AtomicBool>,
}

impl Outage {
    /// A way that is not cut.
    pub fn new(inner: Embedded) -> Self {
        Self {
            inner,
            is_cut: Arc::default(),
        }
    }

    /// Another way to the same one, which is cut by itself.
    #[must_use]
    pub fn way(&self) -> Self {
        Self::new(self.inner.clone())
    }

    /// Nobody is reached by this way any more.
    pub fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
    }

    /// Everybody is reached again.
    pub fn heal(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }

    /// The coordinator itself was away for so long, and is back: all leases have their whole time
    /// again (CP6). `while_away` is what happens meanwhile.
    pub fn away<T>(&self, while_away: impl FnOnce() -> T) -> T {
        self.cut();
        // Calls that are on their way come to an end.
        thread::sleep(UNREACHED);
        // What is alive stays so until it is back: it has no clock while it is away.
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
            how: "the way is cut".to_owned(),
        })
    }
}

impl Coordinator for Outage {
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
        let way = self.clone();
        Ok(Box::new(CutWatch { inner, way }))
    }

    fn expect(&self, cluster: ClusterId) {
        self.inner.expect(cluster);
    }
}

/// A watch over a way that can be cut.
struct CutWatch {
    inner: Box<dyn Watch>,
    way: Outage,
}

impl Watch for CutWatch {
    fn next(
        &mut self,
        timeout: Duration,
    ) -> Result<Vec<farleaf_cluster::coordinator::Event>, CoordinatorError> {
        let since = Instant::now();
        loop {
            self.way.check()?;
            let left = timeout.saturating_sub(since.elapsed());
            let events = self.inner.next(left.min(WATCH_PART))?;
            // What was seen right before a cut may still be told.
            if !events.is_empty() || since.elapsed() >= timeout {
                return Ok(events);
            }
        }
    }
}
