//! Tree operations of the tree layers: finding leaves by descents (`fg`, `sherman`, `cell`), and
//! listing leaves that splits made (all of them). For other layers these methods post nothing.

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_leaf::words::{Critical, LeafError, LeafLease, SearchPath};
use farleaf_pool::PoolError;
use farleaf_pool::allocation::{ChunkAllocator, NodeChoice};

use super::Index;
use crate::IndexError;
use crate::hint::Hint;
use crate::layer::Layer;
use crate::tree::head::Head;
use crate::tree::node::{ChildEntry, InnerNode, lease_shape};
use crate::tree::{ListingResources, ListingResult, TreeAccess};

/// Largest number of attempts to list a leaf, each from a root that was just read.
const LISTING_COUNT_MAX: u32 = 3;

impl<E: Endpoint> Index<'_, E> {
    pub(super) fn tree(&self) -> TreeAccess<'_, E> {
        TreeAccess {
            leaves: self.access,
            broken: &self.state.broken,
        }
    }

    /// Returns the head of the tree, if the layer searches one.
    pub(super) fn tree_head(&self) -> Option<Head> {
        self.state.layer.borrow().tree_head().copied()
    }

    /// Returns the leaf of a key according to the tree, for layers that read inner nodes; `None`
    /// for others. Costs one round trip and 1016 bytes per level and link.
    pub(super) async fn tree_hint(
        &self,
        batch: &mut Batch,
        key: u64,
    ) -> Result<Option<Hint>, IndexError> {
        if !self.reads_tree() {
            return Ok(None);
        }
        let node = self.node_of(batch, key, 1).await?;
        let child = node.as_ref().and_then(|(_, node)| node.child_of(key));
        let Some(entry) = child else {
            // A node on the path is lost or corrupted. The chain of leaves leads everywhere.
            return Ok(Some(self.state.layer.borrow().first_leaf()));
        };
        let parent = match &*self.state.layer.borrow() {
            Layer::InnerCache(layer) => layer.locate_held(key).map_or(0, |hint| hint.parent),
            _ => 0,
        };
        Ok(Some(Hint {
            addr: entry.child.place(),
            parent,
        }))
    }

    /// Returns whether the layer reads inner nodes to find a leaf.
    pub(super) fn reads_tree(&self) -> bool {
        matches!(
            &*self.state.layer.borrow(),
            Layer::Fg(_) | Layer::InnerCache(_)
        )
    }

    /// Does [`tree_hint`](Self::tree_hint) for many keys: one round trip per level for all.
    pub(super) async fn tree_hints(
        &self,
        batch: &mut Batch,
        keys: &[u64],
    ) -> Result<Option<Vec<Hint>>, IndexError> {
        let Some(head) = self.tree_head().filter(|_| self.reads_tree()) else {
            return Ok(None);
        };
        let held = |key: &u64| match &*self.state.layer.borrow() {
            Layer::InnerCache(layer) => layer.locate_held(*key),
            _ => None,
        };
        let mut hints: Vec<Option<Hint>> = keys.iter().map(held).collect();
        let is_missing = |hint: &Option<Hint>| hint.is_none();
        let missing: Vec<usize> = (0..keys.len())
            .filter(|index| is_missing(&hints[*index]))
            .collect();
        let wanted: Vec<u64> = missing.iter().map(|index| keys[*index]).collect();
        let starts = wanted.iter().map(|key| self.start_for(&head, *key, 1));
        let (starts, led_from): (Vec<_>, Vec<_>) = starts.unzip();
        let keep = |node: &InnerNode| self.keep_node(node);
        let tree = self.tree();
        let found = tree.descend_many(batch, &wanted, &starts, keep).await?;
        for ((index, found), led_from) in missing.into_iter().zip(found).zip(led_from) {
            let key = keys[index];
            let is_old = found.as_ref().is_some_and(|found| found.is_start_old);
            if let Some(led_from) = led_from.filter(|_| is_old) {
                self.note_old_start(key, led_from);
            }
            let entry = found.and_then(|found| found.node.child_of(key));
            hints[index] = match entry {
                Some(entry) => Some(Hint {
                    addr: entry.child.place(),
                    parent: 0,
                }),
                None => self.tree_hint(batch, key).await?,
            };
        }
        let first = self.state.layer.borrow().first_leaf();
        Ok(Some(
            hints
                .into_iter()
                .map(|hint| hint.unwrap_or(first))
                .collect(),
        ))
    }

    fn keep_node(&self, node: &InnerNode) {
        if !self.is_current() {
            return;
        }
        if let Layer::InnerCache(layer) = &mut *self.state.layer.borrow_mut() {
            layer.keep(node);
        }
    }

    /// Returns the node of a level that covers a key. Restarts from a root that was just read if
    /// the path from the known root ends early.
    async fn node_of(
        &self,
        batch: &mut Batch,
        key: u64,
        level: u16,
    ) -> Result<Option<(RemoteAddr, InnerNode)>, IndexError> {
        let Some(head) = self.tree_head() else {
            return Ok(None);
        };
        let (start, led_from) = self.start_for(&head, key, level);
        let tree = self.tree();
        let keep = |node: &InnerNode| self.keep_node(node);
        let found = tree.descend(batch, start, key, level, keep).await?;
        if let Some(found) = found {
            match led_from {
                _ if !found.is_start_old => {}
                Some(led_from) => self.note_old_start(key, led_from),
                None => drop(self.take_root(batch, &head).await?),
            }
            return Ok(Some((found.addr, found.node)));
        }
        let root = self.take_root(batch, &head).await?;
        let found = tree.descend(batch, root, key, level, keep).await?;
        Ok(found.map(|found| (found.addr, found.node)))
    }

    /// Returns the node to start from when searching a key's node of a level, and the level of the
    /// cached node that names it; `None` for the root.
    fn start_for(&self, head: &Head, key: u64, level: u16) -> (RemoteAddr, Option<u16>) {
        match &*self.state.layer.borrow() {
            Layer::InnerCache(layer) => layer.start_for(key, level),
            _ => (head.root.place(), None),
        }
    }

    /// Reads the current root, from which the layer starts from now on.
    async fn take_root(&self, batch: &mut Batch, head: &Head) -> Result<RemoteAddr, IndexError> {
        let root = self.tree().root(batch, head).await?;
        if self.is_current() {
            match &mut *self.state.layer.borrow_mut() {
                Layer::Fg(layer) => layer.set_root(root),
                Layer::InnerCache(layer) => layer.set_root(root),
                _ => {}
            }
        }
        Ok(root)
    }

    /// Notes that an operation arrived at its leaf, which was not the first one it read. Too many
    /// links mean that a newer cache is wanted. A leaf that two operations in a row found unlisted
    /// is to be listed; the first one alone may have met a split in progress.
    #[cold]
    pub(super) fn arrive_at(&self, low: u64, hint: Hint, course: &SearchPath) {
        self.learn(low, hint);
        if course.link_count == 0 || !self.is_current() {
            return;
        }
        let state = self.state;
        match &*state.layer.borrow() {
            Layer::RfTree(layer) => {
                if course.link_count > state.link_count_max.get() || layer.is_outgrown() {
                    state.want_newer();
                }
            }
            Layer::Fg(_) | Layer::InnerCache(_) => {
                let child = hint.addr;
                state.note_unlisted(ChildEntry { low, child });
            }
            Layer::Learned(_)
            | Layer::Rolex(_)
            | Layer::Partial(_)
            | Layer::Xstore(_)
            | Layer::Inner(_) => {}
        }
    }

    /// Lists leaves that are linked and were found unlisted. The caller must hold no lock.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn list_unlisted(
        &self,
        batch: &mut Batch,
        leaves: &[ChildEntry],
    ) -> Result<(), IndexError> {
        for leaf in leaves {
            self.list_once(batch, *leaf, false).await?;
        }
        Ok(())
    }

    /// Records that a child is now listed on a level.
    fn note_listed(&self, level: u16, child: ChildEntry) {
        if !self.is_current() {
            return;
        }
        if let Layer::InnerCache(layer) = &mut *self.state.layer.borrow_mut() {
            layer.learn_listed(level, child);
        }
    }

    /// Records that the node of a level that listed a child has split: its cached copy is outdated.
    fn note_split_node(&self, level: u16, low: u64, sibling: ChildEntry) {
        if !self.is_current() {
            return;
        }
        match &mut *self.state.layer.borrow_mut() {
            Layer::InnerCache(layer) => layer.forget(level, low),
            Layer::RfTree(layer) if level == 1 => layer.learn_node(sibling),
            _ => {}
        }
    }

    /// Records that the node where a descent started has split. The cached node that led there is
    /// reread next time, and may list the new node. Otherwise each operation would follow the link.
    fn note_old_start(&self, key: u64, led_from: u16) {
        if let Layer::InnerCache(layer) = &mut *self.state.layer.borrow_mut() {
            layer.forget(led_from, key);
        }
    }

    /// Records that a leaf was not what the tree, or its cached copy, says.
    pub(super) fn note_wrong_hint(&self, key: u64) {
        if let Layer::InnerCache(layer) = &mut *self.state.layer.borrow_mut() {
            layer.forget(1, key);
        }
    }

    /// Returns at most `count_max` leaves from a key on that one inner node lists. Used by scans of
    /// a layer without a cache of all leaves. If empty, the scan must continue from the key's leaf.
    pub(super) async fn tree_leaves(
        &self,
        batch: &mut Batch,
        key: u64,
        count_max: usize,
    ) -> Result<Vec<RemoteAddr>, IndexError> {
        let held = match &*self.state.layer.borrow() {
            Layer::InnerCache(layer) => layer.leaves_from(key),
            _ => Vec::new(),
        };
        let mut leaves = held;
        if leaves.is_empty()
            && let Some((_, node)) = self.node_of(batch, key, 1).await?
        {
            let entries = node.sorted_entries();
            let after = entries.partition_point(|entry| entry.low <= key);
            let entries = entries[after.saturating_sub(1)..].iter();
            leaves = entries.map(|entry| entry.child.place()).collect();
        }
        leaves.truncate(count_max);
        Ok(leaves)
    }

    /// Lists a leaf that is linked, and the inner nodes that split because of it, up to a new root.
    /// Does nothing without a tree. If there is no space, or nodes are lost, the leaf stays
    /// unlisted and is found by its link.
    pub(super) async fn list(&self, batch: &mut Batch, leaf: ChildEntry) -> Result<(), IndexError> {
        self.list_once(batch, leaf, true).await
    }

    async fn list_once(
        &self,
        batch: &mut Batch,
        leaf: ChildEntry,
        is_counted: bool,
    ) -> Result<(), IndexError> {
        let Some(head) = self.tree_head() else {
            return Ok(());
        };
        if !self.is_current() {
            // The leaf may be retired, and unknown to the current tree.
            self.state
                .count_hint(|counters| counters.unlisted_count += 1);
            return Ok(());
        }
        let mut resources = ListingResources {
            spare: None,
            counter: is_counted.then(|| head.leaf_count_addr()),
            entry_count_max: head.entry_count_max as usize,
        };
        let listed = self.list_up(batch, &head, leaf, &mut resources).await;
        if let Some(spare) = resources.spare.take() {
            self.state.put_back_inner(self.access.layout, spare);
        }
        match listed {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.state
                    .count_hint(|counters| counters.unlisted_count += 1);
                Ok(())
            }
            // The split is valid, whatever happens to the session afterwards.
            Err(error)
                if error.lost_node().is_some()
                    || is_forbidden(&error)
                    || matches!(error, IndexError::Leaf(LeafError::SessionBroken)) =>
            {
                // The node with the lease is lost.
                if let Some(node) = error.lost_node() {
                    self.state.forget_leases(node);
                }
                self.state
                    .count_hint(|counters| counters.unlisted_count += 1);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Lists a leaf and the nodes above. Returns false if listing failed on some level.
    async fn list_up(
        &self,
        batch: &mut Batch,
        head: &Head,
        leaf: ChildEntry,
        resources: &mut ListingResources,
    ) -> Result<bool, IndexError> {
        let tree = self.tree();
        let (mut level, mut entry, mut attempt) = (1, leaf, 0);
        let mut known = self.known_parent(leaf.low);
        loop {
            let root = match known {
                Some(_) => head.root,
                None => self.take_root(batch, head).await?,
            };
            if known.is_none() && root.spare() < level {
                if resources.spare.is_none() && !self.lease_inner(head, resources).await? {
                    return Ok(false);
                }
                let Some(spare) = resources.spare else {
                    return Ok(false);
                };
                if tree.grow(batch, head, root, entry, spare).await? {
                    resources.spare = None;
                    self.state.leases.note_linked();
                    return Ok(true);
                }
                continue;
            }
            let mut at = known.take();
            if at.is_none() {
                let keep = |node: &InnerNode| self.keep_node(node);
                let found = tree.descend(batch, root.place(), entry.low, level, keep);
                at = found.await?.map(|found| found.addr);
            }
            let listed = match at {
                Some(at) => tree.list(batch, at, level, entry, resources).await?,
                None => ListingResult::Nowhere,
            };
            match listed {
                ListingResult::Done => {
                    self.note_listed(level, entry);
                    return Ok(true);
                }
                ListingResult::Split(sibling) => {
                    self.state.leases.note_linked();
                    self.note_split_node(level, entry.low, sibling);
                    (level, entry, attempt) = (level + 1, sibling, 0);
                    resources.counter = None;
                }
                ListingResult::SpareLost(node) => {
                    self.state.leases.note_linked();
                    self.state.forget_leases(node);
                    known = at;
                }
                ListingResult::NeedsNode => {
                    if !self.lease_inner(head, resources).await? {
                        return Ok(false);
                    }
                    known = at;
                }
                ListingResult::Nowhere => {
                    attempt += 1;
                    if attempt == LISTING_COUNT_MAX {
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// Returns the node in which a leaf with this lower fence is to be listed, if the layer knows
    /// it.
    fn known_parent(&self, low: u64) -> Option<RemoteAddr> {
        match &*self.state.layer.borrow() {
            Layer::RfTree(layer) => layer.node_for(low),
            Layer::InnerCache(layer) => layer.node_for(low),
            _ => None,
        }
    }

    /// Leases space for another inner node; returns false if the pool is full. If the future is
    /// dropped or the fabric fails, the session may own a chunk that its lease does not know of.
    async fn lease_inner(
        &self,
        head: &Head,
        resources: &mut ListingResources,
    ) -> Result<bool, IndexError> {
        if !self.is_current() {
            // The session's leases are for another tree.
            return Ok(false);
        }
        resources.spare = self.state.take_inner();
        if resources.spare.is_some() {
            return Ok(true);
        }
        let critical = Critical::enter(&self.state.broken);
        let access = &self.access;
        let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
        let shape = lease_shape(head.generation);
        let mut placement = NodeChoice::read(&allocator, access.layout).await?;
        let (table, purpose) = (access.table, shape.purpose);
        let lease = async |node| {
            let allocator = allocator.on(node);
            allocator
                .lease_pieces(table, purpose, shape.piece_count)
                .await
        };
        match placement.on_emptiest(lease).await {
            Ok((_, (chunk, free))) if !self.is_current() => {
                self.state.keep_for_old_tree(access, shape, chunk, free);
                critical.passed();
                return Ok(false);
            }
            Ok((_, (chunk, free))) => {
                let exhausted = self.state.extend_inner(access, shape, chunk, free);
                LeafLease::give_exhausted(access, shape, exhausted).await?;
            }
            Err(PoolError::Full { .. }) => {}
            // The node with the chunk is lost.
            Err(error) if error.lost_node().is_some() => {}
            Err(error) => return Err(error.into()),
        }
        critical.passed();
        if self.is_current() {
            resources.spare = self.state.take_inner();
        }
        Ok(resources.spare.is_some())
    }

    /// Returns an estimate of the number of records, from the mean fill of sampled leaves and the
    /// number of leaves in the tree's head. Costs about `sample_count` round trips per level.
    pub(super) async fn estimate_by_tree(
        &self,
        batch: &mut Batch,
        sample_count: u32,
    ) -> Result<Option<u64>, IndexError> {
        let Some(head) = self.tree_head() else {
            return Ok(None);
        };
        let tree = self.tree();
        let (mut record_count, mut leaf_count) = (0, 0);
        for sample in 0..sample_count {
            let mut at = tree.root(batch, &head).await?.place();
            // A different path down each time, but the same ones in every run.
            let mut choice = u64::from(sample).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            while let Some(node) = tree.read(batch, at).await? {
                let entries = node.sorted_entries();
                if entries.is_empty() {
                    break;
                }
                let index = ((u128::from(choice) * entries.len() as u128) >> 64) as usize;
                choice = choice.wrapping_mul(entries.len() as u64);
                at = entries[index].child.place();
                if node.level() == 1 {
                    let leaf = self.read_intact(batch, at).await?;
                    if leaf.image().is_retired() && !self.state.follows_retired.get() {
                        return Err(IndexError::Outdated);
                    }
                    record_count += leaf.image().record_count() as u64;
                    leaf_count += 1;
                    break;
                }
            }
        }
        let head = crate::tree::head::read_head(&self.access, head.root_word()).await?;
        let counters = self.access.endpoint.counters();
        counters.record(OperationKind::Control, &batch.take_cost());
        if leaf_count == 0 {
            return Ok(Some(0));
        }
        Ok(Some(head.leaf_count * record_count / leaf_count))
    }
}

fn is_forbidden(error: &IndexError) -> bool {
    let failure = error.fabric_failure();
    failure.is_some_and(farleaf_fabric::BatchError::is_forbidden)
}
