//! Access to one inner node through the fabric: reading, locking and recovering it.

use core::cell::Cell;

use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_executor::backoff;
use farleaf_fabric::{Batch, BatchError, Endpoint, ProtocolCheck};
use farleaf_leaf::words::{Critical, LeafAccess, LeafError};

use super::node::{IMAGE_SIZE_WORDS, InnerNode, NODE_SIZE_BLOCKS, image_addr, lock_addr};
use crate::IndexError;

/// Number of torn reads after which the lock is checked.
const TORN_READ_COUNT_MAX: u32 = 8;
/// Number of attempts at a lock between two checks of whether its owner is alive.
const LOCK_ATTEMPT_COUNT_PER_LOOK: u32 = 4;
/// Number of checks after which unlocked words that are not a node count as no node.
const UNUSABLE_LOOK_COUNT: u32 = 16;

/// Access of one session to the inner nodes of one table.
#[derive(Debug)]
pub struct TreeAccess<'a, E> {
    /// Access to the table's leaves.
    pub leaves: LeafAccess<'a, E>,
    /// Flag of the session that an operation was interrupted; see [`LeafAccess::lock`].
    pub broken: &'a Cell<bool>,
}

impl<E> Clone for TreeAccess<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for TreeAccess<'_, E> {}

/// Result of one attempt at a lock.
enum LockAttempt {
    Locked(InnerNode),
    /// Owner of the lock. If none: this session locked it, found no node there, and released it.
    Failed(OwnerWord),
}

impl<E: Endpoint> TreeAccess<'_, E> {
    /// Returns whether all of a node is in a known chunk; otherwise it must not be read.
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

    /// Returns whether a node's checksum matches, as LEAF-4 requires for leaves.
    pub(super) fn is_intact(&self, node: &InnerNode, addr: RemoteAddr) -> bool {
        node.is_intact(addr, self.leaves.table)
            || self
                .leaves
                .endpoint
                .skips_check(ProtocolCheck::LeafIsIntact)
    }

    /// Reads a node. Costs one round trip, 1016 bytes. A torn node is read again. After several
    /// torn reads the lock is checked: a dead owner's node is recovered, a living owner is awaited.
    /// `None` if there is no node at this address, or its memory node is lost.
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
                    // A session that may only read waits until another one recovers the node
                    // (FABRIC-7).
                    Err(IndexError::Fabric(error)) if error.is_forbidden() => {}
                    recovered => recovered?,
                }
            }
            backoff(attempt).await;
        }
        Ok(None)
    }

    /// Locks a node and reads it in the same batch. Waits for a living owner, and recovers the node
    /// from a fenced one. Costs one round trip if the lock is free. `None` if there is no node at
    /// this address. On return the caller holds the lock, and must enter its own [`Critical`]
    /// before it awaits anything.
    ///
    /// # Errors
    /// [`LeafError::SessionBroken`]: another operation was interrupted while this one waited. Or
    /// the fabric failed.
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
                LockAttempt::Locked(node) => return Ok(Some(node)),
                LockAttempt::Failed(owner) if owner.is_free() => {
                    unusable_count += 1;
                    if unusable_count >= UNUSABLE_LOOK_COUNT {
                        return Ok(None);
                    }
                }
                LockAttempt::Failed(owner) => {
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

    async fn try_lock(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
    ) -> Result<LockAttempt, IndexError> {
        let critical = Critical::enter(self.broken);
        let (previous, node) = match self.swap_owner(batch, addr, OwnerWord::FREE).await {
            Ok(swapped) => swapped,
            Err(error) => return Err(ended(error, critical, addr, true)),
        };
        if previous.is_free() && !self.is_intact(&node, addr) {
            Self::post_unlock(batch, addr);
            self.leaves.endpoint.execute(batch).await?;
            critical.passed();
            return Ok(LockAttempt::Failed(previous));
        }
        critical.passed();
        Ok(if previous.is_free() {
            LockAttempt::Locked(node)
        } else {
            LockAttempt::Failed(previous)
        })
    }

    /// Takes the lock if `from` owns it, and reads the node in the same batch. Returns the previous
    /// owner, and the node as read.
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

    /// Makes a batch that only releases a lock.
    pub(super) fn post_unlock(batch: &mut Batch, addr: RemoteAddr) {
        batch.clear();
        batch.write_word(lock_addr(addr), OwnerWord::FREE.word());
    }

    /// Releases the lock of a node that the caller holds. Costs one round trip.
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

    /// Takes the lock over from `dead`, whose session is fenced, repairs the node and unlocks it.
    /// Does nothing if another session was faster. A place without a node is only unlocked. Waits
    /// for no lock.
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

    /// Repairs a torn node and unlocks it, in one batch.
    async fn repair(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        node: &mut InnerNode,
    ) -> Result<(), IndexError> {
        let link = node.link();
        if !link.is_null() && self.is_inside(link) {
            // The sibling's lower fence never changes, and it was complete before anything linked
            // to it.
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

    /// Posts the verbs that write a whole node, with its lock last.
    pub(super) fn post_whole(&self, batch: &mut Batch, addr: RemoteAddr, node: &mut InnerNode) {
        node.seal(addr, self.leaves.table);
        let words = node.node_words(OwnerWord::FREE.word());
        batch.write(image_addr(addr).offset(1), &words[2..]);
        let (state_addr, state) = node.state_word(addr);
        batch.write_word(state_addr, state);
        batch.write_word(lock_addr(addr), OwnerWord::FREE.word());
    }

    /// Posts the verbs that commit a change of a locked node and unlock it.
    pub(super) fn post_commit(&self, batch: &mut Batch, addr: RemoteAddr, node: &mut InnerNode) {
        node.seal(addr, self.leaves.table);
        let (bitmap_addr, bitmap) = node.bitmap_word(addr);
        batch.write_word(bitmap_addr, bitmap);
        let (state_addr, state) = node.state_word(addr);
        batch.write_word(state_addr, state);
        batch.write_word(lock_addr(addr), OwnerWord::FREE.word());
    }
}

/// Handles the failure of a batch while a lock may be held. The lock is lost with its memory node.
/// If verbs were forbidden, none took effect (FABRIC-7), which matters if the lock was not held
/// yet.
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
