//! A coordinator of any kind, behind a shared pointer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Coordinator, CoordinatorError, KeepAlive, LeaseId, Revision, Snapshot, Transaction,
    TransactionOutcome, Watch,
};
use crate::ids::ClusterId;

/// A coordinator of any kind. Clones share it.
#[derive(Clone)]
pub struct SharedCoordinator {
    inner: Arc<dyn Coordinator>,
    name: Arc<str>,
}

impl SharedCoordinator {
    /// Wraps a coordinator; `name` is used in messages.
    pub fn new(inner: impl Coordinator + 'static, name: &str) -> Self {
        Self {
            inner: Arc::new(inner),
            name: name.into(),
        }
    }

    /// Returns the name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for SharedCoordinator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)
    }
}

impl Coordinator for SharedCoordinator {
    fn range(&self, prefix: &str) -> Result<Snapshot, CoordinatorError> {
        self.inner.range(prefix)
    }

    fn transact(&self, transaction: &Transaction) -> Result<TransactionOutcome, CoordinatorError> {
        self.inner.transact(transaction)
    }

    fn grant_lease(&self, time_to_live: Duration) -> Result<(LeaseId, Duration), CoordinatorError> {
        self.inner.grant_lease(time_to_live)
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<KeepAlive, CoordinatorError> {
        self.inner.keep_alive(lease)
    }

    fn revoke_lease(&self, lease: LeaseId) -> Result<(), CoordinatorError> {
        self.inner.revoke_lease(lease)
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, CoordinatorError> {
        self.inner.watch(prefix, after)
    }

    fn expect(&self, cluster: ClusterId) {
        self.inner.expect(cluster);
    }
}
