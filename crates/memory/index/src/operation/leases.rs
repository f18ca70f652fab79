//! Leaves and inner nodes that a session has leased for splits, per memory node.

use farleaf_base::{NodeId, RemoteAddr};
use farleaf_leaf::words::{LeafAccess, LeafLease, LeaseShape};
use farleaf_pool::PoolLayout;
use farleaf_pool::chunk::FreeLeaves;
use farleaf_pool::layout::ChunkIndex;

use super::IndexState;

impl IndexState {
    /// Adds a chunk to a lease. Returns the lease's exhausted chunks, which are to be released.
    fn extend<E>(
        &self,
        lease: &mut LeafLease,
        access: &LeafAccess<'_, E>,
        chunk: ChunkIndex,
        free: FreeLeaves,
    ) -> Vec<ChunkIndex> {
        let exhausted = if self.leases.has_unlinked() {
            Vec::new()
        } else {
            lease.take_exhausted()
        };
        lease.add(access, chunk, free);
        exhausted
    }

    /// Takes a leased inner node.
    pub(super) fn take_inner(&self) -> Option<RemoteAddr> {
        let node = self.inner_lease.borrow_mut().as_mut()?.take()?;
        self.leases.note_taken();
        Some(node)
    }

    /// Puts back an inner node that was not needed.
    pub(super) fn put_back_inner(&self, layout: &PoolLayout, node: RemoteAddr) {
        self.leases.note_linked();
        if let Some(lease) = self.inner_lease.borrow_mut().as_mut() {
            lease.put_back(layout, node);
        }
    }

    /// Does [`extend_lease`](Self::extend_lease) for inner nodes.
    pub(super) fn extend_inner<E>(
        &self,
        access: &LeafAccess<'_, E>,
        shape: LeaseShape,
        chunk: ChunkIndex,
        free: FreeLeaves,
    ) -> Vec<ChunkIndex> {
        let mut lease = self.inner_lease.borrow_mut();
        let lease = lease.get_or_insert_with(|| LeafLease::new(shape));
        self.extend(lease, access, chunk, free)
    }

    /// Keeps a chunk, to be returned, that was leased for a tree that has been replaced meanwhile.
    pub(super) fn keep_for_old_tree<E>(
        &self,
        access: &LeafAccess<'_, E>,
        shape: LeaseShape,
        chunk: ChunkIndex,
        free: FreeLeaves,
    ) {
        let mut lease = LeafLease::new(shape);
        lease.add(access, chunk, free);
        self.old_leases.borrow_mut().push(lease);
    }

    /// Drops leases on a lost node.
    pub(super) fn forget_leases(&self, node: NodeId) {
        self.leases.forget(node);
        let mut inner = self.inner_lease.borrow_mut();
        let mut old = self.old_leases.borrow_mut();
        for lease in inner.iter_mut().chain(&mut *old) {
            lease.forget(node);
        }
    }

    /// Takes out, to be returned, the leases on nodes for which `is_open` is false, which get
    /// nothing new, and those for old trees. Returns none while a taken leaf is not linked yet.
    pub fn take_leases_but(&self, is_open: impl Fn(NodeId) -> bool) -> Vec<LeafLease> {
        if self.leases.has_unlinked() {
            return Vec::new();
        }
        let closed = self.leases.take_except(is_open).into_iter();
        closed.chain(self.old_leases.take()).collect()
    }

    /// Takes out all leased leaves, to be returned.
    pub fn take_leases(&self) -> Vec<LeafLease> {
        let leases = self.leases.take_all().into_iter();
        let inner = self.inner_lease.take().into_iter();
        leases.chain(inner).chain(self.old_leases.take()).collect()
    }
}
