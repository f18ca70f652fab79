//! Changes single chunks whose contents nothing names any more.

use farleaf_base::{BLOCK_SIZE_BYTES, RemoteAddr, TableId};
use farleaf_fabric::Endpoint;
use farleaf_pool::PoolError;
use farleaf_pool::allocation::ChunkRange;
use farleaf_pool::chunk::{ChunkEntry, ChunkPurpose, FreeLeaves};
use farleaf_pool::layout::{CHUNK_SIZE_BLOCKS, ChunkIndex};

use crate::sweep::MemoryMaintainer;

impl<E: Endpoint> MemoryMaintainer<E> {
    /// Takes over a chunk of a table that is not leased, and gives it back changed, if it still has
    /// the expected state. Returns false if it is leased or has another state.
    pub(super) async fn change_chunk(
        &self,
        chunk: ChunkIndex,
        table: TableId,
        is_meant: impl Fn(&ChunkEntry) -> bool,
        change: impl FnOnce(&ChunkEntry) -> (ChunkPurpose, FreeLeaves),
    ) -> Result<bool, PoolError> {
        let allocator = self.allocator();
        let free = farleaf_base::OwnerWord::FREE;
        let Some(entry) = allocator.take_over(chunk, free).await? else {
            return Ok(false);
        };
        let range = ChunkRange::one(chunk);
        if entry.table == table && is_meant(&entry) {
            let (purpose, leaves) = change(&entry);
            allocator.give_back(range, purpose, table, leaves).await?;
            return Ok(true);
        }
        allocator.release_chunk(chunk).await?;
        Ok(false)
    }

    /// Returns whether the node owns a chunk: a sweep took it over but could not tell what is in
    /// use, because a node is lost. Its retired leaves are found again after a sweep that can.
    pub(super) async fn has_chunk(&self, chunk: ChunkIndex) -> Result<bool, PoolError> {
        let mut batch = farleaf_fabric::Batch::new();
        let owner = batch.read(self.layout.chunk_entry(chunk), 1);
        self.endpoint.execute(&mut batch).await?;
        Ok(batch.words(owner)[0] == self.owner.word())
    }

    /// Marks leaves or pages of a shared chunk as free; frees the chunk if all of them are. Returns
    /// false if it is leased.
    pub(super) async fn free_leaves(
        &self,
        chunk: ChunkIndex,
        table: TableId,
        leaf_size_bytes: u64,
        leaves: &[RemoteAddr],
    ) -> Result<bool, PoolError> {
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
