//! Changes keys: two round trips when the hint is right (LEAF-5).

use crate::hint::Hint;
use farleaf_base::{NodeId, WordAddr};
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_leaf::blobs::Recycled;
use farleaf_leaf::strings::{FitOutcome, KeyPlacement, Outside, PageBuffer, PageImage, Reference};
use farleaf_leaf::words::{Critical, LeafCheck, SearchPath};

use super::change::{Change, Changed};
use super::provide::{MissingPieces, PageLockState, Provision, ProvisionGuard, record_of};
use super::strings::SlotAnswer;
use super::{ByteIndex, Rare, check_key, check_value, low_of};
use crate::strings::error::ByteIndexError;

/// Minimum size, in bytes, of a changed value that is stored outside if the old and the new value
/// do not both fit into the page. For a shorter one the page is split or repacked.
const OUTSIDE_SIZE_BYTES_MIN: usize = 64;

/// Number of unlinked blocks at which a session recycles them.
const LIMBO_COUNT_MAX: usize = 256;

/// Result of an attempt under a page's lock. The lock was released, or the next attempt's batch
/// releases it.
pub(super) enum WriteStep {
    /// The change is complete.
    Done(Changed),
    /// The key is in another page; the lock is still held.
    GoOn(Hint),
    /// Pages must be leased on the node of the page.
    LeasePages,
    /// Pieces for value blocks must be leased.
    LeaseBlocks(MissingPieces),
    /// There is free space now: lock and examine the page again.
    Again,
}

/// Page that is locked for a change.
pub(super) struct LockedPage<'p> {
    pub(super) hint: Hint,
    pub(super) page: &'p mut PageBuffer,
    /// Strings outside the page, as far as they were read.
    pub(super) outside: Outside,
}

/// Record to be written into a locked page.
pub(super) struct RecordWrite<'w> {
    pub(super) key: &'w [u8],
    pub(super) value: &'w [u8],
    /// Slot that contains the key.
    pub(super) slot: Option<usize>,
    /// Value blocks that the change unlinks.
    pub(super) released: Vec<Reference>,
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Locks the page that covers a key and changes the key atomically, if the change's condition
    /// holds. Costs two round trips when the hint is right and no strings outside the page are
    /// needed. A large value costs one more, and one for each 256,000 bytes, before the lock.
    ///
    /// Dropping the future while it holds the page's lock leaves the page locked; the session is
    /// then broken and must be closed. Dropping it while it waits for the lock does no harm.
    ///
    /// # Errors
    /// If key or value are too long, the pool is full, pages are corrupted or contradict each
    /// other, or the table was dropped, nothing has changed. If the fabric failed, the session is
    /// broken.
    pub async fn modify(
        &self,
        batch: &mut Batch,
        key: &[u8],
        change: &Change<'_>,
    ) -> Result<Changed, ByteIndexError> {
        check_key(key)?;
        check_value(change.value.unwrap_or_default())?;
        self.shorten_limbo().await?;
        let mut provided = ProvisionGuard {
            provision: Provision::default(),
            state: self.state,
            lost: None,
        };
        let provision = &mut provided.provision;
        let changed = self.modify_with(batch, key, change, provision).await;
        provided.lost = changed.as_ref().err().and_then(ByteIndexError::lost_node);
        changed
    }

    /// Recycles blocks that the session has unlinked and that no session can still read. Costs
    /// nothing if there are no unlinked blocks, else one round trip that reads 65,472 bytes. For
    /// the cost of freeing large blocks, see
    /// [`BlockStore::recycle`](farleaf_leaf::blobs::BlockStore::recycle).
    ///
    /// # Errors
    /// The fabric failed; the session is then broken.
    pub async fn recycle(&self) -> Result<Recycled, ByteIndexError> {
        let critical = Critical::enter(&self.state.broken);
        let recycled = Box::pin(self.state.blocks.recycle(&self.blocks())).await;
        let recycled = recycled.map_err(ByteIndexError::from);
        Self::pass_unless_unknown(critical, &recycled);
        recycled
    }

    /// Recycles unlinked blocks when there are many, and more than the last time. Costs two round
    /// trips then.
    async fn shorten_limbo(&self) -> Result<(), ByteIndexError> {
        let limbo_count = self.state.blocks.held().limbo_count;
        if limbo_count < self.state.limbo_count_next.get() {
            return Ok(());
        }
        let waiting_count = self.recycle().await?.waiting_count;
        let next = (waiting_count + LIMBO_COUNT_MAX / 2).max(LIMBO_COUNT_MAX);
        self.state.limbo_count_next.set(next);
        Ok(())
    }

    async fn modify_with(
        &self,
        batch: &mut Batch,
        key: &[u8],
        change: &Change<'_>,
        provision: &mut Provision,
    ) -> Result<Changed, ByteIndexError> {
        let place = self.place(batch, key).await?;
        let mut hint = place.also.unwrap_or(place.page);
        self.provide_ahead(batch, hint.addr.node(), key, change, provision)
            .await?;
        let (mut release, mut link_count) = (None, 0);
        let mut course = SearchPath::<Vec<u8>>::default();
        let mut page = self.access.blank();
        let broken = &*self.state.broken;
        loop {
            self.access
                .lock(batch, hint.addr, release.take(), &mut page, broken)
                .await?;
            let critical = Critical::enter(broken);
            let at = LockedPage {
                hint,
                page: &mut page,
                outside: Outside::new(),
            };
            let stepped = self
                .step(batch, at, key, change, &mut course, provision)
                .await;
            let step = match stepped {
                Ok(step) => step,
                Err(error) => {
                    let lock = provision.lock;
                    return Err(self.fail(batch, critical, hint, lock, error).await);
                }
            };
            provision.lock = PageLockState::Held;
            critical.passed();
            match step {
                WriteStep::Done(changed) => {
                    self.state.note_links(link_count);
                    return Ok(changed);
                }
                WriteStep::GoOn(next) => {
                    link_count += 1;
                    release = Some(hint.addr);
                    hint = next;
                }
                WriteStep::LeasePages => self.lease_pages(hint.addr.node()).await?,
                WriteStep::LeaseBlocks(lacking) => {
                    let node = hint.addr.node();
                    self.lease_blocks(batch, node, lacking, key, change, provision)
                        .await?;
                }
                WriteStep::Again => {}
            }
        }
    }

    /// Cleans up after an attempt failed under the lock. If the cause is not the fabric, nothing
    /// has changed, and the lock is released. If the page's node is lost, the lock is lost with it,
    /// and the session continues. If another node is lost that the attempt needed (strings, a new
    /// page, the model's counter), the lock is released unless it already was.
    #[cold]
    async fn fail(
        &self,
        batch: &mut Batch,
        critical: Critical<'_>,
        hint: Hint,
        lock: PageLockState,
        error: ByteIndexError,
    ) -> ByteIndexError {
        let lost = error.lost_node();
        let is_lost_elsewhere = lost.is_some_and(|node| node != hint.addr.node());
        if let Some(node) = lost {
            self.state.leases.forget(node);
            self.state.blocks.forget(node);
            // Blocks taken for new pages and the ones that they unlink may lie on other nodes. Only
            // a search finds which of them are referenced now, so the sweep settles them.
            self.state.blocks.note_unknown_blocks();
        }
        if lock == PageLockState::Held && (error.fabric_failure().is_none() || is_lost_elsewhere) {
            batch.clear();
            self.access.post_unlock(batch, hint.addr);
            match self.access.endpoint.execute(batch).await {
                Err(failed) if failed.lost_node() != Some(hint.addr.node()) => {
                    return failed.into();
                }
                // On a lost node the lock blocks no session.
                Err(_) | Ok(()) => critical.passed(),
            }
        } else if lost == Some(hint.addr.node())
            || (lock == PageLockState::Released && lost.is_some())
        {
            critical.passed();
        }
        error
    }

    /// Makes one attempt, with the page locked.
    async fn step(
        &self,
        batch: &mut Batch,
        mut at: LockedPage<'_>,
        key: &[u8],
        change: &Change<'_>,
        course: &mut SearchPath<Vec<u8>>,
        provision: &mut Provision,
    ) -> Result<WriteStep, ByteIndexError> {
        let addr = at.hint.addr;
        let look = self.look_with_strings(batch, addr, at.page, key, &mut at.outside);
        let look = look.await?;
        let low = low_of(at.page.image());
        let look = check_covered(look, at.page.image(), key, &at.outside, course);
        let is_checked = !self.skips_check(ProtocolCheck::KeyBelongsToLockedLeaf);
        if look != LeafCheck::Here && is_checked {
            if look == LeafCheck::Torn {
                // While the page is locked, all strings that it refers to exist.
                return Err(self.damaged(addr));
            }
            if let Some(low) = low.as_deref().filter(|_| !at.page.image().is_retired()) {
                self.learn(low, at.hint);
            }
            let next = self.go_on(batch, course, key, at.hint, low, look)?;
            return Ok(WriteStep::GoOn(next));
        }
        if let Some(low) = low {
            self.learn(&low, at.hint);
        }
        let found = self.find_with_strings(batch, addr, at.page, key, &mut at.outside);
        let slot = match found.await? {
            SlotAnswer::Record(slot) => Some(slot),
            SlotAnswer::Absent => None,
            SlotAnswer::Stale => return Err(self.damaged(addr)),
        };
        let mut changed = Changed {
            was_present: slot.is_some(),
            ..Changed::default()
        };
        if let Some(slot) = slot.filter(|_| change.needs_previous()) {
            let mut previous = Vec::new();
            let read = self.read_value(batch, addr, at.page, slot, &mut previous);
            if !read.await? {
                return Err(self.damaged(addr));
            }
            changed.previous = Some(previous);
        }
        changed.is_done = change.applies_to(slot.is_some(), changed.previous.as_deref());
        if !changed.is_done || (slot.is_none() && change.value.is_none()) {
            batch.clear();
            self.access.post_unlock(batch, addr);
            self.access.endpoint.execute(batch).await?;
            return Ok(WriteStep::Done(changed));
        }
        let released = slot.map_or_else(Vec::new, |slot| {
            let image = at.page.image();
            let key = image
                .key(slot)
                .reference()
                .filter(|_| change.value.is_none());
            let value = image.value(slot).reference();
            key.into_iter().chain(value).collect()
        });
        let Some(value) = change.value else {
            let slot = slot.expect("an absent key is not removed");
            self.remove(batch, at.hint, at.page, slot, &released, provision)
                .await?;
            return Ok(WriteStep::Done(changed));
        };
        let writing = RecordWrite {
            key,
            value,
            slot,
            released,
        };
        let put: Rare<'_, _> = Box::pin(self.put(batch, at, writing, provision));
        Ok(match put.await? {
            None => WriteStep::Done(changed),
            Some(step) => step,
        })
    }

    async fn remove(
        &self,
        batch: &mut Batch,
        hint: Hint,
        page: &mut PageBuffer,
        slot: usize,
        released: &[Reference],
        provision: &mut Provision,
    ) -> Result<(), ByteIndexError> {
        batch.clear();
        let unlinked = self.post_unlinks(batch, hint.addr, released).await?;
        let before_bytes = page.image().used_size_bytes();
        self.change(hint.addr).delete(batch, page, slot);
        let after_bytes = page.image().used_size_bytes();
        let is_underfull = self.becomes_underfull(before_bytes, after_bytes);
        let announcement = self.announcement(hint.parent).filter(|_| is_underfull);
        let counter = announcement.map(|it| it.underfull());
        // If the counter lies on another node, that node may be lost while this batch changes the
        // page.
        let is_here = |counter: &WordAddr| counter.node() == hint.addr.node();
        if let Some(counter) = counter.filter(is_here) {
            batch.fetch_add(counter, 1);
        }
        provision.lock = PageLockState::Committing;
        self.access.endpoint.execute(batch).await?;
        provision.lock = PageLockState::Released;
        self.retire_blocks(unlinked);
        if let Some(counter) = counter.filter(|counter| !is_here(counter)) {
            batch.clear();
            batch.fetch_add(counter, 1);
            self.access.endpoint.execute(batch).await?;
        }
        Ok(())
    }

    /// Writes a new or changed record into a locked page that covers its key. Returns `None` on
    /// success, else the step that is needed first.
    async fn put(
        &self,
        batch: &mut Batch,
        at: LockedPage<'_>,
        writing: RecordWrite<'_>,
        provision: &mut Provision,
    ) -> Result<Option<WriteStep>, ByteIndexError> {
        let addr = at.hint.addr;
        if let Some(lacking) = self.provide(addr.node(), at.page, &writing, provision)? {
            self.give_lock_back(batch, at.hint).await?;
            return Ok(Some(WriteStep::LeaseBlocks(lacking)));
        }
        let record = record_of(at.page.image(), &writing, provision);
        batch.clear();
        let is_late = self.skips_check(ProtocolCheck::BlockIsCompleteFirst);
        if !is_late {
            self.post_provision(batch, &writing, provision)?;
        }
        let unlinked = self.post_unlinks(batch, addr, &writing.released).await?;
        let change = self.change(addr);
        let fit = match writing.slot {
            Some(slot) => change.update(batch, at.page, slot, record.value),
            None => change.insert(batch, at.page, &record),
        };
        if fit == FitOutcome::Enough {
            if is_late {
                self.post_provision(batch, &writing, provision)?;
            }
            provision.commit();
            self.access.endpoint.execute(batch).await?;
            self.retire_blocks(unlinked);
            return Ok(None);
        }
        let is_long = writing.value.len() >= OUTSIDE_SIZE_BYTES_MIN;
        if writing.slot.is_some() && is_long && provision.value.is_none() {
            // A split would not help: the page has space for the value once, but not for the old
            // and the new one at the same time.
            provision.is_value_outside = true;
            return Box::pin(self.put(batch, at, writing, provision)).await;
        }
        self.split_or_replace(batch, at, &writing, provision).await
    }

    pub(super) async fn give_lock_back(
        &self,
        batch: &mut Batch,
        hint: Hint,
    ) -> Result<(), ByteIndexError> {
        batch.clear();
        self.access.post_unlock(batch, hint.addr);
        Ok(self.access.endpoint.execute(batch).await?)
    }

    /// Leases pages for splits on a node.
    pub(super) async fn lease_pages(&self, node: NodeId) -> Result<(), ByteIndexError> {
        let critical = Critical::enter(&self.state.broken);
        let shape = crate::strings::load::page_shape(self.access.geometry);
        let leased = self.state.leases.lease_more(&self.access, shape, node);
        let leased = Box::pin(leased).await.map_err(ByteIndexError::from);
        Self::pass_unless_unknown(critical, &leased);
        leased
    }

    /// Ends the critical section of a lease, unless its outcome is unknown: then the session may
    /// own a chunk that it does not know of (FABRIC-5). Chunks on a lost node do not matter.
    pub(super) fn pass_unless_unknown<R>(
        critical: Critical<'_>,
        leased: &Result<R, ByteIndexError>,
    ) {
        let error = leased.as_ref().err();
        let is_known = error
            .is_none_or(|error| error.fabric_failure().is_none() || error.lost_node().is_some());
        if is_known {
            critical.passed();
        }
    }
}

/// Returns whether a retired page certainly covers the key. If the key may be to the left, it may
/// be in a page that is still to be retired in favor of the same successor. The successor must not
/// be changed before that. A walk that arrived by a link from further left has already checked that
/// page.
fn check_covered(
    look: LeafCheck,
    image: PageImage<'_>,
    key: &[u8],
    outside: &Outside,
    course: &SearchPath<Vec<u8>>,
) -> LeafCheck {
    // If a page stores its lower fence itself, only the upper fence can be unknown.
    let may_be_left = matches!(look, LeafCheck::Retired(_)) && low_of(image).is_none();
    let is_unsure = || matches!(image.placement(key, outside), KeyPlacement::Unsure(_));
    if may_be_left && !course.has_gone_right() && is_unsure() {
        return LeafCheck::Left;
    }
    look
}
