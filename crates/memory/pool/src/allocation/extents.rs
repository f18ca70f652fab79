//! Adjacent chunks that form one value block.

use farleaf_base::{BLOCK_SIZE_WORDS, OwnerWord, TableId};
use farleaf_fabric::{Batch, Endpoint};

use super::words::BATCH_CHUNK_COUNT;
use super::{ChunkAllocator, ChunkRange};
use crate::PoolError;
use crate::chunk::{CHUNK_ENTRY_SIZE_WORDS, ChunkEntry, ChunkPurpose, FreeLeaves};
use crate::layout::{CHUNK_SIZE_BLOCKS, ChunkIndex};

/// Number of chunks that one batch zeroes: 1 MiB.
const FREED_CHUNK_COUNT: u64 = 16;
/// Number of chunk blocks that are read first, because they often suffice.
const FIRST_CHUNK_COUNT: u64 = 16;

/// Result of freeing chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeOutcome {
    /// The chunks are free.
    Done,
    /// Another session holds one of them now, and the first ones are unchanged; retry later.
    Busy,
    /// The chunks no longer belong to that extent.
    Gone,
}

impl<E: Endpoint> ChunkAllocator<'_, E> {
    /// Returns the number of chunks of a table's extent, from its first on, whether or not they are
    /// leased; 0 if this is not an extent's first chunk. One round trip for up to 16 chunks, then
    /// one for each 512 more, 64 bytes per chunk.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn extent_chunk_count(
        &self,
        first: ChunkIndex,
        table: TableId,
    ) -> Result<u64, PoolError> {
        let mut batch = self.counted_batch();
        let Some(memory) = self.layout.memory(first.node()) else {
            return Ok(0);
        };
        let end = memory.superblock.chunk_count;
        let mut part = FIRST_CHUNK_COUNT;
        let mut count = 0;
        loop {
            let next = first.number() + count;
            part = part.min(end.saturating_sub(next));
            if part == 0 {
                return Ok(count);
            }
            batch.clear();
            let from = memory.chunk_entry(ChunkIndex::new(first.node(), next));
            let read = batch.read(from, part as usize * CHUNK_ENTRY_SIZE_WORDS);
            self.endpoint.execute(&mut batch).await?;
            for words in batch.words(read).chunks_exact(CHUNK_ENTRY_SIZE_WORDS) {
                if !is_chunk_of(&ChunkEntry::decode(words), table, count) {
                    return Ok(count);
                }
                count += 1;
            }
            part = BATCH_CHUNK_COUNT;
        }
    }

    /// Clears the owner words of chunks that this session has claimed, and leaves the rest of their
    /// blocks unchanged. One round trip for each 512.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn release_chunks(&self, range: ChunkRange) -> Result<(), PoolError> {
        self.drop_owners(range, None).await
    }

    /// Gives back chunks that this session has claimed and never written, so that they are still
    /// zeroed. One round trip for each 512.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn give_back_untouched(&self, range: ChunkRange) -> Result<(), PoolError> {
        let free = FreeLeaves::default();
        let body = ChunkEntry::encode_body(ChunkPurpose::Free, TableId(0), free);
        self.drop_owners(range, Some(&body)).await
    }

    async fn drop_owners(&self, range: ChunkRange, body: Option<&[u64]>) -> Result<(), PoolError> {
        let mut batch = self.counted_batch();
        let chunks: Vec<ChunkIndex> = range.iter().collect();
        // Extents are freed from the last chunk on.
        for part in chunks.rchunks(BATCH_CHUNK_COUNT as usize) {
            batch.clear();
            for chunk in part.iter().rev() {
                let entry = self.layout.chunk_entry(*chunk);
                if let Some(body) = body {
                    batch.write(entry.offset(1), body);
                }
                batch.write_word(entry, OwnerWord::FREE.word());
            }
            self.endpoint.execute(&mut batch).await?;
        }
        Ok(())
    }

    /// Frees chunks of a table's extent that nothing leads to any more, from the last on; each is
    /// taken over and zeroed. `position` is that of the first chunk of the range. Two round trips
    /// and 1 MiB written for each 16.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn free_extent(
        &self,
        range: ChunkRange,
        position: u64,
        table: TableId,
    ) -> Result<FreeOutcome, PoolError> {
        let mut batch = self.counted_batch();
        let chunks: Vec<ChunkIndex> = range.iter().collect();
        for part in chunks.rchunks(FREED_CHUNK_COUNT as usize) {
            let position = position + part[0].0 - range.first.0;
            let freed = self.free_part(&mut batch, part, position, table).await?;
            if freed != FreeOutcome::Done {
                return Ok(freed);
            }
        }
        Ok(FreeOutcome::Done)
    }

    async fn free_part(
        &self,
        batch: &mut Batch,
        chunks: &[ChunkIndex],
        position: u64,
        table: TableId,
    ) -> Result<FreeOutcome, PoolError> {
        batch.clear();
        let swaps = chunks.iter().map(|chunk| {
            let entry = self.layout.chunk_entry(*chunk);
            let swap = batch.compare_swap(entry, 0, self.owner.word());
            (*chunk, swap, batch.read(entry, CHUNK_ENTRY_SIZE_WORDS))
        });
        let swaps: Vec<_> = swaps.collect();
        self.endpoint.execute(batch).await?;
        let mut taken = Vec::new();
        let mut freed = FreeOutcome::Done;
        for (position, (chunk, swap, read)) in (position..).zip(swaps) {
            let is_own = batch.previous(swap) == 0;
            if is_own {
                taken.push(chunk);
            }
            // The owner word alone proves nothing here: it is this session's, or another's.
            if !is_chunk_of(&ChunkEntry::decode(batch.words(read)), table, position) {
                freed = FreeOutcome::Gone;
            } else if !is_own && freed == FreeOutcome::Done {
                freed = FreeOutcome::Busy;
            }
        }
        batch.clear();
        if freed == FreeOutcome::Done {
            let body =
                ChunkEntry::encode_body(ChunkPurpose::Free, TableId(0), FreeLeaves::default());
            let zeros = vec![0; (CHUNK_SIZE_BLOCKS * BLOCK_SIZE_WORDS) as usize];
            for chunk in taken.iter().rev() {
                let entry = self.layout.chunk_entry(*chunk);
                batch.write(self.layout.chunk_start(*chunk).word_at(0), &zeros);
                batch.write(entry.offset(1), &body);
                batch.write_word(entry, OwnerWord::FREE.word());
            }
        } else {
            for chunk in taken {
                batch.write_word(self.layout.chunk_entry(chunk), OwnerWord::FREE.word());
            }
        }
        self.endpoint.execute(batch).await?;
        Ok(freed)
    }
}

fn is_chunk_of(entry: &ChunkEntry, table: TableId, position: u64) -> bool {
    let Some(ChunkPurpose::Extent { position: own }) = entry.purpose else {
        return false;
    };
    entry.table == table && u64::from(own) == position
}
