//! Strings that take whole chunks: extents, and lists of them.

use farleaf_base::NodeId;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_pool::PoolError;
use farleaf_pool::allocation::{ChunkRange, LaterClaims};
use farleaf_pool::chunk::ChunkPurpose;
use farleaf_pool::layout::CHUNK_SIZE_BYTES;

use crate::blobs::access::BlockAccess;
use crate::blobs::class::SizeClass;
use crate::blobs::content::{Content, SpaceNeed};
use crate::blobs::error::BlockError;
use crate::blobs::header::{
    BODY_WORD, HEADER_SIZE_WORDS, HOLDER_WORD, Role, SHAPE_WORD, Shape, checked_locator,
};
use crate::blobs::list::{self, ListPart, part_chunk_count};
use crate::blobs::pointer::{FatPointer, Form, Generation};
use crate::blobs::store::BlockStore;
use crate::blobs::words::{extend_words, word_count};

/// Words of a string that one batch reads or writes: 256,000 bytes. With a header and a locator,
/// that is one verb on the wire, and network cards' buffers have this size.
pub(crate) const TRANSFER_SIZE_WORDS: usize = 32_000;
pub(crate) const TRANSFER_SIZE_BYTES: usize = TRANSFER_SIZE_WORDS * 8;

/// Purpose as which every extent is claimed.
const EXTENT: ChunkPurpose = ChunkPurpose::Extent { position: 0 };

impl BlockStore {
    /// Writes a block that takes whole chunks or is on another node than its page: leases or claims
    /// space on a node, writes the block, and waits until it is written. Nothing refers to the
    /// block yet; if nothing will, call [`put_back`](Self::put_back).
    ///
    /// A piece costs one round trip, plus [`lease_more`](Self::lease_more) if there is none. Whole
    /// chunks cost some 6 round trips, 3 for each 512 chunks, and one for each 256,000 bytes. For
    /// every further run of free chunks that is used, the chunk table is read again.
    ///
    /// # Errors
    /// [`BlockError::Full`], with nothing claimed. Or the fabric failed: then the session may own
    /// chunks that it does not know of, and counts as broken.
    pub async fn write_ahead<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
        batch: &mut Batch,
        node: NodeId,
        content: &Content<'_>,
    ) -> Result<FatPointer, BlockError> {
        match content.space_need() {
            SpaceNeed::Piece(class) => {
                let pointer = self.take_or_lease(access, node, class).await?;
                batch.clear();
                access.post_write(batch, pointer, content);
                access.endpoint.execute(batch).await?;
                Ok(pointer)
            }
            SpaceNeed::Chunks(count) => self.write_large(access, batch, node, count, content).await,
        }
    }

    async fn take_or_lease<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
        node: NodeId,
        class: SizeClass,
    ) -> Result<FatPointer, BlockError> {
        loop {
            if let Some(pointer) = self.take(node, class) {
                return Ok(pointer);
            }
            self.lease_more(access, node, class).await?;
        }
    }

    async fn write_large<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
        batch: &mut Batch,
        node: NodeId,
        count: u64,
        content: &Content<'_>,
    ) -> Result<FatPointer, BlockError> {
        let spare = self.state.borrow_mut().take_spare(node, count);
        if let Some(pointer) = spare {
            access.write_extent(batch, pointer, content).await?;
            return Ok(pointer);
        }
        let allocator = access.allocator(node);
        let mut claimed = allocator.claim(count, EXTENT, access.table).await;
        if matches!(claimed, Err(PoolError::Full { .. }))
            && self.free_unneeded(access, None).await?
        {
            claimed = allocator.claim(count, EXTENT, access.table).await;
        }
        match claimed {
            Ok(range) => access.fill(batch, range, content).await,
            Err(full @ PoolError::Full { .. }) => {
                let written = self.write_list(access, batch, node, count, content).await;
                // Chunks claimed in part are not free when the missing ones are reported.
                written.map_err(|error| error.with_free_space_of(full))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn write_list<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
        batch: &mut Batch,
        node: NodeId,
        count: u64,
        content: &Content<'_>,
    ) -> Result<FatPointer, BlockError> {
        let asked_bytes = count.saturating_mul(CHUNK_SIZE_BYTES);
        let ranges = access.claim_in_pieces(node, content.string().len()).await;
        let ranges = ranges.map_err(|error| BlockError::of_claim(error, node, asked_bytes))?;
        let body_word_count = 1 + ranges.len();
        let words = HEADER_SIZE_WORDS + body_word_count + word_count(content.locator().len());
        let class = SizeClass::fitting(words as u64).expect("the longest list fits into a chunk");
        let piece = match self.take_or_lease(access, node, class).await {
            Ok(piece) => piece,
            Err(error) => {
                if error.is_full() {
                    access.give_back_untouched(&ranges).await?;
                }
                return Err(error.for_request_of(asked_bytes));
            }
        };
        let list = FatPointer::new(piece.place(), Form::List(class), piece.generation());
        let locator = list.word().to_le_bytes();
        let mut rest = content.string();
        let mut parts = Vec::with_capacity(ranges.len());
        for range in ranges {
            let place = access.layout.chunk_start(range.first);
            let chunk_count = u16::try_from(range.count).expect("no more than were wanted");
            let part = ListPart { place, chunk_count };
            let (string, after) = rest.split_at(rest.len().min(part.capacity_bytes()));
            rest = after;
            let string = Content::new(Role::Part, &locator, string)?;
            access.fill(batch, range, &string).await?;
            parts.push(part);
        }
        assert!(rest.is_empty(), "{} bytes were left over", rest.len());
        let (at, words) = content.encode(list, access.table, Some(&list::encode(&parts)));
        batch.clear();
        batch.write(at, &words);
        access.endpoint.execute(batch).await?;
        Ok(list)
    }
}

impl<E: Endpoint> BlockAccess<'_, E> {
    /// Claims chunks from several runs, the longest first, for a string that fits into none of
    /// them. Gives all back if they do not suffice together.
    async fn claim_in_pieces(
        &self,
        node: NodeId,
        size_bytes: usize,
    ) -> Result<Vec<ChunkRange>, PoolError> {
        let allocator = self.allocator(node);
        let mut ranges = Vec::new();
        let mut left = size_bytes;
        while left > 0 {
            let wanted = part_chunk_count(left);
            let claimed =
                allocator.claim_beside(wanted, LaterClaims::default(), EXTENT, self.table);
            match claimed.await {
                Ok(range) => {
                    left = left.saturating_sub(list::part_capacity_bytes(range.count));
                    ranges.push(range);
                }
                Err(error) => {
                    if matches!(error, PoolError::Full { .. }) {
                        self.give_back_untouched(&ranges).await?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(ranges)
    }

    async fn give_back_untouched(&self, ranges: &[ChunkRange]) -> Result<(), PoolError> {
        for range in ranges {
            let allocator = self.allocator(range.first.node());
            allocator.give_back_untouched(*range).await?;
        }
        Ok(())
    }

    /// Writes the first block into chunks that this session has just claimed, and releases the
    /// chunks: from then on the session holds the block, not the chunks.
    async fn fill(
        &self,
        batch: &mut Batch,
        range: ChunkRange,
        content: &Content<'_>,
    ) -> Result<FatPointer, BlockError> {
        let place = self.layout.chunk_start(range.first);
        let first = Generation::default().next();
        let pointer = FatPointer::new(place, Form::Extent, first);
        self.write_extent(batch, pointer, content).await?;
        let allocator = self.allocator(range.first.node());
        allocator.release_chunks(range).await?;
        Ok(pointer)
    }

    /// Writes a block into an extent that this session holds, or whose chunks it has claimed.
    async fn write_extent(
        &self,
        batch: &mut Batch,
        pointer: FatPointer,
        content: &Content<'_>,
    ) -> Result<(), BlockError> {
        let [shape, check] = content.header(pointer, self.table, None);
        let mut words = vec![self.owner.word(), shape, check];
        batch.clear();
        batch.write(pointer.place().word_at(HOLDER_WORD), &words);
        words.clear();
        extend_words(&mut words, content.locator());
        let behind = BODY_WORD + word_count(content.string().len()) as u64;
        batch.write(pointer.place().word_at(behind), &words);
        let mut at = BODY_WORD;
        for part in content.string().chunks(TRANSFER_SIZE_BYTES) {
            words.clear();
            extend_words(&mut words, part);
            batch.write(pointer.place().word_at(at), &words);
            self.endpoint.execute(batch).await?;
            batch.clear();
            at += words.len() as u64;
        }
        Ok(())
    }

    /// Returns the parts that still belong to the list: intact, with the list's pointer as locator.
    /// One round trip, 24 bytes for each part.
    pub(crate) async fn own_parts(
        &self,
        batch: &mut Batch,
        list: FatPointer,
        parts: &[ListPart],
    ) -> Result<Vec<FatPointer>, BlockError> {
        batch.clear();
        let possible = parts.iter().filter(|part| part.is_possible(self.layout));
        let headers = possible.map(|part| (part.place, batch.read(part.place.word_at(1), 2)));
        let headers: Vec<_> = headers.collect();
        self.endpoint.execute(batch).await?;
        let is_part = |shape: &Shape| shape.role == Role::Part && !shape.is_list;
        let headers = headers.into_iter().filter_map(|(place, read)| {
            let header = [batch.words(read)[0], batch.words(read)[1]];
            let shape = Shape::decode(header[0]).filter(is_part)?;
            let string_words = word_count(shape.string_size_bytes);
            let (start, size_bytes) = shape.locator_place(string_words);
            let chunk_count = part_chunk_count(shape.string_size_bytes);
            let part = ListPart {
                place,
                chunk_count: u16::try_from(chunk_count).ok()?,
            };
            let is_possible = size_bytes == 8 && part.is_possible(self.layout);
            is_possible.then_some((place, header, shape, start))
        });
        let headers: Vec<_> = headers.collect();
        batch.clear();
        let reads = headers.into_iter().map(|(place, header, shape, start)| {
            (place, header, shape, batch.read(place.word_at(start), 1))
        });
        let reads: Vec<_> = reads.collect();
        self.endpoint.execute(batch).await?;
        let own = reads
            .into_iter()
            .filter_map(|(place, header, shape, read)| {
                let locator = checked_locator(place, self.table, header, &[], batch.words(read))?;
                let pointer = FatPointer::new(place, Form::Extent, shape.generation);
                (locator == list.word().to_le_bytes()).then_some(pointer)
            });
        Ok(own.collect())
    }
}

// A header is written starting at the holder.
const _: () = assert!(HOLDER_WORD == 0 && SHAPE_WORD == 1 && BODY_WORD == 3);
