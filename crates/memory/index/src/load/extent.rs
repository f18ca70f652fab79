//! Room for runs: chunks side by side, claimed as they are needed; in a pool of several nodes, by
//! turns on all of them.

use farleaf_fabric::Endpoint;
use farleaf_region::PoolLayout;
use farleaf_region::RegionError;
use farleaf_region::allocation::{ChunkAllocator, ChunkRange, Placement};
use farleaf_region::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_region::layout::{CHUNK_SIZE_BLOCKS, ChunkIndex};
use farleaf_types::{RemoteAddr, TableId};

/// Chunks claimed ahead of need, so that claiming costs little: 4 MiB.
const AHEAD_CHUNK_COUNT: u64 = 64;

/// The chunks of one load.
#[derive(Debug)]
pub struct RunExtents {
    purpose: ChunkPurpose,
    table: TableId,
    ranges: Vec<ChunkRange>,
    /// Blocks of the last range that are used.
    used_blocks: u64,
    /// How full the nodes are, once that was asked.
    placement: Option<Placement>,
}

impl RunExtents {
    /// No chunks yet.
    pub fn new(purpose: ChunkPurpose, table: TableId) -> Self {
        Self {
            purpose,
            table,
            ranges: Vec::new(),
            used_blocks: 0,
            placement: None,
        }
    }

    /// Room for `block_count` blocks in one piece, right behind the last piece if that can be and
    /// no other node is emptier.
    ///
    /// # Errors
    /// The pool is full, or the fabric failed.
    pub async fn place<E: Endpoint>(
        &mut self,
        allocator: &ChunkAllocator<'_, E>,
        layout: &PoolLayout,
        block_count: u64,
    ) -> Result<RemoteAddr, RegionError> {
        let mut placement = match self.placement.take() {
            Some(placement) => placement,
            None => Placement::read(allocator, layout).await?,
        };
        if let Some(last) = self.ranges.last_mut() {
            let missing = (self.used_blocks + block_count)
                .saturating_sub(last.count * CHUNK_SIZE_BLOCKS)
                .div_ceil(CHUNK_SIZE_BLOCKS);
            let mut fits = missing == 0;
            // Each piece of several nodes is a claim of its own.
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

    /// Claims so many chunks side by side, or more, on the emptiest node that has so many.
    async fn claim<E: Endpoint>(
        &self,
        allocator: &ChunkAllocator<'_, E>,
        needed: u64,
        placement: &mut Placement,
    ) -> Result<ChunkRange, RegionError> {
        let ahead = needed.max(AHEAD_CHUNK_COUNT);
        let claim = async |node| {
            let allocator = allocator.on(node);
            match allocator.claim(ahead, self.purpose, self.table).await {
                Err(RegionError::Full { .. }) if ahead > needed => {
                    allocator.claim(needed, self.purpose, self.table).await
                }
                claimed => claimed,
            }
        };
        let (node, range) = placement.on_emptiest(claim).await?;
        placement.note_claimed(node, range.count);
        Ok(range)
    }

    /// Gives back, as free, the chunks of the last range that nothing was placed in.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn return_unused<E: Endpoint>(
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
    pub async fn release<E: Endpoint>(
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
