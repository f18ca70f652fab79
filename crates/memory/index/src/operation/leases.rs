//! The leaves and inner nodes that a session has leased for splits, per memory node.

use farleaf_leaf::{LeafAccess, LeafLease, LeaseShape};
use farleaf_region::PoolLayout;
use farleaf_region::chunk::FreeLeaves;
use farleaf_region::layout::ChunkIndex;
use farleaf_types::{NodeId, RemoteAddr};

use super::IndexState;

impl IndexState {
    /// The chunks of a lease that can be given back, now that it has another.
    fn extend<E>(
        &self,
        lease: &mut LeafLease,
        access: &LeafAccess<'_, E>,
        (chunk, free): (ChunkIndex, FreeLeaves),
    ) -> Vec<ChunkIndex> {
        let exhausted = if self.leases.has_unlinked() {
            Vec::new()
        } else {
            lease.take_exhausted()
        };
        lease.add(access, chunk, free);
        exhausted
    }

    /// A leased inner node.
    pub(super) fn take_inner(&self) -> Option<RemoteAddr> {
        let node = self.inner_lease.borrow_mut().as_mut()?.take()?;
        self.leases.note_taken();
        Some(node)
    }

    /// An inner node that was taken is not needed after all.
    pub(super) fn put_back_inner(&self, layout: &PoolLayout, node: RemoteAddr) {
        self.leases.note_linked();
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
        self.leases.forget(node);
        let mut inner = self.inner_lease.borrow_mut();
        let mut old = self.old_leases.borrow_mut();
        for lease in inner.iter_mut().chain(&mut *old) {
            lease.forget(node);
        }
    }

    /// Takes the leases out that are on other nodes than these, to give them back: nothing new goes
    /// there; and those for trees that are old. None while a leaf that was taken is linked to by
    /// nothing yet.
    pub fn take_leases_but(&self, is_open: impl Fn(NodeId) -> bool) -> Vec<LeafLease> {
        if self.leases.has_unlinked() {
            return Vec::new();
        }
        let closed = self.leases.take_but(is_open).into_iter();
        closed.chain(self.old_leases.take()).collect()
    }

    /// Takes the leased leaves out, to give them back.
    pub fn take_leases(&self) -> Vec<LeafLease> {
        let leases = self.leases.take_all().into_iter();
        let inner = self.inner_lease.take().into_iter();
        leases.chain(inner).chain(self.old_leases.take()).collect()
    }
}
