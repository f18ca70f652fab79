//! Which node the next chunks are claimed on (A7).

use farleaf_fabric::Endpoint;
use farleaf_types::NodeId;

use super::ChunkAllocator;
use crate::members::MemberState;
use crate::{PoolLayout, RegionError};

/// A node keeps what it has until it is this much fuller than the emptiest, in percent of its size:
/// what is rewritten at its place crosses no network.
const STAYING_PERCENT: f64 = 2.0;

/// How full the nodes are that take new chunks, as one session sees it: read once, and kept up with
/// what the session claims.
#[derive(Clone, Debug)]
pub struct Placement {
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

impl Placement {
    /// Reads how full the nodes are; nothing in a pool of one node. Else a round trip for each 512
    /// chunks, 64 bytes each.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn read<E: Endpoint>(
        allocator: &ChunkAllocator<'_, E>,
        layout: &PoolLayout,
    ) -> Result<Self, RegionError> {
        let is_open = |node| layout.members().state(node) == Some(MemberState::Active);
        let mut nodes: Vec<NodeLoad> = layout
            .regions()
            .filter(|region| is_open(region.node))
            .map(|region| NodeLoad {
                node: region.node,
                used_count: 0,
                chunk_count: region.superblock.chunk_count,
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

    /// Whether there is any choice.
    pub fn has_choice(&self) -> bool {
        self.nodes.len() > 1
    }

    /// The node that the next chunks go to: the emptiest, by the share of its chunks that is used.
    pub fn emptiest(&self) -> NodeId {
        let loads = self.nodes.iter();
        let emptiest = loads.min_by(|one, other| one.share().total_cmp(&other.share()));
        emptiest.map_or(NodeId(0), |load| load.node)
    }

    /// The node that chunks go to which take the place of others on `node`: that node, unless it is
    /// much fuller than the emptiest, or takes none.
    pub fn staying_on(&self, node: NodeId) -> NodeId {
        let emptiest = self.emptiest();
        let share_of = |node| {
            let load = self.nodes.iter().find(|load| load.node == node);
            load.map(NodeLoad::share)
        };
        match (share_of(node), share_of(emptiest)) {
            (Some(own), Some(least)) if own - least <= STAYING_PERCENT / 100.0 => node,
            _ => emptiest,
        }
    }

    /// So many chunks were claimed on a node.
    pub fn note_claimed(&mut self, node: NodeId, count: u64) {
        for load in self.nodes.iter_mut().filter(|load| load.node == node) {
            load.used_count += count;
        }
    }

    /// Claims something by `claim`, on the emptiest node; where there is no room, or which was lost
    /// just now (U4), on the next one. Returns also where.
    ///
    /// # Errors
    /// There is no room on any node; or the fabric failed.
    pub async fn on_emptiest<T>(
        &mut self,
        claim: impl AsyncFn(NodeId) -> Result<T, RegionError>,
    ) -> Result<(NodeId, T), RegionError> {
        loop {
            let node = self.emptiest();
            match claim(node).await {
                Err(error)
                    if (matches!(error, RegionError::Full { .. })
                        || error.lost_node() == Some(node))
                        && self.rule_out(node) => {}
                claimed => return claimed.map(|claimed| (node, claimed)),
            }
        }
    }

    /// A node has no room for what was wanted, or is gone: nothing more goes there. False: there is
    /// no other.
    pub fn rule_out(&mut self, node: NodeId) -> bool {
        self.nodes.retain(|load| load.node != node);
        !self.nodes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(loads: &[(u8, u64, u64)]) -> Placement {
        let nodes = loads
            .iter()
            .map(|(node, used_count, chunk_count)| NodeLoad {
                node: NodeId(*node),
                used_count: *used_count,
                chunk_count: *chunk_count,
            });
        Placement {
            nodes: nodes.collect(),
        }
    }

    /// Promise: what a session claims goes to the nodes by their sizes.
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

    /// Promise: what is rewritten stays where it is, unless that is much fuller than another node,
    /// or takes nothing new.
    #[test]
    fn rewriting_stays() {
        let placement = placement(&[(0, 50, 1000), (1, 69, 1000), (2, 72, 1000)]);
        assert_eq!(placement.staying_on(NodeId(1)), NodeId(1));
        assert_eq!(placement.staying_on(NodeId(2)), NodeId(0));
        assert_eq!(placement.staying_on(NodeId(9)), NodeId(0), "it is draining");
    }

    /// Promise: a node without room is passed over.
    #[test]
    fn what_is_ruled_out_gets_nothing() {
        let mut placement = placement(&[(0, 0, 10), (1, 5, 10)]);
        assert!(placement.has_choice() && placement.rule_out(NodeId(0)));
        assert_eq!(placement.emptiest(), NodeId(1));
        assert!(!placement.rule_out(NodeId(1)));
    }
}
