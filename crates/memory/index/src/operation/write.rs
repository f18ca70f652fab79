//! Changing keys: two round trips when the hint is right (D5).

use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_leaf::change::{LeafChange, SplitRequest};
use farleaf_leaf::{Course, Critical, LeafBuffer, LeaseShape, Look};
use farleaf_region::RegionError;
use farleaf_types::RemoteAddr;

use super::in_turn::Queue;
use super::read::one_leaf_of;
use super::{Index, Rare};
use crate::IndexError;
use crate::announced::enqueue;
use crate::hint::{Announcement, Hint, SearchLayer};
use crate::layer::Layer;
use crate::tree::node::Entry;

/// A leaf is underfull when not more than one in so many of its slots has a record: two of them
/// become one when they are retrained, and leave it half empty.
const UNDERFULL_SHARE: usize = 4;

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

/// What became of a full leaf.
enum Room {
    /// It was split, and the record is in.
    Made,
    /// Leaves were leased; the lock was given back.
    Leased,
    /// There are none to lease; the lock was given back.
    None(RegionError),
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
    /// Dropping the future while it holds the leaf's lock leaves that locked; the session is then
    /// broken and must be closed. Dropping it while it waits for the lock does no harm, unless
    /// another writer of the process has promised it, or handed it over, meanwhile (H4).
    ///
    /// # Errors
    /// The pool is full, leaves are damaged or contradict each other, or the table was dropped:
    /// nothing has changed. Or the fabric failed; the session is then broken.
    #[inline]
    pub async fn modify<R>(
        &self,
        batch: &mut Batch,
        key: u64,
        mut decide: impl FnMut(Option<u64>) -> (Decision, R),
    ) -> Result<R, IndexError> {
        let mut queue = Queue::ALONE;
        let mut hint = if let Some(hint) = self.one_leaf_or(key, leaf_to_lock) {
            hint
        } else {
            let hint = self.hint_to_lock(batch, key).await?;
            queue = self.queue_for(hint.addr).await;
            hint
        };
        let mut release = None;
        let mut course = Course::default();
        let mut leaf = self.access.blank();
        let broken = &*self.state.broken;
        loop {
            let (addr, leaf_now) = (hint.addr, &mut leaf);
            if let Some(in_turn) = queue.in_turn() {
                let lock: Rare<'_, _> =
                    Box::pin(self.lock_in_turn(batch, (addr, release), in_turn, leaf_now));
                lock.await?;
            } else {
                let lock = self.access.lock(batch, addr, release, leaf_now, broken);
                lock.await?;
            }
            let critical = Critical::enter(broken);
            let look = self.access.look_intact(leaf.image(), key);
            let is_checked = !self.leaves_out(ProtocolCheck::KeyBelongsToLockedLeaf);
            if look != Look::Here && is_checked {
                let next: Rare<'_, _> =
                    Box::pin(self.leave(batch, key, (hint, look), &leaf, &mut course));
                // What is still locked is given back by the first verb of the next lock.
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
            let change = self.access.change(hint.addr).handing_to(queue.next());
            if post_change(batch, (change, &mut leaf), (key, slot), decision) {
                let is_removed = decision == Decision::Remove && slot.is_some();
                if is_removed && leaf.image().record_count() == self.underfull_count() {
                    self.post_underfull(batch, hint.parent);
                }
                if let Err(error) = self.access.endpoint.execute(batch).await {
                    if self.leaves_out(ProtocolCheck::HandOverIsConfirmed) {
                        queue.hand_over(&leaf);
                    }
                    return Err(self.lost_with(critical, hint.addr, error.into()));
                }
            } else if let Decision::Set(value) = decision {
                queue.step_aside();
                let room: Rare<'_, _> =
                    Box::pin(self.make_room(batch, &mut leaf, hint, (key, value)));
                if self.made(critical, hint.addr, room.await)? {
                    return Ok(result);
                }
                continue;
            }
            critical.passed();
            queue.hand_over(&leaf);
            return Ok(result);
        }
    }

    /// The end of [`make_room`](Self::make_room). False: leaves were leased, and the leaf has to be
    /// locked anew.
    #[cold]
    fn made(
        &self,
        critical: Critical<'_>,
        addr: RemoteAddr,
        room: Result<Room, IndexError>,
    ) -> Result<bool, IndexError> {
        match room {
            Ok(Room::None(error)) => {
                // A4, F5: a chunk may be this session's without its knowing; not one of a lost
                // node's (U4).
                let is_unknown = matches!(error, RegionError::Fabric(_));
                if !is_unknown || error.lost_node().is_some() {
                    critical.passed();
                }
                Err(error.into())
            }
            Ok(made) => {
                critical.passed();
                Ok(matches!(made, Room::Made))
            }
            Err(error) => Err(self.lost_with(critical, addr, error)),
        }
    }

    /// A failure in critical time. U4: where the leaf is lost with its node, so is the lock, and
    /// what is leased there, and the session goes on.
    #[cold]
    fn lost_with(&self, critical: Critical<'_>, addr: RemoteAddr, error: IndexError) -> IndexError {
        if error.lost_node() == Some(addr.node()) {
            self.state.forget_leases(addr.node());
            critical.passed();
        }
        error
    }

    /// A leaf that has so many records after a delete has become underfull.
    #[inline]
    fn underfull_count(&self) -> usize {
        self.access.geometry.slot_count() / UNDERFULL_SHARE
    }

    /// Where to go from a locked leaf that does not cover the key; the lock is kept, to be given
    /// back with the next one's batch. The inner error comes with the lock given back.
    #[cold]
    async fn leave(
        &self,
        batch: &mut Batch,
        key: u64,
        (hint, look): (Hint, Look),
        leaf: &LeafBuffer,
        course: &mut Course,
    ) -> Result<Result<Hint, IndexError>, IndexError> {
        let (low, is_retired) = (leaf.image().low(), leaf.image().is_retired());
        if !is_retired {
            self.learn(low, hint);
        }
        // M2: what has taken over a leaf and its left neighbour covers keys which that may still
        // have, where its retirement is to be finished (D8).
        let look = if is_retired && key < low && !course.has_gone_right() {
            Look::Left
        } else {
            look
        };
        let next = self.go_on(batch, course, key, (hint, Some(low)), look);
        if next.is_err() {
            self.unlock(batch, hint.addr).await?;
        }
        Ok(next)
    }

    /// The leaf to lock where that takes more than a look at the layer.
    #[cold]
    async fn hint_to_lock(&self, batch: &mut Batch, key: u64) -> Result<Hint, IndexError> {
        if let Some(hint) = self.one_leaf(key) {
            return Ok(hint);
        }
        let slowly: Rare<'_, _> = Box::pin(self.write_hint_slowly(batch, key));
        slowly.await
    }

    /// With a metadata budget, what is missing is fetched (L3.6): a lock on the right leaf is worth
    /// a residual page. ROLEX reads the predicted range first, as its paper has it.
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
            (Some(_), _) | (None, Look::Torn) => Ok(hint),
            (None, look) => self.next_hint(batch, key, hint, look),
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
        let node = hint.addr.node();
        let sibling = self.state.leases.take_for(node);
        let Some(sibling) = sibling else {
            self.unlock(batch, hint.addr).await?;
            return Ok(self
                .state
                .leases
                .lease_more(&self.access, LeaseShape::leaves(self.access.geometry), node)
                .await
                .map_or_else(Room::None, |()| Room::Leased));
        };
        let made = self.split_into(batch, leaf, (hint, sibling), (key, value));
        let made = made.await;
        // Linked to, or lost, or the session is broken: nobody waits for it any more.
        self.state.leases.note_linked();
        made
    }

    /// [`make_room`](Self::make_room) with a leaf for the sibling.
    async fn split_into(
        &self,
        batch: &mut Batch,
        leaf: &mut LeafBuffer,
        (hint, sibling): (Hint, RemoteAddr),
        (key, value): (u64, u64),
    ) -> Result<Room, IndexError> {
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
            // D3: complete before anything links to it.
            change.write_sibling_of(batch, leaf, &request);
        }
        let is_first = !self
            .access
            .endpoint
            .leaves_out(ProtocolCheck::SiblingIsWholeElsewhere);
        if is_elsewhere && is_first {
            match self.access.endpoint.execute(batch).await {
                Err(error) if error.lost_node() == Some(sibling.node()) => {
                    // U4. There is room elsewhere, or somebody is told that there is none.
                    self.state.forget_leases(sibling.node());
                    self.unlock(batch, hint.addr).await?;
                    return Ok(Room::Leased);
                }
                executed => executed?,
            }
            batch.clear();
        }
        let split = change.split(batch, leaf, &request);
        let listed = Entry {
            low: split.sibling_low,
            child: sibling,
        };
        if self.leaves_out(ProtocolCheck::ChildIsLinkedFirst) {
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
                Announced {
                    announcement,
                    slot,
                    sibling,
                },
            )
            .await?;
        }
        // Not asked of the future: making one costs more than the answer.
        if self.tree_head().is_some() {
            Box::pin(self.list(batch, listed)).await?;
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
            batch.write_word(announcement.entry(slot), entry.word());
            self.access.endpoint.execute(batch).await?;
        }
        if slot + 1 == announcement.due_split_count {
            enqueue(self.access.endpoint, self.access.layout, &announcement).await?;
        }
        Ok(())
    }

    /// Counts a leaf that deletes have made underfull, once for each time that it becomes so.
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

/// Adds the verbs of a change that the leaf has room for; false when it has none.
#[inline]
fn post_change(
    batch: &mut Batch,
    (change, leaf): (LeafChange, &mut LeafBuffer),
    (key, slot): (u64, Option<usize>),
    decision: Decision,
) -> bool {
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

/// The leaf to lock for a key, when the search layer names one, and nobody of the process is to
/// be waited for.
fn leaf_to_lock(layer: &Layer, key: u64) -> Option<Hint> {
    match layer {
        Layer::InnerCache(_) => None,
        other => one_leaf_of(other, key),
    }
}

/// The end of [`Index::leave`]: where to go on.
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
            // U4: the lock is lost with the leaf.
            if error.lost_node() == Some(addr.node()) {
                critical.passed();
            }
            Err(error)
        }
    }
}
