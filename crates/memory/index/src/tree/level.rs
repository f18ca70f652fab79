//! Reading all of the level above the leaves, as the search layer cache of a compute node wants it
//! (RF-tree: SLC): chunks of the tree whole, many with one batch, whatever lies in them.

use std::collections::BTreeSet;

use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_region::allocation::ChunkAllocator;
use farleaf_region::chunk::ChunkPurpose;
use farleaf_region::layout::ChunkIndex;
use farleaf_types::RemoteAddr;

use super::access::TreeAccess;
use super::node::{
    CHUNK_NODE_COUNT, Entry, InnerNode, NODE_SIZE_BLOCKS, NODE_SIZE_WORDS, image_addr,
};
use crate::IndexError;

/// chunks that one batch reads: 512 KiB.
const BATCH_CHUNK_COUNT: usize = 8;
const CHUNK_SIZE_WORDS: usize = CHUNK_NODE_COUNT as usize * NODE_SIZE_WORDS;

/// What the level above the leaves says.
#[derive(Clone, Debug, Default)]
pub struct Level {
    /// Every leaf that is listed, by lower fence, each fence once.
    pub entries: Vec<Entry>,
    /// The nodes that list them, and are linked to, by lower fence: where a split of a leaf is
    /// listed.
    pub nodes: Vec<Entry>,
}

impl<E: Endpoint> TreeAccess<'_, E> {
    /// The chunks of a tree, on all nodes that can be reached.
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

    /// Every node of a tree that is intact, with its place: as they are met, not at one moment;
    /// what is torn is left out. One round trip per 8 chunks of 64 KiB, and those that reading the
    /// chunk table takes. A sibling may be among them that nothing links to yet.
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
        // Each batch is for one memory node, so that a lost one hides no other's.
        let of_one_node = |left: &ChunkIndex, right: &ChunkIndex| left.node() == right.node();
        let of_nodes = chunks.chunk_by(of_one_node);
        for part in of_nodes.flat_map(|chunks| chunks.chunks(BATCH_CHUNK_COUNT)) {
            batch.clear();
            let reads: Vec<_> = part
                .iter()
                .map(|chunk| access.layout.chunk_start(*chunk))
                // From the first node's image on: nobody needs its lock.
                .map(|start| (start, batch.read(image_addr(start), CHUNK_SIZE_WORDS - 1)))
                .collect();
            match access.endpoint.execute(&mut batch).await {
                // What was on it is gone.
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

    /// Reads the level above the leaves; costs as [`nodes`](Self::nodes).
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
                level.nodes.push(Entry {
                    low: node.low(),
                    child: addr,
                });
            }
        };
        self.nodes(generation, visit).await?;
        // I3: somebody may be about to link to the others, or may have died before. Whatever a node
        // links to is in the chain: a new node's link is its left neighbour's.
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
