//! A whole tree at once, over leaves that ascend: from the level above them to the root.

use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_leaf::LeafAccess;
use farleaf_region::allocation::{ChunkAllocator, ChunkRange};
use farleaf_region::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_types::{OwnerWord, RemoteAddr};

use super::head::Head;
use super::node::{
    ENTRY_COUNT_MAX, Entry, InnerNode, NODE_SIZE_BLOCKS, NODE_SIZE_WORDS, lease_shape, lock_addr,
};
use super::pieces::Pieces;
use crate::IndexError;

/// Nodes that are written with one verb: 64 KiB.
const WRITE_NODE_COUNT: u64 = 64;

/// A tree that nothing points to yet.
#[derive(Debug)]
pub struct NewTree {
    /// What the catalog's root is to be.
    pub root: RemoteAddr,
    head_range: ChunkRange,
    pieces: Pieces,
    generation: u16,
}

/// What a tree is built over.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The load that makes it.
    pub generation: u16,
    /// Its records.
    pub record_count: u64,
    /// How full nodes become, in percent.
    pub fill_percent: u8,
    /// Entries that a node gets at the most.
    pub entry_count_max: u32,
    /// Whether it may take what is kept for making room (A6).
    pub takes_reserve: bool,
    /// What its head says of compactions: whether one made it, or what it replaces.
    pub is_compacted: bool,
}

impl Plan {
    fn entry_count(&self) -> usize {
        let most = (self.entry_count_max as usize).min(ENTRY_COUNT_MAX);
        let count = most * usize::from(self.fill_percent) / 100;
        count.clamp(2, most)
    }
}

/// Writes a tree over these leaves, whose lower fences ascend from 0. Its chunks are this session's
/// until [`NewTree::give_back`].
///
/// # Errors
/// The pool is full; then nothing is left of it. Or the fabric failed.
pub async fn build<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    plan: Plan,
    leaves: &[Entry],
) -> Result<NewTree, IndexError> {
    assert_eq!(leaves[0].low, 0, "the first leaf begins with the first key");
    let mut allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    if plan.takes_reserve {
        allocator = allocator.taking_reserve();
    }
    let purpose = ChunkPurpose::Snapshot {
        generation: plan.generation,
    };
    // U1: what leads to leaves begins on the home node.
    let head_range = allocator.claim(1, purpose, access.table).await?;
    let addr = access.layout.chunk_start(head_range.first);
    let mut tree = NewTree {
        root: addr.with_spare(plan.generation),
        head_range,
        pieces: Pieces::new(lease_shape(plan.generation), plan.takes_reserve),
        generation: plan.generation,
    };
    match write(access, plan, leaves, (addr, &mut tree.pieces)).await {
        Ok(()) => Ok(tree),
        Err(error) => {
            tree.give_back(access, false).await?;
            Err(error)
        }
    }
}

async fn write<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    plan: Plan,
    leaves: &[Entry],
    (addr, pieces): (RemoteAddr, &mut Pieces),
) -> Result<(), IndexError> {
    let mut batch = Batch::new();
    let mut level = 1;
    let mut nodes = write_level(access, &mut batch, (plan, level), leaves, pieces).await?;
    while nodes.len() > 1 {
        level += 1;
        nodes = write_level(access, &mut batch, (plan, level), &nodes, pieces).await?;
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

/// Writes one level over the children of the one below, and returns its nodes.
async fn write_level<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    batch: &mut Batch,
    (plan, level): (Plan, u16),
    children: &[Entry],
    pieces: &mut Pieces,
) -> Result<Vec<Entry>, IndexError> {
    let groups: Vec<&[Entry]> = children.chunks(plan.entry_count()).collect();
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
    let entries = groups.iter().zip(&nodes).map(|(group, node)| Entry {
        low: group[0].low,
        child: *node,
    });
    Ok(entries.collect())
}

impl NewTree {
    /// Gives the chunks back: to the table if its root was installed, else as free.
    ///
    /// # Errors
    /// The fabric failed; the memory node then sweeps them when the session ends.
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
