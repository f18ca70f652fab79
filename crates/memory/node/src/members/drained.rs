//! V5: when a node that is draining has left.

use farleaf_fabric::{Batch, Endpoint};
use farleaf_region::RegionError;
use farleaf_region::allocation::ChunkAllocator;
use farleaf_region::members::{Member, MemberState, Standing, write_member};
use farleaf_types::{NodeId, SequenceNumber};

use crate::sweep::Keeper;

/// The nodes that are draining, each as it stood when this was begun, and with the number that
/// every session has to publish. One that was kept and drains again is another case: whoever looked
/// in between may be about to claim a chunk there.
///
/// The home's agent has one, and asks it at every tick. What it knows is lost with the agent: the
/// next one begins anew, and waits a little longer.
#[derive(Debug, Default)]
pub struct Draining {
    since: Vec<(NodeId, Standing, SequenceNumber)>,
    /// Whether everybody is told of each node that has left that it has: an agent that dies just
    /// before it writes that, or whose batch fails, leaves it to the next one, or its next tick.
    is_settled: bool,
}

impl Draining {
    /// Lets nodes leave that hold nothing any more (V5). No round trip while none is draining, but
    /// for the first time, if any has left; else one that reads all session blocks, and two for
    /// each of its nodes when those have passed.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn tick<E: Endpoint>(&mut self, keeper: &Keeper<E>) -> Result<(), RegionError> {
        let members = keeper.layout.members();
        if !self.is_settled {
            settle(keeper).await?;
            self.is_settled = true;
        }
        self.since
            .retain(|(node, standing, _)| members.standing(*node) == *standing);
        let standings = members.reachable();
        let standings = standings.map(|node| (node, members.standing(node)));
        let draining: Vec<(NodeId, Standing)> = standings
            .filter(|(_, standing)| standing.state() == Some(MemberState::Draining))
            .collect();
        for (node, standing) in draining {
            let known = self.since.iter().find(|(known, ..)| *known == node);
            let Some((.., since)) = known.copied() else {
                if let Some(number) = draw(keeper, node).await? {
                    self.since.push((node, standing, number));
                }
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
            // It may have been kept meanwhile, be it that it drains again.
            if !members.change_state(node, standing, MemberState::Left) {
                continue;
            }
            self.is_settled = false;
            write_left(keeper, member).await?;
            self.is_settled = true;
        }
        Ok(())
    }
}

/// Writes once more that nodes have left: the table may not say so, or say so in a version that
/// was not advanced (F5). Two round trips for each.
async fn settle<E: Endpoint>(keeper: &Keeper<E>) -> Result<(), RegionError> {
    let left = keeper.layout.members().all();
    let left = left.filter(|(_, state)| *state == MemberState::Left);
    for (member, _) in left {
        write_left(keeper, member).await?;
    }
    Ok(())
}

/// Not over a loss (U4): who declares one knows it before it writes it, so whatever is known after
/// a write is what the table has to say, or the other one is about to write it.
async fn write_left<E: Endpoint>(keeper: &Keeper<E>, member: &Member) -> Result<(), RegionError> {
    let node = member.layout.node;
    let known = || keeper.layout.members().state(node);
    let mut written = None;
    while let Some(state) = known().filter(|state| written != Some(*state)) {
        write_member(&keeper.endpoint, &keeper.layout, member, state).await?;
        written = Some(state);
    }
    let mut batch = Batch::new();
    batch.fetch_add(keeper.layout.sequence(), 1);
    keeper.endpoint.execute(&mut batch).await?;
    if written == Some(MemberState::Left) {
        tracing::info!(node = node.0, "a node has been drained, and can be stopped");
    }
    Ok(())
}

/// A number that nobody sees who has not seen that the node drains; `None`: its entry does not say
/// so yet.
async fn draw<E: Endpoint>(
    keeper: &Keeper<E>,
    node: NodeId,
) -> Result<Option<SequenceNumber>, RegionError> {
    let mut batch = Batch::new();
    // In this order (F2).
    let state = batch.read(keeper.layout.member_entry(node), 1);
    let slot = batch.fetch_add(keeper.layout.sequence(), 1);
    keeper.endpoint.execute(&mut batch).await?;
    let is_draining = batch.words(state)[0] == MemberState::Draining as u64;
    Ok(is_draining.then(|| SequenceNumber(batch.previous(slot) + 1)))
}
