//! Verbs on one value block of a table, for one session.

use farleaf_base::{NodeId, OwnerWord, RemoteAddr, TableId};
use farleaf_fabric::{Batch, BatchError, CountedBatch, Endpoint, OperationKind, ProtocolCheck};
use farleaf_pool::PoolLayout;
use farleaf_pool::allocation::ChunkAllocator;
use farleaf_pool::layout::ChunkIndex;

use crate::blobs::content::Content;
use crate::blobs::error::BlockError;
use crate::blobs::header::{BODY_WORD, HEADER_SIZE_WORDS, HOLDER_WORD, Shape, checked_locator};
use crate::blobs::list::{self, CHUNK_SIZE_WORDS, ListPart};
use crate::blobs::pointer::{FatPointer, Form, Site};
use crate::blobs::words::word_count;

/// Context for operations on the value blocks of one table by one session.
#[derive(Debug)]
pub struct BlockAccess<'a, E> {
    /// Endpoint of the session.
    pub endpoint: &'a E,
    /// Layout of the pool.
    pub layout: &'a PoolLayout,
    /// Table of the blocks.
    pub table: TableId,
    /// Owner word of the session.
    pub owner: OwnerWord,
}

impl<E> Clone for BlockAccess<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for BlockAccess<'_, E> {}

/// Verified header of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VerifiedBlock {
    pub(crate) shape: Shape,
    pub(crate) locator: Vec<u8>,
    /// Parts, if the block is a list.
    pub(crate) parts: Vec<ListPart>,
}

impl<'a, E: Endpoint> BlockAccess<'a, E> {
    /// Returns the place that a pointer leads to.
    ///
    /// # Errors
    /// No block, or none with a string of this size, can be there.
    pub(crate) fn site(&self, pointer: FatPointer, size_bytes: u32) -> Result<Site, BlockError> {
        let word_count = HEADER_SIZE_WORDS + word_count(size_bytes as usize);
        let has_space = match pointer.form() {
            Form::Piece(class) => word_count as u64 <= class.size_words(),
            Form::List(_) => size_bytes as usize <= crate::blobs::STRING_SIZE_BYTES_MAX,
            Form::Extent => {
                let chunk_count = (word_count as u64).div_ceil(CHUNK_SIZE_WORDS);
                u16::try_from(chunk_count).is_ok_and(|chunk_count| {
                    let place = pointer.place();
                    ListPart { place, chunk_count }.is_possible(self.layout)
                })
            }
        };
        let site = Site::of(self.layout, pointer);
        site.filter(|_| has_space).ok_or(BlockError::Impossible {
            table: self.table,
            pointer,
            size_bytes,
        })
    }

    /// Posts the WRITE of a block into a piece that this session holds
    /// ([`BlockStore::take`](crate::blobs::BlockStore::take)). Must precede the reference to it, in
    /// the same batch if both are on the same node. One verb for all words of the block but the
    /// holder.
    ///
    /// # Panics
    ///
    /// If the pointer's form is not the one that the contents need.
    pub fn post_write(&self, batch: &mut Batch, pointer: FatPointer, content: &Content<'_>) {
        let Form::Piece(class) = pointer.form() else {
            panic!("{pointer} is no piece: what takes more is written ahead");
        };
        assert!(
            content.block_word_count() <= class.size_words(),
            "a block of {} words does not fit at {pointer}",
            content.block_word_count()
        );
        let (at, words) = content.encode(pointer, self.table, None);
        batch.write(at, &words);
    }

    /// Posts the WRITE of this session's owner word into a block that is about to be unlinked. Must
    /// precede the page's switching word, in the same batch if both are on the same node. One verb
    /// of one word, for any form of block.
    ///
    /// # Errors
    /// No block can be there; nothing has been posted.
    pub fn post_unlink(&self, batch: &mut Batch, pointer: FatPointer) -> Result<(), BlockError> {
        self.site(pointer, 0)?;
        if !self
            .endpoint
            .skips_check(ProtocolCheck::UnlinkedBlockIsHeld)
        {
            batch.write_word(pointer.place().word_at(HOLDER_WORD), self.owner.word());
        }
        Ok(())
    }

    /// Returns a batch that is counted separately from operations.
    pub(crate) fn control_batch(&self) -> CountedBatch<'a, E> {
        CountedBatch::new(self.endpoint, OperationKind::Control)
    }

    pub(crate) fn allocator(&self, node: NodeId) -> ChunkAllocator<'a, E> {
        ChunkAllocator::new(self.endpoint, self.layout, self.owner).on(node)
    }

    /// Reads and verifies the header of the block at a place with space for this many words; `None`
    /// if it is not intact. Two round trips: header, then list and locator.
    pub(crate) async fn look(
        &self,
        batch: &mut Batch,
        place: RemoteAddr,
        space_word_count: u64,
    ) -> Result<Option<VerifiedBlock>, BatchError> {
        batch.clear();
        let read = batch.read(place.word_at(0), HEADER_SIZE_WORDS + 1);
        self.endpoint.execute(batch).await?;
        let words = batch.words(read);
        let (header, first) = ([words[1], words[2]], words[HEADER_SIZE_WORDS]);
        let Some(shape) = Shape::decode(header[0]) else {
            return Ok(None);
        };
        let body_word_count = if shape.is_list {
            list::body_word_count(first)
        } else {
            Some(word_count(shape.string_size_bytes))
        };
        let Some(body_word_count) = body_word_count else {
            return Ok(None);
        };
        let (start, size_bytes) = shape.locator_place(body_word_count);
        let end = (start + word_count(size_bytes) as u64).max(BODY_WORD + body_word_count as u64);
        if end > space_word_count {
            return Ok(None);
        }
        batch.clear();
        let listed = if shape.is_list { body_word_count } else { 0 };
        let body = batch.read(place.word_at(BODY_WORD), listed);
        let locator = batch.read(place.word_at(start), word_count(size_bytes));
        self.endpoint.execute(batch).await?;
        let body = batch.words(body);
        let Some(locator) = checked_locator(place, self.table, header, body, batch.words(locator))
        else {
            return Ok(None);
        };
        let parts = if shape.is_list {
            list::decode(body, shape.string_size_bytes)
        } else {
            Some(Vec::new())
        };
        Ok(parts.map(|parts| VerifiedBlock {
            shape,
            locator,
            parts,
        }))
    }

    /// Returns the parts of the list at a pointer, if there is such a list.
    pub(crate) async fn list_parts(
        &self,
        batch: &mut Batch,
        pointer: FatPointer,
    ) -> Result<Option<Vec<ListPart>>, BatchError> {
        let Form::List(class) = pointer.form() else {
            return Ok(None);
        };
        if Site::of(self.layout, pointer).is_none() {
            return Ok(None);
        }
        let view = self
            .look(batch, pointer.place(), class.size_words())
            .await?;
        Ok(view.and_then(|view| {
            let is_it = view.shape.is_list && view.shape.generation == pointer.generation();
            is_it.then_some(view.parts)
        }))
    }

    /// Returns the chunk at whose start an extent begins.
    pub(crate) fn first_chunk(&self, place: RemoteAddr) -> Option<ChunkIndex> {
        let chunk = self.layout.chunk_of(place)?;
        (self.layout.chunk_start(chunk) == place).then_some(chunk)
    }
}
