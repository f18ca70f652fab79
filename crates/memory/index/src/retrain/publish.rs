//! Publication: a snapshot with new models in place of old ones.

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint, OperationKind, ProtocolPhase};
use farleaf_leaf::words::{Contradiction, LeafAccess, LeafError};
use farleaf_pool::allocation::{ChunkAllocator, ChunkRange};
use farleaf_pool::catalog::{self, CatalogEntry};
use farleaf_pool::chunk::{ChunkPurpose, FreeLeaves};

use super::gather::contradiction;
use super::mover::{MoveResult, NewLeaf};
use super::train::{TrainedModels, train};
use super::{RetrainSummary, Retraining, tables};
use crate::IndexError;
use crate::directory::Model;
use crate::layer::LayerKind;
use crate::load::{Fence, Gap, epsilon_leaves_max, synonym_capacity};
use crate::snapshot::{SnapshotContents, write_snapshot};

/// Models of a snapshot around a range of keys that has been moved.
struct UnmovedModels {
    /// Models to the left that stay, the last of them without its tail if that was moved.
    left: Vec<Model>,
    /// Models to the right.
    right: Vec<Model>,
    /// Number of leaves of `left`.
    left_leaf_count: usize,
    right_first_leaf: usize,
}

/// Trains models on the new leaves, writes the snapshot and swaps the root. Also returns where the
/// used part of the run begins.
pub(super) async fn publish<E: Endpoint>(
    work: &Retraining<'_, E>,
    moved: &MoveResult,
    run: ChunkRange,
    generation: u16,
) -> Result<(RetrainSummary, RemoteAddr), IndexError> {
    let access = &work.access;
    let old = work.contents;
    let mut batch = Batch::new();
    let mut around = around(work, &mut batch, moved).await?;
    let shift = old.shift;
    let record_count: usize = moved.leaves.iter().map(|leaf| leaf.record_count).sum();
    let count_mean = (record_count as f64 / moved.leaves.len() as f64).max(1.0);
    let epsilon_leaves = (work.epsilon_keys / count_mean).min(epsilon_leaves_max(shift));
    let TrainedModels {
        models: mut trained,
        residuals,
    } = {
        let leaves = moved.leaves.iter().zip(fences(&moved.leaves));
        let leaves: Vec<_> = leaves.map(|(leaf, fence)| (leaf.addr, fence)).collect();
        let geometry = access.geometry;
        train(&leaves, LayerKind::Learned, geometry, epsilon_leaves, shift)
    };
    let leaf_count = moved.leaves.len() as u64;
    access
        .endpoint
        .note_training(leaf_count, record_count as u64);
    let model_count = trained.len() as u64;

    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let allocator = allocator.taking_reserve();
    let cut = around
        .left
        .last_mut()
        .filter(|cut| cut.synonym_table.is_null());
    let wanting = tables::wanting(work, moved, &mut trained, cut);
    let run_start = access.layout.chunk_start(run.first);
    let first_leaf = moved.leaves[0].addr;
    // The tables must be on the main node, wherever the run is.
    let is_main_node = run.first.node() == access.layout.main_node().node;
    let space_start = if is_main_node { run_start } else { first_leaf };
    let run_space = tables::RunSpace::before(first_leaf, space_start);
    let placed = tables::place(work, &mut batch, &allocator, generation, run_space, wanting);
    let tables = placed.await?;
    let contents = assemble(
        old,
        around,
        trained,
        residuals,
        generation,
        record_count as u64,
    );
    let run_used_from = tables.run_used_from;
    install(work, &mut batch, contents, tables.elsewhere).await?;
    let counters = access.endpoint.counters();
    counters.record(OperationKind::Control, &batch.take_cost());
    let summary = RetrainSummary {
        made_count: moved.leaves.len() as u64,
        record_count: record_count as u64,
        model_count,
        ..RetrainSummary::default()
    };
    Ok((summary, run_used_from))
}

/// Returns the lower fences of leaves, left to right, each between the neighboring records when the
/// leaves were created. The fence of the table's first leaf is trained as its first key: a line
/// from 0 would predict nothing useful, and smaller keys belong to that leaf anyway.
fn fences(leaves: &[NewLeaf]) -> impl Iterator<Item = Fence> + '_ {
    leaves.iter().enumerate().map(|(index, leaf)| {
        let first = leaf.keys.map_or(leaf.high, |(first, _)| first);
        let Some(before) = index.checked_sub(1).map(|before| &leaves[before]) else {
            let low = if leaf.low == 0 { first } else { leaf.low };
            return Fence::alone(low);
        };
        if !before.is_left_of(leaf) {
            // Keys between the two leaves are lost, and belong to the leaf on the left.
            return Fence::alone(leaf.low);
        }
        let last = before.keys.map_or(before.low, |(_, last)| last);
        let gap = Gap { last, first };
        Fence { low: leaf.low, gap }
    })
}

/// Writes a snapshot, then makes the root name it: the commit point. `tables`: chunks of synonym
/// leaf tables that the snapshot names, which belong to the table from then on.
pub(super) async fn install<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    contents: SnapshotContents,
    tables: Option<ChunkRange>,
) -> Result<(), IndexError> {
    let access = &work.access;
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let allocator = allocator.taking_reserve();
    let generation = contents.generation;
    access.endpoint.enters(ProtocolPhase::Snapshot);
    let written = write_snapshot(access.endpoint, &allocator, access.layout, contents).await;
    let (root, snapshot) = match written {
        Ok(written) => written,
        Err(error) => {
            if let Some(range) = tables {
                let (free, none) = (ChunkPurpose::Free, FreeLeaves::default());
                allocator.give_back(range, free, access.table, none).await?;
            }
            return Err(error.into());
        }
    };
    access.endpoint.enters(ProtocolPhase::RootSwap);
    if !swap_root(access, batch, work.entry, work.root, root).await? {
        // No other session swaps the root of a table that is not empty, so the table is a different
        // one.
        return Err(dropped(access));
    }
    access.endpoint.enters(ProtocolPhase::GiveBack);
    let purpose = ChunkPurpose::Snapshot { generation };
    for range in tables.into_iter().chain([snapshot]) {
        allocator
            .give_back(range, purpose, access.table, FreeLeaves::default())
            .await?;
    }
    Ok(())
}

/// Swaps the root, after zeroing the pending root, so that no session restores that one. Returns
/// false if another root is in force.
///
/// # Errors
/// The table was dropped, and the root is no longer needed; or the fabric failed.
pub async fn swap_root<E: Endpoint, F>(
    access: &LeafAccess<'_, E, F>,
    batch: &mut Batch,
    entry: &CatalogEntry,
    from: RemoteAddr,
    to: RemoteAddr,
) -> Result<bool, IndexError> {
    let layout = access.layout;
    batch.clear();
    batch.write_word(catalog::pending_root_addr(layout, entry.index), 0);
    access.endpoint.execute(batch).await?;
    batch.clear();
    let place = catalog::root_addr(layout, entry.index);
    let swap = batch.compare_swap(place, from.word(), to.word());
    access.endpoint.execute(batch).await?;
    match batch.previous(swap) {
        // A zero root word means that the table was dropped.
        0 => Err(dropped(access)),
        previous => Ok(previous == from.word()),
    }
}

fn dropped<E, F>(access: &LeafAccess<'_, E, F>) -> IndexError {
    let table = access.table;
    LeafError::TableDropped { table }.into()
}

/// Returns the models that stay. A model whose tail was moved is cut where the moved keys begin.
async fn around<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    moved: &MoveResult,
) -> Result<UnmovedModels, IndexError> {
    let models = &work.contents.models;
    let (first, last) = (&moved.leaves[0], &moved.leaves[moved.leaves.len() - 1]);
    // The range of the last leaf, as created, ends where a model begins, or at the last key. If a
    // lost leaf follows it, that belongs to the same model. The first model also covers keys below
    // its first key, because its first leaf begins at 0.
    let low = |index: usize| {
        if index == 0 {
            0
        } else {
            models[index].first_key
        }
    };
    let begin_below = |key: u64| {
        (0..models.len())
            .take_while(|index| low(*index) < key)
            .count()
    };
    let right_from = last.high.checked_add(1).map_or(models.len(), &begin_below);
    let mut left = models[..begin_below(first.low).min(right_from)].to_vec();
    let is_whole = models
        .get(left.len())
        .is_some_and(|next| next.first_key == first.low);
    if let Some(cut) = left.last_mut() {
        let leaf_count = match leaves_below(work, batch, cut, first.low).await {
            // The model is lost as a whole, and stays unchanged.
            Err(error) if is_whole && error.lost_node() == Some(cut.base.node()) => cut.leaf_count,
            leaf_count => leaf_count?,
        };
        if leaf_count == 0 {
            let what = Contradiction::LinkToTheLeft;
            return Err(contradiction(work, cut.base, what));
        }
        if cut.first_key >= first.low {
            // This happens only to the first model, which also covers keys below its first key.
            // There it predicts the same leaf for all, and so it does for the leaves that remain.
            (cut.first_key, cut.slope, cut.error_max) = (0, 0.0, leaf_count as f32);
        }
        if leaf_count < cut.leaf_count || !is_whole {
            cut.leaf_count = leaf_count;
            // The old table's entries may name leaves that are no longer part of the model: at
            // least siblings of its last leaf.
            cut.synonym_table = RemoteAddr::NULL;
            cut.synonym_capacity = synonym_capacity(LayerKind::Learned, leaf_count);
        }
    }
    let count = |models: &[Model]| models.iter().map(|model| model.leaf_count as usize).sum();
    Ok(UnmovedModels {
        left_leaf_count: count(&left),
        right_first_leaf: count(&models[..right_from]),
        right: models[right_from..].to_vec(),
        left,
    })
}

/// Returns how many trained leaves of a model begin below a key: lower fences never change, not
/// even those of retired leaves. Costs a round trip per bisection step.
async fn leaves_below<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    model: &Model,
    key: u64,
) -> Result<u32, IndexError> {
    let access = &work.access;
    let (mut from, mut to) = (0, model.leaf_count);
    while from < to {
        let middle = from + (to - from) / 2;
        let blocks = u64::from(middle) * access.geometry.stride_blocks();
        let addr = model.base.offset_blocks(blocks);
        let leaf = access.read_intact(batch, addr, work.broken).await?;
        if leaf.image().low() < key {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    Ok(from)
}

fn assemble(
    old: &SnapshotContents,
    around: UnmovedModels,
    trained: Vec<Model>,
    residuals: Vec<i8>,
    generation: u16,
    record_count: u64,
) -> SnapshotContents {
    // Residuals of a cut model are those of its first leaves. The residuals of `left` are found,
    // model by model, at the leaves' old numbers.
    let old_leaf_count = old.residuals.len();
    let mut joined = old.residuals[..around.left_leaf_count].to_vec();
    joined.extend(residuals);
    joined.extend_from_slice(&old.residuals[around.right_first_leaf..]);
    let stays = around.left_leaf_count + (old_leaf_count - around.right_first_leaf);
    let share = stays as f64 / old_leaf_count as f64;
    let models = [around.left, trained, around.right].concat();
    SnapshotContents {
        table: old.table,
        generation,
        record_count: (old.record_count as f64 * share) as u64 + record_count,
        shift: old.shift,
        models,
        residuals: joined,
        leaf_table: None,
    }
}
