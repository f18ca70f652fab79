//! Retraining. For `rolex` tables that is the paper's, which moves nothing: [`paper`], rules X1 to
//! X9. For those with a tree it is [`compact`], rules K1 to K6. For `learned` ones it is what
//! follows.
//!
//! Retraining by moving (DESIGN L4): the leaves of neighbouring models, and what splits have added
//! to them, become one new run, while everybody works on; then new models take the place of the old
//! ones.
//!
//! - **R1.** One retrainer works on a table at a time. It alone retires leaves of a table that is
//!   not empty, and it alone swaps the root after the load has. Before it does either for the first
//!   time, it zeroes the pending root, so that nobody finishes a load that is long over, or that
//!   died before it retired the first leaf (B4).
//! - **R2.** A new run is claimed as a whole and filled from its right end. Steps go from right to
//!   left; each moves one leaf, or two neighbours whose records fit into one, by M1 to M3. It waits
//!   for the first lock of a step while it holds none, and for the second not at all.
//! - **R3.** If the leaf at hand does not link to what was moved last, it was split since it was
//!   read; its new siblings come first.
//! - **R4.** After the last step the leaf to the left, which links to a leaf that is retired now,
//!   is linked to the new one (by whoever covers the key before it, under its lock); so is the
//!   table's first leaf, when that was retired long ago. Then no leaf that is not retired links to
//!   one that is.
//! - **R5.** Models are trained on the new leaves' fences, which are as they were. A snapshot with
//!   them in the place of the old ones is written whole, and the root swapped by CAS: the commit
//!   point. Until then sessions find what was moved by the links of what is retired.
//! - **R6.** It may stop after any step, because the run is full or it was told to: what is left of
//!   a model loses its tail, which is in the new run, and is committed so. And if it dies, another
//!   one finds its run, whose leaves begin at the right end, and commits it the same way
//!   ([`adopt`]).
//! - **R7.** What was retired is named by nothing in far memory after R4 and R5, and by sessions
//!   until they have followed (P4): it is reused only then (D7).
//! - **R8.** An operation waits for one step at the most. A lock is held in four batches at the
//!   most: the right leaf is locked, its left neighbour is, that is given back because it does
//!   not fit, and what is moved is written; R4 needs two. Nothing else is waited for meanwhile
//!   (R2), and models are trained and published while nothing is locked. Who has waited for a
//!   step finds its leaf retired in favour of one that the same batch unlocks, and goes on from
//!   there to the right (D5), where all has been moved before: steps go to the left, so it does
//!   not meet them again. Only a leaf that was given back as it was is locked again: one that has
//!   been split (R3), and a left neighbour that does not fit. It is free for at least one batch
//!   of the retrainer between.
//! - **R9.** A retrainer passes leaves on a lost node (U4). The last leaf before a lost one moves
//!   and keeps its link to it, so a search for a lost key still returns an error that names the
//!   node. The same goes for a leaf that was moved to a lost node before its run was committed,
//!   unless it is the first of the stretch: then the retraining fails, and the model stays where
//!   it is. The leaves on both sides lie side by side in the new run, but they are not neighbours:
//!   they never merge. Without this rule a retrainer would fail at the lost leaf, move the leaves
//!   to its right again in every attempt (R6), and never empty a draining node.

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

use farleaf_fabric::{Batch, Course, Endpoint, OperationKind, ProtocolCheck, ProtocolPhase};
use farleaf_leaf::LeafAccess;
use farleaf_region::allocation::{ChunkAllocator, ChunkRange};
use farleaf_region::catalog::CatalogEntry;
use farleaf_region::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_region::layout::CHUNK_SIZE_BLOCKS;
use farleaf_types::RemoteAddr;

use crate::IndexError;
use crate::load::draw_generation;
use crate::snapshot::SnapshotContents;
use claim::claim_run;
use gather::Pending;
use mover::{Mover, RunPlace};
use publish::publish;
pub use publish::swap_root;

/// How many more leaves than were counted a run has room for: one in so many, and a few.
const SLACK_SHARE: u64 = 16;
const SLACK_COUNT: u64 = 16;

/// What a retrainer works on.
#[derive(Debug)]
pub struct Retraining<'a, E> {
    /// The table's leaves, in the name of the retrainer's session.
    pub access: LeafAccess<'a, E>,
    /// The table's catalog entry.
    pub entry: &'a CatalogEntry,
    /// The snapshot that the root names.
    pub contents: &'a SnapshotContents,
    /// The root.
    pub root: RemoteAddr,
    /// Error bound of the models, in keys.
    pub epsilon_keys: f64,
    /// Records that a load would give a leaf, on average.
    pub loaded_count_mean: f64,
    /// Records that two leaves may have together to become one.
    pub merged_count_max: usize,
    /// The retrainer's session: set when it was cut off while it may have held something.
    pub broken: &'a Cell<bool>,
}

/// What a retraining did.
#[derive(Clone, Debug, Default)]
pub struct RetrainSummary {
    /// Leaves that were moved.
    pub moved_count: u64,
    /// Leaves that they became.
    pub made_count: u64,
    /// Records of all leaves that were retrained.
    pub record_count: u64,
    /// Models that were trained.
    pub model_count: u64,
    /// Synonym leaves that became trained leaves where they are (X3).
    pub adopted_count: u64,
    /// Leaves that were announced in old synonym leaf tables meanwhile, and then in new ones (X7).
    pub late_count: u64,
    /// The synonym leaf tables that are old now, of a retraining without moving (X8).
    pub old_counters: Vec<paper::OldCounter>,
    /// Retired leaves, wherever they are.
    pub retired: Vec<RemoteAddr>,
    /// The longest that a step held locks, in round trips.
    pub step_round_trips_max: u64,
}

/// Leaves that are retrained together: those of some neighbouring models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The models, by their numbers.
    pub models: Range<usize>,
    /// How many leaves splits have added, as far as they were counted.
    pub synonym_count: u64,
    /// Whether so much is deleted, as far as deletes have counted it, that the run will be shorter
    /// than what it replaces: then it may take what is kept for retraining in a full pool.
    pub makes_room: bool,
}

/// Retrains a stretch of leaves. `may_go_on` is asked before each step. The sources' memory is the
/// caller's to reuse, by R7.
///
/// # Errors
/// The pool is full: nothing has changed, or it became full meanwhile. Then, or if a leaf is
/// damaged or the fabric failed, the run is to be [`adopt`]ed.
pub async fn retrain<E: Endpoint>(
    work: &Retraining<'_, E>,
    stretch: &Stretch,
    may_go_on: impl Fn() -> bool,
) -> Result<RetrainSummary, IndexError> {
    let access = &work.access;
    let _course = Course::begin(access.endpoint, ProtocolPhase::Gather);
    let mut batch = Batch::new();
    let (pending, end) = Pending::new(work, stretch);
    let leaf_count = pending.count() + stretch.synonym_count;
    let room_count = leaf_count + leaf_count / SLACK_SHARE + SLACK_COUNT;
    let stride = access.geometry.stride_blocks();
    let generation = draw_generation(access, &mut batch).await?;
    let wanted_count = (room_count * stride).div_ceil(CHUNK_SIZE_BLOCKS);
    let range = claim_run(work, stretch, (wanted_count, generation)).await?;
    let mut run = RunPlace::new(access.layout, range, stride);
    if range.count * CHUNK_SIZE_BLOCKS < room_count * stride {
        let leaf_count = range.count * CHUNK_SIZE_BLOCKS / stride;
        run = run.keeping(tables::block_count_of_short(work, stretch, leaf_count));
    }
    let mut mover = Mover::new(work, run, (pending, end));
    let mut published = None;
    if access.endpoint.leaves_out(ProtocolCheck::RunIsFilledFirst) {
        let foreseen = mover.foresee(&mut batch).await?;
        published = Some(publish(work, &foreseen, (range, generation)).await?);
    }
    let moved = mover.move_while(&mut batch, may_go_on).await;
    count(work, &mut batch);
    moved?;
    let made = mover::Moved {
        makes_room: stretch.makes_room,
        ..mover.finish()
    };
    commit(work, (range, generation), made, published).await
}

/// R6: commits what a retrainer that died has moved into a run that it claimed and that this
/// session has taken over. Nothing was moved if nothing is found there.
///
/// # Errors
/// As for [`retrain`].
pub async fn adopt<E: Endpoint>(
    work: &Retraining<'_, E>,
    range: ChunkRange,
    generation: u16,
) -> Result<RetrainSummary, IndexError> {
    let _course = Course::begin(work.access.endpoint, ProtocolPhase::Adopt);
    let mut batch = Batch::new();
    let stride = work.access.geometry.stride_blocks();
    let run = RunPlace::new(work.access.layout, range, stride);
    let made = mover::find_made(work, &mut batch, run).await;
    count(work, &mut batch);
    commit(work, (range, generation), made?, None).await
}

/// F9.
fn count<E: Endpoint>(work: &Retraining<'_, E>, batch: &mut Batch) {
    let counters = work.access.endpoint.counters();
    counters.record(OperationKind::Control, &batch.take_cost());
}

/// R5, while nothing is locked (R8).
async fn publish_unlocked<E: Endpoint>(
    work: &Retraining<'_, E>,
    made: &mover::Moved,
    run: (ChunkRange, u16),
) -> Result<(RetrainSummary, RemoteAddr), IndexError> {
    let access = &work.access;
    if !access
        .endpoint
        .leaves_out(ProtocolCheck::TrainingHoldsNoLock)
    {
        return publish(work, made, run).await;
    }
    let (mut batch, mut leaf) = (Batch::new(), access.blank());
    let (addr, broken) = (made.leaves[0].addr, work.broken);
    let lock = access.lock(&mut batch, addr, None, &mut leaf, broken);
    lock.await?;
    let published = publish(work, made, run).await;
    access.unlock(&mut batch, addr, broken).await?;
    count(work, &mut batch);
    published
}

/// R4 and R5, then the chunks that nothing was put into are free. `published`: what R5 was, if that
/// was done before.
async fn commit<E: Endpoint>(
    work: &Retraining<'_, E>,
    (range, generation): (ChunkRange, u16),
    made: mover::Moved,
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
            None => publish_unlocked(work, &made, (range, generation)).await?,
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
