//! Protocol by which chunks are claimed and given back.
//!
//! - **Ownership.** A chunk belongs to the session that swapped its owner word from 0, or from a
//!   fenced owner's, to its own. Only the owner writes words 1 to 7 of its block.
//! - **New chunks.** `alloc_num` grows by CAS. Any session may claim a chunk below it that has no
//!   owner and the purpose "free". So nothing is lost if a client dies between growing `alloc_num`
//!   and swapping the owner words.
//! - **Check after claiming.** After its CAS a claimant reads the block again (same batch), because
//!   the purpose may have changed since it was chosen. If so, it gives the chunk back unchanged.
//! - **Giving back** writes words 1 to 7, then owner 0, in one batch (FABRIC-2). A chunk that
//!   becomes free is zeroed first, because leftover words must not make the next table's leaves
//!   look locked.
//! - **Sweep.** The memory node's sweep (`farleaf-node`), which knows what is in use, gives back
//!   what a fenced session holds.
//! - **Reserve.** The first chunks of a node's memory are reserved for retraining, which needs some
//!   before it frees any: no other session claims them. They may be claimed from the beginning: a
//!   smaller `alloc_num` counts as their number.
//! - **Nodes.** Each node has its own chunk table, and adjacent chunks are on one node. A session
//!   that spreads chunks over the nodes chooses a node for each claim ([`NodeChoice`]).
//! - **Value blocks.** The free bits of a chunk of value blocks are valid from its claim on: a
//!   marked piece is free. Chunks of one extent are claimed from the first on and freed from the
//!   last on (within a batch by posting order, FABRIC-2). So a crash leaves the extent's first
//!   chunks, plus those that one batch had begun.

mod extents;
mod free_space;
mod placement;
mod table;
mod words;

use core::future::poll_fn;
use core::task::Poll;

use farleaf_base::{BLOCK_SIZE_WORDS, NodeId, OwnerWord, TableId};
use farleaf_fabric::{Batch, CountedBatch, Endpoint, OperationKind};

use crate::PoolError;
use crate::PoolLayout;
use crate::chunk::{ChunkEntry, ChunkPurpose, FreeLeaves};
use crate::layout::{CHUNK_SIZE_BLOCKS, CHUNK_SIZE_BYTES, ChunkIndex, NodeLayout};
pub use extents::FreeOutcome;
pub(crate) use free_space::reserve_count;
pub use free_space::{ChunkRange, LaterClaims};
use free_space::{ChunkSource, FreeSpace};
pub use placement::NodeChoice;
pub use table::ChunkTable;
use words::ClaimPurpose;

/// Number of verbs after which a batch that gives chunks back is posted.
const GIVE_BACK_VERB_COUNT: u64 = 48;

/// Logarithm to base 2 of the largest number of turns for which a claimant yields to others.
const BACKOFF_DOUBLINGS_MAX: u32 = 6;

/// Claims chunks for one session. Every call costs a few round trips, counted as
/// [`OperationKind::Control`].
#[derive(Debug)]
pub struct ChunkAllocator<'a, E> {
    endpoint: &'a E,
    layout: &'a PoolLayout,
    /// Memory of the node on which it claims.
    memory: &'a NodeLayout,
    owner: OwnerWord,
    /// Whether it prefers chunks that were given back.
    takes_used_first: bool,
    source: ChunkSource,
    /// Space that leases leave free.
    left: LaterClaims,
}

impl<E> Clone for ChunkAllocator<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for ChunkAllocator<'_, E> {}

impl<'a, E: Endpoint> ChunkAllocator<'a, E> {
    /// Creates an allocator that claims for `owner` on the main node.
    pub fn new(endpoint: &'a E, layout: &'a PoolLayout, owner: OwnerWord) -> Self {
        Self {
            endpoint,
            layout,
            memory: layout.main_node(),
            owner,
            takes_used_first: false,
            source: ChunkSource::Open,
            left: LaterClaims::default(),
        }
    }

    /// Returns the allocator for claims on this node; on the main node if the node is not known.
    #[must_use]
    pub fn on(self, node: NodeId) -> Self {
        let memory = self.layout.memory(node).unwrap_or(self.memory);
        Self { memory, ..self }
    }

    /// Returns an allocator that prefers chunks that were given back to untouched ones, for callers
    /// that give back as much as they claim. Costs one more READ of the chunk table per claim.
    #[must_use]
    pub fn taking_used_first(self) -> Self {
        Self {
            takes_used_first: true,
            ..self
        }
    }

    /// Returns an allocator that may claim chunks reserved for retraining if there are no others.
    /// The reserve is a 32nd of the pool; in a small pool an eighth, at most 1 MiB.
    #[must_use]
    pub fn taking_reserve(self) -> Self {
        Self {
            takes_used_first: true,
            source: ChunkSource::ReserveToo,
            ..self
        }
    }

    /// Returns an allocator that leases a new chunk only if this many adjacent chunks stay free.
    #[must_use]
    pub fn leaving(self, piece_count: u64) -> Self {
        let left = LaterClaims {
            piece_count,
            single_count: 0,
        };
        Self { left, ..self }
    }

    /// Claims `count` adjacent chunks and records their purpose. Uses untouched chunks while there
    /// are some, then chunks that were given back; in reverse order if the allocator prefers the
    /// latter.
    ///
    /// # Errors
    /// [`PoolError::Full`] if there are not enough adjacent free chunks.
    pub async fn claim(
        &self,
        count: u64,
        purpose: ChunkPurpose,
        table: TableId,
    ) -> Result<ChunkRange, PoolError> {
        self.claim_whole_beside(count, LaterClaims::default(), purpose, table)
            .await
    }

    /// Claims as many of the wanted chunks, adjacent to each other, as possible while leaving space
    /// for `others`, which may use the reserve; at least one. Reads the chunk table.
    ///
    /// # Errors
    /// [`PoolError::Full`] if there is no space for both; or the fabric failed.
    pub async fn claim_beside(
        &self,
        wanted: u64,
        others: LaterClaims,
        purpose: ChunkPurpose,
        table: TableId,
    ) -> Result<ChunkRange, PoolError> {
        let mut batch = self.counted_batch();
        let choose = |space: &FreeSpace| space.most(wanted, others, self.source);
        let least = others.piece_count + others.single_count + 1;
        self.claim_chosen(&mut batch, choose, least, (purpose, table).into(), None)
            .await
    }

    /// Claims all of the wanted chunks, adjacent to each other, if space for `others` stays free,
    /// which may use the reserve.
    ///
    /// # Errors
    /// [`PoolError::Full`] if there is no space for both; or the fabric failed.
    pub async fn claim_whole_beside(
        &self,
        count: u64,
        others: LaterClaims,
        purpose: ChunkPurpose,
        table: TableId,
    ) -> Result<ChunkRange, PoolError> {
        let mut batch = self.counted_batch();
        let claimed = (purpose, table).into();
        let grown = self.claim_untouched(&mut batch, count, others, claimed);
        if let Some(range) = grown.await? {
            return Ok(range);
        }
        let choose = |space: &FreeSpace| space.whole(count, others, self.source);
        let least = others.piece_count + others.single_count + count;
        self.claim_chosen(&mut batch, choose, least, claimed, None)
            .await
    }

    /// Claims untouched chunks, if they are preferred; `None` if they are not, or there are none.
    async fn claim_untouched(
        &self,
        batch: &mut Batch,
        count: u64,
        others: LaterClaims,
        claimed: ClaimPurpose,
    ) -> Result<Option<ChunkRange>, PoolError> {
        if self.takes_used_first || others != LaterClaims::default() {
            return Ok(None);
        }
        while let Some(first) = self.grow(batch, count, None).await? {
            let range = ChunkRange { first, count };
            if self.take(batch, range, claimed).await? {
                return Ok(Some(range));
            }
        }
        Ok(None)
    }

    /// Claims the chosen chunks; `wanted` is the number reported as missing if none can be chosen.
    /// `known` is the chunk table, if it was just read.
    async fn claim_chosen(
        &self,
        batch: &mut Batch,
        choose: impl Fn(&FreeSpace) -> Option<ChunkRange>,
        wanted: u64,
        claimed: ClaimPurpose,
        mut known: Option<Vec<ChunkEntry>>,
    ) -> Result<ChunkRange, PoolError> {
        let mut attempt = 0;
        loop {
            let entries = match known.take() {
                Some(entries) => entries,
                None => self.read_all(batch).await?,
            };
            let space = FreeSpace::new(&entries, self.memory.superblock.chunk_count);
            let Some(range) = choose(&space) else {
                return Err(self.full(&space, wanted));
            };
            let untouched_count = space.untouched_count(range);
            let range = range.of(self.memory.node);
            if self.reach(batch, range, untouched_count).await?
                && self.take(batch, range, claimed).await?
            {
                return Ok(range);
            }
            batch.cost_mut().retries += 1;
            self.yield_with_backoff(attempt).await;
            attempt += 1;
        }
    }

    /// Grows `alloc_num` to a range whose last chunks are untouched. Returns false if another
    /// session was faster.
    async fn reach(
        &self,
        batch: &mut Batch,
        range: ChunkRange,
        untouched_count: u64,
    ) -> Result<bool, PoolError> {
        if untouched_count == 0 {
            return Ok(true);
        }
        let at = ChunkIndex(range.end().0 - untouched_count);
        let grown = self.grow(batch, untouched_count, Some(at)).await?;
        Ok(grown.is_some())
    }

    /// Yields before attempt `attempt + 1` at chunks that another session claims, too. The time
    /// grows, and differs between sessions, because sessions that conflict want the same chunks.
    async fn yield_with_backoff(&self, attempt: u32) {
        let session = self
            .owner
            .holder()
            .map_or(0, |(session, _)| session.number());
        let window = 1 << attempt.min(BACKOFF_DOUBLINGS_MAX);
        let mut turns_left = 1 + u32::from(session) % window;
        poll_fn(|context| {
            if turns_left == 0 {
                return Poll::Ready(());
            }
            turns_left -= 1;
            // The session that has the chunks may be a task of this thread, or want this core.
            std::thread::yield_now();
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Claims the `count` chunks directly behind `range` if they are untouched; returns false if
    /// they are not, or do not exist.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn extend(
        &self,
        range: ChunkRange,
        count: u64,
        purpose: ChunkPurpose,
        table: TableId,
    ) -> Result<bool, PoolError> {
        let mut batch = self.counted_batch();
        let Some(first) = self.grow(&mut batch, count, Some(range.end())).await? else {
            return Ok(false);
        };
        let range = ChunkRange { first, count };
        self.take(&mut batch, range, (purpose, table).into()).await
    }

    /// Leases a chunk for the splits of a table: an unleased one of the table with free leaves,
    /// else a new one. Returns its free leaves.
    ///
    /// # Errors
    /// [`PoolError::Full`].
    pub async fn lease_leaves(
        &self,
        table: TableId,
        slots: u8,
        leaf_count: u64,
    ) -> Result<(ChunkIndex, FreeLeaves), PoolError> {
        let purpose = ChunkPurpose::Leaves { slots };
        self.lease_pieces(table, purpose, leaf_count).await
    }

    /// Leases a chunk with `piece_count` pieces as [`lease_leaves`](Self::lease_leaves) does:
    /// leaves or inner nodes.
    ///
    /// # Errors
    /// [`PoolError::Full`].
    pub async fn lease_pieces(
        &self,
        table: TableId,
        purpose: ChunkPurpose,
        piece_count: u64,
    ) -> Result<(ChunkIndex, FreeLeaves), PoolError> {
        let mut batch = self.counted_batch();
        let has_free_pieces = |entry: &ChunkEntry| {
            entry.purpose == Some(purpose) && entry.table == table && entry.free.count() > 0
        };
        let entries = self.read_all(&mut batch).await?;
        for (index, _) in entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.owner.is_free() && has_free_pieces(entry))
        {
            let chunk = ChunkIndex::new(self.memory.node, index as u64);
            if let Some(entry) = self.swap_owner(&mut batch, chunk, OwnerWord::FREE).await? {
                if has_free_pieces(&entry) {
                    return Ok((chunk, entry.free));
                }
                self.drop_owner(&mut batch, chunk).await?;
            }
        }
        let choose = |space: &FreeSpace| space.whole(1, self.left, self.source);
        let claimed = ClaimPurpose::pieces(purpose, table, piece_count);
        let least = self.left.piece_count + self.left.single_count + 1;
        let range = self
            .claim_chosen(&mut batch, choose, least, claimed, Some(entries))
            .await?;
        Ok((range.first, FreeLeaves::first(piece_count)))
    }

    /// Leases an untouched chunk, all of whose pieces are free; `None` if there is none, or
    /// given-back chunks are preferred. Unlike [`lease_pieces`](Self::lease_pieces), this does not
    /// read the chunk table, whose size grows with the pool.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn lease_untouched_pieces(
        &self,
        table: TableId,
        purpose: ChunkPurpose,
        piece_count: u64,
    ) -> Result<Option<(ChunkIndex, FreeLeaves)>, PoolError> {
        let mut batch = self.counted_batch();
        let claimed = ClaimPurpose::pieces(purpose, table, piece_count);
        let range = self
            .claim_untouched(&mut batch, 1, self.left, claimed)
            .await?;
        Ok(range.map(|range| (range.first, FreeLeaves::first(piece_count))))
    }

    /// Gives chunks back with their new purpose and free leaves. Chunks of a lost node are skipped.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn give_back(
        &self,
        range: ChunkRange,
        purpose: ChunkPurpose,
        table: TableId,
        free: FreeLeaves,
    ) -> Result<(), PoolError> {
        let mut batch = self.counted_batch();
        let table = if purpose == ChunkPurpose::Free {
            TableId(0)
        } else {
            table
        };
        let body = ChunkEntry::encode_body(purpose, table, free);
        let zeros = vec![0; (CHUNK_SIZE_BLOCKS * BLOCK_SIZE_WORDS) as usize];
        let given = async {
            for chunk in range.iter() {
                let entry = self.layout.chunk_entry(chunk);
                if purpose == ChunkPurpose::Free {
                    batch.write(self.layout.chunk_start(chunk).word_at(0), &zeros);
                }
                batch.write(entry.offset(1), &body);
                batch.write_word(entry, OwnerWord::FREE.word());
                if batch.verb_count() as u64 >= GIVE_BACK_VERB_COUNT {
                    self.endpoint.execute(&mut batch).await?;
                    batch.clear();
                }
            }
            if batch.is_empty() {
                return Ok(());
            }
            self.endpoint.execute(&mut batch).await
        };
        match given.await {
            Err(error) if error.lost_node() == Some(range.first.node()) => Ok(()),
            given => Ok(given?),
        }
    }

    /// Takes a chunk over from `from`, for the sweep, and returns its current block; `None` if
    /// another session was faster.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn take_over(
        &self,
        chunk: ChunkIndex,
        from: OwnerWord,
    ) -> Result<Option<ChunkEntry>, PoolError> {
        self.swap_owner(&mut self.counted_batch(), chunk, from)
            .await
    }

    /// Gives back a chunk that was taken over, unchanged.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn release_chunk(&self, chunk: ChunkIndex) -> Result<(), PoolError> {
        self.drop_owner(&mut self.counted_batch(), chunk).await
    }

    /// Reads the blocks of all chunks, on all reachable nodes, that were ever handed out or are
    /// reserved for retraining.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn entries(&self) -> Result<ChunkTable, PoolError> {
        let mut batch = self.counted_batch();
        let mut table = ChunkTable::default();
        for memory in self.layout.memories() {
            match self.on(memory.node).read_all(&mut batch).await {
                Ok(entries) => table.push(memory.node, entries),
                // The chunks of a lost node are gone.
                Err(PoolError::Fabric(error)) if error.lost_node() == Some(memory.node) => {}
                // The node left the pool and was stopped before this process had seen that.
                Err(PoolError::Fabric(_)) if self.has_left(memory.node).await? => {}
                Err(error) => return Err(error),
            }
        }
        Ok(table)
    }

    /// Returns whether a node has left the pool or is lost, according to the main node.
    async fn has_left(&self, node: NodeId) -> Result<bool, PoolError> {
        let members = self.layout.members();
        if node == self.layout.main_node().node {
            return Ok(false);
        }
        members.refresh(self.endpoint, self.layout).await?;
        Ok(!members.is_reachable(node))
    }

    /// Returns a batch that counts the cost of a call, whether or not it changes anything
    /// (FABRIC-9).
    fn counted_batch(&self) -> CountedBatch<'a, E> {
        CountedBatch::new(self.endpoint, OperationKind::Control)
    }

    fn full(&self, space: &FreeSpace, wanted: u64) -> PoolError {
        let is_kept = self.source == ChunkSource::Open;
        let reserve_count = if is_kept {
            space.free_reserve_count()
        } else {
            0
        };
        PoolError::Full {
            wanted_bytes: wanted.saturating_mul(CHUNK_SIZE_BYTES),
            free_bytes: space.count() * CHUNK_SIZE_BYTES,
            size_bytes: self.memory.superblock.chunk_count * CHUNK_SIZE_BYTES,
            reserve_bytes: reserve_count * CHUNK_SIZE_BYTES,
        }
    }
}
