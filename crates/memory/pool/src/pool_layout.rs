//! Where things are in a pool of one node or several.

use std::ops::Deref;
use std::sync::Arc;

use farleaf_types::{NodeId, RemoteAddr, WordAddr};

use crate::allocation::reserve_count;
use crate::layout::{ChunkIndex, RegionLayout};
use crate::members::Members;

/// Where things are in a pool: what there is once is in the home node's region (U1), which this
/// dereferences to; chunks are in the regions of all nodes. Clones know the same nodes.
#[derive(Clone, Debug)]
pub struct PoolLayout {
    home: RegionLayout,
    members: Arc<Members>,
}

impl Deref for PoolLayout {
    type Target = RegionLayout;

    #[inline]
    fn deref(&self) -> &RegionLayout {
        &self.home
    }
}

impl From<RegionLayout> for PoolLayout {
    /// A pool of which only the home node is known yet.
    fn from(home: RegionLayout) -> Self {
        let members = Arc::new(Members::home_alone(home));
        Self { home, members }
    }
}

impl PoolLayout {
    /// The home node's region.
    pub fn home(&self) -> &RegionLayout {
        &self.home
    }

    /// The pool's nodes, as far as they are known.
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// A node's region, if the node is known, be it lost.
    #[inline]
    pub fn region(&self, node: NodeId) -> Option<&RegionLayout> {
        if node == self.home.node {
            return Some(&self.home);
        }
        self.members.get(node).map(|member| &member.layout)
    }

    /// The regions that can be reached, home first.
    pub fn regions(&self) -> impl Iterator<Item = &RegionLayout> {
        let nodes = self.members.reachable();
        nodes.filter_map(|node| self.region(node))
    }

    fn region_of(&self, chunk: ChunkIndex) -> &RegionLayout {
        self.region(chunk.node())
            .expect("a chunk's number comes from a region that is known")
    }

    /// First word of a chunk's block in the chunk table of its node.
    pub fn chunk_entry(&self, chunk: ChunkIndex) -> WordAddr {
        self.region_of(chunk).chunk_entry(chunk)
    }

    /// First block of a chunk.
    pub fn chunk_start(&self, chunk: ChunkIndex) -> RemoteAddr {
        self.region_of(chunk).chunk_start(chunk)
    }

    /// Whether a chunk is one of those that are kept for retraining (A6).
    pub fn is_reserve(&self, chunk: ChunkIndex) -> bool {
        let region = self.region_of(chunk);
        chunk.number() < reserve_count(region.superblock.chunk_count)
    }

    /// The chunk that a block lies in; `None` when it lies in no chunk of a node that is known.
    #[inline]
    pub fn chunk_of(&self, addr: RemoteAddr) -> Option<ChunkIndex> {
        self.region(addr.node())?.chunk_of(addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Superblock;
    use crate::members::{Member, MemberState};

    /// Promise: addresses of all nodes lead back to their chunks, whose numbers differ; those of a
    /// node that is not known lead nowhere.
    #[test]
    fn chunks_of_all_nodes_are_told_apart() {
        let region = |node, size_mib: u64| RegionLayout {
            node: NodeId(node),
            superblock: Superblock::new(size_mib << 20, 7).expect("large enough"),
        };
        let pool = PoolLayout::from(region(0, 64));
        let unknown = region(5, 32).chunk_start(ChunkIndex::new(NodeId(5), 3));
        assert_eq!(pool.chunk_of(unknown), None);
        let member = Member {
            layout: region(5, 32),
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
        assert_eq!(pool.regions().count(), 2);
    }
}
