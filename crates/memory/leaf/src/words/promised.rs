//! Locks a leaf that another session of the process may have handed over (see
//! [`local_locks`](crate::words::local_locks)).

use core::cell::Cell;

use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_executor::backoff;
use farleaf_fabric::{Batch, Endpoint};

use crate::words::Critical;
use crate::words::LeafError;
use crate::words::access::{LOCK_ATTEMPT_COUNT_PER_LIVENESS_CHECK, LeafAccess};
use crate::words::image::{LeafBuffer, LeafImage};

/// Outcome of a promised lock.
enum PromiseOutcome {
    /// This session holds the lock, and the leaf is intact.
    Held,
    /// This session does not hold the lock, and the promise will not be kept any more.
    Void,
    /// The promise is void because the promiser is fenced, and its leaf cannot be recovered.
    Unrecovered(LeafError),
}

impl<E: Endpoint> LeafAccess<'_, E> {
    /// Locks like [`lock`](Self::lock), after another session of the process promised this lock in
    /// a batch that may or may not take effect. Until that is known, this is critical time: an
    /// interrupted session is broken. If the promise turns out void, the operation waits as others
    /// do.
    ///
    /// # Errors
    /// As for [`lock`](Self::lock).
    pub async fn lock_promised(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        promiser: OwnerWord,
        leaf: &mut LeafBuffer,
        broken: &Cell<bool>,
    ) -> Result<(), LeafError> {
        let critical = Critical::enter(broken);
        match self
            .promise_outcome(batch, addr, promiser, leaf, broken)
            .await
        {
            Ok(promise_outcome) => {
                critical.passed();
                match promise_outcome {
                    PromiseOutcome::Held => Ok(()),
                    PromiseOutcome::Void => self.lock(batch, addr, None, leaf, broken).await,
                    PromiseOutcome::Unrecovered(error) => Err(error),
                }
            }
            Err(error) => {
                // A lock that is lost with its node blocks nobody.
                if error.lost_node() == Some(addr.node()) {
                    critical.passed();
                }
                Err(error)
            }
        }
    }

    /// Reads the lock word until the promise is decided. The word names the promiser until then;
    /// any other owner took the lock after the promiser's end.
    async fn promise_outcome(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        promiser: OwnerWord,
        leaf: &mut LeafBuffer,
        broken: &Cell<bool>,
    ) -> Result<PromiseOutcome, LeafError> {
        for attempt in 0.. {
            let (owner, is_intact) = self.ask(batch, addr, leaf).await?;
            if owner.is_free() || owner == self.owner.handed() {
                if is_intact {
                    break;
                }
                // Not a committed leaf (LEAF-2).
                self.unlock(batch, addr, broken).await?;
                return Ok(PromiseOutcome::Void);
            }
            if owner.holder() != promiser.holder() {
                return Ok(PromiseOutcome::Void);
            }
            if broken.get() {
                return Err(LeafError::SessionBroken);
            }
            batch.cost_mut().retries += 1;
            let is_time = attempt % LOCK_ATTEMPT_COUNT_PER_LIVENESS_CHECK
                == LOCK_ATTEMPT_COUNT_PER_LIVENESS_CHECK - 1;
            if is_time && self.is_fenced(batch, owner).await? {
                // The batch may have taken effect between the read of the lock word and the fence.
                // Then nothing is recovered, and the next read finds the promise kept.
                let recovered = Box::pin(self.recover(batch, addr, owner, broken)).await;
                if let Err(error) = recovered {
                    return Ok(PromiseOutcome::Unrecovered(error));
                }
            } else {
                backoff(attempt).await;
            }
        }
        Ok(PromiseOutcome::Held)
    }

    /// Takes the lock if it is free, and reads the leaf. Returns the previous owner, and whether
    /// the leaf is intact. One round trip.
    async fn ask(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        leaf: &mut LeafBuffer,
    ) -> Result<(OwnerWord, bool), LeafError> {
        batch.clear();
        let swap = batch.compare_swap(self.geometry.lock(addr), 0, self.owner.word());
        let read = batch.read(self.geometry.state(addr), self.geometry.image_size_words());
        self.endpoint.execute(batch).await?;
        batch.cost_mut().leaves_read += 1;
        let image = LeafImage::new(self.geometry, batch.words(read));
        leaf.assign(image);
        let owner = OwnerWord::from_word(batch.previous(swap));
        Ok((owner, self.is_intact(image.words(), addr)))
    }
}

#[cfg(test)]
mod tests;
