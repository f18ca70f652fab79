//! Retraining. For `rolex` tables it moves no data, as in the paper: [`paper`]. For tables with a
//! tree it is [`compact`]. This module has the retraining of `learned` tables.
//!
//! Retraining by moving: the leaves of neighboring models, and the leaves that splits have added to
//! them, become one new run while clients keep working. Then new models replace the old ones. Steps
//! move leaves as in [`farleaf_leaf::words::moving`].
//!
//! - **One retrainer.** One retrainer works on a table at a time. Only it retires leaves of a table
//!   that is not empty, and only it swaps the root after the load has. Before the first of these it
//!   zeroes the pending root. This prevents sessions from finishing a load that ended long ago, or
//!   that died before it retired the first leaf.
//! - **Steps.** A new run is claimed as a whole and filled from its right end. Steps go from right
//!   to left; each moves one leaf, or two neighbors whose records fit into one. A step waits for
//!   its first lock while it holds none, and does not wait for the second.
//! - **Splits meanwhile.** If a leaf does not link to the leaf that was moved last, it was split
//!   after it was read; its new siblings come first.
//! - **Left link.** After the last step, the leaf on the left, which links to a retired leaf, is
//!   linked to the new one. This is done under the lock of the leaf that covers the key before. The
//!   table's first leaf is linked too, if it was retired long ago. Then no unretired leaf links to
//!   a retired one.
//! - **Publication.** Models are trained on the new leaves' fences, which have not changed. A
//!   snapshot with them in place of the old models is written whole. A CAS swaps the root: the
//!   commit point. Until then sessions find moved leaves by the links of retired ones.
//! - **Interruption.** A retrainer may stop after any step, because the run is full or it was asked
//!   to stop. A partly moved model loses its tail, which is in the new run, and the result is
//!   committed. If the retrainer dies, another one finds its run, whose leaves begin at the right
//!   end, and commits it in the same way ([`adopt`]).
//! - **Reuse.** After the left link and the publication nothing in far memory names the retired
//!   leaves. Sessions may know them until they have taken the new root. The memory is reused only
//!   after that (LEAF-7).
//! - **Waiting.** An operation waits for at most one step. A lock is held for at most four batches:
//!   the right leaf is locked, its left neighbor is locked, the neighbor is released if it does not
//!   fit, and the result is written. The left link needs two. Meanwhile the step waits for nothing
//!   else, and models are trained and published while nothing is locked.
//! - **After waiting.** An operation that has waited for a step finds its leaf retired in favor of
//!   a leaf that the same batch unlocked. It continues to the right (LEAF-5), where all leaves have
//!   been moved already, so it does not meet the steps again. Only a leaf that was released
//!   unchanged is locked again: one that has been split, or a left neighbor that does not fit. It
//!   is free for at least one of the retrainer's batches in between.
//! - **Lost nodes.** A retrainer passes leaves on a lost node. The last leaf before a lost one
//!   moves and keeps its link to it. So a search for a lost key still returns an error that names
//!   the node. The same goes for a leaf that was moved to a lost node before its run was committed.
//!   If that is the first leaf of the stretch, however, the retraining fails, and the model stays
//!   where it is.
//! - **Neighbors of a lost leaf.** The leaves on both sides of a lost one are adjacent in the new
//!   run, but they are not neighbors and never merge. Without these two rules, every attempt would
//!   move the leaves on the right again and fail at the lost leaf. A draining node would never
//!   become empty.

mod claim;
pub mod compact;
mod gather;
mod mover;
pub mod paper;
mod publish;
mod redirect;
mod step;
mod tables;
mod train;

use core::cell::Cell;
use core::ops::Range;

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint, OperationKind, PhaseGuard, ProtocolCheck, ProtocolPhase};
use farleaf_leaf::words::LeafAccess;
use farleaf_pool::allocation::{ChunkAllocator, ChunkRange};
use farleaf_pool::catalog::CatalogEntry;
use farleaf_pool::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_pool::layout::CHUNK_SIZE_BLOCKS;

use crate::IndexError;
use crate::load::draw_generation;
use crate::snapshot::SnapshotContents;
use claim::claim_run;
use gather::PendingLeaves;
use mover::{Mover, RunPlace};
use publish::publish;
pub use publish::swap_root;

/// Share of additional leaves, as a divisor, that a run has space for beyond those counted;
/// `SLACK_COUNT` more come on top.
const SLACK_SHARE: u64 = 16;
const SLACK_COUNT: u64 = 16;

/// Table, snapshot and parameters of a retraining.
#[derive(Debug)]
pub struct Retraining<'a, E> {
    /// Access to the table's leaves by the retrainer's session.
    pub access: LeafAccess<'a, E>,
    /// Catalog entry of the table.
    pub entry: &'a CatalogEntry,
    /// Contents of the snapshot that the root names.
    pub contents: &'a SnapshotContents,
    /// Root word of the table.
    pub root: RemoteAddr,
    /// Error bound of the models, in keys.
    pub epsilon_keys: f64,
    /// Mean number of records that a load would put into a leaf.
    pub loaded_count_mean: f64,
    /// Largest number of records of two leaves that are merged into one.
    pub merged_count_max: usize,
    /// Flag of the retrainer's session: set if it was interrupted while it may have held a lock or
    /// chunk.
    pub broken: &'a Cell<bool>,
}

/// Result of a retraining.
#[derive(Clone, Debug, Default)]
pub struct RetrainSummary {
    /// Number of leaves that were moved.
    pub moved_count: u64,
    /// Number of leaves created from the moved ones.
    pub made_count: u64,
    /// Number of records in all retrained leaves.
    pub record_count: u64,
    /// Number of models trained.
    pub model_count: u64,
    /// Number of synonym leaves that became trained leaves without moving.
    pub adopted_count: u64,
    /// Number of leaves that were announced in old synonym leaf tables meanwhile, and then in new
    /// ones.
    pub late_count: u64,
    /// Synonym leaf tables that became old in a retraining without moving.
    pub old_counters: Vec<paper::OldCounter>,
    /// Retired leaves, on any node.
    pub retired: Vec<RemoteAddr>,
    /// Longest time that a step held locks, in round trips.
    pub step_round_trips_max: u64,
}

/// Leaves that are retrained together: those of some neighboring models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Numbers of the models.
    pub models: Range<usize>,
    /// Number of leaves that splits have added, as far as they were counted.
    pub synonym_count: u64,
    /// True if deletes have counted so many underfull leaves that the run will be shorter than the
    /// leaves that it replaces. Then it may use the chunks that a full pool reserves for
    /// retraining.
    pub frees_space: bool,
}

/// Retrains a stretch of leaves. Calls `may_continue` before each step. The caller reuses the
/// memory of the sources once all sessions have taken the new root.
///
/// # Errors
/// The pool is full: nothing has changed, or it became full meanwhile. In the second case, or if a
/// leaf is corrupted or the fabric failed, the run is to be [`adopt`]ed.
pub async fn retrain<E: Endpoint>(
    work: &Retraining<'_, E>,
    stretch: &Stretch,
    may_continue: impl Fn() -> bool,
) -> Result<RetrainSummary, IndexError> {
    let access = &work.access;
    let _course = PhaseGuard::begin(access.endpoint, ProtocolPhase::Gather);
    let mut batch = Batch::new();
    let (pending, end) = PendingLeaves::new(work, stretch);
    let leaf_count = pending.count() + stretch.synonym_count;
    let space_count = leaf_count + leaf_count / SLACK_SHARE + SLACK_COUNT;
    let stride = access.geometry.stride_blocks();
    let generation = draw_generation(access, &mut batch).await?;
    let wanted_count = (space_count * stride).div_ceil(CHUNK_SIZE_BLOCKS);
    let range = claim_run(work, stretch, wanted_count, generation).await?;
    let mut run = RunPlace::new(access.layout, range, stride);
    if range.count * CHUNK_SIZE_BLOCKS < space_count * stride {
        let leaf_count = range.count * CHUNK_SIZE_BLOCKS / stride;
        run = run.keeping(tables::block_count_of_short(work, stretch, leaf_count));
    }
    let mut mover = Mover::new(work, run, pending, end);
    let mut published = None;
    if access.endpoint.skips_check(ProtocolCheck::RunIsFilledFirst) {
        let foreseen = mover.foresee(&mut batch).await?;
        published = Some(publish(work, &foreseen, range, generation).await?);
    }
    let moved = mover.move_while(&mut batch, may_continue).await;
    count(work, &mut batch);
    moved?;
    let made = mover::MoveResult {
        frees_space: stretch.frees_space,
        ..mover.finish()
    };
    commit(work, range, generation, made, published).await
}

/// Commits what a dead retrainer has moved into a run that it had claimed and this session has
/// taken over. If the run has no leaves, nothing was moved.
///
/// # Errors
/// The errors of [`retrain`].
pub async fn adopt<E: Endpoint>(
    work: &Retraining<'_, E>,
    range: ChunkRange,
    generation: u16,
) -> Result<RetrainSummary, IndexError> {
    let _course = PhaseGuard::begin(work.access.endpoint, ProtocolPhase::Adopt);
    let mut batch = Batch::new();
    let stride = work.access.geometry.stride_blocks();
    let run = RunPlace::new(work.access.layout, range, stride);
    let made = mover::find_made(work, &mut batch, run).await;
    count(work, &mut batch);
    commit(work, range, generation, made?, None).await
}

/// Counts the cost of a batch (FABRIC-9).
fn count<E: Endpoint>(work: &Retraining<'_, E>, batch: &mut Batch) {
    let counters = work.access.endpoint.counters();
    counters.record(OperationKind::Control, &batch.take_cost());
}

/// Publishes new models while nothing is locked.
async fn publish_unlocked<E: Endpoint>(
    work: &Retraining<'_, E>,
    made: &mover::MoveResult,
    range: ChunkRange,
    generation: u16,
) -> Result<(RetrainSummary, RemoteAddr), IndexError> {
    let access = &work.access;
    if !access
        .endpoint
        .skips_check(ProtocolCheck::TrainingHoldsNoLock)
    {
        return publish(work, made, range, generation).await;
    }
    let (mut batch, mut leaf) = (Batch::new(), access.blank());
    let (addr, broken) = (made.leaves[0].addr, work.broken);
    let lock = access.lock(&mut batch, addr, None, &mut leaf, broken);
    lock.await?;
    let published = publish(work, made, range, generation).await;
    access.unlock(&mut batch, addr, broken).await?;
    count(work, &mut batch);
    published
}

/// Links the leaf on the left, publishes the models, and frees the unused chunks. `published` is
/// the result of a publication that was already done.
async fn commit<E: Endpoint>(
    work: &Retraining<'_, E>,
    range: ChunkRange,
    generation: u16,
    made: mover::MoveResult,
    published: Option<(RetrainSummary, RemoteAddr)>,
) -> Result<RetrainSummary, IndexError> {
    let access = &work.access;
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let free = FreeLeaves::default();
    let mut summary = RetrainSummary::default();
    let mut kept_from = range.end();
    if let Some(first) = made.leaves.first() {
        access.endpoint.enters(ProtocolPhase::Redirect);
        redirect::redirect(work, first).await?;
        let used_from;
        (summary, used_from) = match published {
            Some(published) => published,
            None => publish_unlocked(work, &made, range, generation).await?,
        };
        let chunk = access.layout.chunk_of(used_from);
        kept_from = chunk.expect("a run lies in chunks");
    }
    access.endpoint.enters(ProtocolPhase::GiveBack);
    let unused = ChunkRange {
        first: range.first,
        count: kept_from.0 - range.first.0,
    };
    let used = ChunkRange {
        first: kept_from,
        count: range.count - unused.count,
    };
    let purpose = ChunkPurpose::Run {
        slots: access.geometry.slots(),
        generation,
    };
    allocator
        .give_back(unused, ChunkPurpose::Free, access.table, free)
        .await?;
    allocator
        .give_back(used, purpose, access.table, free)
        .await?;
    summary.moved_count = made.retired.len() as u64;
    summary.retired = made.retired;
    summary.step_round_trips_max = made.step_round_trips_max;
    Ok(summary)
}
