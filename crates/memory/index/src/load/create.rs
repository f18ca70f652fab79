//! A new table: one empty leaf over all keys, and a snapshot, or a tree, that leads to it.

use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_leaf::{LeafAccess, LeafBuffer};
use farleaf_region::allocation::{ChunkAllocator, ChunkRange};
use farleaf_region::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_types::RemoteAddr;

use super::LoadPlan;
use super::train::shift_for;
use crate::IndexError;
use crate::directory::Model;
use crate::snapshot::{SnapshotContents, write_snapshot};
use crate::tree::build::{NewTree, Plan, build};
use crate::tree::node::Entry;

/// Entries of the synonym leaf table of an empty table: it fills what is left of the one chunk that
/// the snapshot takes anyway.
const SYNONYM_CAPACITY: u32 = 4094;

/// What a catalog entry needs of a new table.
#[derive(Debug)]
pub struct NewTable {
    /// Its first leaf.
    pub first_leaf: RemoteAddr,
    /// Its first root.
    pub root: RemoteAddr,
    leaves: ChunkRange,
    leading: Leading,
}

/// What leads to the first leaf.
#[derive(Debug)]
enum Leading {
    Snapshot(ChunkRange),
    Tree(NewTree),
}

/// Writes the first leaf and the first snapshot of a table that is to be loaded, or retrained, by
/// `plan`. Nothing points to them yet, and this session owns their chunks until
/// [`NewTable::give_back`].
///
/// # Errors
/// The pool is full, or the fabric failed.
pub async fn create_table<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    plan: &LoadPlan,
) -> Result<NewTable, IndexError> {
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let purpose = ChunkPurpose::Leaves {
        slots: access.geometry.slots(),
    };
    let leaves = allocator.claim(1, purpose, access.table).await?;
    let first_leaf = access.layout.chunk_start(leaves.first);
    let mut leaf = LeafBuffer::new(access.geometry, 0, u64::MAX, RemoteAddr::NULL);
    let mut batch = Batch::new();
    access.change(first_leaf).write_new(&mut batch, &mut leaf);
    let executed = access.endpoint.execute(&mut batch).await;
    let counters = access.endpoint.counters();
    counters.record(OperationKind::Control, &batch.take_cost());
    executed?;
    match lead_to(access, plan, first_leaf).await {
        Ok((root, leading)) => Ok(NewTable {
            first_leaf,
            root,
            leaves,
            leading,
        }),
        Err(error) => {
            let free = FreeLeaves::default();
            allocator
                .give_back(leaves, ChunkPurpose::Free, access.table, free)
                .await?;
            Err(error)
        }
    }
}

/// The first root, and what has to be given back of it.
async fn lead_to<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    plan: &LoadPlan,
    first_leaf: RemoteAddr,
) -> Result<(RemoteAddr, Leading), IndexError> {
    if plan.kind.has_tree() {
        let over = Plan {
            generation: 0,
            record_count: 0,
            fill_percent: plan.fill_percent,
            entry_count_max: plan.entry_count_max,
            takes_reserve: false,
            is_compacted: false,
        };
        let entry = Entry {
            low: 0,
            child: first_leaf,
        };
        let tree = build(access, over, &[entry]).await?;
        return Ok((tree.root, Leading::Tree(tree)));
    }
    let model = Model {
        first_key: 0,
        slope: 0.0,
        intercept: 0.0,
        error_max: 0.0,
        base: first_leaf,
        leaf_count: 1,
        synonym_table: RemoteAddr::NULL,
        synonym_capacity: SYNONYM_CAPACITY,
    };
    let contents = SnapshotContents {
        table: access.table,
        generation: 0,
        record_count: 0,
        // What retrainings add is counted as finely as a load would, whatever stays of this.
        shift: shift_for(plan.epsilon_leaves(access.geometry.slot_count())),
        models: vec![model],
        residuals: vec![0],
        leaf_table: None,
    };
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let written = write_snapshot(access.endpoint, &allocator, access.layout, contents).await;
    let (root, range) = written?;
    Ok((root, Leading::Snapshot(range)))
}

impl NewTable {
    /// Gives the chunks back: to the table if its catalog entry was written, else as free.
    ///
    /// # Errors
    /// The fabric failed; the memory node then sweeps them when the session ends.
    pub async fn give_back<E: Endpoint>(
        self,
        access: &LeafAccess<'_, E>,
        committed: bool,
    ) -> Result<(), IndexError> {
        let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
        let free = ChunkPurpose::Free;
        let mut unused = FreeLeaves::default();
        (1..access.geometry.chunk_leaf_count()).for_each(|leaf| unused.insert(leaf));
        let purpose = ChunkPurpose::Leaves {
            slots: access.geometry.slots(),
        };
        let purpose = if committed { purpose } else { free };
        allocator
            .give_back(self.leaves, purpose, access.table, unused)
            .await?;
        let snapshot = match self.leading {
            Leading::Tree(tree) => return tree.give_back(access, committed).await,
            Leading::Snapshot(snapshot) => snapshot,
        };
        let purpose = ChunkPurpose::Snapshot { generation: 0 };
        let purpose = if committed { purpose } else { free };
        allocator
            .give_back(snapshot, purpose, access.table, FreeLeaves::default())
            .await?;
        Ok(())
    }
}
