//! Chunks of what nothing names any more, changed one by one (T3).

use farleaf_fabric::Endpoint;
use farleaf_region::RegionError;
use farleaf_region::allocation::{ChunkAllocator, ChunkRange};
use farleaf_region::chunk::{ChunkEntry, ChunkPurpose, FreeLeaves};
use farleaf_region::layout::{CHUNK_SIZE_BLOCKS, ChunkIndex};
use farleaf_types::{BLOCK_SIZE_BYTES, RemoteAddr, TableId};

use crate::sweep::Keeper;

impl<E: Endpoint> Keeper<E> {
    /// Takes over a chunk of a table that nobody leases, and gives it back changed, if it still is
    /// what it was thought to be. False: it is leased, or is not.
    pub(super) async fn change_chunk(
        &self,
        chunk: ChunkIndex,
        table: TableId,
        is_meant: impl Fn(&ChunkEntry) -> bool,
        change: impl FnOnce(&ChunkEntry) -> (ChunkPurpose, FreeLeaves),
    ) -> Result<bool, RegionError> {
        let allocator = ChunkAllocator::new(&self.endpoint, &self.layout, self.owner);
        let free = farleaf_types::OwnerWord::FREE;
        let Some(entry) = allocator.take_over(chunk, free).await? else {
            return Ok(false);
        };
        let range = ChunkRange {
            first: chunk,
            count: 1,
        };
        if entry.table == table && is_meant(&entry) {
            let (purpose, leaves) = change(&entry);
            allocator.give_back(range, purpose, table, leaves).await?;
            return Ok(true);
        }
        allocator.let_go(chunk).await?;
        Ok(false)
    }

    /// Whether a chunk is the node's own: of what a sweep has taken over it could not tell what is
    /// in use (U4). The leaves that are retired there are found again (T4) after a sweep that can.
    pub(super) async fn has_chunk(&self, chunk: ChunkIndex) -> Result<bool, RegionError> {
        let mut batch = farleaf_fabric::Batch::new();
        let owner = batch.read(self.layout.chunk_entry(chunk), 1);
        self.endpoint.execute(&mut batch).await?;
        Ok(batch.words(owner)[0] == self.owner.word())
    }

    /// Marks leaves, or pages, of a shared chunk as free; if all of them are, the chunk is. False:
    /// it is leased.
    pub(super) async fn free_leaves(
        &self,
        chunk: ChunkIndex,
        (table, leaf_size_bytes): (TableId, u64),
        leaves: &[RemoteAddr],
    ) -> Result<bool, RegionError> {
        let start = self.layout.chunk_start(chunk).block();
        let is_leaves =
            |entry: &ChunkEntry| matches!(entry.purpose, Some(ChunkPurpose::Leaves { .. }));
        let change = |entry: &ChunkEntry| {
            let mut free = entry.free;
            let Some(purpose @ ChunkPurpose::Leaves { .. }) = entry.purpose else {
                unreachable!("only a chunk of leaves is changed")
            };
            let stride_blocks = leaf_size_bytes / BLOCK_SIZE_BYTES;
            for leaf in leaves {
                free.insert((leaf.block() - start) / stride_blocks);
            }
            if free.count() == CHUNK_SIZE_BLOCKS / stride_blocks {
                (ChunkPurpose::Free, FreeLeaves::default())
            } else {
                (purpose, free)
            }
        };
        self.change_chunk(chunk, table, is_leaves, change).await
    }
}
