//! What one session holds for one table: pieces to write into, and what it has unlinked.

use core::cell::RefCell;
use std::collections::BTreeMap;

use farleaf_region::layout::ChunkIndex;
use farleaf_types::{NodeId, SequenceNumber};

use crate::class::SizeClass;
use crate::error::BlockError;
use crate::pointer::{FatPointer, Form};

/// The blocks that a session holds of a table, per memory node. Borrowed only between awaits, so
/// that many operations of the session can be under way.
///
/// Dropping it leaks nothing but time: the memory node sweeps what a fenced session held (BV8).
/// When the table is dropped, and the session follows to that number, nothing of it is written to
/// any more; [`give_back`](Self::give_back) may be called all the same, and finds nothing.
///
/// A future of a method that is dropped half way may leave pieces behind that the session holds
/// and does not know of, or a chunk that it leases: the caller counts it as broken (`Critical`).
#[derive(Debug, Default)]
pub struct BlockStore {
    pub(crate) state: RefCell<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    shelves: BTreeMap<(NodeId, SizeClass), Shelf>,
    /// Extents that can be written anew, and how many chunks they have.
    spare: Vec<(FatPointer, u64)>,
    /// Unlinked, without a number yet.
    retired: Vec<FatPointer>,
    limbo: Vec<Group>,
    next_group: u64,
    /// It may hold blocks that it does not know of.
    has_lost_track: bool,
}

/// Pieces of one size on one node.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    /// Each as the pointer that it will have.
    pub(crate) pieces: Vec<FatPointer>,
    /// The chunk that pieces were taken from last, if it had more.
    pub(crate) chunk: Option<ChunkIndex>,
    /// So many chunks are leased before the chunk table is read again.
    pub(crate) unread_lease_count: u32,
}

/// BV4: blocks that were unlinked before one number was drawn.
#[derive(Debug)]
struct Group {
    id: u64,
    /// `None`: it is being drawn.
    sequence: Option<SequenceNumber>,
    pointers: Vec<FatPointer>,
}

/// What was put aside waits for nobody.
const ASIDE: SequenceNumber = SequenceNumber(0);

impl Group {
    fn was_unlinked(&self) -> bool {
        self.sequence != Some(ASIDE)
    }
}

/// What of the limbo is over.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    pub(crate) pointers: Vec<FatPointer>,
    /// How many of them were unlinked, and not put aside.
    pub(crate) unlinked_count: usize,
}

/// How much a session holds of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Pieces, and extents, that it can write into.
    pub free_count: usize,
    /// Blocks in limbo: unlinked, and possibly still read by others (BV4); and such that were put
    /// aside, for which nobody has to wait.
    pub limbo_count: usize,
    /// Those of them that were unlinked.
    pub unlinked_count: usize,
}

impl BlockStore {
    /// Nothing held yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A piece of this size on a node, to write a block into; `None`:
    /// [`lease_more`](Self::lease_more) first. Nothing refers to it, and nobody else writes to it.
    pub fn take(&self, node: NodeId, class: SizeClass) -> Option<FatPointer> {
        let mut state = self.state.borrow_mut();
        state.shelves.get_mut(&(node, class))?.pieces.pop()
    }

    /// How many pieces of a size there are to take on a node.
    pub fn piece_count(&self, node: NodeId, class: SizeClass) -> usize {
        let state = self.state.borrow();
        let shelf = state.shelves.get(&(node, class));
        shelf.map_or(0, |shelf| shelf.pieces.len())
    }

    /// Puts a block back to which nothing has ever referred, whatever has been written into it. A
    /// piece can be taken again at once; of what is larger, the next
    /// [`recycle`](Self::recycle) makes use.
    pub fn put_back(&self, pointer: FatPointer) {
        let mut state = self.state.borrow_mut();
        match pointer.form() {
            Form::Piece(_) => state.shelve(pointer),
            Form::List(_) | Form::Extent => state.put_aside(vec![pointer]),
        }
    }

    /// BV4: notes a block that nothing refers to any more: the change that unlinked it has been
    /// committed. It can be written anew when its grace period is over.
    pub fn retire(&self, pointer: FatPointer) {
        self.state.borrow_mut().retired.push(pointer);
    }

    /// How much the session holds.
    pub fn held(&self) -> Held {
        let state = self.state.borrow();
        let pieces = state.shelves.values().map(|shelf| shelf.pieces.len());
        let limbo = state.limbo.iter().map(|group| group.pointers.len());
        let unlinked = state.limbo.iter().filter(|group| group.was_unlinked());
        let unlinked = unlinked.map(|group| group.pointers.len());
        Held {
            free_count: pieces.sum::<usize>() + state.spare.len(),
            limbo_count: limbo.sum::<usize>() + state.retired.len(),
            unlinked_count: unlinked.sum::<usize>() + state.retired.len(),
        }
    }

    /// Whether whole chunks are among what was unlinked and waits (BV4).
    pub fn has_unlinked_chunks(&self) -> bool {
        let state = self.state.borrow();
        let waiting = state.limbo.iter().filter(|group| group.was_unlinked());
        let waiting = waiting.flat_map(|group| &group.pointers);
        let takes_chunks = |pointer: &FatPointer| !matches!(pointer.form(), Form::Piece(_));
        waiting.chain(&state.retired).any(takes_chunks)
    }

    /// Whether the session holds nothing of the table, so that nothing of it is left to be swept.
    /// No longer once it has [lost track](Self::lose_track).
    pub fn is_empty(&self) -> bool {
        self.held() == Held::default() && !self.state.borrow().has_lost_track
    }

    /// BV11: notes that a node was lost (U4) in the middle of a change. Of what that had taken or
    /// unlinked on other nodes, the session may hold blocks that it does not know of.
    pub fn lose_track(&self) {
        self.state.borrow_mut().has_lost_track = true;
    }

    /// Holds what another store of the same session and table has held: its pieces are to take, its
    /// limbo waits on. For who worked with a store of its own and could not give all of it back.
    pub fn take_over(&self, other: Self) {
        self.state.borrow_mut().take_over(other.state.into_inner());
    }

    /// U4: what fails as the very node is lost that it was to be done on is done, as nobody holds
    /// anything there any more; so of many blocks all others have their turn. `None`: it was lost.
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

    /// Holds nothing on a memory node any more, which is lost (U4).
    pub fn forget(&self, node: NodeId) {
        let mut state = self.state.borrow_mut();
        let is_elsewhere = |pointer: &FatPointer| pointer.place().node() != node;
        state.shelves.retain(|(own, _), _| *own != node);
        state.spare.retain(|(pointer, _)| is_elsewhere(pointer));
        state.retired.retain(is_elsewhere);
        for group in &mut state.limbo {
            group.pointers.retain(is_elsewhere);
        }
    }
}

impl State {
    pub(crate) fn shelf(&mut self, node: NodeId, class: SizeClass) -> &mut Shelf {
        self.shelves.entry((node, class)).or_default()
    }

    /// A piece that can be written into, as the pointer that it will have.
    pub(crate) fn shelve(&mut self, pointer: FatPointer) {
        let Form::Piece(class) = pointer.form() else {
            unreachable!("only pieces lie on shelves")
        };
        let shelf = self.shelf(pointer.place().node(), class);
        shelf.pieces.push(pointer);
    }

    /// Pieces beyond so many of each size, or all that there are, to give them back: of each size,
    /// those that came first.
    pub(crate) fn take_pieces_beyond(
        &mut self,
        count: impl Fn(SizeClass) -> usize,
    ) -> Vec<FatPointer> {
        let mut taken = Vec::new();
        for ((_, class), shelf) in &mut self.shelves {
            let excess = shelf.pieces.len().saturating_sub(count(*class));
            taken.extend(shelf.pieces.drain(..excess));
        }
        taken
    }

    /// All pieces but for those of one size.
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

    /// A spare extent of just so many chunks.
    pub(crate) fn take_spare(&mut self, node: NodeId, chunk_count: u64) -> Option<FatPointer> {
        let is_it = |(pointer, count): &(FatPointer, u64)| {
            pointer.place().node() == node && *count == chunk_count
        };
        let place = self.spare.iter().position(is_it)?;
        Some(self.spare.swap_remove(place).0)
    }

    /// Any of them.
    pub(crate) fn take_any_spare(&mut self) -> Option<FatPointer> {
        self.spare.pop().map(|(pointer, _)| pointer)
    }

    fn take_over(&mut self, other: Self) {
        for (place, shelf) in other.shelves {
            let own = self.shelves.entry(place).or_default();
            own.pieces.extend(shelf.pieces);
            own.chunk = own.chunk.or(shelf.chunk);
        }
        self.spare.extend(other.spare);
        self.retired.extend(other.retired);
        self.has_lost_track |= other.has_lost_track;
        for group in other.limbo {
            self.add_group(group.pointers, group.sequence);
        }
    }

    /// Blocks that nobody else knows of, or has to wait for any more, which are not free yet.
    pub(crate) fn put_aside(&mut self, pointers: Vec<FatPointer>) {
        if !pointers.is_empty() {
            self.add_group(pointers, Some(ASIDE));
        }
    }

    fn add_group(&mut self, pointers: Vec<FatPointer>, sequence: Option<SequenceNumber>) {
        self.limbo.push(Group {
            id: self.next_group,
            sequence,
            pointers,
        });
        self.next_group += 1;
    }

    /// Whether anything is in limbo.
    pub(crate) fn has_limbo(&self) -> bool {
        !self.retired.is_empty() || !self.limbo.is_empty()
    }

    /// The groups that need a number which is drawn from now on: what has been retired so far, and
    /// what a draw that was cut off was for.
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

    /// BV4: takes out what can be written anew, as all sessions have published this number.
    pub(crate) fn take_passed(&mut self, passed: SequenceNumber) -> Passed {
        let is_over = |group: &mut Group| group.sequence.is_some_and(|sequence| sequence <= passed);
        let mut over = Passed::default();
        for group in self.limbo.extract_if(.., is_over) {
            if group.was_unlinked() {
                over.unlinked_count += group.pointers.len();
            }
            over.pointers.extend(group.pointers);
        }
        over
    }
}
