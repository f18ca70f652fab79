//! Locking a leaf that another session of the process may have handed over (H3, H4 of
//! [`local_locks`](crate::local_locks)).

use core::cell::Cell;

use farleaf_executor::backoff;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_types::{OwnerWord, RemoteAddr};

use crate::Critical;
use crate::LeafError;
use crate::access::{LOCK_ATTEMPT_COUNT_PER_LOOK, LeafAccess};
use crate::image::{LeafBuffer, LeafImage};

/// What has become of a promise.
enum Fate {
    /// The lock is this session's, and the leaf is intact.
    Held,
    /// The lock is not this session's, and the promise will not be kept any more.
    Void,
    /// The same, as the one who promised is fenced, and its leaf cannot be recovered.
    Unrecovered(LeafError),
}

impl<E: Endpoint> LeafAccess<'_, E> {
    /// [`lock`](Self::lock) for an operation that the lock was promised to by another session of
    /// the process, whose batch may or may not take effect (H3). It is critical time until that is
    /// known (H4); from then on, if the promise is void, it waits as others do.
    ///
    /// # Errors
    /// As for [`lock`](Self::lock).
    pub async fn lock_promised(
        &self,
        batch: &mut Batch,
        (addr, promiser): (RemoteAddr, OwnerWord),
        leaf: &mut LeafBuffer,
        broken: &Cell<bool>,
    ) -> Result<(), LeafError> {
        let critical = Critical::enter(broken);
        match self.fate(batch, (addr, promiser), leaf, broken).await {
            Ok(fate) => {
                critical.passed();
                match fate {
                    Fate::Held => Ok(()),
                    Fate::Void => self.lock(batch, addr, None, leaf, broken).await,
                    Fate::Unrecovered(error) => Err(error),
                }
            }
            Err(error) => {
                // U4: a lock that is lost with its node is in nobody's way.
                if error.lost_node() == Some(addr.node()) {
                    critical.passed();
                }
                Err(error)
            }
        }
    }

    /// Looks at the lock word until it says what has become of the promise. It names the promiser
    /// until then: whoever else it names has come by the lock after the promiser's end.
    async fn fate(
        &self,
        batch: &mut Batch,
        (addr, promiser): (RemoteAddr, OwnerWord),
        leaf: &mut LeafBuffer,
        broken: &Cell<bool>,
    ) -> Result<Fate, LeafError> {
        for attempt in 0.. {
            let (owner, is_intact) = self.ask(batch, addr, leaf).await?;
            if owner.is_free() || owner == self.owner.handed() {
                if is_intact {
                    break;
                }
                // No leaf that anyone committed (D2).
                self.unlock(batch, addr, broken).await?;
                return Ok(Fate::Void);
            }
            if owner.holder() != promiser.holder() {
                return Ok(Fate::Void);
            }
            if broken.get() {
                return Err(LeafError::SessionBroken);
            }
            batch.cost_mut().retries += 1;
            let is_time = attempt % LOCK_ATTEMPT_COUNT_PER_LOOK == LOCK_ATTEMPT_COUNT_PER_LOOK - 1;
            if is_time && self.is_fenced(batch, owner).await? {
                // The batch may have taken effect between the look at the word and the fence. Then
                // nothing is recovered, and the next look finds the promise kept.
                let recovered = Box::pin(self.recover(batch, addr, owner, broken)).await;
                if let Err(error) = recovered {
                    return Ok(Fate::Unrecovered(error));
                }
            } else {
                backoff(attempt).await;
            }
        }
        Ok(Fate::Held)
    }

    /// Takes the lock if it is free, and reads the leaf: who had the lock before, and whether the
    /// leaf is intact. One round trip.
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
