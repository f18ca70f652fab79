//! Sweep of fenced sessions' value blocks by the memory node.
//!
//! | module | contents |
//! |---|---|
//! | `lease` | chunks that dead sessions had leased, and extents that they were claiming |
//! | `judge` | blocks whose holder is dead: linked or free |
//! | `free` | freeing of unlinked blocks after their grace period |
//!
//! For each block, the sweep works in this order:
//!
//! 1. Read the holder's word.
//! 2. Read whether its session is fenced: it was registered and is not alive.
//! 3. Read the chunk's purpose and its free pieces, as the dead session left them.
//! 4. Ask the page.
//! 5. Swap the holder by CAS from exactly the word that was read.
//!
//! A session that uses the block in between changes the holder's word, so the CAS fails. A chunk
//! that was used for something else in between was zeroed, and no dead session has written to it
//! since.

mod free;
mod judge;
mod lease;

use core::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use farleaf_base::{OwnerWord, RemoteAddr, SequenceNumber};
use farleaf_fabric::{Batch, Endpoint};
use farleaf_pool::allocation::ChunkAllocator;
use farleaf_pool::chunk::{ChunkEntry, ChunkPurpose};
use farleaf_pool::layout::ChunkIndex;
use farleaf_pool::session::{is_fenced, life_of};

use crate::blobs::access::BlockAccess;
use crate::blobs::class::SizeClass;
use crate::blobs::error::BlockError;
use crate::blobs::grace;
use crate::blobs::header::{Role, SETTLED};
use crate::blobs::pointer::FatPointer;
use lease::{free_orphans, release_leases};

/// Query of the sweep: does the page that covers the locator refer to this block?
#[derive(Clone, Copy, Debug)]
pub struct ReferenceQuery<'a> {
    /// Pointer to the block, with its generation.
    pub pointer: FatPointer,
    /// Role of the block in that page; never [`Role::Part`].
    pub role: Role,
    /// Key that the page covers.
    pub locator: &'a [u8],
}

/// Result of a [`ReferenceQuery`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferenceAnswer {
    /// The page refers to the block. A later answer may differ.
    Referred,
    /// The page does not refer to the block. The page that covers the locator was read intact, not
    /// retired, and with no recovery pending. The answer is final, because the session that could
    /// have linked the block is fenced.
    Unreferred,
    /// Unknown for now: the page is corrupted, lost, or locked by a stopped session. The block
    /// stays unchanged.
    Unknown,
}

/// Results of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockSweepReport {
    /// Number of chunks that fenced sessions had leased.
    pub lease_count: u64,
    /// Number of chunks of extents that were incompletely claimed or already half free.
    pub orphan_count: u64,
    /// Number of blocks of fenced holders that pages refer to.
    pub settled_count: u64,
    /// Number of blocks of fenced holders that nothing refers to. Their grace period follows.
    pub taken_count: u64,
    /// Number of blocks that became free, or whose chunks were freed with their table.
    pub freed_count: u64,
    /// Number of blocks in their grace period; another sweep is needed.
    pub waiting_count: u64,
    /// Number of blocks with unknown state.
    pub unknown_count: u64,
}

/// Memory node's sweep of one table's value blocks, with the blocks that it took over and that
/// wait. Belongs to one task: two sweepers would treat each other's blocks as left over.
#[derive(Debug, Default)]
pub struct BlockSweeper {
    waiting: RefCell<Vec<Waiting>>,
    /// Oldest number that a block waited for at the end of a sweep, and the number of successive
    /// sweeps at whose end it did.
    oldest: Cell<Option<(SequenceNumber, u32)>>,
}

#[derive(Debug)]
struct Waiting {
    /// Sequence number of the grace period; `None` if not drawn yet.
    sequence: Option<SequenceNumber>,
    pointer: FatPointer,
}

/// Chunk of the table, as listed.
#[derive(Clone, Copy, Debug)]
struct Listed {
    chunk: ChunkIndex,
    entry: ChunkEntry,
}

impl BlockSweeper {
    /// Creates a sweeper that has taken over nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sweeps the table's blocks once for the node (`access.owner`). Frees blocks that earlier
    /// sweeps took over and that every other session has passed. `asks` checks pages.
    ///
    /// Reads the chunk table and a word of each used piece. Each block of a dead holder then costs
    /// some four round trips, plus those of `asks`.
    ///
    /// # Errors
    /// The fabric or `asks` failed. Completed steps stay done. The next sweep finds unfinished
    /// ones, because they carry the node's own word.
    pub async fn sweep<E, A, Error>(
        &self,
        access: &BlockAccess<'_, E>,
        asks: A,
    ) -> Result<BlockSweepReport, Error>
    where
        E: Endpoint,
        A: AsyncFn(ReferenceQuery<'_>) -> Result<ReferenceAnswer, Error>,
        Error: From<BlockError>,
    {
        let mut report = BlockSweepReport::default();
        self.free_passed(access, &mut report).await?;
        let mut listed = list_chunks(access).await?;
        if release_leases(access, &listed, &mut report).await? {
            listed = list_chunks(access).await?;
        }
        free_orphans(access, &listed, &mut report).await?;
        for chunk in &listed {
            match chunk.entry.purpose {
                Some(ChunkPurpose::Blocks { class }) => {
                    let Some(class) = SizeClass::from_number(class) else {
                        continue;
                    };
                    let places = chunk.places_in_use(access, class);
                    self.settle_places(access, chunk, &places, &asks, &mut report)
                        .await?;
                }
                Some(ChunkPurpose::Extent { position: 0 }) if chunk.entry.owner.is_free() => {
                    let place = [access.layout.chunk_start(chunk.chunk)];
                    self.settle_places(access, chunk, &place, &asks, &mut report)
                        .await?;
                    self.take_unwritten(access, chunk, &mut report).await?;
                }
                _ => {}
            }
        }
        self.draw_number(access).await?;
        report.waiting_count = self.waiting.borrow().len() as u64;
        self.note_oldest();
        Ok(report)
    }

    fn note_oldest(&self) {
        let waiting = self.waiting.borrow();
        let oldest = waiting.iter().filter_map(|it| it.sequence).min();
        let before = self.oldest.get();
        self.oldest.set(oldest.map(|oldest| match before {
            Some((same, count)) if same == oldest => (oldest, count.saturating_add(1)),
            _ => (oldest, 1),
        }));
    }

    /// Returns the number that blocks have waited for at the end of at least `sweep_count`
    /// successive sweeps: some session does not publish it.
    pub fn waits_long_for(&self, sweep_count: u32) -> Option<SequenceNumber> {
        let (sequence, _) = self
            .oldest
            .get()
            .filter(|(_, count)| *count >= sweep_count)?;
        Some(sequence)
    }

    /// Draws the number that every session must publish before newly taken blocks are free.
    async fn draw_number<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
    ) -> Result<(), BlockError> {
        let is_open = |waiting: &Waiting| waiting.sequence.is_none();
        if !self.waiting.borrow().iter().any(is_open) {
            return Ok(());
        }
        let mut batch = access.control_batch();
        let drawn = batch.fetch_add(access.layout.sequence(), 1);
        access.endpoint.execute(&mut batch).await?;
        let sequence = SequenceNumber(batch.previous(drawn) + 1);
        for waiting in &mut *self.waiting.borrow_mut() {
            waiting.sequence.get_or_insert(sequence);
        }
        Ok(())
    }

    fn wait_with(&self, pointer: FatPointer, sequence: Option<SequenceNumber>) {
        let waiting = Waiting { sequence, pointer };
        self.waiting.borrow_mut().push(waiting);
    }

    fn waits_with(&self, place: RemoteAddr) -> bool {
        let waiting = self.waiting.borrow();
        waiting.iter().any(|it| it.pointer.place() == place)
    }
}

impl Listed {
    /// Returns the pieces that are not marked as free.
    fn places_in_use<E>(&self, access: &BlockAccess<'_, E>, class: SizeClass) -> Vec<RemoteAddr> {
        let start = access.layout.chunk_start(self.chunk);
        let pieces = 0..class.piece_count();
        let in_use = pieces.filter(|piece| !self.entry.free.contains(*piece));
        let places = in_use.map(|piece| start.offset_blocks(piece * class.stride_blocks()));
        places.collect()
    }

    /// Returns whether a chunk's block still matches the listed one.
    fn is_still(&self, entry: &ChunkEntry) -> bool {
        (entry.table, entry.purpose) == (self.entry.table, self.entry.purpose)
    }
}

/// Lists the table's chunks of value blocks.
async fn list_chunks<E: Endpoint>(access: &BlockAccess<'_, E>) -> Result<Vec<Listed>, BlockError> {
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let table = allocator.entries().await?;
    let is_own = |entry: &ChunkEntry| {
        let purpose = entry.purpose;
        let is_ours = matches!(
            purpose,
            Some(ChunkPurpose::Blocks { .. } | ChunkPurpose::Extent { .. })
        );
        is_ours && entry.table == access.table
    };
    let own = table.iter().filter(|(_, entry)| is_own(entry));
    let listed = own.map(|(chunk, entry)| Listed {
        chunk,
        entry: *entry,
    });
    Ok(listed.collect())
}

/// Returns the places whose holders, already read, are dead: their sessions are fenced, or the
/// holder is the node itself, left over from an earlier sweep. One round trip.
async fn dead_among<E: Endpoint>(
    batch: &mut Batch,
    access: &BlockAccess<'_, E>,
    holders: impl Iterator<Item = u64>,
) -> Result<BTreeSet<u64>, BlockError> {
    let holders: BTreeSet<u64> = holders
        .filter(|word| ![0, SETTLED].contains(word))
        .collect();
    batch.clear();
    let lives = holders.into_iter().map(|word| {
        let life = life_of(access.layout, OwnerWord::from_word(word));
        let read = life.map(|(life, incarnation)| (batch.read(life, 1), incarnation));
        (word, read)
    });
    let lives: Vec<_> = lives.collect();
    access.endpoint.execute(batch).await?;
    let is_left = |(word, life): &(u64, Option<_>)| match life {
        _ if *word == access.owner.word() => true,
        Some((read, incarnation)) => is_fenced(*incarnation, batch.words(*read)[0]),
        // The word names no session, so no live session holds the block.
        None => true,
    };
    let left = lives.into_iter().filter(is_left);
    Ok(left.map(|(word, _)| word).collect())
}

/// Returns the number that all sessions but the node's have published.
async fn passed<E: Endpoint>(access: &BlockAccess<'_, E>) -> Result<SequenceNumber, BlockError> {
    let mut batch = access.control_batch();
    let sessions = grace::post(&mut batch, access.layout);
    access.endpoint.execute(&mut batch).await?;
    Ok(sessions.alive(&batch).passed(Some(access.owner)))
}
