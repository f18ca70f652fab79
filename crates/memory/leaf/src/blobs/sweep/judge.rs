//! Decides whether blocks of dead holders are referred to by a page or free.

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_pool::chunk::{CHUNK_ENTRY_SIZE_WORDS, ChunkEntry, ChunkPurpose};

use super::{BlockSweepReport, BlockSweeper, Listed, ReferenceAnswer, ReferenceQuery, dead_among};
use crate::blobs::access::{BlockAccess, VerifiedBlock};
use crate::blobs::class::SizeClass;
use crate::blobs::error::BlockError;
use crate::blobs::header::{HOLDER_WORD, Role, SETTLED, SHAPE_WORD, generation_of};
use crate::blobs::list::CHUNK_SIZE_WORDS;
use crate::blobs::pointer::{FatPointer, Form, Site};

impl BlockSweeper {
    /// Decides about blocks of one chunk.
    pub(super) async fn settle_places<E, A, Error>(
        &self,
        access: &BlockAccess<'_, E>,
        listed: &Listed,
        places: &[RemoteAddr],
        asks: &A,
        report: &mut BlockSweepReport,
    ) -> Result<(), Error>
    where
        E: Endpoint,
        A: AsyncFn(ReferenceQuery<'_>) -> Result<ReferenceAnswer, Error>,
        Error: From<BlockError>,
    {
        let mut batch = access.control_batch();
        let places = places.iter().filter(|place| !self.waits_with(**place));
        let left = dead_places(&mut batch, access, listed, places.copied()).await?;
        for (place, holder) in left {
            let Some((pointer, view)) = look(&mut batch, access, listed, place).await? else {
                continue;
            };
            let answer = match &view {
                // A block is complete before a page refers to it, and unchanged while one does.
                None => ReferenceAnswer::Unreferred,
                Some(view) if view.shape.role == Role::Part => {
                    is_listed(&mut batch, access, pointer, &view.locator).await?
                }
                Some(view) => {
                    let question = ReferenceQuery {
                        pointer,
                        role: view.shape.role,
                        locator: &view.locator,
                    };
                    asks(question).await?
                }
            };
            self.settle(&mut batch, access, pointer, holder, answer, report)
                .await?;
        }
        Ok(())
    }

    async fn settle<E: Endpoint>(
        &self,
        batch: &mut Batch,
        access: &BlockAccess<'_, E>,
        pointer: FatPointer,
        holder: u64,
        answer: ReferenceAnswer,
        report: &mut BlockSweepReport,
    ) -> Result<(), BlockError> {
        let next = match answer {
            ReferenceAnswer::Referred => SETTLED,
            ReferenceAnswer::Unreferred => access.owner.word(),
            ReferenceAnswer::Unknown => {
                report.unknown_count += 1;
                return Ok(());
            }
        };
        batch.clear();
        let swap = batch.compare_swap(pointer.place().word_at(HOLDER_WORD), holder, next);
        access.endpoint.execute(batch).await?;
        if batch.previous(swap) != holder {
            // A live session has unlinked the block meanwhile, and holds it.
            return Ok(());
        }
        if answer == ReferenceAnswer::Referred {
            report.settled_count += 1;
        } else {
            self.wait_with(pointer, None);
            report.taken_count += 1;
        }
        Ok(())
    }
}

/// Returns the places whose holder is dead, with the holder's word, in the order that the module
/// describes. Three round trips if there are any, else one or two.
async fn dead_places<E: Endpoint>(
    batch: &mut Batch,
    access: &BlockAccess<'_, E>,
    listed: &Listed,
    places: impl Iterator<Item = RemoteAddr>,
) -> Result<Vec<(RemoteAddr, u64)>, BlockError> {
    batch.clear();
    let reads = places.map(|place| (place, batch.read(place.word_at(HOLDER_WORD), 1)));
    let reads: Vec<_> = reads.collect();
    access.endpoint.execute(batch).await?;
    let held = reads.into_iter();
    let held = held.map(|(place, read)| (place, batch.words(read)[0]));
    let mut held: Vec<(RemoteAddr, u64)> = held.collect();
    let left = dead_among(batch, access, held.iter().map(|(_, holder)| *holder)).await?;
    held.retain(|(_, holder)| left.contains(holder));
    if held.is_empty() {
        return Ok(held);
    }
    batch.clear();
    let entry = access.layout.chunk_entry(listed.chunk);
    let read = batch.read(entry, CHUNK_ENTRY_SIZE_WORDS);
    access.endpoint.execute(batch).await?;
    let entry = ChunkEntry::decode(batch.words(read));
    if !listed.is_still(&entry) {
        return Ok(Vec::new());
    }
    if let Some(class) = class_of(listed) {
        let start = access.layout.chunk_start(listed.chunk).block();
        let piece = |place: RemoteAddr| (place.block() - start) / class.stride_blocks();
        held.retain(|(place, _)| !entry.free.contains(piece(*place)));
    } else if !entry.owner.is_free() {
        held.clear();
    }
    Ok(held)
}

fn class_of(listed: &Listed) -> Option<SizeClass> {
    match listed.entry.purpose {
        Some(ChunkPurpose::Blocks { class }) => SizeClass::from_number(class),
        _ => None,
    }
}

/// Reads a block's header, if it is intact, and the pointer that leads to it; `None` if the block
/// is not there any more.
async fn look<E: Endpoint>(
    batch: &mut Batch,
    access: &BlockAccess<'_, E>,
    listed: &Listed,
    place: RemoteAddr,
) -> Result<Option<(FatPointer, Option<VerifiedBlock>)>, BlockError> {
    let class = class_of(listed);
    let space_word_count = if let Some(class) = class {
        class.size_words()
    } else {
        let allocator = access.allocator(listed.chunk.node());
        let count = allocator.extent_chunk_count(listed.chunk, access.table);
        count.await? * CHUNK_SIZE_WORDS
    };
    if space_word_count == 0 {
        return Ok(None);
    }
    let view = access.look(batch, place, space_word_count).await?;
    batch.clear();
    let read = batch.read(place.word_at(SHAPE_WORD), 1);
    access.endpoint.execute(batch).await?;
    let generation = generation_of(batch.words(read)[0]);
    let is_list = view.as_ref().is_some_and(|view| view.shape.is_list);
    let form = match class {
        Some(class) if is_list => Form::List(class),
        Some(class) => Form::Piece(class),
        None => Form::Extent,
    };
    Ok(Some((FatPointer::new(place, form, generation), view)))
}

/// Returns whether the list that a part names has it as a part; then the part is referenced as much
/// as the list.
async fn is_listed<E: Endpoint>(
    batch: &mut Batch,
    access: &BlockAccess<'_, E>,
    part: FatPointer,
    locator: &[u8],
) -> Result<ReferenceAnswer, BlockError> {
    let word = locator.try_into().map(u64::from_le_bytes);
    let list = word.ok().and_then(FatPointer::from_word);
    let Some(list) = list.filter(|list| Site::of(access.layout, *list).is_some()) else {
        return Ok(ReferenceAnswer::Unreferred);
    };
    let parts = access.list_parts(batch, list).await?.unwrap_or_default();
    let is_one = parts.iter().any(|one| one.place == part.place());
    Ok(if is_one {
        ReferenceAnswer::Referred
    } else {
        ReferenceAnswer::Unreferred
    })
}
