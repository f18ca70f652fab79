//! Listing a child in its parent (I1 to I5).

use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::Critical;
use farleaf_types::{NodeId, OwnerWord, RemoteAddr, WordAddr};

use super::access::TreeAccess;
use super::head::Head;
use super::node::{Entry, InnerNode, Way, lock_addr};
use crate::IndexError;

/// Neighbours that one listing looks at before it gives up.
const HOP_COUNT_MAX: u32 = 1 << 12;

/// What became of listing a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// It is listed, be it that it was before.
    Done,
    /// It is listed, and this new sibling of its parent has to be, one level further up.
    Split(Entry),
    /// The parent is full, and there is no room for another node. Nothing has changed.
    NeedsNode,
    /// The parent is full, and the node that there was room for is lost with its memory node (U4).
    /// Nothing has changed.
    SpareLost(NodeId),
    /// Whoever led here was wrong, or the node is lost. Nothing has changed.
    Nowhere,
}

/// What a listing may use.
#[derive(Debug)]
pub struct Room {
    /// An inner node that nothing points to; taken when it is used.
    pub spare: Option<RemoteAddr>,
    /// Where to count a new child (FAA), if it has to be.
    pub counter: Option<WordAddr>,
    /// Entries that a node gets at the most.
    pub entry_count_max: usize,
}

impl Room {
    /// Adds the verb that counts a new child.
    fn post_count(&self, batch: &mut Batch) {
        if let Some(counter) = self.counter {
            batch.fetch_add(counter, 1);
        }
    }
}

impl<E: Endpoint> TreeAccess<'_, E> {
    /// Lists a child in the node of its parents' level that its lower fence is in, from `at` on.
    /// Two round trips; one more if the parent splits onto another memory node. Waits for the
    /// parent's lock.
    ///
    /// # Errors
    /// The fabric failed, or the session is broken.
    pub async fn list(
        &self,
        batch: &mut Batch,
        at: RemoteAddr,
        (level, entry): (u16, Entry),
        room: &mut Room,
    ) -> Result<Listed, IndexError> {
        let Some((addr, mut node)) = self.lock_covering(batch, at, (level, entry.low)).await?
        else {
            return Ok(Listed::Nowhere);
        };
        let critical = Critical::enter(self.broken);
        let listed = self.list_in(batch, (addr, &mut node), entry, room).await;
        if let Err(error) = &listed {
            if error.lost_node() == Some(addr.node()) {
                critical.passed();
            }
            return listed;
        }
        critical.passed();
        listed
    }

    /// [`list`](Self::list) in a node that is locked, and is no more afterwards.
    async fn list_in(
        &self,
        batch: &mut Batch,
        (addr, node): (RemoteAddr, &mut InnerNode),
        entry: Entry,
        room: &mut Room,
    ) -> Result<Listed, IndexError> {
        batch.clear();
        if node.lists(entry.low) {
            Self::post_unlock(batch, addr);
            self.leaves.endpoint.execute(batch).await?;
            return Ok(Listed::Done);
        }
        let has_room = node.entry_count() < room.entry_count_max;
        let slot = has_room.then(|| node.add(entry)).flatten();
        if let Some(slot) = slot {
            let (to, words) = node.entry_words(addr, slot);
            batch.write(to, words);
            self.post_commit(batch, addr, node);
            room.post_count(batch);
            self.leaves.endpoint.execute(batch).await?;
            return Ok(Listed::Done);
        }
        let Some(spare) = room.spare.take() else {
            Self::post_unlock(batch, addr);
            self.leaves.endpoint.execute(batch).await?;
            return Ok(Listed::NeedsNode);
        };
        let split = self.split(batch, (addr, node), (entry, spare), room);
        Ok(match split.await? {
            Some(low) => Listed::Split(Entry { low, child: spare }),
            None => Listed::SpareLost(spare.node()),
        })
    }

    /// I2: splits a full node that is locked, with a new entry in one of the halves, and unlocks
    /// it. Returns the new sibling's lower fence; `None`: the sibling is lost with its memory node,
    /// and nothing has changed.
    async fn split(
        &self,
        batch: &mut Batch,
        (addr, node): (RemoteAddr, &mut InnerNode),
        (entry, spare): (Entry, RemoteAddr),
        room: &Room,
    ) -> Result<Option<u64>, IndexError> {
        let entries = node.sorted_entries();
        // What comes in order leaves full nodes behind.
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
            // Nothing orders verbs to different nodes (F2).
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
            // A second change, as the first one's state lists what was in the slot.
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
        room.post_count(batch);
        self.leaves.endpoint.execute(batch).await?;
        Ok(Some(low))
    }

    /// Adds the verbs of a whole new node that nothing points to yet.
    pub(super) fn post_new(&self, batch: &mut Batch, addr: RemoteAddr, node: &mut InnerNode) {
        node.seal(addr, self.leaves.table);
        batch.write(lock_addr(addr), &node.node_words(OwnerWord::FREE.word()));
    }

    /// Locks the node of a level that covers a key, from `at` on (I4). `None`: there is none on the
    /// way; nothing is held.
    async fn lock_covering(
        &self,
        batch: &mut Batch,
        at: RemoteAddr,
        (level, key): (u16, u64),
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
            let way = if node.level() == level {
                node.way(key)
            } else {
                Way::Lost
            };
            if way == Way::Here {
                return Ok(Some((addr, node)));
            }
            self.unlock(batch, addr).await?;
            match way {
                Way::On(next) => {
                    batch.cost_mut().links += 1;
                    addr = next;
                }
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    /// I5: puts a node above the top, over the old top and its new sibling. Two round trips. False:
    /// somebody else was faster, and the room is still there.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn grow(
        &self,
        batch: &mut Batch,
        head: &Head,
        (top, sibling): (RemoteAddr, Entry),
        spare: RemoteAddr,
    ) -> Result<bool, IndexError> {
        let level = top.spare() + 1;
        let mut node = InnerNode::new(level, 0, u64::MAX, RemoteAddr::NULL);
        let first = Entry {
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
