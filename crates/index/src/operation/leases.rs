//! The leaves and inner nodes that a session has leased for splits, per memory node.

use farleaf_leaf::{LeafAccess, LeafLease, LeaseShape};
use farleaf_region::PoolLayout;
use farleaf_region::chunk::FreeLeaves;
use farleaf_region::layout::ChunkIndex;
use farleaf_types::{NodeId, RemoteAddr};

use super::IndexState;

impl IndexState {
    /// A leased leaf on this node.
    fn take_leaf(&self, node: NodeId) -> Option<RemoteAddr> {
        let mut leases = self.leases.borrow_mut();
        let (_, lease) = leases.iter_mut().find(|(own, _)| *own == node)?;
        let leaf = lease.take()?;
        self.unlinked_count.update(|count| count + 1);
        Some(leaf)
    }

    /// A leased leaf for a split on this node: there, or on the node that stands in for it.
    pub(super) fn take_leaf_for(&self, node: NodeId) -> Option<RemoteAddr> {
        if let Some(leaf) = self.take_leaf(node) {
            return Some(leaf);
        }
        let stand_in = {
            let stand_ins = self.stand_ins.borrow();
            let found = stand_ins.iter().find(|(full, _)| *full == node);
            found.map(|(_, other)| *other)?
        };
        let leaf = self.take_leaf(stand_in);
        if leaf.is_none() {
            // There may be room again.
            let mut stand_ins = self.stand_ins.borrow_mut();
            stand_ins.retain(|(full, _)| *full != node);
        }
        leaf
    }

    /// There was no room on `full`, or nothing new goes there, and there was on `other`.
    pub(super) fn stand_in(&self, full: NodeId, other: NodeId) {
        if full != other {
            self.stand_ins.borrow_mut().push((full, other));
        }
    }

    /// Adds a chunk's free leaves to the lease. Returns the chunks of its node that can be given
    /// back: all of their leaves are linked to.
    pub(super) fn extend_lease<E>(
        &self,
        access: &LeafAccess<'_, E>,
        (chunk, free): (ChunkIndex, FreeLeaves),
    ) -> Vec<ChunkIndex> {
        let mut leases = self.leases.borrow_mut();
        let node = chunk.node();
        let place = leases.iter().position(|(own, _)| *own == node);
        let place = place.unwrap_or_else(|| {
            let shape = LeaseShape::leaves(access.geometry);
            leases.push((node, LeafLease::new(shape)));
            leases.len() - 1
        });
        self.extend(&mut leases[place].1, access, (chunk, free))
    }

    /// The chunks of a lease that can be given back, now that it has another.
    fn extend<E>(
        &self,
        lease: &mut LeafLease,
        access: &LeafAccess<'_, E>,
        (chunk, free): (ChunkIndex, FreeLeaves),
    ) -> Vec<ChunkIndex> {
        let exhausted = if self.unlinked_count.get() == 0 {
            lease.take_exhausted()
        } else {
            Vec::new()
        };
        lease.add(access, chunk, free);
        exhausted
    }

    /// A leased inner node.
    pub(super) fn take_inner(&self) -> Option<RemoteAddr> {
        let node = self.inner_lease.borrow_mut().as_mut()?.take()?;
        self.unlinked_count.update(|count| count + 1);
        Some(node)
    }

    /// An inner node that was taken is not needed after all.
    pub(super) fn put_back_inner(&self, layout: &PoolLayout, node: RemoteAddr) {
        self.note_linked();
        if let Some(lease) = self.inner_lease.borrow_mut().as_mut() {
            lease.put_back(layout, node);
        }
    }

    /// [`extend_lease`](Self::extend_lease) for inner nodes.
    pub(super) fn extend_inner<E>(
        &self,
        access: &LeafAccess<'_, E>,
        shape: LeaseShape,
        (chunk, free): (ChunkIndex, FreeLeaves),
    ) -> Vec<ChunkIndex> {
        let mut lease = self.inner_lease.borrow_mut();
        let lease = lease.get_or_insert_with(|| LeafLease::new(shape));
        self.extend(lease, access, (chunk, free))
    }

    /// A chunk was leased for a tree that another one has replaced meanwhile: it is given back.
    pub(super) fn keep_for_old_tree<E>(
        &self,
        access: &LeafAccess<'_, E>,
        shape: LeaseShape,
        (chunk, free): (ChunkIndex, FreeLeaves),
    ) {
        let mut lease = LeafLease::new(shape);
        lease.add(access, chunk, free);
        self.old_leases.borrow_mut().push(lease);
    }

    /// Leases nothing more on a lost node (U4).
    pub(super) fn forget_leases(&self, node: NodeId) {
        self.leases.borrow_mut().retain(|(own, _)| *own != node);
        let mut inner = self.inner_lease.borrow_mut();
        let mut old = self.old_leases.borrow_mut();
        for lease in inner.iter_mut().chain(&mut *old) {
            lease.forget(node);
        }
    }

    /// A leaf that was taken is linked to.
    pub(super) fn note_linked(&self) {
        self.unlinked_count.update(|count| count - 1);
    }

    /// Takes the leases out that are on other nodes than these, to give them back: nothing new goes
    /// there; and those for trees that are old. None while a leaf that was taken is linked to by
    /// nothing yet.
    pub fn take_leases_but(&self, is_open: impl Fn(NodeId) -> bool) -> Vec<LeafLease> {
        if self.unlinked_count.get() > 0 {
            return Vec::new();
        }
        let mut leases = self.leases.borrow_mut();
        let closed = leases.extract_if(.., |(node, _)| !is_open(*node));
        let closed = closed.map(|(_, lease)| lease);
        closed.chain(self.old_leases.take()).collect()
    }

    /// Takes the leased leaves out, to give them back.
    pub fn take_leases(&self) -> Vec<LeafLease> {
        let leases = self.leases.take().into_iter().map(|(_, lease)| lease);
        let inner = self.inner_lease.take().into_iter();
        leases.chain(inner).chain(self.old_leases.take()).collect()
    }
}
