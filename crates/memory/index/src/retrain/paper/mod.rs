//! Retraining as the ROLEX paper has it (FAST'23, section 4.3), for `rolex` tables: no data moves.
//! Leaves stay where they are, and what is new is the table that says which leaves there are.
//!
//! - **X1.** Nothing is moved, locked or retired. So no operation waits for a retraining, and until
//!   the root is swapped nothing has happened but that chunks were claimed: if the retrainer dies,
//!   a sweep frees them (W4). It waits for nobody once it has claimed one.
//! - **X2.** The counters of the old synonym leaf tables (SLT) are read first, then what the old
//!   leaf table (LT) and the old SLTs name, in few batches. Links decide: the range is walked from
//!   its first leaf to the first one of the model after it, and what was not read is read then. So
//!   every leaf that was split off before its left neighbour was read is found, announced or not.
//!   At a leaf on a lost node the walk continues with the next leaf that the old tables name (R9).
//! - **X3.** The new LT of the range is the leaves that were met, in that order. Models are trained
//!   on their lower fences, which never change; the label is the leaf's number, whatever it holds.
//!   The regression knows nothing of the old models: one may become several, and neighbours one.
//! - **X4.** Models outside of the range stay as they are, with their leaves and their SLTs. New
//!   models get empty SLTs, apart from the snapshot, so that they outlive it.
//! - **X5.** LT and models are written whole before the root names them; the root is swapped by CAS
//!   after the pending root was zeroed (R1): the commit point.
//! - **X6.** *Shadow redirection.* Whoever has not taken the new root goes on with the old models,
//!   LT and SLTs, and announces splits there. All of it is true, only not complete.
//! - **X7.** After the swap the old counters are read again, at once ([`retrain_in_place`]) and
//!   then now and then as long as their memory is not reused ([`announce_later`]). What was
//!   announced there since X2 and is not in the new LT is announced in the new SLT of the trained
//!   leaf to its left: the one with the largest lower fence that is not above its own (the paper's
//!   *previous leaf*).
//! - **X8.** What slips through is found by links: announced by a number whose entry is not written
//!   yet or has no room, or never announced, because the splitter or the retrainer died. It is in
//!   the LT after the next retraining (X2).
//! - **X9.** The old snapshot and the old SLTs are garbage by T2, and are reused when no session
//!   can know them any more (T3, D7). Chunks of leaves are not: the LT names every leaf.

mod late;
mod read;
mod walk;

use core::ops::Range;

use farleaf_fabric::{Batch, Course, Endpoint, ProtocolPhase};
use farleaf_region::allocation::ChunkAllocator;
use farleaf_types::RemoteAddr;

use super::publish::install;
use super::tables::{self, Room};
use super::train::{Trained, train};
use super::{RetrainSummary, Retraining, count};
use crate::IndexError;
use crate::directory::Model;
use crate::layer::LayerKind;
use crate::load::{Fence, draw_generation};
use crate::snapshot::SnapshotContents;
use late::announce_late;
pub use late::announce_later;
use read::{Met, counters};
use walk::walk;

/// A synonym leaf table that no snapshot names any more, as long as it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldCounter {
    /// The table, which begins with the counter.
    pub table: RemoteAddr,
    /// Entries that it has room for.
    pub capacity: u32,
    /// How many announcements have been seen to.
    pub seen: u64,
    /// Where its model began.
    pub first_key: u64,
}

/// Retrains some neighbouring models of a `rolex` table where its leaves are. It costs one READ per
/// leaf, up to 256 of them in a round trip, and the writing of a snapshot.
///
/// # Errors
/// The pool is full: nothing has changed. A leaf is damaged, or the fabric failed: then it has
/// taken effect as a whole or not at all.
pub async fn retrain_in_place<E: Endpoint>(
    work: &Retraining<'_, E>,
    models: Range<usize>,
) -> Result<RetrainSummary, IndexError> {
    let _course = Course::begin(work.access.endpoint, ProtocolPhase::Gather);
    let mut batch = Batch::new();
    let retrained = retrain_range(work, &mut batch, models).await;
    count(work, &mut batch);
    retrained
}

async fn retrain_range<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    models: Range<usize>,
) -> Result<RetrainSummary, IndexError> {
    let access = &work.access;
    let old = &work.contents.models[models.clone()];
    let seen = counters(work, batch, &synonym_tables(old)).await?;
    let met = walk(work, batch, &models, &seen).await?;
    let leaves: Vec<_> = met.iter().map(|leaf| (leaf.addr, leaf.low)).collect();
    let fences = leaves.iter().map(|(addr, low)| (*addr, Fence::alone(*low)));
    let fences: Vec<_> = fences.collect();
    let generation = draw_generation(access, batch).await?;
    // The paper counts positions in slots.
    let epsilon_leaves = work.epsilon_keys / access.geometry.slot_count() as f64;
    let layer = (LayerKind::Rolex, access.geometry);
    let mut trained = train(&fences, layer, epsilon_leaves, work.contents.shift);
    let record_count = met.iter().map(|leaf| leaf.record_count).sum();
    access
        .endpoint
        .note_training(leaves.len() as u64, record_count);
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let allocator = allocator.taking_reserve();
    let wanting = tables::empty(&mut trained.models);
    let placed = tables::place(work, batch, (&allocator, generation), Room::NONE, wanting);
    let tables = placed.await?.elsewhere;
    let old_leaf_count: u64 = old.iter().map(|model| u64::from(model.leaf_count)).sum();
    let contents = SnapshotContents {
        generation,
        ..assemble(work, &models, &trained, &met)
    };
    install(work, batch, contents, tables).await?;
    access.endpoint.enters(ProtocolPhase::Announce);
    let new = (&trained.models[..], &leaves[..]);
    let (late_count, now) = announce_late(work, batch, (&models, &seen), new).await?;
    let counted = old.iter().zip(now);
    let counted = counted.filter(|(model, _)| !model.synonym_table.is_null());
    let old_counters = counted.map(|(model, seen)| OldCounter {
        table: model.synonym_table,
        capacity: model.synonym_capacity,
        seen,
        first_key: model.first_key,
    });
    Ok(RetrainSummary {
        record_count,
        model_count: trained.models.len() as u64,
        adopted_count: (leaves.len() as u64).saturating_sub(old_leaf_count),
        late_count,
        old_counters: old_counters.collect(),
        ..RetrainSummary::default()
    })
}

/// Places and capacities of models' synonym leaf tables.
fn synonym_tables(models: &[Model]) -> Vec<(RemoteAddr, u32)> {
    let tables = models.iter();
    let tables = tables.map(|model| (model.synonym_table, model.synonym_capacity));
    tables.collect()
}

/// X3 and X4: the table's contents with a range retrained, under the old generation.
fn assemble<E: Endpoint>(
    work: &Retraining<'_, E>,
    range: &Range<usize>,
    trained: &Trained,
    met: &[Met],
) -> SnapshotContents {
    let (old, geometry) = (work.contents, work.access.geometry);
    let (left, right) = (0..range.start, range.end..old.models.len());
    let left_leaves = old.leaves_of(geometry, left.clone());
    let right_leaves = old.leaves_of(geometry, right.clone());
    let own_leaves: Vec<RemoteAddr> = met.iter().map(|leaf| leaf.addr).collect();
    let old_leaf_count = old.residuals.len();
    let right_first_leaf = old_leaf_count - right_leaves.len();
    let stays = (left_leaves.len() + right_leaves.len()) as f64 / old_leaf_count as f64;
    let record_count: u64 = met.iter().map(|leaf| leaf.record_count).sum();
    SnapshotContents {
        table: old.table,
        generation: old.generation,
        record_count: (old.record_count as f64 * stays) as u64 + record_count,
        shift: old.shift,
        models: [&old.models[left], &trained.models, &old.models[right]].concat(),
        residuals: [
            &old.residuals[..left_leaves.len()],
            &trained.residuals,
            &old.residuals[right_first_leaf..],
        ]
        .concat(),
        leaf_table: Some([left_leaves, own_leaves, right_leaves].concat().into()),
    }
}
