//! Acquiring and passing on a leaf's lock for a write: alone, or in a queue with other writers of
//! the process, which hand the leaf over ([`farleaf_leaf::words::local_locks`]).

use core::pin::Pin;

use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::words::local_locks::{Admission, LockTurn};
use farleaf_leaf::words::{LeafBuffer, LocalLocks};

use super::{HintCounters, Index};
use crate::IndexError;

/// State of a write that may queue with other writers of its process; empty if it writes alone.
pub(super) struct WriteQueue<'a>(Option<Box<QueuePlace<'a>>>);

/// Place of a write in its queue.
pub(super) struct QueuePlace<'a> {
    locks: &'a LocalLocks,
    turn: Option<LockTurn<'a>>,
}

impl<'a> WriteQueue<'a> {
    pub(super) const ALONE: Self = Self(None);

    /// Returns the write's place in a queue, if it queues with others.
    #[inline]
    pub(super) fn lock_queue(&mut self) -> Option<&mut QueuePlace<'a>> {
        self.0.as_deref_mut()
    }

    /// Returns the lock word to write after the change that is about to be committed.
    #[inline]
    pub(super) fn next(&self) -> OwnerWord {
        let turn = self
            .0
            .as_ref()
            .and_then(|lock_queue| lock_queue.turn.as_ref());
        turn.map_or(OwnerWord::FREE, LockTurn::promise)
    }

    /// Hands over the leaf, as the committed change left it.
    #[inline]
    pub(super) fn hand_over(self, leaf: &LeafBuffer) {
        if let Some(turn) = self.0.and_then(|lock_queue| lock_queue.turn) {
            turn.hand_over(leaf);
        }
    }

    /// Leaves the queue because the leaf is full: nothing was committed, and others need not wait
    /// for the split.
    #[inline]
    pub(super) fn leave_queue(&mut self) {
        let lock_queue = self.0.as_mut();
        if let Some(turn) = lock_queue.and_then(|lock_queue| lock_queue.turn.take()) {
            turn.withdraw();
        }
    }
}

impl<'a, E: Endpoint> Index<'a, E> {
    /// Waits until it is the write's turn at the first leaf that it wants.
    #[inline]
    pub(super) async fn queue_for(&self, addr: RemoteAddr) -> WriteQueue<'a> {
        let Some(locks) = &self.state.local_locks else {
            return WriteQueue::ALONE;
        };
        let turn: Pin<Box<dyn Future<Output = _>>> =
            Box::pin(locks.turn(addr, self.access.owner, &self.state.broken));
        let turn = Some(turn.await);
        WriteQueue(Some(Box::new(QueuePlace { locks, turn })))
    }

    /// Does [`LeafAccess::lock`](farleaf_leaf::words::LeafAccess::lock) for a write in a queue;
    /// costs no verb if another write has handed the leaf over.
    ///
    /// # Errors
    /// The errors of [`LeafAccess::lock`](farleaf_leaf::words::LeafAccess::lock).
    #[cold]
    pub(super) async fn lock_from_queue(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        release: Option<RemoteAddr>,
        lock_queue: &mut QueuePlace<'_>,
        leaf: &mut LeafBuffer,
    ) -> Result<(), IndexError> {
        let (access, broken) = (&self.access, &*self.state.broken);
        // A write that comes from another leaf holds its lock, so it must not wait in a queue.
        let turn = match lock_queue.turn.take().filter(|turn| turn.is_at(addr)) {
            Some(turn) => turn,
            None => lock_queue.locks.turn_without_waiting(addr, access.owner),
        };
        match lock_queue.turn.insert(turn).admission() {
            Admission::Handed(image) => {
                *leaf = *image;
                let count = |counters: &mut HintCounters| counters.handed_count += 1;
                self.state.count_hint(count);
            }
            Admission::CheckPromised(promiser) => {
                self.state.count_hint(|counters| counters.asked_count += 1);
                access
                    .lock_promised(batch, addr, promiser, leaf, broken)
                    .await?;
            }
            Admission::Ask => access.lock(batch, addr, release, leaf, broken).await?,
        }
        Ok(())
    }
}
