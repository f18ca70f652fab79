//! Tables with a tree: nothing of them is retrained. What a load has left of the tree before it is
//! reused (T2, T3).

use std::cell::Cell;
use std::collections::BTreeSet;

use farleaf_fabric::Endpoint;
use farleaf_index::IndexError;
use farleaf_index::load::finish_root;
use farleaf_region::allocation::ChunkAllocator;
use farleaf_region::catalog::CatalogEntry;
use farleaf_region::chunk::{ChunkEntry, ChunkPurpose};
use farleaf_region::layout::ChunkIndex;
use farleaf_region::members::MemberState;

use super::Retrainer;
use crate::patience::Patience;
use crate::sweep::Keeper;

impl Retrainer {
    /// Looks whether chunks of an older load are left: at the node's own looks, and when somebody
    /// has died. Nothing more is ever due.
    pub(super) async fn look_at_tree<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        entry: CatalogEntry,
        patience: &Patience<'_>,
        is_look_due: bool,
    ) -> Result<bool, IndexError> {
        self.tell_undrained(keeper, &entry);
        let Some(access) = keeper.access(&entry).filter(|_| is_look_due) else {
            return Ok(false);
        };
        // T2: the chunks first, then the root.
        let allocator = ChunkAllocator::new(&keeper.endpoint, &keeper.layout, keeper.owner);
        let chunks = allocator.entries().await?;
        let broken = Cell::new(false);
        let Some(root) = patience.wait(finish_root(&access, &entry, &broken)).await else {
            return Ok(false);
        };
        let root = root?;
        if root.is_null() {
            return Ok(false);
        }
        let table = entry.record.id;
        let known = self.known(table);
        let is_garbage = |index: &ChunkIndex, chunk: &ChunkEntry| {
            let is_older = match chunk.purpose {
                Some(
                    ChunkPurpose::Inner { generation } | ChunkPurpose::Snapshot { generation },
                ) => generation != root.spare(),
                _ => false,
            };
            is_older && chunk.table == table && chunk.owner.is_free() && !known.contains(index)
        };
        let old: BTreeSet<ChunkIndex> = chunks
            .iter()
            .filter(|(index, chunk)| is_garbage(index, chunk))
            .map(|(index, _)| index)
            .collect();
        let group = (table, access.geometry);
        self.discard(
            keeper,
            group,
            (Vec::new(), old.into_iter().collect()),
            Vec::new(),
        )
        .await?;
        Ok(false)
    }

    /// Says once that a node is not left because of a table.
    fn tell_undrained<E: Endpoint>(&self, keeper: &Keeper<E>, entry: &CatalogEntry) {
        let members = keeper.layout.members();
        let mut draining = members
            .reachable()
            .filter(|node| members.state(*node) == Some(MemberState::Draining));
        if draining.next().is_some() && self.told_undrained.borrow_mut().insert(entry.record.id) {
            tracing::warn!(
                table = entry.record.name,
                "a table whose leaves a tree leads to moves no leaf: its node is not left before \
                 it is dropped"
            );
        }
    }
}
