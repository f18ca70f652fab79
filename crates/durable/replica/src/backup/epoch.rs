//! The epoch word in a backup's memory (REPLICATION-8, REPLICATION-12).

use farleaf_fabric::Endpoint;

use super::Backup;
use crate::error::{Epoch, ReplicaError};

/// Result of raising the epoch word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RaiseOutcome {
    /// The word had a lower epoch and now has the requested one.
    Now,
    /// The word already had the requested epoch or a higher one.
    Before(Epoch),
}

impl<E: Endpoint> Backup<E> {
    /// Changes the word by CAS, since primaries use CAS on it, too. Returns its previous value.
    fn swap_epoch(&mut self, from: Epoch, to: Epoch) -> Result<Epoch, ReplicaError> {
        self.batch.clear();
        let found = self.batch.compare_swap(self.layout.epoch(), from.0, to.0);
        self.execute()?;
        Ok(Epoch(self.batch.previous(found)))
    }

    /// Sets the first epoch in zeroed words.
    pub(super) fn begin_epoch(&mut self) -> Result<(), ReplicaError> {
        match self.swap_epoch(Epoch(0), self.epoch)? {
            Epoch(0) => Ok(()),
            found => Err(self.fallen(found)),
        }
    }

    /// Raises the word to a later epoch, whatever epoch it has: the primary may have raised it.
    pub(super) fn swap_up_to(&mut self, to: Epoch) -> Result<RaiseOutcome, ReplicaError> {
        let mut from = self.epoch;
        loop {
            let found = self.swap_epoch(from, to)?;
            if found == from {
                return Ok(RaiseOutcome::Now);
            }
            if found >= to {
                return Ok(RaiseOutcome::Before(found));
            }
            if found < from {
                return Err(self.fallen(found));
            }
            // The epoch rises with each iteration, so the loop ends.
            from = found;
        }
    }

    fn fallen(&self, found: Epoch) -> ReplicaError {
        ReplicaError::Failed {
            how: format!("its memory holds {found}, expected {} or later", self.epoch),
            is_out_of_space: false,
        }
    }

    /// Returns the epoch of the word, which the primary may have raised (REPLICATION-12).
    pub(super) fn current_epoch(&mut self) -> Result<Epoch, ReplicaError> {
        self.batch.clear();
        let slot = self.batch.read(self.layout.epoch(), 1);
        self.execute()?;
        let word = self.batch.words(slot).first().copied();
        Ok(self.epoch.max(Epoch(word.unwrap_or(0))))
    }

    /// Continues at a later epoch of the same primary and keeps all data (REPLICATION-12).
    ///
    /// From then on, nothing that a primary of a lower epoch writes is acknowledged. Backup and
    /// primary may be raised in either order; until both are, nothing is acknowledged. Costs one
    /// CAS of the backup's own memory.
    ///
    /// For a different primary, the sessions of the old one must be fenced (FABRIC-6). The new
    /// primary then fills a new [`Backup::new`].
    ///
    /// # Errors
    /// - [`ReplicaError::NotLater`]: nothing was changed.
    /// - [`ReplicaError::Failed`]: the backup's memory failed.
    pub fn raise(&mut self, epoch: Epoch) -> Result<(), ReplicaError> {
        if epoch <= self.epoch {
            return Err(ReplicaError::NotLater {
                own: self.epoch,
                given: epoch,
            });
        }
        self.swap_up_to(epoch)?;
        self.epoch = epoch;
        Ok(())
    }
}
