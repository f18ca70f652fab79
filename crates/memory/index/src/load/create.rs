//! Creating a table: one empty leaf over all keys, and a snapshot or a tree that leads to it.

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_leaf::words::{LeafAccess, LeafBuffer};
use farleaf_pool::allocation::{ChunkAllocator, ChunkRange};
use farleaf_pool::chunk::{ChunkPurpose, FreeLeaves};

use super::LoadPlan;
use super::train::shift_for;
use crate::IndexError;
use crate::directory::Model;
use crate::snapshot::{SnapshotContents, write_snapshot};
use crate::tree::build::{NewTree, TreePlan, build};
use crate::tree::node::ChildEntry;

/// Number of entries of an empty table's synonym leaf table: it fills the rest of the snapshot's
/// only chunk.
const SYNONYM_CAPACITY: u32 = 4094;

/// Parts of a new table that its catalog entry names.
#[derive(Debug)]
pub struct NewTable {
    /// Address of the first leaf.
    pub first_leaf: RemoteAddr,
    /// First root word.
    pub root: RemoteAddr,
    leaves: ChunkRange,
    root_structure: RootStructure,
}

/// Structure that leads to the first leaf.
#[derive(Debug)]
enum RootStructure {
    Snapshot(ChunkRange),
    Tree(NewTree),
}

/// Writes the first leaf, and the first snapshot or tree, of a table that will be loaded or
/// retrained by `plan`. Nothing points to them yet, and this session owns their chunks until
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
    match write_root_structure(access, plan, first_leaf).await {
        Ok((root, root_structure)) => Ok(NewTable {
            first_leaf,
            root,
            leaves,
            root_structure,
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

/// Writes the structure that leads to the first leaf. Returns the first root, and the chunks to
/// release.
async fn write_root_structure<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    plan: &LoadPlan,
    first_leaf: RemoteAddr,
) -> Result<(RemoteAddr, RootStructure), IndexError> {
    if plan.kind.has_tree() {
        let over = TreePlan {
            generation: 0,
            record_count: 0,
            fill_percent: plan.fill_percent,
            entry_count_max: plan.entry_count_max,
            takes_reserve: false,
            is_compacted: false,
        };
        let entry = ChildEntry {
            low: 0,
            child: first_leaf,
        };
        let tree = build(access, over, &[entry]).await?;
        return Ok((tree.root, RootStructure::Tree(tree)));
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
        // Retrainings use the same scale of positions as a load would.
        shift: shift_for(plan.epsilon_leaves(access.geometry.slot_count())),
        models: vec![model],
        residuals: vec![0],
        leaf_table: None,
    };
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let written = write_snapshot(access.endpoint, &allocator, access.layout, contents).await;
    let (root, range) = written?;
    Ok((root, RootStructure::Snapshot(range)))
}

impl NewTable {
    /// Releases the chunks: to the table if its catalog entry was written, otherwise as free.
    ///
    /// # Errors
    /// The fabric failed; the memory node then sweeps the chunks when the session ends.
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
        let snapshot = match self.root_structure {
            RootStructure::Tree(tree) => return tree.give_back(access, committed).await,
            RootStructure::Snapshot(snapshot) => snapshot,
        };
        let purpose = ChunkPurpose::Snapshot { generation: 0 };
        let purpose = if committed { purpose } else { free };
        allocator
            .give_back(snapshot, purpose, access.table, FreeLeaves::default())
            .await?;
        Ok(())
    }
}
