//! Retraining as in the ROLEX paper (FAST'23, section 4.3), for `rolex` tables: no data moves.
//! Leaves stay where they are, and a new leaf table lists them.
//!
//! - **Nothing moves.** Nothing is moved, locked or retired, so no operation waits for a
//!   retraining. Until the root is swapped, the only effect is claimed chunks, which a sweep frees
//!   if the retrainer dies. It waits for no other session after it has claimed a chunk.
//! - **Reading.** The counters of the old synonym leaf tables (SLTs) are read first. Then the
//!   leaves that the old leaf table (LT) and the old SLTs name are read, in few batches. Links
//!   decide: the range is walked from its first leaf to the first leaf of the next model, and
//!   leaves that were not read are read then. The walk therefore finds every leaf that was split
//!   off before its left neighbor was read, announced or not. At a leaf on a lost node the walk
//!   continues with the next leaf that the old tables name.
//! - **New leaf table.** The range's new LT lists the leaves of the walk, in its order. Models are
//!   trained on their lower fences, which never change; the label is the leaf's number, however
//!   many records it has. The regression ignores the old models: one may become several, and
//!   neighbors may become one.
//! - **Other models.** Models outside of the range keep their leaves and SLTs. New models get empty
//!   SLTs, separate from the snapshot, so that they outlive it.
//! - **Commit.** LT and models are written whole before the root names them. The pending root is
//!   zeroed, then a CAS swaps the root: the commit point.
//! - **Shadow redirection.** A session that has not taken the new root continues with the old
//!   models, LT and SLTs, and announces splits there. All of their content is valid, only not
//!   complete.
//! - **Late announcements.** After the swap the old counters are read again: at once
//!   ([`retrain_in_place`]) and then repeatedly until their memory is reused ([`announce_later`]).
//!   Leaves announced there since the first reading that are not in the new LT are announced in the
//!   new SLTs. Each belongs to the trained leaf to its left: the one with the largest lower fence
//!   not above its own (the paper's *previous leaf*).
//! - **Missed leaves.** Links lead to leaves that are still missed: announced by a number whose
//!   entry is not written yet or has no space, or never announced because the splitter or the
//!   retrainer died. The next retraining's walk finds them.
//! - **Reuse.** The old snapshot and the old SLTs are garbage, because no lease and no root names
//!   them. Their memory is reused when no session can know them any more (LEAF-7). Chunks of leaves
//!   are not garbage: the LT names every leaf.

mod late;
mod read;
mod walk;

use core::ops::Range;

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint, PhaseGuard, ProtocolPhase};
use farleaf_pool::allocation::ChunkAllocator;

use super::publish::install;
use super::tables::{self, RunSpace};
use super::train::{TrainedModels, train};
use super::{RetrainSummary, Retraining, count};
use crate::IndexError;
use crate::directory::Model;
use crate::layer::LayerKind;
use crate::load::{Fence, draw_generation};
use crate::snapshot::SnapshotContents;
use late::announce_late;
pub use late::announce_later;
use read::{ReadLeaf, counters};
use walk::walk;

/// Synonym leaf table that no snapshot names any more, until its memory is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldCounter {
    /// Address of the table, which begins with the counter.
    pub table: RemoteAddr,
    /// Number of entries that the table has space for.
    pub capacity: u32,
    /// Number of announcements that have been copied.
    pub seen: u64,
    /// First key of the table's model.
    pub first_key: u64,
}

/// Retrains some neighboring models of a `rolex` table without moving leaves. Costs one READ per
/// leaf, up to 256 of them in a round trip, and the writing of a snapshot.
///
/// # Errors
/// The pool is full: nothing has changed. A leaf is corrupted, or the fabric failed: then it has
/// taken effect as a whole or not at all.
pub async fn retrain_in_place<E: Endpoint>(
    work: &Retraining<'_, E>,
    models: Range<usize>,
) -> Result<RetrainSummary, IndexError> {
    let _course = PhaseGuard::begin(work.access.endpoint, ProtocolPhase::Gather);
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
    let (kind, geometry, shift) = (LayerKind::Rolex, access.geometry, work.contents.shift);
    let mut trained = train(&fences, kind, geometry, epsilon_leaves, shift);
    let record_count = met.iter().map(|leaf| leaf.record_count).sum();
    access
        .endpoint
        .note_training(leaves.len() as u64, record_count);
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let allocator = allocator.taking_reserve();
    let wanting = tables::empty(&mut trained.models);
    let placed = tables::place(work, batch, &allocator, generation, RunSpace::NONE, wanting);
    let tables = placed.await?.elsewhere;
    let old_leaf_count: u64 = old.iter().map(|model| u64::from(model.leaf_count)).sum();
    let contents = SnapshotContents {
        generation,
        ..assemble(work, &models, &trained, &met)
    };
    install(work, batch, contents, tables).await?;
    access.endpoint.enters(ProtocolPhase::Announce);
    let (late_count, now) = announce_late(
        work,
        batch,
        &models,
        &seen,
        &trained.models[..],
        &leaves[..],
    )
    .await?;
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

/// Returns the addresses and capacities of models' synonym leaf tables.
fn synonym_tables(models: &[Model]) -> Vec<(RemoteAddr, u32)> {
    let tables = models.iter();
    let tables = tables.map(|model| (model.synonym_table, model.synonym_capacity));
    tables.collect()
}

/// Returns the table's contents with a range retrained and other models unchanged, under the old
/// generation.
fn assemble<E: Endpoint>(
    work: &Retraining<'_, E>,
    range: &Range<usize>,
    trained: &TrainedModels,
    met: &[ReadLeaf],
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
