//! What fenced sessions held: the memory node's part of BV8.
//!
//! | module | what it holds |
//! |---|---|
//! | `lease` | chunks that the dead had leased, and extents that they had begun |
//! | `judge` | blocks whose holder is dead: linked, or nobody's |
//! | `free` | what was nobody's, when its grace period is over |
//!
//! What is dead is settled in this order: the holder's word is read, then the life of its session
//! (S3: who had registered, and is not alive, is fenced), then what the chunk is and which of its
//! pieces are free, which is what the dead have left of it; then the page is asked for; and last
//! the holder is swapped, from the very word that was read. Whoever has had anything to do with
//! the block in between has changed that word; and a chunk that was something else in between was
//! zeroed, and no dead session has written to it since (W8).

mod free;
mod judge;
mod lease;

use core::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use farleaf_fabric::{Batch, Endpoint};
use farleaf_region::allocation::ChunkAllocator;
use farleaf_region::chunk::{ChunkEntry, ChunkPurpose};
use farleaf_region::layout::ChunkIndex;
use farleaf_region::session::{is_fenced, life_of};
use farleaf_types::{OwnerWord, RemoteAddr, SequenceNumber};

use crate::access::BlockAccess;
use crate::class::SizeClass;
use crate::error::BlockError;
use crate::grace;
use crate::header::{Role, SETTLED};
use crate::pointer::FatPointer;
use lease::{free_orphans, leave_leases};

/// What the sweep wants to know: does the page that covers the locator refer to this block?
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The block, with its generation.
    pub pointer: FatPointer,
    /// What it would be to that page; never [`Role::Part`].
    pub role: Role,
    /// A key that the page covers.
    pub locator: &'a [u8],
}

/// What is known of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It refers to it. Who asks again later may hear something else.
    Referred,
    /// The page that covers the locator was seen whole, not retired, and once nobody recovers it
    /// instead (W3), and does not refer to it. So it will be for ever: the one who could have made
    /// it refer is fenced.
    Unreferred,
    /// That cannot be told now: the page is damaged, lost, or locked by somebody who does not go
    /// on (W6, W7). The block stays as it is.
    Unknown,
}

/// What a sweep has found and done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockSweepReport {
    /// Chunks that fenced sessions had leased.
    pub lease_count: u64,
    /// Chunks of extents that were never whole, or half free already.
    pub orphan_count: u64,
    /// Blocks of fenced holders that pages refer to.
    pub settled_count: u64,
    /// Blocks of fenced holders that nothing refers to. They wait for their grace period.
    pub taken_count: u64,
    /// Blocks that became free, or whose chunks had gone with their table.
    pub freed_count: u64,
    /// Blocks that wait for their grace period; another sweep is due.
    pub waiting_count: u64,
    /// Blocks of which nobody could tell.
    pub unknown_count: u64,
}

/// The memory node's sweep of one table's value blocks, and what it has taken over and waits with.
/// It is one task's; two at once would count each other's blocks as left.
#[derive(Debug, Default)]
pub struct BlockSweeper {
    waiting: RefCell<Vec<Waiting>>,
    /// The oldest number that a block waited for when a sweep ended, and at the end of how many
    /// sweeps in a row.
    oldest: Cell<Option<(SequenceNumber, u32)>>,
}

#[derive(Debug)]
struct Waiting {
    /// `None`: it has not been drawn.
    sequence: Option<SequenceNumber>,
    pointer: FatPointer,
}

/// A chunk of the table, as it was listed.
#[derive(Clone, Copy, Debug)]
struct Listed {
    chunk: ChunkIndex,
    entry: ChunkEntry,
}

impl BlockSweeper {
    /// Nothing taken over yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sweeps the table's blocks once, in the name of the node (`access.owner`), and frees what
    /// earlier sweeps have taken over and every other session has passed. `asks` looks at pages.
    ///
    /// Reads the chunk table and a word of each piece that is in use; then, for each block of a
    /// dead holder, some four round trips and what `asks` takes.
    ///
    /// # Errors
    /// The fabric failed, or `asks` did. What was done stays done, and what was begun is found by
    /// the next sweep: it is the node's own (W5).
    pub async fn sweep<E, A, Error>(
        &self,
        access: &BlockAccess<'_, E>,
        asks: A,
    ) -> Result<BlockSweepReport, Error>
    where
        E: Endpoint,
        A: AsyncFn(Question<'_>) -> Result<Answer, Error>,
        Error: From<BlockError>,
    {
        let mut report = BlockSweepReport::default();
        self.free_passed(access, &mut report).await?;
        let mut listed = list_chunks(access).await?;
        if leave_leases(access, &listed, &mut report).await? {
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
                    self.judge_places(access, chunk, &places, &asks, &mut report)
                        .await?;
                }
                Some(ChunkPurpose::Extent { position: 0 }) if chunk.entry.owner.is_free() => {
                    let place = [access.layout.chunk_start(chunk.chunk)];
                    self.judge_places(access, chunk, &place, &asks, &mut report)
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

    /// The number that blocks wait for at the end of so many sweeps in a row, or more: some session
    /// does not publish it.
    pub fn waits_long_for(&self, sweep_count: u32) -> Option<SequenceNumber> {
        let (sequence, _) = self
            .oldest
            .get()
            .filter(|(_, count)| *count >= sweep_count)?;
        Some(sequence)
    }

    /// What it has taken over waits from now on until every session has published this number.
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
    /// The pieces that are not marked as free.
    fn places_in_use<E>(&self, access: &BlockAccess<'_, E>, class: SizeClass) -> Vec<RemoteAddr> {
        let start = access.layout.chunk_start(self.chunk);
        let pieces = 0..class.piece_count();
        let in_use = pieces.filter(|piece| !self.entry.free.contains(*piece));
        let places = in_use.map(|piece| start.offset_blocks(piece * class.stride_blocks()));
        places.collect()
    }

    /// Whether a chunk's block says that it is what was listed.
    fn is_still(&self, entry: &ChunkEntry) -> bool {
        (entry.table, entry.purpose) == (self.entry.table, self.entry.purpose)
    }
}

/// The table's chunks of value blocks.
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

/// Which of these holders, whose words have been read, are left behind: their sessions are fenced,
/// or it is the node itself (W5). One round trip.
async fn left_of<E: Endpoint>(
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
        // It names no session: nobody alive holds it.
        None => true,
    };
    let left = lives.into_iter().filter(is_left);
    Ok(left.map(|(word, _)| word).collect())
}

/// The number that all sessions but the node's have published.
async fn passed<E: Endpoint>(access: &BlockAccess<'_, E>) -> Result<SequenceNumber, BlockError> {
    let mut batch = access.control_batch();
    let sessions = grace::post(&mut batch, access.layout);
    access.endpoint.execute(&mut batch).await?;
    Ok(sessions.alive(&batch).passed(Some(access.owner)))
}
