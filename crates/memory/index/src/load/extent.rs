//! Far memory for runs: adjacent chunks, claimed as needed; in a pool of several nodes, on all of
//! them in turn.

use farleaf_base::{RemoteAddr, TableId};
use farleaf_fabric::Endpoint;
use farleaf_pool::PoolError;
use farleaf_pool::PoolLayout;
use farleaf_pool::allocation::{ChunkAllocator, ChunkRange, NodeChoice};
use farleaf_pool::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_pool::layout::{CHUNK_SIZE_BLOCKS, ChunkIndex};

/// Number of chunks claimed ahead, so that claiming costs little: 4 MiB.
const AHEAD_CHUNK_COUNT: u64 = 64;

/// Chunks of one load.
#[derive(Debug)]
pub struct RunExtents {
    purpose: ChunkPurpose,
    table: TableId,
    ranges: Vec<ChunkRange>,
    /// Number of used blocks of the last range.
    used_blocks: u64,
    /// Fill of the nodes, once it has been read.
    placement: Option<NodeChoice>,
}

impl RunExtents {
    /// Creates extents without chunks.
    pub fn new(purpose: ChunkPurpose, table: TableId) -> Self {
        Self {
            purpose,
            table,
            ranges: Vec::new(),
            used_blocks: 0,
            placement: None,
        }
    }

    /// Reserves `block_count` adjacent blocks, directly after the last piece if possible and if no
    /// other node is emptier.
    ///
    /// # Errors
    /// The pool is full, or the fabric failed.
    pub async fn place<E: Endpoint>(
        &mut self,
        allocator: &ChunkAllocator<'_, E>,
        layout: &PoolLayout,
        block_count: u64,
    ) -> Result<RemoteAddr, PoolError> {
        let mut placement = match self.placement.take() {
            Some(placement) => placement,
            None => NodeChoice::read(allocator, layout).await?,
        };
        if let Some(last) = self.ranges.last_mut() {
            let missing = (self.used_blocks + block_count)
                .saturating_sub(last.count * CHUNK_SIZE_BLOCKS)
                .div_ceil(CHUNK_SIZE_BLOCKS);
            let mut fits = missing == 0;
            // On several nodes, each piece is claimed separately.
            let extensible = (!placement.has_choice()).then_some(allocator);
            for count in [missing.max(AHEAD_CHUNK_COUNT), missing] {
                if !fits
                    && let Some(allocator) = extensible
                    && allocator
                        .extend(*last, count, self.purpose, self.table)
                        .await?
                {
                    last.count += count;
                    fits = true;
                }
            }
            if fits {
                let place = layout
                    .chunk_start(last.first)
                    .offset_blocks(self.used_blocks);
                self.used_blocks += block_count;
                self.placement = Some(placement);
                return Ok(place);
            }
        }
        let needed = block_count.div_ceil(CHUNK_SIZE_BLOCKS);
        let range = self.claim(allocator, needed, &mut placement).await?;
        self.return_unused(allocator).await?;
        self.placement = Some(placement);
        self.ranges.push(range);
        self.used_blocks = block_count;
        Ok(layout.chunk_start(range.first))
    }

    /// Claims at least `needed` adjacent chunks on the emptiest node that has so many.
    async fn claim<E: Endpoint>(
        &self,
        allocator: &ChunkAllocator<'_, E>,
        needed: u64,
        placement: &mut NodeChoice,
    ) -> Result<ChunkRange, PoolError> {
        let ahead = needed.max(AHEAD_CHUNK_COUNT);
        let claim = async |node| {
            let allocator = allocator.on(node);
            match allocator.claim(ahead, self.purpose, self.table).await {
                Err(PoolError::Full { .. }) if ahead > needed => {
                    allocator.claim(needed, self.purpose, self.table).await
                }
                claimed => claimed,
            }
        };
        let (node, range) = placement.on_emptiest(claim).await?;
        placement.note_claimed(node, range.count);
        Ok(range)
    }

    /// Releases, as free, the unused chunks of the last range.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn return_unused<E: Endpoint>(
        &mut self,
        allocator: &ChunkAllocator<'_, E>,
    ) -> Result<(), PoolError> {
        let Some(last) = self.ranges.last_mut() else {
            return Ok(());
        };
        let used = self.used_blocks.div_ceil(CHUNK_SIZE_BLOCKS);
        let unused = ChunkRange {
            first: ChunkIndex(last.first.0 + used),
            count: last.count - used,
        };
        last.count = used;
        let free = ChunkPurpose::Free;
        allocator
            .give_back(unused, free, self.table, FreeLeaves::default())
            .await
    }

    /// Releases all chunks: to the table if the load was committed, otherwise as free.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn release<E: Endpoint>(
        self,
        allocator: &ChunkAllocator<'_, E>,
        committed: bool,
    ) -> Result<(), PoolError> {
        let purpose = if committed {
            self.purpose
        } else {
            ChunkPurpose::Free
        };
        for range in self.ranges {
            allocator
                .give_back(range, purpose, self.table, FreeLeaves::default())
                .await?;
        }
        Ok(())
    }
}
