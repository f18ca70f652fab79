//! Locking a leaf that another session of the process may have handed over (H3, H4 of
//! [`local_locks`](crate::local_locks)).

use core::cell::Cell;

use farleaf_executor::backoff;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_types::RemoteAddr;

use crate::LeafError;
use crate::access::{Attempt, LOCK_ATTEMPT_COUNT_PER_LOOK, LeafAccess};
use crate::critical::Critical;
use crate::image::{LeafBuffer, LeafImage};

impl<E: Endpoint> LeafAccess<'_, E> {
    /// [`lock`](Self::lock) for an operation that the lock was promised to by another session of
    /// the process, whose batch may or may not take effect (H3). All of it is critical time (H4).
    ///
    /// # Errors
    /// As for [`lock`](Self::lock).
    pub async fn lock_promised(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        leaf: &mut LeafBuffer,
        broken: &Cell<bool>,
    ) -> Result<(), LeafError> {
        let critical = Critical::enter(broken);
        let asked = self.ask_promised(batch, addr, leaf, broken).await;
        let is_lost = |error: &LeafError| error.lost_node() == Some(addr.node());
        // U4: a lock that is lost with its node is in nobody's way.
        if asked.as_ref().map_or_else(is_lost, |_| true) {
            critical.passed();
        }
        if asked? {
            return Ok(());
        }
        batch.clear();
        self.lock(batch, addr, None, leaf, broken).await
    }

    /// Until the lock is this session's; or, false, until it is known not to be: the one who
    /// promised it is fenced, or what it guards is no leaf, and it was given back.
    async fn ask_promised(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        leaf: &mut LeafBuffer,
        broken: &Cell<bool>,
    ) -> Result<bool, LeafError> {
        for attempt in 0.. {
            batch.clear();
            let owner = match self.try_lock(batch, addr, leaf, broken).await? {
                Attempt::Locked => break,
                Attempt::Failed(owner) => owner,
            };
            let is_own = owner == self.owner.handed();
            if is_own && self.read_held(batch, addr, leaf).await? {
                break;
            }
            if is_own || owner.is_free() {
                self.unlock(batch, addr, broken).await?;
                return Ok(false);
            }
            let is_time = attempt % LOCK_ATTEMPT_COUNT_PER_LOOK == LOCK_ATTEMPT_COUNT_PER_LOOK - 1;
            // F6: of a fenced session's batches nothing takes effect any more.
            if is_time && self.is_fenced(batch, owner).await? {
                return Ok(false);
            }
            backoff(attempt).await;
            batch.cost_mut().retries += 1;
        }
        Ok(true)
    }

    /// Reads a leaf whose lock this session holds; false: there is none.
    async fn read_held(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        leaf: &mut LeafBuffer,
    ) -> Result<bool, LeafError> {
        batch.clear();
        let read = batch.read(self.geometry.state(addr), self.geometry.image_size_words());
        self.endpoint.execute(batch).await?;
        batch.cost_mut().leaves_read += 1;
        let image = LeafImage::new(self.geometry, batch.words(read));
        let is_intact = self.is_intact(image, addr);
        if is_intact {
            leaf.assign(image);
        }
        Ok(is_intact)
    }
}
