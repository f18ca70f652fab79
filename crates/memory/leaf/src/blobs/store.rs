//! Blocks that one session holds for one table: pieces to write into, and unlinked blocks.

use core::cell::RefCell;
use std::collections::BTreeMap;

use farleaf_base::{NodeId, SequenceNumber};
use farleaf_pool::layout::ChunkIndex;

use crate::blobs::class::SizeClass;
use crate::blobs::error::BlockError;
use crate::blobs::pointer::{FatPointer, Form};

/// Blocks of a table that a session holds, per memory node. Borrowed only between awaits, so that
/// many operations of the session can run concurrently.
///
/// Dropping it leaks nothing permanently: the memory node sweeps what a fenced session held. After
/// the table is dropped and the session has followed, nothing of the table is written to any more.
/// [`give_back`](Self::give_back) may still be called, and finds nothing.
///
/// If a future of a method is dropped halfway, the session may hold unknown pieces or lease a
/// chunk: the caller counts the session as broken (`Critical`).
#[derive(Debug, Default)]
pub struct BlockStore {
    pub(crate) state: RefCell<StoreState>,
}

#[derive(Debug, Default)]
pub(crate) struct StoreState {
    free_pieces: BTreeMap<(NodeId, SizeClass), ClassPieces>,
    /// Extents that can be reused, and their numbers of chunks.
    spare: Vec<(FatPointer, u64)>,
    /// Unlinked blocks without a sequence number yet.
    retired: Vec<FatPointer>,
    limbo: Vec<LimboGroup>,
    next_group: u64,
    /// Whether the session may hold blocks that it does not know of.
    may_hold_unknown: bool,
}

/// Pieces of one size on one node.
#[derive(Debug, Default)]
pub(crate) struct ClassPieces {
    /// Pieces, each as its future pointer.
    pub(crate) pieces: Vec<FatPointer>,
    /// Chunk from which pieces were last taken, if it has more.
    pub(crate) chunk: Option<ChunkIndex>,
    /// Number of chunks to lease before the chunk table is read again.
    pub(crate) unread_lease_count: u32,
}

/// Blocks that were unlinked before the same number was drawn.
#[derive(Debug)]
struct LimboGroup {
    id: u64,
    /// Sequence number; `None` while it is being drawn.
    sequence: Option<SequenceNumber>,
    pointers: Vec<FatPointer>,
}

/// Sequence number of blocks that wait for no session.
const NO_WAIT_SEQUENCE: SequenceNumber = SequenceNumber(0);

impl LimboGroup {
    fn was_unlinked(&self) -> bool {
        self.sequence != Some(NO_WAIT_SEQUENCE)
    }
}

/// Blocks whose grace period is over.
#[derive(Debug, Default)]
pub(crate) struct PassedBlocks {
    pub(crate) pointers: Vec<FatPointer>,
    /// Number of these blocks that were unlinked, rather than set aside.
    pub(crate) unlinked_count: usize,
}

/// Amount that a session holds of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreHoldings {
    /// Number of pieces and extents that the session can write into.
    pub free_count: usize,
    /// Number of blocks in limbo: unlinked blocks that others may still read, and blocks that were
    /// set aside and wait for no session.
    pub limbo_count: usize,
    /// Number of blocks in limbo that were unlinked.
    pub unlinked_count: usize,
}

impl BlockStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a piece of this size on a node, to write a block into. Returns `None` if there is
    /// none: call [`lease_more`](Self::lease_more) first. Nothing refers to the piece, and no other
    /// session writes to it.
    pub fn take(&self, node: NodeId, class: SizeClass) -> Option<FatPointer> {
        let mut state = self.state.borrow_mut();
        state.free_pieces.get_mut(&(node, class))?.pieces.pop()
    }

    /// Returns the number of free pieces of a size on a node.
    pub fn piece_count(&self, node: NodeId, class: SizeClass) -> usize {
        let state = self.state.borrow();
        let class_pieces = state.free_pieces.get(&(node, class));
        class_pieces.map_or(0, |class_pieces| class_pieces.pieces.len())
    }

    /// Puts back a block that nothing has ever referred to, whatever was written into it. A piece
    /// can be taken again at once; the next [`recycle`](Self::recycle) reuses larger blocks.
    pub fn put_back(&self, pointer: FatPointer) {
        let mut state = self.state.borrow_mut();
        match pointer.form() {
            Form::Piece(_) => state.add_free_piece(pointer),
            Form::List(_) | Form::Extent => state.set_aside(vec![pointer]),
        }
    }

    /// Notes a block that nothing refers to any more, after the change that unlinked it was
    /// committed. It can be reused after its grace period.
    pub fn retire(&self, pointer: FatPointer) {
        self.state.borrow_mut().retired.push(pointer);
    }

    /// Returns how much the session holds.
    pub fn held(&self) -> StoreHoldings {
        let state = self.state.borrow();
        let pieces = state
            .free_pieces
            .values()
            .map(|class_pieces| class_pieces.pieces.len());
        let limbo = state.limbo.iter().map(|group| group.pointers.len());
        let unlinked = state.limbo.iter().filter(|group| group.was_unlinked());
        let unlinked = unlinked.map(|group| group.pointers.len());
        StoreHoldings {
            free_count: pieces.sum::<usize>() + state.spare.len(),
            limbo_count: limbo.sum::<usize>() + state.retired.len(),
            unlinked_count: unlinked.sum::<usize>() + state.retired.len(),
        }
    }

    /// Returns whether unlinked blocks that wait include whole chunks.
    pub fn has_unlinked_chunks(&self) -> bool {
        let state = self.state.borrow();
        let waiting = state.limbo.iter().filter(|group| group.was_unlinked());
        let waiting = waiting.flat_map(|group| &group.pointers);
        let takes_chunks = |pointer: &FatPointer| !matches!(pointer.form(), Form::Piece(_));
        waiting.chain(&state.retired).any(takes_chunks)
    }

    /// Returns whether the session holds nothing of the table, so that no sweep is needed. Always
    /// false after the session has [lost track](Self::note_unknown_blocks).
    pub fn is_empty(&self) -> bool {
        self.held() == StoreHoldings::default() && !self.state.borrow().may_hold_unknown
    }

    /// Notes that a node was lost during a change. The session may then hold unknown blocks that
    /// the change took or unlinked on other nodes.
    pub fn note_unknown_blocks(&self) {
        self.state.borrow_mut().may_hold_unknown = true;
    }

    /// Takes over the contents of another store of the same session and table: its free pieces, and
    /// its limbo. For users of a separate store who could not give back all of it.
    pub fn take_over(&self, other: Self) {
        self.state.borrow_mut().take_over(other.state.into_inner());
    }

    /// Returns `None` instead of an error if the node of the request was lost: nothing is held
    /// there any more, so the request counts as done, and other blocks are processed.
    pub(crate) fn unless_lost<R>(
        &self,
        node: NodeId,
        done: Result<R, BlockError>,
    ) -> Result<Option<R>, BlockError> {
        match done {
            Err(error) if error.lost_node() == Some(node) => {
                self.forget(node);
                Ok(None)
            }
            done => done.map(Some),
        }
    }

    /// Drops everything held on a lost memory node.
    pub fn forget(&self, node: NodeId) {
        let mut state = self.state.borrow_mut();
        let is_elsewhere = |pointer: &FatPointer| pointer.place().node() != node;
        state.free_pieces.retain(|(own, _), _| *own != node);
        state.spare.retain(|(pointer, _)| is_elsewhere(pointer));
        state.retired.retain(is_elsewhere);
        for group in &mut state.limbo {
            group.pointers.retain(is_elsewhere);
        }
    }
}

impl StoreState {
    pub(crate) fn class_pieces(&mut self, node: NodeId, class: SizeClass) -> &mut ClassPieces {
        self.free_pieces.entry((node, class)).or_default()
    }

    /// Adds a free piece, as its future pointer.
    pub(crate) fn add_free_piece(&mut self, pointer: FatPointer) {
        let Form::Piece(class) = pointer.form() else {
            unreachable!("only pieces lie on shelves")
        };
        let class_pieces = self.class_pieces(pointer.place().node(), class);
        class_pieces.pieces.push(pointer);
    }

    /// Removes and returns the oldest pieces of each size that exceed `count`, to give them back.
    pub(crate) fn take_pieces_beyond(
        &mut self,
        count: impl Fn(SizeClass) -> usize,
    ) -> Vec<FatPointer> {
        let mut taken = Vec::new();
        for ((_, class), class_pieces) in &mut self.free_pieces {
            let excess = class_pieces.pieces.len().saturating_sub(count(*class));
            taken.extend(class_pieces.pieces.drain(..excess));
        }
        taken
    }

    /// Removes and returns all pieces except those of one size.
    pub(crate) fn take_pieces_but_for(&mut self, class: Option<SizeClass>) -> Vec<FatPointer> {
        let count = |other| {
            if Some(other) == class { usize::MAX } else { 0 }
        };
        self.take_pieces_beyond(count)
    }

    pub(crate) fn keep_spare(&mut self, pointer: FatPointer, chunk_count: u64) {
        self.spare.push((pointer, chunk_count));
    }

    pub(crate) fn spare_chunk_count(&self) -> u64 {
        self.spare.iter().map(|(_, chunk_count)| chunk_count).sum()
    }

    /// Takes a spare extent of exactly this many chunks.
    pub(crate) fn take_spare(&mut self, node: NodeId, chunk_count: u64) -> Option<FatPointer> {
        let is_it = |(pointer, count): &(FatPointer, u64)| {
            pointer.place().node() == node && *count == chunk_count
        };
        let place = self.spare.iter().position(is_it)?;
        Some(self.spare.swap_remove(place).0)
    }

    /// Takes any spare extent.
    pub(crate) fn take_any_spare(&mut self) -> Option<FatPointer> {
        self.spare.pop().map(|(pointer, _)| pointer)
    }

    fn take_over(&mut self, other: Self) {
        for (place, class_pieces) in other.free_pieces {
            let own = self.free_pieces.entry(place).or_default();
            own.pieces.extend(class_pieces.pieces);
            own.chunk = own.chunk.or(class_pieces.chunk);
        }
        self.spare.extend(other.spare);
        self.retired.extend(other.retired);
        self.may_hold_unknown |= other.may_hold_unknown;
        for group in other.limbo {
            self.add_group(group.pointers, group.sequence);
        }
    }

    /// Sets aside blocks that are not free yet, although no other session knows of them or may
    /// still read them.
    pub(crate) fn set_aside(&mut self, pointers: Vec<FatPointer>) {
        if !pointers.is_empty() {
            self.add_group(pointers, Some(NO_WAIT_SEQUENCE));
        }
    }

    fn add_group(&mut self, pointers: Vec<FatPointer>, sequence: Option<SequenceNumber>) {
        self.limbo.push(LimboGroup {
            id: self.next_group,
            sequence,
            pointers,
        });
        self.next_group += 1;
    }

    /// Returns whether anything is in limbo.
    pub(crate) fn has_limbo(&self) -> bool {
        !self.retired.is_empty() || !self.limbo.is_empty()
    }

    /// Returns the groups that need a number drawn from now on: blocks retired so far, and groups
    /// of an interrupted draw.
    pub(crate) fn unnumbered(&mut self) -> Vec<u64> {
        if !self.retired.is_empty() {
            let retired = core::mem::take(&mut self.retired);
            self.add_group(retired, None);
        }
        let open = self.limbo.iter().filter(|group| group.sequence.is_none());
        open.map(|group| group.id).collect()
    }

    pub(crate) fn number(&mut self, groups: &[u64], sequence: SequenceNumber) {
        for group in &mut self.limbo {
            if group.sequence.is_none() && groups.contains(&group.id) {
                group.sequence = Some(sequence);
            }
        }
    }

    /// Removes and returns the blocks that can be reused after all sessions have published this
    /// number.
    pub(crate) fn take_passed(&mut self, passed: SequenceNumber) -> PassedBlocks {
        let is_over =
            |group: &mut LimboGroup| group.sequence.is_some_and(|sequence| sequence <= passed);
        let mut over = PassedBlocks::default();
        for group in self.limbo.extract_if(.., is_over) {
            if group.was_unlinked() {
                over.unlinked_count += group.pointers.len();
            }
            over.pointers.extend(group.pointers);
        }
        over
    }
}
