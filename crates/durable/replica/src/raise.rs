//! A primary goes on at a later epoch (RP12), or stops (RP13).

use std::sync::Arc;

use farleaf_fabric::Endpoint;

use crate::error::{Epoch, Failure, ReplicaError};
use crate::links::{Links, for_each};
use crate::log_way::WayError;

impl<E: Endpoint + Send> Links<E> {
    /// RP12: goes on at a later epoch with the same backups. Whoever replicates, syncs or confirms
    /// has the ways, so that is before, at the old epoch, or behind, at the new one.
    pub(crate) fn raise(&self, to: Epoch) -> Result<(), ReplicaError> {
        let stops = self.standing.stops();
        let mut ways = self.ways();
        let own = self.epoch();
        if to <= own {
            return Err(ReplicaError::NotLater { own, given: to });
        }
        self.check_can_be(to)?;
        let failures = for_each(&mut ways, |sender, endpoint| sender.raise(endpoint, to));
        let mut deposed = None;
        for (backup, error) in failures {
            let is_deposed = matches!(error, WayError::Deposed(_));
            let error = self.note((backup, error));
            if is_deposed {
                deposed = Some(error);
            } else {
                // RP6: writes wait for it to be removed, at the new epoch.
                tracing::warn!(%error, "a backup was not reached when its primary went on");
            }
        }
        if let Some(deposed) = deposed {
            return Err(deposed);
        }
        self.standing.go_on(to, stops);
        // What was found at the new epoch before was this primary's own.
        self.settle_failure();
        drop(ways);
        Ok(())
    }

    /// That nobody has taken over, or whoever was found to have done so is this primary itself.
    fn check_can_be(&self, to: Epoch) -> Result<(), ReplicaError> {
        match &*self.failure() {
            Some(failure @ Failure::Deposed { found, .. }) if *found != to => {
                Err(failure.clone().into())
            }
            _ => Ok(()),
        }
    }

    /// RP13: acknowledges nothing more.
    pub(crate) fn stop(&self) {
        self.standing.stop();
    }

    /// RP13: that it has not stopped. Who looks when something has taken effect may acknowledge it,
    /// however late that comes.
    pub(crate) fn check_goes_on(&self) -> Result<(), ReplicaError> {
        if self.standing.is_stopped() {
            return Err(ReplicaError::Stopped);
        }
        Ok(())
    }

    /// What writes wait for, by what is known of each backup.
    fn settle_failure(&self) {
        let members = self.members();
        let lost = members.values().find_map(|it| {
            let how = it.lost()?.to_owned();
            Some(Failure::Lost { backup: it.id, how })
        });
        *self.failure() = lost;
    }

    /// The epoch that it is of now.
    pub(crate) fn epoch(&self) -> Epoch {
        self.standing.epoch()
    }

    /// For a way to a backup.
    pub(crate) fn standing(&self) -> Arc<crate::standing::Standing> {
        Arc::clone(&self.standing)
    }
}
