//! Checks drained nodes: when nothing is left to retrain, the node has left, and the pool has no
//! data on it.
//!
//! Exceptions: a `rolex` table moves no leaf and keeps its node. If another node is lost, leaves
//! that splits created may stay. Runs of `learned` tables then stay only if the loss prevented the
//! commit of a retraining.

use farleaf_base::RemoteAddr;
use farleaf_index::LayerKind;
use farleaf_leaf::words::LeafGeometry;
use farleaf_node::audit::Audit;
use farleaf_pool::catalog::CatalogEntry;
use farleaf_pool::chunk::{ChunkEntry, ChunkPurpose};
use farleaf_pool::layout::ChunkIndex;
use farleaf_pool::members::MemberState;

use super::Violation;
use crate::node::Node;

/// Returns the nodes that are still draining, when no client works anymore.
pub fn check(node: &Node, entries: &[CatalogEntry], audit: &Audit) -> Vec<Violation> {
    let mut found = Vec::new();
    let members = node.layout.members();
    let has_lost = members.all().any(|(_, state)| state == MemberState::Lost);
    for (member, state) in members.all() {
        let draining = member.layout.node;
        if state != MemberState::Draining {
            continue;
        }
        let is_of = |table, layer: LayerKind| {
            let mut entries = entries.iter().filter(|entry| entry.record.id == table);
            entries.any(|entry| entry.record.search_layer == layer.number())
        };
        let may_stay = |index: ChunkIndex, chunk: &ChunkEntry| {
            let moves_runs = is_of(chunk.table, LayerKind::Learned) && chunk.owner.is_free();
            has_lost && !(moves_runs && is_movable_run(node, audit, index, chunk))
        };
        let used = audit.chunks.iter();
        let used: Vec<_> = used
            .filter(|(index, chunk)| {
                let is_used = chunk.purpose != Some(ChunkPurpose::Free);
                index.node() == draining && is_used && !may_stay(*index, chunk)
            })
            .collect();
        if used
            .iter()
            .any(|(_, chunk)| is_of(chunk.table, LayerKind::Rolex))
        {
            continue;
        }
        if has_lost && used.is_empty() {
            continue;
        }
        let remaining: Vec<ChunkIndex> = used.into_iter().map(|(index, _)| index).collect();
        let how = format!("{draining} is not drained: it still has chunks {remaining:?}");
        found.push(Violation::new("draining", how));
    }
    found
}

/// Returns whether a chunk belongs to a run none of whose leaves was moved by an uncommitted
/// retraining. Such a retraining could not be committed because its new leaves are lost or lie
/// behind lost ones.
fn is_movable_run(node: &Node, audit: &Audit, index: ChunkIndex, chunk: &ChunkEntry) -> bool {
    let Some(ChunkPurpose::Run { slots, .. }) = chunk.purpose else {
        return false;
    };
    let Ok(geometry) = LeafGeometry::new(slots.into()) else {
        return false;
    };
    let (members, start) = (node.layout.members(), node.layout.chunk_start(index));
    let mut places = (0..geometry.chunk_leaf_count())
        .map(|leaf| start.offset_blocks(leaf * geometry.stride_blocks()));
    places.all(|leaf| {
        let link = RemoteAddr::from_word(node.world.borrow().words(geometry.link(leaf), 1)[0]);
        let to = node
            .layout
            .chunk_of(link)
            .and_then(|to| audit.chunks.get(to));
        let is_committed = to.is_some_and(|to| to.owner.is_free());
        let is_lost = members.state(link.node()) == Some(MemberState::Lost);
        !link.is_retired() || link.place().is_null() || (is_committed && !is_lost)
    })
}
