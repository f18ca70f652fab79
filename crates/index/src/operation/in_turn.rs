//! Changing keys where writers of a process wait among themselves for a leaf, and hand it over
//! (Sherman; rules H1 to H5 of [`farleaf_leaf::local_locks`]).

use std::sync::Arc;

use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_leaf::local_locks::{Admission, Turn};
use farleaf_leaf::{Critical, LeafBuffer, LocalLocks, Look};
use farleaf_types::RemoteAddr;

use super::course::Course;
use super::write::{Decision, Room, left, post_change};
use super::{Index, Rare};
use crate::IndexError;
use crate::hint::Hint;
use crate::layer::Layer;

impl<E: Endpoint> Index<'_, E> {
    /// Where writers of this process wait for each other, if they do.
    pub(super) fn local_locks(&self) -> Option<Arc<LocalLocks>> {
        match &*self.state.layer.borrow() {
            Layer::Sherman(layer) => Some(Arc::clone(layer.local_locks())),
            _ => None,
        }
    }

    /// [`modify`](Self::modify) in turn with the other writers of the process. One round trip when
    /// the leaf is handed over, two when its lock is free.
    pub(super) async fn modify_in_turn<R>(
        &self,
        batch: &mut Batch,
        locks: &LocalLocks,
        (key, mut hint): (u64, Hint),
        decide: &mut impl FnMut(Option<u64>) -> (Decision, R),
    ) -> Result<R, IndexError> {
        let broken = &*self.state.broken;
        let mut release = None;
        let mut course = Course::default();
        let mut leaf = self.access.blank();
        let mut turn = locks.turn(hint.addr, self.access.owner, broken).await;
        loop {
            self.admit(batch, &mut turn, (hint.addr, release), &mut leaf)
                .await?;
            let critical = Critical::enter(broken);
            let look = self.access.look_intact(leaf.image(), key);
            let is_checked = !self.leaves_out(ProtocolCheck::KeyBelongsToLockedLeaf);
            if look != Look::Here && is_checked {
                let next: Rare<'_, _> =
                    Box::pin(self.leave(batch, key, (hint, look), &leaf, &mut course));
                let next = left(critical, hint.addr, next.await)?;
                (release, hint) = (Some(hint.addr), next);
                // H1: nobody waits with a lock in hand.
                turn = locks.turn_now(hint.addr, self.access.owner);
                continue;
            }
            if release.take().is_some() {
                self.arrive_at(leaf.image().low(), hint, &course);
            }
            let slot = leaf.image().slot_of(key);
            let (decision, result) = decide(slot.map(|slot| leaf.image().value(slot)));
            batch.clear();
            let change = self.access.change(hint.addr).handing_to(turn.promise());
            if post_change(batch, (change, &mut leaf), (key, slot), decision) {
                if let Err(error) = self.access.endpoint.execute(batch).await {
                    if self.leaves_out(ProtocolCheck::HandOverIsConfirmed) {
                        turn.hand_over(&leaf);
                    }
                    return Err(self.lost_with(critical, hint.addr, error.into()));
                }
                critical.passed();
                turn.hand_over(&leaf);
                return Ok(result);
            }
            turn.withdraw();
            if let Decision::Set(value) = decision {
                let room: Rare<'_, Result<Room, IndexError>> =
                    Box::pin(self.make_room(batch, &mut leaf, hint, (key, value)));
                if !self.made(critical, hint.addr, room.await)? {
                    continue;
                }
            }
            return Ok(result);
        }
    }

    /// Comes by the lock of a leaf, and its image, the way that the turn says.
    async fn admit(
        &self,
        batch: &mut Batch,
        turn: &mut Turn<'_>,
        (addr, release): (RemoteAddr, Option<RemoteAddr>),
        leaf: &mut LeafBuffer,
    ) -> Result<(), IndexError> {
        let broken = &*self.state.broken;
        match turn.admission() {
            Admission::Handed(image) => {
                *leaf = *image;
                self.state.count_hint(|counters| counters.handed_count += 1);
            }
            Admission::AskPromised => {
                let lock = self.access.lock_promised(batch, addr, leaf, broken);
                lock.await?;
            }
            Admission::Ask => {
                let lock = self.access.lock(batch, addr, release, leaf, broken);
                lock.await?;
            }
        }
        Ok(())
    }
}
