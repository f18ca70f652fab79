//! Choice of the node for the next claim.

use farleaf_base::NodeId;
use farleaf_fabric::Endpoint;

use super::ChunkAllocator;
use crate::members::MemberState;
use crate::{PoolError, PoolLayout};

/// Percentage by which a node must be fuller than the emptiest before rewritten data leave it,
/// because rewriting in place does not cross the network.
const REPLACEMENT_PERCENT: f64 = 2.0;

/// Usage of the nodes that accept new chunks, as one session sees it: read once, and updated with
/// the session's claims.
#[derive(Clone, Debug)]
pub struct NodeChoice {
    nodes: Vec<NodeLoad>,
}

#[derive(Clone, Copy, Debug)]
struct NodeLoad {
    node: NodeId,
    used_count: u64,
    chunk_count: u64,
}

impl NodeLoad {
    fn share(&self) -> f64 {
        self.used_count as f64 / self.chunk_count.max(1) as f64
    }
}

impl NodeChoice {
    /// Reads the usage of the nodes; nothing in a pool of one node. Else one round trip for each
    /// 512 chunks, 64 bytes per chunk.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn read<E: Endpoint>(
        allocator: &ChunkAllocator<'_, E>,
        layout: &PoolLayout,
    ) -> Result<Self, PoolError> {
        let is_open = |node| layout.members().state(node) == Some(MemberState::Active);
        let mut nodes: Vec<NodeLoad> = layout
            .memories()
            .filter(|memory| is_open(memory.node))
            .map(|memory| NodeLoad {
                node: memory.node,
                used_count: 0,
                chunk_count: memory.superblock.chunk_count,
            })
            .collect();
        if nodes.len() > 1 {
            let table = allocator.entries().await?;
            for load in &mut nodes {
                load.used_count = table.used_count(load.node);
            }
        }
        Ok(Self { nodes })
    }

    /// Returns whether there is more than one node to choose from.
    pub fn has_choice(&self) -> bool {
        self.nodes.len() > 1
    }

    /// Returns the node for the next chunks: the one with the smallest share of used chunks.
    pub fn emptiest(&self) -> NodeId {
        let loads = self.nodes.iter();
        let emptiest = loads.min_by(|one, other| one.share().total_cmp(&other.share()));
        emptiest.map_or(NodeId(0), |load| load.node)
    }

    /// Returns the node for chunks that replace others on `node`: that node, unless it is much
    /// fuller than the emptiest, or accepts no new chunks.
    pub fn replacement_node_for(&self, node: NodeId) -> NodeId {
        let emptiest = self.emptiest();
        let share_of = |node| {
            let load = self.nodes.iter().find(|load| load.node == node);
            load.map(NodeLoad::share)
        };
        match (share_of(node), share_of(emptiest)) {
            (Some(own), Some(least)) if own - least <= REPLACEMENT_PERCENT / 100.0 => node,
            _ => emptiest,
        }
    }

    /// Records claimed chunks on a node.
    pub fn note_claimed(&mut self, node: NodeId, count: u64) {
        for load in self.nodes.iter_mut().filter(|load| load.node == node) {
            load.used_count += count;
        }
    }

    /// Calls `claim` for the emptiest node, or the next one if that is full or was just lost. Also
    /// returns the node.
    ///
    /// # Errors
    /// All nodes are full, or the fabric failed.
    pub async fn on_emptiest<T>(
        &mut self,
        claim: impl AsyncFn(NodeId) -> Result<T, PoolError>,
    ) -> Result<(NodeId, T), PoolError> {
        loop {
            let node = self.emptiest();
            match claim(node).await {
                Err(error)
                    if (matches!(error, PoolError::Full { .. })
                        || error.lost_node() == Some(node))
                        && self.exclude(node) => {}
                claimed => return claimed.map(|claimed| (node, claimed)),
            }
        }
    }

    /// Excludes a node that is full or lost from further claims. Returns false if no other node is
    /// left.
    pub fn exclude(&mut self, node: NodeId) -> bool {
        self.nodes.retain(|load| load.node != node);
        !self.nodes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(loads: &[(u8, u64, u64)]) -> NodeChoice {
        let nodes = loads
            .iter()
            .map(|(node, used_count, chunk_count)| NodeLoad {
                node: NodeId(*node),
                used_count: *used_count,
                chunk_count: *chunk_count,
            });
        NodeChoice {
            nodes: nodes.collect(),
        }
    }

    /// Promise: a session's claims are spread over the nodes by size.
    #[test]
    fn claims_are_spread_by_size() {
        let mut placement = placement(&[(0, 100, 1000), (1, 0, 1000), (4, 0, 2000)]);
        let mut claimed = [0_u64; 5];
        for _ in 0..300 {
            let node = placement.emptiest();
            placement.note_claimed(node, 10);
            claimed[usize::from(node.0)] += 10;
        }
        for (node, wanted) in [(0, 675_i64), (1, 775), (4, 1550)] {
            let off = claimed[node] as i64 - wanted;
            assert!(off.abs() <= 20, "{claimed:?}");
        }
    }

    /// Promise: rewritten data stay on their node, unless it is much fuller than another one, or
    /// accepts no new chunks.
    #[test]
    fn rewriting_stays() {
        let placement = placement(&[(0, 50, 1000), (1, 69, 1000), (2, 72, 1000)]);
        assert_eq!(placement.replacement_node_for(NodeId(1)), NodeId(1));
        assert_eq!(placement.replacement_node_for(NodeId(2)), NodeId(0));
        assert_eq!(
            placement.replacement_node_for(NodeId(9)),
            NodeId(0),
            "it is draining"
        );
    }

    /// Promise: a full node is skipped.
    #[test]
    fn what_is_ruled_out_gets_nothing() {
        let mut placement = placement(&[(0, 0, 10), (1, 5, 10)]);
        assert!(placement.has_choice() && placement.exclude(NodeId(0)));
        assert_eq!(placement.emptiest(), NodeId(1));
        assert!(!placement.exclude(NodeId(1)));
    }
}
