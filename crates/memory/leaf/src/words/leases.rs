//! The leaves that a session has leased for splits, per memory node.

use core::cell::{Cell, RefCell};

use farleaf_fabric::Endpoint;
use farleaf_region::RegionError;
use farleaf_region::allocation::{ChunkAllocator, Placement};
use farleaf_region::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_region::layout::ChunkIndex;
use farleaf_region::members::MemberState;
use farleaf_types::{NodeId, RemoteAddr};

use crate::access::LeafAccess;
use crate::lease::{LeafLease, LeaseShape};

/// The leases of one session for the leaves of one table.
#[derive(Debug, Default)]
pub struct LeafLeases {
    /// One for each node that splits have taken leaves on.
    leases: RefCell<Vec<(NodeId, LeafLease)>>,
    /// Nodes that had no room for a split, and where there was some.
    stand_ins: RefCell<Vec<(NodeId, NodeId)>>,
    /// Pieces taken that nothing links to yet.
    unlinked_count: Cell<u32>,
    /// Whether they come from what is kept for retraining, where nothing else will do (A6).
    takes_reserve: bool,
    /// Chunks in one piece of the home that are to be free after a new one there is leased.
    left_chunk_count: Cell<u64>,
}

impl LeafLeases {
    /// Leases of who makes room in the end, and may take what is kept for that (A6).
    #[must_use]
    pub fn taking_reserve(self) -> Self {
        Self {
            takes_reserve: true,
            ..self
        }
    }

    /// From now on a new chunk of the home is leased only if so many others in one piece are free
    /// there afterwards.
    pub fn set_left_chunk_count(&self, chunk_count: u64) {
        self.left_chunk_count.set(chunk_count);
    }

    /// How many that are.
    pub fn left_chunk_count(&self) -> u64 {
        self.left_chunk_count.get()
    }

    /// A leased leaf on this node.
    fn take(&self, node: NodeId) -> Option<RemoteAddr> {
        let mut leases = self.leases.borrow_mut();
        let (_, lease) = leases.iter_mut().find(|(own, _)| *own == node)?;
        let leaf = lease.take()?;
        self.note_taken();
        Some(leaf)
    }

    /// A leased leaf for a split on this node: there, or on the node that stands in for it. It
    /// counts as linked to by nothing until [`note_linked`](Self::note_linked).
    pub fn take_for(&self, node: NodeId) -> Option<RemoteAddr> {
        if let Some(leaf) = self.take(node) {
            return Some(leaf);
        }
        let stand_in = {
            let stand_ins = self.stand_ins.borrow();
            let found = stand_ins.iter().find(|(full, _)| *full == node);
            found.map(|(_, other)| *other)?
        };
        let leaf = self.take(stand_in);
        if leaf.is_none() {
            // There may be room again.
            let mut stand_ins = self.stand_ins.borrow_mut();
            stand_ins.retain(|(full, _)| *full != node);
        }
        leaf
    }

    /// Puts a leaf back that was taken and that nothing links to after all.
    pub fn put_back<E, F>(&self, access: &LeafAccess<'_, E, F>, leaf: RemoteAddr) {
        self.note_linked();
        let mut leases = self.leases.borrow_mut();
        let own = leases.iter_mut().find(|(node, _)| *node == leaf.node());
        if let Some((_, lease)) = own {
            lease.put_back(access.layout, leaf);
        }
    }

    /// There was no room on `full`, or nothing new goes there, and there was on `other`.
    fn stand_in(&self, full: NodeId, other: NodeId) {
        if full != other {
            self.stand_ins.borrow_mut().push((full, other));
        }
    }

    /// Leases another chunk of leaves: on the node of the leaf that is split, so that a split is
    /// one batch; where there is no room, on the emptiest of the others. If it is cut off, or the
    /// fabric fails, the session may own a chunk that its lease does not know of: it is critical
    /// time. `shape` is that of the table's leaves. A few round trips.
    ///
    /// # Errors
    /// There is no room in the pool, or the fabric failed.
    pub async fn lease_more<E: Endpoint, F>(
        &self,
        access: &LeafAccess<'_, E, F>,
        shape: LeaseShape,
        node: NodeId,
    ) -> Result<(), RegionError> {
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
            if node == access.layout.home().node {
                allocator = allocator.leaving(self.left_chunk_count.get());
            }
            let leased = allocator.lease_leaves(access.table, slots, piece_count);
            leased.await
        };
        // U5: a node that is draining takes no more.
        let is_open = access.layout.members().state(node) == Some(MemberState::Active);
        let mut leased = None;
        if is_open {
            leased = Some(lease_on(node).await);
        }
        if self.takes_reserve && node == access.layout.home().node {
            // Who makes room is told that there is none at home, where others have none, either.
            if let Some(Err(error @ RegionError::Full { .. })) = leased {
                return Err(error);
            }
        }
        if !matches!(leased, Some(Ok(_) | Err(RegionError::Fabric(_)))) {
            let mut placement = Placement::read(&allocator, access.layout).await?;
            let mut has_more = !is_open || placement.rule_out(node);
            while has_more {
                let other = placement.emptiest();
                let claimed = lease_on(other).await;
                let is_full = matches!(claimed, Err(RegionError::Full { .. }));
                // U4: that one is gone says nothing of the leaf, nor of the others.
                let error = claimed.as_ref().err();
                let is_lost = error.and_then(RegionError::lost_node) == Some(other);
                has_more = (is_full || is_lost) && placement.rule_out(other);
                if !is_lost {
                    leased = Some(claimed);
                }
            }
        }
        let leased = leased.expect("the home takes chunks as long as there is a pool");
        let leased = leased?;
        self.stand_in(node, leased.0.node());
        let exhausted = self.extend(access, shape, leased);
        // Nobody else can free what is retired in a chunk that is leased.
        LeafLease::give_exhausted(access, shape, exhausted).await
    }

    /// Adds a chunk's free leaves to the lease. Returns the chunks of its node that can be given
    /// back: all of their leaves are linked to.
    fn extend<E, F>(
        &self,
        access: &LeafAccess<'_, E, F>,
        shape: LeaseShape,
        (chunk, free): (ChunkIndex, FreeLeaves),
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

    /// Leases nothing more on a lost node (U4).
    pub fn forget(&self, node: NodeId) {
        self.leases.borrow_mut().retain(|(own, _)| *own != node);
    }

    /// A piece was taken that nothing links to yet.
    pub fn note_taken(&self) {
        self.unlinked_count.update(|count| count + 1);
    }

    /// A piece that was taken is linked to, or comes back.
    pub fn note_linked(&self) {
        self.unlinked_count.update(|count| count - 1);
    }

    /// Whether a piece was taken that nothing links to yet.
    pub fn has_unlinked(&self) -> bool {
        self.unlinked_count.get() > 0
    }

    /// Takes the leases out that are on other nodes than these, to give them back: nothing new goes
    /// there.
    pub fn take_but(&self, is_open: impl Fn(NodeId) -> bool) -> Vec<LeafLease> {
        let mut leases = self.leases.borrow_mut();
        let closed = leases.extract_if(.., |(node, _)| !is_open(*node));
        closed.map(|(_, lease)| lease).collect()
    }

    /// Takes all leases out, to give them back.
    pub fn take_all(&self) -> Vec<LeafLease> {
        self.take_but(|_| false)
    }
}
