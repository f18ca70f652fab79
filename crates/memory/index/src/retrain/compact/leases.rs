//! Far memory for the results of a compaction: chunks of leaves, leased like those of a split, and
//! the new tree's chunks.

use std::cell::RefCell;
use std::collections::BTreeMap;

use farleaf_base::{NodeId, RemoteAddr};
use farleaf_fabric::Endpoint;
use farleaf_leaf::words::{LeafAccess, LeafLease, LeaseShape};
use farleaf_pool::PoolError;
use farleaf_pool::allocation::{ChunkAllocator, NodeChoice};

use crate::IndexError;
use crate::tree::build::NewTree;

/// Leaves that a compaction has leased, by node, and a tree that nothing points to yet. It outlives
/// the compaction, so the leases are released even if that is interrupted while it waits.
#[derive(Debug, Default)]
pub struct CompactionLeases {
    tree: RefCell<Option<NewTree>>,
    by_node: RefCell<BTreeMap<NodeId, LeafLease>>,
    /// Nodes for leaves instead of a node that has no space, or takes nothing new.
    substitutes: RefCell<BTreeMap<NodeId, NodeId>>,
}

impl CompactionLeases {
    /// Takes a leaf that nothing points to, near a node. Awaits nothing, because locks may be held.
    pub(super) fn take(&self, near: NodeId) -> Option<RemoteAddr> {
        let node = self.node_for(near);
        self.by_node.borrow_mut().get_mut(&node)?.take()
    }

    fn node_for(&self, near: NodeId) -> NodeId {
        let substitutes = self.substitutes.borrow();
        substitutes.get(&near).copied().unwrap_or(near)
    }

    /// Ensures that [`take`](Self::take) finds a leaf. Because a retraining frees space in the end,
    /// it may use the reserved chunks.
    ///
    /// # Errors
    /// The pool is full, or the fabric failed.
    pub(super) async fn provide<E: Endpoint>(
        &self,
        access: &LeafAccess<'_, E>,
        near: NodeId,
    ) -> Result<(), IndexError> {
        let node = self.node_for(near);
        let has_some = |lease: &LeafLease| !lease.is_empty();
        if self.by_node.borrow().get(&node).is_some_and(has_some) {
            return Ok(());
        }
        let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
        let allocator = allocator.taking_reserve();
        let shape = LeaseShape::leaves(access.geometry);
        let mut placement = NodeChoice::read(&allocator, access.layout).await?;
        let mut node = placement.replacement_node_for(near);
        loop {
            let allocator = allocator.on(node);
            let leased = allocator.lease_pieces(access.table, shape.purpose, shape.piece_count);
            match leased.await {
                Ok((chunk, free)) => {
                    let mut by_node = self.by_node.borrow_mut();
                    let lease = by_node.entry(node);
                    let lease = lease.or_insert_with(|| LeafLease::new(shape));
                    lease.add(access, chunk, free);
                    self.substitutes.borrow_mut().insert(near, node);
                    return Ok(());
                }
                // A node that was just lost has no space.
                Err(error)
                    if (matches!(error, PoolError::Full { .. })
                        || error.lost_node() == Some(node))
                        && placement.exclude(node) =>
                {
                    node = placement.emptiest();
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Keeps a tree whose root may not be installed yet.
    pub(super) fn keep(&self, tree: NewTree) {
        let before = self.tree.replace(Some(tree));
        assert!(before.is_none(), "a compaction writes one tree");
    }

    /// Takes the kept tree, whose root is in force now, or will never be.
    ///
    /// # Panics
    /// If no tree was kept.
    pub(super) fn take_tree(&self) -> NewTree {
        let tree = self.tree.take();
        tree.expect("it was kept until now")
    }

    /// Releases everything that is leased. Chunks on a lost node are lost.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn give_back<E: Endpoint>(
        &self,
        access: &LeafAccess<'_, E>,
    ) -> Result<(), IndexError> {
        if let Some(tree) = self.tree.take() {
            tree.give_back(access, false).await?;
        }
        for (node, mut lease) in self.by_node.take() {
            match lease.give_back(access).await {
                Err(error) if error.lost_node() == Some(node) => {}
                given_back => given_back?,
            }
        }
        Ok(())
    }
}
