//! Leasing and freeing of pieces of chunks.
//!
//! A chunk is leased for two round trips only. In these the session writes its owner word into each
//! piece that it takes and clears that piece's free bit. From then on it holds the pieces, not the
//! chunk.

use std::collections::BTreeMap;

use farleaf_base::{NodeId, OwnerWord, WORD_SIZE_BYTES};
use farleaf_fabric::{Batch, Endpoint};
use farleaf_pool::allocation::ChunkRange;
use farleaf_pool::chunk::{CHUNK_ENTRY_SIZE_WORDS, ChunkEntry, ChunkPurpose, FreeLeaves};
use farleaf_pool::layout::{CHUNK_SIZE_BYTES, ChunkIndex};
use farleaf_pool::{PoolError, PoolLayout};

use crate::blobs::access::BlockAccess;
use crate::blobs::class::SizeClass;
use crate::blobs::error::BlockError;
use crate::blobs::header::{HOLDER_WORD, SHAPE_WORD, generation_of};
use crate::blobs::pointer::{FatPointer, Form, Site};
use crate::blobs::store::BlockStore;

/// Number of pieces leased at once, if a chunk has as many.
pub const LEASE_PIECE_COUNT: usize = 64;
/// Smallest number of pieces of a size that a session keeps; surplus pieces are given back.
pub const KEPT_PIECE_COUNT: usize = 2 * LEASE_PIECE_COUNT;
/// Bytes of pieces of a size that a session may keep, if these are more pieces: 4 MiB, or a fixed
/// share of the pool.
const KEPT_SIZE_BYTES_MAX: u64 = 4 << 20;
const KEPT_POOL_PART: u64 = 64;
/// Number of unused chunks leased without reading the chunk table, after it showed no free pieces
/// of a size.
const UNREAD_LEASE_COUNT: u32 = 16;

fn kept_size_bytes(layout: &PoolLayout) -> u64 {
    let sizes = layout
        .memories()
        .map(|memory| memory.superblock.chunk_count);
    let pool_size_bytes = sizes.sum::<u64>() * CHUNK_SIZE_BYTES;
    (pool_size_bytes / KEPT_POOL_PART).min(KEPT_SIZE_BYTES_MAX)
}

/// Result of freeing pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkOutcome {
    /// The pieces that the session still held are free.
    Done,
    /// Another session leases the chunk now; retry later.
    Busy,
}

impl BlockStore {
    /// Leases up to 64 pieces of a size on a node, from one chunk. Costs two round trips if the
    /// chunk used last has more. Otherwise costs those of finding a chunk (the node's chunk table
    /// is read), and one. Reads and writes 8 bytes for each piece, and 64.
    ///
    /// # Errors
    /// [`BlockError::Full`]; or the fabric failed: then the session may own a chunk that it does
    /// not know of, and counts as broken.
    pub async fn lease_more<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
        node: NodeId,
        class: SizeClass,
    ) -> Result<(), BlockError> {
        let mut batch = access.control_batch();
        let last = self
            .state
            .borrow_mut()
            .class_pieces(node, class)
            .chunk
            .take();
        let again = match last {
            Some(chunk) => access.lease_again(chunk, class).await?,
            None => None,
        };
        let (chunk, mut free) = match again {
            Some(leased) => leased,
            None => match self.lease_untouched(access, node, class).await? {
                Some(leased) => leased,
                None => self.lease_any(access, node, class).await?,
            },
        };
        let pieces: Vec<u64> = free
            .iter(class.piece_count())
            .take(LEASE_PIECE_COUNT)
            .collect();
        let start = access.layout.chunk_start(chunk);
        let reads: Vec<_> = pieces
            .iter()
            .map(|piece| {
                let place = start.offset_blocks(piece * class.stride_blocks());
                free.remove(*piece);
                // The holder is written before the bits and the chunk's owner word show that the
                // pieces are not free.
                batch.write_word(place.word_at(HOLDER_WORD), access.owner.word());
                (place, batch.read(place.word_at(SHAPE_WORD), 1))
            })
            .collect();
        access.post_release(&mut batch, chunk, class, free);
        access.endpoint.execute(&mut batch).await?;
        let mut state = self.state.borrow_mut();
        let class_pieces = state.class_pieces(node, class);
        // Reversed, so that the first pieces are taken first.
        let taken = reads.into_iter().rev().map(|(place, read)| {
            let last = generation_of(batch.words(read)[0]);
            FatPointer::new(place, Form::Piece(class), last.next())
        });
        class_pieces.pieces.extend(taken);
        let has_more = free.iter(class.piece_count()).next().is_some();
        class_pieces.chunk = has_more.then_some(chunk);
        Ok(())
    }

    /// Leases an unused chunk, if the last read of the chunk table showed no free pieces of this
    /// size.
    async fn lease_untouched<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
        node: NodeId,
        class: SizeClass,
    ) -> Result<Option<(ChunkIndex, FreeLeaves)>, BlockError> {
        {
            let mut state = self.state.borrow_mut();
            let class_pieces = state.class_pieces(node, class);
            let Some(left) = class_pieces.unread_lease_count.checked_sub(1) else {
                return Ok(None);
            };
            class_pieces.unread_lease_count = left;
        }
        let allocator = access.allocator(node);
        let piece_count = class.piece_count();
        let leased = allocator.lease_untouched_pieces(access.table, class.purpose(), piece_count);
        leased
            .await
            .map_err(|error| BlockError::of_claim(error, node, CHUNK_SIZE_BYTES))
    }

    /// Leases any chunk of this size with free pieces, or a free chunk.
    async fn lease_any<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
        node: NodeId,
        class: SizeClass,
    ) -> Result<(ChunkIndex, FreeLeaves), BlockError> {
        let leased = match access.lease_any(node, class).await {
            Err(error) if error.is_full() && self.free_unneeded(access, Some(class)).await? => {
                access.lease_any(node, class).await
            }
            leased => leased,
        };
        let (chunk, free) = leased?;
        let is_new = free.count() == class.piece_count();
        let unread_lease_count = if is_new { UNREAD_LEASE_COUNT } else { 0 };
        self.state
            .borrow_mut()
            .class_pieces(node, class)
            .unread_lease_count = unread_lease_count;
        Ok((chunk, free))
    }

    /// Gives back extents and pieces of all sizes but one that this session has kept, because there
    /// is no other free space. Returns false if there were none.
    pub(crate) async fn free_unneeded<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
        class: Option<SizeClass>,
    ) -> Result<bool, BlockError> {
        let had_extents = self.free_spares(access).await?;
        let pieces = self.state.borrow_mut().take_pieces_but_for(class);
        let had_pieces = !pieces.is_empty();
        self.mark_free(access, pieces).await?;
        Ok(had_extents || had_pieces)
    }

    /// Gives back everything that the session does not need: pieces, extents, and limbo whose grace
    /// period is over. For closing sessions, which check [`held`](Self::held) afterwards. Blocks
    /// that others may still read, or in chunks that others leased, stay held and are swept when
    /// the session is fenced. Costs a [`recycle`](Self::recycle), two round trips for each chunk to
    /// which pieces are returned, and the zeroing of freed chunks.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn give_back<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
    ) -> Result<(), BlockError> {
        self.recycle(access).await?;
        self.free_spares(access).await?;
        let all = self.state.borrow_mut().take_pieces_beyond(|_| 0);
        self.mark_free(access, all).await
    }

    /// Gives back surplus pieces of each size. The session keeps enough that it need not lease
    /// others during the grace period of what it unlinks.
    pub(crate) async fn give_back_excess<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
    ) -> Result<(), BlockError> {
        let kept_size_bytes = kept_size_bytes(access.layout);
        let retained_count = |class: SizeClass| {
            let piece_size_bytes = class.size_words() * WORD_SIZE_BYTES;
            KEPT_PIECE_COUNT.max((kept_size_bytes / piece_size_bytes) as usize)
        };
        let excess = self.state.borrow_mut().take_pieces_beyond(retained_count);
        self.mark_free(access, excess).await
    }

    /// Gives back pieces.
    async fn mark_free<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
        pieces: Vec<FatPointer>,
    ) -> Result<(), BlockError> {
        for ((chunk, class), pieces) in by_chunk(access, pieces) {
            let marked = access.mark_free(chunk, class, &pieces).await;
            if self.unless_lost(chunk.node(), marked)? == Some(MarkOutcome::Busy) {
                let mut state = self.state.borrow_mut();
                for piece in pieces {
                    state.add_free_piece(piece);
                }
            }
        }
        Ok(())
    }
}

/// Groups pieces by chunk.
pub(crate) fn by_chunk<E: Endpoint>(
    access: &BlockAccess<'_, E>,
    pieces: Vec<FatPointer>,
) -> BTreeMap<(ChunkIndex, SizeClass), Vec<FatPointer>> {
    let mut by_chunk: BTreeMap<_, Vec<FatPointer>> = BTreeMap::new();
    for piece in pieces {
        let site = Site::of(access.layout, piece);
        if let (Some(site), Form::Piece(class)) = (site, piece.form()) {
            by_chunk.entry((site.chunk, class)).or_default().push(piece);
        }
    }
    by_chunk
}

impl<E: Endpoint> BlockAccess<'_, E> {
    fn is_chunk_of(&self, entry: &ChunkEntry, class: SizeClass) -> bool {
        entry.table == self.table && entry.purpose == Some(class.purpose())
    }

    /// Leases a chunk of this class, if it is not leased and has free pieces.
    async fn lease_again(
        &self,
        chunk: ChunkIndex,
        class: SizeClass,
    ) -> Result<Option<(ChunkIndex, FreeLeaves)>, PoolError> {
        let allocator = self.allocator(chunk.node());
        let Some(entry) = allocator.take_over(chunk, OwnerWord::FREE).await? else {
            return Ok(None);
        };
        let has_space = entry.free.iter(class.piece_count()).next().is_some();
        if has_space && self.is_chunk_of(&entry, class) {
            return Ok(Some((chunk, entry.free)));
        }
        allocator.release_chunk(chunk).await?;
        Ok(None)
    }

    async fn lease_any(
        &self,
        node: NodeId,
        class: SizeClass,
    ) -> Result<(ChunkIndex, FreeLeaves), BlockError> {
        let allocator = self.allocator(node);
        let leased = allocator.lease_pieces(self.table, class.purpose(), class.piece_count());
        let leased = leased.await;
        leased.map_err(|error| BlockError::of_claim(error, node, CHUNK_SIZE_BYTES))
    }

    /// Posts the release of a leased chunk of pieces.
    pub(crate) fn post_release(
        &self,
        batch: &mut Batch,
        chunk: ChunkIndex,
        class: SizeClass,
        free: FreeLeaves,
    ) {
        // Pieces that the chunk cannot have are not marked, even if a corrupted block lists them.
        let mut possible = FreeLeaves::default();
        let pieces = free.iter(class.piece_count());
        pieces.for_each(|piece| possible.insert(piece));
        let entry = self.layout.chunk_entry(chunk);
        let body = ChunkEntry::encode_body(class.purpose(), self.table, possible);
        batch.write(entry.offset(1), &body);
        batch.write_word(entry, OwnerWord::FREE.word());
    }

    /// Marks pieces of one chunk that this session holds as free, and the chunk, if all of its
    /// pieces are. Two round trips; 64 KiB of zeros written if the chunk becomes free.
    pub(crate) async fn mark_free(
        &self,
        chunk: ChunkIndex,
        class: SizeClass,
        pieces: &[FatPointer],
    ) -> Result<MarkOutcome, BlockError> {
        let mut batch = self.control_batch();
        let at = self.layout.chunk_entry(chunk);
        let swap = batch.compare_swap(at, OwnerWord::FREE.word(), self.owner.word());
        let entry = batch.read(at, CHUNK_ENTRY_SIZE_WORDS);
        let holders: Vec<_> = pieces
            .iter()
            .map(|piece| (piece, batch.read(piece.place().word_at(HOLDER_WORD), 1)))
            .collect();
        self.endpoint.execute(&mut batch).await?;
        if batch.previous(swap) != OwnerWord::FREE.word() {
            return Ok(MarkOutcome::Busy);
        }
        let entry = ChunkEntry::decode(batch.words(entry));
        if !self.is_chunk_of(&entry, class) {
            // The chunk was freed with its dropped table.
            self.allocator(chunk.node()).release_chunk(chunk).await?;
            return Ok(MarkOutcome::Done);
        }
        let mut free = entry.free;
        for (piece, read) in holders {
            let site = Site::of(self.layout, *piece);
            let site = site.expect("what is held has been taken from a chunk");
            assert!(site.chunk == chunk, "{piece} is not in chunk {chunk:?}");
            if batch.words(read)[0] == self.owner.word() {
                free.insert(site.piece);
            }
        }
        self.release_pieces(&mut batch, chunk, class, free).await?;
        Ok(MarkOutcome::Done)
    }

    /// Releases a leased chunk of pieces; frees it if all of them are free.
    pub(crate) async fn release_pieces(
        &self,
        batch: &mut Batch,
        chunk: ChunkIndex,
        class: SizeClass,
        free: FreeLeaves,
    ) -> Result<(), BlockError> {
        if free.iter(class.piece_count()).count() as u64 == class.piece_count() {
            let range = ChunkRange::one(chunk);
            let (purpose, none) = (ChunkPurpose::Free, FreeLeaves::default());
            let allocator = self.allocator(chunk.node());
            let given = allocator.give_back(range, purpose, self.table, none);
            return Ok(given.await?);
        }
        batch.clear();
        self.post_release(batch, chunk, class, free);
        Ok(self.endpoint.execute(batch).await?)
    }
}
