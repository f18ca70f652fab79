//! Leaves that splits will need, leased ahead, so that a split costs no extra round trip.

use std::collections::BTreeMap;

use farleaf_fabric::Endpoint;
use farleaf_region::RegionError;
use farleaf_region::allocation::{ChunkAllocator, ChunkRange};
use farleaf_region::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_region::layout::ChunkIndex;
use farleaf_types::RemoteAddr;

use crate::access::LeafAccess;

/// The leased leaves of one session for one table.
///
/// Dropping it leaks nothing but time: the memory node sweeps what a fenced session leased.
#[derive(Debug, Default)]
pub struct LeafLease {
    /// Leased leaves that nothing points to; taken from the end.
    free: Vec<RemoteAddr>,
    chunks: Vec<ChunkIndex>,
}

impl LeafLease {
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

    /// Adds the free leaves of a chunk that was just leased (`ChunkAllocator::lease_leaves`).
    pub fn add<E>(&mut self, access: &LeafAccess<'_, E>, chunk: ChunkIndex, free: FreeLeaves) {
        let start = access.layout.chunk_start(chunk);
        let stride = access.geometry.stride_blocks();
        let leaves = free.iter(access.geometry.chunk_leaf_count());
        // Reversed, so that leaves are taken in ascending order.
        let mut leaves: Vec<_> = leaves
            .map(|index| start.offset_blocks(index * stride))
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

    /// Gives back chunks without free leaves.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn give_exhausted<E: Endpoint>(
        access: &LeafAccess<'_, E>,
        chunks: Vec<ChunkIndex>,
    ) -> Result<(), RegionError> {
        let mut lease = Self {
            free: Vec::new(),
            chunks,
        };
        lease.give_back(access).await
    }

    /// Gives all chunks back, with the leaves of them that were not used.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn give_back<E: Endpoint>(
        &mut self,
        access: &LeafAccess<'_, E>,
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
            bits.insert(blocks / access.geometry.stride_blocks());
        }
        let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
        let purpose = ChunkPurpose::Leaves {
            slots: access.geometry.slots(),
        };
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
