//! Room for what a compaction makes: chunks of leaves, leased like a split's, and the new tree's.

use std::cell::RefCell;
use std::collections::BTreeMap;

use farleaf_fabric::Endpoint;
use farleaf_leaf::{LeafAccess, LeafLease, LeaseShape};
use farleaf_region::RegionError;
use farleaf_region::allocation::{ChunkAllocator, Placement};
use farleaf_types::{NodeId, RemoteAddr};

use crate::IndexError;
use crate::tree::build::NewTree;

/// What is leased: leaves, by node, and a tree that nothing points to yet. It outlives the
/// compaction, which may be cut off while it waits; what is leased then is given back all the same.
#[derive(Debug, Default)]
pub struct Leased {
    tree: RefCell<Option<NewTree>>,
    by_node: RefCell<BTreeMap<NodeId, LeafLease>>,
    /// Where leaves go instead of a node that has no room, or takes nothing new.
    stand_ins: RefCell<BTreeMap<NodeId, NodeId>>,
}

impl Leased {
    /// A leaf that nothing points to, near a node. Nothing is awaited: locks may be held.
    pub(super) fn take(&self, near: NodeId) -> Option<RemoteAddr> {
        let node = self.node_for(near);
        self.by_node.borrow_mut().get_mut(&node)?.take()
    }

    fn node_for(&self, near: NodeId) -> NodeId {
        let stand_ins = self.stand_ins.borrow();
        stand_ins.get(&near).copied().unwrap_or(near)
    }

    /// Sees to it that [`take`](Self::take) finds something. A retraining makes room in the end,
    /// and may take what is kept for that (A6).
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
        let mut placement = Placement::read(&allocator, access.layout).await?;
        let mut node = placement.staying_on(near);
        loop {
            let allocator = allocator.on(node);
            let leased = allocator.lease_pieces(access.table, shape.purpose, shape.piece_count);
            match leased.await {
                Ok((chunk, free)) => {
                    let mut by_node = self.by_node.borrow_mut();
                    let lease = by_node.entry(node);
                    let lease = lease.or_insert_with(|| LeafLease::new(shape));
                    lease.add(access, chunk, free);
                    self.stand_ins.borrow_mut().insert(near, node);
                    return Ok(());
                }
                // U4: there is no room on a node that was lost just now.
                Err(error)
                    if (matches!(error, RegionError::Full { .. })
                        || error.lost_node() == Some(node))
                        && placement.rule_out(node) =>
                {
                    node = placement.emptiest();
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A tree whose root may still have to wait.
    pub(super) fn keep(&self, tree: NewTree) {
        let before = self.tree.replace(Some(tree));
        assert!(before.is_none(), "a compaction writes one tree");
    }

    /// The tree that was kept, whose root is in force now, or will never be.
    pub(super) fn take_tree(&self) -> NewTree {
        let tree = self.tree.take();
        tree.expect("it was kept until now")
    }

    /// Gives everything back. What is on a lost node is gone (U4).
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
