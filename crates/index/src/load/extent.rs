//! Room for runs: chunks side by side, claimed as they are needed.

use farleaf_fabric::Endpoint;
use farleaf_region::RegionError;
use farleaf_region::RegionLayout;
use farleaf_region::allocation::{ChunkAllocator, ChunkRange};
use farleaf_region::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_region::layout::{CHUNK_SIZE_BLOCKS, ChunkIndex};
use farleaf_types::{RemoteAddr, TableId};

/// Chunks claimed ahead of need, so that claiming costs little: 4 MiB.
const AHEAD_CHUNK_COUNT: u64 = 64;

/// The chunks of one load.
#[derive(Debug)]
pub(super) struct RunExtents {
    purpose: ChunkPurpose,
    table: TableId,
    ranges: Vec<ChunkRange>,
    /// Blocks of the last range that are used.
    used_blocks: u64,
}

impl RunExtents {
    /// No chunks yet.
    pub(super) fn new(purpose: ChunkPurpose, table: TableId) -> Self {
        Self {
            purpose,
            table,
            ranges: Vec::new(),
            used_blocks: 0,
        }
    }

    /// Room for `block_count` blocks in one piece, right behind the last piece if that can be.
    ///
    /// # Errors
    /// The pool is full, or the fabric failed.
    pub(super) async fn place<E: Endpoint>(
        &mut self,
        allocator: &ChunkAllocator<'_, E>,
        layout: &RegionLayout,
        block_count: u64,
    ) -> Result<RemoteAddr, RegionError> {
        if let Some(last) = self.ranges.last_mut() {
            let missing = (self.used_blocks + block_count)
                .saturating_sub(last.count * CHUNK_SIZE_BLOCKS)
                .div_ceil(CHUNK_SIZE_BLOCKS);
            let mut fits = missing == 0;
            for count in [missing.max(AHEAD_CHUNK_COUNT), missing] {
                if !fits
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
                return Ok(place);
            }
        }
        let needed = block_count.div_ceil(CHUNK_SIZE_BLOCKS);
        let ahead = needed.max(AHEAD_CHUNK_COUNT);
        let range = match allocator.claim(ahead, self.purpose, self.table).await {
            Err(RegionError::Full { .. }) if ahead > needed => {
                allocator.claim(needed, self.purpose, self.table).await?
            }
            other => other?,
        };
        self.return_unused(allocator).await?;
        self.ranges.push(range);
        self.used_blocks = block_count;
        Ok(layout.chunk_start(range.first))
    }

    /// Gives back, as free, the chunks of the last range that nothing was placed in.
    ///
    /// # Errors
    /// The fabric failed.
    pub(super) async fn return_unused<E: Endpoint>(
        &mut self,
        allocator: &ChunkAllocator<'_, E>,
    ) -> Result<(), RegionError> {
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

    /// Gives all chunks back: to the table if the load was committed, else as free.
    ///
    /// # Errors
    /// The fabric failed.
    pub(super) async fn release<E: Endpoint>(
        self,
        allocator: &ChunkAllocator<'_, E>,
        committed: bool,
    ) -> Result<(), RegionError> {
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
