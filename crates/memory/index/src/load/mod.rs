//! Bulk load: a sorted sequence becomes leaves with models and residuals, or leaves with a tree
//! over them, and all of it becomes visible at once. Any load keeps these rules:
//!
//! - **Own chunks.** Leaves, models, residuals and synonym leaf tables are written to chunks that
//!   the loader owns; nothing points to them.
//! - **Empty table.** The loader locks the table's first leaf. It continues only if the leaf is
//!   intact, not retired, empty and without a sibling: then no other session has or can write a
//!   record.
//! - **Commit.** One batch commits: it writes the pending root, retires the first leaf in favor of
//!   the first new one (link, then state: the commit point), unlocks it, and swaps the root.
//! - **Pending root.** A session that finds the first leaf retired, and the root still the old one,
//!   swaps the root to the pending one. Before the commit point a pending root means nothing: the
//!   next loader overwrites it under the lock.
//! - **Generation.** After the commit the chunks are given to the table. The sweep of a dead
//!   loader's chunks keeps those of the root's generation and frees the others. Each load draws its
//!   own generation number, so that two concurrent loads do not share one.

mod commit;
mod create;
mod cut;
mod extent;
mod run;
mod train;
mod under_tree;

pub use commit::{commit, draw_generation, finish_root, is_untouched};
pub use create::{NewTable, create_table};
pub use cut::{Cutter, FillTarget};
pub use extent::RunExtents;
pub(crate) use run::{error_max, leaf_count_max, synonym_capacity};
pub(crate) use train::{Fence, Gap, epsilon_leaves_max, residuals_of};

use core::cell::Cell;

use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_leaf::words::LeafAccess;
use farleaf_pool::allocation::{ChunkAllocator, ChunkRange};
use farleaf_pool::catalog::CatalogEntry;
use farleaf_pool::chunk::{ChunkPurpose, FreeLeaves};

use crate::LoadError;
use crate::layer::LayerKind;
use crate::load::cut::cut_into;
use crate::load::run::RunBuilder;
use crate::snapshot::{SnapshotContents, write_snapshot};

/// Result of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadSummary {
    /// Number of records loaded.
    pub record_count: u64,
    /// Number of leaves written.
    pub leaf_count: u64,
    /// Number of models trained.
    pub model_count: u64,
}

/// Parameters of a load.
#[derive(Clone, Copy, Debug)]
pub struct LoadPlan {
    /// Search layer of the table.
    pub kind: LayerKind,
    /// Fill of leaves in percent.
    pub fill_percent: u8,
    /// Error bound of models, in keys.
    pub epsilon_keys: f64,
    /// Largest number of entries of inner nodes in a new table's tree. A load uses the number that
    /// the table was created with.
    pub entry_count_max: u32,
}

impl LoadPlan {
    /// Returns the error bound in leaves. The paper counts positions in slots of full leaves; runs
    /// count in the records that a leaf gets.
    pub fn epsilon_leaves(&self, slots: usize) -> f64 {
        match self.kind {
            LayerKind::Learned => {
                self.epsilon_keys / FillTarget::new(slots, self.fill_percent).mean()
            }
            _ => self.epsilon_keys / slots as f64,
        }
    }
}

/// Loads `records`, ascending by key, into an empty table. Repeatedly calls `progress` with the
/// number of records written. `broken` is as for [`LeafAccess::lock`]. Memory: one model's records
/// at a time, and a byte per leaf. An empty sequence changes nothing.
///
/// # Errors
/// The records do not ascend, the table is not empty, or the pool is full: then none of the records
/// are in the table, and the load's chunks are free again. Or the fabric failed: if the commit's
/// outcome is unknown (FABRIC-5), the table has all of the records or none. The chunks are swept
/// when the session is fenced.
pub async fn bulk_load<E: Endpoint>(
    access: LeafAccess<'_, E>,
    entry: &CatalogEntry,
    plan: LoadPlan,
    broken: &Cell<bool>,
    records: impl Iterator<Item = (u64, u64)>,
    mut progress: impl FnMut(u64),
) -> Result<LoadSummary, LoadError> {
    let mut batch = Batch::new();
    let generation = begin(&access, &mut batch, entry, broken).await;
    let counters = access.endpoint.counters();
    counters.record(OperationKind::BulkLoad, &batch.take_cost());
    let generation = generation?;
    let job = LoadJob {
        access: &access,
        entry,
        plan,
        generation,
        broken,
    };
    if plan.kind.has_tree() {
        return Box::pin(under_tree::load(&job, records, &mut progress)).await;
    }
    let purpose = ChunkPurpose::Run {
        slots: access.geometry.slots(),
        generation,
    };
    let mut extents = RunExtents::new(purpose, access.table);
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let mut snapshot_range = None;
    let range = &mut snapshot_range;
    let loaded = load_into(&job, &mut extents, range, records, &mut progress).await;
    if matches!(&loaded, Err(error) if error.is_outcome_unknown()) {
        // The load may have committed; the sweep determines this when the session has ended.
        return loaded;
    }
    let committed = matches!(loaded, Ok(summary) if summary.record_count > 0);
    extents.release(&allocator, committed).await?;
    if let Some(range) = snapshot_range {
        let snapshot = ChunkPurpose::Snapshot { generation };
        let purpose = if committed {
            snapshot
        } else {
            ChunkPurpose::Free
        };
        allocator
            .give_back(range, purpose, access.table, FreeLeaves::default())
            .await?;
    }
    loaded
}

/// Draws a generation for the load, if the table seems to be empty. Costs two round trips.
async fn begin<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    batch: &mut Batch,
    entry: &CatalogEntry,
    broken: &Cell<bool>,
) -> Result<u16, LoadError> {
    if !is_untouched(access, batch, entry, broken).await? {
        return Err(LoadError::TableNotEmpty);
    }
    Ok(draw_generation(access, batch).await?)
}

/// A bulk load into an empty table that has begun.
struct LoadJob<'a, E> {
    access: &'a LeafAccess<'a, E>,
    entry: &'a CatalogEntry,
    plan: LoadPlan,
    generation: u16,
    broken: &'a Cell<bool>,
}

async fn load_into<E: Endpoint>(
    job: &LoadJob<'_, E>,
    extents: &mut RunExtents,
    snapshot_range: &mut Option<ChunkRange>,
    records: impl Iterator<Item = (u64, u64)>,
    progress: &mut impl FnMut(u64),
) -> Result<LoadSummary, LoadError> {
    let (access, plan) = (job.access, job.plan);
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let fill = FillTarget::new(access.geometry.slot_count(), plan.fill_percent);
    let epsilon_leaves = plan.epsilon_leaves(access.geometry.slot_count());
    let mut builder = RunBuilder::new(access, &allocator, extents, plan.kind, epsilon_leaves);
    let record_count = cut_into(fill, records, &mut builder, progress).await?;
    let Some(run) = builder.finish().await? else {
        return Ok(LoadSummary::default());
    };
    extents.return_unused(&allocator).await?;
    let summary = LoadSummary {
        record_count,
        leaf_count: run.residuals.len() as u64,
        model_count: run.models.len() as u64,
    };
    let first_leaf = run.models[0].base;
    let contents = SnapshotContents {
        table: access.table,
        generation: job.generation,
        record_count,
        shift: run.shift,
        models: run.models,
        residuals: run.residuals,
        leaf_table: None,
    };
    let (root, range) =
        write_snapshot(access.endpoint, &allocator, access.layout, contents).await?;
    *snapshot_range = Some(range);
    commit(access, job.entry, first_leaf, root, None, job.broken).await?;
    progress(record_count);
    Ok(summary)
}
