//! Continuing at a later epoch (REPLICATION-12), and stopping (REPLICATION-13).

use std::sync::Arc;

use farleaf_fabric::Endpoint;

use crate::all_connections::for_each;
use crate::error::{Epoch, ReplicaError, WriteFailure};
use crate::links::BackupLinks;
use crate::log_connection::LogConnectionError;

impl<E: Endpoint + Send> BackupLinks<E> {
    /// Continues at a later epoch with the same backups (REPLICATION-12). A thread that replicates,
    /// syncs or confirms holds the connections. So it comes either before, at the old epoch, or
    /// after, at the new one.
    pub(crate) fn raise(&self, to: Epoch) -> Result<(), ReplicaError> {
        let mut connections = self.connections();
        let own = self.epoch();
        if to <= own {
            return Err(ReplicaError::NotLater { own, given: to });
        }
        self.check_not_deposed(to)?;
        let failures = for_each(&mut connections, |sender, endpoint| {
            sender.raise(endpoint, to)
        });
        let mut deposed = None;
        for (backup, error) in failures {
            let is_deposed = matches!(error, LogConnectionError::Deposed(_));
            let error = self.note(backup, error);
            if is_deposed {
                deposed = Some(error);
            } else {
                // Writes at the new epoch wait until the backup is removed (REPLICATION-6).
                tracing::warn!(%error, "cannot reach a backup during an epoch change");
            }
        }
        if let Some(deposed) = deposed {
            return Err(deposed);
        }
        self.epoch_state.continue_at(to);
        // If the new epoch was found before, this primary itself had caused it.
        self.recompute_failure();
        drop(connections);
        Ok(())
    }

    /// Checks that no other primary has taken over; the new epoch `to` counts as this primary's
    /// own.
    fn check_not_deposed(&self, to: Epoch) -> Result<(), ReplicaError> {
        match &*self.failure() {
            Some(failure @ WriteFailure::Deposed { found, .. }) if *found != to => {
                Err(failure.clone().into())
            }
            _ => Ok(()),
        }
    }

    /// Stops acknowledging at epochs before this one (REPLICATION-13).
    pub(crate) fn stop(&self, before: Epoch) {
        self.epoch_state.stop(before);
    }

    /// Checks that the primary has not stopped (REPLICATION-13). An operation that took effect
    /// before this check may be acknowledged, however late the reply is sent.
    pub(crate) fn check_not_stopped(&self) -> Result<(), ReplicaError> {
        if self.epoch_state.is_stopped() {
            return Err(ReplicaError::Stopped);
        }
        Ok(())
    }

    /// Recomputes the failure that writes get, from the state of each backup.
    fn recompute_failure(&self) {
        let backup_entries = self.backup_entries();
        let lost = backup_entries.values().find_map(|it| {
            let how = it.lost()?.to_owned();
            Some(WriteFailure::Lost { backup: it.id, how })
        });
        *self.failure() = lost;
    }

    /// Returns the current epoch.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch_state.epoch()
    }

    /// Returns the shared epoch state, for a connection to a backup.
    pub(crate) fn epoch_state(&self) -> Arc<crate::epoch_state::EpochState> {
        Arc::clone(&self.epoch_state)
    }
}
