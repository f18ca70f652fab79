//! Checks dropped tables: the entry and the chunks of a table that no client can be using become
//! free (LEAF-7).

use farleaf_pool::allocation::ChunkTable;
use farleaf_pool::catalog::{CatalogEntry, EntryState};
use farleaf_pool::chunk::ChunkPurpose;
use farleaf_pool::layout::ChunkIndex;

use super::Violation;

/// Returns the dropped tables that still exist, when no client works anymore and the node has had
/// time to free them.
pub fn check(entries: &[CatalogEntry], chunks: &ChunkTable) -> Vec<Violation> {
    let dropped = entries
        .iter()
        .filter(|entry| entry.state == EntryState::Dropped);
    let violation = |entry: &CatalogEntry| {
        let id = entry.record.id;
        let remaining = chunks
            .iter()
            .filter(|(_, chunk)| chunk.table == id && chunk.purpose != Some(ChunkPurpose::Free));
        let remaining: Vec<ChunkIndex> = remaining.map(|(index, _)| index).collect();
        let how = format!(
            "dropped table {} was not freed: its entry and chunks {remaining:?} remain",
            id.0
        );
        Violation::new("drops", how)
    };
    dropped.map(violation).collect()
}
