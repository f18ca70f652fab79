//! How chunks are claimed and given back.
//!
//! - **A1.** A chunk belongs to who swapped its owner word from 0 to their own (or from a fenced
//!   owner's to their own). Words 1 to 7 of its block are written by the owner alone.
//! - **A2.** `alloc_num` grows by CAS. A chunk below it that has no owner and the purpose "free"
//!   may be claimed by anyone, so a client that dies between growing `alloc_num` and swapping the
//!   owner words loses nothing.
//! - **A3.** After its CAS a claimant reads the block again (same batch): the purpose may have
//!   changed since it was chosen. If so, it gives the chunk back untouched.
//! - **A4.** Giving back writes words 1 to 7, then owner 0, in one batch (F2). A chunk that becomes
//!   free is zeroed before: the next table's leaves must not look locked by words left in it.
//! - **A5.** What a fenced session holds is given back by the memory node's sweep, which knows what
//!   is in use (`farleaf-node`).
//! - **A6.** The first chunks of a region are kept for retraining, which needs some before it makes
//!   room: nobody else claims them. They may be claimed from the beginning: where `alloc_num` is
//!   smaller, it is read as their number.
//! - **A7.** Each node has a chunk table of its own, and chunks side by side are of one node. Who
//!   spreads chunks over the nodes chooses for each claim ([`Placement`]).
//! - **A8.** The free bits of a chunk of value blocks hold at all times, from its claim on: a piece
//!   that is marked is free. Chunks of one extent are claimed from the first on, and become free
//!   from the last on (those of one batch by posting order, F2): whatever a crash leaves of it is
//!   its first chunks, but for what one batch had begun.

mod extents;
mod free_space;
mod placement;
mod table;
mod words;

use core::future::poll_fn;
use core::task::Poll;

use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_types::{BLOCK_SIZE_WORDS, NodeId, OwnerWord, TableId};

use crate::PoolLayout;
use crate::RegionError;
use crate::chunk::{ChunkEntry, ChunkPurpose, FreeLeaves};
use crate::layout::{CHUNK_SIZE_BLOCKS, CHUNK_SIZE_BYTES, ChunkIndex, RegionLayout};
use crate::members::MemberState;
pub use extents::Freed;
pub(crate) use free_space::reserve_count;
pub use free_space::{ChunkRange, Others};
use free_space::{FreeSpace, Source};
pub use placement::Placement;
pub use table::ChunkTable;
use words::Claimed;

/// Verbs after which a batch that gives chunks back is posted.
const GIVE_BACK_VERB_COUNT: u64 = 48;

/// A claimant lets others go on for up to two to the power of this turns.
const GIVE_WAY_DOUBLINGS_MAX: u32 = 6;

/// Claims chunks for one session. Every call costs a few round trips, counted as
/// [`OperationKind::Control`].
#[derive(Debug)]
pub struct ChunkAllocator<'a, E> {
    endpoint: &'a E,
    layout: &'a PoolLayout,
    /// Where it claims.
    region: &'a RegionLayout,
    owner: OwnerWord,
    /// Whether chunks that were given back come first.
    takes_used_first: bool,
    source: Source,
    /// What leases leave room for.
    left: Others,
}

impl<E> Clone for ChunkAllocator<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for ChunkAllocator<'_, E> {}

impl<'a, E: Endpoint> ChunkAllocator<'a, E> {
    /// An allocator that claims in the name of `owner`, on the home node.
    pub fn new(endpoint: &'a E, layout: &'a PoolLayout, owner: OwnerWord) -> Self {
        Self {
            endpoint,
            layout,
            region: layout.home(),
            owner,
            takes_used_first: false,
            source: Source::Open,
            left: Others::default(),
        }
    }

    /// The same, that claims on this node (A7); on the home node if this one is not known.
    #[must_use]
    pub fn on(self, node: NodeId) -> Self {
        let region = self.layout.region(node).unwrap_or(self.region);
        Self { region, ..self }
    }

    /// The same, that claims chunks which were given back before untouched ones: for who gives
    /// back as much as it claims. One READ of the chunk table more per claim.
    #[must_use]
    pub fn taking_used_first(self) -> Self {
        Self {
            takes_used_first: true,
            ..self
        }
    }

    /// The same, that may claim what is kept for retraining (a 32nd of the pool; of a small one an
    /// eighth, 1 MiB at the most) where there is nothing else.
    #[must_use]
    pub fn taking_reserve(self) -> Self {
        Self {
            takes_used_first: true,
            source: Source::ReserveToo,
            ..self
        }
    }

    /// The same, that leases a new chunk only if so many others in one piece are free afterwards.
    #[must_use]
    pub fn leaving(self, piece_count: u64) -> Self {
        let left = Others {
            piece_count,
            single_count: 0,
        };
        Self { left, ..self }
    }

    /// Claims `count` chunks side by side and notes their purpose: untouched ones as long as there
    /// are some, then ones that were given back; the other way round if used ones come first.
    ///
    /// # Errors
    /// [`RegionError::Full`] when there are not so many in one piece.
    pub async fn claim(
        &self,
        count: u64,
        purpose: ChunkPurpose,
        table: TableId,
    ) -> Result<ChunkRange, RegionError> {
        self.claim_whole_beside(count, Others::default(), purpose, table)
            .await
    }

    /// Claims as many of the wanted chunks, side by side, as there is room for if others have to be
    /// claimed afterwards, which may be of the reserve; one at least. Reads the chunk table.
    ///
    /// # Errors
    /// [`RegionError::Full`] if there is no room for both; or the fabric failed.
    pub async fn claim_beside(
        &self,
        wanted: u64,
        others: Others,
        purpose: ChunkPurpose,
        table: TableId,
    ) -> Result<ChunkRange, RegionError> {
        let mut batch = Batch::new();
        let choose = |space: &FreeSpace| space.most(wanted, others, self.source);
        let least = others.piece_count + others.single_count + 1;
        let result = self
            .claim_chosen(&mut batch, choose, least, (purpose, table).into(), None)
            .await;
        self.count(&mut batch);
        result
    }

    /// Claims all of the wanted chunks, side by side, if others find room afterwards, which may be
    /// of the reserve.
    ///
    /// # Errors
    /// [`RegionError::Full`] if there is no room for both; or the fabric failed.
    pub async fn claim_whole_beside(
        &self,
        count: u64,
        others: Others,
        purpose: ChunkPurpose,
        table: TableId,
    ) -> Result<ChunkRange, RegionError> {
        let mut batch = Batch::new();
        let claimed = (purpose, table).into();
        let grown = self.claim_untouched(&mut batch, (count, others), claimed);
        let result = match grown.await {
            Ok(None) => {
                let choose = |space: &FreeSpace| space.whole(count, others, self.source);
                let least = others.piece_count + others.single_count + count;
                self.claim_chosen(&mut batch, choose, least, (purpose, table).into(), None)
                    .await
            }
            Ok(Some(range)) => Ok(range),
            Err(error) => Err(error),
        };
        self.count(&mut batch);
        result
    }

    /// Claims chunks that nobody has been handed yet, if those come first; `None`: they do not, or
    /// there are none.
    async fn claim_untouched(
        &self,
        batch: &mut Batch,
        (count, others): (u64, Others),
        claimed: Claimed,
    ) -> Result<Option<ChunkRange>, RegionError> {
        if self.takes_used_first || others != Others::default() {
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

    /// Claims what is chosen; `wanted` is how many chunks are missed if nothing is. `known`: the
    /// chunk table, if it was just read.
    async fn claim_chosen(
        &self,
        batch: &mut Batch,
        choose: impl Fn(&FreeSpace) -> Option<ChunkRange>,
        wanted: u64,
        claimed: Claimed,
        mut known: Option<Vec<ChunkEntry>>,
    ) -> Result<ChunkRange, RegionError> {
        let mut attempt = 0;
        loop {
            let entries = match known.take() {
                Some(entries) => entries,
                None => self.read_all(batch).await?,
            };
            let space = FreeSpace::new(&entries, self.region.superblock.chunk_count);
            let Some(range) = choose(&space) else {
                return Err(self.full(&space, wanted));
            };
            let untouched_count = space.untouched_count(range);
            let range = range.of(self.region.node);
            if self.reach(batch, range, untouched_count).await?
                && self.take(batch, range, claimed).await?
            {
                return Ok(range);
            }
            batch.cost_mut().retries += 1;
            self.give_way(attempt).await;
            attempt += 1;
        }
    }

    /// A2, for chunks of which the last are untouched. False if somebody was faster.
    async fn reach(
        &self,
        batch: &mut Batch,
        range: ChunkRange,
        untouched_count: u64,
    ) -> Result<bool, RegionError> {
        if untouched_count == 0 {
            return Ok(true);
        }
        let at = ChunkIndex(range.end().0 - untouched_count);
        let grown = self.grow(batch, untouched_count, Some(at)).await?;
        Ok(grown.is_some())
    }

    /// Lets others go on before attempt `attempt + 1` at chunks that somebody else claims, too: a
    /// while that grows, and differs between sessions, as those that meet want the same chunks.
    async fn give_way(&self, attempt: u32) {
        let session = self
            .owner
            .holder()
            .map_or(0, |(session, _)| session.number());
        let window = 1 << attempt.min(GIVE_WAY_DOUBLINGS_MAX);
        let mut turns_left = 1 + u32::from(session) % window;
        poll_fn(|context| {
            if turns_left == 0 {
                return Poll::Ready(());
            }
            turns_left -= 1;
            // The one who has the chunks now may be a task of this thread, or want this core.
            std::thread::yield_now();
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Claims the `count` chunks right behind `range` if nobody has been handed them yet; false
    /// when somebody has, or there are none.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn extend(
        &self,
        range: ChunkRange,
        count: u64,
        purpose: ChunkPurpose,
        table: TableId,
    ) -> Result<bool, RegionError> {
        let mut batch = Batch::new();
        let result = match self.grow(&mut batch, count, Some(range.end())).await {
            Ok(Some(first)) => {
                let range = ChunkRange { first, count };
                self.take(&mut batch, range, (purpose, table).into()).await
            }
            Ok(None) => Ok(false),
            Err(error) => Err(error),
        };
        self.count(&mut batch);
        result
    }

    /// Leases a chunk for the splits of a table: one of the table's that nobody leases and that has
    /// free leaves, else a new one. Returns the leaves of it that are free.
    ///
    /// # Errors
    /// [`RegionError::Full`].
    pub async fn lease_leaves(
        &self,
        table: TableId,
        slots: u8,
        leaf_count: u64,
    ) -> Result<(ChunkIndex, FreeLeaves), RegionError> {
        let purpose = ChunkPurpose::Leaves { slots };
        self.lease_pieces(table, purpose, leaf_count).await
    }

    /// The same for whatever a chunk holds `piece_count` of: leaves or inner nodes.
    ///
    /// # Errors
    /// [`RegionError::Full`].
    pub async fn lease_pieces(
        &self,
        table: TableId,
        purpose: ChunkPurpose,
        piece_count: u64,
    ) -> Result<(ChunkIndex, FreeLeaves), RegionError> {
        let mut batch = Batch::new();
        let result = self
            .lease_pieces_with(&mut batch, table, purpose, piece_count)
            .await;
        self.count(&mut batch);
        result
    }

    /// Leases a chunk that nobody has been handed yet, all of whose pieces are free; `None`: there
    /// is none, or used ones come first. Unlike [`lease_pieces`](Self::lease_pieces) it does not
    /// read the chunk table, which is the larger the larger the pool is.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn lease_untouched_pieces(
        &self,
        table: TableId,
        purpose: ChunkPurpose,
        piece_count: u64,
    ) -> Result<Option<(ChunkIndex, FreeLeaves)>, RegionError> {
        let mut batch = Batch::new();
        let claimed = Claimed::pieces(purpose, table, piece_count);
        let one = (1, self.left);
        let range = self.claim_untouched(&mut batch, one, claimed).await;
        self.count(&mut batch);
        let leased = range?.map(|range| (range.first, FreeLeaves::first(piece_count)));
        Ok(leased)
    }

    async fn lease_pieces_with(
        &self,
        batch: &mut Batch,
        table: TableId,
        purpose: ChunkPurpose,
        piece_count: u64,
    ) -> Result<(ChunkIndex, FreeLeaves), RegionError> {
        let has_room = |entry: &ChunkEntry| {
            entry.purpose == Some(purpose) && entry.table == table && entry.free.count() > 0
        };
        let entries = self.read_all(batch).await?;
        for (index, _) in entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.owner.is_free() && has_room(entry))
        {
            let chunk = ChunkIndex::new(self.region.node, index as u64);
            if let Some(entry) = self.swap_owner(batch, chunk, OwnerWord::FREE).await? {
                if has_room(&entry) {
                    return Ok((chunk, entry.free));
                }
                self.drop_owner(batch, chunk).await?;
            }
        }
        let choose = |space: &FreeSpace| space.whole(1, self.left, self.source);
        let claimed = Claimed::pieces(purpose, table, piece_count);
        let least = self.left.piece_count + self.left.single_count + 1;
        let range = self
            .claim_chosen(batch, choose, least, claimed, Some(entries))
            .await?;
        Ok((range.first, FreeLeaves::first(piece_count)))
    }

    /// A4: gives chunks back with the purpose and the free leaves that they have from now on. Those
    /// of a lost node are nobody's any more.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn give_back(
        &self,
        range: ChunkRange,
        purpose: ChunkPurpose,
        table: TableId,
        free: FreeLeaves,
    ) -> Result<(), RegionError> {
        let mut batch = Batch::new();
        let with = (purpose, table, free);
        let given = self.give_back_with(&mut batch, range, with).await;
        self.count(&mut batch);
        match given {
            Err(RegionError::Fabric(error)) if error.lost_node() == Some(range.first.node()) => {
                Ok(())
            }
            given => given,
        }
    }

    async fn give_back_with(
        &self,
        batch: &mut Batch,
        range: ChunkRange,
        (purpose, table, free): (ChunkPurpose, TableId, FreeLeaves),
    ) -> Result<(), RegionError> {
        let table = if purpose == ChunkPurpose::Free {
            TableId(0)
        } else {
            table
        };
        let body = ChunkEntry::encode_body(purpose, table, free);
        let zeros = vec![0; (CHUNK_SIZE_BLOCKS * BLOCK_SIZE_WORDS) as usize];
        for chunk in range.iter() {
            let entry = self.layout.chunk_entry(chunk);
            if purpose == ChunkPurpose::Free {
                batch.write(self.layout.chunk_start(chunk).word_at(0), &zeros);
            }
            batch.write(entry.offset(1), &body);
            batch.write_word(entry, OwnerWord::FREE.word());
            if batch.verb_count() as u64 >= GIVE_BACK_VERB_COUNT {
                self.endpoint.execute(batch).await?;
                batch.clear();
            }
        }
        if !batch.is_empty() {
            self.endpoint.execute(batch).await?;
        }
        Ok(())
    }

    /// A1 for the sweep: takes a chunk over from `from` and returns its block as it then is; `None`
    /// when somebody else was faster.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn take_over(
        &self,
        chunk: ChunkIndex,
        from: OwnerWord,
    ) -> Result<Option<ChunkEntry>, RegionError> {
        let mut batch = Batch::new();
        let taken = self.swap_owner(&mut batch, chunk, from).await;
        self.count(&mut batch);
        taken
    }

    /// Gives a chunk that was taken over back as it was.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn let_go(&self, chunk: ChunkIndex) -> Result<(), RegionError> {
        let mut batch = Batch::new();
        let dropped = self.drop_owner(&mut batch, chunk).await;
        self.count(&mut batch);
        dropped
    }

    /// The blocks of all chunks, of all nodes that can be reached, that were ever handed out, and
    /// of those kept for retraining (A6).
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn entries(&self) -> Result<ChunkTable, RegionError> {
        let mut batch = Batch::new();
        let table = self.read_all_nodes(&mut batch).await;
        self.count(&mut batch);
        table
    }

    async fn read_all_nodes(&self, batch: &mut Batch) -> Result<ChunkTable, RegionError> {
        let mut table = ChunkTable::default();
        for region in self.layout.regions() {
            match self.on(region.node).read_all(batch).await {
                Ok(entries) => table.push(region.node, entries),
                // What was on it is gone (U4).
                Err(RegionError::Fabric(error)) if error.lost_node() == Some(region.node) => {}
                // It has left, and was stopped, before this process had seen that.
                Err(RegionError::Fabric(_)) if self.has_left(region.node).await? => {}
                Err(error) => return Err(error),
            }
        }
        Ok(table)
    }

    /// Whether a node is one that the pool does without, as its home says now.
    async fn has_left(&self, node: NodeId) -> Result<bool, RegionError> {
        let members = self.layout.members();
        if node == self.layout.home().node {
            return Ok(false);
        }
        members.refresh(self.endpoint, self.layout).await?;
        Ok(!members.state(node).is_some_and(MemberState::is_reachable))
    }

    /// F9: what a call has cost, whether it did anything or not.
    fn count(&self, batch: &mut Batch) {
        let counters = self.endpoint.counters();
        counters.record(OperationKind::Control, &batch.take_cost());
    }

    fn full(&self, space: &FreeSpace, wanted: u64) -> RegionError {
        let is_kept = self.source == Source::Open;
        let reserve_count = if is_kept {
            space.free_reserve_count()
        } else {
            0
        };
        RegionError::Full {
            wanted_bytes: wanted.saturating_mul(CHUNK_SIZE_BYTES),
            free_bytes: space.count() * CHUNK_SIZE_BYTES,
            size_bytes: self.region.superblock.chunk_count * CHUNK_SIZE_BYTES,
            reserve_bytes: reserve_count * CHUNK_SIZE_BYTES,
        }
    }
}
