//! V5: when a node that is draining has left.

use farleaf_fabric::{Batch, Endpoint};
use farleaf_region::RegionError;
use farleaf_region::allocation::ChunkAllocator;
use farleaf_region::members::{MemberState, write_member};
use farleaf_types::{NodeId, SequenceNumber};

use crate::sweep::Keeper;

/// The nodes that are draining, each with the number that every session has to publish.
///
/// The home's agent has one, and asks it at every tick. What it knows is lost with the agent: the
/// next one begins anew, and waits a little longer.
#[derive(Debug, Default)]
pub struct Draining {
    since: Vec<(NodeId, SequenceNumber)>,
}

impl Draining {
    /// Lets nodes leave that hold nothing any more (V5). No round trip while none is draining; else
    /// one that reads all session blocks, and two for each of its nodes when those have passed.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn tick<E: Endpoint>(&mut self, keeper: &Keeper<E>) -> Result<(), RegionError> {
        let members = keeper.layout.members();
        let is_draining = |node| members.state(node) == Some(MemberState::Draining);
        self.since.retain(|(node, _)| is_draining(*node));
        let nodes: Vec<NodeId> = members
            .reachable()
            .filter(|node| is_draining(*node))
            .collect();
        if nodes.is_empty() {
            return Ok(());
        }
        for node in nodes {
            let known = self.since.iter().find(|(known, _)| *known == node);
            let Some((_, since)) = known.copied() else {
                // Who sees this number has seen the entry.
                let mut batch = Batch::new();
                let slot = batch.fetch_add(keeper.layout.sequence(), 1);
                keeper.endpoint.execute(&mut batch).await?;
                let number = SequenceNumber(batch.previous(slot) + 1);
                self.since.push((node, number));
                continue;
            };
            if keeper.published_by_all().await? < since {
                continue;
            }
            let allocator = ChunkAllocator::new(&keeper.endpoint, &keeper.layout, keeper.owner);
            if allocator.entries().await?.used_count(node) > 0 {
                continue;
            }
            let Some(member) = members.get(node) else {
                continue;
            };
            // It may have been kept meanwhile.
            if !members.change_state(node, MemberState::Draining, MemberState::Left) {
                continue;
            }
            write_member(&keeper.endpoint, &keeper.layout, member, MemberState::Left).await?;
            let mut batch = Batch::new();
            batch.fetch_add(keeper.layout.sequence(), 1);
            keeper.endpoint.execute(&mut batch).await?;
            tracing::info!(node = node.0, "a node has been drained, and can be stopped");
        }
        Ok(())
    }
}
