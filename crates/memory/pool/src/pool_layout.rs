//! Layout of a pool of one or several nodes.

use std::ops::Deref;
use std::sync::Arc;

use farleaf_base::{NodeId, RemoteAddr, WordAddr};

use crate::allocation::reserve_count;
use crate::layout::{ChunkIndex, NodeLayout};
use crate::members::Members;

/// Places in a pool's memory. Everything of which a pool has one is in the main node's memory, to
/// whose layout this dereferences; chunks are in the memories of all nodes. Clones share their
/// knowledge of nodes.
#[derive(Clone, Debug)]
pub struct PoolLayout {
    main_node: NodeLayout,
    members: Arc<Members>,
}

impl Deref for PoolLayout {
    type Target = NodeLayout;

    #[inline]
    fn deref(&self) -> &NodeLayout {
        &self.main_node
    }
}

impl From<NodeLayout> for PoolLayout {
    /// Creates the layout of a pool of which only the main node is known yet.
    fn from(main_node: NodeLayout) -> Self {
        let members = Arc::new(Members::main_node_alone(main_node));
        Self { main_node, members }
    }
}

impl PoolLayout {
    /// Returns the layout of the main node's memory.
    pub fn main_node(&self) -> &NodeLayout {
        &self.main_node
    }

    /// Returns the known nodes of the pool.
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// Returns the layout of a node's memory, if the node is known, even if it is lost.
    #[inline]
    pub fn memory(&self, node: NodeId) -> Option<&NodeLayout> {
        if node == self.main_node.node {
            return Some(&self.main_node);
        }
        self.members.get(node).map(|member| &member.layout)
    }

    /// Iterates over the layouts of the reachable memories, main node first.
    pub fn memories(&self) -> impl Iterator<Item = &NodeLayout> {
        let nodes = self.members.reachable();
        nodes.filter_map(|node| self.memory(node))
    }

    fn memory_of(&self, chunk: ChunkIndex) -> &NodeLayout {
        self.memory(chunk.node())
            .expect("a chunk's number comes from a region that is known")
    }

    /// Returns the first word of a chunk's block in the chunk table of its node.
    pub fn chunk_entry(&self, chunk: ChunkIndex) -> WordAddr {
        self.memory_of(chunk).chunk_entry(chunk)
    }

    /// Returns the first block of a chunk.
    pub fn chunk_start(&self, chunk: ChunkIndex) -> RemoteAddr {
        self.memory_of(chunk).chunk_start(chunk)
    }

    /// Returns whether a chunk is reserved for retraining.
    pub fn is_reserve(&self, chunk: ChunkIndex) -> bool {
        let memory = self.memory_of(chunk);
        chunk.number() < reserve_count(memory.superblock.chunk_count)
    }

    /// Returns the chunk that contains a block; `None` if no chunk of a known node does.
    #[inline]
    pub fn chunk_of(&self, addr: RemoteAddr) -> Option<ChunkIndex> {
        self.memory(addr.node())?.chunk_of(addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Superblock;
    use crate::members::{Member, MemberState};

    /// Promise: addresses on all nodes lead to their chunks, whose numbers differ; those of an
    /// unknown node lead nowhere.
    #[test]
    fn chunks_of_all_nodes_are_told_apart() {
        let memory = |node, size_mib: u64| NodeLayout {
            node: NodeId(node),
            superblock: Superblock::new(size_mib << 20, 7).expect("large enough"),
        };
        let pool = PoolLayout::from(memory(0, 64));
        let unknown = memory(5, 32).chunk_start(ChunkIndex::new(NodeId(5), 3));
        assert_eq!(pool.chunk_of(unknown), None);
        let member = Member {
            layout: memory(5, 32),
            address: "far:1".to_owned(),
        };
        pool.members().learn(member, MemberState::Active);
        for node in [0, 5].map(NodeId) {
            let chunk = ChunkIndex::new(node, 3);
            assert_eq!((chunk.node(), chunk.number()), (node, 3));
            let start = pool.chunk_start(chunk);
            assert_eq!((start.node(), pool.chunk_of(start)), (node, Some(chunk)));
            assert_eq!(pool.chunk_entry(chunk).node(), node);
        }
        assert_eq!(pool.memories().count(), 2);
    }
}
