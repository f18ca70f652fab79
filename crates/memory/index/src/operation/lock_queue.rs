//! How a write comes by a leaf's lock, and to whom it leaves it: alone, or in turn with the other
//! writers of its process, who hand the leaf over (rules H1 to H5 of
//! [`farleaf_leaf::local_locks`]).

use core::pin::Pin;

use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::local_locks::{Admission, Turn};
use farleaf_leaf::{LeafBuffer, LocalLocks};
use farleaf_types::{OwnerWord, RemoteAddr};

use super::{HintCounters, Index};
use crate::IndexError;

/// What a write does about others of its process that want the same leaf; nothing, unless it is in
/// turn with them.
pub(super) struct Queue<'a>(Option<Box<InTurn<'a>>>);

/// Where a write stands in line.
pub(super) struct InTurn<'a> {
    locks: &'a LocalLocks,
    turn: Option<Turn<'a>>,
}

impl<'a> Queue<'a> {
    pub(super) const ALONE: Self = Self(None);

    /// The line that it is in, if it is in turn with others.
    #[inline]
    pub(super) fn in_turn(&mut self) -> Option<&mut InTurn<'a>> {
        self.0.as_deref_mut()
    }

    /// What the lock word is to hold after the change that is about to be committed.
    #[inline]
    pub(super) fn next(&self) -> OwnerWord {
        let turn = self.0.as_ref().and_then(|in_turn| in_turn.turn.as_ref());
        turn.map_or(OwnerWord::FREE, Turn::promise)
    }

    /// The change was committed, and this is what it left in the leaf.
    #[inline]
    pub(super) fn hand_over(self, leaf: &LeafBuffer) {
        if let Some(turn) = self.0.and_then(|in_turn| in_turn.turn) {
            turn.hand_over(leaf);
        }
    }

    /// The leaf is full: nothing was committed, and others need not wait for what is done about
    /// that.
    #[inline]
    pub(super) fn step_aside(&mut self) {
        let in_turn = self.0.as_mut();
        if let Some(turn) = in_turn.and_then(|in_turn| in_turn.turn.take()) {
            turn.withdraw();
        }
    }
}

impl<'a, E: Endpoint> Index<'a, E> {
    /// Once it is a write's turn at the first leaf that it wants.
    #[inline]
    pub(super) async fn queue_for(&self, addr: RemoteAddr) -> Queue<'a> {
        let Some(locks) = &self.state.local_locks else {
            return Queue::ALONE;
        };
        let turn: Pin<Box<dyn Future<Output = _>>> =
            Box::pin(locks.turn(addr, self.access.owner, &self.state.broken));
        let turn = Some(turn.await);
        Queue(Some(Box::new(InTurn { locks, turn })))
    }

    /// [`LeafAccess::lock`](farleaf_leaf::LeafAccess::lock) for a write that is in turn with
    /// others: without a verb, where one of them has handed the leaf over.
    ///
    /// # Errors
    /// As for that.
    #[cold]
    pub(super) async fn lock_in_turn(
        &self,
        batch: &mut Batch,
        (addr, release): (RemoteAddr, Option<RemoteAddr>),
        in_turn: &mut InTurn<'_>,
        leaf: &mut LeafBuffer,
    ) -> Result<(), IndexError> {
        let (access, broken) = (&self.access, &*self.state.broken);
        // H1: nobody waits in line with a lock in hand, as who goes on from another leaf has.
        let turn = match in_turn.turn.take().filter(|turn| turn.is_at(addr)) {
            Some(turn) => turn,
            None => in_turn.locks.turn_now(addr, access.owner),
        };
        match in_turn.turn.insert(turn).admission() {
            Admission::Handed(image) => {
                *leaf = *image;
                let count = |counters: &mut HintCounters| counters.handed_count += 1;
                self.state.count_hint(count);
            }
            Admission::AskPromised(promiser) => {
                self.state.count_hint(|counters| counters.asked_count += 1);
                let promise = (addr, promiser);
                access.lock_promised(batch, promise, leaf, broken).await?;
            }
            Admission::Ask => access.lock(batch, addr, release, leaf, broken).await?,
        }
        Ok(())
    }
}
