//! D7, G3: a dropped table that nobody can be working on becomes free, its entry and its chunks.

use farleaf_region::allocation::ChunkTable;
use farleaf_region::catalog::{CatalogEntry, EntryState};
use farleaf_region::chunk::ChunkPurpose;
use farleaf_region::layout::ChunkIndex;

use super::Violation;

/// Looks for dropped tables, when nobody works any more and the node has had time to free them.
pub fn check(entries: &[CatalogEntry], chunks: &ChunkTable) -> Vec<Violation> {
    let dropped = entries
        .iter()
        .filter(|entry| entry.state == EntryState::Dropped);
    let violation = |entry: &CatalogEntry| {
        let id = entry.record.id;
        let left = chunks
            .iter()
            .filter(|(_, chunk)| chunk.table == id && chunk.purpose != Some(ChunkPurpose::Free));
        let left: Vec<ChunkIndex> = left.map(|(index, _)| index).collect();
        let how = format!(
            "table {} was dropped and is never freed: its entry, and its chunks {left:?}",
            id.0
        );
        Violation::new("drops", how)
    };
    dropped.map(violation).collect()
}
