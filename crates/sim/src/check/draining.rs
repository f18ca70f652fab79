//! U5, V5: when there is nothing left to retrain, a node that is to be left has been, and nothing
//! of the pool is on it. A table that moves no leaf (rolex) keeps its node, and so may one of which
//! something is lost with another node (U4).

use farleaf_index::LayerKind;
use farleaf_node::audit::Audit;
use farleaf_region::catalog::CatalogEntry;
use farleaf_region::chunk::ChunkPurpose;
use farleaf_region::layout::ChunkIndex;
use farleaf_region::members::MemberState;

use super::Violation;
use crate::node::Node;

/// Looks for nodes that are still draining, when nobody works any more.
pub fn check(node: &Node, entries: &[CatalogEntry], audit: &Audit) -> Vec<Violation> {
    let mut found = Vec::new();
    let members = node.layout.members();
    let has_lost = members.all().any(|(_, state)| state == MemberState::Lost);
    for (member, state) in members.all() {
        let draining = member.layout.node;
        if state != MemberState::Draining || has_lost {
            continue;
        }
        let used = audit.chunks.iter();
        let used: Vec<_> = used
            .filter(|(index, chunk)| {
                index.node() == draining && chunk.purpose != Some(ChunkPurpose::Free)
            })
            .collect();
        let moves_none = |table| {
            let mut entries = entries.iter().filter(|entry| entry.record.id == table);
            entries.any(|entry| entry.record.search_layer == LayerKind::Rolex.number())
        };
        if used.iter().any(|(_, chunk)| moves_none(chunk.table)) {
            continue;
        }
        let left: Vec<ChunkIndex> = used.into_iter().map(|(index, _)| index).collect();
        let how = format!("{draining} is not left; chunks {left:?} are on it");
        found.push(Violation::new("draining", how));
    }
    found
}
