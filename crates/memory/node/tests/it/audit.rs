//! Invariants of an idle node memory that was swept.

use std::collections::BTreeMap;

use farleaf_base::OwnerWord;
use farleaf_executor::block_on;
use farleaf_pool::allocation::ChunkAllocator;
use farleaf_pool::chunk::{ChunkEntry, ChunkPurpose};

use crate::pool::Pool;

/// Expected records of a table.
pub(crate) type Model = BTreeMap<u64, u64>;

/// Chunks in use, by purpose. Equal memories have equal usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) leaves: u64,
    pub(crate) runs: u64,
    pub(crate) snapshots: u64,
    pub(crate) inner: u64,
}

pub(crate) fn chunks(pool: &Pool) -> Vec<ChunkEntry> {
    let endpoint = pool.endpoint();
    let allocator = ChunkAllocator::new(&endpoint, &pool.layout, OwnerWord::FREE);
    let table = block_on(allocator.entries(), || 0).expect("the chunk table is readable");
    table.iter().map(|(_, chunk)| *chunk).collect()
}

pub(crate) fn usage(pool: &Pool) -> Usage {
    let mut usage = Usage::default();
    for chunk in chunks(pool) {
        match chunk.purpose.expect("known") {
            ChunkPurpose::Free => {}
            ChunkPurpose::Leaves { .. } => usage.leaves += 1,
            ChunkPurpose::Run { .. } => usage.runs += 1,
            ChunkPurpose::Snapshot { .. } => usage.snapshots += 1,
            ChunkPurpose::Inner { .. } => usage.inner += 1,
            ChunkPurpose::Rings | ChunkPurpose::Models => unreachable!("nobody makes calls"),
            ChunkPurpose::Blocks { .. } | ChunkPurpose::Extent { .. } => {
                unreachable!("keys and values are words")
            }
        }
    }
    usage
}

/// Checks the whole memory, and every table against its model, by name. Dropped tables are left to
/// [`assert_reclaimed`].
pub(crate) fn audit(pool: &Pool, models: &[(&str, &Model)]) {
    let found = block_on(farleaf_node::audit::audit(&pool.plain, &pool.layout), || 0);
    let found = found.expect("nothing is read outside of the memory");
    assert_eq!(found.findings, []);
    let tables: BTreeMap<_, _> = found
        .tables
        .iter()
        .map(|table| (table.entry.record.name.as_str(), table.record_count))
        .collect();
    let expected = models.iter();
    let expected: BTreeMap<_, _> = expected
        .map(|(name, model)| (*name, model.len() as u64))
        .collect();
    assert_eq!(tables, expected, "leaves hold each record once");
}

/// Checks that nothing is in use for a table any more.
pub(crate) fn assert_reclaimed(pool: &Pool) {
    assert_eq!(pool.catalog(), [], "the catalog entry is free");
    assert_eq!(usage(pool), Usage::default(), "all chunks are free");
    audit(pool, &[]);
}
