//! Chunks that dead sessions had leased, and extents that they were claiming or freeing.

use farleaf_base::OwnerWord;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_pool::allocation::{ChunkAllocator, ChunkRange};
use farleaf_pool::chunk::{CHUNK_ENTRY_SIZE_WORDS, ChunkEntry, ChunkPurpose, FreeLeaves};
use farleaf_pool::layout::ChunkIndex;

use super::{BlockSweepReport, BlockSweeper, Listed, dead_among};
use crate::blobs::access::BlockAccess;
use crate::blobs::class::SizeClass;
use crate::blobs::error::BlockError;
use crate::blobs::header::HOLDER_WORD;
use crate::blobs::pointer::{FatPointer, Form, Generation};

/// Releases the chunks that fenced sessions had leased. Returns true if there were any.
pub(super) async fn release_leases<E: Endpoint>(
    access: &BlockAccess<'_, E>,
    listed: &[Listed],
    report: &mut BlockSweepReport,
) -> Result<bool, BlockError> {
    let mut batch = access.control_batch();
    let owners = listed.iter().map(|listed| listed.entry.owner.word());
    let left = dead_among(&mut batch, access, owners).await?;
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let leased = listed
        .iter()
        .filter(|listed| left.contains(&listed.entry.owner.word()));
    let mut found = false;
    for Listed { chunk, entry } in leased.copied() {
        let Some(entry) = allocator.take_over(chunk, entry.owner).await? else {
            continue;
        };
        let class = match entry.purpose {
            Some(ChunkPurpose::Blocks { class }) => SizeClass::from_number(class),
            _ => None,
        };
        match class.filter(|_| entry.table == access.table) {
            Some(class) => {
                release_pieces_of(&mut batch, access, chunk, class, entry.free).await?;
            }
            None => allocator.release_chunk(chunk).await?,
        }
        report.lease_count += 1;
        found = true;
    }
    Ok(found)
}

/// Releases a chunk of pieces that a fenced session had leased. A piece without a holder is free
/// even if its bit is clear, as in a chunk that was just being claimed.
async fn release_pieces_of<E: Endpoint>(
    batch: &mut Batch,
    access: &BlockAccess<'_, E>,
    chunk: ChunkIndex,
    class: SizeClass,
    mut free: FreeLeaves,
) -> Result<(), BlockError> {
    let start = access.layout.chunk_start(chunk);
    batch.clear();
    let reads = (0..class.piece_count()).map(|piece| {
        let place = start.offset_blocks(piece * class.stride_blocks());
        (piece, batch.read(place.word_at(HOLDER_WORD), 1))
    });
    let reads: Vec<_> = reads.collect();
    access.endpoint.execute(batch).await?;
    for (piece, read) in reads {
        if batch.words(read)[0] == 0 {
            free.insert(piece);
        }
    }
    access.release_pieces(batch, chunk, class, free).await
}

/// Frees chunks of extents whose first chunks are free: they are left over from freeing the extent,
/// and nothing has led to them since before that began.
pub(super) async fn free_orphans<E: Endpoint>(
    access: &BlockAccess<'_, E>,
    listed: &[Listed],
    report: &mut BlockSweepReport,
) -> Result<(), BlockError> {
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let mut before: Option<&Listed> = None;
    for listed in listed {
        let is_behind = before.is_some_and(|before| follows(before, listed));
        before = Some(listed);
        let Some(ChunkPurpose::Extent { position: 1.. }) = listed.entry.purpose else {
            continue;
        };
        if is_behind || !listed.entry.owner.is_free() {
            continue;
        }
        // The chunk table was not read at one moment. While the node leases the chunk it does not
        // change. Nor does the chunk before it, because extents are freed from the end.
        let chunk = listed.chunk;
        let Some(entry) = allocator.take_over(chunk, OwnerWord::FREE).await? else {
            continue;
        };
        let is_orphan = listed.is_still(&entry) && !has_predecessor(access, listed).await?;
        if !is_orphan {
            allocator.release_chunk(chunk).await?;
            continue;
        }
        let range = ChunkRange::one(chunk);
        let (free, none) = (ChunkPurpose::Free, FreeLeaves::default());
        allocator.give_back(range, free, access.table, none).await?;
        before = None;
        report.orphan_count += 1;
    }
    Ok(())
}

/// Returns whether a chunk follows another one of the same extent.
fn follows(before: &Listed, next: &Listed) -> bool {
    let position = |listed: &Listed| match listed.entry.purpose {
        Some(ChunkPurpose::Extent { position }) => Some(u64::from(position)),
        _ => None,
    };
    let is_next = before.chunk.0 + 1 == next.chunk.0;
    is_next && position(before).map(|position| position + 1) == position(next)
}

async fn has_predecessor<E: Endpoint>(
    access: &BlockAccess<'_, E>,
    listed: &Listed,
) -> Result<bool, BlockError> {
    let Some(number) = listed.chunk.number().checked_sub(1) else {
        return Ok(false);
    };
    let chunk = ChunkIndex::new(listed.chunk.node(), number);
    let mut batch = access.control_batch();
    let read = batch.read(access.layout.chunk_entry(chunk), CHUNK_ENTRY_SIZE_WORDS);
    access.endpoint.execute(&mut batch).await?;
    let entry = ChunkEntry::decode(batch.words(read));
    let before = Listed { chunk, entry };
    Ok(entry.table == access.table && follows(&before, listed))
}

impl BlockSweeper {
    /// Takes over the first chunk of an extent that was claimed but never written: it has no
    /// holder. While a live session is at this point, it leases the chunk.
    pub(super) async fn take_unwritten<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
        listed: &Listed,
        report: &mut BlockSweepReport,
    ) -> Result<(), BlockError> {
        let place = access.layout.chunk_start(listed.chunk);
        let at = place.word_at(HOLDER_WORD);
        let mut batch = access.control_batch();
        let read = batch.read(at, 1);
        access.endpoint.execute(&mut batch).await?;
        if batch.words(read)[0] != 0 {
            return Ok(());
        }
        let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
        let taken = allocator.take_over(listed.chunk, OwnerWord::FREE).await?;
        let Some(entry) = taken else {
            return Ok(());
        };
        batch.clear();
        let read = batch.read(at, 1);
        access.endpoint.execute(&mut batch).await?;
        let is_unwritten = listed.is_still(&entry) && batch.words(read)[0] == 0;
        batch.clear();
        if is_unwritten {
            batch.write_word(at, access.owner.word());
        }
        let entry = access.layout.chunk_entry(listed.chunk);
        batch.write_word(entry, OwnerWord::FREE.word());
        access.endpoint.execute(&mut batch).await?;
        if is_unwritten {
            let pointer = FatPointer::new(place, Form::Extent, Generation::default());
            self.wait_with(pointer, None);
            report.taken_count += 1;
        }
        Ok(())
    }
}
