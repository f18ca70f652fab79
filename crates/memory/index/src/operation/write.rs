//! Changing keys: two round trips if the hint is right (LEAF-5).

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_leaf::words::change::{LeafChange, SplitRequest};
use farleaf_leaf::words::{Critical, LeafBuffer, LeafCheck, LeaseShape, SearchPath};
use farleaf_pool::PoolError;

use super::lock_queue::WriteQueue;
use super::read::one_leaf_of;
use super::{Index, Rare};
use crate::IndexError;
use crate::announced::enqueue;
use crate::hint::{Announcement, Hint, SearchLayer};
use crate::layer::Layer;
use crate::tree::node::ChildEntry;

/// Share of slots, as a divisor, up to which a leaf counts as underfull: retraining merges two such
/// leaves into one and leaves it half empty.
const UNDERFULL_SHARE: usize = 4;

/// Change of a key, decided with its value known and its leaf locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Change nothing.
    Keep,
    /// Set the key to this value, whether it is present or not.
    Set(u64),
    /// Remove the key.
    Remove,
}

/// Result of making space in a full leaf.
enum SplitOutcome {
    /// The leaf was split, and the record is in.
    Made,
    /// Leaves were leased, and the lock was released.
    Leased,
    /// No leaves can be leased, and the lock was released.
    None(PoolError),
}

/// Split that has taken effect and is not announced yet.
#[derive(Clone, Copy, Debug)]
struct UnannouncedSplit {
    announcement: Announcement,
    slot: u64,
    sibling: RemoteAddr,
}

impl<E: Endpoint> Index<'_, E> {
    /// Locks the leaf that covers a key, calls `decide` with the key's value, and executes the
    /// decision atomically. Costs two round trips if the hint is right. `decide` is called again if
    /// the leaf has to be unlocked and locked anew; only its last result counts.
    ///
    /// If the future is dropped while it holds the leaf's lock, the leaf stays locked; the session
    /// is then broken and must be closed. Dropping it while it waits for the lock is harmless,
    /// unless another writer of the process has promised or handed over the lock meanwhile.
    ///
    /// # Errors
    /// The pool is full, leaves are corrupted or contradict each other, or the table was dropped:
    /// then nothing has changed. Or the fabric failed: then the session is broken.
    #[inline]
    pub async fn modify<R>(
        &self,
        batch: &mut Batch,
        key: u64,
        mut decide: impl FnMut(Option<u64>) -> (Decision, R),
    ) -> Result<R, IndexError> {
        let mut queue = WriteQueue::ALONE;
        let mut hint = if let Some(hint) = self.one_leaf_or(key, leaf_to_lock) {
            hint
        } else {
            let hint = self.hint_to_lock(batch, key).await?;
            queue = self.queue_for(hint.addr).await;
            hint
        };
        let mut release = None;
        let mut course = SearchPath::default();
        let mut leaf = self.access.blank();
        let broken = &*self.state.broken;
        loop {
            let (addr, leaf_now) = (hint.addr, &mut leaf);
            if let Some(lock_queue) = queue.lock_queue() {
                let lock: Rare<'_, _> =
                    Box::pin(self.lock_from_queue(batch, addr, release, lock_queue, leaf_now));
                lock.await?;
            } else {
                let lock = self.access.lock(batch, addr, release, leaf_now, broken);
                lock.await?;
            }
            let critical = Critical::enter(broken);
            let look = self.access.check_intact(leaf.image(), key);
            let is_checked = !self.skips_check(ProtocolCheck::KeyBelongsToLockedLeaf);
            if look != LeafCheck::Here && is_checked {
                let next: Rare<'_, _> =
                    Box::pin(self.leave(batch, key, hint, look, &leaf, &mut course));
                // The first verb of the next lock releases the lock that is still held.
                let next = left(critical, hint.addr, next.await)?;
                (release, hint) = (Some(hint.addr), next);
                continue;
            }
            if release.take().is_some() {
                self.arrive_at(leaf.image().low(), hint, &course);
            }
            let image = leaf.image();
            let slot = image.slot_of(key);
            let (decision, result) = decide(slot.map(|slot| image.value(slot)));
            batch.clear();
            let change = self
                .access
                .change(hint.addr)
                .with_hand_over_to(queue.next());
            if post_change(batch, change, &mut leaf, key, slot, decision) {
                let is_removed = decision == Decision::Remove && slot.is_some();
                if is_removed && leaf.image().record_count() == self.underfull_count() {
                    self.post_underfull(batch, hint.parent);
                }
                if let Err(error) = self.access.endpoint.execute(batch).await {
                    if self.skips_check(ProtocolCheck::HandOverIsConfirmed) {
                        queue.hand_over(&leaf);
                    }
                    return Err(self.lost_with(critical, hint.addr, error.into()));
                }
            } else if let Decision::Set(value) = decision {
                queue.leave_queue();
                let outcome: Rare<'_, _> =
                    Box::pin(self.split_or_lease(batch, &mut leaf, hint, key, value));
                if self.made(critical, hint.addr, outcome.await)? {
                    return Ok(result);
                }
                continue;
            }
            critical.passed();
            queue.hand_over(&leaf);
            return Ok(result);
        }
    }

    /// Finishes [`split_or_lease`](Self::split_or_lease). Returns false if leaves were leased and
    /// the leaf has to be locked anew.
    #[cold]
    fn made(
        &self,
        critical: Critical<'_>,
        addr: RemoteAddr,
        outcome: Result<SplitOutcome, IndexError>,
    ) -> Result<bool, IndexError> {
        match outcome {
            Ok(SplitOutcome::None(error)) => {
                // The session may own a chunk without knowing it (FABRIC-5), but not on a lost
                // node.
                let is_unknown = matches!(error, PoolError::Fabric(_));
                if !is_unknown || error.lost_node().is_some() {
                    critical.passed();
                }
                Err(error.into())
            }
            Ok(made) => {
                critical.passed();
                Ok(matches!(made, SplitOutcome::Made))
            }
            Err(error) => Err(self.lost_with(critical, addr, error)),
        }
    }

    /// Handles a failure while the lock may be held. If the leaf's node is lost, so are the lock
    /// and what is leased there, and the session continues.
    #[cold]
    fn lost_with(&self, critical: Critical<'_>, addr: RemoteAddr, error: IndexError) -> IndexError {
        if error.lost_node() == Some(addr.node()) {
            self.state.forget_leases(addr.node());
            critical.passed();
        }
        error
    }

    /// Returns the number of records at which a delete makes a leaf underfull.
    #[inline]
    fn underfull_count(&self) -> usize {
        self.access.geometry.slot_count() / UNDERFULL_SHARE
    }

    /// Returns where to go from a locked leaf that does not cover the key. The lock is kept, and
    /// released with the next leaf's batch. The inner error means that the lock was released.
    #[cold]
    async fn leave(
        &self,
        batch: &mut Batch,
        key: u64,
        hint: Hint,
        look: LeafCheck,
        leaf: &LeafBuffer,
        course: &mut SearchPath,
    ) -> Result<Result<Hint, IndexError>, IndexError> {
        let (low, is_retired) = (leaf.image().low(), leaf.image().is_retired());
        if !is_retired {
            self.learn(low, hint);
        }
        // A leaf that replaced this one and its left neighbor covers keys that the neighbor may
        // still have, if its retirement is not finished (LEAF-8).
        let look = if is_retired && key < low && !course.has_gone_right() {
            LeafCheck::Left
        } else {
            look
        };
        let next = self.continue_from(batch, course, key, hint, Some(low), look);
        if next.is_err() {
            self.unlock(batch, hint.addr).await?;
        }
        Ok(next)
    }

    /// Returns the leaf to lock if the layer alone cannot name it.
    #[cold]
    async fn hint_to_lock(&self, batch: &mut Batch, key: u64) -> Result<Hint, IndexError> {
        if let Some(hint) = self.one_leaf(key) {
            return Ok(hint);
        }
        let slowly: Rare<'_, _> = Box::pin(self.write_hint_slowly(batch, key));
        slowly.await
    }

    /// Returns the leaf to lock after reading what is missing. With a metadata budget, missing
    /// pages are fetched: a lock on the right leaf is worth a residual page. ROLEX reads the
    /// predicted range first, as in its paper.
    #[cold]
    pub(super) async fn write_hint_slowly(
        &self,
        batch: &mut Batch,
        key: u64,
    ) -> Result<Hint, IndexError> {
        if let Some(hint) = self.exact_hint(batch, key).await? {
            return Ok(hint);
        }
        let candidates = self.candidates(batch, key).await?;
        let (hint, look, leaf) = self.read_range(batch, key, &candidates).await?;
        match (leaf, look) {
            (Some(_), _) | (None, LeafCheck::Torn) => Ok(hint),
            (None, look) => self.next_hint(batch, key, hint, look),
        }
    }

    async fn unlock(&self, batch: &mut Batch, addr: RemoteAddr) -> Result<(), IndexError> {
        batch.clear();
        self.access.change(addr).unlock(batch);
        Ok(self.access.endpoint.execute(batch).await?)
    }

    /// Splits a full leaf, advances the model's counter in the same batch (LEAF-3), and announces
    /// the sibling. Without a leased leaf, releases the lock and leases a chunk.
    #[cold]
    async fn split_or_lease(
        &self,
        batch: &mut Batch,
        leaf: &mut LeafBuffer,
        hint: Hint,
        key: u64,
        value: u64,
    ) -> Result<SplitOutcome, IndexError> {
        let node = hint.addr.node();
        let sibling = self.state.leases.take_for(node);
        let Some(sibling) = sibling else {
            self.unlock(batch, hint.addr).await?;
            return Ok(self
                .state
                .leases
                .lease_more(&self.access, LeaseShape::leaves(self.access.geometry), node)
                .await
                .map_or_else(SplitOutcome::None, |()| SplitOutcome::Leased));
        };
        let made = self.split_into(batch, leaf, hint, sibling, key, value);
        let made = made.await;
        // The sibling is linked or lost, or the session is broken: nothing waits for the link.
        self.state.leases.note_linked();
        made
    }

    /// Does [`split_or_lease`](Self::split_or_lease) with a leaf for the sibling.
    async fn split_into(
        &self,
        batch: &mut Batch,
        leaf: &mut LeafBuffer,
        hint: Hint,
        sibling: RemoteAddr,
        key: u64,
        value: u64,
    ) -> Result<SplitOutcome, IndexError> {
        let node = hint.addr.node();
        let announcement = self.announcement(batch, hint.parent).await?;
        let announcement = announcement.filter(|_| self.is_current());
        let counter = announcement.map(|announcement| announcement.counter);
        let request = SplitRequest {
            key,
            value,
            sibling,
            counter,
        };
        batch.clear();
        let change = self.access.change(hint.addr);
        let is_elsewhere = sibling.node() != node;
        if is_elsewhere {
            // The sibling must be complete before anything links to it (LEAF-3).
            change.write_sibling_of(batch, leaf, &request);
        }
        let is_first = !self
            .access
            .endpoint
            .skips_check(ProtocolCheck::SiblingIsCompleteElsewhere);
        if is_elsewhere && is_first {
            match self.access.endpoint.execute(batch).await {
                Err(error) if error.lost_node() == Some(sibling.node()) => {
                    // The sibling's node is lost. The next attempt leases on another node, or
                    // returns an error.
                    self.state.forget_leases(sibling.node());
                    self.unlock(batch, hint.addr).await?;
                    return Ok(SplitOutcome::Leased);
                }
                executed => executed?,
            }
            batch.clear();
        }
        let split = change.split(batch, leaf, &request);
        let listed = ChildEntry {
            low: split.sibling_low,
            child: sibling,
        };
        if self.skips_check(ProtocolCheck::ChildIsLinkedFirst) {
            let mut before = Batch::new();
            Box::pin(self.list(&mut before, listed)).await?;
            *batch.cost_mut() += before.take_cost();
        }
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
                UnannouncedSplit {
                    announcement,
                    slot,
                    sibling,
                },
            )
            .await?;
        }
        // Checked here and not in the future: creating one costs more than the check.
        if self.tree_head().is_some() {
            Box::pin(self.list(batch, listed)).await?;
        }
        Ok(SplitOutcome::Made)
    }

    /// Writes the entry that announces a sibling to other clients. If it is never written, they
    /// find the sibling by its link.
    async fn announce(
        &self,
        batch: &mut Batch,
        announced: UnannouncedSplit,
    ) -> Result<(), IndexError> {
        let UnannouncedSplit {
            announcement,
            slot,
            sibling,
        } = announced;
        if slot < u64::from(announcement.capacity) {
            batch.clear();
            let entry = sibling.with_spare(announcement.parent_in_model);
            batch.write_word(announcement.entry(slot), entry.word());
            self.access.endpoint.execute(batch).await?;
        }
        if slot + 1 == announcement.due_split_count {
            enqueue(self.access.endpoint, self.access.layout, &announcement).await?;
        }
        Ok(())
    }

    /// Counts a leaf that deletes have made underfull, once each time that it becomes so.
    #[cold]
    fn post_underfull(&self, batch: &mut Batch, parent: u32) {
        let of_model = || {
            let layer = self.state.layer.borrow();
            let announcement = layer.announcement(parent).filter(|_| self.is_current());
            announcement.map(|it| it.underfull())
        };
        if let Some(counter) = self.state.underfull_counter.or_else(of_model) {
            batch.fetch_add(counter, 1);
        }
    }
}

/// Posts the verbs of a change if the leaf has space for it; returns false otherwise.
#[inline]
fn post_change(
    batch: &mut Batch,
    change: LeafChange,
    leaf: &mut LeafBuffer,
    key: u64,
    slot: Option<usize>,
    decision: Decision,
) -> bool {
    match (decision, slot) {
        (Decision::Set(value), Some(slot)) => change.update(batch, leaf, slot, value),
        (Decision::Remove, Some(slot)) => change.delete(batch, leaf, slot),
        (Decision::Set(value), None) => match leaf.image().free_slot() {
            Some(slot) => change.insert(batch, leaf, slot, key, value),
            None => return false,
        },
        (Decision::Keep, _) | (Decision::Remove, None) => change.unlock(batch),
    }
    true
}

/// Returns the leaf to lock for a key, if the search layer names one and the write does not queue
/// with others of its process.
fn leaf_to_lock(layer: &Layer, key: u64) -> Option<Hint> {
    match layer {
        Layer::InnerCache(_) => None,
        other => one_leaf_of(other, key),
    }
}

/// Finishes [`Index::leave`]: returns where to continue.
#[cold]
fn left(
    critical: Critical<'_>,
    addr: RemoteAddr,
    next: Result<Result<Hint, IndexError>, IndexError>,
) -> Result<Hint, IndexError> {
    match next {
        Ok(next) => {
            critical.passed();
            next
        }
        Err(error) => {
            // The lock is lost with the leaf's node.
            if error.lost_node() == Some(addr.node()) {
                critical.passed();
            }
            Err(error)
        }
    }
}
