//! Far memory for leaves and inner nodes of a load: chunks cut into pieces of one size, on all
//! nodes of the pool in turn.

use farleaf_base::RemoteAddr;
use farleaf_fabric::Endpoint;
use farleaf_leaf::words::{LeafAccess, LeaseShape};
use farleaf_pool::PoolError;
use farleaf_pool::allocation::{ChunkAllocator, ChunkRange, NodeChoice};
use farleaf_pool::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_pool::layout::ChunkIndex;

/// Number of chunks claimed ahead, so that claiming costs little: 1 MiB.
const AHEAD_CHUNK_COUNT: u64 = 16;

/// Chunks of one load for pieces of one kind.
#[derive(Debug)]
pub(crate) struct Pieces {
    shape: LeaseShape,
    ranges: Vec<ChunkRange>,
    /// Number of chunks of the last range that pieces were taken from.
    used_chunk_count: u64,
    used_piece_count: u64,
    placement: Option<NodeChoice>,
    takes_reserve: bool,
}

impl Pieces {
    /// Creates pieces without chunks; `takes_reserve` permits use of the chunks reserved for
    /// retraining.
    pub(crate) fn new(shape: LeaseShape, takes_reserve: bool) -> Self {
        Self {
            shape,
            ranges: Vec::new(),
            used_chunk_count: 0,
            used_piece_count: 0,
            placement: None,
            takes_reserve,
        }
    }

    /// Takes up to `wanted` adjacent pieces; fewer if the chunk has fewer left.
    ///
    /// # Errors
    /// The pool is full, or the fabric failed.
    pub(crate) async fn take<E: Endpoint>(
        &mut self,
        access: &LeafAccess<'_, E>,
        wanted: u64,
    ) -> Result<(RemoteAddr, u64), PoolError> {
        let is_full = self.used_piece_count == self.shape.piece_count;
        if self.ranges.is_empty() || is_full {
            let last = self.ranges.last();
            if last.is_none_or(|last| self.used_chunk_count == last.count) {
                let range = self.claim(access).await?;
                self.ranges.push(range);
                self.used_chunk_count = 0;
            }
            self.used_chunk_count += 1;
            self.used_piece_count = 0;
        }
        let last = self.ranges.last().expect("one was just claimed");
        let chunk = ChunkIndex(last.first.0 + self.used_chunk_count - 1);
        let start = access.layout.chunk_start(chunk);
        let place = start.offset_blocks(self.used_piece_count * self.shape.stride_blocks);
        let count = wanted.min(self.shape.piece_count - self.used_piece_count);
        self.used_piece_count += count;
        Ok((place, count))
    }

    async fn claim<E: Endpoint>(
        &mut self,
        access: &LeafAccess<'_, E>,
    ) -> Result<ChunkRange, PoolError> {
        let mut allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
        if self.takes_reserve {
            allocator = allocator.taking_reserve();
        }
        let mut placement = match self.placement.take() {
            Some(placement) => placement,
            None => NodeChoice::read(&allocator, access.layout).await?,
        };
        // The first chunk of a small table should not claim more than needed.
        let ahead = if self.ranges.is_empty() {
            1
        } else {
            AHEAD_CHUNK_COUNT
        };
        let (purpose, table) = (self.shape.purpose, access.table);
        let claim = async |node| {
            let allocator = allocator.on(node);
            match allocator.claim(ahead, purpose, table).await {
                Err(PoolError::Full { .. }) if ahead > 1 => {
                    allocator.claim(1, purpose, table).await
                }
                claimed => claimed,
            }
        };
        let (node, range) = placement.on_emptiest(claim).await?;
        placement.note_claimed(node, range.count);
        self.placement = Some(placement);
        Ok(range)
    }

    /// Releases all chunks: to the table if the load was committed, with the free pieces of the
    /// last chunk, otherwise as free.
    ///
    /// # Errors
    /// The fabric failed.
    pub(crate) async fn release<E: Endpoint>(
        self,
        access: &LeafAccess<'_, E>,
        committed: bool,
    ) -> Result<(), PoolError> {
        let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
        let give_back = async |range, purpose, free| {
            match allocator
                .give_back(range, purpose, access.table, free)
                .await
            {
                // The chunks on a lost node are lost.
                Err(error) if error.lost_node() == Some(range.first.node()) => Ok(()),
                given_back => given_back,
            }
        };
        let last = self.ranges.len();
        for (number, range) in (1..).zip(&self.ranges) {
            let used = match (committed, number == last) {
                (false, _) => 0,
                (true, false) => range.count,
                (true, true) => self.used_chunk_count,
            };
            let first = range.first.0;
            let piece = |from: u64, count: u64| ChunkRange {
                first: ChunkIndex(first + from),
                count,
            };
            let none = FreeLeaves::default();
            let is_partly_free = number == last && used > 0;
            let whole = used - u64::from(is_partly_free);
            let purpose = self.shape.purpose;
            if whole > 0 {
                let full = piece(0, whole);
                give_back(full, purpose, none).await?;
            }
            if is_partly_free {
                let mut free = FreeLeaves::default();
                let unused = self.used_piece_count..self.shape.piece_count;
                unused.for_each(|index| free.insert(index));
                let partly = piece(whole, 1);
                give_back(partly, purpose, free).await?;
            }
            if used < range.count {
                let unused = piece(used, range.count - used);
                give_back(unused, ChunkPurpose::Free, none).await?;
            }
        }
        Ok(())
    }
}
