//! Completion of drains: decides when a draining node has left.

use farleaf_base::{NodeId, SequenceNumber};
use farleaf_fabric::{Batch, Endpoint};
use farleaf_pool::PoolError;
use farleaf_pool::members::{Member, MemberState, MemberStatus, write_member};

use crate::sweep::MemoryMaintainer;

/// Draining nodes, each with its membership when the drain began, and with the number that every
/// session must publish. If a drain is canceled and started again, the node is treated as a new
/// case: a session that saw the state in between may be about to claim a chunk there.
///
/// The main node's agent owns this state and checks it at every tick. It is lost with the agent:
/// the next one begins again, and waits a little longer.
#[derive(Debug, Default)]
pub struct Draining {
    since: Vec<(NodeId, MemberStatus, SequenceNumber)>,
    /// Whether the table and its version announce every node that has left. If an agent dies just
    /// before it writes that, or its batch fails, the next agent or tick writes it.
    is_settled: bool,
}

impl Draining {
    /// Lets draining nodes leave that hold nothing any more. Costs no round trip while no node is
    /// draining, except the first time if any has left. Otherwise one that reads all session
    /// blocks, and two for each draining node when all sessions have published its number.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn tick<E: Endpoint>(
        &mut self,
        maintainer: &MemoryMaintainer<E>,
    ) -> Result<(), PoolError> {
        let members = maintainer.layout.members();
        if !self.is_settled {
            settle(maintainer).await?;
            self.is_settled = true;
        }
        self.since
            .retain(|(node, member_status, _)| members.member_status(*node) == *member_status);
        let standings = members.reachable();
        let standings = standings.map(|node| (node, members.member_status(node)));
        let draining: Vec<(NodeId, MemberStatus)> = standings
            .filter(|(_, member_status)| member_status.state() == Some(MemberState::Draining))
            .collect();
        for (node, member_status) in draining {
            let known = self.since.iter().find(|(known, ..)| *known == node);
            let Some((.., since)) = known.copied() else {
                if let Some(number) = draw(maintainer, node).await? {
                    self.since.push((node, member_status, number));
                }
                continue;
            };
            if maintainer.published_by_all().await? < since {
                continue;
            }
            let allocator = maintainer.allocator();
            if allocator.entries().await?.used_count(node) > 0 {
                continue;
            }
            let Some(member) = members.get(node) else {
                continue;
            };
            // The drain may have been canceled in the meantime, and even started again.
            if !members.change_state(node, member_status, MemberState::Left) {
                continue;
            }
            self.is_settled = false;
            write_left(maintainer, member).await?;
            self.is_settled = true;
        }
        Ok(())
    }
}

/// Writes again that nodes have left: the table may not say so, or may say so in a version that was
/// not advanced (FABRIC-5). Costs two round trips for each.
async fn settle<E: Endpoint>(maintainer: &MemoryMaintainer<E>) -> Result<(), PoolError> {
    let left = maintainer.layout.members().all();
    let left = left.filter(|(_, state)| *state == MemberState::Left);
    for (member, _) in left {
        write_left(maintainer, member).await?;
    }
    Ok(())
}

/// Does not overwrite a loss: a loss is known in this process before it is written. So what is
/// known after a write is what the table must say, or the other writer is about to write it.
async fn write_left<E: Endpoint>(
    maintainer: &MemoryMaintainer<E>,
    member: &Member,
) -> Result<(), PoolError> {
    let node = member.layout.node;
    let known = || maintainer.layout.members().state(node);
    let mut written = None;
    while let Some(state) = known().filter(|state| written != Some(*state)) {
        write_member(&maintainer.endpoint, &maintainer.layout, member, state).await?;
        written = Some(state);
    }
    let mut batch = Batch::new();
    batch.fetch_add(maintainer.layout.sequence(), 1);
    maintainer.endpoint.execute(&mut batch).await?;
    if written == Some(MemberState::Left) {
        tracing::info!(node = node.0, "a node has been drained and can be stopped");
    }
    Ok(())
}

/// Draws a number that no session publishes before it has seen that the node drains; `None` if the
/// node's entry does not say so yet.
async fn draw<E: Endpoint>(
    maintainer: &MemoryMaintainer<E>,
    node: NodeId,
) -> Result<Option<SequenceNumber>, PoolError> {
    let mut batch = Batch::new();
    // In this order (FABRIC-2).
    let state = batch.read(maintainer.layout.member_entry(node), 1);
    let slot = batch.fetch_add(maintainer.layout.sequence(), 1);
    maintainer.endpoint.execute(&mut batch).await?;
    let is_draining = batch.words(state)[0] == MemberState::Draining as u64;
    Ok(is_draining.then(|| SequenceNumber(batch.previous(slot) + 1)))
}
