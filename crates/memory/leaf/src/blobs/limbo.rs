//! Blocks that were unlinked, until they are written anew (BV4).

use farleaf_fabric::{Batch, Endpoint, OperationKind, ProtocolCheck};
use farleaf_region::allocation::{ChunkRange, Freed};
use farleaf_types::SequenceNumber;

use crate::access::BlockAccess;
use crate::error::BlockError;
use crate::grace;
use crate::header::{HOLDER_WORD, SHAPE_WORD, no_shape_word};
use crate::pointer::{FatPointer, Form};
use crate::store::BlockStore;

/// Chunks that a session keeps in extents to write anew: 4 MiB. What is beyond is zeroed and free.
const SPARE_CHUNK_COUNT_MAX: u64 = 64;

/// What a session's limbo came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recycled {
    /// Blocks that were unlinked and whose grace period was over.
    pub passed_count: usize,
    /// Blocks that still wait, for whatever.
    pub waiting_count: usize,
}

impl BlockStore {
    /// BV4: draws a number for what has been retired since the last call, and makes use of what
    /// every session that is not fenced has passed, this one among them: within an operation,
    /// nothing passes that was retired after it began. To be called when limbo is large or pieces
    /// are short.
    ///
    /// Nothing if limbo is empty; else one round trip: an atomic, and 65,472 bytes read. Besides,
    /// for each extent beyond 4 MiB, what zeroing it takes (A4); for each list two round trips
    /// more, and one for its parts; two for each chunk that pieces go back to which are more than
    /// the session keeps.
    ///
    /// # Errors
    /// The fabric failed: then the session may hold blocks, or a chunk, that it does not know of,
    /// and counts as broken.
    pub async fn recycle<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
    ) -> Result<Recycled, BlockError> {
        if !self.state.borrow().has_limbo() {
            return Ok(Recycled::default());
        }
        let mut batch = Batch::new();
        let passed = self.pass(&mut batch, access).await;
        let counters = access.endpoint.counters();
        counters.record(OperationKind::Control, &batch.take_cost());
        let over = self.state.borrow_mut().take_passed(passed?);
        for pointer in over.pointers {
            let used = self.use_again(access, pointer).await;
            self.unless_lost(pointer.place().node(), used)?;
        }
        self.give_back_excess(access).await?;
        Ok(Recycled {
            passed_count: over.unlinked_count,
            waiting_count: self.held().limbo_count,
        })
    }

    /// Draws the number, and reads what all have published.
    async fn pass<E: Endpoint>(
        &self,
        batch: &mut Batch,
        access: &BlockAccess<'_, E>,
    ) -> Result<SequenceNumber, BlockError> {
        // Only what is in limbo before the number is drawn waits for it.
        let open = self.state.borrow_mut().unnumbered();
        let drawn = (!open.is_empty()).then(|| batch.fetch_add(access.layout.sequence(), 1));
        let sessions = grace::post(batch, access.layout);
        let is_ignored = access.endpoint.leaves_out(ProtocolCheck::BlockGraceIsOver);
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

    async fn use_again<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
        pointer: FatPointer,
    ) -> Result<(), BlockError> {
        match pointer.form() {
            form @ Form::Piece(_) => self.state.borrow_mut().shelve(pointer.next(form)),
            Form::Extent => self.keep_extent(access, pointer).await?,
            Form::List(class) => {
                let parts = access
                    .hold_parts(&mut access.control_batch(), pointer)
                    .await?;
                let piece = pointer.next(Form::Piece(class));
                self.state.borrow_mut().shelve(piece);
                for part in parts {
                    let freed = self.free_extent(access, part).await;
                    self.unless_lost(part.place().node(), freed)?;
                }
            }
        }
        Ok(())
    }

    /// Keeps an extent to write it anew, or frees it.
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

    /// Frees the extents that this session has kept to write them anew, as there is no other room.
    /// False: it had none.
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

    /// Frees an extent that this session holds and nobody else knows of; later, if somebody has
    /// one of its chunks just now.
    pub(crate) async fn free_extent<E: Endpoint>(
        &self,
        access: &BlockAccess<'_, E>,
        pointer: FatPointer,
    ) -> Result<(), BlockError> {
        if access.free_extent(pointer).await? == Freed::Busy {
            self.state.borrow_mut().put_aside(vec![pointer]);
        }
        Ok(())
    }
}

impl<E: Endpoint> BlockAccess<'_, E> {
    /// The chunks of an extent; `None`: it is there no more, as its table was dropped.
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

    /// Frees an extent that this session holds (BV7).
    pub(crate) async fn free_extent(&self, pointer: FatPointer) -> Result<Freed, BlockError> {
        let Some(range) = self.extent(pointer).await? else {
            return Ok(Freed::Gone);
        };
        let mut batch = self.control_batch();
        let holder = batch.read(pointer.place().word_at(HOLDER_WORD), 1);
        self.endpoint.execute(&mut batch).await?;
        if batch.words(holder)[0] != self.owner.word() {
            return Ok(Freed::Gone);
        }
        let allocator = self.allocator(range.first.node());
        Ok(allocator.free_extent(range, 0, self.table).await?)
    }

    /// BV9: makes this session the holder of each part of a list that it holds, and the list no
    /// block any more: from then on each part is one by itself. Parts that are the list's no more
    /// are left out.
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
        // Behind them (F2): as long as a part's holder may be another, the list names it.
        let none = no_shape_word(list.generation());
        batch.write_word(list.place().word_at(SHAPE_WORD), none);
        self.endpoint.execute(batch).await?;
        Ok(parts)
    }
}
