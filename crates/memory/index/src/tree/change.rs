//! Listing a child in its parent, by the rules of [`tree`](crate::tree).

use farleaf_base::{NodeId, OwnerWord, RemoteAddr, WordAddr};
use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::words::Critical;

use super::access::TreeAccess;
use super::head::Head;
use super::node::{ChildEntry, InnerNode, KeyPosition, lock_addr};
use crate::IndexError;

/// Number of neighbors that one listing reads before it gives up.
const HOP_COUNT_MAX: u32 = 1 << 12;

/// Result of listing a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListingResult {
    /// The child is listed, or was already.
    Done,
    /// The child is listed, and its parent's new sibling must be listed one level further up.
    Split(ChildEntry),
    /// The parent is full, and no spare node is available. Nothing has changed.
    NeedsNode,
    /// The parent is full, and the spare node is lost with its memory node. Nothing has changed.
    SpareLost(NodeId),
    /// The hint was wrong, or the node is lost. Nothing has changed.
    Nowhere,
}

/// Resources for a listing.
#[derive(Debug)]
pub struct ListingResources {
    /// Inner node that nothing points to; taken when it is used.
    pub spare: Option<RemoteAddr>,
    /// Address of the counter of new children (FAA), if they are to be counted.
    pub counter: Option<WordAddr>,
    /// Largest number of entries of a node.
    pub entry_count_max: usize,
}

impl ListingResources {
    /// Posts the verb that counts a new child.
    fn post_count(&self, batch: &mut Batch) {
        if let Some(counter) = self.counter {
            batch.fetch_add(counter, 1);
        }
    }
}

impl<E: Endpoint> TreeAccess<'_, E> {
    /// Lists a child in the node of its parents' level that covers its lower fence, searching from
    /// `at` on. Costs two round trips; one more if the parent splits onto another memory node.
    /// Waits for the parent's lock.
    ///
    /// # Errors
    /// The fabric failed, or the session is broken.
    pub async fn list(
        &self,
        batch: &mut Batch,
        at: RemoteAddr,
        level: u16,
        entry: ChildEntry,
        resources: &mut ListingResources,
    ) -> Result<ListingResult, IndexError> {
        let Some((addr, mut node)) = self.lock_covering(batch, at, level, entry.low).await? else {
            return Ok(ListingResult::Nowhere);
        };
        let critical = Critical::enter(self.broken);
        let listed = self.list_in(batch, addr, &mut node, entry, resources).await;
        if let Err(error) = &listed {
            if error.lost_node() == Some(addr.node()) {
                critical.passed();
            }
            return listed;
        }
        critical.passed();
        listed
    }

    /// Does [`list`](Self::list) in a locked node, and unlocks it.
    async fn list_in(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        node: &mut InnerNode,
        entry: ChildEntry,
        resources: &mut ListingResources,
    ) -> Result<ListingResult, IndexError> {
        batch.clear();
        if node.lists(entry.low) {
            Self::post_unlock(batch, addr);
            self.leaves.endpoint.execute(batch).await?;
            return Ok(ListingResult::Done);
        }
        let has_space = node.entry_count() < resources.entry_count_max;
        let slot = has_space.then(|| node.add(entry)).flatten();
        if let Some(slot) = slot {
            let (to, words) = node.entry_words(addr, slot);
            batch.write(to, words);
            self.post_commit(batch, addr, node);
            resources.post_count(batch);
            self.leaves.endpoint.execute(batch).await?;
            return Ok(ListingResult::Done);
        }
        let Some(spare) = resources.spare.take() else {
            Self::post_unlock(batch, addr);
            self.leaves.endpoint.execute(batch).await?;
            return Ok(ListingResult::NeedsNode);
        };
        let split = self.split(batch, addr, node, entry, spare, resources);
        Ok(match split.await? {
            Some(low) => ListingResult::Split(ChildEntry { low, child: spare }),
            None => ListingResult::SpareLost(spare.node()),
        })
    }

    /// Splits a locked full node with a new entry in one of the halves, and unlocks it. Returns the
    /// new sibling's lower fence; `None` if the sibling is lost with its memory node, and nothing
    /// has changed.
    async fn split(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        node: &mut InnerNode,
        entry: ChildEntry,
        spare: RemoteAddr,
        resources: &ListingResources,
    ) -> Result<Option<u64>, IndexError> {
        let entries = node.sorted_entries();
        // Ascending entries leave full nodes behind.
        let is_last = entries.last().is_some_and(|last| last.low < entry.low);
        let is_append = is_last && node.high() == u64::MAX;
        let middle = if is_append {
            entries.len() - 1
        } else {
            entries.len() / 2
        };
        let low = entries[middle].low;
        let mut sibling = InnerNode::new(node.level(), low, node.high(), node.link());
        let goes_right = entry.low >= low;
        let right = entries[middle..].iter().copied();
        for own in right.chain(goes_right.then_some(entry)) {
            let added = sibling.add(own);
            assert!(added.is_some(), "half of a node fits into one");
        }
        self.post_new(batch, spare, &mut sibling);
        if spare.node() != addr.node() {
            // Verbs to different nodes are not ordered (FABRIC-2).
            match self.leaves.endpoint.execute(batch).await {
                Err(error) if error.lost_node() == Some(spare.node()) => {
                    Self::post_unlock(batch, addr);
                    self.leaves.endpoint.execute(batch).await?;
                    return Ok(None);
                }
                executed => executed?,
            }
            batch.clear();
        }
        node.set_link(spare);
        node.set_high(low - 1);
        node.retain(|own| own.low < low);
        let (link_addr, link) = node.link_word(addr);
        batch.write_word(link_addr, link);
        let (high_addr, high) = node.high_word(addr);
        batch.write_word(high_addr, high);
        if !goes_right {
            // This is a second change, because the first one's state lists the slot's old entry.
            node.seal(addr, self.leaves.table);
            let (bitmap_addr, bitmap) = node.bitmap_word(addr);
            batch.write_word(bitmap_addr, bitmap);
            let (state_addr, state) = node.state_word(addr);
            batch.write_word(state_addr, state);
            let slot = node.add(entry).expect("half of a node has room");
            let (to, words) = node.entry_words(addr, slot);
            batch.write(to, words);
        }
        self.post_commit(batch, addr, node);
        resources.post_count(batch);
        self.leaves.endpoint.execute(batch).await?;
        Ok(Some(low))
    }

    /// Posts the verbs that write a whole new node, which nothing points to yet.
    pub(super) fn post_new(&self, batch: &mut Batch, addr: RemoteAddr, node: &mut InnerNode) {
        node.seal(addr, self.leaves.table);
        batch.write(lock_addr(addr), &node.node_words(OwnerWord::FREE.word()));
    }

    /// Locks the node of a level that covers a key, searching from `at` on. `None` if there is none
    /// on the path; then no lock is held.
    async fn lock_covering(
        &self,
        batch: &mut Batch,
        at: RemoteAddr,
        level: u16,
        key: u64,
    ) -> Result<Option<(RemoteAddr, InnerNode)>, IndexError> {
        let mut addr = at.place();
        for _ in 0..HOP_COUNT_MAX {
            let locked = match self.lock(batch, addr).await {
                Err(error) if error.lost_node() == Some(addr.node()) => return Ok(None),
                locked => locked?,
            };
            let Some(node) = locked else {
                return Ok(None);
            };
            let key_position = if node.level() == level {
                node.key_position(key)
            } else {
                KeyPosition::Lost
            };
            if key_position == KeyPosition::Here {
                return Ok(Some((addr, node)));
            }
            self.unlock(batch, addr).await?;
            match key_position {
                KeyPosition::On(next) => {
                    batch.cost_mut().links += 1;
                    addr = next;
                }
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Creates a node above the top, over the old top and its new sibling. Costs two round trips.
    /// Returns false if another session was faster; then the spare node is still available.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn grow(
        &self,
        batch: &mut Batch,
        head: &Head,
        top: RemoteAddr,
        sibling: ChildEntry,
        spare: RemoteAddr,
    ) -> Result<bool, IndexError> {
        let level = top.spare() + 1;
        let mut node = InnerNode::new(level, 0, u64::MAX, RemoteAddr::NULL);
        let first = ChildEntry {
            low: 0,
            child: top.place(),
        };
        for entry in [first, sibling] {
            let added = node.add(entry);
            assert!(added.is_some(), "two entries fit");
        }
        batch.clear();
        self.post_new(batch, spare, &mut node);
        self.leaves.endpoint.execute(batch).await?;
        batch.clear();
        let new_top = spare.place().with_spare(level);
        let swap = batch.compare_swap(head.root_addr(), top.word(), new_top.word());
        self.leaves.endpoint.execute(batch).await?;
        Ok(batch.previous(swap) == top.word())
    }
}
