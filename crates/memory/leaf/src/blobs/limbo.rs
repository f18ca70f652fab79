//! Blocks that were unlinked, until they are reused.

use farleaf_base::SequenceNumber;
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_pool::allocation::{ChunkRange, FreeOutcome};

use crate::blobs::access::BlockAccess;
use crate::blobs::error::BlockError;
use crate::blobs::grace;
use crate::blobs::header::{HOLDER_WORD, SHAPE_WORD, no_shape_word};
use crate::blobs::pointer::{FatPointer, Form};
use crate::blobs::store::BlockStore;

/// Chunks of extents that a session keeps for reuse: 4 MiB. Further extents are zeroed and freed.
const SPARE_CHUNK_COUNT_MAX: u64 = 64;

/// Result of recycling a session's limbo.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recycled {
    /// Number of unlinked blocks whose grace period was over.
    pub passed_count: usize,
    /// Number of blocks that still wait, for any reason.
    pub waiting_count: usize,
}

impl BlockStore {
    /// Draws a number for the blocks retired since the last call, and reuses blocks that every
    /// unfenced session, including this one, has passed. Within an operation, no block passes that
    /// was retired after it began. Call this when limbo is large or pieces are short.
    ///
    /// Costs nothing if limbo is empty, else one round trip: an atomic, and 65,472 bytes read. In
    /// addition:
    ///
    /// - each extent beyond 4 MiB: the cost of zeroing it;
    /// - each list: two round trips, and one for its parts;
    /// - each chunk to which surplus pieces are returned: two round trips.
    ///
    /// # Errors
    /// The fabric failed: then the session may hold blocks or a chunk that it does not know of, and
    /// counts as broken.
    pub async fn recycle<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
    ) -> Result<Recycled, BlockError> {
        if !self.state.borrow().has_limbo() {
            return Ok(Recycled::default());
        }
        let passed = self.pass(&mut access.control_batch(), access).await?;
        let over = self.state.borrow_mut().take_passed(passed);
        for pointer in over.pointers {
            let used = self.reuse(access, pointer).await;
            self.unless_lost(pointer.place().node(), used)?;
        }
        self.give_back_excess(access).await?;
        Ok(Recycled {
            passed_count: over.unlinked_count,
            waiting_count: self.held().limbo_count,
        })
    }

    /// Draws the number, and reads the numbers that all sessions have published.
    async fn pass<E: Endpoint>(
        &self,
        batch: &mut Batch,
        access: &BlockAccess<'_, E>,
    ) -> Result<SequenceNumber, BlockError> {
        // Only blocks that are in limbo before the number is drawn wait for it.
        let open = self.state.borrow_mut().unnumbered();
        let drawn = (!open.is_empty()).then(|| batch.fetch_add(access.layout.sequence(), 1));
        let sessions = grace::post(batch, access.layout);
        let is_ignored = access.endpoint.skips_check(ProtocolCheck::BlockGraceIsOver);
        access.endpoint.execute(batch).await?;
        if let Some(drawn) = drawn {
            let sequence = SequenceNumber(batch.previous(drawn) + 1);
            self.state.borrow_mut().number(&open, sequence);
        }
        if is_ignored {
            return Ok(SequenceNumber(u64::MAX));
        }
        Ok(sessions.alive(batch).passed(None))
    }

    async fn reuse<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
        pointer: FatPointer,
    ) -> Result<(), BlockError> {
        match pointer.form() {
            form @ Form::Piece(_) => self.state.borrow_mut().add_free_piece(pointer.next(form)),
            Form::Extent => self.keep_extent(access, pointer).await?,
            Form::List(class) => {
                let parts = access
                    .hold_parts(&mut access.control_batch(), pointer)
                    .await?;
                let piece = pointer.next(Form::Piece(class));
                self.state.borrow_mut().add_free_piece(piece);
                for part in parts {
                    let freed = self.free_extent(access, part).await;
                    self.unless_lost(part.place().node(), freed)?;
                }
            }
        }
        Ok(())
    }

    /// Keeps an extent for reuse, or frees it.
    async fn keep_extent<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
        pointer: FatPointer,
    ) -> Result<(), BlockError> {
        let Some(range) = access.extent(pointer).await? else {
            return Ok(());
        };
        {
            let mut state = self.state.borrow_mut();
            if state.spare_chunk_count() + range.count <= SPARE_CHUNK_COUNT_MAX {
                state.keep_spare(pointer.next(Form::Extent), range.count);
                return Ok(());
            }
        }
        self.free_extent(access, pointer).await
    }

    /// Frees the extents kept for reuse, because there is no other free space. Returns false if
    /// there were none.
    pub(crate) async fn free_spares<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
    ) -> Result<bool, BlockError> {
        let mut had_some = false;
        loop {
            let spare = self.state.borrow_mut().take_any_spare();
            let Some(pointer) = spare else {
                return Ok(had_some);
            };
            had_some = true;
            let freed = self.free_extent(access, pointer).await;
            self.unless_lost(pointer.place().node(), freed)?;
        }
    }

    /// Frees an extent that this session holds and no other session knows of; later, if another
    /// session leases one of its chunks now.
    pub(crate) async fn free_extent<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
        pointer: FatPointer,
    ) -> Result<(), BlockError> {
        if access.free_extent(pointer).await? == FreeOutcome::Busy {
            self.state.borrow_mut().set_aside(vec![pointer]);
        }
        Ok(())
    }
}

impl<E: Endpoint> BlockAccess<'_, E> {
    /// Returns the chunks of an extent; `None` if it was freed with its table.
    pub(crate) async fn extent(
        &self,
        pointer: FatPointer,
    ) -> Result<Option<ChunkRange>, BlockError> {
        let Some(first) = self.first_chunk(pointer.place()) else {
            return Ok(None);
        };
        let allocator = self.allocator(first.node());
        let count = allocator.extent_chunk_count(first, self.table).await?;
        Ok((count > 0).then_some(ChunkRange { first, count }))
    }

    /// Frees an extent that this session holds.
    pub(crate) async fn free_extent(&self, pointer: FatPointer) -> Result<FreeOutcome, BlockError> {
        let Some(range) = self.extent(pointer).await? else {
            return Ok(FreeOutcome::Gone);
        };
        let mut batch = self.control_batch();
        let holder = batch.read(pointer.place().word_at(HOLDER_WORD), 1);
        self.endpoint.execute(&mut batch).await?;
        if batch.words(holder)[0] != self.owner.word() {
            return Ok(FreeOutcome::Gone);
        }
        let allocator = self.allocator(range.first.node());
        Ok(allocator.free_extent(range, 0, self.table).await?)
    }

    /// Makes this session the holder of each part of a list that it holds, and then invalidates the
    /// list: from then on each part is a separate block. Parts that no longer belong to the list
    /// are skipped.
    pub(crate) async fn hold_parts(
        &self,
        batch: &mut Batch,
        list: FatPointer,
    ) -> Result<Vec<FatPointer>, BlockError> {
        let Some(parts) = self.list_parts(batch, list).await? else {
            return Ok(Vec::new());
        };
        let parts = self.own_parts(batch, list, &parts).await?;
        batch.clear();
        for part in &parts {
            batch.write_word(part.place().word_at(HOLDER_WORD), self.owner.word());
        }
        // Written after the parts' holders (FABRIC-2): the list must name a part until its holder
        // is changed.
        let none = no_shape_word(list.generation());
        batch.write_word(list.place().word_at(SHAPE_WORD), none);
        self.endpoint.execute(batch).await?;
        Ok(parts)
    }
}
