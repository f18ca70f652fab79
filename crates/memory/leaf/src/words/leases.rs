//! Leaves that a session has leased for splits, per memory node.

use core::cell::{Cell, RefCell};

use farleaf_base::{NodeId, RemoteAddr};
use farleaf_fabric::Endpoint;
use farleaf_pool::PoolError;
use farleaf_pool::allocation::{ChunkAllocator, NodeChoice};
use farleaf_pool::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_pool::layout::ChunkIndex;
use farleaf_pool::members::MemberState;

use crate::words::access::LeafAccess;
use crate::words::lease::{LeafLease, LeaseShape};

/// Leases of one session for the leaves of one table.
#[derive(Debug, Default)]
pub struct LeafLeases {
    /// One lease for each node on which splits have taken leaves.
    leases: RefCell<Vec<(NodeId, LeafLease)>>,
    /// Pairs of a full node and the node that replaces it for splits.
    substitutes: RefCell<Vec<(NodeId, NodeId)>>,
    /// Number of pieces taken that nothing links to yet.
    unlinked_count: Cell<u32>,
    /// Whether the leases may use the chunks reserved for retraining if no others are free.
    takes_reserve: bool,
    /// Number of adjacent chunks of the main node that must stay free after a new lease there.
    left_chunk_count: Cell<u64>,
}

impl LeafLeases {
    /// Returns leases that may use the chunks reserved for retraining, because their user frees
    /// memory in the end.
    #[must_use]
    pub fn taking_reserve(self) -> Self {
        Self {
            takes_reserve: true,
            ..self
        }
    }

    /// Sets how many adjacent chunks of the main node must stay free after each new lease there.
    pub fn set_left_chunk_count(&self, chunk_count: u64) {
        self.left_chunk_count.set(chunk_count);
    }

    /// Returns how many adjacent chunks of the main node must stay free after a lease.
    pub fn left_chunk_count(&self) -> u64 {
        self.left_chunk_count.get()
    }

    /// Takes a leased leaf on this node.
    fn take(&self, node: NodeId) -> Option<RemoteAddr> {
        let mut leases = self.leases.borrow_mut();
        let (_, lease) = leases.iter_mut().find(|(own, _)| *own == node)?;
        let leaf = lease.take()?;
        self.note_taken();
        Some(leaf)
    }

    /// Takes a leased leaf for a split on this node: there, or on the node that replaces it while
    /// it is full. The leaf counts as unlinked until [`note_linked`](Self::note_linked).
    pub fn take_for(&self, node: NodeId) -> Option<RemoteAddr> {
        if let Some(leaf) = self.take(node) {
            return Some(leaf);
        }
        let add_substitute = {
            let substitutes = self.substitutes.borrow();
            let found = substitutes.iter().find(|(full, _)| *full == node);
            found.map(|(_, other)| *other)?
        };
        let leaf = self.take(add_substitute);
        if leaf.is_none() {
            // The full node may have free space again.
            let mut substitutes = self.substitutes.borrow_mut();
            substitutes.retain(|(full, _)| *full != node);
        }
        leaf
    }

    /// Puts back a leaf that was taken but is not linked to after all.
    pub fn put_back<E, F>(&self, access: &LeafAccess<'_, E, F>, leaf: RemoteAddr) {
        self.note_linked();
        let mut leases = self.leases.borrow_mut();
        let own = leases.iter_mut().find(|(node, _)| *node == leaf.node());
        if let Some((_, lease)) = own {
            lease.put_back(access.layout, leaf);
        }
    }

    /// Records that `other` replaces `full`, which has no free space or is closed to new leases.
    fn add_substitute(&self, full: NodeId, other: NodeId) {
        if full != other {
            self.substitutes.borrow_mut().push((full, other));
        }
    }

    /// Leases another chunk of leaves: on the node of the leaf that is split, so that a split is
    /// one batch; if that node is full, on the emptiest of the others. `shape` is that of the
    /// table's leaves. Costs a few round trips. Runs as critical time: if it is interrupted or the
    /// fabric fails, the session may own a chunk that its lease does not record.
    ///
    /// # Errors
    /// The pool is full, or the fabric failed.
    pub async fn lease_more<E: Endpoint, F>(
        &self,
        access: &LeafAccess<'_, E, F>,
        shape: LeaseShape,
        node: NodeId,
    ) -> Result<(), PoolError> {
        let mut allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
        if self.takes_reserve {
            allocator = allocator.taking_reserve();
        }
        let LeaseShape {
            purpose,
            piece_count,
            ..
        } = shape;
        let ChunkPurpose::Leaves { slots } = purpose else {
            unreachable!("the shape is that of leaves");
        };
        let lease_on = async |node| {
            let mut allocator = allocator.on(node);
            if node == access.layout.main_node().node {
                allocator = allocator.leaving(self.left_chunk_count.get());
            }
            let leased = allocator.lease_leaves(access.table, slots, piece_count);
            leased.await
        };
        // A draining node accepts no new leases.
        let is_open = access.layout.members().state(node) == Some(MemberState::Active);
        let mut leased = None;
        if is_open {
            leased = Some(lease_on(node).await);
        }
        if self.takes_reserve && node == access.layout.main_node().node {
            // A caller that frees memory must learn that the main node is full: it is for all
            // sessions.
            if let Some(Err(error @ PoolError::Full { .. })) = leased {
                return Err(error);
            }
        }
        if !matches!(leased, Some(Ok(_) | Err(PoolError::Fabric(_)))) {
            let mut placement = NodeChoice::read(&allocator, access.layout).await?;
            let mut has_more = !is_open || placement.exclude(node);
            while has_more {
                let other = placement.emptiest();
                let claimed = lease_on(other).await;
                let is_full = matches!(claimed, Err(PoolError::Full { .. }));
                // A lost node here says nothing about the leaf or the other nodes.
                let error = claimed.as_ref().err();
                let is_lost = error.and_then(PoolError::lost_node) == Some(other);
                has_more = (is_full || is_lost) && placement.exclude(other);
                if !is_lost {
                    leased = Some(claimed);
                }
            }
        }
        let leased = leased.expect("the main node takes chunks as long as there is a pool");
        let (chunk, free) = leased?;
        self.add_substitute(node, chunk.node());
        let exhausted = self.extend(access, shape, chunk, free);
        // While a chunk is leased, no other session can free the retired leaves in it.
        LeafLease::give_exhausted(access, shape, exhausted).await
    }

    /// Adds a chunk's free leaves to the lease. Returns the chunks of its node whose leaves are all
    /// linked to; they can be given back.
    fn extend<E, F>(
        &self,
        access: &LeafAccess<'_, E, F>,
        shape: LeaseShape,
        chunk: ChunkIndex,
        free: FreeLeaves,
    ) -> Vec<ChunkIndex> {
        let mut leases = self.leases.borrow_mut();
        let node = chunk.node();
        let place = leases.iter().position(|(own, _)| *own == node);
        let place = place.unwrap_or_else(|| {
            leases.push((node, LeafLease::new(shape)));
            leases.len() - 1
        });
        let lease = &mut leases[place].1;
        let exhausted = if self.has_unlinked() {
            Vec::new()
        } else {
            lease.take_exhausted()
        };
        lease.add(access, chunk, free);
        exhausted
    }

    /// Drops the leases on a lost node.
    pub fn forget(&self, node: NodeId) {
        self.leases.borrow_mut().retain(|(own, _)| *own != node);
    }

    /// Counts a piece that was taken and that nothing links to yet.
    pub fn note_taken(&self) {
        self.unlinked_count.update(|count| count + 1);
    }

    /// Uncounts a taken piece that is now linked to or was put back.
    pub fn note_linked(&self) {
        self.unlinked_count.update(|count| count - 1);
    }

    /// Returns whether any taken piece is not linked to yet.
    pub fn has_unlinked(&self) -> bool {
        self.unlinked_count.get() > 0
    }

    /// Removes and returns the leases on nodes for which `is_open` is false, to give them back:
    /// these nodes accept no new leaves.
    pub fn take_except(&self, is_open: impl Fn(NodeId) -> bool) -> Vec<LeafLease> {
        let mut leases = self.leases.borrow_mut();
        let closed = leases.extract_if(.., |(node, _)| !is_open(*node));
        closed.map(|(_, lease)| lease).collect()
    }

    /// Removes and returns all leases, to give them back.
    pub fn take_all(&self) -> Vec<LeafLease> {
        self.take_except(|_| false)
    }
}
