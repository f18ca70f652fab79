//! Moving leaves into a new run, step by step from right to left.

use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_fabric::{Batch, Endpoint, ProtocolPhase};
use farleaf_leaf::words::moving::MoveSource;
use farleaf_leaf::words::{Contradiction, Critical, LeafImage};
use farleaf_pool::PoolLayout;
use farleaf_pool::allocation::ChunkRange;
use farleaf_pool::catalog;
use farleaf_pool::layout::CHUNK_SIZE_BLOCKS;

use super::Retraining;
use super::gather::{PendingLeaves, chain, contradiction, is_lost};
use super::redirect::searcher;
use super::step::{lock_left, take_over};
use crate::{Index, IndexError};

/// Free places of a run, which is filled from the right.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunPlace {
    start: RemoteAddr,
    stride_blocks: u64,
    /// Number of free places, which are the left ones.
    free_count: u64,
    /// Number of places to keep free.
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

    /// Returns the run with `block_count` blocks kept for synonym leaf tables, but at most half of
    /// it.
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

/// Leaf of the new run.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewLeaf {
    pub(super) addr: RemoteAddr,
    /// Lower fence when the leaf was created.
    pub(super) low: u64,
    pub(super) high: u64,
    pub(super) record_count: usize,
    /// First and last key when the leaf was created.
    pub(super) keys: Option<(u64, u64)>,
}

impl NewLeaf {
    fn of(addr: RemoteAddr, image: LeafImage<'_>) -> Self {
        Self {
            addr,
            low: image.low(),
            high: image.high(),
            record_count: image.record_count(),
            keys: image.key_range(),
        }
    }

    /// Returns whether `right` begins where this leaf ends. If not, a lost leaf was between them.
    pub(super) fn is_left_of(&self, right: &Self) -> bool {
        self.high.checked_add(1) == Some(right.low)
    }
}

/// Result of the moves.
#[derive(Debug, Default)]
pub(super) struct MoveResult {
    /// New leaves, left to right, adjacent.
    pub(super) leaves: Vec<NewLeaf>,
    /// Retired sources, in no particular order.
    pub(super) retired: Vec<RemoteAddr>,
    pub(super) step_round_trips_max: u64,
    /// True if the rest of the stretch's models is also expected to shrink ([`super::Stretch`]).
    pub(super) frees_space: bool,
}

/// Retraining in progress over the leaves of a stretch.
pub(super) struct Mover<'a, 'b, E> {
    work: &'a Retraining<'b, E>,
    run: RunPlace,
    /// Leaves still to be moved.
    pending: PendingLeaves,
    /// Expected link of the rightmost pending leaf.
    expected: RemoteAddr,
    /// New leaf that replaces the one at `expected`; null at first, and where a link to a lost leaf
    /// stays.
    instead: RemoteAddr,
    /// New leaves, right to left.
    made: Vec<NewLeaf>,
    retired: Vec<RemoteAddr>,
    step_round_trips_max: u64,
}

impl<'a, 'b, E: Endpoint> Mover<'a, 'b, E> {
    /// Creates a mover. `end` is the link of the last pending leaf, or of its last sibling.
    pub(super) fn new(
        work: &'a Retraining<'b, E>,
        run: RunPlace,
        pending: PendingLeaves,
        end: RemoteAddr,
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

    /// Returns what has been moved so far.
    pub(super) fn finish(mut self) -> MoveResult {
        self.made.reverse();
        MoveResult {
            leaves: self.made,
            retired: self.retired,
            step_round_trips_max: self.step_round_trips_max,
            frees_space: false,
        }
    }

    /// Returns what will have been moved if no leaf splits or merges meanwhile. Only a planted bug
    /// uses it, to publish models before the run is filled.
    pub(super) async fn foresee(&self, batch: &mut Batch) -> Result<MoveResult, IndexError> {
        let (work, mut run) = (self.work, self.run);
        let first = self.pending.first().expect("models have leaves");
        let mut leaves = Vec::new();
        let chain = chain(work, batch, first, self.expected).await?;
        for addr in chain.leaves.into_iter().rev() {
            let leaf = work.access.read_intact(batch, addr, work.broken).await?;
            let Some(place) = run.take() else { break };
            leaves.push(NewLeaf::of(place, leaf.image()));
        }
        leaves.reverse();
        Ok(MoveResult {
            leaves,
            ..MoveResult::default()
        })
    }

    /// Does steps until no leaves or no space are left, or `may_continue` returns false.
    pub(super) async fn move_while(
        &mut self,
        batch: &mut Batch,
        may_continue: impl Fn() -> bool,
    ) -> Result<(), IndexError> {
        let endpoint = self.work.access.endpoint;
        endpoint.enters(ProtocolPhase::Steps);
        while may_continue() && self.step(batch).await? {}
        Ok(())
    }

    /// Moves one leaf or two. Returns false if no leaves or no space are left.
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
        let right_source = MoveSource { addr: right, leaf };
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
            // The pending root is zeroed before the first leaf is retired, and under the first
            // leaf's lock, which a load needs.
            let pending = catalog::pending_root_addr(access.layout, entry.index);
            batch.write_word(pending, 0);
        }
        let made = take_over(&access, batch, place, link, &mut sources, critical).await?;
        self.note(place, made.image(), &sources);
        let spent = batch.cost_mut().round_trips - before;
        self.step_round_trips_max = self.step_round_trips_max.max(spent);
        Ok(true)
    }

    /// Passes a trained leaf that was moved to a lost node: the leaf to its left gets its link.
    /// Fails if that leaf is not moved as well, because it would keep a link to memory that is
    /// reused.
    fn passes_retired(&mut self, addr: RemoteAddr, link: RemoteAddr) -> bool {
        let is_passed = is_lost(self.work, link) && self.pending.last().is_some();
        if is_passed {
            (self.expected, self.instead) = (addr, link.place());
        }
        is_passed
    }

    /// Returns the error for a trained leaf that is retired. Either its successor is on a lost node
    /// and its run could not be committed, or the table contradicts the one-retrainer rule.
    async fn retired_error(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        link: RemoteAddr,
    ) -> IndexError {
        let (access, to) = (&self.work.access, link.place());
        match access.read_intact(batch, to, self.work.broken).await {
            Err(error) if error.lost_node() == Some(to.node()) => error.into(),
            _ => contradiction(self.work, addr, Contradiction::RetiredWithoutRetraining),
        }
    }

    /// Puts back a leaf that does not link to the leaf moved last, together with its new siblings.
    /// If one of them is lost, the last leaf before it keeps its link.
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

    fn note(&mut self, place: RemoteAddr, image: LeafImage<'_>, sources: &[MoveSource]) {
        self.made.push(NewLeaf::of(place, image));
        self.retired
            .extend(sources.iter().map(|source| source.addr));
        self.expected = sources[0].addr;
        self.instead = place;
    }

    /// Returns how many records the next leaf's left neighbor seems to have. Read without a lock,
    /// so only an estimate. Costs one round trip, 8 bytes.
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
        Ok(farleaf_leaf::words::record_count_of(batch.words(state)[0]))
    }

    /// Returns the leaf, with its left neighbor locked too, if both fit into one leaf and the
    /// neighbor's lock is free. The neighbor seems to have `left_count` records.
    async fn with_neighbour(
        &mut self,
        batch: &mut Batch,
        right: MoveSource,
        left_count: usize,
    ) -> Result<Vec<MoveSource>, IndexError> {
        let (access, broken) = (&self.work.access, self.work.broken);
        let most = self.work.merged_count_max;
        let Some(left) = self.pending.last() else {
            return Ok(vec![right]);
        };
        if left_count.saturating_add(right.leaf.image().record_count()) > most {
            return Ok(vec![right]);
        }
        match lock_left(access, batch, left, &right, most, broken).await? {
            Some(left) => {
                self.pending.pop();
                Ok(vec![left, right])
            }
            None => Ok(vec![right]),
        }
    }
}

/// Finds the leaves that a dead retrainer has created in a run: intact, not retired, and each
/// ending where the next one began, or where a lost leaf did.
pub(super) async fn find_made<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    mut run: RunPlace,
) -> Result<MoveResult, IndexError> {
    let access = &work.access;
    let state = searcher(work);
    let index = Index::new(*access, &state);
    let mut made: Vec<NewLeaf> = Vec::new();
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
        // The last step may have stopped before a leaf was retired in favor of its new leaf, or
        // while that one was being written.
        let (owner, low) = (OwnerWord::from_word(batch.words(lock)[0]), image.low());
        let is_intact = image.is_intact(place, access.table) && !image.is_retired();
        let is_in_use = match index.is_in_use(batch, place, low).await {
            // A lost leaf is on the path. A retrainer begins a step only after the previous one is
            // done.
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
            // The dead retrainer held the lock of the new leaf (LEAF-8).
            access.recover(batch, place, owner, work.broken).await?;
        }
        let leaf = access.read_intact(batch, place, work.broken).await?;
        made.push(NewLeaf::of(place, leaf.image()));
    }
    made.reverse();
    Ok(MoveResult {
        leaves: made,
        ..MoveResult::default()
    })
}

/// Returns whether a retrainer has begun to write the place of a run that is filled next.
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
