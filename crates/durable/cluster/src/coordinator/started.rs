//! A coordinator that records its start before it changes anything.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{
    Coordinator, CoordinatorError, KeepAlive, LeaseId, Revision, Snapshot, Transaction,
    TransactionOutcome, Watch,
};
use crate::error::ClusterError;
use crate::ids::ClusterId;
use crate::starts::begin_start;

/// The coordinator of this process. If the disk is too full for recording the start, it only reads
/// and keeps leases alive, and records the start before the first change. Without that record,
/// changes of this process could not be told from those of an earlier one.
#[derive(Debug)]
pub struct Started<C> {
    inner: C,
    is_recorded: Mutex<bool>,
}

impl<C: Coordinator> Started<C> {
    /// Records that the coordinator has started.
    ///
    /// # Errors
    /// The errors of [`begin_start`], except for a full disk.
    pub fn begin(inner: C) -> Result<Self, ClusterError> {
        let started = Self {
            inner,
            is_recorded: Mutex::new(false),
        };
        match started.record() {
            Err(ClusterError::Coordinator(error)) if error.is_out_of_space() => {
                tracing::error!(
                    "cannot record the start of the coordinator, so it grants no leases and makes \
                     no changes: {error}; free space on its disk"
                );
            }
            recorded => recorded?,
        }
        Ok(started)
    }

    fn record(&self) -> Result<(), ClusterError> {
        let is_recorded = self.is_recorded.lock();
        let mut is_recorded = is_recorded.unwrap_or_else(PoisonError::into_inner);
        if !*is_recorded {
            let nonce = begin_start(&self.inner)?;
            tracing::info!("recorded {nonce} of the coordinator");
            *is_recorded = true;
        }
        Ok(())
    }

    /// Ensures before each change that the start is recorded.
    fn ensure(&self) -> Result<(), CoordinatorError> {
        self.record().map_err(|error| match error {
            ClusterError::Coordinator(error) => error,
            other => CoordinatorError::Unavailable {
                name: "of this process".to_owned(),
                how: other.to_string(),
            },
        })
    }
}

impl<C: Coordinator> Coordinator for Started<C> {
    fn range(&self, prefix: &str) -> Result<Snapshot, CoordinatorError> {
        self.inner.range(prefix)
    }

    fn transact(&self, transaction: &Transaction) -> Result<TransactionOutcome, CoordinatorError> {
        self.ensure()?;
        self.inner.transact(transaction)
    }

    fn grant_lease(&self, time_to_live: Duration) -> Result<(LeaseId, Duration), CoordinatorError> {
        self.ensure()?;
        self.inner.grant_lease(time_to_live)
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<KeepAlive, CoordinatorError> {
        self.inner.keep_alive(lease)
    }

    fn revoke_lease(&self, lease: LeaseId) -> Result<(), CoordinatorError> {
        self.ensure()?;
        self.inner.revoke_lease(lease)
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, CoordinatorError> {
        self.inner.watch(prefix, after)
    }

    fn expect(&self, cluster: ClusterId) {
        self.inner.expect(cluster);
    }
}
