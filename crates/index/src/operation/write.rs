//! Changing keys: two round trips when the hint is right (D5).

use core::cell::Cell;

use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::change::SplitRequest;
use farleaf_leaf::{LeafBuffer, LeafError, Look};
use farleaf_region::allocation::ChunkAllocator;
use farleaf_types::RemoteAddr;

use super::Index;
use crate::IndexError;
use crate::hint::{Announcement, Hint, SearchLayer};

/// What to do with a key, once its value is known and its leaf is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Leave it as it is.
    Keep,
    /// Give it this value, present or not.
    Set(u64),
    /// Remove it.
    Remove,
}

/// A write between its lock and its unlock. If it is cut off there, the session may hold a lock
/// that nobody will free, so it must not go on (F6).
struct Critical<'a>(&'a Cell<bool>);

impl Critical<'_> {
    fn passed(self) {
        core::mem::forget(self);
    }

    /// A lock could not be had. A damaged leaf's was given back.
    fn failed(self, error: LeafError) -> IndexError {
        if matches!(error, LeafError::Damaged { .. }) {
            self.passed();
        }
        error.into()
    }
}

impl Drop for Critical<'_> {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

/// What became of a full leaf.
enum Room {
    /// It was split, and the record is in.
    Made,
    /// Leaves were leased; the lock was given back.
    Leased,
    /// There are none to lease; the lock was given back.
    None(IndexError),
}

/// A split that has taken effect and is still to be announced.
#[derive(Clone, Copy, Debug)]
struct Announced {
    announcement: Announcement,
    slot: u64,
    sibling: RemoteAddr,
}

impl<E: Endpoint> Index<'_, E> {
    /// Locks the leaf that covers a key, asks `decide` what to do with the key given its value, and
    /// does it: atomically, and in two round trips when the hint is right. `decide` may be asked
    /// again when the leaf has to be left and locked anew; only its last answer counts.
    ///
    /// Dropping the future before it is done may leave the leaf locked; the session is then broken
    /// and must be closed.
    ///
    /// # Errors
    /// The pool is full (nothing has changed), the table was dropped, or the fabric failed.
    #[inline]
    pub async fn modify<R>(
        &self,
        batch: &mut Batch,
        key: u64,
        mut decide: impl FnMut(Option<u64>) -> (Decision, R),
    ) -> Result<R, IndexError> {
        let mut hint = self.write_hint(batch, key).await?;
        let mut release = None;
        let critical = Critical(&self.state.broken);
        let mut leaf = self.access.blank();
        loop {
            let locked = self.access.lock(batch, hint.addr, release, &mut leaf).await;
            if let Err(error) = locked {
                return Err(critical.failed(error));
            }
            let look = self.access.look_intact(leaf.image(), key);
            if look != Look::Here {
                match Box::pin(self.leave(batch, key, hint, look, &leaf)).await? {
                    Ok(next) => (release, hint) = (Some(hint.addr), next),
                    Err(error) => {
                        critical.passed();
                        return Err(error);
                    }
                }
                continue;
            }
            if release.take().is_some() {
                self.learn(leaf.image().low(), hint);
            }
            let image = leaf.image();
            let slot = image.slot_of(key);
            let (decision, result) = decide(slot.map(|slot| image.value(slot)));
            batch.clear();
            if self.post_change(batch, (hint.addr, &mut leaf), (key, slot), decision) {
                self.access.endpoint.execute(batch).await?;
            } else if let Decision::Set(value) = decision {
                let full = Box::pin(self.make_room(batch, &mut leaf, hint, (key, value)));
                match full.await? {
                    Room::Made => {}
                    Room::Leased => continue,
                    Room::None(error) => {
                        critical.passed();
                        return Err(error);
                    }
                }
            }
            critical.passed();
            return Ok(result);
        }
    }

    /// Adds the verbs of a change that the leaf has room for; false when it has none.
    #[inline]
    fn post_change(
        &self,
        batch: &mut Batch,
        (addr, leaf): (RemoteAddr, &mut LeafBuffer),
        (key, slot): (u64, Option<usize>),
        decision: Decision,
    ) -> bool {
        let change = self.access.change(addr);
        match (decision, slot) {
            (Decision::Set(value), Some(slot)) => change.update(batch, leaf, slot, value),
            (Decision::Remove, Some(slot)) => change.delete(batch, leaf, slot),
            (Decision::Set(value), None) => match leaf.image().free_slot() {
                Some(slot) => change.insert(batch, leaf, slot, (key, value)),
                None => return false,
            },
            (Decision::Keep, _) | (Decision::Remove, None) => change.unlock(batch),
        }
        true
    }

    /// Where to go from a locked leaf that does not cover the key; the lock is kept, to be given
    /// back with the next one's batch. The inner error comes with the lock given back.
    #[cold]
    async fn leave(
        &self,
        batch: &mut Batch,
        key: u64,
        hint: Hint,
        look: Look,
        leaf: &LeafBuffer,
    ) -> Result<Result<Hint, IndexError>, IndexError> {
        if !matches!(look, Look::Retired(_)) {
            self.learn(leaf.image().low(), hint);
        }
        let next = self.next_hint(key, hint, look);
        if next.is_err() {
            self.unlock(batch, hint.addr).await?;
        }
        Ok(next)
    }

    /// Where a write begins: ROLEX reads the predicted range first, as its paper has it.
    #[inline]
    async fn write_hint(&self, batch: &mut Batch, key: u64) -> Result<Hint, IndexError> {
        if let Some(hint) = self.one_leaf(key) {
            return Ok(hint);
        }
        let candidates = self.range(key);
        let (hint, look, leaf) = Box::pin(self.read_range(batch, key, &candidates)).await?;
        match (leaf, look) {
            (Some(_), _) | (None, Look::Torn) => Ok(hint),
            (None, look) => self.next_hint(key, hint, look),
        }
    }

    async fn unlock(&self, batch: &mut Batch, addr: RemoteAddr) -> Result<(), IndexError> {
        batch.clear();
        self.access.change(addr).unlock(batch);
        Ok(self.access.endpoint.execute(batch).await?)
    }

    /// The leaf is full: splits it, with the model's counter advanced in the same batch (D3), and
    /// announces the sibling. Without a leased leaf it gives the lock back and leases a chunk.
    #[cold]
    async fn make_room(
        &self,
        batch: &mut Batch,
        leaf: &mut LeafBuffer,
        hint: Hint,
        (key, value): (u64, u64),
    ) -> Result<Room, IndexError> {
        let sibling = self.state.lease.borrow_mut().take();
        let Some(sibling) = sibling else {
            self.unlock(batch, hint.addr).await?;
            return Ok(self
                .lease_more()
                .await
                .map_or_else(Room::None, |()| Room::Leased));
        };
        let announcement = self.state.layer.borrow().announcement(hint.parent);
        let counter = announcement.map(|announcement| announcement.counter);
        let request = SplitRequest {
            key,
            value,
            sibling,
            counter,
        };
        batch.clear();
        let split = self.access.change(hint.addr).split(batch, leaf, &request);
        self.access.endpoint.execute(batch).await?;
        self.learn(
            split.sibling_low,
            Hint {
                addr: sibling,
                parent: hint.parent,
            },
        );
        if let (Some(announcement), Some(counter)) = (announcement, split.counter) {
            let slot = batch.previous(counter);
            self.announce(
                batch,
                Announced {
                    announcement,
                    slot,
                    sibling,
                },
            )
            .await?;
        }
        Ok(Room::Made)
    }

    /// Writes the entry that tells other clients of a sibling. If this never happens, they find it
    /// by its link.
    async fn announce(&self, batch: &mut Batch, announced: Announced) -> Result<(), IndexError> {
        let Announced {
            announcement,
            slot,
            sibling,
        } = announced;
        if slot < u64::from(announcement.capacity) {
            batch.clear();
            let entry = sibling.with_spare(announcement.parent_in_model);
            batch.write_word(announcement.counter.offset(1 + slot), entry.word());
            self.access.endpoint.execute(batch).await?;
        }
        Ok(())
    }

    /// Leases another chunk of leaves.
    #[cold]
    async fn lease_more(&self) -> Result<(), IndexError> {
        let access = &self.access;
        let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
        let geometry = access.geometry;
        let leaf_count = geometry.chunk_leaf_count();
        let leased = allocator
            .lease_leaves(access.table, geometry.slots(), leaf_count)
            .await?;
        self.state
            .lease
            .borrow_mut()
            .add(access, leased.0, leased.1);
        Ok(())
    }
}
