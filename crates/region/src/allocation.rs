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

use core::future::poll_fn;
use core::task::Poll;

use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_types::{BLOCK_SIZE_WORDS, OwnerWord, TableId};

use crate::RegionError;
use crate::chunk::{CHUNK_ENTRY_SIZE_WORDS, ChunkEntry, ChunkPurpose, FreeLeaves};
use crate::layout::{CHUNK_SIZE_BLOCKS, CHUNK_SIZE_BYTES, ChunkIndex, RegionLayout};

/// Chunk blocks that are read or swapped with one batch.
const BATCH_CHUNK_COUNT: u64 = 512;
/// Verbs after which a batch that gives chunks back is posted.
const GIVE_BACK_VERB_COUNT: u64 = 48;

/// A claimant lets others go on for up to two to the power of this turns.
const GIVE_WAY_DOUBLINGS_MAX: u32 = 6;

/// Chunks side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRange {
    /// The first.
    pub first: ChunkIndex,
    /// How many.
    pub count: u64,
}

impl ChunkRange {
    /// Each of them, ascending.
    pub fn iter(self) -> impl Iterator<Item = ChunkIndex> {
        (self.first.0..self.first.0 + self.count).map(ChunkIndex)
    }

    /// The chunk after the last.
    pub fn end(self) -> ChunkIndex {
        ChunkIndex(self.first.0 + self.count)
    }
}

/// One in so many chunks is kept for retraining, and so many at least: for a piece of a run, a
/// snapshot, synonym leaf tables, and one that the load of another table may take.
const RESERVE_SHARE: u64 = 64;
const RESERVE_COUNT_MIN: u64 = 4;

/// Claims chunks for one session. Every call costs a few round trips, counted as
/// [`OperationKind::Control`].
#[derive(Clone, Copy, Debug)]
pub struct ChunkAllocator<'a, E> {
    endpoint: &'a E,
    layout: &'a RegionLayout,
    owner: OwnerWord,
    /// Whether chunks that were given back come first.
    takes_used_first: bool,
}

impl<'a, E: Endpoint> ChunkAllocator<'a, E> {
    /// An allocator that claims in the name of `owner`.
    pub fn new(endpoint: &'a E, layout: &'a RegionLayout, owner: OwnerWord) -> Self {
        Self {
            endpoint,
            layout,
            owner,
            takes_used_first: false,
        }
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

    /// Claims `count` chunks side by side and notes their purpose: untouched ones as long as there
    /// are some, then ones that were given back.
    ///
    /// # Errors
    /// [`RegionError::Full`] when there are not so many in one piece.
    pub async fn claim(
        &self,
        count: u64,
        purpose: ChunkPurpose,
        table: TableId,
    ) -> Result<ChunkRange, RegionError> {
        let mut batch = Batch::new();
        let result = self.claim_with(&mut batch, count, purpose, table).await;
        self.endpoint
            .counters()
            .record(OperationKind::Control, &batch.take_cost());
        result
    }

    async fn claim_with(
        &self,
        batch: &mut Batch,
        count: u64,
        purpose: ChunkPurpose,
        table: TableId,
    ) -> Result<ChunkRange, RegionError> {
        if self.takes_used_first {
            let entries = self.read_all(batch).await?;
            if let Some(range) = first_free_range(&entries, count)
                && self.take(batch, range, purpose, table).await?
            {
                return Ok(range);
            }
        }
        while let Some(first) = self.grow(batch, count, None).await? {
            let range = ChunkRange { first, count };
            if self.take(batch, range, purpose, table).await? {
                return Ok(range);
            }
        }
        let mut attempt = 0;
        loop {
            let entries = self.read_all(batch).await?;
            let Some(range) = first_free_range(&entries, count) else {
                return Err(self.full(&entries, count));
            };
            if self.take(batch, range, purpose, table).await? {
                return Ok(range);
            }
            batch.cost_mut().retries += 1;
            self.give_way(attempt).await;
            attempt += 1;
        }
    }

    /// How many of the wanted chunks there is room for, if so many others have to be claimed
    /// afterwards; one at least. Reads the chunk table.
    ///
    /// # Errors
    /// [`RegionError::Full`] if there is no room for both; or the fabric failed.
    pub async fn room_beside(&self, wanted: u64, others: u64) -> Result<u64, RegionError> {
        let mut batch = Batch::new();
        let entries = self.read_all(&mut batch).await?;
        self.endpoint
            .counters()
            .record(OperationKind::Control, &batch.take_cost());
        match self.free_count(&entries).saturating_sub(others) {
            0 => Err(self.full(&entries, others + 1)),
            room => Ok(wanted.min(room)),
        }
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
                self.take(&mut batch, ChunkRange { first, count }, purpose, table)
                    .await
            }
            Ok(None) => Ok(false),
            Err(error) => Err(error),
        };
        self.endpoint
            .counters()
            .record(OperationKind::Control, &batch.take_cost());
        result
    }

    /// Leases a chunk for the splits of a table: one of the table's that nobody leases and that has
    /// free leaves, else a new one. Returns the leaves of it that are free.
    ///
    /// A 64th of the pool, 4 chunks at least, is not given out so: retraining needs room before it
    /// makes some, and deletes alone make none.
    ///
    /// # Errors
    /// [`RegionError::Full`].
    pub async fn lease_leaves(
        &self,
        table: TableId,
        slots: u8,
        leaf_count: u64,
    ) -> Result<(ChunkIndex, FreeLeaves), RegionError> {
        let mut batch = Batch::new();
        let result = self
            .lease_leaves_with(&mut batch, table, slots, leaf_count)
            .await;
        self.endpoint
            .counters()
            .record(OperationKind::Control, &batch.take_cost());
        result
    }

    async fn lease_leaves_with(
        &self,
        batch: &mut Batch,
        table: TableId,
        slots: u8,
        leaf_count: u64,
    ) -> Result<(ChunkIndex, FreeLeaves), RegionError> {
        let purpose = ChunkPurpose::Leaves { slots };
        let wanted = |entry: &ChunkEntry| {
            entry.purpose == Some(purpose) && entry.table == table && entry.free.count() > 0
        };
        let entries = self.read_all(batch).await?;
        for (index, _) in entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.owner.is_free() && wanted(entry))
        {
            let chunk = ChunkIndex(index as u64);
            if let Some(entry) = self.swap_owner(batch, chunk, OwnerWord::FREE).await? {
                if wanted(&entry) {
                    return Ok((chunk, entry.free));
                }
                self.drop_owner(batch, chunk).await?;
            }
        }
        let kept = (self.layout.superblock.chunk_count / RESERVE_SHARE).max(RESERVE_COUNT_MIN);
        if self.free_count(&entries) <= kept {
            return Err(self.full(&entries, 1));
        }
        let range = self.claim_with(batch, 1, purpose, table).await?;
        Ok((range.first, FreeLeaves::first(leaf_count)))
    }

    /// A4: gives chunks back with the purpose and the free leaves that they have from now on.
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
                self.endpoint.execute(&mut batch).await?;
                batch.clear();
            }
        }
        if !batch.is_empty() {
            self.endpoint.execute(&mut batch).await?;
        }
        self.endpoint
            .counters()
            .record(OperationKind::Control, &batch.take_cost());
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
        self.swap_owner(&mut batch, chunk, from).await
    }

    /// Gives a chunk that was taken over back as it was.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn let_go(&self, chunk: ChunkIndex) -> Result<(), RegionError> {
        self.drop_owner(&mut Batch::new(), chunk).await
    }

    /// The blocks of all chunks that were ever handed out.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn entries(&self) -> Result<Vec<ChunkEntry>, RegionError> {
        let mut batch = Batch::new();
        let entries = self.read_all(&mut batch).await;
        self.endpoint
            .counters()
            .record(OperationKind::Control, &batch.take_cost());
        entries
    }

    async fn alloc_num(&self, batch: &mut Batch) -> Result<u64, RegionError> {
        batch.clear();
        let slot = batch.read(self.layout.alloc_num(), 1);
        self.endpoint.execute(batch).await?;
        Ok(batch.words(slot)[0])
    }

    /// A2: grows `alloc_num`; `None` when the region ends, or when it does not stand at `at`.
    async fn grow(
        &self,
        batch: &mut Batch,
        count: u64,
        at: Option<ChunkIndex>,
    ) -> Result<Option<ChunkIndex>, RegionError> {
        let mut current = self.alloc_num(batch).await?;
        loop {
            let end = current.checked_add(count);
            let fits = end.is_some_and(|end| end <= self.layout.superblock.chunk_count);
            if !fits || at.is_some_and(|at| at.0 != current) {
                return Ok(None);
            }
            batch.clear();
            let slot = batch.compare_swap(self.layout.alloc_num(), current, current + count);
            self.endpoint.execute(batch).await?;
            let previous = batch.previous(slot);
            if previous == current {
                return Ok(Some(ChunkIndex(current)));
            }
            current = previous;
        }
    }

    /// Swaps the owner words of a range of free chunks and notes their purpose; gives back what it
    /// got and returns false when somebody else has one of them (A3).
    async fn take(
        &self,
        batch: &mut Batch,
        range: ChunkRange,
        purpose: ChunkPurpose,
        table: TableId,
    ) -> Result<bool, RegionError> {
        let body = ChunkEntry::encode_body(purpose, table, FreeLeaves::default());
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
        // Only when all are ours: a chunk that is let go of above must still be free.
        for part in chunks.chunks(BATCH_CHUNK_COUNT as usize) {
            batch.clear();
            for chunk in part {
                batch.write(self.layout.chunk_entry(*chunk).offset(1), &body);
            }
            self.endpoint.execute(batch).await?;
        }
        Ok(true)
    }

    async fn swap_owner(
        &self,
        batch: &mut Batch,
        chunk: ChunkIndex,
        from: OwnerWord,
    ) -> Result<Option<ChunkEntry>, RegionError> {
        let entry = self.layout.chunk_entry(chunk);
        batch.clear();
        let swap = batch.compare_swap(entry, from.word(), self.owner.word());
        let read = batch.read(entry, CHUNK_ENTRY_SIZE_WORDS);
        self.endpoint.execute(batch).await?;
        let won = batch.previous(swap) == from.word();
        Ok(won.then(|| ChunkEntry::decode(batch.words(read))))
    }

    async fn drop_owner(&self, batch: &mut Batch, chunk: ChunkIndex) -> Result<(), RegionError> {
        batch.clear();
        batch.write_word(self.layout.chunk_entry(chunk), OwnerWord::FREE.word());
        Ok(self.endpoint.execute(batch).await?)
    }

    async fn read_all(&self, batch: &mut Batch) -> Result<Vec<ChunkEntry>, RegionError> {
        let alloc_num = self.alloc_num(batch).await?;
        let count = alloc_num.min(self.layout.superblock.chunk_count);
        let mut entries = Vec::with_capacity(count as usize);
        for start in (0..count).step_by(BATCH_CHUNK_COUNT as usize) {
            let part = (count - start).min(BATCH_CHUNK_COUNT) as usize;
            batch.clear();
            let from = self.layout.chunk_entry(ChunkIndex(start));
            let read = batch.read(from, part * CHUNK_ENTRY_SIZE_WORDS);
            self.endpoint.execute(batch).await?;
            let blocks = batch.words(read).chunks_exact(CHUNK_ENTRY_SIZE_WORDS);
            entries.extend(blocks.map(ChunkEntry::decode));
        }
        Ok(entries)
    }

    /// How many chunks can be claimed, when these are the entries of those that were ever handed
    /// out.
    fn free_count(&self, entries: &[ChunkEntry]) -> u64 {
        let used = entries.iter().filter(|entry| !is_claimable(entry)).count() as u64;
        self.layout.superblock.chunk_count - used
    }

    fn full(&self, entries: &[ChunkEntry], count: u64) -> RegionError {
        RegionError::Full {
            wanted_bytes: count.saturating_mul(CHUNK_SIZE_BYTES),
            free_bytes: self.free_count(entries) * CHUNK_SIZE_BYTES,
            size_bytes: self.layout.superblock.chunk_count * CHUNK_SIZE_BYTES,
        }
    }
}

/// A2: free and without owner.
fn is_claimable(entry: &ChunkEntry) -> bool {
    entry.owner.is_free() && entry.purpose == Some(ChunkPurpose::Free)
}

fn first_free_range(entries: &[ChunkEntry], count: u64) -> Option<ChunkRange> {
    let mut length = 0;
    for (index, entry) in entries.iter().enumerate() {
        length = if is_claimable(entry) { length + 1 } else { 0 };
        if length >= count {
            return Some(ChunkRange {
                first: ChunkIndex(index as u64 + 1 - count),
                count,
            });
        }
    }
    None
}
