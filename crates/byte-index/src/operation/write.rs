//! Changing keys: two round trips when the hint is right (D5).

use farleaf_block::{BlockError, Content, Recycled, Role, SizeClass};
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_index::hint::Hint;
use farleaf_leaf::{Course, Critical, Look};
use farleaf_page::{NewKey, NewRecord, Outside, PageBuffer, PageImage, Reference, Room, Value};
use farleaf_types::NodeId;

use super::blocks::{Take, Taken, is_ahead};
use super::change::{Change, Changed};
use super::strings::Answer;
use super::{ByteIndex, ByteIndexState, Rare, check_key, check_value, low_of};
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
    LeaseBlocks(SizeClass, usize),
    /// There is room now: lock and look again.
    Again,
}

/// What a change has taken before, or under, the lock.
#[derive(Default)]
pub(super) struct Provision {
    /// The value's block, if the value is outside.
    pub(super) value: Option<Taken>,
    /// The key's block, if the key is.
    pub(super) key: Option<Taken>,
    /// Whether the value must be outside although it is short.
    is_value_outside: bool,
    /// What has become of the lock of the page that is worked on.
    pub(super) lock: Lock,
}

/// The lock of a page that an attempt works on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Lock {
    /// It is held, and nothing of the page has been changed.
    #[default]
    Held,
    /// The batch that changes the page and gives the lock back is under way.
    Committing,
    /// It has been given back.
    Released,
}

/// What a change has taken, which goes back when the change ends, also if its future is dropped
/// where it stands: a session that is not broken by that would close as one that holds nothing.
struct Provided<'s> {
    provision: Provision,
    state: &'s ByteIndexState,
    /// Nothing on this node is anybody's any more (U4).
    lost: Option<NodeId>,
}

impl Drop for Provided<'_> {
    fn drop(&mut self) {
        // F5: what a batch of unknown outcome refers to stays this session's until that is closed.
        if self.state.broken.get() {
            return;
        }
        let unused = [self.provision.value.take(), self.provision.key.take()];
        for unused in unused.into_iter().flatten() {
            if Some(unused.pointer.place().node()) != self.lost {
                self.state.blocks.put_back(unused.pointer);
            }
        }
    }
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
    /// unlinked nothing, else one round trip, and 65,472 bytes; what it costs to free large blocks is
    /// at [`BlockStore::recycle`](farleaf_block::BlockStore::recycle).
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
                Step::LeaseBlocks(class, count) => {
                    let wanted = (hint.addr.node(), class, count);
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
        let is_checked = !self.leaves_out(ProtocolCheck::KeyBelongsToLockedLeaf);
        if look != Look::Here && is_checked {
            if look == Look::Torn {
                // Under the lock a page refers to what is there.
                return Err(self.damaged(hint.addr));
            }
            if let Some(low) = low.as_deref().filter(|_| !matches!(look, Look::Retired(_))) {
                self.learn(low, hint);
            }
            let next = self.go_on(batch, course, key, (hint, low), look)?;
            return Ok(Step::GoOn(next));
        }
        if let Some(low) = low {
            self.learn(&low, hint);
        }
        let at = (hint.addr, &*page);
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
        self.change(hint.addr).delete(batch, page, slot);
        provision.lock = Lock::Committing;
        self.access.endpoint.execute(batch).await?;
        self.retire_blocks(unlinked);
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
        if let Some(class) = self.provide(node, page, &writing, provision)? {
            self.give_lock_back(batch, hint).await?;
            return Ok(Some(Step::LeaseBlocks(class, 1)));
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
            provision.lock = Lock::Committing;
            self.access.endpoint.execute(batch).await?;
            (provision.value, provision.key) = (None, None);
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

    fn is_value_outside(&self, value: &[u8], provision: &Provision) -> bool {
        let geometry = self.access.geometry;
        let inline = self.state.inline_value_size_bytes;
        provision.is_value_outside || !geometry.is_value_inline(value.len(), inline)
    }

    /// Writes what is large before the page is locked.
    async fn provide_ahead(
        &self,
        batch: &mut Batch,
        (node, key): (NodeId, &[u8]),
        change: &Change<'_>,
        provision: &mut Provision,
    ) -> Result<(), ByteIndexError> {
        let Some(value) = change
            .value
            .filter(|it| self.is_value_outside(it, provision))
        else {
            return Ok(());
        };
        let content = Self::content(Role::Value, key, value)?;
        if is_ahead(&content) {
            provision.value = Some(self.write_critically(batch, node, &content).await?);
        }
        Ok(())
    }

    /// [`write_ahead`](Self::write_ahead) in critical time: cut off, the session may own chunks
    /// that it does not know of.
    async fn write_critically(
        &self,
        batch: &mut Batch,
        node: NodeId,
        content: &Content<'_>,
    ) -> Result<Taken, ByteIndexError> {
        let critical = Critical::enter(&self.state.broken);
        let written = Box::pin(self.write_ahead(batch, node, content)).await;
        Self::pass_unless_unknown(critical, &written);
        written
    }

    /// Takes the pieces that a record needs and that are not there yet; the class that is missing.
    fn provide(
        &self,
        node: NodeId,
        page: &PageBuffer,
        writing: &Writing<'_>,
        provision: &mut Provision,
    ) -> Result<Option<SizeClass>, ByteIndexError> {
        // BV1: what is written with the page's batch lies on its node.
        for taken in [&mut provision.value, &mut provision.key] {
            let is_astray = |it: &Taken| !it.is_written && it.pointer.place().node() != node;
            if let Some(astray) = taken.take_if(|it| is_astray(it)) {
                self.state.blocks.put_back(astray.pointer);
            }
        }
        if provision.value.is_none() && self.is_value_outside(writing.value, provision) {
            let content = Self::content(Role::Value, writing.key, writing.value)?;
            match self.take(node, &content) {
                Take::Taken(taken) => provision.value = Some(taken),
                Take::Lease(class) => return Ok(Some(class)),
            }
        }
        let suffix_size_bytes = writing.key.len() - page.image().prefix_size_bytes();
        let is_inline = self.access.geometry.is_suffix_inline(suffix_size_bytes);
        if is_inline || writing.slot.is_some() {
            // The page that it was for has been split since, or another operation has written the
            // key meanwhile: its record keeps the block that it has.
            if let Some(unused) = provision.key.take() {
                self.state.blocks.put_back(unused.pointer);
            }
        } else if provision.key.is_none() {
            let content = Self::content(Role::Key, writing.key, writing.key)?;
            match self.take(node, &content) {
                Take::Taken(taken) => provision.key = Some(taken),
                Take::Lease(class) => return Ok(Some(class)),
            }
        }
        Ok(None)
    }

    /// Posts the WRITEs of the blocks that a record refers to. (BV1: those on another node than the
    /// page are written already.)
    pub(super) fn post_provision(
        &self,
        batch: &mut Batch,
        writing: &Writing<'_>,
        provision: &Provision,
    ) -> Result<(), ByteIndexError> {
        if let Some(taken) = provision.value {
            let content = Self::content(Role::Value, writing.key, writing.value)?;
            self.post_taken(batch, taken, &content);
        }
        if let Some(taken) = provision.key {
            let content = Self::content(Role::Key, writing.key, writing.key)?;
            self.post_taken(batch, taken, &content);
        }
        Ok(())
    }

    /// Leases pages for splits on a node.
    async fn lease_pages(&self, node: NodeId) -> Result<(), ByteIndexError> {
        let critical = Critical::enter(&self.state.broken);
        let shape = crate::load::page_shape(self.access.geometry);
        let leased = self.state.leases.lease_more(&self.access, shape, node);
        let leased = Box::pin(leased).await.map_err(ByteIndexError::from);
        Self::pass_unless_unknown(critical, &leased);
        leased
    }

    /// A4, F5: where the outcome is unknown, a chunk may be this session's without its knowing; not
    /// one of a lost node's (U4).
    fn pass_unless_unknown<R>(critical: Critical<'_>, leased: &Result<R, ByteIndexError>) {
        let error = leased.as_ref().err();
        let is_known = error
            .is_none_or(|error| error.fabric_failure().is_none() || error.lost_node().is_some());
        if is_known {
            critical.passed();
        }
    }

    /// Leases value blocks on a node; if there is no room there, writes the value elsewhere, ahead.
    async fn lease_blocks(
        &self,
        batch: &mut Batch,
        (node, class, count): (NodeId, SizeClass, usize),
        (key, change): (&[u8], &Change<'_>),
        provision: &mut Provision,
    ) -> Result<(), ByteIndexError> {
        // What this session has unlinked may be free by now, which costs less than a chunk.
        let blocks = self.blocks();
        let critical = Critical::enter(&self.state.broken);
        let leased = async {
            self.state.blocks.recycle(&blocks).await?;
            while self.state.blocks.piece_count(node, class) < count {
                self.state.blocks.lease_more(&blocks, node, class).await?;
            }
            Ok::<_, BlockError>(())
        };
        let leased = Box::pin(leased).await.map_err(ByteIndexError::from);
        Self::pass_unless_unknown(critical, &leased);
        match (leased, change.value) {
            (Err(error), Some(value)) if error.is_full() && provision.value.is_none() => {
                let content = Self::content(Role::Value, key, value)?;
                provision.value = Some(self.write_critically(batch, node, &content).await?);
                provision.is_value_outside = true;
                Ok(())
            }
            (leased, _) => leased,
        }
    }
}

/// What a page is given of a record whose blocks are provided. A key that the page has outside
/// stays where it is.
pub(super) fn record_of<'w>(
    image: PageImage<'_>,
    writing: &Writing<'w>,
    provision: &Provision,
) -> NewRecord<'w> {
    let known = writing.slot.and_then(|slot| image.key(slot).reference());
    let key_block = known.or(provision.key.map(|taken| taken.reference));
    NewRecord {
        key: match key_block {
            None => NewKey::Inline(writing.key),
            Some(reference) => NewKey::Outside(writing.key, reference),
        },
        value: match provision.value {
            None => Value::Inline(writing.value),
            Some(taken) => Value::Outside(taken.reference),
        },
    }
}
