//! Leaves, or inner nodes, that splits will need, leased ahead, so that a split costs no extra
//! round trip.

use std::collections::BTreeMap;

use farleaf_fabric::Endpoint;
use farleaf_region::allocation::{ChunkAllocator, ChunkRange};
use farleaf_region::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_region::layout::ChunkIndex;
use farleaf_region::{PoolLayout, RegionError};
use farleaf_types::{NodeId, RemoteAddr};

use crate::LeafGeometry;
use crate::access::LeafAccess;

/// What chunks are leased for: pieces of one size, side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseShape {
    /// What the chunks are for.
    pub purpose: ChunkPurpose,
    /// Pieces of a chunk.
    pub piece_count: u64,
    /// Blocks from one piece to the next.
    pub stride_blocks: u64,
}

impl LeaseShape {
    /// Leaves that splits make.
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

/// The leased leaves, or inner nodes, of one session for one table.
///
/// Dropping it leaks nothing but time: the memory node sweeps what a fenced session leased.
#[derive(Debug)]
pub struct LeafLease {
    shape: LeaseShape,
    /// Leased leaves that nothing points to; taken from the end.
    free: Vec<RemoteAddr>,
    chunks: Vec<ChunkIndex>,
}

impl LeafLease {
    /// Nothing leased yet.
    pub fn new(shape: LeaseShape) -> Self {
        Self {
            shape,
            free: Vec::new(),
            chunks: Vec::new(),
        }
    }

    /// True when the next [`take`](Self::take) will find nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    /// A leaf that nothing points to; `None` when more must be leased first.
    #[inline]
    pub fn take(&mut self) -> Option<RemoteAddr> {
        self.free.pop()
    }

    /// Puts a leaf back that was taken and that nothing points to after all; not one on a node that
    /// was lost meanwhile, as far as that is known here ([`forget`](Self::forget)).
    pub fn put_back(&mut self, layout: &PoolLayout, leaf: RemoteAddr) {
        let chunk = layout.chunk_of(leaf);
        if chunk.is_some_and(|chunk| self.chunks.contains(&chunk)) {
            self.free.push(leaf);
        }
    }

    /// Holds nothing on a memory node any more, which is lost (U4).
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

    /// The chunks of which all leaves were taken, if that is all of them; each of those leaves must
    /// be linked to by now.
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
    ) -> Result<(), RegionError> {
        let mut lease = Self {
            shape,
            free: Vec::new(),
            chunks,
        };
        lease.give_back(access).await
    }

    /// Gives all chunks back, with the leaves of them that were not used.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn give_back<E: Endpoint, F>(
        &mut self,
        access: &LeafAccess<'_, E, F>,
    ) -> Result<(), RegionError> {
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
            let range = ChunkRange {
                first: chunk,
                count: 1,
            };
            allocator
                .give_back(range, purpose, access.table, bits)
                .await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use farleaf_region::{RegionLayout, Superblock};

    use super::*;

    /// Promise (U4): a piece that comes back after its lost node was forgotten is leased no more,
    /// so that giving the lease back finds a chunk for each piece.
    #[test]
    fn what_comes_back_from_a_forgotten_node_is_dropped() {
        let superblock = Superblock::new(3 << 20, 1).expect("large enough");
        let layout = PoolLayout::from(RegionLayout {
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
