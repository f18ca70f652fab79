//! One inner node through the fabric: reading it, locking it, recovering it (I1, I4, I6).

use core::cell::Cell;

use farleaf_executor::backoff;
use farleaf_fabric::{Batch, BatchError, Endpoint, ProtocolCheck};
use farleaf_leaf::{Critical, LeafAccess, LeafError};
use farleaf_types::{OwnerWord, RemoteAddr};

use super::node::{IMAGE_SIZE_WORDS, InnerNode, NODE_SIZE_BLOCKS, image_addr, lock_addr};
use crate::IndexError;

/// So many torn reads before the lock is looked at.
const TORN_READ_COUNT_MAX: u32 = 8;
/// So many attempts at a lock between two looks at its owner's life.
const LOCK_ATTEMPT_COUNT_PER_LOOK: u32 = 4;
/// So many looks at what nobody holds and is no node before it counts as none.
const UNUSABLE_LOOK_COUNT: u32 = 16;

/// What is needed to work on the inner nodes of one table in the name of one session.
#[derive(Debug)]
pub struct TreeAccess<'a, E> {
    /// To the table's leaves.
    pub leaves: LeafAccess<'a, E>,
    /// The session's, see [`LeafAccess::lock`].
    pub broken: &'a Cell<bool>,
}

impl<E> Clone for TreeAccess<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for TreeAccess<'_, E> {}

/// What became of one attempt at a lock.
enum Attempt {
    Locked(InnerNode),
    /// Who held it; nobody: it was ours, what is there is no node, and it is ours no more.
    Failed(OwnerWord),
}

impl<E: Endpoint> TreeAccess<'_, E> {
    /// Whether all of a node lies in a chunk that is known; else it must not be read.
    pub fn is_inside(&self, addr: RemoteAddr) -> bool {
        let layout = self.leaves.layout;
        let last = addr.block().checked_add(NODE_SIZE_BLOCKS - 1);
        let last = last.filter(|last| *last < RemoteAddr::BLOCK_COUNT_MAX);
        last.is_some_and(|last| {
            layout.chunk_of(addr.place()).is_some()
                && layout
                    .chunk_of(RemoteAddr::new(addr.node(), last))
                    .is_some()
        })
    }

    /// D4 for an inner node.
    pub(super) fn is_intact(&self, node: &InnerNode, addr: RemoteAddr) -> bool {
        node.is_intact(addr, self.leaves.table)
            || self.leaves.endpoint.leaves_out(ProtocolCheck::LeafIsIntact)
    }

    /// Reads a node. One round trip, 1016 bytes. Torn: reads it again; after some times it looks at
    /// the lock, recovers the node from a dead owner and waits for a living one. `None`: there is
    /// no node at this place, or its memory node is lost.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn read(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
    ) -> Result<Option<InnerNode>, IndexError> {
        if !self.is_inside(addr) {
            return Ok(None);
        }
        batch.clear();
        let read = batch.read(image_addr(addr), IMAGE_SIZE_WORDS);
        match self.leaves.endpoint.execute(batch).await {
            Err(error) if error.lost_node() == Some(addr.node()) => return Ok(None),
            executed => executed?,
        }
        let node = InnerNode::from_words(batch.words(read));
        if self.is_intact(&node, addr) {
            return Ok(Some(node));
        }
        Box::pin(self.read_torn(batch, addr)).await
    }

    #[cold]
    pub(super) async fn read_torn(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
    ) -> Result<Option<InnerNode>, IndexError> {
        let mut unusable_count = 0;
        for attempt in 0.. {
            batch.cost_mut().retries += 1;
            batch.clear();
            let lock = batch.read(lock_addr(addr), 1);
            let read = batch.read(image_addr(addr), IMAGE_SIZE_WORDS);
            match self.leaves.endpoint.execute(batch).await {
                Err(error) if error.lost_node() == Some(addr.node()) => return Ok(None),
                executed => executed?,
            }
            let node = InnerNode::from_words(batch.words(read));
            if self.is_intact(&node, addr) {
                return Ok(Some(node));
            }
            let owner = OwnerWord::from_word(batch.words(lock)[0]);
            if owner.is_free() {
                unusable_count += 1;
                if unusable_count >= UNUSABLE_LOOK_COUNT {
                    break;
                }
            } else if attempt >= TORN_READ_COUNT_MAX && self.leaves.is_fenced(batch, owner).await? {
                match self.recover(batch, addr, owner).await {
                    // F7: who may only read waits until somebody else does it.
                    Err(IndexError::Fabric(error)) if error.is_forbidden() => {}
                    recovered => recovered?,
                }
            }
            backoff(attempt).await;
        }
        Ok(None)
    }

    /// Takes the lock of a node and reads it in the same batch. Waits for a living owner, recovers
    /// from a fenced one. One round trip when the lock is free. `None`: there is no node at this
    /// place. Once it has returned, the caller holds the lock, and enters a [`Critical`] of its own
    /// before it awaits anything.
    ///
    /// # Errors
    /// [`LeafError::SessionBroken`]: another operation was cut off while this one waited. Or the
    /// fabric failed.
    pub async fn lock(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
    ) -> Result<Option<InnerNode>, IndexError> {
        if !self.is_inside(addr) {
            return Ok(None);
        }
        let mut unusable_count = 0;
        for attempt in 0.. {
            match self.try_lock(batch, addr).await? {
                Attempt::Locked(node) => return Ok(Some(node)),
                Attempt::Failed(owner) if owner.is_free() => {
                    unusable_count += 1;
                    if unusable_count >= UNUSABLE_LOOK_COUNT {
                        return Ok(None);
                    }
                }
                Attempt::Failed(owner) => {
                    if attempt % LOCK_ATTEMPT_COUNT_PER_LOOK == LOCK_ATTEMPT_COUNT_PER_LOOK - 1
                        && self.leaves.is_fenced(batch, owner).await?
                    {
                        self.recover(batch, addr, owner).await?;
                    } else {
                        backoff(attempt).await;
                    }
                }
            }
            batch.cost_mut().retries += 1;
            if self.broken.get() {
                return Err(LeafError::SessionBroken.into());
            }
        }
        unreachable!("there is always another attempt")
    }

    async fn try_lock(&self, batch: &mut Batch, addr: RemoteAddr) -> Result<Attempt, IndexError> {
        let critical = Critical::enter(self.broken);
        let (previous, node) = match self.swap_owner(batch, addr, OwnerWord::FREE).await {
            Ok(swapped) => swapped,
            Err(error) => return Err(ended(error, critical, addr, true)),
        };
        if previous.is_free() && !self.is_intact(&node, addr) {
            Self::post_unlock(batch, addr);
            self.leaves.endpoint.execute(batch).await?;
            critical.passed();
            return Ok(Attempt::Failed(previous));
        }
        critical.passed();
        Ok(if previous.is_free() {
            Attempt::Locked(node)
        } else {
            Attempt::Failed(previous)
        })
    }

    /// Makes the lock this session's if it is `from`'s, and reads the node in the same batch.
    /// Returns whose it was, and the node as it was read.
    async fn swap_owner(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        from: OwnerWord,
    ) -> Result<(OwnerWord, InnerNode), BatchError> {
        batch.clear();
        let own = self.leaves.owner.word();
        let swap = batch.compare_swap(lock_addr(addr), from.word(), own);
        let read = batch.read(image_addr(addr), IMAGE_SIZE_WORDS);
        self.leaves.endpoint.execute(batch).await?;
        let previous = OwnerWord::from_word(batch.previous(swap));
        Ok((previous, InnerNode::from_words(batch.words(read))))
    }

    /// A batch that gives a lock back, and nothing else.
    pub(super) fn post_unlock(batch: &mut Batch, addr: RemoteAddr) {
        batch.clear();
        batch.write_word(lock_addr(addr), OwnerWord::FREE.word());
    }

    /// Gives the lock of a node back that the caller holds. One round trip.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn unlock(&self, batch: &mut Batch, addr: RemoteAddr) -> Result<(), IndexError> {
        let critical = Critical::enter(self.broken);
        Self::post_unlock(batch, addr);
        if let Err(error) = self.leaves.endpoint.execute(batch).await {
            return Err(ended(error, critical, addr, false));
        }
        critical.passed();
        Ok(())
    }

    /// I6: takes the lock over from `dead`, whose session is fenced, repairs the node and unlocks
    /// it; nothing if somebody else was faster. What never was a node is unlocked and stays as it
    /// is. Waits for nobody.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn recover(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        dead: OwnerWord,
    ) -> Result<(), IndexError> {
        let critical = Critical::enter(self.broken);
        let (previous, mut node) = match self.swap_owner(batch, addr, dead).await {
            Ok(swapped) => swapped,
            Err(error) => return Err(ended(error, critical, addr, true)),
        };
        if previous != dead {
            critical.passed();
            return Ok(());
        }
        if node.was_never_written() || node.is_intact(addr, self.leaves.table) {
            Self::post_unlock(batch, addr);
        } else {
            self.repair(batch, addr, &mut node).await?;
        }
        if let Err(error) = self.leaves.endpoint.execute(batch).await {
            return Err(ended(error, critical, addr, false));
        }
        critical.passed();
        Ok(())
    }

    /// The batch that makes a torn node whole, and unlocks it.
    async fn repair(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        node: &mut InnerNode,
    ) -> Result<(), IndexError> {
        let link = node.link();
        if !link.is_null() && self.is_inside(link) {
            // Its lower fence never changes, and it was complete before anything linked to it.
            batch.clear();
            let read = batch.read(image_addr(link.place()), IMAGE_SIZE_WORDS);
            match self.leaves.endpoint.execute(batch).await {
                Err(error) if error.lost_node() == Some(link.node()) => {}
                executed => {
                    executed?;
                    let low = InnerNode::from_words(batch.words(read)).low();
                    if low > node.low() && low - 1 < node.high() {
                        node.set_high(low - 1);
                    }
                }
            }
        }
        let fences = node.low()..=node.high();
        node.retain(|entry| fences.contains(&entry.low));
        batch.clear();
        self.post_whole(batch, addr, node);
        Ok(())
    }

    /// Adds the verbs that write all of a node, and its lock last.
    pub(super) fn post_whole(&self, batch: &mut Batch, addr: RemoteAddr, node: &mut InnerNode) {
        node.seal(addr, self.leaves.table);
        let words = node.node_words(OwnerWord::FREE.word());
        batch.write(image_addr(addr).offset(1), &words[2..]);
        let (state_addr, state) = node.state_word(addr);
        batch.write_word(state_addr, state);
        batch.write_word(lock_addr(addr), OwnerWord::FREE.word());
    }

    /// Adds the verbs that commit a change of a locked node and unlock it.
    pub(super) fn post_commit(&self, batch: &mut Batch, addr: RemoteAddr, node: &mut InnerNode) {
        node.seal(addr, self.leaves.table);
        let (bitmap_addr, bitmap) = node.bitmap_word(addr);
        batch.write_word(bitmap_addr, bitmap);
        let (state_addr, state) = node.state_word(addr);
        batch.write_word(state_addr, state);
        batch.write_word(lock_addr(addr), OwnerWord::FREE.word());
    }
}

/// A batch of a critical time has failed. U4: the lock is lost with its memory node. F7: of verbs
/// that are forbidden none took effect, which matters if the lock was still to be had.
#[cold]
fn ended(
    error: BatchError,
    critical: Critical<'_>,
    addr: RemoteAddr,
    is_locking: bool,
) -> IndexError {
    let is_lost = error.lost_node() == Some(addr.node());
    if is_lost || is_locking && error.is_forbidden() {
        critical.passed();
    }
    error.into()
}
