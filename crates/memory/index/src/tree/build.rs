//! Building a whole tree over ascending leaves, from the level above them to the root.

use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_leaf::words::LeafAccess;
use farleaf_pool::allocation::{ChunkAllocator, ChunkRange};
use farleaf_pool::chunk::{ChunkPurpose, FreeLeaves};

use super::head::Head;
use super::node::{
    ChildEntry, ENTRY_COUNT_MAX, InnerNode, NODE_SIZE_BLOCKS, NODE_SIZE_WORDS, lease_shape,
    lock_addr,
};
use super::pieces::Pieces;
use crate::IndexError;

/// Number of nodes that one verb writes: 64 KiB.
const WRITE_NODE_COUNT: u64 = 64;

/// Tree that nothing points to yet.
#[derive(Debug)]
pub struct NewTree {
    /// Future root word of the catalog entry.
    pub root: RemoteAddr,
    head_range: ChunkRange,
    pieces: Pieces,
    generation: u16,
}

/// Parameters of a tree to build.
#[derive(Clone, Copy, Debug)]
pub struct TreePlan {
    /// Generation of the load that builds the tree.
    pub generation: u16,
    /// Number of records.
    pub record_count: u64,
    /// Fill of nodes in percent.
    pub fill_percent: u8,
    /// Largest number of entries of a node.
    pub entry_count_max: u32,
    /// True if the tree may use the chunks that are reserved for retraining.
    pub takes_reserve: bool,
    /// Value of `is_compacted` in the head: whether a compaction builds the tree, or built the one
    /// that it replaces.
    pub is_compacted: bool,
}

impl TreePlan {
    fn entry_count(&self) -> usize {
        let most = (self.entry_count_max as usize).min(ENTRY_COUNT_MAX);
        let count = most * usize::from(self.fill_percent) / 100;
        count.clamp(2, most)
    }
}

/// Writes a tree over leaves whose lower fences ascend from 0. Its chunks belong to this session
/// until [`NewTree::give_back`].
///
/// # Errors
/// The pool is full: then all its chunks are free again. Or the fabric failed.
pub async fn build<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    plan: TreePlan,
    leaves: &[ChildEntry],
) -> Result<NewTree, IndexError> {
    assert_eq!(leaves[0].low, 0, "the first leaf begins with the first key");
    let mut allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    if plan.takes_reserve {
        allocator = allocator.taking_reserve();
    }
    let purpose = ChunkPurpose::Snapshot {
        generation: plan.generation,
    };
    // The head must be on the main node.
    let head_range = allocator.claim(1, purpose, access.table).await?;
    let addr = access.layout.chunk_start(head_range.first);
    let mut tree = NewTree {
        root: addr.with_spare(plan.generation),
        head_range,
        pieces: Pieces::new(lease_shape(plan.generation), plan.takes_reserve),
        generation: plan.generation,
    };
    match write(access, plan, leaves, addr, &mut tree.pieces).await {
        Ok(()) => Ok(tree),
        Err(error) => {
            tree.give_back(access, false).await?;
            Err(error)
        }
    }
}

async fn write<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    plan: TreePlan,
    leaves: &[ChildEntry],
    addr: RemoteAddr,
    pieces: &mut Pieces,
) -> Result<(), IndexError> {
    let mut batch = Batch::new();
    let mut level = 1;
    let mut nodes = write_level(access, &mut batch, plan, level, leaves, pieces).await?;
    while nodes.len() > 1 {
        level += 1;
        nodes = write_level(access, &mut batch, plan, level, &nodes, pieces).await?;
    }
    let head = Head {
        addr,
        generation: plan.generation,
        record_count: plan.record_count,
        first_leaf: leaves[0].child,
        entry_count_max: plan.entry_count_max,
        root: nodes[0].child.with_spare(level),
        leaf_count: leaves.len() as u64,
        is_compacted: plan.is_compacted,
    };
    batch.clear();
    batch.write(addr.word_at(0), &head.encode(access.table));
    let executed = access.endpoint.execute(&mut batch).await;
    let counters = access.endpoint.counters();
    counters.record(OperationKind::Control, &batch.take_cost());
    Ok(executed?)
}

/// Writes one level over the children below it, and returns its nodes.
async fn write_level<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    batch: &mut Batch,
    plan: TreePlan,
    level: u16,
    children: &[ChildEntry],
    pieces: &mut Pieces,
) -> Result<Vec<ChildEntry>, IndexError> {
    let groups: Vec<&[ChildEntry]> = children.chunks(plan.entry_count()).collect();
    let mut nodes = Vec::with_capacity(groups.len());
    while nodes.len() < groups.len() {
        let wanted = (groups.len() - nodes.len()) as u64;
        let (start, count) = pieces.take(access, wanted.min(WRITE_NODE_COUNT)).await?;
        nodes.extend((0..count).map(|index| start.offset_blocks(index * NODE_SIZE_BLOCKS)));
    }
    let mut start = 0;
    while start < nodes.len() {
        let side_by_side = nodes[start..].windows(2);
        let side_by_side =
            side_by_side.take_while(|pair| pair[0].offset_blocks(NODE_SIZE_BLOCKS) == pair[1]);
        let count = 1 + side_by_side.take(WRITE_NODE_COUNT as usize - 1).count();
        let mut words = Vec::with_capacity(count * NODE_SIZE_WORDS);
        for index in start..start + count {
            let low = groups[index][0].low;
            let next = groups.get(index + 1);
            let high = next.map_or(u64::MAX, |next| next[0].low - 1);
            let link = nodes.get(index + 1).copied();
            let mut node = InnerNode::new(level, low, high, link.unwrap_or(RemoteAddr::NULL));
            for entry in groups[index] {
                let added = node.add(*entry);
                assert!(added.is_some(), "a group fits into a node");
            }
            node.seal(nodes[index], access.table);
            words.extend_from_slice(&node.node_words(OwnerWord::FREE.word()));
        }
        batch.clear();
        batch.write(lock_addr(nodes[start]), &words);
        access.endpoint.execute(batch).await?;
        start += count;
    }
    let entries = groups.iter().zip(&nodes).map(|(group, node)| ChildEntry {
        low: group[0].low,
        child: *node,
    });
    Ok(entries.collect())
}

impl NewTree {
    /// Releases the chunks: to the table if its root was installed, otherwise as free.
    ///
    /// # Errors
    /// The fabric failed; the memory node then sweeps the chunks when the session ends.
    pub async fn give_back<E: Endpoint>(
        self,
        access: &LeafAccess<'_, E>,
        committed: bool,
    ) -> Result<(), IndexError> {
        let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
        let purpose = if committed {
            ChunkPurpose::Snapshot {
                generation: self.generation,
            }
        } else {
            ChunkPurpose::Free
        };
        let none = FreeLeaves::default();
        allocator
            .give_back(self.head_range, purpose, access.table, none)
            .await?;
        Ok(self.pieces.release(access, committed).await?)
    }
}
