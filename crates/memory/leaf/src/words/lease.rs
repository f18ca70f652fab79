//! Leaves or inner nodes that are leased ahead, so that a split costs no extra round trip.

use std::collections::BTreeMap;

use farleaf_base::{NodeId, RemoteAddr};
use farleaf_fabric::Endpoint;
use farleaf_pool::allocation::{ChunkAllocator, ChunkRange};
use farleaf_pool::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_pool::layout::ChunkIndex;
use farleaf_pool::{PoolError, PoolLayout};

use crate::words::LeafGeometry;
use crate::words::access::LeafAccess;

/// Use of leased chunks: adjacent pieces of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseShape {
    /// Purpose of the chunks.
    pub purpose: ChunkPurpose,
    /// Number of pieces in a chunk.
    pub piece_count: u64,
    /// Distance between adjacent pieces in blocks.
    pub stride_blocks: u64,
}

impl LeaseShape {
    /// Returns the shape of leases for leaves that splits create.
    pub fn leaves(geometry: LeafGeometry) -> Self {
        Self {
            purpose: ChunkPurpose::Leaves {
                slots: geometry.slots(),
            },
            piece_count: geometry.chunk_leaf_count(),
            stride_blocks: geometry.stride_blocks(),
        }
    }
}

/// Leased leaves or inner nodes of one session for one table.
///
/// Dropping it leaks nothing permanently: the memory node sweeps the leases of a fenced session.
#[derive(Debug)]
pub struct LeafLease {
    shape: LeaseShape,
    /// Leased leaves that nothing points to; taken from the end.
    free: Vec<RemoteAddr>,
    chunks: Vec<ChunkIndex>,
}

impl LeafLease {
    /// Creates an empty lease.
    pub fn new(shape: LeaseShape) -> Self {
        Self {
            shape,
            free: Vec::new(),
            chunks: Vec::new(),
        }
    }

    /// Returns true if the next [`take`](Self::take) would return `None`.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    /// Takes a leaf that nothing points to; `None` if more must be leased first.
    #[inline]
    pub fn take(&mut self) -> Option<RemoteAddr> {
        self.free.pop()
    }

    /// Puts back a leaf that was taken but that nothing points to after all. A leaf on a node known
    /// to be lost ([`forget`](Self::forget)) is dropped instead.
    pub fn put_back(&mut self, layout: &PoolLayout, leaf: RemoteAddr) {
        let chunk = layout.chunk_of(leaf);
        if chunk.is_some_and(|chunk| self.chunks.contains(&chunk)) {
            self.free.push(leaf);
        }
    }

    /// Drops everything leased on a lost memory node.
    pub fn forget(&mut self, node: NodeId) {
        self.free.retain(|leaf| leaf.node() != node);
        self.chunks.retain(|chunk| chunk.node() != node);
    }

    /// Adds the free leaves of a chunk that was just leased (`ChunkAllocator::lease_pieces`).
    pub fn add<E, F>(
        &mut self,
        access: &LeafAccess<'_, E, F>,
        chunk: ChunkIndex,
        free: FreeLeaves,
    ) {
        let start = access.layout.chunk_start(chunk);
        let LeaseShape {
            piece_count,
            stride_blocks,
            ..
        } = self.shape;
        // Reversed, so that leaves are taken in ascending order.
        let mut leaves: Vec<_> = free
            .iter(piece_count)
            .map(|index| start.offset_blocks(index * stride_blocks))
            .collect();
        leaves.reverse();
        self.free.splice(0..0, leaves);
        self.chunks.push(chunk);
    }

    /// Removes and returns the chunks whose leaves have all been taken, if no free leaves remain.
    /// The caller must have linked all of these leaves.
    pub fn take_exhausted(&mut self) -> Vec<ChunkIndex> {
        if self.free.is_empty() {
            core::mem::take(&mut self.chunks)
        } else {
            Vec::new()
        }
    }

    /// Gives back chunks of this shape without free leaves.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn give_exhausted<E: Endpoint, F>(
        access: &LeafAccess<'_, E, F>,
        shape: LeaseShape,
        chunks: Vec<ChunkIndex>,
    ) -> Result<(), PoolError> {
        let mut lease = Self {
            shape,
            free: Vec::new(),
            chunks,
        };
        lease.give_back(access).await
    }

    /// Gives back all chunks, including their unused leaves.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn give_back<E: Endpoint, F>(
        &mut self,
        access: &LeafAccess<'_, E, F>,
    ) -> Result<(), PoolError> {
        let mut free: BTreeMap<ChunkIndex, FreeLeaves> = self
            .chunks
            .drain(..)
            .map(|chunk| (chunk, FreeLeaves::default()))
            .collect();
        for leaf in self.free.drain(..) {
            let chunk = access.layout.chunk_of(leaf);
            let entry = chunk.and_then(|chunk| Some((chunk, free.get_mut(&chunk)?)));
            let (chunk, bits) = entry.expect("leased leaves lie in leased chunks");
            let blocks = leaf.block() - access.layout.chunk_start(chunk).block();
            bits.insert(blocks / self.shape.stride_blocks);
        }
        let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
        let purpose = self.shape.purpose;
        for (chunk, bits) in free {
            let range = ChunkRange::one(chunk);
            allocator
                .give_back(range, purpose, access.table, bits)
                .await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use farleaf_pool::{NodeLayout, Superblock};

    use super::*;

    /// Promise: a piece put back after its lost node was forgotten is dropped, so that giving the
    /// lease back finds a chunk for each piece.
    #[test]
    fn what_comes_back_from_a_forgotten_node_is_dropped() {
        let superblock = Superblock::new(3 << 20, 1).expect("large enough");
        let layout = PoolLayout::from(NodeLayout {
            node: NodeId(0),
            superblock,
        });
        let geometry = LeafGeometry::new(16).expect("a size of leaves");
        let mut lease = LeafLease::new(LeaseShape::leaves(geometry));
        let leaf = layout.chunk_start(ChunkIndex(0));
        lease.chunks.push(ChunkIndex(0));
        lease.put_back(&layout, leaf);
        assert_eq!(lease.take(), Some(leaf));

        lease.forget(NodeId(0));
        lease.put_back(&layout, leaf);
        assert_eq!(lease.take(), None);
    }
}
