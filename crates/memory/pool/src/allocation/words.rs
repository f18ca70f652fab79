//! Words of the chunk table, and the verbs on them.

use farleaf_base::{NodeId, OwnerWord, TableId};
use farleaf_fabric::{Batch, BatchErrorKind, Endpoint};

use super::free_space::reserve_count;
use super::{ChunkAllocator, ChunkRange, ChunkTable};
use crate::PoolError;
use crate::chunk::{CHUNK_ENTRY_SIZE_WORDS, ChunkEntry, ChunkPurpose, FreeLeaves};
use crate::layout::ChunkIndex;

/// Number of chunk blocks that one batch reads or swaps.
pub(super) const BATCH_CHUNK_COUNT: u64 = 512;

/// Purpose of claimed chunks, and the new contents of their blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClaimPurpose {
    pub(super) purpose: ChunkPurpose,
    pub(super) table: TableId,
    pub(super) free: FreeLeaves,
}

impl From<(ChunkPurpose, TableId)> for ClaimPurpose {
    fn from((purpose, table): (ChunkPurpose, TableId)) -> Self {
        Self {
            purpose,
            table,
            free: FreeLeaves::default(),
        }
    }
}

impl ClaimPurpose {
    /// Describes a chunk of `piece_count` pieces. Pieces for value blocks are free until they are
    /// taken one by one; other pieces are tracked by the session that leases the chunk.
    pub(super) fn pieces(purpose: ChunkPurpose, table: TableId, piece_count: u64) -> Self {
        let mut claimed = Self::from((purpose, table));
        if matches!(purpose, ChunkPurpose::Blocks { .. }) {
            claimed.free = FreeLeaves::first(piece_count);
        }
        claimed
    }
}

impl<E: Endpoint> ChunkAllocator<'_, E> {
    pub(super) async fn alloc_num(&self, batch: &mut Batch) -> Result<u64, PoolError> {
        batch.clear();
        let slot = batch.read(self.memory.alloc_num(), 1);
        self.endpoint.execute(batch).await?;
        Ok(batch.words(slot)[0])
    }

    /// Grows `alloc_num` from `at`; `None` if the memory ends, or if it has another value. Chunks
    /// are handed out starting behind the reserve.
    pub(super) async fn grow(
        &self,
        batch: &mut Batch,
        count: u64,
        at: Option<ChunkIndex>,
    ) -> Result<Option<ChunkIndex>, PoolError> {
        let limit = self.memory.superblock.chunk_count;
        let mut current = self.alloc_num(batch).await?;
        loop {
            let start = current.max(reserve_count(limit));
            let end = start.checked_add(count).filter(|end| *end <= limit);
            let Some(end) = end.filter(|_| at.is_none_or(|at| at.number() == start)) else {
                return Ok(None);
            };
            batch.clear();
            let slot = batch.compare_swap(self.memory.alloc_num(), current, end);
            self.endpoint.execute(batch).await?;
            let previous = batch.previous(slot);
            if previous == current {
                return Ok(Some(ChunkIndex::new(self.memory.node, start)));
            }
            current = previous;
        }
    }

    /// Swaps the owner words of a range of free chunks and records their purpose. If another
    /// session has one of them, gives the others back and returns false.
    pub(super) async fn take(
        &self,
        batch: &mut Batch,
        range: ChunkRange,
        claimed: ClaimPurpose,
    ) -> Result<bool, PoolError> {
        let mut taken: Vec<ChunkIndex> = Vec::new();
        let chunks: Vec<ChunkIndex> = range.iter().collect();
        for part in chunks.chunks(BATCH_CHUNK_COUNT as usize) {
            batch.clear();
            let slots: Vec<_> = part
                .iter()
                .map(|chunk| {
                    let entry = self.layout.chunk_entry(*chunk);
                    let swap = batch.compare_swap(entry, 0, self.owner.word());
                    (*chunk, swap, batch.read(entry, CHUNK_ENTRY_SIZE_WORDS))
                })
                .collect();
            self.endpoint.execute(batch).await?;
            let mut lost = false;
            for (chunk, swap, read) in slots {
                let won = batch.previous(swap) == 0;
                let free =
                    ChunkEntry::decode(batch.words(read)).purpose == Some(ChunkPurpose::Free);
                lost |= !won || !free;
                if won {
                    taken.push(chunk);
                }
            }
            if lost {
                for chunk in taken {
                    self.drop_owner(batch, chunk).await?;
                }
                return Ok(false);
            }
        }
        // Written only when all chunks are claimed: a chunk that was released above must still be
        // free.
        for part in chunks.chunks(BATCH_CHUNK_COUNT as usize) {
            batch.clear();
            for chunk in part {
                let purpose = claimed.purpose.behind_first(chunk.0 - range.first.0);
                let body = ChunkEntry::encode_body(purpose, claimed.table, claimed.free);
                batch.write(self.layout.chunk_entry(*chunk).offset(1), &body);
            }
            self.endpoint.execute(batch).await?;
        }
        Ok(true)
    }

    pub(super) async fn swap_owner(
        &self,
        batch: &mut Batch,
        chunk: ChunkIndex,
        from: OwnerWord,
    ) -> Result<Option<ChunkEntry>, PoolError> {
        let entry = self.layout.chunk_entry(chunk);
        batch.clear();
        let swap = batch.compare_swap(entry, from.word(), self.owner.word());
        let read = batch.read(entry, CHUNK_ENTRY_SIZE_WORDS);
        self.endpoint.execute(batch).await?;
        let won = batch.previous(swap) == from.word();
        Ok(won.then(|| ChunkEntry::decode(batch.words(read))))
    }

    pub(super) async fn drop_owner(
        &self,
        batch: &mut Batch,
        chunk: ChunkIndex,
    ) -> Result<(), PoolError> {
        batch.clear();
        batch.write_word(self.layout.chunk_entry(chunk), OwnerWord::FREE.word());
        Ok(self.endpoint.execute(batch).await?)
    }

    pub(super) async fn read_all(&self, batch: &mut Batch) -> Result<Vec<ChunkEntry>, PoolError> {
        let alloc_num = self.alloc_num(batch).await?;
        let chunk_count = self.memory.superblock.chunk_count;
        let count = alloc_num.max(reserve_count(chunk_count)).min(chunk_count);
        let mut entries = Vec::with_capacity(count as usize);
        for start in (0..count).step_by(BATCH_CHUNK_COUNT as usize) {
            let part = (count - start).min(BATCH_CHUNK_COUNT) as usize;
            batch.clear();
            let from = self
                .memory
                .chunk_entry(ChunkIndex::new(self.memory.node, start));
            let read = batch.read(from, part * CHUNK_ENTRY_SIZE_WORDS);
            self.endpoint.execute(batch).await?;
            let blocks = batch.words(read).chunks_exact(CHUNK_ENTRY_SIZE_WORDS);
            entries.extend(blocks.map(ChunkEntry::decode));
        }
        Ok(entries)
    }

    /// Returns the number of used chunks of a node; `None` if it is lost, or unreachable and not
    /// the main node.
    ///
    /// # Errors
    /// The fabric failed, or the node is the main node and unreachable.
    pub async fn used_count(&self, node: NodeId) -> Result<Option<u64>, PoolError> {
        match self.on(node).read_all(&mut self.counted_batch()).await {
            Ok(entries) => {
                let mut table = ChunkTable::default();
                table.push(node, entries);
                Ok(Some(table.used_count(node)))
            }
            Err(PoolError::Fabric(error))
                if node != self.layout.main_node().node
                    && matches!(
                        error.kind(),
                        BatchErrorKind::NodeLost { .. }
                            | BatchErrorKind::Unreachable { .. }
                            | BatchErrorKind::Unknown { .. }
                    ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
