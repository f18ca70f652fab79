//! Changing keys: two round trips when the hint is right (D5).

use farleaf_block::Recycled;
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_index::hint::Hint;
use farleaf_leaf::{Course, Critical, Look};
use farleaf_page::{Outside, PageBuffer, PageImage, Placement, Reference, Room};
use farleaf_types::{NodeId, WordAddr};

use super::change::{Change, Changed};
use super::provide::{Lacking, Lock, Provided, Provision, record_of};
use super::strings::Answer;
use super::{ByteIndex, Rare, check_key, check_value, low_of};
use crate::error::ByteIndexError;

/// A value that is changed where its page has no room for another like it goes outside from so many
/// bytes on; a shorter one makes the page be split, or repacked.
const OUTSIDE_SIZE_BYTES_MIN: usize = 64;

/// A session makes use of what it has unlinked when there are so many blocks of it.
const LIMBO_COUNT_MAX: usize = 256;

/// What an attempt under a page's lock has come to; the lock was given back, or is about to be by
/// the next one's batch.
pub(super) enum Step {
    /// It is over.
    Done(Changed),
    /// The key is elsewhere; the lock is still held.
    GoOn(Hint),
    /// Pages, or pieces of a size, have to be leased on the node of the page.
    LeasePages,
    /// The same of value blocks: so many of a size have to be there.
    LeaseBlocks(Lacking),
    /// There is room now: lock and look again.
    Again,
}

/// What is to be written of a key whose page is locked.
pub(super) struct Writing<'w> {
    pub(super) key: &'w [u8],
    pub(super) value: &'w [u8],
    /// The slot that has the key.
    pub(super) slot: Option<usize>,
    /// What the change unlinks.
    pub(super) released: Vec<Reference>,
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Locks the page that covers a key and changes the key, if the change's condition holds:
    /// atomically, and in two round trips when the hint is right and nothing has to be read that is
    /// outside. A large value takes one more, and one for each 256,000 bytes, before the lock.
    ///
    /// Dropping the future while it holds the page's lock leaves that locked; the session is then
    /// broken and must be closed. Dropping it while it waits for the lock does no harm.
    ///
    /// # Errors
    /// Key or value are too long, the pool is full, pages are damaged or contradict each other, or
    /// the table was dropped: nothing has changed. Or the fabric failed; the session is then
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
        let mut provided = Provided {
            provision: Provision::default(),
            state: self.state,
            lost: None,
        };
        let provision = &mut provided.provision;
        let changed = self.modify_with(batch, key, change, provision).await;
        provided.lost = changed.as_ref().err().and_then(ByteIndexError::lost_node);
        changed
    }

    /// BV4: makes use of what the session has unlinked and everybody has passed. Nothing if it has
    /// unlinked nothing, else one round trip, and 65,472 bytes; what it costs to free large blocks
    /// is at [`BlockStore::recycle`](farleaf_block::BlockStore::recycle).
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

    /// Makes use of what the session has unlinked, once that is a good deal, and more than the last
    /// time; two round trips then.
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
        self.provide_ahead(batch, (hint.addr.node(), key), change, provision)
            .await?;
        let (mut release, mut link_count) = (None, 0);
        let mut course = Course::<Vec<u8>>::default();
        let mut page = self.access.blank();
        let broken = &*self.state.broken;
        loop {
            self.access
                .lock(batch, hint.addr, release.take(), &mut page, broken)
                .await?;
            let critical = Critical::enter(broken);
            let at = (hint, &mut page);
            let stepped = self
                .step(batch, at, (key, change), (&mut course, provision))
                .await;
            let step = match stepped {
                Ok(step) => step,
                Err(error) => {
                    let at = (hint, provision.lock);
                    return Err(self.fail(batch, critical, at, error).await);
                }
            };
            provision.lock = Lock::Held;
            critical.passed();
            match step {
                Step::Done(changed) => {
                    self.state.note_links(link_count);
                    return Ok(changed);
                }
                Step::GoOn(next) => {
                    link_count += 1;
                    release = Some(hint.addr);
                    hint = next;
                }
                Step::LeasePages => self.lease_pages(hint.addr.node()).await?,
                Step::LeaseBlocks(lacking) => {
                    let wanted = (hint.addr.node(), lacking);
                    self.lease_blocks(batch, wanted, (key, change), provision)
                        .await?;
                }
                Step::Again => {}
            }
        }
    }

    /// An attempt under the lock has failed. Unless the fabric has, nothing has been changed, and
    /// the lock is given back. U4: where the page is lost with its node, so is the lock, and the
    /// session goes on; where another node is lost that has to do with it (strings, a new page, the
    /// model's counter), the lock is given back, if it has not been.
    #[cold]
    async fn fail(
        &self,
        batch: &mut Batch,
        critical: Critical<'_>,
        (hint, lock): (Hint, Lock),
        error: ByteIndexError,
    ) -> ByteIndexError {
        let lost = error.lost_node();
        let is_lost_elsewhere = lost.is_some_and(|node| node != hint.addr.node());
        if let Some(node) = lost {
            self.state.leases.forget(node);
            self.state.blocks.forget(node);
            // What was taken for new pages and what they unlink may lie elsewhere, and which of it
            // anything refers to by now only a search tells: that is for the sweep (BV8).
            self.state.blocks.lose_track();
        }
        if lock == Lock::Held && (error.fabric_failure().is_none() || is_lost_elsewhere) {
            batch.clear();
            self.access.post_unlock(batch, hint.addr);
            match self.access.endpoint.execute(batch).await {
                Err(failed) if failed.lost_node() != Some(hint.addr.node()) => {
                    return failed.into();
                }
                // Nobody is in the way of anybody on a node that is lost.
                Err(_) | Ok(()) => critical.passed(),
            }
        } else if lost == Some(hint.addr.node()) || (lock == Lock::Released && lost.is_some()) {
            critical.passed();
        }
        error
    }

    /// One attempt, with the page locked.
    async fn step(
        &self,
        batch: &mut Batch,
        (hint, page): (Hint, &mut PageBuffer),
        (key, change): (&[u8], &Change<'_>),
        (course, provision): (&mut Course<Vec<u8>>, &mut Provision),
    ) -> Result<Step, ByteIndexError> {
        let mut outside = Outside::new();
        let at = (hint.addr, &*page);
        let look = self.look_surely(batch, at, key, &mut outside).await?;
        let low = low_of(page.image());
        let look = surely_covered(look, (page.image(), key, &outside), course);
        let is_checked = !self.leaves_out(ProtocolCheck::KeyBelongsToLockedLeaf);
        if look != Look::Here && is_checked {
            if look == Look::Torn {
                // Under the lock a page refers to what is there.
                return Err(self.damaged(hint.addr));
            }
            if let Some(low) = low.as_deref().filter(|_| !page.image().is_retired()) {
                self.learn(low, hint);
            }
            let next = self.go_on(batch, course, key, (hint, low), look)?;
            return Ok(Step::GoOn(next));
        }
        if let Some(low) = low {
            self.learn(&low, hint);
        }
        let slot = match self.find_surely(batch, at, key, &mut outside).await? {
            Answer::Record(slot) => Some(slot),
            Answer::Absent => None,
            Answer::Stale => return Err(self.damaged(hint.addr)),
        };
        let mut changed = Changed {
            was_present: slot.is_some(),
            ..Changed::default()
        };
        if let Some(slot) = slot.filter(|_| change.needs_previous()) {
            let mut previous = Vec::new();
            if !self.read_value(batch, at, slot, &mut previous).await? {
                return Err(self.damaged(hint.addr));
            }
            changed.previous = Some(previous);
        }
        changed.is_done = change.applies_to(slot.is_some(), changed.previous.as_deref());
        if !changed.is_done || (slot.is_none() && change.value.is_none()) {
            batch.clear();
            self.access.post_unlock(batch, hint.addr);
            self.access.endpoint.execute(batch).await?;
            return Ok(Step::Done(changed));
        }
        let released = slot.map_or_else(Vec::new, |slot| {
            let image = page.image();
            let key = image
                .key(slot)
                .reference()
                .filter(|_| change.value.is_none());
            let value = image.value(slot).reference();
            key.into_iter().chain(value).collect()
        });
        let Some(value) = change.value else {
            let slot = slot.expect("an absent key is not removed");
            self.remove(batch, (hint, page), slot, (&released, provision))
                .await?;
            return Ok(Step::Done(changed));
        };
        let writing = Writing {
            key,
            value,
            slot,
            released,
        };
        let put: Rare<'_, _> = Box::pin(self.put(batch, (hint, page), writing, provision, outside));
        Ok(match put.await? {
            None => Step::Done(changed),
            Some(step) => step,
        })
    }

    async fn remove(
        &self,
        batch: &mut Batch,
        (hint, page): (Hint, &mut PageBuffer),
        slot: usize,
        (released, provision): (&[Reference], &mut Provision),
    ) -> Result<(), ByteIndexError> {
        batch.clear();
        let unlinked = self.post_unlinks(batch, (hint.addr, released)).await?;
        let before_bytes = page.image().used_size_bytes();
        self.change(hint.addr).delete(batch, page, slot);
        let after_bytes = page.image().used_size_bytes();
        let is_underfull = self.becomes_underfull(before_bytes, after_bytes);
        let announcement = self.announcement(hint.parent).filter(|_| is_underfull);
        let counter = announcement.map(|it| it.underfull());
        // U4: where the counter lies on another node, that may be lost while this changes the page.
        let is_here = |counter: &WordAddr| counter.node() == hint.addr.node();
        if let Some(counter) = counter.filter(is_here) {
            batch.fetch_add(counter, 1);
        }
        provision.lock = Lock::Committing;
        self.access.endpoint.execute(batch).await?;
        provision.lock = Lock::Released;
        self.retire_blocks(unlinked);
        if let Some(counter) = counter.filter(|counter| !is_here(counter)) {
            batch.clear();
            batch.fetch_add(counter, 1);
            self.access.endpoint.execute(batch).await?;
        }
        Ok(())
    }

    /// Writes a record, new or changed, into a locked page that covers its key. `None`: it is done;
    /// else what has to be done before it can be.
    async fn put(
        &self,
        batch: &mut Batch,
        (hint, page): (Hint, &mut PageBuffer),
        writing: Writing<'_>,
        provision: &mut Provision,
        outside: Outside,
    ) -> Result<Option<Step>, ByteIndexError> {
        let node = hint.addr.node();
        if let Some(lacking) = self.provide(node, page, &writing, provision)? {
            self.give_lock_back(batch, hint).await?;
            return Ok(Some(Step::LeaseBlocks(lacking)));
        }
        let record = record_of(page.image(), &writing, provision);
        batch.clear();
        let is_late = self.leaves_out(ProtocolCheck::BlockIsWholeFirst);
        if !is_late {
            self.post_provision(batch, &writing, provision)?;
        }
        let unlinked = self
            .post_unlinks(batch, (hint.addr, &writing.released))
            .await?;
        let change = self.change(hint.addr);
        let room = match writing.slot {
            Some(slot) => change.update(batch, page, slot, record.value),
            None => change.insert(batch, page, &record),
        };
        if room == Room::Enough {
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
            // A split would not help: the page has room for the value once, and not for the old one
            // and the new one at the same time.
            provision.is_value_outside = true;
            return Box::pin(self.put(batch, (hint, page), writing, provision, outside)).await;
        }
        let made = self.make_room(batch, (hint, page), (&writing, provision), outside);
        made.await
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
        let shape = crate::load::page_shape(self.access.geometry);
        let leased = self.state.leases.lease_more(&self.access, shape, node);
        let leased = Box::pin(leased).await.map_err(ByteIndexError::from);
        Self::pass_unless_unknown(critical, &leased);
        leased
    }

    /// A4, F5: where the outcome is unknown, a chunk may be this session's without its knowing; not
    /// one of a lost node's (U4).
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

/// BR6: where it cannot be told that a key is not to the left of a retired page, it may be in one
/// that is still to be retired in favour of the same page, which is not to be changed before. Who
/// came by a link from further left has been there.
fn surely_covered(
    look: Look,
    (image, key, outside): (PageImage<'_>, &[u8], &Outside),
    course: &Course<Vec<u8>>,
) -> Look {
    // What is unsure of a page whose lower fence is in it is where it ends.
    let may_be_left = matches!(look, Look::Retired(_)) && low_of(image).is_none();
    let is_unsure = || matches!(image.placement(key, outside), Placement::Unsure(_));
    if may_be_left && !course.has_gone_right() && is_unsure() {
        return Look::Left;
    }
    look
}
