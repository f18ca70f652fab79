//! Reading the whole level above the leaves, for the search layer cache of a compute node (RF-tree:
//! SLC). Whole chunks of the tree are read, many in one batch, whatever they contain.

use std::collections::BTreeSet;

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_pool::allocation::ChunkAllocator;
use farleaf_pool::chunk::ChunkPurpose;
use farleaf_pool::layout::ChunkIndex;

use super::access::TreeAccess;
use super::node::{
    CHUNK_NODE_COUNT, ChildEntry, InnerNode, NODE_SIZE_BLOCKS, NODE_SIZE_WORDS, image_addr,
};
use crate::IndexError;

/// Number of chunks that one batch reads: 512 KiB.
const BATCH_CHUNK_COUNT: usize = 8;
const CHUNK_SIZE_WORDS: usize = CHUNK_NODE_COUNT as usize * NODE_SIZE_WORDS;

/// Contents of the level above the leaves.
#[derive(Clone, Debug, Default)]
pub struct Level {
    /// All listed leaves by lower fence, each fence once.
    pub entries: Vec<ChildEntry>,
    /// Linked nodes that list the leaves, by lower fence: a split of a leaf is listed there.
    pub nodes: Vec<ChildEntry>,
}

impl<E: Endpoint> TreeAccess<'_, E> {
    /// Returns the chunks of a tree, on all nodes that can be reached.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn chunks(&self, generation: u16) -> Result<Vec<ChunkIndex>, IndexError> {
        let access = &self.leaves;
        let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
        let table = allocator.entries().await?;
        let purpose = Some(ChunkPurpose::Inner { generation });
        let own = table
            .iter()
            .filter(|(_, chunk)| chunk.table == access.table && chunk.purpose == purpose);
        Ok(own.map(|(index, _)| index).collect())
    }

    /// Calls `visit` with every intact node of a tree and its address. Nodes are read one after the
    /// other, not at one moment, and torn ones are skipped. Costs one round trip per 8 chunks of 64
    /// KiB, and those for the chunk table. Siblings that are not linked yet may be included.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn nodes(
        &self,
        generation: u16,
        mut visit: impl FnMut(RemoteAddr, &InnerNode),
    ) -> Result<(), IndexError> {
        let chunks = self.chunks(generation).await?;
        let access = &self.leaves;
        let mut batch = Batch::new();
        // Each batch is for one memory node, so that a lost node hides no other's chunks.
        let of_one_node = |left: &ChunkIndex, right: &ChunkIndex| left.node() == right.node();
        let of_nodes = chunks.chunk_by(of_one_node);
        for part in of_nodes.flat_map(|chunks| chunks.chunks(BATCH_CHUNK_COUNT)) {
            batch.clear();
            let reads: Vec<_> = part
                .iter()
                .map(|chunk| access.layout.chunk_start(*chunk))
                // The read starts at the first node's image, because its lock is not needed.
                .map(|start| (start, batch.read(image_addr(start), CHUNK_SIZE_WORDS - 1)))
                .collect();
            match access.endpoint.execute(&mut batch).await {
                // The nodes on it are lost.
                Err(error) if error.lost_node().is_some() => continue,
                executed => executed?,
            }
            for (start, read) in reads {
                let images = batch.words(read).chunks(NODE_SIZE_WORDS);
                for (index, words) in (0..).zip(images) {
                    let addr = start.offset_blocks(index * NODE_SIZE_BLOCKS);
                    let node = InnerNode::from_words(&words[..NODE_SIZE_WORDS - 1]);
                    if node.is_intact(addr, access.table) {
                        visit(addr, &node);
                    }
                }
            }
        }
        let counters = access.endpoint.counters();
        counters.record(OperationKind::Control, &batch.take_cost());
        Ok(())
    }

    /// Reads the level above the leaves. Costs the same as [`nodes`](Self::nodes).
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn level(&self, generation: u16) -> Result<Level, IndexError> {
        let mut level = Level::default();
        let mut linked = BTreeSet::new();
        let visit = |addr: RemoteAddr, node: &InnerNode| {
            if node.level() == 1 {
                linked.insert(node.link().place());
                let fences = node.low()..=node.high();
                let own = node.entries().filter(|entry| fences.contains(&entry.low));
                level.entries.extend(own);
                level.nodes.push(ChildEntry {
                    low: node.low(),
                    child: addr,
                });
            }
        };
        self.nodes(generation, visit).await?;
        // Other nodes may be about to be linked, or their creator may have died before. Every node
        // that a node links to is in the chain: a new node's link is its left neighbor's.
        level
            .nodes
            .retain(|node| node.low == 0 || linked.contains(&node.child));
        for list in [&mut level.entries, &mut level.nodes] {
            list.sort_unstable();
            list.dedup_by_key(|entry| entry.low);
        }
        Ok(level)
    }
}
