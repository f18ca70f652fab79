//! R2 and R3: step by step from right to left into a new run.

use farleaf_fabric::{Batch, Endpoint, ProtocolPhase};
use farleaf_leaf::moving::Source;
use farleaf_leaf::{Contradiction, Critical, LeafImage};
use farleaf_region::PoolLayout;
use farleaf_region::allocation::ChunkRange;
use farleaf_region::catalog;
use farleaf_region::layout::CHUNK_SIZE_BLOCKS;
use farleaf_types::{OwnerWord, RemoteAddr};

use super::Retraining;
use super::gather::{Pending, chain, contradiction, is_lost};
use super::redirect::searcher;
use super::step::{lock_left, take_over};
use crate::{Index, IndexError};

/// Room for a run, filled from the right.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunPlace {
    start: RemoteAddr,
    stride_blocks: u64,
    /// Places that are free yet, the left ones.
    free_count: u64,
    /// So many of them stay so.
    kept_count: u64,
}

impl RunPlace {
    pub(super) fn new(layout: &PoolLayout, range: ChunkRange, stride_blocks: u64) -> Self {
        Self {
            start: layout.chunk_start(range.first),
            stride_blocks,
            free_count: range.count * CHUNK_SIZE_BLOCKS / stride_blocks,
            kept_count: 0,
        }
    }

    /// The same, of which so many blocks are kept for synonym leaf tables: half of it at the most.
    pub(super) fn keeping(self, block_count: u64) -> Self {
        let kept_count = block_count.div_ceil(self.stride_blocks);
        Self {
            kept_count: kept_count.min(self.free_count / 2),
            ..self
        }
    }

    fn take(&mut self) -> Option<RemoteAddr> {
        if self.free_count <= self.kept_count {
            return None;
        }
        self.free_count -= 1;
        Some(
            self.start
                .offset_blocks(self.free_count * self.stride_blocks),
        )
    }
}

/// A leaf of the new run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    pub(super) addr: RemoteAddr,
    /// Its fences, as they were when it was made.
    pub(super) low: u64,
    pub(super) high: u64,
    pub(super) record_count: usize,
    /// The first and the last key that it had then.
    pub(super) keys: Option<(u64, u64)>,
}

impl Made {
    fn of(addr: RemoteAddr, image: LeafImage<'_>) -> Self {
        Self {
            addr,
            low: image.low(),
            high: image.high(),
            record_count: image.record_count(),
            keys: image.key_range(),
        }
    }

    /// Whether `right` begins where this leaf ends. If not, a lost leaf was between them (R9).
    pub(super) fn is_left_of(&self, right: &Self) -> bool {
        self.high.checked_add(1) == Some(right.low)
    }
}

/// What has been moved.
#[derive(Debug, Default)]
pub(super) struct Moved {
    /// The new leaves, left to right, side by side.
    pub(super) leaves: Vec<Made>,
    /// What they were, in no order.
    pub(super) retired: Vec<RemoteAddr>,
    pub(super) step_round_trips_max: u64,
    /// What is not moved yet of its models is to go on making room ([`super::Stretch`]).
    pub(super) makes_room: bool,
}

/// A retraining on its way through the leaves.
pub(super) struct Mover<'a, 'b, E> {
    work: &'a Retraining<'b, E>,
    run: RunPlace,
    /// What is still to be moved.
    pending: Pending,
    /// Where the right-most of them must link to.
    expected: RemoteAddr,
    /// The new leaf that has taken the place of that; null at first, and where a link stays (R9).
    instead: RemoteAddr,
    /// The new leaves, right to left.
    made: Vec<Made>,
    retired: Vec<RemoteAddr>,
    step_round_trips_max: u64,
}

impl<'a, 'b, E: Endpoint> Mover<'a, 'b, E> {
    /// `end` is where the last of the pending leaves, or its last sibling, links to.
    pub(super) fn new(
        work: &'a Retraining<'b, E>,
        run: RunPlace,
        (pending, end): (Pending, RemoteAddr),
    ) -> Self {
        Self {
            work,
            run,
            pending,
            expected: end,
            instead: RemoteAddr::NULL,
            made: Vec::new(),
            retired: Vec::new(),
            step_round_trips_max: 0,
        }
    }

    /// What has been moved so far.
    pub(super) fn finish(mut self) -> Moved {
        self.made.reverse();
        Moved {
            leaves: self.made,
            retired: self.retired,
            step_round_trips_max: self.step_round_trips_max,
            makes_room: false,
        }
    }

    /// What will have been moved if nobody splits a leaf meanwhile and no two become one: what R5
    /// forbids to publish.
    pub(super) async fn foresee(&self, batch: &mut Batch) -> Result<Moved, IndexError> {
        let (work, mut run) = (self.work, self.run);
        let first = self.pending.first().expect("models have leaves");
        let mut leaves = Vec::new();
        let chain = chain(work, batch, first, self.expected).await?;
        for addr in chain.leaves.into_iter().rev() {
            let leaf = work.access.read_intact(batch, addr, work.broken).await?;
            let Some(place) = run.take() else { break };
            leaves.push(Made::of(place, leaf.image()));
        }
        leaves.reverse();
        Ok(Moved {
            leaves,
            ..Moved::default()
        })
    }

    /// Step by step, until there is nothing left, no room, or no permission.
    pub(super) async fn move_while(
        &mut self,
        batch: &mut Batch,
        may_go_on: impl Fn() -> bool,
    ) -> Result<(), IndexError> {
        let endpoint = self.work.access.endpoint;
        endpoint.enters(ProtocolPhase::Steps);
        while may_go_on() && self.step(batch).await? {}
        Ok(())
    }

    /// Moves one leaf or two. False: there is nothing left, or no room.
    async fn step(&mut self, batch: &mut Batch) -> Result<bool, IndexError> {
        let access = self.work.access;
        let broken = self.work.broken;
        let Some(right) = self.pending.pop() else {
            return Ok(false);
        };
        let left_count = self.peek(batch).await?;
        let before = batch.cost_mut().round_trips;
        let mut leaf = access.blank();
        let lock = access.lock(batch, right, None, &mut leaf, broken);
        lock.await?;
        let critical = Critical::enter(broken);
        let image = leaf.image();
        let link = image.link();
        if image.is_retired() {
            access.unlock(batch, right, broken).await?;
            critical.passed();
            if self.passes_retired(right, link) {
                return Ok(true);
            }
            return Err(self.retired_error(batch, right, link).await);
        }
        if link != self.expected {
            access.unlock(batch, right, broken).await?;
            critical.passed();
            self.put_back(batch, right, link).await?;
            return Ok(true);
        }
        let Some(place) = self.run.take() else {
            access.unlock(batch, right, broken).await?;
            critical.passed();
            return Ok(false);
        };
        let right_source = Source { addr: right, leaf };
        let mut sources = self.with_neighbour(batch, right_source, left_count).await?;
        let link = if self.instead.is_null() {
            link
        } else {
            self.instead
        };
        batch.clear();
        let entry = self.work.entry;
        if sources
            .iter()
            .any(|source| source.addr == entry.record.first_leaf)
        {
            // R1: before the first leaf is retired, and under its lock, which a load needs.
            let pending = catalog::pending_root_addr(access.layout, entry.index);
            batch.write_word(pending, 0);
        }
        let made = take_over(&access, batch, (place, link), &mut sources, critical).await?;
        self.note(place, made.image(), &sources);
        let spent = batch.cost_mut().round_trips - before;
        self.step_round_trips_max = self.step_round_trips_max.max(spent);
        Ok(true)
    }

    /// Passes a trained leaf that was moved to a lost node (R9): the leaf to its left gets its
    /// link. Not if that leaf is not moved as well, as it would keep a link to what is reused.
    fn passes_retired(&mut self, addr: RemoteAddr, link: RemoteAddr) -> bool {
        let is_passed = is_lost(self.work, link) && self.pending.last().is_some();
        if is_passed {
            (self.expected, self.instead) = (addr, link.place());
        }
        is_passed
    }

    /// The error for a trained leaf that is retired: its successor is on a lost node (U4), and its
    /// run could not be committed; else the table contradicts R1.
    async fn retired_error(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        link: RemoteAddr,
    ) -> IndexError {
        let (access, to) = (&self.work.access, link.place());
        match access.read_intact(batch, to, self.work.broken).await {
            Err(error) if error.lost_node() == Some(to.node()) => error.into(),
            _ => contradiction(self.work, addr, Contradiction::RetiredByNobody),
        }
    }

    /// Puts a leaf back that does not link to the leaf moved last, together with its new siblings
    /// (R3). If one of them is lost, the last leaf before it keeps its link (R9).
    async fn put_back(
        &mut self,
        batch: &mut Batch,
        right: RemoteAddr,
        link: RemoteAddr,
    ) -> Result<(), IndexError> {
        let endpoint = self.work.access.endpoint;
        endpoint.enters(ProtocolPhase::Gather);
        let chain = chain(self.work, batch, link, self.expected).await?;
        if let Some(cut) = chain.cut {
            (self.expected, self.instead) = (cut.link, cut.instead);
        }
        self.pending.put_back(right, &chain.leaves);
        endpoint.enters(ProtocolPhase::Steps);
        Ok(())
    }

    fn note(&mut self, place: RemoteAddr, image: LeafImage<'_>, sources: &[Source]) {
        self.made.push(Made::of(place, image));
        self.retired
            .extend(sources.iter().map(|source| source.addr));
        self.expected = sources[0].addr;
        self.instead = place;
    }

    /// How many records the left neighbour of what comes next seems to have: read before anything
    /// is locked, and not believed. One round trip, 8 bytes.
    async fn peek(&self, batch: &mut Batch) -> Result<usize, IndexError> {
        let Some(left) = self.pending.last() else {
            return Ok(usize::MAX);
        };
        let access = self.work.access;
        batch.clear();
        let (state, size_words) = (
            access.geometry.state(left),
            access.geometry.image_size_words(),
        );
        access.endpoint.prepare(state, size_words);
        let state = batch.read(state, 1);
        access.endpoint.execute(batch).await?;
        Ok(farleaf_leaf::record_count_of(batch.words(state)[0]))
    }

    /// The leaf, with its left neighbour locked, too, if both fit into one and nobody holds that.
    /// The neighbour seems to have `left_count` records.
    async fn with_neighbour(
        &mut self,
        batch: &mut Batch,
        right: Source,
        left_count: usize,
    ) -> Result<Vec<Source>, IndexError> {
        let (access, broken) = (&self.work.access, self.work.broken);
        let most = self.work.merged_count_max;
        let Some(left) = self.pending.last() else {
            return Ok(vec![right]);
        };
        if left_count.saturating_add(right.leaf.image().record_count()) > most {
            return Ok(vec![right]);
        }
        match lock_left(access, batch, (left, &right), most, broken).await? {
            Some(left) => {
                self.pending.pop();
                Ok(vec![left, right])
            }
            None => Ok(vec![right]),
        }
    }
}

/// R6: the leaves that a retrainer has made in a run before it died: intact, not retired, and each
/// ending where the next one began, or where a lost one did (R9).
pub(super) async fn find_made<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    mut run: RunPlace,
) -> Result<Moved, IndexError> {
    let access = &work.access;
    let state = searcher(work);
    let index = Index::new(*access, &state);
    let mut made: Vec<Made> = Vec::new();
    while let Some(place) = run.take() {
        batch.clear();
        let words = access.geometry.image_size_words();
        let lock = batch.read(access.geometry.lock(place), 1);
        let read = batch.read(access.geometry.state(place), words);
        access.endpoint.execute(batch).await?;
        let image = LeafImage::new(access.geometry, batch.words(read));
        if image.was_never_written() {
            break;
        }
        // The last step may have stopped before anything was retired to its leaf, or while that was
        // being written.
        let (owner, low) = (OwnerWord::from_word(batch.words(lock)[0]), image.low());
        let is_intact = image.is_intact(place, access.table) && !image.is_retired();
        let is_in_use = match index.is_in_use(batch, (place, low)).await {
            // R9: a lost leaf is on the way. A retrainer begins a step when the one before is done.
            Err(error) if error.lost_node().is_some() && is_intact => {
                if !is_next_written(work, batch, run).await? {
                    return Err(error);
                }
                true
            }
            is_in_use => is_in_use?,
        };
        if !is_in_use {
            break;
        }
        let is_left =
            !owner.is_free() && (owner == access.owner || access.is_fenced(batch, owner).await?);
        if is_left {
            // D8. Whoever made it had its lock.
            access.recover(batch, place, owner, work.broken).await?;
        }
        let leaf = access.read_intact(batch, place, work.broken).await?;
        made.push(Made::of(place, leaf.image()));
    }
    made.reverse();
    Ok(Moved {
        leaves: made,
        ..Moved::default()
    })
}

/// Whether a retrainer has begun to write the place of a run that is filled next.
async fn is_next_written<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    mut run: RunPlace,
) -> Result<bool, IndexError> {
    let Some(next) = run.take() else {
        return Ok(false);
    };
    let (endpoint, geometry) = (work.access.endpoint, work.access.geometry);
    batch.clear();
    let read = batch.read(geometry.state(next), geometry.image_size_words());
    endpoint.execute(batch).await?;
    Ok(!LeafImage::new(geometry, batch.words(read)).was_never_written())
}
