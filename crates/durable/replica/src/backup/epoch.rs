//! The word that says whose a backup is (RP8, RP12).

use farleaf_fabric::Endpoint;

use super::Backup;
use crate::error::{Epoch, ReplicaError};

/// What became of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Swapped {
    /// It says what it was to say, and said less before.
    Now,
    /// It said so already, or more.
    Before(Epoch),
}

impl<E: Endpoint> Backup<E> {
    /// By CAS alone, as primaries look at it by CAS; what it was before.
    fn swap_epoch(&mut self, (from, to): (Epoch, Epoch)) -> Result<Epoch, ReplicaError> {
        self.batch.clear();
        let found = self.batch.compare_swap(self.layout.epoch(), from.0, to.0);
        self.execute()?;
        Ok(Epoch(self.batch.previous(found)))
    }

    /// Of words that were zeroed.
    pub(super) fn begin_epoch(&mut self) -> Result<(), ReplicaError> {
        match self.swap_epoch((Epoch(0), self.epoch))? {
            Epoch(0) => Ok(()),
            found => Err(self.fallen(found)),
        }
    }

    /// Changes the word to a later epoch, from whichever it has: its primary may have raised it.
    pub(super) fn swap_up_to(&mut self, to: Epoch) -> Result<Swapped, ReplicaError> {
        let mut from = self.epoch;
        loop {
            let found = self.swap_epoch((from, to))?;
            if found == from {
                return Ok(Swapped::Now);
            }
            if found >= to {
                return Ok(Swapped::Before(found));
            }
            if found < from {
                return Err(self.fallen(found));
            }
            // It rises with each turn, so there is an end.
            from = found;
        }
    }

    fn fallen(&self, found: Epoch) -> ReplicaError {
        ReplicaError::Failed {
            how: format!(
                "its memory says {found}, where it was to be {} or later",
                self.epoch
            ),
            is_no_room: false,
        }
    }

    /// Whose primary's it is: its primary may have raised the word (RP12).
    pub(super) fn current_epoch(&mut self) -> Result<Epoch, ReplicaError> {
        self.batch.clear();
        let slot = self.batch.read(self.layout.epoch(), 1);
        self.execute()?;
        let word = self.batch.words(slot).first().copied();
        Ok(self.epoch.max(Epoch(word.unwrap_or(0))))
    }

    /// RP12: goes on at a later epoch, at which its primary goes on, too: keeps all that it has,
    /// and from then on nothing that a primary of a lower epoch writes is acknowledged by that.
    /// Whichever of the two is raised first: until both are, nothing is acknowledged. One CAS of
    /// its own memory.
    ///
    /// It is for the same primary. For another one the sessions of this one are fenced (F6), and a
    /// [`Backup::new`] begins, which that primary fills.
    ///
    /// # Errors
    /// [`ReplicaError::NotLater`]: nothing was changed. [`ReplicaError::Failed`]: its memory.
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
